"""Writers that wait while their disk fails, in a process of their own: what they are told, and what the page cache then
shows that the disk does not have.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

from real_disk_journal import JournalWriter, body, work
from real_disk_server import Control, control_of
from stores import SMALL_SEGMENT, segment_files

import logstore

WRITERS = 3
GOOD = ("good-0-9000", "good-1-100", "good-2-30000", "good-3-5")
LATER = "later-0-10"


def extents(path: Path) -> list[tuple[int, int]]:
    """Where on the disk the file's bytes are: first, end."""
    said = subprocess.run(["filefrag", "-v", "-s", "-b1", path], capture_output=True, text=True, check=True).stdout
    found = []
    for line in said.splitlines():
        fields = line.replace(":", " ").replace("..", " ").split()
        if len(fields) >= 5 and all(field.isdigit() for field in fields[:5]):
            found.append((int(fields[3]), int(fields[4]) + 1))
    assert found, f"{path} is nowhere on the disk"
    return found


def begin_to_fail(control: Control, how: str, path: Path) -> None:
    """From now on the segments' sectors, every flush, or everything the disk is asked to write."""
    if how == "segments":
        control.fail_ranges([extent for segment in segment_files(path) for extent in extents(segment)])
    elif how == "flushes":
        control.fail_flushes = 1
    else:
        assert how == "everything"
        control.fail_writes = control.fail_flushes = 1


def _told(journal: JournalWriter, tag: str, store: logstore.MessageStore) -> str:
    """What a publisher that waits is told."""
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
    """Acknowledged work, then writers that wait while the disk fails; at the end the disk is well again."""
    disk = control_of(control)
    writer = JournalWriter(journal, disk)
    store = logstore.open(path, segment_size=SMALL_SEGMENT)
    kept += [writer, store]
    number = writer.begin(work(queue="a"))
    store.declare_queue("a")
    writer.back(number)
    assert [_told(writer, tag, store) for tag in GOOD] == ["acknowledged"] * len(GOOD)
    subprocess.run(["sync", "-f", path], check=True)  # so that of the file system itself nothing is on its way
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


def cached(path: Path) -> bytes:
    """The file as the page cache has it, which is what nearly everybody reads."""
    return path.read_bytes()


def on_the_device(path: Path) -> bytes:
    """The file as the device has it, whatever the page cache says."""
    size = path.stat().st_size
    file = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        with mmap.mmap(-1, size) as memory:
            assert os.preadv(file, [memory], 0) == size
            return memory[:]
    finally:
        os.close(file)
