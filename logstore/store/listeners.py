"""The callbacks that a program registered, and the handle that ends one: :class:`Listener`.

Invariant: every change of a list of listeners is one step of CPython on a dict with keys that run no Python code. So
any thread, signal handler or finalizer may close a listener at any moment, also while the list is being called, and no
lock is taken. The owner of a list stops what the core does for it once the list is empty: at once where it may
(``unused`` of :class:`Listeners`), else when it is next woken.
"""

from __future__ import annotations

import threading
from types import MethodType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakMethod, ref

from logstore import errors
from logstore.core import arguments
from logstore.core.threads import log_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

_ENDS_PROCESS = (KeyboardInterrupt, SystemExit)
_Argument = TypeVar("_Argument")
_Callback = Any  # a callable of one argument, which each event types where it is registered


class Listener:
    """A registered callback; :meth:`close` ends it. A context manager, which closes it at the end of the block.

    After :meth:`close` has returned, no new call of the callback begins. A call that another thread has begun before
    may still run; none runs if the loop's own thread closes a listener of the loop. A second :meth:`close` does
    nothing. It may be called from any thread, in the callback itself, after the close of the store and in a forked
    child. The close of the store ends every listener; the deletion of a queue ends those of the queue.
    """

    __slots__ = ("__weakref__", "_callback", "_listeners", "_method")

    def __init__(self) -> None:
        self._listeners: Listeners | None = None
        self._callback: _Callback | None = None
        self._method: WeakMethod[Any] | None = None  # in place of the callback, if that is weak

    @property
    def closed(self) -> bool:
        """Whether it has ended: by :meth:`close`, with the store or queue, or with the object of a weak callback."""
        return self._target() is None

    def close(self) -> None:
        """Ends the listener."""
        self._callback = self._method = None
        listeners, self._listeners = self._listeners, None
        if listeners is not None:
            listeners._discard(self)

    def _target(self) -> _Callback | None:
        method = self._method
        return self._callback if method is None else method()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Listener {'closed' if self.closed else self._target()!r}>"


class Listeners:
    """The listeners of one kind of event, in the order in which they came.

    ``unused`` is called, on whatever thread, after the last one was closed; not in a finalizer.
    """

    def __init__(self, unused: Callable[[], object] | None = None) -> None:
        self._all: dict[Listener, None] = {}
        self._unused = unused

    def add(self, callback: _Callback, *, weak: bool) -> Listener:
        """Adds a callback that :func:`check_callback` has checked."""
        made = Listener()
        made._listeners = self
        if weak:
            made._method = _weak_method(callback, self._all, made)
        else:
            made._callback = callback
        self._all[made] = None
        return made

    def __bool__(self) -> bool:
        return bool(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[_Callback]:
        """The callbacks that are registered now; one that is closed before its turn is left out."""
        for one in tuple(self._all):
            target = one._target()
            if target is not None:
                yield target

    def end(self) -> None:
        """Closes all of them, without a call of ``unused``."""
        self._unused = None
        for one in tuple(self._all):
            one.close()

    def _discard(self, one: Listener) -> None:
        self._all.pop(one, None)
        unused = self._unused
        if unused is not None and not self._all:
            unused()


def tell_all(callbacks: Iterable[Callable[[Any], object]], failed: Callable[[], Exception]) -> None:
    """Calls every callback with an exception of its own: one that is raised twice would keep both callers' frames."""
    for callback in callbacks:
        call_all((callback,), failed())


def call_all(callbacks: Iterable[Callable[[_Argument], object]], value: _Argument, *, kind: str = "completion") -> None:
    """Calls every callback with ``value``. An exception is logged; it stops neither the others nor the thread."""
    for callback in callbacks:
        try:
            callback(value)
        except BaseException as problem:
            log_error(problem, "a %s callback failed", kind)
            if isinstance(problem, _ENDS_PROCESS) and threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C in an event loop; the store's own thread, in contrast, must survive everything


def check_callback(callback: object, *, weak: bool) -> None:
    """Raises ``TypeError`` if it cannot be called, ``OptionError`` if it is to be weak and is no method of an object.

    A function or lambda to which nothing else refers would end at once.
    """
    arguments.function("callback", callback)
    if weak and not isinstance(callback, MethodType):
        raise errors.OptionError(
            f"weak=True takes a method of an object, with which the listener ends, not {arguments.shown(callback)}; "
            "pass such a method, or leave out weak and close the listener"
        )


def _weak_method(callback: MethodType, listeners: dict[Listener, None], of: Listener) -> WeakMethod[Any]:
    listener = ref(of)

    def end(_: object) -> None:  # in a finalizer: one step on the dict; the list's owner notices when it is next woken
        ended = listener()
        if ended is not None:
            listeners.pop(ended, None)

    return WeakMethod(callback, end)
