"""Recovery as callbacks: what a broker needs to rebuild itself from an open store, in one fixed order.

:func:`replay` walks an open store and tells a receiver what it holds: configuration, exchanges, queues, bindings,
messages in queue order, transactions in doubt, done. It changes nothing, holds one message at a time, and tells each
thing exactly once; so it may be called again, and a broker that dies in the middle of it simply starts anew.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore.core import arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from logstore.catalog.catalog import BindingRow, ExchangeRow
    from logstore.store.message_store import MessageStore
    from logstore.store.queues import Message, Queue
    from logstore.store.transactions import Transaction

__all__ = ["Receiver", "Replayed", "replay"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many of each kind the store held, given to :meth:`Receiver.done` and returned by :func:`replay`."""

    exchanges: int
    queues: int
    bindings: int
    messages: int
    """Places given to ``message``: one on two queues counts twice. 0 if the receiver has no ``message``."""
    in_doubt: int


class Receiver:
    """What :func:`replay` calls, in this order. Inherit from it, or write any object with some of these methods.

    A method that is not there is skipped; without ``message`` the queues are not walked at all. What a method raises
    ends the replay and reaches its caller.
    """

    def configuration(self, config: Mapping[str, str]) -> object:
        """Once, first: the general configuration, as a copy."""

    def exchange(self, exchange: ExchangeRow) -> object:
        """Once for each: ``name, type, arguments, alternate``. An alternate comes before the one that names it."""

    def queue(self, queue: Queue) -> object:
        """Once for each: the handle, with ``name, arguments, dead_letter, depth``.

        They come in the order of their making, and so a dead-letter queue before the one that names it.
        """

    def binding(self, binding: BindingRow) -> object:
        """Once for each: ``exchange, queue, key, arguments``, the first two as names given before."""

    def message(self, queue: Queue, message: Message) -> object:
        """Once for each place: queue by queue, in queue order, before the first transaction in doubt.

        ``message.redelivered`` says that it was there when the store was opened, and so may have been seen by a
        consumer; ``message.locked`` that a transaction in doubt has dequeued it. Header and content are read from the
        log when asked for.
        """

    def in_doubt(self, transaction: Transaction) -> object:
        """Once for each prepared transaction without an outcome, with its ``xid``. It may be given one here."""

    def done(self, replayed: Replayed) -> object:
        """Once, last: the receiver has everything. Not called if one of the others raised."""


_METHODS: Final = tuple(name for name in vars(Receiver) if not name.startswith("_"))


def replay(store: MessageStore, receiver: object) -> Replayed:
    """Tells the receiver everything that the open store holds, in the order of :class:`Receiver`'s methods.

    Call it between ``logstore.open`` and the first client: a change during the replay may be included or not.
    Nothing is acquired, changed or kept; memory does not grow with the number of messages.

    Raises :class:`~logstore.errors.OptionError` for a receiver with none of the methods or with an attribute in the
    place of one, ``StoreClosed``, ``CorruptLog`` where a receiver reads damaged content, and whatever the receiver
    raises.
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
    from logstore.store.message_store import MessageStore  # which this module is not needed for

    arguments.instance("store", store, MessageStore, what="a MessageStore, as logstore.open() gives it")


def _callbacks(receiver: object) -> dict[str, Callable[..., object]]:
    found: dict[str, Callable[..., object]] = {}
    for name in _METHODS:
        method = getattr(receiver, name, None)
        if method is None:
            continue
        if not callable(method):
            told = arguments.shown(method)
            raise errors.OptionError(f"the receiver's {name!r} is {told}; make it a method, or leave it out")
        found[name] = method
    if not found:
        raise errors.OptionError(
            f"the receiver {arguments.shown(receiver)} receives nothing; give it one or more of the methods "
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
    """The queue's places; closed as soon as the replay ends, so that an exception leaves no cursor open."""
    yield from store.messages(queue)


def _alternates_first(exchanges: list[ExchangeRow]) -> Iterator[ExchangeRow]:
    """By name, but an alternate before the exchange that falls back on it; a chain of them has no circle."""
    waiting = {exchange.name: exchange for exchange in exchanges}
    for exchange in exchanges:
        chain = []
        current: ExchangeRow | None = waiting.pop(exchange.name, None)
        while current is not None:
            chain.append(current)
            current = None if current.alternate is None else waiting.pop(current.alternate, None)
        yield from reversed(chain)
