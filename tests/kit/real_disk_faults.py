"""Writers that wait while their disk fails, in a process of their own: their results, and bytes that are then in the
page cache but not on the disk.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import logstore
from kit.real_disk_journal import JournalWriter, body, work
from kit.real_disk_server import Control, control_of
from kit.stores import SMALL_SEGMENT, segment_files

WRITERS = 3
GOOD = ("good-0-9000", "good-1-100", "good-2-30000", "good-3-5")
LATER = "later-0-10"


def extents(path: Path) -> list[tuple[int, int]]:
    """The ranges of the disk with the file's bytes: first, end."""
    said = subprocess.run(["filefrag", "-v", "-s", "-b1", path], capture_output=True, text=True, check=True).stdout
    found = []
    for line in said.splitlines():
        fields = line.replace(":", " ").replace("..", " ").split()
        if len(fields) >= 5 and all(field.isdigit() for field in fields[:5]):
            found.append((int(fields[3]), int(fields[4]) + 1))
    assert found, f"{path} is nowhere on the disk"
    return found


def cached(path: Path) -> bytes:
    """The file as the page cache has it, which is what most programs read."""
    return path.read_bytes()


def on_the_device(path: Path) -> bytes:
    """The file as the device has it, past the page cache."""
    size = path.stat().st_size
    file = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        with mmap.mmap(-1, size) as memory:
            assert os.preadv(file, [memory], 0) == size
            return memory[:]
    finally:
        os.close(file)


def phantoms(store: Path) -> list[Path]:
    """The segments that differ between page cache and disk."""
    return [segment for segment in segment_files(store) if cached(segment) != on_the_device(segment)]


def begin_to_fail(control: Control, how: str, path: Path) -> None:
    """Fail from now on: writes of the segments' sectors, every flush, or every write."""
    if how == "segments":
        control.fail_ranges([extent for segment in segment_files(path) for extent in extents(segment)])
    elif how == "flushes":
        control.fail_flushes = 1
    else:
        assert how == "everything"
        control.fail_writes = control.fail_flushes = 1


def _told(journal: JournalWriter, tag: str, store: logstore.MessageStore) -> str:
    """The result of a publisher that waits."""
    number = journal.begin(work([(tag, "a")]))
    try:
        key = store.publish("a", body(tag), header=tag.encode())
    except logstore.StoreError as error:
        if isinstance(error, logstore.StorePoisoned):
            journal.refused(number)
        return type(error).__name__
    journal.back(number, ids={tag: key})
    return "acknowledged"


def write_while_it_fails(path: str, journal: str, control: str, how: str, kept: list[Any]) -> dict[str, Any]:
    """Acknowledged work, then writers that wait while the disk fails; at the end the disk works again."""
    disk = control_of(control)
    writer = JournalWriter(journal, disk)
    store = logstore.open(path, segment_size=SMALL_SEGMENT)
    kept += [writer, store]
    declare(writer, store, "a")
    assert [_told(writer, tag, store) for tag in GOOD] == ["acknowledged"] * len(GOOD)
    subprocess.run(["sync", "-f", path], check=True)  # so that the file system has no pending writes of its own
    begin_to_fail(disk, how, Path(path))
    told: list[str] = []
    threads = [
        threading.Thread(target=lambda tag=tag: told.append(_told(writer, tag, store)))
        for tag in (f"bad-{n}-{3000 * n + 7}" for n in range(WRITERS))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = disk.failed_writes + disk.failed_flushes
    later = _told(writer, LATER, store)
    try:
        store.force()
        forced = "durable"
    except logstore.StoreError as error:
        forced = type(error).__name__
    disk.heal()
    again = _told(writer, LATER, store)
    return {"told": sorted(set(told)), "later": later, "again": again, "forced": forced, "failed": failed}


# ---- files that are used again ----

USED_AGAIN_STEPS = 400
CHURN_BYTES = 30_000


def _allocate_anew(path: Path) -> None:
    """Every segment but the first as the store allocates them when it has no time to fill them."""
    for segment in segment_files(path)[1:]:
        size = segment.stat().st_size
        with segment.open("r+b") as file:
            file.truncate(0)
            os.posix_fallocate(file.fileno(), 0, size)
            os.fsync(file.fileno())


def _current(path: Path, store: logstore.MessageStore) -> Path:
    """The segment that is being written."""
    return max(segment for segment in segment_files(path) if int(segment.stem, 16) <= store.next_lsn)


def use_again_what_failed(path: str, journal: str, control: str, fails: str, kept: list[Any]) -> dict[str, Any]:
    """Writes into allocated blocks that nothing was ever written to fail; the file is used again in the same boot.

    `fails`: the first batch of a life, a later one, or the header of its next segment with what comes along.
    """
    disk = control_of(control)
    writer = JournalWriter(journal, disk)
    directory = Path(path)
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        declare(writer, store, "a")
    _allocate_anew(directory)
    store = logstore.open(path)
    subprocess.run(["sync", "-f", path], check=True)
    current = _current(directory, store)
    bad = [s for s in segment_files(directory) if s > current] if fails == "a header" else [current]
    churned = 0

    def churn(tag: str) -> str:
        told = _told(writer, tag, store)
        if told == "acknowledged":
            message = next(iter(store.queue("a").browse()))
            number = writer.begin(work(minus=[(tag, "a")]))
            store.dequeue(message.id, "a")
            writer.back(number)
        return told

    while fails == "a later batch" and churned < 5:
        churned += 1
        assert churn(f"churn-{churned}-{CHURN_BYTES}") == "acknowledged"
    disk.fail_ranges([extent for segment in bad for extent in extents(segment)])
    told = "acknowledged"
    while told == "acknowledged":
        churned += 1
        told = churn(f"churn-{churned}-{CHURN_BYTES}")
        assert churned < USED_AGAIN_STEPS, "the disk never failed"
    assert told == "OutcomeUnknown"
    (failed_in,) = (segment.stat().st_ino for segment in phantoms(directory))
    disk.heal()
    with contextlib.suppress(logstore.StoreError):
        store.close()
    store = logstore.open(path)
    kept += [writer, store]
    while _current(directory, store).stat().st_ino != failed_in and churned < USED_AGAIN_STEPS:
        churned += 1
        assert churn(f"churn-{churned}-{CHURN_BYTES}") == "acknowledged"
    again = _current(directory, store)
    used = again.stat().st_ino == failed_in
    stays = 0
    while _current(directory, store) == again:  # all of it, with what stays
        stays += 1
        assert _told(writer, f"stays-{stays}-{CHURN_BYTES}", store) == "acknowledged"
    return {"used again": used, "stays": stays}


# ---- the catalog ----


def fail_in_the_catalog(path: str, journal: str, control: str, goes_on: bool, kept: list[Any]) -> list[str]:
    """A queue's declaration fails on the disk, which then works again; optionally the same store continues."""
    disk = control_of(control)
    writer = JournalWriter(journal, disk)
    store = logstore.open(path, segment_size=SMALL_SEGMENT)
    kept += [writer, store]
    declare(writer, store, "a")
    store.compact()  # waits until no spare is being made: its sync, failing, would end the whole file system
    subprocess.run(["sync", "-f", path], check=True)
    disk.fail_writes = 1
    try:
        declare(writer, store, "unlucky")
        told = "acknowledged"
    except logstore.StoreError as error:
        told = type(error).__name__
    disk.heal()
    return [told, *(fill_queues(writer, store, "later") if goes_on else [])]


def go_on_after_the_catalog(path: str, journal: str, control: str, kept: list[Any]) -> list[str]:
    """The store opened again in the same boot, and used."""
    writer = JournalWriter(journal, control_of(control), first=1000)
    kept += [writer, logstore.open(path)]
    return fill_queues(writer, kept[-1], "again")


def fill_queues(writer: JournalWriter, store: logstore.MessageStore, name: str) -> list[str]:
    """New queues, a message in each."""
    for n in range(6):
        declare(writer, store, f"{name}{n}")
        tag = f"{name}-{n}-100"
        number = writer.begin(work([(tag, f"{name}{n}")]))
        writer.back(number, ids={tag: store.publish(f"{name}{n}", body(tag), header=tag.encode())})
    return [queue.name for queue in store.queues()]


def declare(writer: JournalWriter, store: logstore.MessageStore, name: str) -> None:
    number = writer.begin(work(queue=name))
    store.declare_queue(name)
    writer.back(number)
