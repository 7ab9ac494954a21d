"""Opening after a crash: its duration and its phases.

* Ten million live messages on one queue, one record each. A process publishes them, writes a checkpoint, publishes some
  more and kills itself (SIGKILL). Other processes open the store, with the checkpoint and without it, with the log in
  the page cache and not. Each ends without closing, so that the next open finds a crash, too.
* A hundred live messages, published before 10 GiB of others that were consumed. The same kill, the same opens.

Every open is in a process of its own. Times are from ``store.recovery``: *replay* is reading the checkpoint and the
log, settling transactions and building queues; *total* adds the start of the new epoch with its segment and relocation;
*open* is the whole of ``logstore.open``, with the catalog, but without the imports of a first call. The count of
messages and samples of their contents are compared with what was acknowledged (of the hundred: all).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures import conditions
from rich.console import Console
from rich.table import Table

import logstore

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "benchmarks"
MIB, GIB = 1 << 20, 1 << 30
QUEUE = "waiting"
BATCH = 1000
BEHIND = 0.01  # of the messages come after the checkpoint
SAMPLES = 2000  # contents compared after each open
REPLAY_TARGET_S = 0.1  # with a hundred messages
CHECKPOINT = "CHECKPOINT"
TIMES = ("replay_us", "checkpoint_us", "scan_us", "transactions_us", "messages_us", "rewrite_us", "total_us")


def content_of(number: int, size: int) -> bytes:
    """Of the numbered message."""
    return number.to_bytes(8, "little") * (size // 8)


# ---- processes of their own ----


def fill_many(path: Path, count: int, size: int, segment_size: int) -> None:
    """Publish, checkpoint, publish, die."""
    store = logstore.open(path, segment_size=segment_size)
    queue = store.declare_queue(QUEUE)
    behind = int(count * BEHIND) // BATCH * BATCH

    samples: dict[int, int] = {}
    step = max(count // SAMPLES, 1)

    def publish(numbers: range) -> None:
        for first in range(numbers.start, numbers.stop, BATCH):
            ids = store.publish_many(queue, [content_of(number, size) for number in range(first, first + BATCH)])
            samples.update(
                (number, ids[number - first]) for number in range(-first % step + first, first + BATCH, step)
            )

    started = time.perf_counter()
    publish(range(count - behind))
    published = time.perf_counter() - started
    written = store.checkpoint()
    publish(range(count - behind, count))
    path.with_suffix(".samples").write_text(json.dumps(samples))
    report = {"publish_s": published, "checkpoint_s": written.seconds, "checkpoint_bytes": written.bytes}
    print(json.dumps(report), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def fill_few(path: Path, count: int, size: int, segment_size: int, traffic_bytes: int) -> None:
    """Publish, see ten gibibytes pass, die."""
    from tail_traffic import Scenario, Traffic

    store = logstore.open(path, segment_size=segment_size)
    queue = store.declare_queue(QUEUE)
    ids = store.publish_many(queue, [content_of(number, size) for number in range(count)])
    path.with_suffix(".samples").write_text(json.dumps(dict(enumerate(ids))))
    traffic = Traffic(store, Scenario(store))
    took_s = traffic.pass_by(traffic_bytes)
    print(json.dumps({"traffic_s": took_s, "relocated": traffic.marks[-1].relocated}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def open_once(path: Path, count: int, size: int) -> None:
    """Open, compare, go without closing."""
    with tempfile.TemporaryDirectory() as other:
        logstore.open(other).close()  # imports of a first open are counted in process_s only
    start = time.perf_counter()
    store = logstore.open(path, create=False)
    seconds = time.perf_counter() - start
    found = store.recovery
    depth = store.queue(QUEUE).depth
    samples = json.loads(path.with_suffix(".samples").read_text())
    wrong = sum(
        store.load_content(message_id) != content_of(int(number), size) for number, message_id in samples.items()
    )
    missing = len(samples) < min(count, SAMPLES)
    said = {name: int(getattr(found, name)) for name in TIMES[1:]}
    said["replay_us"] = found.scan_us + found.transactions_us + found.messages_us  # with the checkpoint's reading
    said |= {"records": found.records, "bytes_read": found.bytes_read, "messages": found.messages}
    said |= {"open_s": seconds, "depth": depth, "wrong": wrong + missing}
    said |= {"used": found.checkpoint_used, "ignored": found.checkpoint_ignored, "clean": found.clean}
    print(json.dumps(said), flush=True)
    os._exit(0)


def child(*arguments: object) -> tuple[dict[str, Any], float]:
    """The output of this program in a process of its own, and the duration of that process."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, *map(str, arguments)], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode not in (0, -signal.SIGKILL) or not done.stdout:
        raise SystemExit(f"reopen: {arguments[0]} ended with status {done.returncode}: {done.stderr}")
    return json.loads(done.stdout), seconds


# ---- the run ----


def drop_cache(files: Iterable[Path]) -> None:
    """Out of the page cache."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def opens(path: Path, count: int, size: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """The results by name; every round opens in each way once."""
    found: dict[str, list[dict[str, Any]]] = {}
    aside = path.parent / f"{path.name}.{CHECKPOINT}"
    for _ in range(rounds):
        for way in ("behind a checkpoint, warm", "behind a checkpoint, cold", "without, warm", "without, cold"):
            there = path / CHECKPOINT
            if way.startswith("without") and there.exists():
                there.rename(aside)
            elif way.startswith("behind") and not there.exists() and aside.exists():
                aside.rename(there)
            if way.endswith("cold"):
                drop_cache([*path.glob("*.seg"), *path.glob(CHECKPOINT)])
            said, process_s = child("open", path, count, size)
            if said["depth"] != count or said["wrong"] or said["clean"]:
                raise SystemExit(f"reopen: {way}: not what was acknowledged: {said}")
            found.setdefault(way, []).append(said | {"process_s": process_s})
    return found


def tell(console: Console, title: str, found: dict[str, list[dict[str, Any]]]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    names = (*(name.removesuffix("_us") for name in TIMES), "open")
    for name in (*names, "read"):
        table.add_column(name, justify="right", no_wrap=True)
    for way, said in found.items():
        cells = [_times([one[name] / 1e6 for one in said]) for name in TIMES]
        used = "" if said[0]["used"] == way.startswith("behind") else f" (used: {said[0]['used']} {said[0]['ignored']})"
        read = f"{statistics.median(one['bytes_read'] for one in said) / 1e6:.0f} MB"
        table.add_row(way + used, *cells, _times([one["open_s"] for one in said]), read)
    console.print(table)


def _times(seconds: list[float]) -> str:
    """Median, and spread where there is one."""
    return f"{statistics.median(seconds):.3f} s\n{min(seconds):.3f}–{max(seconds):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=BUILD, help="directory of the stores, on the disk to be measured")
    parser.add_argument("--messages", type=int, default=10_000_000, help="that live (10 million)")
    parser.add_argument("--few", type=int, default=100, help="that live behind the traffic (100)")
    parser.add_argument("--size", type=int, default=128, help="bytes of each content (128)")
    parser.add_argument("--gib", type=float, default=10.0, help="of traffic (10)")
    parser.add_argument("--segment-size", type=int, default=16 * MIB, help="bytes (16 MiB)")
    parser.add_argument("--repeat", type=int, default=3, help="opens of each kind (3)")
    parser.add_argument("--only", choices=("many", "few"), help="only one of the two")
    parser.add_argument("--json", type=Path, help="also write everything into this file")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    console = Console(width=160)
    document: dict[str, Any] = {"conditions": conditions(options.dir.resolve())}
    with tempfile.TemporaryDirectory(prefix="reopen-", dir=options.dir) as made:
        for name, count in (("many", options.messages), ("few", options.few)):
            if options.only not in (None, name):
                continue
            path = Path(made) / name
            arguments: list[object] = [f"fill-{name}", path, count, options.size, options.segment_size]
            if name == "few":
                arguments.append(int(options.gib * GIB))
            with console.status(f"{count} messages"):
                filled, _ = child(*arguments)
                found = opens(path, count, options.size, options.repeat)
            shutil.rmtree(path)
            document[name] = {"count": count, "filled": filled, "opens": found}
            tell(console, f"{count} live messages: {filled}", found)
    for key, value in document["conditions"].items():
        console.print(f"[dim]{key.replace('_', ' ')}:[/dim] {value}", highlight=False)
    if "few" in document:
        worst = max(one["replay_us"] for way in document["few"]["opens"].values() for one in way) / 1e6
        verdict = "met" if worst < REPLAY_TARGET_S else "missed"
        console.print(f"replay with {options.few} messages: at most {worst:.3f} s ({verdict})", highlight=False)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["open"]:
        open_once(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    elif sys.argv[1:2] == ["fill-many"]:
        fill_many(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    elif sys.argv[1:2] == ["fill-few"]:
        fill_few(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    else:
        main()
