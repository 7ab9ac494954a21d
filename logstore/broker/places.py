"""The interface of a taken message, the same for one in the store and one in memory."""

from __future__ import annotations

from typing import Protocol


class Place(Protocol):
    """One taken message: the store's `Delivery`, or a `MemoryPlace`."""

    @property
    def id(self) -> int:
        """Unique within the queue."""

    @property
    def content(self) -> bytes | memoryview:
        """The body, read from the log on access. Raises `StoreError` if it cannot be read."""

    @property
    def size(self) -> int:
        """Bytes of the body."""

    @property
    def header(self) -> bytes:
        """The bytes that `headers` encoded, or the header of a message that another program published."""

    @property
    def redelivered(self) -> bool:
        """True if it may have been delivered before."""

    def accept(self, *, wait: bool = True) -> object:
        """Remove the message: it was processed."""

    def reject(self, *, wait: bool = True) -> object:
        """Move the message to the dead-letter queue, or remove it if there is none."""

    def release(self, *, unseen: bool = False) -> object:
        """Return the message to its old position. `unseen`: nothing of it was sent, so this delivery does not count."""

    def unload(self) -> None:
        """Free the header and content in memory, if they are also in the log."""
