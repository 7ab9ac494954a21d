"""The tail of a log: what keeps the base where it is, whose that is, what would free it, and what moving would gain.

It reads an open store, or one that is only looked at, in slices, so that nobody waits; what changes meanwhile may
be told as it was or as it is. Sizes are bytes, positions LSNs.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from logstore._core import ffi, lib
from logstore.core.native import check, copied, filled
from logstore.core.xid import Xid, xid_from_c

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from logstore.holds import HoldInfo

__all__ = ["Compaction", "HeldBy", "Holder", "SegmentUse", "Tail", "compaction_of", "read_tail"]

HOLDERS = 10  # that are told if nobody says how many
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
}
_TX_STATES = {lib.LS_TX_ACTIVE: "active", lib.LS_TX_ENDED: "ended", lib.LS_TX_PREPARED: "prepared"}


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """One file of the log and what it is used for."""

    first_lsn: int
    """Of a spare: the name that it has."""
    epoch: int
    end_lsn: int
    live_bytes: int
    live_records: int
    relocated_bytes: int
    """Of ``live_bytes``: of messages and transactions that were moved before."""
    dead_bytes: int
    """Written, and needed by nothing."""
    state: str
    """``dead`` (behind the base), ``needed``, ``current`` or ``spare``."""

    @property
    def current(self) -> bool:
        """Whether it is the one that is written."""
        return self.state == "current"


@dataclass(frozen=True, slots=True)
class HeldBy:
    """One queue on which a message stands, or that a transaction without an outcome would change."""

    queue_id: int
    queue: str | None
    """Its name; ``None``: it is being deleted."""
    state: str
    """``waits``, ``locked`` (dequeued by the transaction), ``enqueue pending`` or ``dequeue pending``."""
    position: int
    """In the order of the queue; grows along it."""
    transaction: int | None
    transaction_state: str | None
    xid: Xid | None
    consumer: str | None = None
    """Who has it unacknowledged, if a broker runs and tells."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A message or a transaction that needs something in the oldest segment."""

    kind: str
    """``message`` or ``transaction``."""
    id: int
    lsn: int
    """Of the lowest record that it needs."""
    bytes: int
    """Of everything that it needs, wherever that lies."""
    content_bytes: int
    age_s: float | None
    """Since it was enqueued or begun; ``None``: the log does not tell."""
    at_least: bool
    """It was moved, and is older than ``age_s``."""
    relocated: bool
    staged: bool
    """A message that was never enqueued."""
    places: tuple[HeldBy, ...]
    """The first sixteen; ``place_count`` counts all."""
    place_count: int
    operations: int
    """Of a transaction."""
    state: str | None
    """Of a transaction: ``active``, ``ended`` or ``prepared``."""
    xid: Xid | None

    @property
    def remedy(self) -> str:
        """What would free it, in words."""
        if self.kind == "transaction":
            return _outcome(self.state, self.xid, self.id)
        waiting = [place for place in self.places if place.state == "waits"]
        bound = [place for place in self.places if place.state != "waits"]
        told = []
        with_consumer = [place for place in waiting if place.consumer is not None]
        told += [f"{place.consumer} acknowledges what it has of queue {_name(place)}" for place in with_consumer]
        names = [_name(place) for place in waiting if place.consumer is None]
        if names:
            more = self.place_count - len(self.places)
            rest = f" and {more} more" if more > 0 else ""
            told.append(f"consume or purge queue{'s' if len(names) > 1 else ''} {', '.join(names)}{rest}")
        for transaction in {place.transaction: place for place in bound}.values():
            told.append(_outcome(transaction.transaction_state, transaction.xid, transaction.transaction))
        if not told and self.staged:
            return "enqueue or destroy it; a restart drops it"
        return "; ".join(told) if told else "it is going: nothing is to be done"


def _name(place: HeldBy) -> str:
    return repr(place.queue) if place.queue is not None else f"{place.queue_id} (being deleted)"


def _outcome(state: str | None, xid: Xid | None, number: int | None) -> str:
    if state == "prepared":
        return f"commit or roll back xid {xid}: logstore in-doubt"
    named = f"transaction {number}" if xid is None else f"xid {xid}"
    return f"{named} is committed or rolled back by the program that began it; a restart rolls it back"


@dataclass(frozen=True, slots=True)
class Compaction:
    """What compacting came to, or would come to. Bytes of all files of the log, spares included."""

    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int
    segments_moved: int
    copied_bytes: int
    live_bytes: int
    held_bytes: int
    """Of these: files that holds keep, which compacting cannot free."""

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Tail:
    """Where the base is, what holds it there, and how much of each segment is needed."""

    base_lsn: int
    durable_lsn: int
    next_lsn: int
    segments: tuple[SegmentUse, ...]
    """From the base on."""
    needed_lsn: int
    """The lowest record that is needed; the end of the log if none is."""
    segment_size: int
    live_bytes: int
    dead: tuple[SegmentUse, ...]
    """Behind the base: about to be recycled, or kept by holds."""
    spares: int
    held_segments: int
    files_wanted: int
    """The log is kept to so many files; 0 if it is only looked at."""
    will_move: bool
    """The log is longer than that, and what holds the base will be moved by itself."""
    holders: tuple[Holder, ...]
    """What needs something in the oldest segment, the lowest first; the first of them."""
    holding_messages: int
    """All of them."""
    holding_transactions: int
    holding_bytes: int
    holds: tuple[HoldInfo, ...]
    compaction: Compaction
    """What compacting would come to."""

    @property
    def log_bytes(self) -> int:
        """Of all files of the log."""
        return (len(self.segments) + len(self.dead) + self.spares) * self.segment_size

    def as_dict(self) -> dict[str, Any]:
        """For JSON: plain numbers, texts and lists."""
        found = {name: getattr(self, name) for name in _PLAIN}
        found["log_bytes"] = self.log_bytes
        found["segments"] = [asdict(segment) for segment in (*self.dead, *self.segments)]
        found["holders"] = [_plain_holder(holder) for holder in self.holders]
        found["holds"] = [
            {"name": hold.name, "lsn": hold.lsn, "kept_bytes": hold.kept_bytes, "state": hold.state, "pid": hold.pid}
            | {"limit_bytes": hold.limit_bytes, "age_s": hold.age_s, "left_s": hold.left_s}
            for hold in self.holds
        ]
        found["compaction"] = self.compaction.as_dict()
        return found

    def with_consumers(self, consumers: Mapping[tuple[str, int], str]) -> Tail:
        """The same with who has what unacknowledged, by queue and message id."""

        def told(holder: Holder) -> Holder:
            places = (replace(place, consumer=consumers.get((place.queue or "", holder.id))) for place in holder.places)
            return replace(holder, places=tuple(places))

        return replace(self, holders=tuple(map(told, self.holders)))


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
    """Compact the core's ``ls_store``, or say what would come of it."""
    report = filled("ls_compaction", lambda into: lib.ls_compact(store, dry_run, into))
    return Compaction(**vars(report))


def read_tail(store: Any, names: Mapping[int, str], holds: Sequence[HoldInfo], limit: int = HOLDERS) -> Tail:
    """Of the core's ``ls_store``; ``names`` are those of the queues, ``limit`` says how many holders are told."""
    most = max(0, min(limit, HOLDERS_MAX))
    tail, count, done = ffi.new("ls_tail *"), ffi.new("size_t *"), ffi.new("size_t *")
    holders = ffi.new("ls_holder[]", most + 1)
    room = 256
    while True:
        into = ffi.new("ls_tail_segment[]", room)
        check(lib.ls_tail_read(store, tail, into, room, count, holders, most, done))
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
        holders=tuple(_holder(copied(one), names, now_us) for one in holders[0 : done[0]]),
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


def _holder(one: Any, names: Mapping[int, str], now_us: float) -> Holder:
    is_message = one.kind == lib.LS_HOLDER_MESSAGE
    told: Iterable[Any] = one.items[0 : min(one.item_count, lib.LS_HOLDER_ITEMS_MAX)]
    return Holder(
        kind="message" if is_message else "transaction",
        id=one.id,
        lsn=one.lsn,
        bytes=one.bytes,
        content_bytes=one.content_bytes,
        age_s=max(now_us - one.time_us, 0.0) / 1e6 if one.time_us else None,
        at_least=bool(one.at_least),
        relocated=bool(one.moved),
        staged=bool(one.staged),
        places=tuple(_place(item, names) for item in told),
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
    )
