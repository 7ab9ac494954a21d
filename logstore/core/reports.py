"""The core's reports as Python objects: recovery, checkpoints, segments and counters."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from logstore._core import ffi, lib
from logstore.core.native import filled, listed
from logstore.core.xid import Xid, xid_from_c

if TYPE_CHECKING:
    from collections.abc import Container


@dataclass(frozen=True, slots=True)
class Staged:
    """A message that was staged and never enqueued. Recovery dropped it."""

    id: int
    content_bytes: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A transaction without an outcome, which recovery rolled back."""

    id: int
    xid: Xid | None
    """``None`` for a local transaction."""
    operations: int
    """The number of its operations, which were undone."""


@dataclass(frozen=True, slots=True)
class DroppedQueue:
    """A queue that the catalog does not have. Its deletion was missing in the log; recovery has recorded it."""

    id: int
    places: int
    transient: bool = False
    """It was a transient queue, and ended with the open that declared it; otherwise it was deleted."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The report of the recovery when the store was opened. Sizes are bytes, times microseconds, positions LSNs."""

    created: bool
    """A new store was made; every other field is then empty or 0."""
    clean: bool
    """The log ended with a CLOSE record: the store was closed and did not crash."""
    direct: bool
    """The end of the log was read with direct I/O, past the page cache."""
    epoch: int
    """The epoch of this open."""
    base_lsn: int
    end_lsn: int
    """The end of the recovered log."""
    watermark_lsn: int
    """Damage below this LSN would have been corruption, not a torn tail."""
    segments: int
    batches: int
    records: int
    bytes_read: int
    bytes_rewritten: int
    torn_bytes: int
    """Bytes that a crash left half written at ``end_lsn``: kept aside, not part of the log."""
    messages: int
    places: int
    transactions_committed: int
    transactions_rolled_back: int
    """Transactions whose rollback record is in the log."""
    transactions_abandoned: int
    """Transactions without an outcome, which this recovery rolled back."""
    transactions_in_doubt: int
    operations_undone: int
    """Operations of the abandoned transactions."""
    staged_dropped: int
    """Staged messages that were never enqueued, and were dropped."""
    staged_bytes: int
    """The content of the dropped staged messages."""
    orphans: int
    """Records whose chain began below the base."""
    orphan_messages: int
    """The orphans that belong to messages; those were dead when the base passed them."""
    orphan_transactions: int
    """The orphans that belong to transactions; those had their outcome."""
    places_dropped: int
    """Places on queues that the catalog no longer has."""
    queues_dropped: int
    checkpoint_used: bool
    """Only the log after a checkpoint was replayed. The record counts above cover that part only."""
    checkpoint_ignored: str
    """Why an existing checkpoint was not used; empty if it was used, or if there is none."""
    checkpoint_lsn: int
    """The LSN of the checkpoint that was used or ignored; 0 if unknown."""
    checkpoint_bytes: int
    """Bytes read from the checkpoint."""
    checkpoint_us: int
    scan_us: int
    """Time to scan the log, the reading of the checkpoint included."""
    transactions_us: int
    messages_us: int
    rewrite_us: int
    total_us: int
    staged: tuple[Staged, ...]
    """At most the first thousand, as in the next two fields. The counts above cover all."""
    abandoned: tuple[Abandoned, ...]
    dropped_queues: tuple[DroppedQueue, ...]

    @classmethod
    def _of(cls, store: Any) -> Recovery:
        """The recovery report of the core's ``ls_store``."""
        report = filled("ls_recovery", lambda into: lib.ls_recovery_report(store, into))
        names = _names_from_c(store) | {"checkpoint_ignored": _ignored(report.checkpoint_state)}
        counts: dict[str, Any] = {
            field.name: int(getattr(report, field.name)) for field in fields(cls) if field.name not in names
        }
        return cls(**counts | {name: bool(counts[name]) for name in _YES_OR_NO} | names)

    def _with_transient(self, ids: Container[int]) -> Recovery:
        """The report with the dropped queues that were transient named so."""
        queues = tuple(replace(one, transient=one.id in ids) for one in self.dropped_queues)
        return replace(self, dropped_queues=queues) if queues else self


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
    """A written checkpoint, or an estimate of one."""

    lsn: int
    """Recovery replays the log from this LSN on. In an estimate: the LSN of a checkpoint written now."""
    bytes: int
    messages: int
    transactions: int
    """Open transactions, those in doubt included."""
    seconds: float
    """The time that writing took; 0 in an estimate."""


@dataclass(frozen=True, slots=True)
class SegmentLife:
    """One segment of the log, and how many of its bytes and records are still needed."""

    first_lsn: int
    epoch: int
    end_lsn: int
    live_bytes: int
    live_records: int
    current: bool

    @classmethod
    def _from_c(cls, segment: Any) -> SegmentLife:
        """Built from a copy of the core's ``ls_segment_info``."""
        return cls(
            first_lsn=segment.first_lsn,
            epoch=segment.epoch,
            end_lsn=segment.end_lsn,
            live_bytes=segment.live_bytes,
            live_records=segment.live_records,
            current=bool(segment.current),
        )


def stats_from_c(stats: Any) -> dict[str, Any]:
    """The counters in a copy of the core's ``ls_stats``, by name."""
    counters: dict[str, Any] = dict(vars(stats))
    counters["durability"] = "relaxed" if counters.pop("relaxed") else "strict"
    counters["full"] = bool(counters["full"])
    own = counters["appended_bytes"] - counters["relocated_bytes"]
    counters["write_amplification"] = counters["appended_bytes"] / own if own > 0 else 1.0
    return counters
