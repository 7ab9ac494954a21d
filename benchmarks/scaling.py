"""Many waiters compared with one: 64 threads, and 1000 tasks on an event loop, against one publisher."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures import size_name
from grid import make_bodies, most
from peers.own import Logstore
from slices import BOTH, MODES, PUBLISH, Mode, Slices, Span

if TYPE_CHECKING:
    from collections.abc import Callable

    from plan import Context

SUITE = "scaling"
PROCESSOR = "publish, processor"
MEASURED = ("1 thread", "64 threads", "asyncio, 1000 in flight")
SIZES = (100, 1024)


def run(context: Context) -> None:
    """One round."""
    plan = context.plan
    modes = [mode for mode in MODES if mode.name in MEASURED]
    for size in [size for size in SIZES if size in plan.sizes]:
        with tempfile.TemporaryDirectory(prefix="scaling-", dir=context.directory) as made:
            turns = plan.turns_of_targets
            needed = (turns + 1) * size * sum(most(mode, size, plan.span()) for mode in modes)
            opened = [
                (build.name, build.make(Slices.open, Logstore, Path(made) / build.name, needed, make_bodies(size)))
                for build in context.builds
            ]
            os.sync()
            gc.collect()
            for _, slices in opened:
                slices.rate(BOTH, Mode("warm"), Span(0.02, 1 << 20))
            steps = [_step(context, name, slices, mode, size) for mode in modes for name, slices in opened]
            context.say(f"{size_name(size)}: one publisher, 64, 1000 in flight")
            for turn in range(turns):
                for each in context.turned(steps, turn):
                    each()
            for _, slices in opened:
                slices.close()


def _step(context: Context, name: str, slices: Any, mode: Mode, size: int) -> Callable[[], None]:
    row = context.results.row(SUITE, name, PUBLISH, mode.name, size, sync=Logstore.sync)
    processor = None
    if mode.in_flight:
        unit = "µs of CPU a message"
        processor = context.results.row(SUITE, name, PROCESSOR, mode.name, size, unit=unit, sync=Logstore.sync)

    def measure() -> None:
        row.samples.append(slices.rate(PUBLISH, mode, context.plan.span()))
        if processor is not None:
            processor.samples.append(slices.processor_us())

    return measure
