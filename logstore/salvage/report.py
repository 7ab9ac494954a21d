"""The result of a salvage: what was recovered, lost and doubtful, for people and for machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from logstore.codec.records import RecordType
from logstore.codec.replay_state import xid_text

if TYPE_CHECKING:
    from logstore.codec.scan import Gap
    from logstore.salvage.catalog import Names
    from logstore.salvage.log import Log
    from logstore.salvage.source import Source
    from logstore.salvage.state import State


@dataclass(slots=True)
class Salvaged:
    """The report of one salvage. Sizes are bytes, ids and LSNs plain ints."""

    store: str
    target: str | None = None  # None: nothing was written
    uuid: str | None = None  # of the new store
    old_uuid: str = ""
    base_lsn: int = 0
    end_lsn: int = 0
    watermark_lsn: int = 0
    segments: int = 0
    records: int = 0  # readable ones
    bytes_read: int = 0
    bytes_written: int = 0
    unreadable_bytes: int = 0  # bytes that the disk could not read
    messages: int = 0  # recovered on their queues
    places: int = 0
    content_bytes: int = 0
    found: int = 0  # recovered whole, but their queues are not known
    in_doubt: int = 0
    staged_dropped: int = 0  # never enqueued: recovery would have dropped them
    rolled_back: int = 0  # transactions without an outcome: recovery would have rolled them back
    torn: dict[str, int] | None = None
    queues: list[dict[str, Any]] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)  # messages
    lost_ranges: list[dict[str, Any]] = field(default_factory=list)
    lost_records: list[dict[str, Any]] = field(default_factory=list)  # records with a valid header and a damaged body
    doubtful: list[dict[str, Any]] = field(default_factory=list)  # messages that were kept, but may have changed
    transactions: list[dict[str, Any]] = field(default_factory=list)  # with unknown outcomes
    maybe_consumed: dict[str, int] | None = None
    queues_deleted: list[str] = field(default_factory=list)  # deleted according to the log, but still in the catalog
    queues_unnamed: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether nothing is lost and nothing is doubtful."""
        return not (
            self.lost
            or any(one["records"] != 0 for one in self.lost_ranges)
            or any(one["costs"] for one in self.lost_records)
            or self.doubtful
            or self.transactions
            or self.queues_unnamed
        )

    @classmethod
    def of(cls, source: Source, log: Log, state: State, names: Names, dropped: list[str]) -> Self:
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
            unreadable_bytes=log.unreadable_bytes,
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
        report._tell_damage(log, source.segment_size)
        report._tell_lost(state)
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
                    "costs": kind not in (RecordType.BATCH, RecordType.FILLER, RecordType.FOOTER),
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
        self.queues = _by_queue(state)

    def name_queues(self, names: Names, found_queue: int) -> None:
        """Fills in the names of queues, which are complete now."""
        for one in self.queues:
            one["name"] = names.name(one["id"])
        if found_queue:
            told = {"id": found_queue, "recovered": self.found, "lost": 0, "content_bytes": 0}
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


def _by_queue(state: State) -> list[dict[str, Any]]:
    """The number of recovered and of lost messages on each queue."""
    recovered: dict[int, list[int]] = {}
    for message in state.messages.values():
        for place in message.places:
            counts = recovered.setdefault(place.queue_id, [0, 0])
            counts[0] += 1
            counts[1] += message.content_bytes or 0
    lost = Counter(queue_id for one in state.lost for queue_id in one.queues or one.queues_probable)
    rows = []
    for queue_id in sorted(recovered.keys() | lost.keys()):
        messages, content_bytes = recovered.get(queue_id, (0, 0))
        rows.append({"id": queue_id, "recovered": messages, "lost": lost[queue_id], "content_bytes": content_bytes})
    return rows
