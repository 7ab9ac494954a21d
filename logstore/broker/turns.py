"""Turns of the event loop: whoever has much to do does a bounded part of it, then the others do a part of theirs.

Work is counted in units: a frame, two messages of a run, two deliveries or releases; each 4 KiB are one more. So a
unit takes a few microseconds, and what a connection may do in its turn a few milliseconds at most.

A connection that has more to do than one turn allows goes into the ring, and nothing is read from it until it has done
everything. The ring is served in order, and so many units long in one turn of the loop; then the loop looks at the
sockets. What a socket brings is handled at once as long as the loop's turn has units left, and goes into the ring after
that. So somebody who asks for little waits for one turn of the loop, however much the others have sent.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

T = TypeVar("T")
Parts = Generator[Awaitable[object] | None, None, T]
"""Work in parts: yields None after each, or what it waits for before the next one."""

TURN_UNITS: Final = 256  # of one connection, or other work
LOOP_UNITS: Final = 1024  # of all of them, in one turn of the loop
UNIT_BYTES: Final = 4096


class Takes(Protocol):
    """Something that has work for turns."""

    def take_turn(self) -> int:
        """Does at most about ``TURN_UNITS`` of its work, and returns how many units that was.

        If work is left, it has called ``Turns.add`` again.
        """


class Turns:
    """The ring of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ring: collections.OrderedDict[Takes, None] = collections.OrderedDict()
        self._left = LOOP_UNITS
        self._scheduled = False
        self._ends: list[Callable[[], None]] | None = None  # None: no work is done together

    def at_end(self, call: Callable[[], None]) -> None:
        """Makes the call at the end of the work that is done together, else later in this turn of the loop."""
        if self._ends is None:
            self._loop.call_soon(call)
        else:
            self._ends.append(call)

    def together(self, work: Callable[[], None]) -> None:
        """Does the work, and then makes the calls that it leaves for its end."""
        if self._ends is not None:
            work()
            return
        self._ends = []
        try:
            work()
        finally:
            ends, self._ends = self._ends, None
            for call in ends:
                try:
                    call()
                except Exception:  # a defect; it must not keep the other calls from being made
                    logger.exception("%s failed", call)

    def at_once(self, one: Takes) -> None:
        """Gives it a turn now if this turn of the loop has units left, and a place in the ring if not."""
        if self._left <= 0 or one in self._ring:
            self.add(one)
            return
        self.took(one.take_turn())

    @property
    def has_units(self) -> bool:
        """Whether this turn of the loop has units left."""
        return self._left > 0

    def took(self, units: int) -> None:
        """Counts what a socket brought and was handled at once."""
        self._left -= units
        if self._left < LOOP_UNITS // 2:
            self._schedule()

    def add(self, one: Takes) -> None:
        """Gives it the last place in the ring, unless it has one."""
        self._ring.setdefault(one)
        self._schedule()

    def discard(self, one: Takes) -> None:
        """It has nothing to do any more."""
        self._ring.pop(one, None)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """Serves the ring once around at most; what comes into it meanwhile waits for the next turn of the loop."""
        self._scheduled = False
        left = LOOP_UNITS
        for _ in range(len(self._ring)):
            if left <= 0 or not self._ring:
                break
            one, _ = self._ring.popitem(last=False)
            try:
                left -= one.take_turn()
            except Exception:  # a defect; it must not keep the others from their turns
                logger.exception("%s failed in its turn", one)
        self._left = LOOP_UNITS  # for what the sockets bring now
        if self._ring:
            self._schedule()


def all_of(parts: Parts[T]) -> T:
    """Does all parts of some work now, which waits for nothing; returns its result."""
    try:
        while True:
            waits = next(parts)
            assert waits is None
    except StopIteration as end:
        return cast("T", end.value)


async def in_turns(parts: Parts[T]) -> T:
    """Does each part of some work in another turn of the loop; returns its result."""
    try:
        while True:
            waits = next(parts)
            await (asyncio.sleep(0) if waits is None else waits)
    except StopIteration as end:
        return cast("T", end.value)
