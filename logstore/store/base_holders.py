"""The tail of a log: which messages and transactions keep the base from advancing, and what would free them.

It also reports how much space compaction would gain. The report works on an open store and on an inspected one. It is
read in slices, so that it blocks no other thread; a change made meanwhile may or may not be seen. Sizes are bytes,
positions LSNs.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from logstore._core import ffi, lib
from logstore.core.moments import time_text
from logstore.core.native import check, copied, filled
from logstore.core.xid import Xid, xid_from_c

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from logstore.holds import HoldInfo

__all__ = ["Compaction", "HeldBy", "Holder", "QueueHold", "SegmentUse", "Tail", "compaction_of", "read_tail"]

HOLDERS = 10  # the default limit of reported holders
HOLDERS_MAX = 1000

_SEGMENT_STATES = {
    lib.LS_SEGMENT_DEAD: "dead",
    lib.LS_SEGMENT_NEEDED: "needed",
    lib.LS_SEGMENT_CURRENT: "current",
    lib.LS_SEGMENT_SPARE: "spare",
}
_PLACE_STATES = {
    lib.LS_HOLDS_PLACE: "waits",
    lib.LS_HOLDS_LOCKED: "locked",
    lib.LS_HOLDS_ENQUEUE: "enqueue pending",
    lib.LS_HOLDS_DEQUEUE: "dequeue pending",
    lib.LS_HOLDS_HIDDEN: "hidden",
    lib.LS_HOLDS_EXPIRED: "expired",
    lib.LS_HOLDS_NOTE: "note pending",
}
_OF_NO_TRANSACTION = frozenset({"waits", "hidden", "expired"})
_TX_STATES = {lib.LS_TX_ACTIVE: "active", lib.LS_TX_ENDED: "ended", lib.LS_TX_PREPARED: "prepared"}


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """One file of the log and what it is used for."""

    first_lsn: int
    """The LSN in the file's name, also for a spare."""
    epoch: int
    end_lsn: int
    live_bytes: int
    live_records: int
    relocated_bytes: int
    """The part of ``live_bytes`` that belongs to messages and transactions which were relocated before."""
    dead_bytes: int
    """Written bytes that nothing needs."""
    state: str
    """``dead`` (below the base), ``needed``, ``current`` or ``spare``."""

    @property
    def current(self) -> bool:
        """Whether it is the segment that is being written."""
        return self.state == "current"


@dataclass(frozen=True, slots=True)
class HeldBy:
    """One queue that a message is on, or that a transaction without an outcome would change."""

    queue_id: int
    queue: str | None
    """Its name; ``None`` for a transient queue of an earlier open, and while it is being deleted."""
    state: str
    """``waits``, ``hidden`` (until ``not_before_us``), ``expired`` (since ``expires_us``), ``locked`` (by the
    transaction), ``enqueue pending``, ``dequeue pending`` or ``note pending``.
    """
    position: int
    """The position in the queue's order; it grows towards the end."""
    transaction: int | None
    transaction_state: str | None
    xid: Xid | None
    consumer: str | None = None
    """The consumer that has not acknowledged it; None if there is none, or if no broker reports it."""
    unreadable: bool = False
    """Whether a broker has set it aside because it cannot be read."""
    not_before_us: int | None = None
    """When the place is offered first, in µs since 1970 UTC; ``None``: it never was hidden."""
    expires_us: int | None = None
    """When the place expires, in µs since 1970 UTC; ``None``: never."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A message or a transaction that needs something in the oldest segment."""

    kind: str
    """``message`` or ``transaction``."""
    id: int
    lsn: int
    """The LSN of the lowest record that it needs."""
    bytes: int
    """Bytes of all records that it needs, in every segment."""
    content_bytes: int
    time_us: int | None
    """When it was enqueued or begun, in µs since 1970 UTC; ``None`` if the log does not say."""
    age_s: float | None
    """Seconds from then to the reading."""
    at_least: bool
    """It was relocated, so its real age exceeds ``age_s``."""
    relocated: bool
    staged: bool
    """A message that has not been enqueued."""
    places: tuple[HeldBy, ...]
    """The first sixteen; ``place_count`` counts all."""
    place_count: int
    operations: int
    """The number of operations, for a transaction."""
    state: str | None
    """For a transaction: ``active``, ``ended`` or ``prepared``."""
    xid: Xid | None

    @property
    def remedy(self) -> str:
        """The action that would free it, as a sentence for an operator."""
        if self.kind == "transaction":
            return _outcome(self.state, self.xid, self.id)
        waiting = [place for place in self.places if place.state in _OF_NO_TRANSACTION]
        in_transaction = [place for place in self.places if place.state not in _OF_NO_TRANSACTION]
        actions = []
        with_consumer = [place for place in waiting if place.consumer is not None]
        actions += [f"{place.consumer} acknowledges its messages of queue {_name(place)}" for place in with_consumer]
        if any(place.unreadable for place in waiting):
            actions.append("it cannot be read: stop the broker, then logstore salvage keeps what can be read")
        names = [_named(place) for place in waiting if place.consumer is None and not place.unreadable]
        if names:
            more = self.place_count - len(self.places)
            rest = f" and {more} more" if more > 0 else ""
            actions.append(f"consume or purge queue{'s' if len(names) > 1 else ''} {', '.join(names)}{rest}")
        for place in {place.transaction: place for place in in_transaction}.values():
            actions.append(_outcome(place.transaction_state, place.xid, place.transaction))
        if not actions and self.staged:
            return "enqueue or destroy it; a restart drops it"
        return "; ".join(actions) if actions else "nothing: it is being removed"


def _name(place: HeldBy) -> str:
    return repr(place.queue) if place.queue is not None else f"{place.queue_id} (not in the catalog)"


def _named(place: HeldBy) -> str:
    """The queue, and why it does not offer the place."""
    if place.state == "hidden" and place.not_before_us is not None:
        return f"{_name(place)} (hidden until {time_text(place.not_before_us)})"
    if place.state == "expired" and place.expires_us is not None:
        return f"{_name(place)} (expired since {time_text(place.expires_us)})"
    return _name(place)


def _outcome(state: str | None, xid: Xid | None, number: int | None) -> str:
    if state == "prepared":
        return f"commit or roll back xid {xid}: logstore in-doubt"
    named = f"transaction {number}" if xid is None else f"xid {xid}"
    return f"the program that began {named} commits or rolls it back; a restart rolls it back"


@dataclass(frozen=True, slots=True)
class QueueHold:
    """The messages of one queue that hold the base. A message on several queues counts on each."""

    queue_id: int
    queue: str | None
    """Its name; ``None`` for a transient queue of an earlier open, and while it is being deleted."""
    messages: int
    bytes: int
    """Bytes of all records that these messages need, in every segment."""
    oldest_age_s: float | None
    """The largest known age of any of them, in seconds."""
    at_least: bool
    """The oldest one was relocated, so its real age exceeds ``oldest_age_s``."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction, made or estimated. Bytes are of all files of the log, spares included; segments are
    those in use.
    """

    bytes_before: int
    bytes_after: int
    planned_bytes: int
    """The size of the shortest log that relocation can make. If that is not below ``bytes_before``, nothing is done."""
    segments_before: int
    segments_after: int
    segments_moved: int
    copied_bytes: int
    live_bytes: int
    held_bytes: int
    """The part of ``planned_bytes`` in files that only holds keep, which compaction cannot free."""
    shrinks: bool
    """Whether the plan ends smaller than the log is. Only then is it carried out."""

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Tail:
    """The base of the log, the objects that keep it from advancing, and how much of each segment is needed."""

    base_lsn: int
    durable_lsn: int
    next_lsn: int
    segments: tuple[SegmentUse, ...]
    """The segments from the base on."""
    needed_lsn: int
    """The LSN of the lowest record that is needed; the end of the log if no record is."""
    segment_size: int
    live_bytes: int
    """Of live records in the log."""
    dead: tuple[SegmentUse, ...]
    """Segments below the base: about to be recycled, or kept by holds."""
    spares: int
    held_segments: int
    files_wanted: int
    """The number of files that the writer keeps the log to; 0 in an inspected store."""
    will_move: bool
    """The log has more files than that, so the writer will relocate the holders without being asked."""
    holders: tuple[Holder, ...]
    """The first messages and transactions that need a record in the oldest segment, the lowest LSN first."""
    holding_queues: tuple[QueueHold, ...]
    """The queues of these messages, those that need most bytes first; of more than 1000 messages and transactions only
    the first 1000, the lowest LSN first."""
    holding_messages: int
    """The number of all messages that need a record in the oldest segment."""
    holding_transactions: int
    holding_bytes: int
    holds: tuple[HoldInfo, ...]
    compaction: Compaction
    """The estimated result of a compaction."""

    @property
    def log_bytes(self) -> int:
        """Bytes of all files of the log."""
        return (len(self.segments) + len(self.dead) + self.spares) * self.segment_size

    def as_dict(self) -> dict[str, Any]:
        """For JSON: plain numbers, texts and lists."""
        found = {name: getattr(self, name) for name in _PLAIN}
        found["log_bytes"] = self.log_bytes
        found["segments"] = [asdict(segment) for segment in (*self.dead, *self.segments)]
        found["holding_queues"] = [asdict(queue) for queue in self.holding_queues]
        found["holders"] = [_plain_holder(holder) for holder in self.holders]
        found["holds"] = [
            {"name": hold.name, "lsn": hold.lsn, "kept_bytes": hold.kept_bytes, "state": hold.state, "pid": hold.pid}
            | {"limit_bytes": hold.limit_bytes, "age_s": hold.age_s, "left_s": hold.left_s}
            for hold in self.holds
        ]
        found["compaction"] = self.compaction.as_dict()
        return found

    def _with_deliveries(
        self, consumers: Mapping[tuple[str, int], str], unreadable: Mapping[str, Container[int]]
    ) -> Tail:
        """A copy with what a broker knows: the consumers of unacknowledged messages, by queue name and message id, and
        by queue name the ids of those that cannot be read.
        """

        def known(holder: Holder, place: HeldBy) -> HeldBy:
            name = place.queue or ""
            consumer = consumers.get((name, holder.id))
            return replace(place, consumer=consumer, unreadable=holder.id in unreadable.get(name, ()))

        return replace(
            self,
            holders=tuple(
                replace(holder, places=tuple(known(holder, place) for place in holder.places))
                for holder in self.holders
            ),
        )


_PLAIN = (
    *("base_lsn", "needed_lsn", "durable_lsn", "next_lsn", "segment_size", "live_bytes", "spares", "held_segments"),
    *("files_wanted", "will_move", "holding_messages", "holding_transactions", "holding_bytes"),
)


def _plain_holder(holder: Holder) -> dict[str, Any]:
    plain = asdict(holder)
    plain["xid"] = None if holder.xid is None else str(holder.xid)
    for place, made in zip(holder.places, plain["places"], strict=True):
        made["xid"] = None if place.xid is None else str(place.xid)
    return plain | {"remedy": holder.remedy}


# ---- Reading


def compaction_of(store: Any, *, dry_run: bool) -> Compaction:
    """Compacts the core's ``ls_store``; with ``dry_run`` only estimates the result."""
    report = filled("ls_compaction", lambda into: lib.ls_compact(store, dry_run, into))
    return Compaction(**vars(report) | {"shrinks": bool(report.shrinks)})


def read_tail(store: Any, names: Mapping[int, str], holds: Sequence[HoldInfo], limit: int = HOLDERS) -> Tail:
    """The tail of the core's ``ls_store``, with at most ``limit`` holders; ``names`` are the queues' names by id."""
    wanted = max(0, min(limit, HOLDERS_MAX))
    tail, count, done = ffi.new("ls_tail *"), ffi.new("size_t *"), ffi.new("size_t *")
    holders = ffi.new("ls_holder[]", HOLDERS_MAX)
    room = 256
    while True:
        into = ffi.new("ls_tail_segment[]", room)
        check(lib.ls_tail_read(store, tail, into, room, count, holders, HOLDERS_MAX, done))
        if count[0] <= room:
            break
        room = int(count[0]) + 64
    segments = [_segment(copied(one)) for one in into[0 : count[0]]]
    now_us = time.time() * 1e6
    return Tail(
        base_lsn=tail.base_lsn,
        durable_lsn=tail.durable_lsn,
        next_lsn=tail.next_lsn,
        segments=tuple(one for one in segments if one.state in ("needed", "current")),
        needed_lsn=tail.needed_lsn,
        segment_size=tail.segment_size,
        live_bytes=tail.live_bytes,
        dead=tuple(one for one in segments if one.state == "dead"),
        spares=tail.spares,
        held_segments=tail.held_segments,
        files_wanted=tail.files_wanted,
        will_move=bool(tail.will_move),
        holders=tuple(_holder(copied(one), names, now_us) for one in holders[0 : min(done[0], wanted)]),
        holding_queues=_queues_of(holders[0 : done[0]], names, now_us),
        holding_messages=tail.holding_messages,
        holding_transactions=tail.holding_transactions,
        holding_bytes=tail.holding_bytes,
        holds=tuple(holds),
        compaction=compaction_of(store, dry_run=True),
    )


def _segment(one: Any) -> SegmentUse:
    written = max(one.end_lsn - one.first_lsn, 0) if one.state != lib.LS_SEGMENT_SPARE else 0
    return SegmentUse(
        first_lsn=one.first_lsn,
        epoch=one.epoch,
        end_lsn=one.end_lsn,
        live_bytes=one.live_bytes,
        live_records=one.live_records,
        relocated_bytes=min(one.moved_bytes, one.live_bytes),
        dead_bytes=max(written - one.live_bytes, 0),
        state=_SEGMENT_STATES[one.state],
    )


def _queues_of(holders: Iterable[Any], names: Mapping[int, str], now_us: float) -> tuple[QueueHold, ...]:
    found: dict[int, QueueHold] = {}
    for one in holders:
        if one.kind != lib.LS_HOLDER_MESSAGE:
            continue
        items = one.items[0 : min(one.item_count, lib.LS_HOLDER_ITEMS_MAX)]
        age_s = max(now_us - one.time_us, 0.0) / 1e6 if one.time_us else None
        for queue_id in {item.queue_id for item in items}:
            known = found.get(queue_id) or QueueHold(queue_id, names.get(queue_id), 0, 0, None, at_least=False)
            is_older = age_s is not None and (known.oldest_age_s is None or age_s > known.oldest_age_s)
            found[queue_id] = replace(
                known,
                messages=known.messages + 1,
                bytes=known.bytes + one.bytes,
                oldest_age_s=age_s if is_older else known.oldest_age_s,
                at_least=bool(one.at_least) if is_older else known.at_least,
            )
    return tuple(sorted(found.values(), key=lambda queue: (-queue.bytes, queue.queue_id)))


def _holder(one: Any, names: Mapping[int, str], now_us: float) -> Holder:
    is_message = one.kind == lib.LS_HOLDER_MESSAGE
    items: Iterable[Any] = one.items[0 : min(one.item_count, lib.LS_HOLDER_ITEMS_MAX)]
    return Holder(
        kind="message" if is_message else "transaction",
        id=one.id,
        lsn=one.lsn,
        bytes=one.bytes,
        content_bytes=one.content_bytes,
        time_us=one.time_us or None,
        age_s=max(now_us - one.time_us, 0.0) / 1e6 if one.time_us else None,
        at_least=bool(one.at_least),
        relocated=bool(one.moved),
        staged=bool(one.staged),
        places=tuple(_place(item, names) for item in items),
        place_count=one.item_count,
        operations=one.operations,
        state=None if is_message else _TX_STATES.get(one.state),
        xid=xid_from_c(one.xid) if one.distributed else None,
    )


def _place(item: Any, names: Mapping[int, str]) -> HeldBy:
    return HeldBy(
        queue_id=item.queue_id,
        queue=names.get(item.queue_id),
        state=_PLACE_STATES[item.kind],
        position=item.position,
        transaction=item.tx_id or None,
        transaction_state=_TX_STATES.get(item.tx_state),
        xid=xid_from_c(item.xid) if item.distributed else None,
        not_before_us=item.times.not_before_us or None,
        expires_us=item.times.expires_us or None,
    )
