"""One log or two: the cost of a commit if messages and outcomes share a log, and if each kind has its own.

Both run in C, on files of zeros, with ten messages of 1 KiB and an outcome of 64 bytes. In one log the outcome follows
its messages in the same write, and one sync makes both durable. With two logs the messages are written and synced
first, and then the outcome, because an outcome must not be durable before its messages.
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
