"""Changes of the catalog, off the event loop: one at a time, in the order of their requests.

A catalog can be slow or not answer at all; work that does not need it must not be delayed. A change is checked and
applied on the loop, in its turn; only the store's call runs in a thread. Each call has its own daemon thread, so that
neither the loop nor the interpreter waits for it when the broker ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from logstore.core.threads import log_error, start
from logstore.errors import CatalogError, CatalogUnavailable, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

logger = logging.getLogger(__name__)

T = TypeVar("T")


class CatalogChanges:
    """The turns of the changes; belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = asyncio.Lock()
        self._names: tuple[tuple[str, str], ...] = ()
        self._unavailable_count = 0  # calls that failed because the catalog was unavailable
        self._unavailable_reason = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def turn(self, *names: tuple[str, str]) -> AsyncIterator[None]:
        """Wait for the turn to change these objects, each a pair of "queue" or "exchange" and a name.

        No other change is made meanwhile. Raises `CatalogUnavailable` if another change got that error during the wait:
        so a hundred waiting changes do not wait for a hundred timeouts.
        """
        count_before = self._unavailable_count
        async with self._lock:
            if self._unavailable_count != count_before:
                raise CatalogUnavailable(self._unavailable_reason)
            self._names = names
            try:
                yield
            finally:
                self._names = ()

    def involves(self, kind: str, name: str) -> bool:
        """Whether a change to this object is in progress."""
        return (kind, name) in self._names

    async def do(self, work: Callable[[], T]) -> T:
        """Do the store's part of a change in a thread.

        Raises its exception; an exception that would end the event loop or the task is replaced by a ``CatalogError``.
        """
        done: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - raised again on the loop
                self._report(done, done.set_exception, _for_a_future(error))
            else:
                self._report(done, done.set_result, result)

        start("logstore-catalog", run)
        try:
            return await done
        except CatalogUnavailable as error:
            self._unavailable_count += 1
            self._unavailable_reason = error.message
            raise

    def _report(self, done: asyncio.Future[T], settle: Callable[[Any], None], value: Any) -> None:
        def apply() -> None:
            if not done.done():  # otherwise the broker has ended
                settle(value)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(apply)

    def in_background(self, what: str, work: Coroutine[Any, Any, object]) -> None:
        """Run work that has no caller; log its failure."""

        async def run() -> None:
            try:
                await work
            except StoreError as error:
                logger.warning("%s failed: %s", what, error)
            except Exception:
                logger.exception("%s failed", what)

        self.keep(self._loop.create_task(run()))

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a task that makes changes; `stop` waits for it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds for changes in progress, then cancel their tasks."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in list(self._tasks):
            task.cancel()


def _for_a_future(error: BaseException) -> BaseException:
    """An exception that a future can carry: some classes would end the task or the loop that awaits it."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    log_error(error, "a change of the catalog was ended by %s", type(error).__name__)
    made = CatalogError(f"the change of the catalog was ended by {type(error).__name__}; see the broker's log")
    made.__cause__ = error
    return made
