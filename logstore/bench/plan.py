"""What a benchmark is to do, as one immutable plan, and the plans that come ready made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

QUEUE_PREFIX: Final = "logstore-bench."
CHECKED_BYTES_MIN: Final = 24  # a content of fewer has no room for a time stamp and a checksum
DEFAULT_SECONDS: Final = 10.0
_THREADS_MAX: Final = 256
_BATCH_MAX: Final = 100_000
_SIZE_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes are bytes, times seconds. Raises ``OptionError`` for what does not fit together."""

    publishers: int = 1
    consumers: int = 1
    queues: int = 1
    fan_out: int = 1
    """Queues that each message is put on."""
    size: int = 1024
    """Of a message's content."""
    batch: int = 100
    """Messages of one ``publish_many``, or one transaction: made durable together. 1: ``publish``."""
    take: int = 100
    """Messages that a consumer takes and settles together. 1: ``dequeue``."""
    acquire: bool = False
    """Consumers acquire, read and accept as a broker does; else they dequeue by id, and read only to verify."""
    transaction: int = 0
    """Messages in one transaction; 0: as many as in a batch."""
    transaction_share: float = 0.0
    """Of the batches, on both sides, that are local transactions."""
    messages: int | None = None
    seconds: float | None = None
    total_bytes: int | None = None
    """When publishing ends: the first of these three. None of them: after ten seconds."""
    depth: int = 100_000
    """Places that may wait on all queues together before publishers do. 0, or nobody who consumes: no limit."""
    sawtooth: bool = False
    """Consumers begin when ``depth`` is reached, and publishers again when all is consumed."""
    stuck: int = 0
    """Messages that are published first and read last."""
    survivors: float = 0.0
    """Share of the messages that consumers leave."""
    survivors_max: int = 1000
    """So many are left at a time; with one more the oldest is consumed."""
    prepared: int = 0
    """Prepared transactions of one message each, in doubt until the end."""
    verify: bool = False
    """Every content is read and checked before it is consumed."""
    wait: bool = True
    """Calls return when the disk has it. Else everything is forced once, at the end."""
    segment_size: int | None = None
    initial_segments: int | None = None
    max_log_bytes: int | None = None
    durability: str = "strict"
    must_return: bool = False
    """Whether it is a failure if the log has not shrunk to its bound when all is over."""
    keep: bool = False
    """The queues and what is on them stay."""
    seed: int = 1
    """Of the choice of survivors and transactions."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("publishers", 0, _THREADS_MAX),
            ("consumers", 0, _THREADS_MAX),
            ("queues", 1, 10_000),
            ("fan_out", 1, 1000),
            ("size", 0, _SIZE_MAX),
            ("batch", 1, _BATCH_MAX),
            ("take", 1, _BATCH_MAX),
            ("transaction", 0, _BATCH_MAX),
            ("depth", 0, 1 << 40),
            ("stuck", 0, 1_000_000),
            ("survivors_max", 0, 1 << 32),
            ("prepared", 0, 65_536),
        ):
            _within(name, getattr(self, name), low, high)
        for name in ("transaction_share", "survivors"):
            _within(name, getattr(self, name), 0, 1)
        for name in ("messages", "seconds", "total_bytes"):
            if getattr(self, name) is not None:
                _within(name, getattr(self, name), 0, 1 << 60)
        if self.publishers == 0 and self.consumers == 0:
            raise OptionError("neither publishers nor consumers: there is nothing to do")
        if self.publishers == 0 and not self.acquire:
            raise OptionError("consumers without publishers need acquire: only publishers know the ids to dequeue")
        if self.sawtooth and (self.depth == 0 or self.consumers == 0 or self.publishers == 0):
            raise OptionError("a sawtooth needs publishers, consumers and a depth to turn at")
        if self.verify and self.size < CHECKED_BYTES_MIN:
            raise OptionError(
                f"contents of {self.size} bytes have no room for a checksum; verify needs {CHECKED_BYTES_MIN} or more"
            )
        if self.total_bytes is not None and self.size == 0:
            raise OptionError("messages without content never add up to bytes; say how many messages or seconds")

    @property
    def all_queues(self) -> int:
        """How many there are: at least as many as one message goes to."""
        return max(self.queues, self.fan_out)

    @property
    def message_limit(self) -> int | None:
        """How many messages are published at most; None if only time ends it."""
        by_bytes = None if self.total_bytes is None else -(-self.total_bytes // self.size)
        known = [limit for limit in (self.messages, by_bytes) if limit is not None]
        return min(known) if known else None

    @property
    def time_limit_s(self) -> float | None:
        """After how long publishing ends; None if only a number of messages ends it."""
        return DEFAULT_SECONDS if self.seconds is None and self.message_limit is None else self.seconds

    def options(self) -> dict[str, Any]:
        """What the store is opened with."""
        chosen = {
            "segment_size": self.segment_size,
            "initial_segments": self.initial_segments,
            "max_log_bytes": self.max_log_bytes,
            "durability": self.durability,
            "max_prepared": max(self.prepared, 10_000),
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def as_dict(self) -> dict[str, Any]:
        """Every choice, for a report."""
        return asdict(self)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise OptionError(f"{name} is {low} to {high}, not {value}")


_MIB: Final = 1 << 20

PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    # What qpid-perftest --durable does to a log, at its harshest: the smallest log that there was, far too small for
    # what waits, so that it is extended again and again; and things that stay while everything else passes.
    "tail": {
        "segment_size": _MIB,
        "initial_segments": 2,
        "total_bytes": 500_000_000,
        "size": 1024,
        "depth": 16_384,  # 18 MB of log, nine times what there is at first
        "sawtooth": True,
        "stuck": 1,
        "prepared": 1,
        "survivors": 0.01,
        "survivors_max": 500,
        "verify": True,
        "must_return": True,
    },
    # What a broker does: small batches, acquire and accept, several of everything.
    "broker": {
        "publishers": 8,
        "consumers": 8,
        "queues": 4,
        "batch": 1,
        "take": 16,
        "acquire": True,
        "depth": 10_000,
    },
    # As much as the disk takes.
    "stream": {"batch": 1000, "take": 1000, "depth": 20_000, "segment_size": 64 * _MIB},
}


def plan(profile: str | None = None, **chosen: Any) -> Plan:
    """The plan of that profile with these choices over it; a choice that is None is none."""
    if profile is not None and profile not in PROFILES:
        raise OptionError(f"there is no profile {profile!r}; there are {', '.join(PROFILES)}")
    made = dict(PROFILES[profile]) if profile is not None else {}
    given = {name: value for name, value in chosen.items() if value is not None}
    if any(name in given for name in ("messages", "seconds", "total_bytes")):
        made.pop("total_bytes", None)
    return Plan(**made | given)
