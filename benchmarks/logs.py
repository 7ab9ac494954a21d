"""One log or two: what a commit costs if messages and outcomes share a log, and if each has its own.

Both in C, on files of zeros, for ten messages of 1 KiB and an outcome of 64 bytes: in one log the outcome follows its
messages in the same write and one sync makes both durable; in two the messages are written and synced, and only then
the outcome, for an outcome that is durable before its messages would be a lie.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from limits import RawLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from plan import Context

SUITE = "logs"
MESSAGES, OUTCOME_BYTES, FILE_BYTES = 10, 64, 64 << 20


def run(context: Context) -> None:
    """One round."""
    plan = context.plan
    context.say("one log against two")
    with (
        tempfile.TemporaryDirectory(prefix="logs-", dir=context.directory) as made,
        RawLoop(Path(made) / "log", FILE_BYTES, "zeros") as raw,
    ):
        steps: list[Callable[[], None]] = []
        for size in (100, 1024):
            for logs, name in ((1, "one log"), (2, "two logs")):
                row = context.results.row(SUITE, name, "commit", "one thread", size, unit="commits/s")
                row.sync = f"{logs} fdatasync a commit"

                def step(samples: list[float] = row.samples, size: int = size, logs: int = logs) -> None:
                    told = raw.ask(size, MESSAGES, plan.span(), OUTCOME_BYTES, logs)
                    samples.append(told["units"] / told["seconds"])

                steps.append(step)
        for turn in range(plan.turns_of_targets):
            for step in context.turned(steps, turn):
                step()
