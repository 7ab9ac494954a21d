"""How long an event loop did not turn: a timer of 10 ms, and how late it came."""

from __future__ import annotations

import asyncio
import bisect
import time
from dataclasses import dataclass, field
from typing import Final

EVERY_S: Final = 0.01
BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200)
"""A timer that came later than by the last is in one bucket more. uvloop's timers have a millisecond's resolution."""


@dataclass
class Stalls:
    """How many timers were late by at most each of the bounds, and beyond the one before it."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    longest_ms: float = 0.0

    def add(self, late_s: float) -> None:
        """One timer."""
        late_ms = late_s * 1000
        self.counts[bisect.bisect_left(BOUNDS_MS, late_ms)] += 1
        self.longest_ms = max(self.longest_ms, late_ms)

    def merge(self, other: Stalls) -> None:
        """Those of another time."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.longest_ms = max(self.longest_ms, other.longest_ms)


class LoopProbe:
    """Watches one loop between :meth:`begin` and :meth:`end`, which another thread calls; costs nothing else."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stalls = Stalls()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def begin(self) -> None:
        self._loop.call_soon_threadsafe(self._next)

    def _next(self) -> None:
        self._due = time.perf_counter() + EVERY_S
        self._timer = self._loop.call_later(EVERY_S, self._tick)

    def _tick(self) -> None:
        self._stalls.add(max(0.0, time.perf_counter() - self._due))
        self._next()

    def end(self) -> Stalls:
        """What there was since it began. Returns when the loop turns."""

        async def stop() -> Stalls:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
                if time.perf_counter() > self._due:  # it comes behind this call
                    self._stalls.add(time.perf_counter() - self._due)
            found, self._stalls = self._stalls, Stalls()
            return found

        return asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
