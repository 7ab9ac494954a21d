"""Changes of the catalog, off the event loop: one at a time, in the order in which they were asked for.

A catalog can be slow or answer nothing at all, and what does not need it must not notice. A change is decided on and
applied on the loop, in its turn; only the store's call runs in a thread. The thread is a daemon of its own, so that
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
    """Whose turn it is; it belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = asyncio.Lock()
        self._names: tuple[tuple[str, str], ...] = ()
        self._unavailable = 0  # how often the catalog was
        self._said = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def turn(self, *names: tuple[str, str]) -> AsyncIterator[None]:
        """Wait for the turn of a change to these ("queue" or "exchange", name); none of them changes meanwhile.

        Raises `CatalogUnavailable` if the catalog was found so while this one waited: a hundred changes behind one that
        got no answer do not wait a hundred times.
        """
        unavailable = self._unavailable
        async with self._lock:
            if self._unavailable != unavailable:
                raise CatalogUnavailable(self._said)
            self._names = names
            try:
                yield
            finally:
                self._names = ()

    def involves(self, kind: str, name: str) -> bool:
        """Whether a change to it is under way."""
        return (kind, name) in self._names

    async def do(self, work: Callable[[], T]) -> T:
        """Have a thread do the store's part of a change.

        Raises what it raises; as a ``CatalogError`` what would end the event loop, the task or the wait itself.
        """
        done: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - raised again on the loop
                self._report(done, done.set_exception, _bearable(error))
            else:
                self._report(done, done.set_result, result)

        start("logstore-catalog", run)
        try:
            return await done
        except CatalogUnavailable as error:
            self._unavailable += 1
            self._said = error.message
            raise

    def _report(self, done: asyncio.Future[T], settle: Callable[[Any], None], value: Any) -> None:
        def apply() -> None:
            if not done.done():  # else the broker has ended
                settle(value)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(apply)

    def in_background(self, what: str, work: Coroutine[Any, Any, object]) -> None:
        """Do what nobody waits for; why it failed is logged."""

        async def run() -> None:
            try:
                await work
            except StoreError as error:
                logger.warning("%s failed: %s", what, error)
            except Exception:
                logger.exception("%s failed", what)

        self.keep(self._loop.create_task(run()))

    def keep(self, task: asyncio.Task[None]) -> None:
        """A task that makes changes, to be waited for when the broker ends."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, timeout_s: float) -> None:
        """Let what is under way end, for so long; then leave it to itself."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in list(self._tasks):
            task.cancel()


def _bearable(error: BaseException) -> BaseException:
    """The exception as a future can carry it: a task would take some classes for its own end, or the loop for its."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    log_error(error, "a change of the catalog was ended by %s", type(error).__name__)
    made = CatalogError(f"the change of the catalog was ended by {type(error).__name__}; see the broker's log")
    made.__cause__ = error
    return made
