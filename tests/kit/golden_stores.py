"""The stores of the golden texts of the command line, made once and kept in one archive: ids and LSNs are fixed.

The program ``python -m kit.golden_stores DIRECTORY CLOCK`` makes them; CLOCK is the file of a ``JumpingClock``.
"""

from __future__ import annotations

import lzma
import os
import shutil
import struct
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pika

import logstore
from kit.crashed import crash
from kit.serve_process import ServeProcess
from kit.stores import SMALL_SEGMENT, segment_files

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_S = 1_772_442_000  # 2026-03-02 09:00:00 UTC: the commands run at this time
HOUR_S = 3600
LONG_NAME = "billing.reconciliation.europe-central.partition-0017.retry-after-manual-inspection-by-second-line"
FOREIGN_NAME = "Bestellungen/Größe-注文"
XID = logstore.Xid(4711, bytes(range(0xC0, 0x100)), b"branch-0001-of-the-warehouse-database")
FLIPPED = 138_560  # offset in the first segment of the damaged store, in the content of a relocated message


def make_stores(directory: Path, set_clock: Callable[[int], object]) -> None:
    """Make each store in a directory of its own."""
    set_clock(NOW_S - 75 * HOUR_S)
    _make_store(directory / "store", set_clock)
    _broker_publishes(directory / "store", set_clock)
    set_clock(NOW_S - 75 * HOUR_S)
    _make_store(directory / "young", set_clock, churned=0)
    logstore.open(directory / "empty", segment_size=SMALL_SEGMENT).close()
    _make_full(directory / "full")
    crash(directory / "crashed", CRASHED)
    shutil.copytree(directory / "store", directory / "damaged")
    with segment_files(directory / "damaged")[0].open("r+b") as segment:
        segment.seek(FLIPPED)
        flipped = segment.read(1)[0] ^ 0x10
        segment.seek(FLIPPED)
        segment.write(bytes([flipped]))


CRASHED = """
import logstore
queue = store.declare_queue("orders")
store.publish(queue, b"paid", wait=False)
work = store.begin()
store.publish(queue, b"not yet", transaction=work, wait=False)
store.stage(b"", b"staged")
"""


def _make_store(path: Path, set_clock: Callable[[int], object], churned: int = 120) -> None:
    """A store with messages of three days ago, then as many short-lived ones, and transactions in doubt.

    With none, its log is so short that an open relocates nothing, which would happen at a moment of its own.
    """
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        dead = store.declare_queue("orders.dead")
        orders = store.declare_queue("orders", dead_letter=dead)
        long = store.declare_queue(LONG_NAME)
        foreign = store.declare_queue(FOREIGN_NAME)
        store.publish(long, b"the oldest message", header=b"\x00\x01")
        for number in range(3):
            store.publish([long, foreign], b"%d" % number * 9000)
        set_clock(NOW_S - 26 * HOUR_S)
        for number in range(churned):
            store.dequeue(store.publish(orders, b"%d" % number * 10_000), orders)
        moved = store.begin(XID)
        first = store.publish(orders, b"to the warehouse")
        store.dequeue(first, orders, moved)
        store.publish([foreign, long], b"goods", transaction=moved)
        moved.end()
        moved.prepare()
        short = store.begin(logstore.Xid(1, b"order-17", b"db1"))
        store.publish(dead, b"prepared", transaction=short)
        short.end()
        short.prepare()


def _broker_publishes(path: Path, set_clock: Callable[[int], object]) -> None:
    set_clock(NOW_S - HOUR_S // 2)
    served = ServeProcess(path)
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", served.port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(
            content_type="application/json", headers={"tenant": "acme", "try": 2}, message_id="m-1", delivery_mode=2
        )
        channel.basic_publish("", "orders", b'{"order": 17, "paid": true}', properties)
        channel.basic_publish("", "orders", b"", pika.BasicProperties(delivery_mode=2))
        channel.basic_publish("", "orders", bytes(range(200)) * 5, pika.BasicProperties(delivery_mode=2))
    served.stop()
    served.errors.unlink()


def _make_full(path: Path) -> None:
    with logstore.open(path, segment_size=SMALL_SEGMENT, max_log_bytes=6 * SMALL_SEGMENT) as store:
        orders = store.declare_queue("orders")
        with suppress(logstore.StoreFull):
            while True:
                store.publish(orders, bytes(10_000))


# ---- The archive


def pack(directory: Path, archive: Path) -> None:
    """Write the archive: the same bytes for the same stores."""
    with lzma.open(archive, "wb", preset=9) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for path in sorted(directory.rglob("*")):
            entry = tar.gettarinfo(path, str(path.relative_to(directory)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = NOW_S
            with path.open("rb") if path.is_file() else open(os.devnull, "rb") as content:
                tar.addfile(entry, content if path.is_file() else None)


def unpack(archive: Path, directory: Path) -> None:
    """Write the stores into the directory."""
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(directory, filter="data")


def write_archive(archive: Path, scratch: Path, clock_file: Path, environment: dict[str, str]) -> None:
    """Make the stores again in ``scratch`` in a process with this clock, and pack them."""
    scratch.mkdir()
    command = [sys.executable, "-m", "kit.golden_stores", str(scratch), str(clock_file)]
    subprocess.run(command, env=environment, check=True, timeout=120)
    pack(scratch, archive)


if __name__ == "__main__":
    clock = Path(sys.argv[2])

    def _set_clock(at_s: int) -> None:
        with clock.open("r+b") as file:
            file.write(struct.pack("=qq", at_s, 1))

    make_stores(Path(sys.argv[1]), _set_clock)
