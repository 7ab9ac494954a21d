"""The results of a benchmark: progress during the run, and the report at its end."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from logstore.bench.counts import Tally

if TYPE_CHECKING:
    import resource

    from logstore import MessageStore
    from logstore.bench.plan import Plan
    from logstore.bench.watch import Watch

# Counters of the store whose growth during the run is reported.
_GROWING: Final = (
    "batches",
    "batch_bytes",
    "syncs",
    "records",
    "appended_bytes",
    "segments_created",
    "segments_recycled",
    "segments_removed",
    "segments_relocated",
    "relocated_bytes",
    "relocation_failures",
    "forced_by_full_buffers",
    "waits_for_spare",
    "spare_failures",
    "device_bytes",
    "device_writes",
)


@dataclass(frozen=True, slots=True)
class Moment:
    """The progress of a run at one moment."""

    seconds: float
    published: int
    consumed: int
    published_bytes: int
    waiting: int
    log_bytes: int
    """As measured last by the watching process."""
    log_bytes_max: int
    live_bytes: int
    segments: int
    spares: int
    segments_created: int
    segments_recycled: int
    segments_relocated: int

    @classmethod
    def of(
        cls,
        store: MessageStore,
        seconds: float,
        publishers: list[Tally],
        consumers: list[Tally],
        waiting: int,
        watch: Watch,
    ) -> Moment:
        """The present progress."""
        native = store._stats_native()
        return cls(
            seconds=seconds,
            published=sum(tally.messages for tally in publishers),
            consumed=sum(tally.messages for tally in consumers),
            published_bytes=sum(tally.content_bytes for tally in publishers),
            waiting=waiting,
            log_bytes=watch.last,
            log_bytes_max=watch.largest,
            live_bytes=int(native.live_bytes),
            segments=int(native.segments),
            spares=int(native.spares),
            segments_created=int(native.segments_created),
            segments_recycled=int(native.segments_recycled),
            segments_relocated=int(native.segments_relocated),
        )


@dataclass
class Report:
    """The report of one run. Times are seconds unless their names say otherwise."""

    plan: Plan
    seconds: float = 0.0
    """From the first publish to the last message consumed."""
    published_s: float = 0.0
    """From the first publish to the last."""
    published: Tally = field(default_factory=Tally)
    consumed: Tally = field(default_factory=Tally)
    survivors: int = 0
    """Messages that consumers left on the queues."""
    compared: int = 0
    """Contents compared after a restart."""
    recovery_us: int = 0
    problems: list[str] = field(default_factory=list)
    returns: list[dict[str, Any]] = field(default_factory=list)
    """How the log shrank to its bound: when, bytes, bound, seconds, returned."""
    left_before: dict[str, int] = field(default_factory=dict)
    """The depths of the queues before the run."""
    run_id: bytes = b""
    log: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    segment_size: int = 0
    _before: dict[str, Any] = field(default_factory=dict)

    def starts(self, store: MessageStore) -> None:
        """Records the store's counters before the run."""
        self._before = store.stats()
        self.segment_size = store.segment_size
        self.log = {"base_lsn_before": store.base_lsn, "next_lsn_before": store.next_lsn}

    def ends(self, store: MessageStore, watch: Watch, size: int) -> None:
        """Records the store's counters after the last message was consumed; the remaining messages are still there."""
        after = store.stats()
        self.counters = {name: after[name] - self._before[name] for name in _GROWING}
        self.log |= {
            "bytes_before": self._before["log_bytes"],
            "bytes_max": max(watch.largest, size),
            "bytes_end": size,
            "live_bytes_end": after["live_bytes"],
            "base_lsn_end": store.base_lsn,
            "next_lsn_end": store.next_lsn,
            "segments_end": after["segments"],
            "spares_end": after["spares"],
            "samples": len(watch.samples),
        }

    def closed(self, size: int) -> None:
        """Records the log's size after the store was closed."""
        self.log["bytes_closed"] = size

    def usage(self, before: resource.struct_rusage, after: resource.struct_rusage) -> None:
        """Records the CPU time between two measurements."""
        self.cpu = {
            "user_s": after.ru_utime - before.ru_utime,
            "system_s": after.ru_stime - before.ru_stime,
            "rss_max_bytes": after.ru_maxrss * 1024,
            "cpus": os.cpu_count() or 1,
            "load": os.getloadavg()[0],
        }

    @property
    def passed(self) -> bool:
        """Whether the run found no problem."""
        return not self.problems

    def rates(self, tally: Tally, seconds: float) -> dict[str, float]:
        """Messages per second and content MB per second."""
        seconds = max(seconds, 1e-9)
        return {"messages_per_s": tally.messages / seconds, "mb_per_s": tally.content_bytes / seconds / 1e6}

    def amplification(self) -> dict[str, float | None]:
        """Log bytes and device bytes per content byte, and relocated bytes per byte appended for the first time."""
        written, relocated = self.counters["batch_bytes"], self.counters["relocated_bytes"]
        content = self.published.content_bytes
        first_time = self.counters["appended_bytes"] - relocated
        return {
            "written_per_content_byte": written / content if content else None,
            "device_per_content_byte": self.counters["device_bytes"] / content if content else None,
            "relocated_per_appended_byte": relocated / first_time if first_time else None,
        }

    def commits(self) -> dict[str, float | None]:
        """The average contents of one group commit."""
        batches = self.counters["batches"]
        return {
            "batches": batches,
            "syncs": self.counters["syncs"],
            "messages_published_per_batch": self.published.messages / batches if batches else None,
            "records_per_batch": self.counters["records"] / batches if batches else None,
            "bytes_per_batch": self.counters["batch_bytes"] / batches if batches else None,
        }

    def as_dict(self) -> dict[str, Any]:
        """The whole report, for JSON."""
        return {
            "plan": self.plan.as_dict(),
            "durability": self.plan.durability if self.plan.wait else f"{self.plan.durability}, not waited for",
            "segment_size": self.segment_size,
            "seconds": self.seconds,
            "published": self._side(self.published, self.published_s),
            "consumed": self._side(self.consumed, self.seconds),
            "end_to_end": self.consumed.end_to_end.as_dict(),
            "commits": self.commits(),
            "amplification": self.amplification(),
            "log": self.log,
            "segments": {
                "created": self.counters["segments_created"],
                "recycled": self.counters["segments_recycled"],
                "removed": self.counters["segments_removed"],
                "relocated": self.counters["segments_relocated"],
                "waits_for_spare": self.counters["waits_for_spare"],
            },
            "counters": self.counters,
            "cpu": self.cpu,
            "survivors": self.survivors,
            "compared_after_restart": self.compared,
            "recovery_us": self.recovery_us,
            "returns": self.returns,
            "problems": self.problems,
        }

    def _side(self, tally: Tally, seconds: float) -> dict[str, Any]:
        return {
            "messages": tally.messages,
            "places": tally.places,
            "content_bytes": tally.content_bytes,
            "transactions": tally.transactions,
            "seconds": seconds,
            **self.rates(tally, seconds),
            "calls": tally.calls.as_dict(),
            "refused_full": tally.full,
            "wrong": tally.wrong,
        }
