"""Opening a store: one whose owner was killed, compared with reading and hashing the same files; and a closed one.

Every open is a process of its own, which ends without closing. Both begin equally cold (every file is dropped from the
page cache) or equally warm. Without a checkpoint the whole log is replayed. Every open counts the messages and compares
the last one; after the last round contents from all parts of the log are compared.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures import size_name
from limits import compiled
from peers.base import Wrong

import logstore

if TYPE_CHECKING:
    from collections.abc import Callable

    from builds import Build
    from plan import Context

RECOVERY, START = "recovery", "start"
SEGMENT_BYTES = 16 << 20
QUEUE, LAST = "measured", "last"
BATCH = 1000
LOG_BYTES = {100: 184, 1024: 1104}  # of a message
COMPARED = 5000


def content_of(number: int, size: int) -> bytes:
    """Different for each message."""
    return number.to_bytes(8, "little") + bytes(size - 8)


@dataclass
class Log:
    """A store with messages of one size, after its owner closed it or was killed."""

    path: Path
    size: int
    count: int
    files: list[Path]
    bytes: int

    @classmethod
    def write(cls, path: Path, size: int, count: int, how: str) -> Log:
        """Written by a process that closes the store, or is killed without a checkpoint."""
        call = [sys.executable, __file__, "write", path, str(size), str(count), how]
        done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != (-signal.SIGKILL if how == "killed" else 0):
            raise Wrong(f"the log was not written: status {done.returncode}")
        told = json.loads(done.stdout)
        return cls(path, size, count, [path / name for name in told["files"]], told["bytes"])

    def cache(self, *, cold: bool) -> None:
        """Takes every file out of the page cache, or reads every one into it."""
        for file in [*self.path.glob("*.seg"), *self.path.glob("CHECKPOINT")]:
            with file.open("rb") as opened:
                os.fdatasync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while not cold and opened.read(1 << 20):
                    pass

    def read_and_hash(self, *, cold: bool) -> float:
        """MB a second."""
        program = compiled("read_and_hash", ("csrc/format/xxh64.c",))
        self.cache(cold=cold)
        done = subprocess.run([program, *self.files], check=True, capture_output=True, text=True)
        return float(json.loads(done.stdout)["mb_per_s"])

    def open(self, build: Build, *, cold: bool, checkpoint: bool) -> float:
        """Seconds."""
        if not checkpoint:  # the last open may have made one
            (self.path / "CHECKPOINT").unlink(missing_ok=True)
        self.cache(cold=cold)
        done = build.run(__file__, "open", self.path)
        if done.returncode != 0:
            raise Wrong(f"{self.path} was not opened: {done.stderr[-2000:]}")
        told = json.loads(done.stdout)
        found = told["messages"], bytes.fromhex(told["last"]), told["checkpoint"]
        if found != (self.count, content_of(self.count, self.size), checkpoint):
            raise Wrong(f"opening {self.path} found something else: {told}")
        return float(told["seconds"])

    def verify(self) -> None:
        """Contents, spread evenly."""
        step = max(1, self.count // COMPARED)
        with logstore.open(self.path, create=False) as store:
            for number, message in enumerate(itertools.islice(store.messages(QUEUE), 0, None, step)):
                if message.content != content_of(number * step, self.size):
                    raise Wrong(f"message {number * step} was not recovered as it was published")


def write(path: Path, size: int, count: int, how: str) -> None:
    """In a process of its own: publishes, prints the log's files, and closes or is killed."""
    segments = count * LOG_BYTES.get(size, size + 84) // SEGMENT_BYTES + 5
    store = logstore.open(path, segment_size=SEGMENT_BYTES, initial_segments=segments)
    queue = store.declare_queue(QUEUE)
    for first in range(0, count, BATCH):
        contents = [content_of(number, size) for number in range(first, min(first + BATCH, count))]
        store.publish_many(queue, contents)
    store.publish(store.declare_queue(LAST), content_of(count, size))
    segments_used = store.tail().segments
    files = [f"{segment.first_lsn:016x}.seg" for segment in segments_used]
    used = sum((segment.end_lsn or store.next_lsn) - segment.first_lsn for segment in segments_used)
    print(json.dumps({"files": files, "bytes": used}), flush=True)
    if how == "closed":
        store.checkpoint()  # close makes one by itself only if it is worth it
        store.close()
        return
    (path / "CHECKPOINT").unlink(missing_ok=True)
    os.kill(os.getpid(), signal.SIGKILL)


def open_once(path: Path) -> None:
    """In a process of its own: opens, prints time and contents, and ends without closing."""
    with tempfile.TemporaryDirectory() as other:
        logstore.open(other).close()  # imports of a first open are not measured
    start = time.perf_counter()
    store = logstore.open(path, create=False)
    seconds = time.perf_counter() - start
    (last,) = store.messages(LAST)
    told: dict[str, Any] = {"seconds": seconds, "messages": store.queue(QUEUE).depth, "last": last.content.hex()}
    told["checkpoint"] = store.recovery.checkpoint_used
    print(json.dumps(told), flush=True)
    os._exit(0)


# ---- the suites ----


def _recovery_steps(context: Context, log: Log, *, cold: bool) -> list[Callable[[], None]]:
    """Reading beside opening."""
    state, results = "cold" if cold else "warm", context.results
    read = results.row(RECOVERY, "read and hash", state, "log", log.size, unit="MB/s", sync="reads")

    def opened(build: Build) -> None:
        seconds = log.open(build, cold=cold, checkpoint=False)
        rate = results.row(RECOVERY, build.name, state, "log", log.size, unit="MB/s", sync="log replayed")
        messages = results.row(RECOVERY, build.name, f"{state}, messages", "log", log.size, sync="log replayed")
        rate.samples.append(log.bytes / seconds / 1e6)
        messages.samples.append(log.count / seconds)
        rate.notes |= {"messages": log.count, "log_bytes": log.bytes}

    opens = [functools.partial(opened, build) for build in context.builds]
    return [lambda: read.samples.append(log.read_and_hash(cold=cold)), *opens]


def run(context: Context) -> None:
    """One round of recovery: logs are written in the first and compared in the last."""
    plan = context.plan
    of_kib = plan.recovery_bytes // LOG_BYTES[1024]
    for size, count in ((100, plan.recovery_messages), (1024, of_kib)):
        context.say(f"recovery of {count:,} messages of {size_name(size)}")
        log = context.kept(f"recovery {size}", lambda path, s=size, n=count: Log.write(path, s, n, "killed"))
        for turn in range(plan.turns_of_targets if size == 100 else plan.turns):
            for cold in (True, False):
                for step in context.turned(_recovery_steps(context, log, cold=cold), turn):
                    step()
        if context.is_last_round:
            log.verify()


def run_start(context: Context) -> None:
    """One round of opening a store that was closed with a checkpoint; later opens find it not closed."""
    count = context.plan.start_messages
    context.say(f"opening with {count:,} live messages")
    log = context.kept("start", lambda path: Log.write(path, 100, count, "closed"))
    for cold in (True, False):
        how = f"{count:,} live, checkpoint"
        state = "cold" if cold else "warm"
        for build in context.turned(context.builds, 0):
            row = context.results.row(START, build.name, state, how, 100, unit="seconds", sync="checkpoint read")
            row.samples.append(log.open(build, cold=cold, checkpoint=True))
    if context.is_last_round:
        log.verify()


def main() -> None:
    """The processes of the suites."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("write", "open"))
    parser.add_argument("path", type=Path)
    parser.add_argument("numbers", nargs="*")
    options = parser.parse_args()
    if options.what == "open":
        open_once(options.path)
    else:
        size, count, how = options.numbers
        write(options.path, int(size), int(count), how)


if __name__ == "__main__":
    main()
