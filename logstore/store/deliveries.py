"""The objects that a queue hands out: :class:`Message` for browsing, :class:`Delivery` and its token for consuming.

Header and content are read from the log on access, unless they were loaded with the acquisition.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from logstore import errors
from logstore._hot import Delivery
from logstore.core import arguments
from logstore.store.counting import delivery_count, enqueued_at
from logstore.store.own_bytes import note_of, own_header
from logstore.store.times import times_of_place

if TYPE_CHECKING:
    from datetime import datetime

    from logstore.store.message_store import MessageStore

__all__ = ["Delivery", "DeliveryToken", "Message", "MessageView"]


class DeliveryToken(NamedTuple):
    """Holds an acquired place without a :class:`Delivery`; made by :meth:`Delivery.detach`.

    The queue's ``accept``, ``accept_many``, ``release``, ``reject`` and ``move`` take it, in this open of the store
    only: any other refuses it with :class:`~logstore.errors.NotEnqueued`, as it refuses one that was settled. It may
    be pickled. Dropping a token releases nothing: its place stays acquired until a settlement or the end of the store.
    """

    queue: int
    """The id of the queue."""
    id: int
    """The message's persistence ID."""
    position: int
    """The position of the place, as in :attr:`Delivery.position`."""
    count: int  # type: ignore[assignment] # in place of tuple.count
    """The delivery count, as in :attr:`Delivery.delivery_count`."""
    opened: int
    """A random number that this open of the store has drawn."""


@dataclass(frozen=True, slots=True)
class Message:
    """One place on a queue, as ``messages()`` and ``browse()`` list it."""

    _store: MessageStore
    _queue_id: int = field(repr=False)
    id: int
    """The persistence ID: the LSN of the message's first record."""
    position: int
    """The position of its place on the queue, as in :attr:`Delivery.position`."""
    size: int
    """Bytes of content, the header not counted."""
    locked: bool
    """Whether a transaction without an outcome has dequeued it."""
    redelivered: bool
    """Whether it may have been delivered before: it was handed out, or was on the queue at a crash."""
    _has_header: bool = field(default=False, repr=False, compare=False)
    _header: bytes | None = field(default=None, repr=False, compare=False)
    _content: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def enqueued_at(self) -> datetime | None:
        """When it was put on this queue: see :attr:`Delivery.enqueued_at`."""
        return enqueued_at(self._store, self._queue_id, self.id, self.position)

    @property
    def header(self) -> bytes:
        """The header that a move gave its place, or else the message's; as loaded with the place or read on access.

        Reading it raises ``UnknownMessage`` if the message has been removed, and ``NotEnqueued`` if the place has ended
        that had a header of its own.
        """
        if self._header is not None:
            return self._header
        if self._has_header:
            return own_header(self._store, self._queue_id, self.id, self.position)
        return self._store.header(self.id)

    @property
    def note(self) -> bytes:
        """The note of its place, ``b""`` if there is none; read on access.

        Raises ``UnknownMessage`` or ``NotEnqueued`` if the place has ended.
        """
        return note_of(self._store, self._queue_id, self.id, self.position)

    @property
    def delivery_count(self) -> int:
        """How often its place has been handed out so far, as :attr:`Delivery.delivery_count`. Raises as ``note``."""
        return delivery_count(self._store, self._queue_id, self.id, self.position)

    @property
    def not_before(self) -> datetime | None:
        """When its place is offered first, in UTC; None: it never was hidden. Raises as ``note``."""
        return times_of_place(self._store, self._queue_id, self.id, self.position)[0]

    @property
    def expires(self) -> datetime | None:
        """When its place expires, in UTC; None: never. Raises as ``note``."""
        return times_of_place(self._store, self._queue_id, self.id, self.position)[1]

    @property
    def content(self) -> bytes:
        """The whole content, as loaded with the place or else read on access.

        Reading it raises ``UnknownMessage`` if the message has been removed.
        """
        return self._store.load_content(self.id) if self._content is None else self._content


@dataclass(frozen=True, slots=True)
class MessageView(Message):
    """A message that was listed with ``views``: its content is a read-only view of the memory that it was read into.

    A view stays valid and unchanged as long as it exists, also after the message was removed or the store was closed.
    It keeps up to 512 KiB alive, which it shares with its neighbours, as this object does: copy with ``bytes()`` what
    is to be kept.
    """

    _content: memoryview | None = field(default=None, repr=False, compare=False)  # type: ignore[assignment]

    @property
    def content(self) -> memoryview:  # type: ignore[override] # what the caller asked for
        """The whole content, as loaded with the place or else read on access, as in :class:`Message`."""
        return memoryview(self._store.load_content(self.id)) if self._content is None else self._content


def checked_position(name: str, value: object) -> int:
    """The position of a place as an int. The core checks whether the queue has had it."""
    plain = None if isinstance(value, bool) or not isinstance(value, int) else operator.index(value)
    if plain is None or not 0 <= plain <= arguments.LSN_MAX:
        raise errors.OptionError(
            f"{name} is the position of a place, a number from 0 on as in delivery.position or message.position, not "
            f"{arguments.shown(value)}"
        )
    return plain
