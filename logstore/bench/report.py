"""What a benchmark has to say: moments while it runs, and the report at its end."""

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

# Counters of the store that a report gives as they grew during the run.
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
    """Where a run is."""

    seconds: float
    published: int
    consumed: int
    published_bytes: int
    waiting: int
    log_bytes: int
    """As another process saw it last."""
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
        """Now."""
        native = store.stats_native()
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
    """Of one run. Times are seconds unless their names say otherwise."""

    plan: Plan
    seconds: float = 0.0
    """From the first publish to the last message consumed."""
    published_s: float = 0.0
    """To the last one published."""
    published: Tally = field(default_factory=Tally)
    consumed: Tally = field(default_factory=Tally)
    survivors: int = 0
    """Messages that consumers left."""
    compared: int = 0
    """Contents compared after a restart."""
    recovery_us: int = 0
    problems: list[str] = field(default_factory=list)
    returns: list[dict[str, Any]] = field(default_factory=list)
    """How the log came back to its bound: when, bytes, bound, seconds, returned."""
    left_before: dict[str, int] = field(default_factory=dict)
    """Depths of the queues when it began."""
    run_id: bytes = b""
    log: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    segment_size: int = 0
    _before: dict[str, Any] = field(default_factory=dict)

    def starts(self, store: MessageStore) -> None:
        """The store as it is before anything."""
        self._before = store.stats()
        self.segment_size = store.segment_size
        self.log = {"base_lsn_before": store.base_lsn, "next_lsn_before": store.next_lsn}

    def ends(self, store: MessageStore, watch: Watch, size: int) -> None:
        """The store when the last message is consumed, with what was to stay still there."""
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
        """And when the store is closed again."""
        self.log["bytes_closed"] = size

    def usage(self, before: resource.struct_rusage, after: resource.struct_rusage) -> None:
        """What the processor did between the two."""
        self.cpu = {
            "user_s": after.ru_utime - before.ru_utime,
            "system_s": after.ru_stime - before.ru_stime,
            "rss_max_bytes": after.ru_maxrss * 1024,
            "cpus": os.cpu_count() or 1,
            "load": os.getloadavg()[0],
        }

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def rates(self, tally: Tally, seconds: float) -> dict[str, float]:
        """Messages and content bytes a second."""
        seconds = max(seconds, 1e-9)
        return {"messages_per_s": tally.messages / seconds, "mb_per_s": tally.content_bytes / seconds / 1e6}

    def amplification(self) -> dict[str, float | None]:
        """For each byte of content: bytes of the log, and of all files. Bytes moved for each that was anew."""
        written, moved = self.counters["batch_bytes"], self.counters["relocated_bytes"]
        content = self.published.content_bytes
        anew = self.counters["appended_bytes"] - moved
        return {
            "written_per_content_byte": written / content if content else None,
            "device_per_content_byte": self.counters["device_bytes"] / content if content else None,
            "relocated_per_appended_byte": moved / anew if anew else None,
        }

    def commits(self) -> dict[str, float | None]:
        """What one group commit holds."""
        batches = self.counters["batches"]
        return {
            "batches": batches,
            "syncs": self.counters["syncs"],
            "messages_published_per_batch": self.published.messages / batches if batches else None,
            "records_per_batch": self.counters["records"] / batches if batches else None,
            "bytes_per_batch": self.counters["batch_bytes"] / batches if batches else None,
        }

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
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
