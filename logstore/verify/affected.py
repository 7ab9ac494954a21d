"""The messages and queues that damage affects, for ``logstore verify``.

In a closed store these are the messages that a salvage would lose. While a writer runs, they are the records of the
damaged segments whose headers can still be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.codec.files import SEGMENT_HEADER_BYTES, SegmentHeader
from logstore.codec.records import InvalidRecord, RecordType
from logstore.core.regular_files import read_start
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from logstore.inspect import ReaderInfo
    from logstore.verify.findings import Findings

KEPT = 1000


def affected(
    store_dir: Path, info: ReaderInfo | None, findings: Findings, *, connect: str | None, schema: str | None
) -> dict[str, Any] | None:
    """The value of ``affected`` in ``verify --json``; None if it cannot be determined."""
    if info is not None and info.live:
        names = sorted({one.segment for one in findings.problems if one.kind == "damage" and one.segment is not None})
        return _beside(store_dir, info, names)
    from logstore.salvage import salvage

    try:
        report = salvage(store_dir, None, connect=connect, catalog=schema)
    except StoreError as error:
        findings.notes.append(f"the affected messages cannot be determined: {error.message}")
        return None
    messages = [
        {
            "id": one["id"],
            "queues": one["queue_names"],
            "queues_probable": [] if one["queue_names"] else one["queue_names_probable"],
            "lsn": one["lsn"],
            "certain": one["certain"],
            "why": one["why"],
        }
        for one in report.lost
    ]
    named = {name for one in messages for name in one["queues"]}
    queues = [one for one in report.queues if one["name"] in named or one["lost"]["least"]]
    unknown = sum(one["records_unknown"] or 0 for one in report.lost_ranges)
    return {
        "messages": messages[:KEPT],
        "message_count": len(messages),
        "beside_writer": False,
        "lost_messages": report.lost_messages,
        "queues": sorted(({"name": one["name"], "lost": one["lost"]} for one in queues), key=lambda one: one["name"]),
        "transactions": [one["xid"] or one["id"] for one in report.transactions],
        "doubtful_count": len(report.doubtful),
        "records_unknown": unknown,
        "bytes_unreadable": report.unreadable_bytes,
    }


def _beside(store_dir: Path, info: ReaderInfo, names: Iterable[str]) -> dict[str, Any]:
    """The affected messages while a writer runs. Queues are not listed: the writer still has them in memory."""
    from logstore.codec.scan import Damaged, Gap, walk

    messages: list[dict[str, Any]] = []
    transactions: list[int] = []
    unreadable = 0
    for name in names:
        try:
            raw, _ = read_start(store_dir / name, info.segment_size)
            header = SegmentHeader.decode(raw)
        except (OSError, InvalidRecord):
            continue
        end = min(len(raw), max(info.end_lsn - header.first_lsn, SEGMENT_HEADER_BYTES))
        for found in walk(raw, SEGMENT_HEADER_BYTES, end, header.first_lsn, header.seed):
            if isinstance(found, Gap):
                unreadable += found.bytes
            elif isinstance(found, Damaged) and RecordType(found.type).name.startswith("MESSAGE_"):
                why = f"its {RecordType(found.type).name} is damaged"
                message = {"id": found.id, "queues": [], "queues_probable": []}
                messages.append(message | {"lsn": found.lsn, "certain": False, "why": why})
            elif isinstance(found, Damaged) and found.id:
                transactions.append(found.id)
    return {
        "messages": messages[:KEPT],
        "message_count": len(messages),
        "beside_writer": True,
        "lost_messages": {"least": 0, "most": None},  # the writer has its messages in memory
        "queues": [],
        "transactions": transactions,
        "doubtful_count": 0,
        "records_unknown": 0,
        "bytes_unreadable": unreadable,
    }
