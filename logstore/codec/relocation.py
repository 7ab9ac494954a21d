"""Relocated messages: copies and parts put together, and held against what is known of the message.

Written from sections 6 and 7 of docs/format.md. Copies and parts are kept until the record comes that completes
them; if none comes, they mean nothing, and nothing that is wrong with them is ever said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logstore.codec.records import (
    InlineCopy,
    MessageChunk,
    MessageRelocated,
    MessageStart,
    OrderedCopy,
    PendingKind,
    Record,
    RecordFlag,
    RecordType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from logstore.codec.records import ChunkPlace, PendingWork
    from logstore.codec.replay_state import Message, Operation


COPY = int(RecordFlag.COPY)


def is_relocated(record: Record) -> bool:
    """A copy, or a message's relocated state or a part of it."""
    return record.type is RecordType.MESSAGE_RELOCATED or int(record.flags) & COPY != 0


class Piece(NamedTuple):
    """What a chunk holds of a message's content, in bytes."""

    offset: int
    content_bytes: int


class Content(NamedTuple):
    """Where a message's content stands."""

    start_lsn: int
    start_bytes: int
    chunks: dict[int, Piece]  # by LSN


class MessageState(NamedTuple):
    """A message as a relocation gives it."""

    content_bytes: int
    content: Content
    queues: tuple[int, ...]  # on which it has places
    pending: tuple[PendingWork, ...]
    staged: bool
    published: bool


class Copies:
    """What was copied of one chain and is not complete yet."""

    __slots__ = ("broken", "chunks", "newest", "parts", "published", "start_bytes", "start_lsn")

    def __init__(self) -> None:
        self.newest = 0  # LSN of the newest copy or part
        self.start_lsn = 0  # of the newest copied start; 0: none
        self.start_bytes = 0
        self.published = False
        self.chunks: dict[int, Piece] = {}
        self.parts: list[Record] = []  # of a state: the first ones, without a gap
        self.broken: dict[int, str] = {}  # what is wrong with the back-links of some

    def add(self, record: Record, broken: str | None) -> None:
        """Take a copied start or chunk, or a part."""
        self.newest = record.lsn
        if broken is not None:
            self.broken[record.lsn] = broken
        body = record.body
        if isinstance(body, MessageStart):
            self.start_lsn, self.start_bytes = record.lsn, len(body.content)
            self.published = RecordFlag.PUBLISHED in record.flags
        elif isinstance(body, MessageChunk):
            self.chunks[record.lsn] = Piece(body.offset, len(body.content))
        else:
            self.parts = self.parts_before(record)
            if len(self.parts) == _state_of(record).part:
                self.parts.append(record)

    def parts_before(self, record: Record) -> list[Record]:
        """Of the state to which this part belongs; fewer than there should be if they are not in the log."""
        part = _state_of(record).part
        return self.parts[:part] if part == len(self.parts) else []


def inline_state(record: Record) -> MessageState:
    """The message that an inline copy gives."""
    body = record.body
    assert isinstance(body, InlineCopy | OrderedCopy)
    size = len(body.content)
    queues = tuple(queue_id for queue_id in body.queues if queue_id != 0)
    published = RecordFlag.PUBLISHED in record.flags
    return MessageState(size, Content(record.lsn, size, {}), queues, (), staged=False, published=published)


def completed_state(
    record: Record, copies: Copies, known: Content | None, base_lsn: int
) -> tuple[MessageState | None, list[str]]:
    """The message that this last part gives, and what is wrong with it; None if parts before it are missing.

    ``known`` is where the content was before, if the log tells.
    """
    before = copies.parts_before(record)
    last = _state_of(record)
    if len(before) != last.part:
        return None, []
    parts = [*map(_state_of, before), last]
    wrong = []
    if any((part.content_bytes, part.start_lsn) != (last.content_bytes, last.start_lsn) for part in parts):
        wrong.append("the parts of its state are of different contents")
    chunks = [chunk for part in parts for chunk in part.chunks]
    content = _content(last, chunks, copies, known)
    wrong += _wrong_content(last, content, chunks, copies, known, base_lsn)
    named = (content.start_lsn, *content.chunks, *(part.lsn for part in before))
    wrong += [copies.broken[lsn] for lsn in named if lsn in copies.broken]
    queues = tuple(place.queue_id for part in parts for place in part.places)
    pending = tuple(sorted((work for part in parts for work in part.pending), key=_position))
    staged = RecordFlag.STAGED in record.flags
    if staged and queues:
        wrong.append("its state has places, and says that it was never enqueued")
    published = copies.published if content.start_lsn == copies.start_lsn else False
    return MessageState(last.content_bytes, content, queues, pending, staged, published), wrong


def _state_of(record: Record) -> MessageRelocated:
    assert isinstance(record.body, MessageRelocated)
    return record.body


def _position(work: PendingWork) -> tuple[int, int]:
    return work.lsn, work.order_index


def _content(state: MessageRelocated, chunks: list[ChunkPlace], copies: Copies, known: Content | None) -> Content:
    """Where it stands now. Of a start below the base only what the chunks leave can be told."""
    start_bytes = min((chunk.offset for chunk in chunks), default=state.content_bytes)
    if state.start_lsn == copies.start_lsn:
        start_bytes = copies.start_bytes
    elif known is not None and state.start_lsn == known.start_lsn:
        start_bytes = known.start_bytes
    pieces = {chunk.lsn: Piece(chunk.offset, chunk.content_bytes) for chunk in chunks}
    return Content(state.start_lsn, start_bytes, pieces)


def _wrong_content(
    state: MessageRelocated,
    content: Content,
    chunks: list[ChunkPlace],
    copies: Copies,
    known: Content | None,
    base_lsn: int,
) -> Iterator[str]:
    """Its records are there, and hold every byte once."""

    def is_out_of_sight(lsn: int) -> bool:
        return known is None and lsn < base_lsn

    starts = {copies.start_lsn, 0 if known is None else known.start_lsn}
    if content.start_lsn not in starts and not is_out_of_sight(content.start_lsn):
        yield f"its start {content.start_lsn} is neither the newest copy nor where it was"
    there = ({} if known is None else known.chunks) | copies.chunks
    for lsn, piece in content.chunks.items():
        if there.get(lsn) != piece and not (lsn not in there and is_out_of_sight(lsn)):
            yield f"its chunk of {piece.content_bytes} bytes at {piece.offset} is not that of LSN {lsn}"
    end = content.start_bytes
    for offset, size in sorted((chunk.offset, chunk.content_bytes) for chunk in chunks):
        if offset != end:
            break
        end += size
    else:
        if end == state.content_bytes:
            return
    yield f"its content of {state.content_bytes} bytes is not whole, or not once, in the records of its state"


# ---- What was known already


def work_key(work: PendingWork | Operation) -> tuple[int, int, int, int, int]:
    """Equal for an operation and its relocated form."""
    order_index = work.order_index if work.kind is PendingKind.ENQUEUE else 0
    return work.tx_id, work.lsn, work.queue_id, work.kind, order_index


def differences(
    message: Message, pending: Iterable[Operation], state: MessageState, is_deleted: Callable[[int], bool]
) -> Iterator[str]:
    """How a relocated state differs from what replay has; what is on deleted queues may be in either or not."""
    places = {queue_id for queue_id in message.places if not is_deleted(queue_id)}
    said = {queue_id for queue_id in state.queues if not is_deleted(queue_id)}
    if places != said:
        yield f"with places on queues {sorted(said)}, and it has them on {sorted(places)}"
    work = sorted(work_key(one) for one in pending if not is_deleted(one.queue_id))
    work_said = sorted(work_key(one) for one in state.pending if not is_deleted(one.queue_id))
    if work != work_said:
        yield f"with pending work {_listed(work_said)}, and it has {_listed(work)}"
    if message.content_bytes != state.content_bytes:
        yield f"with {state.content_bytes} bytes of content, and it has {message.content_bytes}"
    if message.staged != state.staged:
        never, once = "as one that was never enqueued", "as one that was enqueued"
        yield f"{never}, and it was" if state.staged else f"{once}, and it never was"


def _listed(work: list[tuple[int, int, int, int, int]]) -> str:
    told = [
        f"{PendingKind(kind).name.lower()} on queue {queue_id} by transaction {tx_id} at {lsn}"
        for tx_id, lsn, queue_id, kind, _ in work
    ]
    return f"[{', '.join(told)}]"
