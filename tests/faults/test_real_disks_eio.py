"""A real disk that fails while writers wait, works again, and is used for an open in the same boot.

After a failed sync the kernel marks the pages as clean: the next sync succeeds, and a read of the file returns bytes
that are not on the disk. A disk can do the same: accept a write, fail the flush, return the bytes, and lose them at a
power cut. In both cases the store reads its tail past the page cache and writes it again before it serves, so that the
state it shows is durable. In a build without that rule these tests fail.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from kit.real_disk import mounted, real_disk
from kit.real_disk_cuts import History, tags, violations
from kit.real_disk_faults import GOOD, LATER, phantoms
from kit.real_disk_hosts import ChildFailedError, host
from kit.real_disk_journal import Journal
from kit.real_disk_judge import judge, same
from kit.real_disk_log import Cut, Kept, leave
from kit.real_disk_mutants import mutant_package
from kit.torture import part_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from kit.real_disk import RealDisk
    from kit.real_disk_hosts import Host

FILE_SYSTEMS = ("ext4", "xfs")
TORTURE_S = float(os.environ.get("LOGSTORE_TORTURE_S", "0"))
FAILURES = 4  # of one write or flush, on each file system
STEPS = 45  # of each of three threads
KEPT = list(Kept) if TORTURE_S else [Kept.NOTHING, Kept.ALL, Kept.SECTORS]
# Errors that may end a thread after its disk has failed.
KNOWN_FAILURES = {"OutcomeUnknown", "StorePoisoned", "CatalogError", "CatalogUnavailable", "StoreError"}
KNOWN_FAILURES |= {"StoreFull"}  # it was the write or flush of a spare: "another segment cannot be made"
MEMORIES = {
    "segments": False,
    "flushes": True,
}  # how it fails, and whether the disk itself loses bytes that it returned


def some(cases: Iterable[object], every: int) -> Sequence[tuple[str, object]]:
    """A fixed part of the cases on each file system, in which each case and each file system is."""
    return part_of(list(itertools.product(FILE_SYSTEMS, cases)), every)


@pytest.fixture(scope="module")
def children() -> Iterator[Host]:
    with host() as made:
        yield made


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with the deliberate faults."""
    return mutant_package(tmp_path_factory.mktemp("mutants"))


# ---- the scenario, and its errors ----


def failed_under(disk: RealDisk, children: Host, how: str) -> dict[str, Any]:
    """Writers wait, the disk fails in this way and works again; the file system stays mounted."""
    arguments = (disk.path / "store", disk.place / "journal", disk.control_path, how)
    told: dict[str, Any] = children.ask("write_while_it_fails", *arguments)
    assert told["failed"] > 0, "nothing has failed"
    return told


def reopened_in_the_same_boot(disk: RealDisk, children: Host, *, forgetful: bool) -> Iterator[str]:
    """The errors of the store that is opened with the present page cache, and after later power cuts."""
    before = disk.control.entries
    try:
        shown = children.ask("look", disk.path / "store")
    except ChildFailedError as error:
        yield str(error)
        return
    yield from _lost_later(disk, children, before, shown, forgetful=forgetful)


def reopened_in_the_same_process(disk: RealDisk, children: Host, how: str) -> Iterator[str]:
    """As both functions above, but one process has the store before and after."""
    try:
        did = children.ask("fail_and_look", disk.path / "store", disk.place / "journal", disk.control_path, how)
    except ChildFailedError as error:
        yield str(error)
        return
    assert did["failed"] > 0, "nothing has failed"
    yield from _lost_later(disk, children, did["before"], did["shown"], forgetful=MEMORIES[how])


def _lost_later(
    disk: RealDisk, children: Host, before: int, shown: dict[str, Any], *, forgetful: bool
) -> Iterator[str]:
    """The errors of what an open has shown, and after power cuts since it began."""
    served = disk.control.entries
    history = History.of(disk, forgetful=forgetful)
    yield from judge(history.journal, served, shown)
    for kept in KEPT:  # once it has served: that very state
        yield from _changed_by(Cut(served, kept, served), history, shown, children)
    for kept in KEPT:  # while it was opening: whatever the journal allows
        position = random.Random(kept.value).randint(before, served)
        yield from violations(history, [Cut(position, kept, served)], children)


def _changed_by(cut: Cut, history: History, shown: dict[str, Any], children: Host) -> list[str]:
    leave(history.base, history.log, cut, history.image, forgetful=history.forgetful)
    with mounted(history.image, history.file_system) as point:
        try:
            return [f"{cut}: {change}" for change in same(shown, children.ask("look", point / "store"))]
        except ChildFailedError as error:
            return [f"{cut}: {error}"]


# ---- with the rule ----


@pytest.mark.parametrize(("file_system", "how"), some(["segments", "flushes", "everything"], 2))
def test_waiters_on_a_failing_disk_get_outcome_unknown(file_system: str, how: str, children: Host) -> None:
    with real_disk(file_system) as disk:
        told = failed_under(disk, children, how)
        assert "OutcomeUnknown" in told["told"]
        assert set(told["told"]) <= {"OutcomeUnknown", "StorePoisoned"}  # the latter came too late to be taken
        assert told["later"] == "StorePoisoned"
        assert told["again"] == "StorePoisoned"  # though the disk was well again
        assert told["forced"] == "OutcomeUnknown"


@pytest.mark.parametrize(("file_system", "how"), some(MEMORIES, 3))
def test_the_state_shown_after_a_failure_in_the_same_boot_survives_a_power_cut(
    file_system: str, how: str, children: Host
) -> None:
    with real_disk(file_system) as disk:
        failed_under(disk, children, how)
        store = disk.path / "store"
        if how == "segments":
            assert len(phantoms(store)) == 1  # else nothing is shown here
        assert list(reopened_in_the_same_boot(disk, children, forgetful=MEMORIES[how])) == []
        shown = children.ask("look", store)
        assert tags(shown, "a")[: len(GOOD)] == list(GOOD)
        assert LATER not in tags(shown, "a")
        seen = any(tag.startswith("bad-") for tag in tags(shown, "a"))
        assert seen is (how == "flushes")  # never written; or written, read, and kept


@pytest.mark.parametrize(("file_system", "how"), some(MEMORIES, 3))
def test_the_process_whose_store_failed_may_close_and_open_it_again(file_system: str, how: str, children: Host) -> None:
    with real_disk(file_system) as disk:
        assert list(reopened_in_the_same_process(disk, children, how)) == []


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_a_disk_that_failed_every_write_keeps_earlier_acknowledged_operations(file_system: str, children: Host) -> None:
    """The file system has shut down or is read-only by then, and is mounted again."""
    with real_disk(file_system) as disk:
        failed_under(disk, children, "everything")
        disk.unmount()
        disk.mount()
        journal = Journal.read(disk.place / "journal")
        assert judge(journal, disk.control.entries, children.ask("look", disk.path / "store")) == []


# ---- blocks that were never written to ----


@pytest.mark.parametrize(("file_system", "fails"), some(["the first batch", "a later batch", "a header"], 2))
def test_reusing_a_file_with_a_failed_write_loses_nothing(file_system: str, fails: str, children: Host) -> None:
    """On ext4, later writes to the pages of such a write are synced without an error, but lost."""
    with real_disk(file_system) as disk:
        files = (disk.path / "store", disk.place / "journal", disk.control_path)
        did = children.ask("use_again_what_failed", *files, fails)
        assert disk.control.failed_writes > 0
        assert did["used again"]
        assert did["stays"] > 10
        assert violations(History.of(disk), [Cut(disk.control.entries, Kept.NOTHING)], children) == []


@pytest.mark.parametrize(("file_system", "goes_on"), some([True, False], 3))
def test_a_failed_change_of_the_catalog_loses_no_later_one(file_system: str, goes_on: bool, children: Host) -> None:
    """SQLite's log is a growing file, with blocks that were never written before."""
    with real_disk(file_system) as disk:
        files = (disk.path / "store", disk.place / "journal", disk.control_path)
        told, *queues = children.ask("fail_in_the_catalog", *files, goes_on)
        assert told == "CatalogUnavailable"
        assert disk.control.failed_writes > 0
        if not goes_on:
            queues = children.ask("go_on_after_the_catalog", *files)
        assert len(queues) > 6
        assert violations(History.of(disk), [Cut(disk.control.entries, Kept.NOTHING)], children) == []


# ---- any one call ----


def after_one_failure(disk: RealDisk, children: Host, field: str, number: int, seed: int) -> list[str]:
    """The errors after a run in which one write or flush failed: after a power cut, or after another mount."""
    files = (disk.path / "store", disk.place / "journal", disk.control_path)
    did = children.ask("work_hard", *files, seed, STEPS, {field: number})
    died = disk.control.entries
    assert disk.control.failed_writes + disk.control.failed_flushes == 1, "it has not come to that one"
    assert all(name in KNOWN_FAILURES for name in did["failed"]), did["failed"]
    wrong = violations(History.of(disk), [Cut(died, Kept.NOTHING), Cut(died, Kept.SECTORS, seed)], children)
    disk.unmount()
    disk.mount()
    journal = Journal.read(disk.place / "journal")
    try:
        return wrong + judge(journal, disk.control.entries, children.ask("look", disk.path / "store"))
    except ChildFailedError as error:
        return [*wrong, str(error)]


def some_failures(seed: int) -> Iterator[tuple[str, int]]:
    """Endless cases: a write or a flush, and its number."""
    chance = random.Random(seed)
    for field in itertools.cycle(("fail_write_after", "fail_flush_after")):
        yield field, chance.randint(1, 45)


@pytest.mark.timeout(TORTURE_S + 300)
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_whichever_write_or_flush_fails_no_acknowledged_operation_is_lost(
    file_system: str, children: Host, record_property: pytest.RecordProperty
) -> None:
    until = time.monotonic() + TORTURE_S / len(FILE_SYSTEMS)
    seed = random.SystemRandom().randrange(1 << 32) if TORTURE_S else 7
    for number, (field, which) in enumerate(some_failures(seed)):
        if number >= FAILURES and time.monotonic() >= until:
            break
        with real_disk(file_system) as disk:
            assert after_one_failure(disk, children, field, which, seed + number) == [], (field, which, seed + number)
    record_property("failures", number)


# ---- without it ----


@pytest.mark.parametrize(
    ("file_system", "how", "mutant"),
    part_of(
        [
            ("ext4", "segments", "PAGE_CACHE_BELIEVED"),  # the tail read through the page cache, and not written again
            ("xfs", "segments", "PAGE_CACHE_BELIEVED"),
            ("ext4", "segments", "SYNC_RETRIED"),  # the second sync believed
            ("ext4", "flushes", "TAIL_NOT_REWRITTEN"),
            ("xfs", "flushes", "TAIL_NOT_REWRITTEN"),
        ],
        2,
    ),
)
def test_without_the_page_cache_rule_data_is_lost(file_system: str, how: str, mutant: str, faulty: Path) -> None:
    with real_disk(file_system) as disk, host(faulty, mutant) as children:
        failed_under(disk, children, how)
        assert next(reopened_in_the_same_boot(disk, children, forgetful=MEMORIES[how]), None) is not None
    with real_disk(file_system) as disk, host(faulty, mutant) as children:
        assert next(reopened_in_the_same_process(disk, children, how), None) is not None


@pytest.mark.parametrize("how", MEMORIES)
def test_the_build_with_the_faults_holds_while_none_is_chosen(how: str, faulty: Path) -> None:
    with real_disk("ext4") as disk, host(faulty) as children:
        failed_under(disk, children, how)
        assert list(reopened_in_the_same_boot(disk, children, forgetful=MEMORIES[how])) == []
