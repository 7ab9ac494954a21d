"""What the benchmark asks of a store: put bodies on one queue, take the oldest off it, each unit durable on return."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path


class Wrong(Exception):
    """What was read is not what was stored, or a store does not do what it was told."""


class Peer(abc.ABC):
    """An open store with one queue in ``path``, a directory of its own; made for about ``room_bytes`` of content."""

    name: ClassVar[str]
    sync: ClassVar[str]  # what was set so that a unit is durable when its call returns; who opens it makes sure
    reuses: ClassVar[bool] = True  # it has pages or logs to use again, once it was used for long enough
    prefill_max: ClassVar[int] = 1 << 30  # messages that it is given at once where only the taking is measured

    def __init__(self, path: Path, room_bytes: int) -> None:
        self.path = path
        self.room_bytes = room_bytes

    @classmethod
    @abc.abstractmethod
    def version(cls) -> str:
        """Of what is measured."""

    @classmethod
    def lacks(cls, threads: int, batch: int, in_flight: int, *, puts: bool, takes: bool) -> str | None:  # noqa: ARG003
        """Why it is not measured so, if it is not."""
        return "no asynchronous calls: compare with 64 threads" if in_flight else None

    @abc.abstractmethod
    def publisher(self) -> Callable[[Sequence[bytes]], None]:
        """For one thread: puts all of these as one durable unit."""

    @abc.abstractmethod
    def consumer(self) -> Callable[[int], list[bytes]]:
        """For one thread: gets up to so many, the oldest, and acknowledges them as one durable unit."""

    @abc.abstractmethod
    def close(self) -> None:
        """In good order."""

    @abc.abstractmethod
    def remaining(self) -> Iterable[bytes]:
        """After ``close``: opens it again and gives what is on the queue, in order."""


class ReadablePeer(Peer):
    """A store whose contents can be read by key, and stay."""

    @abc.abstractmethod
    def keys(self) -> Iterable[Any]:
        """Of what is on the queue, in order."""

    @abc.abstractmethod
    def reader(self) -> Callable[[Any], bytes]:
        """For one thread: the body with this key."""

    @abc.abstractmethod
    def scan(self) -> Iterable[bytes]:
        """All bodies on the queue, in order."""
