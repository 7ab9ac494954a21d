"""The memory that one broker process may use: one budget over all its hosts, divided into shares.

A share belongs to one kind of use. So a kind that has used up its own cannot take the memory of the others.
"""

from __future__ import annotations


class Share:
    """The bytes that one kind of use may occupy, over all connections, queues and hosts."""

    __slots__ = ("bytes_max", "used_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0  # may be above the maximum: what is in use counts, also what could not be refused

    @property
    def free_bytes(self) -> int:
        """The bytes that are left."""
        return max(0, self.bytes_max - self.used_bytes)

    def take(self, size: int) -> bool:
        """Reserve `size` bytes. False, and nothing is reserved, if there are not enough."""
        if self.used_bytes + size > self.bytes_max:
            return False
        self.used_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Release reserved bytes."""
        self.used_bytes -= size


class MemoryBudget:
    """The memory of one broker."""

    __slots__ = ("bytes_max", "contents", "queues")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.queues = Share(bytes_max)  # messages on queues in memory
        self.contents = Share(bytes_max)  # messages that are still arriving, or wait for the end of a transaction

    @property
    def used_bytes(self) -> int:
        """The bytes that all shares have in use."""
        return self.queues.used_bytes + self.contents.used_bytes
