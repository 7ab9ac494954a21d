"""The memory that one broker process may use: one budget over all its hosts, divided into shares.

A share belongs to one kind of use. So a kind that has used up its own cannot take the memory of the others.

Within a share, one user may hold at most as much as is still free (`Share.fits`). So no user ever has all of it, n
users that want as much as they can get have a part of n + 1 each, and a newcomer always gets something.

Invariant: a user that waits for bytes of a share is woken after bytes were given back, in turns of the loop, and asks
again. A user that holds nothing must not wait for bytes of others unless they are sure to be given back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from logstore.broker.turns import TURN_UNITS

if TYPE_CHECKING:
    from logstore.broker.turns import Turns

# Parts of the budget, in sixteenths; what is left over is a reserve, as the measured sizes are means.
_PARTS: Final = {
    "queues": 8,
    "contents": 2,
    "transactions": 1,
    "unacknowledged": 2,
    "output": 2,
    "clients": 1,
}
_WHOLE: Final = sum(_PARTS.values())

# Memory of single objects, as a process with many of them takes it; measured (`benchmarks/footprint.py`), rounded up.
DELIVERY_BYTES: Final = 288  # an unacknowledged delivery
CONNECTION_BYTES: Final = 12 * 1024  # without channels
CHANNEL_BYTES: Final = 1024
CONSUMER_BYTES: Final = 512
HELD_BYTES: Final = 128  # a reply, a confirm or a frame that waits, in addition to its bytes

_WOKEN: Final = TURN_UNITS // 4  # users that are woken in one turn


class Waits(Protocol):
    """A user of a share that waits for bytes."""

    def has_bytes(self) -> None:
        """Bytes were given back: go on, or wait again."""


class Share:
    """The bytes that one kind of use may occupy, over all connections, queues and hosts."""

    __slots__ = ("_another_round", "_next", "_turns", "_waiting", "bytes_max", "used_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0  # may be above the maximum: what is in use counts, also what could not be refused
        self._turns: Turns | None = None  # no user waits before the broker has started
        self._waiting: dict[Waits, None] = {}
        self._next: list[Waits] = []  # to be woken, the last one first
        self._another_round = False  # bytes were given back since the present round began

    def serve(self, turns: Turns) -> None:
        """Wake users in turns of this loop."""
        self._turns = turns

    @property
    def free_bytes(self) -> int:
        """The bytes that are left."""
        return max(0, self.bytes_max - self.used_bytes)

    @property
    def waiting_count(self) -> int:
        """The number of users that wait for bytes."""
        return len(self._waiting) + len(self._next)

    def fits(self, held_bytes: int, size: int = 0) -> bool:
        """Whether a user that holds so many bytes may have `size` more. The first one of all may always."""
        return held_bytes + size <= self.bytes_max - self.used_bytes or not self.used_bytes

    def take(self, size: int) -> bool:
        """Reserve `size` bytes. False, and nothing is reserved, if there are not enough."""
        if self.used_bytes + size > self.bytes_max:
            return False
        self.used_bytes += size
        return True

    def add(self, size: int) -> None:
        """Count bytes that are held already, even if there are too many."""
        self.used_bytes += size

    def give_back(self, size: int) -> None:
        """Release reserved or counted bytes."""
        self.used_bytes -= size
        if self._waiting and size:
            self.wake()

    def await_bytes(self, one: Waits) -> None:
        """Wake a user once, after bytes were given back."""
        self._waiting[one] = None

    def forget(self, one: Waits) -> None:
        """A user waits no longer."""
        self._waiting.pop(one, None)
        if one in self._next:
            self._next.remove(one)

    def wake(self) -> None:
        """Let those that wait ask again."""
        if not self._waiting:
            return
        if self._next:
            self._another_round = True
            return
        assert self._turns is not None
        self._next = list(reversed(self._waiting))
        self._waiting.clear()
        self._turns.add(self)

    def take_turn(self) -> int:
        """Wake some users, the one that has waited longest first."""
        for _ in range(min(_WOKEN, len(self._next))):
            self._next.pop().has_bytes()
        if self._next:
            assert self._turns is not None
            self._turns.add(self)
        elif self._another_round:
            self._another_round = False
            self.wake()
        return TURN_UNITS


class MemoryBudget:
    """The memory of one broker: one object for all hosts. The sum of the shares is the budget."""

    __slots__ = ("bytes_max", "clients", "contents", "output", "queues", "transactions", "unacknowledged")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.queues = _part(bytes_max, "queues")  # messages on queues in memory
        self.contents = _part(bytes_max, "contents")  # messages that are still arriving, and what was read and waits
        self.transactions = _part(bytes_max, "transactions")  # what waits for the end of a transaction
        self.unacknowledged = _part(bytes_max, "unacknowledged")  # deliveries
        self.output = _part(bytes_max, "output")  # what waits for a socket, for a disk, or is read for a delivery
        self.clients = _part(bytes_max, "clients")  # connections, channels, consumers

    @property
    def shares(self) -> dict[str, Share]:
        """Each share by its name."""
        return {name: getattr(self, name) for name in _PARTS}

    @property
    def used_bytes(self) -> int:
        """The bytes that all shares have in use."""
        return sum(share.used_bytes for share in self.shares.values())

    def serve(self, turns: Turns) -> None:
        """Called once, when the broker starts."""
        for share in self.shares.values():
            share.serve(turns)


def _part(bytes_max: int, name: str) -> Share:
    return Share(bytes_max * _PARTS[name] // _WHOLE)
