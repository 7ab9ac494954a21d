"""What a store says of itself: the report of its recovery, and where its tail is."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from logstore._core import ffi, lib
from logstore.core.native import filled, listed
from logstore.core.xid import Xid, xid_from_c


@dataclass(frozen=True, slots=True)
class Staged:
    """A message that was staged and never enqueued: an orphan, dropped."""

    id: int
    content_bytes: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A transaction without an outcome, rolled back."""

    id: int
    xid: Xid | None
    """``None``: it was local."""
    operations: int
    """What it had done, undone."""


@dataclass(frozen=True, slots=True)
class DroppedQueue:
    """A queue that the catalog no longer has, whose deletion the log did not know; it does now."""

    id: int
    places: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening found and did. Sizes are bytes, times microseconds, positions LSNs."""

    created: bool
    """A new store was made; everything below is then empty."""
    clean: bool
    """The log ended in an orderly close."""
    direct: bool
    """The tail could be read past the page cache."""
    epoch: int
    """Of this open."""
    base_lsn: int
    end_lsn: int
    """Where the recovered log ended."""
    watermark_lsn: int
    """Damage below it would have been corruption."""
    segments: int
    batches: int
    records: int
    bytes_read: int
    bytes_rewritten: int
    torn_bytes: int
    """What a crash had begun to write at ``end_lsn``: kept aside, not part of the log."""
    messages: int
    places: int
    transactions_committed: int
    transactions_rolled_back: int
    """By a record of their own."""
    transactions_abandoned: int
    """Rolled back by this recovery, for want of an outcome."""
    transactions_in_doubt: int
    operations_undone: int
    """Of the abandoned transactions."""
    staged_dropped: int
    """Messages that were never enqueued."""
    staged_bytes: int
    """Their content."""
    orphans: int
    """Records of chains that began below the base."""
    orphan_messages: int
    """Of these: of messages, which were dead when the base passed them."""
    orphan_transactions: int
    """And of transactions, which had their outcome."""
    places_dropped: int
    """On queues that the catalog no longer has."""
    queues_dropped: int
    checkpoint_used: bool
    """Only the log behind a checkpoint was replayed; the counts of records above are of that part."""
    checkpoint_ignored: str
    """Why one that is there was not used; empty if it was, or if there is none."""
    checkpoint_lsn: int
    """Of the one that was used or ignored; 0 if it does not say."""
    checkpoint_bytes: int
    """Read of it."""
    checkpoint_us: int
    scan_us: int
    """With the checkpoint's reading."""
    transactions_us: int
    messages_us: int
    rewrite_us: int
    total_us: int
    staged: tuple[Staged, ...]
    """By name, as the two below: the first thousand; the counts are of all."""
    abandoned: tuple[Abandoned, ...]
    dropped_queues: tuple[DroppedQueue, ...]

    @classmethod
    def of(cls, store: Any) -> Recovery:
        """Of the core's ``ls_store``."""
        report = filled("ls_recovery", lambda into: lib.ls_recovery_report(store, into))
        names = _names_from_c(store) | {"checkpoint_ignored": _ignored(report.checkpoint_state)}
        counts: dict[str, Any] = {
            field.name: int(getattr(report, field.name)) for field in fields(cls) if field.name not in names
        }
        return cls(**counts | {name: bool(counts[name]) for name in _YES_OR_NO} | names)


_YES_OR_NO = ("created", "clean", "direct", "checkpoint_used")


def _ignored(state: int) -> str:
    if state in (lib.LS_CHECKPOINT_NONE, lib.LS_CHECKPOINT_USED):
        return ""
    text: bytes = ffi.string(lib.ls_checkpoint_state_text(state))
    return text.decode()


def _names_from_c(store: Any) -> dict[str, Any]:
    by_kind: dict[int, list[Any]] = {}
    for item in listed("ls_recovered", lambda *into: lib.ls_recovery_items(store, *into)):
        by_kind.setdefault(item.kind, []).append(item)
    return {
        "staged": tuple(Staged(one.id, one.count) for one in by_kind.get(lib.LS_RECOVERED_STAGED, [])),
        "abandoned": tuple(
            Abandoned(one.id, xid_from_c(one.xid) if one.distributed else None, one.count)
            for one in by_kind.get(lib.LS_RECOVERED_TRANSACTION, [])
        ),
        "dropped_queues": tuple(DroppedQueue(one.id, one.count) for one in by_kind.get(lib.LS_RECOVERED_QUEUE, [])),
    }


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was written, or what one would take."""

    lsn: int
    """Everything below it need not be replayed any more; of an estimate, where one would begin now."""
    bytes: int
    messages: int
    transactions: int
    """Open ones, those in doubt among them."""
    seconds: float
    """What writing it took; 0 of an estimate."""


@dataclass(frozen=True, slots=True)
class SegmentLife:
    """One segment of the log and what of it is still needed."""

    first_lsn: int
    epoch: int
    end_lsn: int
    live_bytes: int
    live_records: int
    current: bool

    @classmethod
    def from_c(cls, segment: Any) -> SegmentLife:
        """Of a copy of the core's ``ls_segment_info``."""
        return cls(
            first_lsn=segment.first_lsn,
            epoch=segment.epoch,
            end_lsn=segment.end_lsn,
            live_bytes=segment.live_bytes,
            live_records=segment.live_records,
            current=bool(segment.current),
        )


def stats_from_c(stats: Any) -> dict[str, Any]:
    """The counters of a copy of the core's ``ls_stats`` by name."""
    counters: dict[str, Any] = dict(vars(stats))
    counters["durability"] = "relaxed" if counters.pop("relaxed") else "strict"
    counters["full"] = bool(counters["full"])
    own = counters["appended_bytes"] - counters["relocated_bytes"]
    counters["write_amplification"] = counters["appended_bytes"] / own if own > 0 else 1.0
    return counters
