"""Write amplification: bytes written to the device for each byte of content that is published and consumed.

Messages of 1 KiB are published and consumed in batches, each batch forced once, in recycled segments; a few thousand
messages stay live. Bytes are counted in three places: by the store (``device_bytes`` in ``store.stats()``: all bytes
written to its files), by the block device (sectors written in that time, also those of other processes), and by
/proc/self/io (``write_bytes``). The last counts a page of the cache when it becomes dirty. Where the file system has
large pages (ext4 since Linux 6.16) it counts a whole large page for one written byte, which is far too much; that is
why the device's count is needed.

Small batches write more, because the last block of a batch is written again with the next batch.
"""

from __future__ import annotations

import argparse
import array
import collections
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from figures import conditions, disk_writes
from rich.console import Console
from rich.table import Table

import logstore

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "benchmarks"
MIB = 1 << 20
TARGET = 1.25
TARGET_FROM = 100  # messages in a batch
CONTENT_BYTES = 1024
LIVE = 5000
SEGMENT_BYTES = 16 * MIB


@dataclass(frozen=True)
class Amplification:
    """The counts of one run in the steady state."""

    batch: int
    content_bytes: int
    device_bytes: int
    device_writes: int
    appended_bytes: int
    disk_bytes: int | None
    kernel_bytes: int
    segments_created: int
    segments_recycled: int

    @property
    def by_store(self) -> float:
        return self.device_bytes / self.content_bytes

    @property
    def by_disk(self) -> float | None:
        return None if self.disk_bytes is None else self.disk_bytes / self.content_bytes

    @property
    def by_kernel(self) -> float:
        return self.kernel_bytes / self.content_bytes

    @property
    def of_records(self) -> float:
        return self.appended_bytes / self.content_bytes


def kernel_bytes() -> int:
    """Bytes that this process had the kernel write."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


class Traffic:
    """Publishes and consumes in turn."""

    def __init__(self, store: logstore.MessageStore, batch: int) -> None:
        self.store = store
        self.queue = store.declare_queue("passing")
        self.batch = batch
        self.waiting: collections.deque[array.array[int]] = collections.deque()
        self.sent = 0

    def publish(self) -> None:
        contents = [
            number.to_bytes(8, "little") * (CONTENT_BYTES // 8) for number in range(self.sent, self.sent + self.batch)
        ]
        self.waiting.append(array.array("Q", self.store.publish_many(self.queue, contents)))
        self.sent += self.batch

    def consume(self) -> None:
        self.store.dequeue_many(self.waiting.popleft(), self.queue)

    def pass_by(self, content_bytes: int) -> None:
        """Publish and consume this many batches."""
        until = self.sent + content_bytes // CONTENT_BYTES
        while self.sent < until:
            self.publish()
            self.consume()

    def check(self) -> None:
        """Check that the remaining messages are the last ones published."""
        left = sum(len(ids) for ids in self.waiting)
        if self.queue.depth != left:
            raise SystemExit(f"amplification: {self.queue.depth} messages are left, not {left}")
        for back, ids in enumerate(reversed(self.waiting)):
            number = self.sent - (back + 1) * self.batch
            if self.store.load_content(ids[0]) != number.to_bytes(8, "little") * (CONTENT_BYTES // 8):
                raise SystemExit(f"amplification: message {ids[0]} has another content than was published")


def measure(directory: Path, batch: int, content_bytes: int, device: str) -> Amplification:
    """One run on a store of its own."""
    with logstore.open(directory, segment_size=SEGMENT_BYTES) as store:
        traffic = Traffic(store, batch)
        for _ in range(max(LIVE // batch, 1)):
            traffic.publish()
        traffic.pass_by(8 * SEGMENT_BYTES)  # from here on every segment is a recycled one
        before, kernel_before, disk_before = store.stats(), kernel_bytes(), disk_writes(device).get("bytes")
        traffic.pass_by(content_bytes)
        after, kernel_after, disk_after = store.stats(), kernel_bytes(), disk_writes(device).get("bytes")
        traffic.check()

    def grown(name: str) -> int:
        return int(after[name] - before[name])

    return Amplification(
        batch=batch,
        content_bytes=content_bytes // CONTENT_BYTES * CONTENT_BYTES,
        device_bytes=grown("device_bytes"),
        device_writes=grown("device_writes"),
        appended_bytes=grown("appended_bytes"),
        disk_bytes=None if disk_before is None or disk_after is None else disk_after - disk_before,
        kernel_bytes=kernel_after - kernel_before,
        segments_created=grown("segments_created"),
        segments_recycled=grown("segments_recycled"),
    )


def tell(console: Console, measured: list[Amplification]) -> bool:
    """The table; whether every batch that is large enough meets the target."""
    title = f"Bytes for each byte of content, {CONTENT_BYTES} B, published and consumed"
    table = Table(title=title, title_justify="left")
    counted = ("by the store", "by the device", "/proc/self/io")
    for name in ("a batch", "of records", *counted, "writes a batch", "recycled / created", ""):
        table.add_column(name, justify="right")
    met = True
    for a in measured:
        wanted = a.batch >= TARGET_FROM
        fine = not wanted or a.by_store <= TARGET
        met = met and fine
        table.add_row(
            str(a.batch),
            f"{a.of_records:.3f}",
            f"{a.by_store:.3f}",
            "–" if a.by_disk is None else f"{a.by_disk:.3f}",
            f"{a.by_kernel:.3f}",
            f"{a.device_writes / (2 * a.content_bytes / CONTENT_BYTES / a.batch):.2f}",
            f"{a.segments_recycled} / {a.segments_created}",
            (f"≤ {TARGET}: {'met' if fine else 'missed'}") if wanted else "",
        )
    console.print(table)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=BUILD, help="where to write")
    parser.add_argument("--mib", type=int, default=256, help="of content, for each batch size (256)")
    parser.add_argument("--batches", default="10,100,1000", help="comma-separated messages in a batch (10,100,1000)")
    parser.add_argument("--json", type=Path, help="also write everything into this file")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    console = Console(width=140)
    known = conditions(options.dir.resolve()) | {"segment_bytes": SEGMENT_BYTES, "durability": "strict"}
    measured = []
    with tempfile.TemporaryDirectory(prefix="amplification-", dir=options.dir) as made:
        for batch in map(int, options.batches.split(",")):
            with console.status(f"batches of {batch}"):
                path = Path(made) / str(batch)
                measured.append(measure(path, batch, options.mib * MIB, known["device"]))
    known["load_at_end"] = os.getloadavg()[0]
    met = tell(console, measured)
    for key, value in known.items():
        console.print(f"[dim]{key.replace('_', ' ')}:[/dim] {value}", highlight=False)
    if options.json is not None:
        rows = [asdict(a) | {"by_store": a.by_store, "by_disk": a.by_disk, "by_kernel": a.by_kernel} for a in measured]
        document = {"conditions": known, "amplification": rows, "target": TARGET, "met": met}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
