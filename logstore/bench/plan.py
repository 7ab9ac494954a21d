"""The plan of a benchmark as one immutable object, and the built-in profiles."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

QUEUE_PREFIX: Final = "logstore-bench."
CHECKED_BYTES_MIN: Final = 24  # a smaller content has no room for a time stamp, a number and random bytes
DEFAULT_SECONDS: Final = 10.0
_THREADS_MAX: Final = 256
_BATCH_MAX: Final = 100_000
_SIZE_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes are bytes, times seconds. Raises ``OptionError`` for values that are out of range or contradictory."""

    publishers: int = 1
    consumers: int = 1
    queues: int = 1
    fan_out: int = 1
    """The number of queues that each message is put on."""
    size: int = 1024
    """Bytes of a message's content."""
    batch: int = 100
    """Messages in one ``publish_many`` or one transaction, which become durable together. With 1: ``publish``."""
    take: int = 100
    """Messages that a consumer takes and settles together. With 1: ``dequeue``."""
    acquire: bool = False
    """Consumers acquire, read and accept, as a broker does. Otherwise they dequeue by id, and read only to verify."""
    transaction: int = 0
    """Messages in one transaction; 0 means as many as in a batch."""
    transaction_share: float = 0.0
    """The share of batches, of publishers and consumers, that are local transactions."""
    messages: int | None = None
    seconds: float | None = None
    total_bytes: int | None = None
    """Publishing ends at the first of these three limits; without any, after ten seconds."""
    depth: int = 100_000
    """When this many places wait on all queues together, publishers wait. No limit with 0 or without consumers."""
    sawtooth: bool = False
    """Consumers start when ``depth`` is reached; publishers start again when everything is consumed."""
    stuck: int = 0
    """Messages that are published first and consumed last."""
    survivors: float = 0.0
    """The share of messages that consumers leave on the queue."""
    survivors_max: int = 1000
    """The most messages left at a time; when there is one more, the oldest is consumed."""
    prepared: int = 0
    """Prepared transactions of one message each, in doubt until the end."""
    verify: bool = False
    """Every content is read and checked before it is consumed."""
    wait: bool = True
    """Calls return when the data is on disk. Otherwise everything is forced once, at the end."""
    segment_size: int | None = None
    initial_segments: int | None = None
    max_log_bytes: int | None = None
    durability: str = "strict"
    must_return: bool = False
    """The run fails if the log does not shrink to its bound at the end."""
    keep: bool = False
    """The queues and their messages are kept."""
    seed: int = 1
    """The seed of the random choice of survivors and transactions."""

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
            raise OptionError("there are neither publishers nor consumers; give at least one")
        if self.publishers == 0 and not self.acquire:
            raise OptionError("consumers without publishers need acquire: only publishers know the ids to dequeue")
        if self.sawtooth and (self.depth == 0 or self.consumers == 0 or self.publishers == 0):
            raise OptionError("a sawtooth needs publishers, consumers and a depth")
        if self.verify and self.size < CHECKED_BYTES_MIN:
            raise OptionError(
                f"contents of {self.size} bytes are too small to be verified; verify needs {CHECKED_BYTES_MIN} or more"
            )
        if self.total_bytes is not None and self.size == 0:
            raise OptionError("with empty messages total_bytes is never reached; give messages or seconds instead")

    @property
    def all_queues(self) -> int:
        """The number of queues: at least as many as one message is put on."""
        return max(self.queues, self.fan_out)

    @property
    def message_limit(self) -> int | None:
        """The most messages to publish; None if only time ends the run."""
        by_bytes = None if self.total_bytes is None else -(-self.total_bytes // self.size)
        known = [limit for limit in (self.messages, by_bytes) if limit is not None]
        return min(known) if known else None

    @property
    def time_limit_s(self) -> float | None:
        """The seconds after which publishing ends; None if only a number of messages ends it."""
        return DEFAULT_SECONDS if self.seconds is None and self.message_limit is None else self.seconds

    def options(self) -> dict[str, Any]:
        """The options with which the store is opened."""
        chosen = {
            "segment_size": self.segment_size,
            "initial_segments": self.initial_segments,
            "max_log_bytes": self.max_log_bytes,
            "durability": self.durability,
            "max_prepared": max(self.prepared, 10_000),
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def as_dict(self) -> dict[str, Any]:
        """All fields, for a report."""
        return asdict(self)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise OptionError(f"{name} is {low} to {high}, not {value}")


_MIB: Final = 1 << 20

PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    # The load of qpid-perftest --durable at its harshest: the log starts at its smallest size, far too small for the
    # waiting messages, so that it is extended again and again; and a few messages stay while all others pass.
    "tail": {
        "segment_size": _MIB,
        "initial_segments": 2,
        "total_bytes": 500_000_000,
        "size": 1024,
        "depth": 16_384,  # 18 MB of log, nine times the initial size
        "sawtooth": True,
        "stuck": 1,
        "prepared": 1,
        "survivors": 0.01,
        "survivors_max": 500,
        "verify": True,
        "must_return": True,
    },
    # The load of a broker: small batches, acquire and accept, several publishers, consumers and queues.
    "broker": {
        "publishers": 8,
        "consumers": 8,
        "queues": 4,
        "batch": 1,
        "take": 16,
        "acquire": True,
        "depth": 10_000,
    },
    # As much throughput as the disk allows.
    "stream": {"batch": 1000, "take": 1000, "depth": 20_000, "segment_size": 64 * _MIB},
}


def plan(profile: str | None = None, **chosen: Any) -> Plan:
    """The plan of this profile, changed by ``chosen``; values that are None are ignored."""
    if profile is not None and profile not in PROFILES:
        raise OptionError(f"there is no profile {profile!r}; choose one of {', '.join(PROFILES)}")
    made = dict(PROFILES[profile]) if profile is not None else {}
    given = {name: value for name, value in chosen.items() if value is not None}
    if any(name in given for name in ("messages", "seconds", "total_bytes")):
        made.pop("total_bytes", None)
    return Plan(**made | given)
