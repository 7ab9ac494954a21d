"""The package's lock: it knows which thread holds it, and refuses that thread a second entry.

A signal handler or a finalizer runs on the thread that it interrupts, between any two bytecodes. If it enters the
library again, a re-entrant lock would let it into a half-done change, and a plain lock would deadlock. This lock
raises :class:`~logstore.errors.ReentrantCall` at once.

Invariant: an exception from a signal handler or a tracer never leaves the lock held for ever. CPython checks for
signals at the entry of a function, after a call and on a backward jump. So Python code that takes the lock is guarded
by ``try``, C code that ``with`` calls needs no guard, and the release is one call into C. A tracer can also raise right
before that call. Then the thread holds the lock although the code that took it is no longer on the thread's stack; the
next use on that thread detects this and takes the lock over.

A fork copies locks, but not the threads that hold them: a forked child renews every lock that its one thread does not
hold.
"""

from __future__ import annotations

import os
from _thread import RLock
from sys import _getframe
from typing import TYPE_CHECKING
from weakref import WeakSet

from logstore.errors import ReentrantCall

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType


class Lock(RLock):  # type: ignore[misc] # final only for type checkers
    """A non-reentrant lock, used as a context manager with ``with`` in a plain function.

    Do not use it in a generator (its frame is on no stack while it is suspended), nor twice in one function. ``what``
    names the guarded object in error messages. ``then`` is called after each acquisition, before the block; if it
    raises, the lock is released.
    """

    __slots__ = ("_holder", "_then", "_what")

    def __init__(self, what: str, then: Callable[[], object] | None = None) -> None:
        self._what = what
        self._then = then
        self._holder: CodeType | None = None
        _LOCKS.add(self)

    def __enter__(self) -> bool:  # type: ignore[override] # that one is an alias of acquire
        caller = _getframe(1)
        is_owned = self._is_owned()  # type: ignore[attr-defined] # as Condition uses it
        if is_owned and self._is_in_use(caller.f_back):
            raise _refusal(self._what)
        try:
            if not is_owned:  # otherwise an exception left it held, and this call takes it over
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
        """Whether the code that holds the lock, or is taking it, is still on this thread's stack."""
        while frame is not None:
            code = frame.f_code
            if code is self._holder or (code is _TAKING and frame.f_locals.get("self") is self):
                return True
            frame = frame.f_back
        return False


def is_running(method: Callable[..., object], of: object, frame: FrameType | None) -> bool:
    """Whether a call of this object's method, written in Python, is on the stack whose innermost frame this is."""
    code = method.__code__
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is of:
            return True
        frame = frame.f_back
    return False


_TAKING = Lock.__enter__.__code__
_LOCKS: WeakSet[Lock] = WeakSet()


def _renew() -> None:
    for lock in list(_LOCKS):
        if not lock._is_owned():  # type: ignore[attr-defined] # else the child is inside the block, and leaves it
            lock._at_fork_reinit()  # type: ignore[attr-defined] # as threading does with its own locks
            lock._holder = None


os.register_at_fork(after_in_child=_renew)


def _refusal(what: str) -> ReentrantCall:
    return ReentrantCall(
        f"{what} is already in use by this thread: a signal handler or a finalizer called the library in the middle of "
        "another call; make the call later, or from another thread"
    )
