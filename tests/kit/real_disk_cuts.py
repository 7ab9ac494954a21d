"""Power cuts over a disk's log: the choice of cuts, and the verdict on the store after each."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kit.real_disk import mounted
from kit.real_disk_hosts import ChildFailedError
from kit.real_disk_journal import NEVER, Journal
from kit.real_disk_judge import judge, same
from kit.real_disk_log import BaseImage, Cut, DiskLog, Kept, leave
from kit.real_disk_work import AFTER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.real_disk import RealDisk
    from kit.real_disk_hosts import Host

GO_ON_EVERY = 4  # every n-th cut is recovered again, used, closed and opened


@dataclass
class History:
    """The finished log of a disk and the journal of its user."""

    base: BaseImage
    log: DiskLog
    journal: Journal
    file_system: str
    image: Path
    counted: dict[str, int] = field(default_factory=dict)  # the store's own counters
    forgetful: bool = False  # a failed flush loses what was written before it

    @classmethod
    def of(cls, disk: RealDisk, *, forgetful: bool = False) -> History:
        journal = Journal.read(disk.place / "journal")
        return cls(disk.base, disk.log(), journal, disk.file_system, disk.place / "after-the-cut", forgetful=forgetful)


def work_on(disk: RealDisk, host: Host, seed: int, steps: int) -> History:
    """A store's work on a disk without failures, until the process is killed; then the disk is removed."""
    (disk.place / "journal").unlink(missing_ok=True)
    did = host.ask("work_hard", disk.path / "store", disk.place / "journal", disk.control_path, seed, steps, {})
    assert did["failed"] == [], "\n".join(did["failed"])
    disk.end()
    history = History.of(disk)
    history.counted = did["counted"]
    return history


def random_cuts(history: History, seed: int, count: int) -> Iterator[Cut]:
    """Now and then at a flush, otherwise where data is not flushed, with each kind of loss in turn."""
    chance = random.Random(seed)
    flushes, windows = history.log.flushes(), history.log.windows()
    kinds = list(Kept)
    for number in range(count):
        kept = kinds[number % len(kinds)]
        position = chance.choice(flushes if number % 7 == 0 else windows)
        yield Cut(position, kept, chance.randrange(1 << 32))


def cuts_at_acknowledgements(history: History, seed: int, count: int) -> list[Cut]:
    """The moments of acknowledgements, with the loss of everything that no sync covers."""
    positions = sorted({atom.acked_at for atom in history.journal.atoms if atom.acked_at < NEVER})
    chosen = random.Random(seed).sample(positions, min(count, len(positions)))
    return [Cut(position, Kept.NOTHING) for position in sorted(chosen)]


def look_after(history: History, cut: Cut, host: Host, *, go_on: bool = False) -> list[str]:
    """The errors of the store after this cut. A file system that cannot be mounted raises a different error."""
    leave(history.base, history.log, cut, history.image, forgetful=history.forgetful)
    with mounted(history.image, history.file_system) as point:
        try:
            shown = host.ask("look", point / "store")
            wrong = judge(history.journal, cut.position, shown)
            return wrong + (_going_on(shown, host.ask("go_on", point / "store")) if go_on else [])
        except ChildFailedError as error:
            return [str(error)]


def _going_on(shown: dict[str, Any], looks: list[dict[str, Any]]) -> list[str]:
    """A second recovery changes nothing, and the recovered store works."""
    again, used, closed = looks
    wrong = same(shown, again)
    wrong += ["a message published after the recovery is not there"] if AFTER not in tags(used, "last") else []
    wrong += ["something settled is in doubt"] if used["in doubt"] else []
    return wrong + [f"after an orderly close, {change}" for change in same(used, closed)]


def tags(shown: dict[str, Any], queue: str) -> list[str]:
    return [message["tag"] for message in shown["queues"].get(queue, [])]


def violations(history: History, cuts: list[Cut], host: Host) -> list[str]:
    """Makes and judges every cut; an error names the cut, so that it can be repeated."""
    found = []
    for number, cut in enumerate(cuts):
        wrong = look_after(history, cut, host, go_on=number % GO_ON_EVERY == 0)
        found += [f"{history.file_system}: {cut}: {text}" for text in wrong]
    return found
