"""A real store on a real file system on a disk that logs its writes: every power cut keeps acknowledged operations.

The disk is a FUSE file under a loop device with ext4 or xfs. From its log a disk is made as a power cut leaves it: with
all flushed writes, and of the others none, all, a prefix, or a random choice of writes, blocks or sectors. The kernel
replays the file system's journal, the store recovers, and a journal outside the disk is the oracle. With no unflushed
write kept, this is LazyFS's loss of all unsynced data, below the file system instead of above it.

LOGSTORE_TORTURE_S in the environment continues with new runs and cuts for that many seconds.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.real_disk import PREFIX, need, real_disk, run, sweep
from kit.real_disk_cuts import cuts_at_acknowledgements, random_cuts, violations, work_on
from kit.real_disk_hosts import host
from kit.real_disk_journal import NEVER
from kit.real_disk_log import Cut, Kept
from kit.real_disk_server import FLUSH, WRITE
from kit.stores import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.real_disk_cuts import History
    from kit.real_disk_hosts import Host

FILE_SYSTEMS = ("ext4", "xfs")
STEPS = 220  # of each of three threads: enough for recycling and relocation
SEED = 20251
CUTS = 28
CUTS_AT_ACKNOWLEDGEMENTS = 12
CUTS_PER_LIFE = 100  # in a torture
TORTURE_S = float(os.environ.get("LOGSTORE_TORTURE_S", "0"))


@pytest.fixture(scope="module")
def children() -> Iterator[Host]:
    with host() as made:
        yield made


@pytest.fixture(scope="module", params=FILE_SYSTEMS)
def history(request: pytest.FixtureRequest, children: Host) -> Iterator[History]:
    """One run of a store on this file system."""
    with real_disk(request.param) as disk:
        yield work_on(disk, children, SEED, STEPS)


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_synced_writes_reach_the_disk_followed_by_a_flush(file_system: str) -> None:
    with real_disk(file_system) as disk:
        run("sync", "-f", disk.path)
        before = disk.log()
        file = os.open(disk.path / "file", os.O_RDWR | os.O_CREAT)
        os.write(file, b"A" * 65536)
        assert len(disk.log().entries) == len(before.entries)  # a page cache that keeps it to itself
        os.fdatasync(file)
        os.close(file)
        done = disk.log().entries[len(before.entries) :]
        assert sum(entry.size for entry in done if entry.what == WRITE) >= 65536
        assert done[-1].what == FLUSH
        reads = disk.control.reads
        Path("/proc/sys/vm/drop_caches").write_text("1")
        assert (disk.path / "file").read_bytes() == b"A" * 65536
        assert disk.control.reads > reads  # nothing between the file system and the disk keeps what was read


def test_the_run_that_is_cut_has_every_kind_of_work(history: History) -> None:
    atoms = history.journal.atoms
    assert any(len(atom.plus) > 1 and len({tag for tag, _ in atom.plus}) == 1 for atom in atoms), "no fan-out"
    assert any(int(tag.rsplit("-", 1)[1]) > 65536 for atom in atoms for tag, _ in atom.plus), "no chunks"
    assert any(atom.minus for atom in atoms), "nothing dequeued"
    assert any(atom.plus and atom.minus for atom in atoms), "no transaction"
    assert any(atom.settles and atom.commits for atom in atoms), "nothing prepared was committed"
    assert any(atom.settles and not atom.commits for atom in atoms), "nothing prepared was rolled back"
    assert any(atom.deletes for atom in atoms), "no queue deleted"
    for what in ("segments_created", "segments_recycled", "segments_relocated", "relocated_bytes"):
        assert history.counted[what] > 0, what
    assert len(history.log.windows()) > 100


def test_after_any_power_cut_the_store_has_what_it_acknowledged(
    history: History, children: Host, record_property: pytest.RecordProperty
) -> None:
    cuts = list(random_cuts(history, SEED, CUTS))
    assert {cut.kept for cut in cuts} == set(Kept)
    record_property("power_cuts", len(cuts))
    assert violations(history, cuts, children) == []


def test_acknowledged_operations_need_no_unsynced_data(
    history: History, children: Host, record_property: pytest.RecordProperty
) -> None:
    cuts = cuts_at_acknowledgements(history, SEED, CUTS_AT_ACKNOWLEDGEMENTS)
    record_property("power_cuts", len(cuts))
    assert violations(history, cuts, children) == []


def test_a_loss_of_synced_data_is_detected(history: History, children: Host) -> None:
    """The disk at half time cannot have the operations acknowledged at the end."""
    middle = history.log.flushes()[len(history.log.flushes()) // 2]
    journal = copy.deepcopy(history.journal)
    for atom in journal.atoms:
        if atom.acked_at < NEVER:
            atom.acked_at = min(atom.acked_at, middle)
    assert violations(dataclasses.replace(history, journal=journal), [Cut(middle, Kept.ALL)], children) != []


@pytest.mark.skipif(TORTURE_S <= 0, reason="LOGSTORE_TORTURE_S is not set")
@pytest.mark.timeout(TORTURE_S + 600)
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_many_runs_and_many_cuts_keep_what_was_acknowledged(
    file_system: str, children: Host, record_property: pytest.RecordProperty
) -> None:
    until = time.monotonic() + TORTURE_S / len(FILE_SYSTEMS)
    lives = cuts_made = 0
    first = random.SystemRandom().randrange(1 << 32)
    while time.monotonic() < until:
        seed = first + lives
        with real_disk(file_system) as disk:
            life = work_on(disk, children, seed, STEPS)
            for cut in random_cuts(life, seed, CUTS_PER_LIFE):
                assert violations(life, [cut], children) == [], f"the life with seed {seed}"
                cuts_made += 1
                if time.monotonic() >= until:
                    break
        lives += 1
    record_property("power_cuts", cuts_made)
    print(f"{file_system}: {cuts_made} power cuts of {lives} lives, the first with seed {first}")


def test_the_remains_of_a_killed_run_are_removed_by_the_next() -> None:
    need("ext4")
    code = """
        import sys, time
        from kit.real_disk import real_disk
        with real_disk("ext4") as disk:
            print(disk.place, disk.device, flush=True)
            time.sleep(600)
    """
    made = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    )
    assert made.stdout is not None
    place, device = made.stdout.readline().split()
    backing = Path(f"/sys/block/{Path(device).name}/loop/backing_file")
    assert PREFIX in place
    assert Path(place).is_dir()
    assert Path(place) not in sweep()  # its owner lives
    assert backing.read_text().startswith(place)
    made.send_signal(signal.SIGKILL)
    made.wait(60)
    sweep()
    assert not Path(place).exists()
    assert place not in Path("/proc/self/mountinfo").read_text()
    assert not backing.exists() or not backing.read_text().startswith(place)
