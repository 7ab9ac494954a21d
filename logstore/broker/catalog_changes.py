"""Changes of the catalog, off the event loop: in the order of their requests, those of one kind together.

A catalog can be slow or not answer at all; work that does not need it must not be delayed. A change is checked and
applied on the loop, in its turn; only the store's call runs in a thread. Each call has its own daemon thread, so that
neither the loop nor the interpreter waits for it when the broker ends.

Changes of one kind that wait one behind the other share a call of the store, which is one commit, whichever clients
they come from. If that call is refused because of one of them, they are made one by one, so each has its own answer. A
change may bring further ones: those that wait behind it on its channel. After one of them has failed, the later ones of
that channel are not made.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from logstore.core.threads import log_error, start
from logstore.errors import CatalogError, CatalogUnavailable, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Container, Coroutine, Hashable

    Further = Callable[[Container[Hashable]], "Change | None"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

SHARED_MAX: Final = 256  # changes that share a commit
LATER_S: Final = 1.0  # between two attempts of work that the catalog refused


class Kind(NamedTuple):
    """Changes that may share a call of the store."""

    make: Callable[[list[Any]], Coroutine[Any, Any, list[Any]]]
    """The store's part of all of them, or of one. Raises its error; then none of them was made."""
    may_be_alone: Callable[[Exception], bool]
    """Whether an error may be that of one change, so that the others could succeed without it."""


def no_more(_: Container[Hashable]) -> Change | None:
    """No further change waits."""
    return None


@dataclasses.dataclass(slots=True)
class Change:
    """One change that may share a call of the store with others of its kind."""

    names: tuple[tuple[str, str], ...]
    """The objects that it changes, each a pair of "queue" or "exchange" and a name."""
    key: Hashable
    """Names the object or binding that it makes. Two changes with the same key do not share a call."""
    check: Callable[[], Any]
    """Called in its turn: returns what `Kind.make` is given, or None if there is nothing to store."""
    apply: Callable[[Any], object]
    """Called on the loop, at once, with the result of the store."""
    further: Further = no_more
    """The next change behind this one on its channel, unless its key is one of these. Its check returns something."""


class _Waiting:
    """A change that waits for its turn; of no kind: its caller then does something of its own."""

    def __init__(self, turn: asyncio.Future[None], unavailable_count: int) -> None:
        self.turn = turn  # done with the turn, or with the end of a change of a kind
        self.unavailable_count = unavailable_count  # when it began to wait
        self.kind: Kind | None = None
        self.change: Change | None = None

    def end(self, error: BaseException | None = None) -> None:
        """The change is made, or has failed."""
        if self.turn.done():
            return  # its caller has gone
        if error is None:
            self.turn.set_result(None)
        else:
            self.turn.set_exception(error)


class CatalogChanges:
    """The turns of the changes; belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: collections.deque[_Waiting] = collections.deque()
        self._is_busy = False
        self._names: frozenset[tuple[str, str]] = frozenset()
        self._unavailable_count = 0  # calls that failed because the catalog was unavailable
        self._unavailable_reason = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._later: set[asyncio.TimerHandle] = set()
        self._is_stopped = False

    @contextlib.asynccontextmanager
    async def turn(self, *names: tuple[str, str]) -> AsyncIterator[None]:
        """Wait for the turn to change these objects, each a pair of "queue" or "exchange" and a name.

        No other change is made meanwhile. Raises `CatalogUnavailable` if another change got that error during the wait:
        so a hundred waiting changes do not wait for a hundred timeouts.
        """
        waiting = self._enter()
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.done() and not waiting.turn.cancelled():
                self._leave()
            raise
        self._names = frozenset(names)
        try:
            yield
        finally:
            self._leave()

    async def make(self, kind: Kind, change: Change) -> None:
        """Make a change in its turn, together with others of its kind that wait before or behind it.

        Raises the exception of its `check` or of the store, and `CatalogUnavailable` as `turn`.
        """
        await self._enter(kind, change).turn

    def _enter(self, kind: Kind | None = None, change: Change | None = None) -> _Waiting:
        waiting = _Waiting(self._loop.create_future(), self._unavailable_count)
        waiting.kind, waiting.change = kind, change
        self._line.append(waiting)
        self._go_on()
        return waiting

    def _leave(self) -> None:
        self._names = frozenset()
        self._is_busy = False
        self._go_on()

    def _go_on(self) -> None:
        while self._line and not self._is_busy:
            if not self._may_have_turn(self._line[0]):
                self._line.popleft()
            elif self._line[0].kind is None:
                self._is_busy = True
                self._line.popleft().end()
            else:
                self._is_busy = True
                self.keep(self._loop.create_task(self._make_together(self._line[0].kind)))

    def _may_have_turn(self, waiting: _Waiting) -> bool:
        if waiting.unavailable_count != self._unavailable_count:
            waiting.end(CatalogUnavailable(self._unavailable_reason))
        return not waiting.turn.done()

    async def _make_together(self, kind: Kind) -> None:
        try:
            together = self._take(kind)
            if together:
                self._names = frozenset(name for _, change, _ in together for name in change.names)
                await self._make(kind, together)
        finally:
            self._leave()

    def _take(self, kind: Kind) -> list[tuple[_Waiting, Change, Any]]:
        """The changes of the line that are made now, checked, with what the store is given."""
        taken: list[tuple[_Waiting, Change, Any]] = []
        keys: set[Hashable] = set()
        while self._line and len(taken) < SHARED_MAX and self._line[0].kind is kind:
            waiting = self._line[0]
            if not self._may_have_turn(waiting):
                self._line.popleft()
                continue
            change = waiting.change
            assert change is not None
            if change.key in keys:
                break  # its check needs the outcome of the other one
            self._line.popleft()
            try:
                given = change.check()
                if given is None:
                    waiting.end()
                    continue
                next_one: Change | None = change
                while next_one is not None:
                    keys.add(next_one.key)
                    taken.append((waiting, next_one, given))
                    next_one = change.further(keys) if len(taken) < SHARED_MAX else None
                    given = None if next_one is None else next_one.check()
            except Exception as error:  # noqa: BLE001 - of this change, for its caller
                taken = [each for each in taken if each[0] is not waiting]
                waiting.end(error)
        return taken

    async def _make(self, kind: Kind, together: list[tuple[_Waiting, Change, Any]]) -> None:
        """Make changes in one call, or one by one if one of them may be the cause of a failure."""
        failure: Exception | None = None
        try:
            results = await kind.make([given for _, _, given in together])
        except Exception as error:  # noqa: BLE001 - for the callers
            if len(together) > 1 and kind.may_be_alone(error):
                await self._make_one_by_one(kind, together)
                return
            failure, results = error, [None] * len(together)
        for (waiting, change, _), result in zip(together, results, strict=True):
            self._apply(waiting, change, result, failure)
        for waiting, _, _ in together:
            waiting.end()

    async def _make_one_by_one(self, kind: Kind, together: list[tuple[_Waiting, Change, Any]]) -> None:
        unavailable: CatalogUnavailable | None = None
        for at, (waiting, change, given) in enumerate(together):
            if waiting.turn.done():
                continue  # an earlier one of its channel has failed
            result: Any = None
            failure: Exception | None = unavailable
            if failure is None:
                try:
                    (result,) = await kind.make([given])
                except CatalogUnavailable as error:
                    failure = unavailable = error
                except Exception as error:  # noqa: BLE001 - for the caller
                    failure = error
            self._apply(waiting, change, result, failure)
            if at + 1 == len(together) or together[at + 1][0] is not waiting:
                waiting.end()

    def _apply(self, waiting: _Waiting, change: Change, result: Any, failure: Exception | None) -> None:
        if failure is None:
            try:
                change.apply(result)
            except Exception as error:  # noqa: BLE001 - for the caller
                failure = error
        if failure is not None:
            waiting.end(failure)

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

    def later(self, what: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run work in the background after `LATER_S`; it calls this again as long as the catalog refuses it."""
        if self._is_stopped:
            return

        def run() -> None:
            self._later.discard(timer)
            self.in_background(what, work())

        timer = self._loop.call_later(LATER_S, run)
        self._later.add(timer)

    async def stop(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds for changes in progress, then cancel their tasks."""
        self._is_stopped = True
        for timer in self._later:
            timer.cancel()
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
