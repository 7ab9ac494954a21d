"""Every limit of the broker in one place. None of them can be unlimited."""

from __future__ import annotations

import dataclasses
from typing import Final

MIB: Final = 1 << 20
PASSWORD_CHECKS_MAX: Final = 256

FRAME_BYTES_MIN: Final = 4096  # frame-min-size of the specification: no peer may ask for less
FRAME_BYTES_BEFORE_TUNE: Final = 8192  # enough for a login with a long token
FRAME_OVERHEAD_BYTES: Final = 8  # type, channel, size and the end octet; frame_max includes them


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one broker. The defaults suit a machine with a few GiB of memory.

    Raises `ValueError` for a value out of range.
    """

    connections_max: int = 1024
    channels_max: int = 2047  # per connection, offered at tune
    frame_bytes_max: int = 128 * 1024  # offered at tune; client libraries expect this value
    body_bytes_max: int = 128 * MIB  # a longer message is 311 CONTENT_TOO_LARGE
    heartbeat_s: int = 60  # offered at tune; the client's answer is used

    unsent_bytes_high: int = MIB  # per connection; above it its consumers get no more deliveries
    unsent_bytes_max: int = 16 * MIB  # per connection; above it the broker also stops reading
    blocked_after_s: float = 1.0  # a publish that is not durable for longer blocks the publishers of its host
    blocked_timeout_s: float = 30.0  # a publish that has waited so long for room in the log is refused
    undurable_bytes_max: int = 8 * MIB  # of the log; above it the broker stops reading from publishers
    unacked_max: int = 262_144  # unacknowledged deliveries per channel
    unacked_per_consumer_max: int = 65_536  # the same of one consumer, whatever its prefetch
    memory_bytes_max: int = 1024 * MIB  # of all hosts together; divided into shares (`memory`)
    inline_body_bytes_max: int = MIB  # a longer body is written to the log in another thread, as it arrives
    unfinished_bytes_max: int = 1024 * MIB  # of the log, for bodies that are still arriving; per virtual host

    handshake_s: float = 10.0  # from connect to connection.open, without the time that the broker takes
    handshakes_max: int = 1024  # in progress; for one more the client goes that has been silent longest
    password_checks_max: int = PASSWORD_CHECKS_MAX  # passwords from one address that wait to be checked
    close_s: float = 5.0  # how long to wait for a close-ok
    unfinished_stall_s: float = 60.0  # how long a body in the log may not grow while it is read
    stall_s: float = 60.0  # how long a peer may read nothing while its buffer is full

    def __post_init__(self) -> None:
        if not FRAME_BYTES_MIN <= self.frame_bytes_max <= 1 << 27:
            raise ValueError(f"frame_bytes_max must lie in {FRAME_BYTES_MIN}..{1 << 27}")
        if not 1 <= self.channels_max <= 65535:
            raise ValueError("channels_max must lie in 1..65535")
        if not 0 <= self.heartbeat_s <= 65535:
            raise ValueError("heartbeat_s must lie in 0..65535")
        for field in dataclasses.fields(self):
            if field.name != "heartbeat_s" and getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be above 0")
