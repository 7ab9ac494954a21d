"""Many waiters compared with one: 64 threads, and 1000 tasks on an event loop, against one publisher."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from figures import size_name
from grid import make_bodies, most
from peers.own import Logstore
from slices import BOTH, MODES, PUBLISH, Mode, Slices, Span, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from plan import Context

SUITE = "scaling"
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
            slices = Slices(Logstore(Path(made) / "store", needed), make_bodies(size))
            os.sync()
            gc.collect()
            slices.rate(BOTH, Mode("warm"), Span(0.02, 1 << 20))

            def step(mode: Mode, slices: Slices = slices, size: int = size) -> Callable[[], None]:
                row = context.results.row(SUITE, Logstore.name, PUBLISH, mode.name, size, sync=Logstore.sync)

                def measure() -> None:
                    row.samples.append(slices.rate(PUBLISH, mode, plan.span()))
                    settle()

                return measure

            steps = [step(mode) for mode in modes]
            context.say(f"{size_name(size)}: one publisher, 64, 1000 in flight")
            for turn in range(turns):
                for each in context.turned(steps, turn):
                    each()
            slices.peer.close()
            slices.book.verify(slices.peer)
