"""The result of a salvage: what was recovered, lost and doubtful, for people and for machines.

Invariant: no figure contradicts another. A number that is not known is a range, ``{"least": n, "most": m}``, where
``m`` is None if nothing bounds it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from logstore.codec.records import RecordType
from logstore.codec.state import xid_text
from logstore.salvage.extent import Extent, losses

if TYPE_CHECKING:
    from logstore.codec.scan import Gap
    from logstore.salvage.catalog import Names
    from logstore.salvage.extent import Losses
    from logstore.salvage.log import Log
    from logstore.salvage.source import Source
    from logstore.salvage.state import State

COST_NOTHING = frozenset(
    {RecordType.BATCH, RecordType.FILLER, RecordType.FOOTER, RecordType.MEMBERS, RecordType.CATALOG_CHANGE}
)  # a salvage uses no record of these types


@dataclass(slots=True)
class Salvaged:
    """The report of one salvage. Sizes are bytes, ids and LSNs plain ints.

    A number of lost messages is a range: ``{"least": n, "most": m}``. ``n`` counts what readable records prove, ``m``
    what they do not exclude; ``m`` is None if nothing bounds it. A torn tail is no loss.
    """

    store: str
    """The damaged store's directory."""
    target: str | None = None
    """The new store's directory; None if nothing was written."""
    uuid: str | None = None
    """The UUID of the new store; None if nothing was written."""
    old_uuid: str = ""
    """The UUID of the damaged store."""
    base_lsn: int = 0
    """The LSN from which the log was read."""
    end_lsn: int = 0
    """The LSN above everything that is known to have been written."""
    watermark_lsn: int = 0
    """Everything below this LSN was durable once, so what is missing there is a loss."""
    segments: int = 0
    """The number of segments that were read."""
    records: int = 0
    """The number of readable records."""
    bytes_read: int = 0
    """Bytes of the log that were read, the unreadable ones included."""
    bytes_written: int = 0
    """Bytes written to the new store's log."""
    unreadable_bytes: int = 0
    """Bytes in which no record can be recognised: the sum of ``bytes`` of ``lost_ranges``."""
    disk_error_bytes: int = 0
    """Bytes that the disk could not read, in whole blocks of 4096. Records next to them may have been recovered."""
    messages: int = 0
    """The number of messages recovered on their queues, or with pending work in doubt."""
    places: int = 0
    """The number of recovered places; a message has one on each of its queues."""
    content_bytes: int = 0
    """Bytes of content of the recovered messages."""
    found: int = 0
    """The number of messages recovered whole whose queues are not known; they are on ``FOUND_QUEUE``."""
    in_doubt: int = 0
    """The number of transactions in doubt that were recovered."""
    staged_dropped: int = 0
    """The number of messages that were never enqueued: recovery would have dropped them."""
    rolled_back: int = 0
    """The number of transactions without an outcome: recovery would have rolled them back."""
    lost_messages: dict[str, int | None] = field(default_factory=lambda: Extent(0, 0).as_json())
    """Range: the number of live messages that are not in the new store. Those on ``FOUND_QUEUE`` are not counted."""
    torn: dict[str, int] | None = None
    """A write that a crash cut short, which was never acknowledged: ``lsn``, ``bytes``, ``records``."""
    replicated: dict[str, int] | None = None
    """Of a copy of a replicated store, what its newest batch says: ``term``, ``index``, ``known_durable_lsn`` (a
    majority had everything below it) and ``undurable_bytes``, which lay above it and are copied as well. The new store
    is a single one. None for any other store."""
    queues: list[dict[str, Any]] = field(default_factory=list)
    """By queue: ``id``, ``name``, the number of messages ``recovered`` on it, their ``content_bytes``, and ``lost``, a
    range: the number of messages that were on it and are not on it in the new store."""
    lost: list[dict[str, Any]] = field(default_factory=list)
    """The lost messages that readable records name, and those on ``FOUND_QUEUE`` (``found``). ``certain`` is True if
    readable records prove that the message was live; they are the ``least`` of ``lost_messages``."""
    lost_ranges: list[dict[str, Any]] = field(default_factory=list)
    """The LSN ranges in which no record can be recognised."""
    lost_records: list[dict[str, Any]] = field(default_factory=list)
    """The records with a valid header and a damaged body."""
    doubtful: list[dict[str, Any]] = field(default_factory=list)
    """The messages that were kept, and may have changed or ended: ``id``, ``lsn``, ``why``."""
    transactions: list[dict[str, Any]] = field(default_factory=list)
    """The transactions whose outcome is not known: ``id``, ``xid``, ``in_doubt``, ``why``."""
    maybe_consumed: dict[str, int] | None = None
    """The number of kept ``messages`` whose last record lies below ``last_heard_of_below_lsn``, where the last
    unreadable range ends, which may have held their dequeue."""
    queues_deleted: list[str] = field(default_factory=list)
    """Names of queues that were deleted according to the log, and are still in the catalog."""
    queues_unnamed: list[int] = field(default_factory=list)
    """Ids of queues that no readable catalog names; they are called ``queue-ID``."""
    notes: list[str] = field(default_factory=list)
    """Remarks about files."""

    @property
    def whole(self) -> bool:
        """Whether nothing is lost and nothing is doubtful."""
        return not (
            self.lost
            or self.lost_messages["most"] != 0
            or any(one["records"] != 0 for one in self.lost_ranges)
            or any(one["costs"] for one in self.lost_records)
            or self.doubtful
            or self.transactions
            or self.queues_unnamed
        )

    @classmethod
    def _of(cls, source: Source, log: Log, state: State, names: Names, dropped: list[str]) -> Self:
        """The report before anything is written."""
        report = cls(
            str(source.path),
            old_uuid=str(source.uuid),
            base_lsn=log.base_lsn,
            end_lsn=log.end_lsn,
            watermark_lsn=log.watermark_lsn,
            segments=log.segments,
            records=log.records,
            bytes_read=log.bytes_read,
            unreadable_bytes=sum(gap.bytes for gap in log.gaps),
            disk_error_bytes=log.disk_error_bytes,
            messages=len(state.messages),
            places=sum(len(message.places) for message in state.messages.values()),
            content_bytes=sum(message.content_bytes or 0 for message in state.messages.values()),
            found=len(state.found),
            in_doubt=len(state.transactions),
            staged_dropped=state.staged_dropped,
            rolled_back=state.rolled_back,
            queues_deleted=dropped,
            notes=[*source.notes, *(f"the header of segment {name} is damaged" for name in log.headers)],
        )
        if names.problem is not None:
            report.notes.append(names.problem)
        if log.torn is not None:
            report.torn = {"lsn": log.torn.lsn, "bytes": log.torn.bytes, "records": log.torn.records}
        report.replicated = None if log.replicated is None else asdict(log.replicated)
        report._tell_damage(log, source.segment_size)
        told = losses(log, state)
        report.lost_messages = told.messages.as_json()
        report._tell_lost(state)
        report.queues = _by_queue(state, told, names)
        return report

    def _tell_damage(self, log: Log, segment_size: int) -> None:
        named = log.replay.missing
        for gap in log.gaps:
            self.lost_ranges.append(_range(gap, named, segment_size))
        for one in log.damaged:
            kind = RecordType(one.type)
            self.lost_records.append(
                {
                    "lsn": one.lsn,
                    "bytes": one.length,
                    "type": kind.name,
                    "id": one.id or None,
                    "segment": _segment(one.lsn, segment_size),
                    "offset": one.lsn % segment_size,
                    "costs": kind not in COST_NOTHING,
                }
            )

    def _tell_lost(self, state: State) -> None:
        for lost in state.lost:
            self.lost.append(
                {
                    "id": lost.id,
                    "queues": lost.queues,
                    "queues_probable": lost.queues_probable,
                    "lsn": lost.lsn,
                    "readable_bytes": lost.readable_bytes,
                    "certain": lost.certain,
                    "found": lost.kept,
                    "why": "; ".join(lost.why),
                }
            )
        self.doubtful = [{"id": one.id, "lsn": one.lsn, "why": one.why} for one in state.doubtful]
        self.transactions = [
            {
                "id": one.id,
                "xid": None if one.xid is None else xid_text(one.xid),
                "in_doubt": one.in_doubt,
                "why": one.why,
            }
            for one in state.lost_transactions
        ]
        if state.maybe_consumed:
            self.maybe_consumed = {"messages": state.maybe_consumed, "last_heard_of_below_lsn": state.doubt_lsn}

    def _name_queues(self, names: Names, found_queue: int) -> None:
        """Fills in the names of queues, which are complete now."""
        for one in self.queues:
            one["name"] = names.name(one["id"])
        if found_queue:
            told = {"id": found_queue, "recovered": self.found, "lost": Extent(0, 0).as_json(), "content_bytes": 0}
            self.queues.append(told | {"name": names.name(found_queue)})
        for one in self.lost:
            one["queue_names"] = [names.name(queue_id) for queue_id in one["queues"]]
            one["queue_names_probable"] = [names.name(queue_id) for queue_id in one["queues_probable"]]
        self.queues_unnamed = list(names.made)


def _segment(lsn: int, segment_size: int) -> str:
    return f"{lsn - lsn % segment_size:016x}.seg"


def _range(gap: Gap, missing: dict[int, int], segment_size: int) -> dict[str, Any]:
    named = [{"lsn": lsn, "id": chain} for lsn, chain in sorted(missing.items()) if gap.lsn <= lsn < gap.end_lsn]
    unknown = None if gap.records is None else max(gap.records - len(named), 0)
    return {
        "segment": _segment(gap.lsn, segment_size),
        "offset": gap.lsn % segment_size,
        "lsn": gap.lsn,
        "end_lsn": gap.end_lsn,
        "bytes": gap.bytes,
        "records": gap.records,
        "records_named": named,
        "records_unknown": unknown,
        "certain": gap.certain,
        "why": gap.why,
    }


def _by_queue(state: State, told: Losses, names: Names) -> list[dict[str, Any]]:
    """The number of recovered and of lost messages on each queue that has any, or may have."""
    recovered: dict[int, list[int]] = {}
    for message in state.messages.values():
        for place in message.places:
            counts = recovered.setdefault(place.queue_id, [0, 0])
            counts[0] += 1
            counts[1] += message.content_bytes or 0
    rows = []
    for queue_id in sorted(recovered.keys() | names.queues.keys() | told.queues):
        messages, content_bytes = recovered.get(queue_id, (0, 0))
        lost = told.on(queue_id)
        if messages or lost.most != 0:
            row = {"id": queue_id, "recovered": messages, "lost": lost.as_json(), "content_bytes": content_bytes}
            rows.append(row)
    return rows
