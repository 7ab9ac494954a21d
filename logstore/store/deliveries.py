"""The objects that a queue hands out: :class:`Message` for browsing, :class:`Delivery` for consuming.

Header and content are read from the log on access, unless they were loaded with the acquisition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logstore.store.message_store import MessageStore
    from logstore.store.queues import Queue
    from logstore.store.transactions import Transaction


@dataclass(slots=True)
class Place:
    """A place on a queue, with its delivery count since the store was opened."""

    position: int
    id: int
    recovered: bool
    content_bytes: int
    deliveries: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """One place on a queue, as ``messages()`` and ``browse()`` list it."""

    _store: MessageStore
    id: int
    """The persistence ID: the LSN of the message's first record."""
    size: int
    """Bytes of content, the header not counted."""
    locked: bool
    """Whether a transaction without an outcome has dequeued it."""
    redelivered: bool
    """Whether it was stored before this open, so that it may have been delivered before."""
    _header: bytes | None = field(default=None, repr=False, compare=False)
    _content: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def header(self) -> bytes:
        """The message's header, as loaded with the place or else read on access.

        Reading it raises ``UnknownMessage`` if the message has been removed.
        """
        return self._store.header(self.id) if self._header is None else self._header

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


class Delivery:
    """A message acquired by a consumer. No other consumer gets it until it is accepted, released or rejected.

    A delivery can be settled once; a second attempt raises :class:`~logstore.errors.NotEnqueued`. Accepting and
    rejecting are durable on return. In a transaction they do not wait, and take effect at its commit; until then, and
    after a rollback, the message stays acquired.
    """

    __slots__ = ("_loaded", "_place", "_queue", "_settled", "delivery_count", "id", "redelivered")

    def __init__(self, queue: Queue, place: Place) -> None:
        self._queue = queue
        self._place = place
        self._settled = False
        self._loaded: tuple[bytes, bytes] | None = None  # header and content
        self.id: int = place.id
        """The message's persistence ID."""
        self.delivery_count: int = place.deliveries
        """How often this place has been handed out, this time included; counting starts again at every open."""
        self.redelivered: bool = place.deliveries > 1 or place.recovered
        """Whether a consumer may have seen it before: handed out earlier, or recovered."""

    @property
    def content(self) -> bytes:
        """The whole content, read from the log at each access unless it was acquired with ``load``."""
        if self._loaded is not None:
            return self._loaded[1]
        return self._queue._store.load_content(self.id)

    @property
    def header(self) -> bytes:
        """The message's header, read from the log at each access unless it was acquired with ``load``."""
        if self._loaded is not None:
            return self._loaded[0]
        return self._queue._store.header(self.id)

    def unload(self) -> None:
        """Frees the header and content that ``load`` has read; the next access reads them from the log again."""
        self._loaded = None

    def accept(self, *, transaction: Transaction | None = None, wait: bool = True) -> None:
        """Takes the message off the queue for good: it was processed."""
        self._queue.accept(self, transaction=transaction, wait=wait)

    def release(self) -> None:
        """Puts the message back to its old place, for the next consumer."""
        self._queue.release(self)

    def reject(self, *, transaction: Transaction | None = None, wait: bool = True) -> None:
        """Moves the message to the dead-letter queue, in one transaction; without such a queue, removes it."""
        self._queue.reject(self, transaction=transaction, wait=wait)

    def __repr__(self) -> str:
        return f"<Delivery {self.id} of {self._queue.name!r}, number {self.delivery_count}>"
