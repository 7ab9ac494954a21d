"""Recovery as callbacks: a broker rebuilds its state from an open store, in one fixed order.

:func:`replay` walks an open store and calls a receiver with its contents: configuration, exchanges, queues, bindings,
messages in queue order, transactions in doubt, done. It changes nothing, holds one message in memory at a time, and
reports each object exactly once. So it may be called again, and a broker that dies during a replay starts a new one.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore.core import arguments
from logstore.core.imports import late

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from logstore.catalog.catalog import BindingRow, ExchangeRow
    from logstore.store.deliveries import Message
    from logstore.store.message_store import MessageStore
    from logstore.store.queues import Queue
    from logstore.store.transactions import Transaction

__all__ = ["Receiver", "Replayed", "replay"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The number of objects of each kind; passed to :meth:`Receiver.done` and returned by :func:`replay`."""

    exchanges: int
    queues: int
    bindings: int
    messages: int
    """Calls of ``message``: a message on two queues counts twice. 0 if the receiver has no ``message``."""
    in_doubt: int


class Receiver:
    """The methods that :func:`replay` calls, in this order. Inherit from it, or pass any object with some of them.

    A missing method is skipped; without ``message`` the queues are not walked at all. An exception from a method ends
    the replay and reaches its caller.
    """

    def configuration(self, config: Mapping[str, str]) -> object:
        """Once, first: the general configuration, as a copy."""

    def exchange(self, exchange: ExchangeRow) -> object:
        """Once per exchange: ``name, type, arguments, alternate``. An alternate comes before the exchange it serves."""

    def queue(self, queue: Queue) -> object:
        """Once per queue: the handle, with ``name, arguments, dead_letter, depth``.

        Queues come in the order of their creation, so a dead-letter queue comes before the queues that name it.
        """

    def binding(self, binding: BindingRow) -> object:
        """Once per binding: ``exchange, queue, key, arguments``; the first two are names reported before."""

    def message(self, queue: Queue, message: Message) -> object:
        """Once per place: queue by queue, in queue order, before the first transaction in doubt.

        ``message.redelivered`` says that a consumer may have seen the message: it was handed out, or was on the queue
        at a crash. ``message.locked`` says that a transaction in doubt has dequeued it. Header and content are read
        from the log on access.
        """

    def in_doubt(self, transaction: Transaction) -> object:
        """Once per prepared transaction without an outcome, with its ``xid``. It may get its outcome here."""

    def done(self, replayed: Replayed) -> object:
        """Once, last: everything was reported. Not called if another method raised."""


_METHODS: Final = tuple(name for name in vars(Receiver) if not name.startswith("_"))


def replay(store: MessageStore, receiver: object) -> Replayed:
    """Reports the whole contents of the open store to the receiver, in the order of :class:`Receiver`'s methods.

    Call it between ``logstore.open`` and the first client: a change made during the replay may or may not be reported.
    Nothing is acquired or changed, and memory does not grow with the number of messages.

    Raises :class:`~logstore.errors.OptionError` for a receiver without any of the methods, or with one that is not
    callable; ``StoreClosed``; ``CorruptLog`` when a receiver reads damaged content; and any exception of the receiver.
    """
    _check_store(store)
    tell = _callbacks(receiver)
    counts = dict.fromkeys(("exchanges", "queues", "bindings", "messages", "in_doubt"), 0)
    config = dict(store.config)
    if (configuration := tell.get("configuration")) is not None:
        configuration(config)
    counts["exchanges"] = _each(tell.get("exchange"), _alternates_first(store.exchanges()))
    queues = store.queues()
    counts["queues"] = _each(tell.get("queue"), queues)
    counts["bindings"] = _each(tell.get("binding"), store.bindings())
    if (message := tell.get("message")) is not None:
        counts["messages"] = sum(_messages(store, queue, message) for queue in queues)
    counts["in_doubt"] = _each(tell.get("in_doubt"), store.in_doubt())
    replayed = Replayed(**counts)
    if (done := tell.get("done")) is not None:
        done(replayed)
    return replayed


def _check_store(store: object) -> None:
    late("logstore.store.message_store")
    from logstore.store.message_store import MessageStore  # late, so that importing this module stays light

    arguments.instance("store", store, MessageStore, what="a MessageStore, as logstore.open() gives it")


def _callbacks(receiver: object) -> dict[str, Callable[..., object]]:
    found: dict[str, Callable[..., object]] = {}
    for name in _METHODS:
        method = getattr(receiver, name, None)
        if method is None:
            continue
        if not callable(method):
            raise errors.OptionError(
                f"the receiver's {name!r} is {arguments.shown(method)}; make it a method, or leave it out"
            )
        found[name] = method
    if not found:
        raise errors.OptionError(
            f"the receiver {arguments.shown(receiver)} has no method that replay calls; give it one or more of "
            f"{', '.join(_METHODS)}"
        )
    return found


def _each(callback: Callable[..., object] | None, things: Iterable[Any]) -> int:
    count = 0
    for thing in things:
        if callback is not None:
            callback(thing)
        count += 1
    return count


def _messages(store: MessageStore, queue: Queue, callback: Callable[..., object]) -> int:
    count = 0
    with contextlib.closing(_walk(store, queue)) as messages:
        for message in messages:
            callback(queue, message)
            count += 1
    return count


def _walk(store: MessageStore, queue: Queue) -> Generator[Message, None, None]:
    """The queue's places. A generator, so that the caller can close it and no exception leaves a cursor open."""
    yield from store.messages(queue)


def _alternates_first(exchanges: list[ExchangeRow]) -> Iterator[ExchangeRow]:
    """By name, but an alternate before the exchanges that fall back on it, which are declared later: no cycles."""
    waiting = {exchange.name: exchange for exchange in exchanges}
    for exchange in exchanges:
        chain = []
        current: ExchangeRow | None = waiting.pop(exchange.name, None)
        while current is not None:
            chain.append(current)
            current = None if current.alternate is None else waiting.pop(current.alternate, None)
        yield from reversed(chain)
