"""The cost of an operation with any number of live messages, and the bounds of memory and of write amplification.

Once in a run. The programs memory.py and amplification.py measure the same with more detail.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import amplification
import memory
from figures import mount_of

if TYPE_CHECKING:
    from plan import Context

SUITE, BOUNDS = "live", "bounds"
MEMORY, AMPLIFICATION = "memory of live messages", "bytes written to the device"
BATCHES = (100, 1000)


def run(context: Context) -> None:
    """Stores with few and with many live messages run slices in turn."""
    if context.round_number:
        return
    with tempfile.TemporaryDirectory(prefix="live-", dir=context.directory) as made:
        levels = []
        for live in context.plan.live:
            context.say(f"{live:,} live messages")
            for build in context.builds:
                path = Path(made) / f"{build.name}-{live}"
                levels.append((build.name, live, build.make(memory.Level, path, live)))
        for number in range(context.plan.live_slices):
            for _, _, level in context.turned(levels, number):
                level.slice()
        for name, live, level in levels:
            for work, samples in level.samples().items():
                how, unit = f"{live:,} live", "ns of CPU a message"
                row = context.results.row(SUITE, name, work, how, len(memory.CONTENT), unit=unit, sync="none")
                row.samples += samples
            level.close()
    os.sync()


def run_bounds(context: Context) -> None:
    """Of the build under test."""
    if context.round_number:
        return
    plan = context.plan
    device = mount_of(context.directory.resolve())[0]
    with tempfile.TemporaryDirectory(prefix="bounds-", dir=context.directory) as made:
        for batch in BATCHES:
            context.say(f"bytes written, batches of {batch}")
            found = amplification.measure(Path(made) / str(batch), batch, plan.amplified_bytes, device)
            how, size = f"batches of {batch}", amplification.CONTENT_BYTES
            row = context.results.row(BOUNDS, "logstore", AMPLIFICATION, how, size, unit="of content", sync="strict")
            row.samples.append(found.by_store)
        context.say("memory of live messages")
        steps = [plan.memory_messages // part for part in (10, 5, 2, 1)]
        said = memory.measure_memory(Path(made), steps)
        row = context.results.row(BOUNDS, "logstore", MEMORY, f"{steps[-1]:,} live", 8, unit="bytes each", sync="none")
        row.samples.append(max(memory.bytes_each(said)))
