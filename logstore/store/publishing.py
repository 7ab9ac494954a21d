"""How messages enter a store: staging, enqueueing and publishing.

A message is visible on its queues either completely or not at all: a call that fails leaves no part of it behind.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import operator
from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore._core import ffi, lib
from logstore._hot import StoreCalls
from logstore.core import arguments
from logstore.core.native import as_buffer, check, failure, tell
from logstore.store.content import ArrowPiece, Buffers, Stream, is_parts, pieces, same_number, split
from logstore.store.own_bytes import place_move
from logstore.store.times import Times, times_of
from logstore.store.transactions import handle_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from logstore._core import ls_store_ptr
    from logstore.store.deliveries import Delivery
    from logstore.store.queues import Queue
    from logstore.store.transactions import Transaction

# Looked up once, because every publish needs them.
_BUFFERS: Final = (bytes, bytearray, memoryview)
_NULL: Final = ffi.NULL
_WAIT: Final = lib.LS_WAIT
_MORE: Final = lib.LS_MORE

ID_END: Final = 1 << 63  # above every message id


class Publishing(StoreCalls):
    """The part of :class:`~logstore.MessageStore` that adds messages."""

    _c: ls_store_ptr
    _queues: dict[int, Queue]
    _relaxed: bool

    if TYPE_CHECKING:

        def _known(self, queue: Queue | str) -> Queue:
            """Of Names."""

        def _queue_ids(self, queues: Queue | str | Iterable[Queue | str]) -> tuple[Any, int]:
            """Of Names."""

        def force(self, lsn: int | None = None) -> None:
            """Of Durability."""

        def force_unless_relaxed(self) -> None:
            """Of Durability."""

    def stage(self, header: object = b"", content: object = b"", *, wait: bool = False) -> int:
        """Stores a message that is on no queue yet, and returns its id. Content can be appended before it is enqueued.

        The next open drops a staged message that was never enqueued; so this method does not wait by default. Raises
        ``StoreFull``, or ``OptionError`` for a header that does not fit into one record (a sixteenth of a segment, at
        most 1 MiB).
        """
        wait = bool(wait)  # may raise; then nothing is staged
        message_id = self._stage(header, content, 0)
        if wait:
            self.force_unless_relaxed()
        return message_id

    def _stage(self, header: object, content: object, flags: int) -> int:
        c_header, header_bytes = as_buffer(header, "header")
        first, rest = split(content)
        c_content, content_bytes = as_buffer(first)
        made = ffi.new("uint64_t *")
        check(lib.ls_stage(self._c, c_header, header_bytes, c_content, content_bytes, flags, made))
        message_id = int(made[0])
        try:
            for part in rest:
                self._append(message_id, part, "content")
        except BaseException:
            self._undo_stage(message_id)
            raise
        return message_id

    def _undo_stage(self, message_id: int) -> None:
        with contextlib.suppress(errors.StoreError):  # the caller gets the first failure; recovery drops the message
            self.destroy(message_id, wait=False)

    def append_content(self, message_id: int, data: object, *, wait: bool = False) -> None:
        """Appends content to a staged message: any buffer, or an iterable of buffers.

        Raises ``UnknownMessage``, ``MessageInUse`` after it was enqueued, ``StoreFull``.
        """
        wait = bool(wait)  # as in stage
        first, rest = split(data, "data")
        for part in itertools.chain([first], rest):
            self._append(checked_id(message_id), part, "data")
        if wait:
            self.force_unless_relaxed()

    def _append(self, message_id: int, data: object, name: str) -> None:
        c_data, size = as_buffer(data, name)
        check(lib.ls_append_content(self._c, message_id, c_data, size, 0))

    def destroy(self, message_id: int, *, wait: bool = True) -> None:
        """Removes a staged message. Raises ``UnknownMessage``; ``MessageInUse`` if it has a place or pending work."""
        check(lib.ls_destroy(self._c, checked_id(message_id), lib.LS_WAIT if wait else 0))

    def enqueue(
        self,
        message_id: int,
        queue: Queue | str | Iterable[Queue | str],
        transaction: Transaction | None = None,
        *,
        header: object = None,
        not_before: float | datetime | None = None,
        expires: float | datetime | None = None,
        wait: bool = True,
    ) -> int:
        """Puts the message on the queue, or on several queues atomically. Returns the LSN of the record.

        With ``header`` its place there has this header, which stands for the message's; then it is one queue.
        ``not_before`` and ``expires``: as in ``publish``; the record's LSN is then that of the last place.
        In a transaction it becomes visible at the commit. Raises ``UnknownMessage``, ``UnknownQueue``,
        ``AlreadyEnqueued``, ``StoreFull``, and ``MessageLocked`` if another transaction has work for it on that queue.
        """
        ids, count = self._queue_ids(queue)
        times = times_of(not_before, expires)
        if header is None:
            return self._enqueue(checked_id(message_id), ids, count, transaction, times, wait=wait)
        if count != 1:
            raise errors.OptionError(f"a header is for one queue, not {count}: call enqueue for each of them")
        move, kept = place_move(0, ids[0], header=header, times=times)
        lsn = ffi.new("uint64_t *")
        tx = handle_of(self, transaction)
        flags = lib.LS_WAIT if wait else 0
        check(lib.ls_move(self._c, checked_id(message_id), move, ffi.NULL, tx, flags, lsn))
        del kept
        return int(lsn[0])

    def _enqueue(
        self, message_id: int, queue_ids: Any, count: int, transaction: Transaction | None, times: Times, *, wait: bool
    ) -> int:
        lsn = ffi.new("uint64_t *")
        tx = handle_of(self, transaction)
        flags = lib.LS_WAIT if wait else 0
        check(lib.ls_enqueue_timed(self._c, message_id, queue_ids, count, times.as_c(), tx, flags, lsn))
        return int(lsn[0])

    def _publish_slow(
        self,
        queue: Queue | str | Iterable[Queue | str],
        content: object,
        *,
        header: object = b"",
        transaction: Transaction | None = None,
        wait: bool = True,
        acquire: bool = False,
        not_before: float | datetime | None = None,
        expires: float | datetime | None = None,
    ) -> int | Delivery:
        """``publish`` for every form of its arguments; :mod:`logstore._hot` makes the usual call itself."""
        ids, count = self._queue_ids(queue)
        times = times_of(not_before, expires)
        acquirer = self._acquirer(ids, count, transaction, times, wait=wait) if acquire else None
        if not isinstance(content, _BUFFERS) and is_parts(content):
            message_id = self._stage(header, content, lib.LS_PUBLISHED)
            try:
                if acquirer is not None:
                    return acquirer._publish_acquired(b"", b"", message_id, times.expires_us)
                self._enqueue(message_id, ids, count, transaction, times, wait=wait)
            except errors.OutcomeUnknown:
                raise
            except BaseException:
                self._undo_stage(message_id)
                raise
            return message_id
        c_header, header_bytes = as_buffer(header, "header")
        c_content, content_bytes = as_buffer(content)
        if acquirer is not None:
            return acquirer._publish_acquired(header, content, 0, times.expires_us)
        made = ffi.new("uint64_t *")
        tx = _NULL if transaction is None else handle_of(self, transaction)
        flags = _WAIT if wait else 0
        code = lib.ls_publish_timed(
            self._c, ids, count, c_header, header_bytes, c_content, content_bytes, times.as_c(), tx, flags, made
        )
        if code != 0:
            raise failure(code)
        return int(made[0])

    def _acquirer(
        self, queue_ids: Any, count: int, transaction: Transaction | None, times: Times, *, wait: bool
    ) -> Queue:
        """The queue of a publish with ``acquire``, whose other arguments are checked."""
        if count != 1:
            raise errors.OptionError(
                f"a publish with acquire is for one queue, not {count}: publish without it, then acquire_ids on each"
            )
        if transaction is not None:
            raise errors.OptionError(
                "a publish with acquire is for no transaction: publish without it, and acquire_ids after the commit"
            )
        if times.not_before_us > 0:
            raise errors.OptionError(
                "a publish with acquire takes no not_before, because a message that is hidden cannot be handed out: "
                "leave out acquire, or release the delivery with a delay"
            )
        if not wait:
            raise errors.OptionError(
                "a publish with acquire waits until the message is durable: leave out acquire, or wait=False"
            )
        return self._queues[queue_ids[0]]

    def publish_many(
        self,
        queue: Queue | str,
        contents: Iterable[Any],
        *,
        headers: Iterable[Any] | None = None,
        transaction: Transaction | None = None,
        wait: bool = True,
        not_before: float | datetime | None = None,
        expires: float | datetime | None = None,
    ) -> Sequence[int]:
        """Publishes one message for each of ``contents``, in order, with one force at the end. Returns their ids.

        ``contents`` is an iterable of buffers, or a pyarrow binary array, which the core reads without a copy.
        ``headers`` has the same number of items. Each message is atomic. A list, a tuple and an Arrow array are read
        first; of any other iterable each message is stored before the next item is asked for, and made durable and
        offered in the background meanwhile. In a transaction none is offered before the commit, so an iterable must not
        wait for messages of its own call. ``not_before`` and ``expires``, as in ``publish``, are of all messages.

        If the call fails in the middle, the exception's attribute ``published`` holds the ids of the messages that are
        stored, and these are durable unless the force failed, too.
        """
        queue_id = self._known(queue).id
        handle_of(self, transaction)  # raises for one that is not this store's
        times = times_of(not_before, expires)
        waiting = bool(wait) and transaction is None and not self._relaxed
        ids = array.array("Q")
        try:
            try:
                for piece in pieces(contents, headers):
                    flags = (_WAIT if piece.is_last else _MORE) if waiting else 0  # to wait in its call is quicker
                    self._publish_piece(queue_id, piece, transaction, times, flags, ids)
                    waiting = waiting and not piece.is_last
            finally:  # the stored messages must be durable even if a later one failed
                if waiting and ids:
                    self.force()
            return ids  # no step after it can fail
        except BaseException as problem:
            tell(problem, "published", ids)
            raise

    def _publish_piece(
        self,
        queue_id: int,
        piece: Buffers | ArrowPiece | Stream,
        transaction: Transaction | None,
        times: Times,
        flags: int,
        ids: array.array[int],
    ) -> None:
        both = times.not_before_us, times.expires_us
        if isinstance(piece, Buffers):
            self._publish_items(queue_id, piece.contents, piece.headers, transaction, *both, flags, ids)
        elif isinstance(piece, ArrowPiece):
            self._publish_packed(queue_id, piece.parts.data, piece.parts.sizes, transaction, *both, flags, ids)
        else:
            more = self._publish_each(queue_id, piece.contents, piece.headers, transaction, *both, ids)
            same_number(len(ids) + (more < 0), len(ids) + (more > 0), least="headers" if more > 0 else "contents")


def checked_id(message_id: object) -> int:
    """The message id as an int. Raises ``TypeError``, or ``UnknownMessage`` for a number that no id can be."""
    if type(message_id) is int and 0 < message_id < ID_END:
        return message_id  # the usual case
    if isinstance(message_id, bool) or not isinstance(message_id, int):
        raise TypeError(f"a message id is an int, not {arguments.shown(message_id)}")
    plain = operator.index(message_id)  # a plain int, even if the id is of a subclass
    if not 0 < plain < ID_END:
        raise errors.UnknownMessage(f"there is no message {arguments.shown(plain)}: ids are 1 to 2**63 - 1")
    return plain
