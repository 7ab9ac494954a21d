"""Checks that each store syncs as it claims: strace counts its calls that force the disk, for each durable unit.

Every store does some work in a process of its own under strace, from one thread; marks (``getsid``) in the trace
delimit each kind of work. One unit needs at least one call; a store with fewer is reported, and its figures are not
quoted. LMDB's second write of a commit, of its meta page, uses a descriptor opened with O_DSYNC, and is not a separate
call.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import peers
from builds import Build
from limits import RawLoop
from slices import Span, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plan import Context

UNITS = 20
SIZE = 1024
CALLS = re.compile(r"\b(?:fsync|fdatasync|msync)\(")
TRACED = "getsid,fsync,fdatasync,msync"
TRANSACTIONS = "transaction of 10"
RAW = "c-loop"


def counted(name: str, directory: Path, build: Build) -> dict[str, float]:
    """Calls for each unit, by work."""
    with tempfile.TemporaryDirectory(prefix="syncs-", dir=directory) as made:
        trace = Path(made) / "trace"
        command = [build.python, __file__, name, made]
        done = subprocess.run(
            ["strace", "-f", "-qq", "-o", trace, "-e", f"trace={TRACED}", *command],
            capture_output=True,
            text=True,
            check=False,
            env=build.environment(),
        )
        if done.returncode != 0:
            raise OSError(done.stderr.strip()[-500:])
        works = done.stdout.splitlines()
        found, inside = [0] * len(works), -1
        marks = 0
        for line in trace.read_text().splitlines():
            if "getsid(" in line:
                inside = marks // 2 if marks % 2 == 0 else -1
                marks += 1
            elif inside >= 0 and CALLS.search(line) and "resumed" not in line:
                found[inside] += 1
    if marks != 2 * len(works):
        raise OSError(f"the trace has {marks} marks, not {2 * len(works)}")
    return {work: count / UNITS for work, count in zip(works, found, strict=True)}


def run(context: Context) -> None:
    """Once, in the first round."""
    if context.round_number:
        return
    if shutil.which("strace") is None:
        context.known["syncs_not_counted"] = "strace is missing: that the stores sync as they claim is NOT shown"
        return
    known = {kind: name for name, (_, kind, _) in peers.KNOWN.items()}
    traced = [(store.name, known[store.kind.__name__], store.build) for store in context.stores]
    counts = context.known.setdefault("syncs", {})
    for shown, name, build in [(RawLoop.name, RAW, Build()), *traced]:
        context.say(f"counting syncs: {shown}")
        try:
            counts[shown] = counted(name, context.directory, build)
        except OSError as problem:
            context.known["syncs_not_counted"] = f"strace does not work here: {problem}"
            counts.clear()
            return


# ---- the process that is traced ----


def _works(name: str, directory: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is counted, and one unit of it."""
    if name == RAW:
        with RawLoop(directory / "raw", 1 << 20, "zeros") as raw:
            yield "publish 1", lambda: raw.ask(SIZE, 1, Span(0, SIZE))
        return
    kind = peers.available([name])[0][0]
    peer = kind(directory / name, 4 << 20)
    publish, consume = peer.publisher(), peer.consumer()
    body = os.urandom(SIZE)
    group = [body] * 100
    for _ in range(UNITS + 1):
        publish(group)
    yield "publish 1", lambda: publish([body])
    if kind.lacks(1, 100, 0, puts=True, takes=False) is None:
        yield "publish 100", lambda: publish(group)
    yield "consume + ack 1", lambda: consume(1)
    if kind.lacks(1, 100, 0, puts=False, takes=True) is None:
        yield "consume + ack 100", lambda: consume(100)
    peer.close()
    if name in ("logstore", "sqlite"):
        import transactions

        engine = transactions.opened(
            transactions.Logstore if name == "logstore" else transactions.Sqlite, directory / "engine", 1
        )
        yield TRANSACTIONS, lambda: engine.sessions[0](10)
        engine.engine.close()


def main() -> None:
    """In a process of its own, under strace."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    (options.directory / "engine").mkdir()
    for work, unit in _works(options.name, options.directory):
        unit()
        settle()
        os.getsid(0)
        for _ in range(UNITS):
            unit()
        os.getsid(0)
        print(work, flush=True)


if __name__ == "__main__":
    main()
