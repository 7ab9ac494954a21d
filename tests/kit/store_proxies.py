"""Proxies around a real store that simulate a slow, a full and a failing disk."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import TYPE_CHECKING, Any

from kit.patience import PATIENCE_S
from logstore.errors import OutcomeUnknown, StoreFull, StorePoisoned

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from logstore.store.fullness import Fullness


class Proxy:
    """All other calls go to the store."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[Any], None], report: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop may be closed by now
        loop.call_soon_threadsafe(callback, report)


class Registered:
    """Ends a callback that a proxy has registered."""

    def __init__(self, callbacks: list[Callable[[Any], None]], callback: Callable[[Any], None]) -> None:
        self._callbacks, self._callback = callbacks, callback
        callbacks.append(callback)

    def close(self) -> None:
        if self._callback in self._callbacks:
            self._callbacks.remove(self._callback)


class _NoAnswers:
    """The store sends no confirm by itself: it does not know what a proxy reports as durable."""

    answering_fd = -1

    def answer(self, _lsn: int, _socket: int, _data: bytes, _take_back: Any) -> bool:
        return False

    def answered(self) -> int:
        return -1


class HeldDisk(Proxy):
    """Between `hold` and `let_go` no new operation is reported as durable."""

    def _answers_of(self, _loop: asyncio.AbstractEventLoop) -> _NoAnswers:
        return _NoAnswers()

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._callbacks: list[Callable[[Any], None]] = []
        self._held_at: int | None = None
        self._lock = threading.Lock()
        store.on_durable(self._report)

    def on_durable(self, callback: Callable[[Any], None], *, loop: asyncio.AbstractEventLoop) -> Registered:
        return Registered(self._callbacks, lambda report: _in_loop(loop, callback, report))

    @property
    def durable_lsn(self) -> int:
        held_at = self._held_at
        return int(self._store.durable_lsn) if held_at is None else held_at

    def hold(self) -> None:
        self._store.force()
        self._held_at = self._store.durable_lsn

    def let_go(self) -> None:
        self._store.force()
        self._held_at = None
        self._report(self._store.durable_lsn)

    def _report(self, report: Any) -> None:
        if self._held_at is None:
            self._tell(report)

    def _tell(self, report: Any) -> None:
        with self._lock:
            for callback in tuple(self._callbacks):
                callback(report)


class NarrowLog(HeldDisk):
    """Its log has as little room as the test says."""

    room_percent = 100


class ShortLog(HeldDisk):
    """Its log is nearly full while the test says so."""

    nearly_full = False

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._near: list[Callable[[Any], None]] = []

    def on_fullness(
        self, callback: Callable[[Any], None], *, loop: asyncio.AbstractEventLoop, near: bool = False
    ) -> Any:
        if not near:
            return self._store.on_fullness(callback, loop=loop)
        return Registered(self._near, lambda report: _in_loop(loop, callback, report))

    def fullness(self) -> Fullness:
        return dataclasses.replace(self._store.fullness(), near=self.nearly_full)

    def shorten(self, is_short: bool) -> None:
        self.nearly_full = is_short
        for callback in tuple(self._near):
            callback(self.fullness())


class FullStore(Proxy):
    """Refuses publishes while `full` is set."""

    full = False

    def publish(self, *args: Any, **options: Any) -> Any:
        if self.full:
            raise StoreFull("the store is full: consume messages or make room on the disk")
        return self._store.publish(*args, **options)

    def _publish_answered(self, *args: Any) -> int:
        return 0 if self.full else int(self._store._publish_answered(*args))

    def publish_many(self, *args: Any, **options: Any) -> Any:
        if self.full:
            raise StoreFull("the store is full: consume messages or make room on the disk")
        return self._store.publish_many(*args, **options)

    def stage(self, *args: Any, **options: Any) -> Any:
        if self.full:
            raise StoreFull("the store is full: consume messages or make room on the disk")
        return self._store.stage(*args, **options)

    def append_content(self, *args: Any, **options: Any) -> Any:
        if self.full:
            raise StoreFull("the store is full: consume messages or make room on the disk")
        return self._store.append_content(*args, **options)


class PickyStore(Proxy):
    """Refuses a message that contains `unwanted`; of many it accepts those before the first such one."""

    unwanted = b"unwanted"

    def publish(self, queue: Any, content: Any, **options: Any) -> Any:
        if self.unwanted in content:
            raise StoreFull("the store is full: consume messages or make room on the disk")
        return self._store.publish(queue, content, **options)

    def publish_many(self, queue: Any, contents: Any, *, headers: Any, **options: Any) -> Any:
        taken = next((at for at, content in enumerate(contents) if self.unwanted in content), len(contents))
        published = self._store.publish_many(queue, contents[:taken], headers=headers[:taken], **options)
        if taken < len(contents):
            problem = StoreFull("the store is full: consume messages or make room on the disk")
            problem.published = published  # type: ignore[attr-defined] # as the store does
            raise problem
        return published


class BrokenStore(HeldDisk):
    """Fails for ever on demand: no write works, and every waiter gets an error."""

    broken = False

    def break_down(self) -> None:
        self.broken = True
        self._tell(self._failure())  # nothing more becomes durable

    def on_durable(self, callback: Callable[[Any], None], *, loop: asyncio.AbstractEventLoop) -> Registered:
        made = super().on_durable(callback, loop=loop)
        if self.broken:  # a poisoned store also tells objects that register later
            _in_loop(loop, callback, self._failure())
        return made

    @staticmethod
    def _failure() -> OutcomeUnknown:
        return OutcomeUnknown("the sync of a batch failed: open the store again to see what survived")

    def publish(self, *args: Any, **options: Any) -> Any:
        if self.broken:
            raise StorePoisoned("an earlier sync failed: close the store and open it again")
        return self._store.publish(*args, **options)

    def publish_many(self, *args: Any, **options: Any) -> Any:
        if self.broken:
            raise StorePoisoned("an earlier sync failed: close the store and open it again")
        return self._store.publish_many(*args, **options)

    def append_content(self, *args: Any, **options: Any) -> Any:
        if self.broken:
            raise StorePoisoned("an earlier sync failed: close the store and open it again")
        return self._store.append_content(*args, **options)


_OF_QUEUES = ("declare_queue", "delete_queue", "bind", "unbind")
_OF_MANY = ("declare_queues", "delete_queues", "declare_exchanges", "delete_exchanges", "bind_many", "unbind_many")
_CHANGES = (*_OF_QUEUES, *_OF_MANY, "declare_exchange", "delete_exchange")


class HangingCatalog(Proxy):
    """Changes wait between `hang` and `go_on`; they fail with the error given to `fail_with`."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self.asked = threading.Event()
        self.made: list[str] = []
        self.failure: Exception | None = None

    @property
    def calls(self) -> int:
        """Calls since `hang`."""
        return len(self.made)

    def hang(self, failure: Exception | None = None) -> None:
        self.asked.clear()
        self.made = []
        self.failure = failure
        self._may_go_on.clear()

    def go_on(self) -> None:
        self._may_go_on.set()

    def __getattr__(self, name: str) -> Any:
        if name not in _CHANGES:
            return super().__getattr__(name)

        def change(*args: Any, **options: Any) -> Any:
            self.made.append(name)
            self.asked.set()
            assert self._may_go_on.wait(PATIENCE_S)
            if self.failure is not None:
                raise self.failure
            return getattr(self._store, name)(*args, **options)

        return change
