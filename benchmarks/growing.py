"""Not the steady state: a log without ready segments, and a C loop that extends its file with every write."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from figures import size_name
from grid import make_bodies
from limits import RawLoop
from peers.own import Logstore
from slices import MODES, PUBLISH, Slices, Span

if TYPE_CHECKING:
    from collections.abc import Callable

    from plan import Context
    from slices import Mode

SUITE = "growing"
CASES = ((16 << 10, "1 thread"), (100, "batches of 1000"), (1024, "batches of 1000"), (16 << 10, "batches of 1000"))
LONGER = 3  # than a slice of the grid: several segments are needed


def run(context: Context) -> None:
    """One round."""
    modes = {mode.name: mode for mode in MODES}
    span = Span(LONGER * context.plan.seconds, LONGER * context.plan.max_bytes)
    for size, name in CASES:
        if size in context.plan.sizes:
            context.say(f"growing: {size_name(size)}, {name}")
            with tempfile.TemporaryDirectory(prefix="growing-", dir=context.directory) as made:
                _case(context, size, modes[name], span, Path(made))
            os.sync()


def _case(context: Context, size: int, mode: Mode, span: Span, directory: Path) -> None:
    limit = context.results.row(SUITE, RawLoop.name, PUBLISH, mode.name, size, sync="fdatasync, growing file")
    own = context.results.row(SUITE, Logstore.name, PUBLISH, mode.name, size, sync=Logstore.sync)
    slices = Slices.open(Logstore, directory / "store", 0, make_bodies(size))
    gc.collect()

    def of_limit() -> None:
        with RawLoop(directory / "raw", 2 * span.max_bytes + (64 << 20), "grow") as raw:
            limit.samples.append(raw.rate(size, mode, span))

    def of_store() -> None:
        own.samples.append(slices.rate(PUBLISH, mode, span))

    steps: list[Callable[[], None]] = [of_limit, of_store]
    for step in context.turned(steps, 0):
        step()
    slices.close()
