"""The lock of the package: it knows its thread, and refuses that thread a second time.

A signal handler or a finalizer runs on the thread that it interrupts, between any two bytecodes. If it enters the
library again, a re-entrant lock would let it into a change that is half done, and a plain lock would wait for itself
for ever. This one raises :class:`~logstore.errors.ReentrantCall` at once.

What must never happen: that an exception thrown in between, by a signal handler or a tracer, leaves a lock held for
good. CPython looks for signals at the entry of a function, after a call and on a backward jump. So Python code that
takes the lock is guarded by ``try``, C code that ``with`` calls needs no guard, and giving it back is one call into C.
A tracer can also raise right before that call: the lock is then held by its thread while the code that took it is on
the thread's stack no more, and the next use takes it over.
"""

from __future__ import annotations

from _thread import RLock
from sys import _getframe
from typing import TYPE_CHECKING, Self

from logstore.errors import ReentrantCall

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType


class Lock(RLock):  # type: ignore[misc] # final only for type checkers
    """One thread at a time, once. A context manager, for ``with`` in a plain function: not in a generator, whose frame
    is on no stack while it waits, and not twice in one function.

    ``what`` names what it guards, for messages. ``then`` is called each time it was taken, before the block; if that
    raises, the lock is free again.
    """

    __slots__ = ("_holder", "_then", "_what")

    def __init__(self, what: str, then: Callable[[], object] | None = None) -> None:
        self._what = what
        self._then = then
        self._holder: CodeType | None = None

    def __enter__(self) -> bool:  # type: ignore[override] # that one is an alias of acquire
        caller = _getframe(1)
        is_owned = self._is_owned()  # type: ignore[attr-defined] # as Condition uses it
        if is_owned and self._is_in_use(caller.f_back):
            raise _refusal(self._what)
        try:
            if not is_owned:  # else it was left behind by an exception
                self.acquire()
            self._holder = caller.f_code
            if self._then is not None:
                self._then()
        except BaseException:
            if self._is_owned():  # type: ignore[attr-defined]
                self.release()
            raise
        return True

    def _is_in_use(self, frame: FrameType | None) -> bool:
        """Whether the code that holds it, or that is taking it, is still on this thread's stack."""
        while frame is not None:
            code = frame.f_code
            if code is self._holder or (code is _TAKING and frame.f_locals.get("self") is self):
                return True
            frame = frame.f_back
        return False


_TAKING = Lock.__enter__.__code__


class QuickLock(RLock):  # type: ignore[misc] # final only for type checkers
    """A :class:`Lock` for calls that are made for every message: no Python runs between the taking and the block.

    Used in two lines, ``entered = lock.once()`` and ``with entered:``. So a function that holds it has it in its local
    variable ``entered``. Where no other function on the thread's stack has that, an exception has left the lock behind.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def once(self) -> Self:
        """The lock itself, not held by this thread. Raises ``ReentrantCall`` if a function on its stack may hold it."""
        if self._is_owned():  # type: ignore[attr-defined] # as Condition uses it
            self._free(_getframe(1).f_back)
        return self

    def _free(self, frame: FrameType | None) -> None:
        while frame is not None:
            if "entered" in frame.f_code.co_varnames and frame.f_locals.get("entered") is self:
                raise _refusal(self._what)
            frame = frame.f_back
        while self._is_owned():  # type: ignore[attr-defined]
            self.release()


def _refusal(what: str) -> ReentrantCall:
    return ReentrantCall(
        f"{what} is being used by this thread already: a signal handler or a finalizer called the "
        "library while it was at work; call it later, or from another thread"
    )
