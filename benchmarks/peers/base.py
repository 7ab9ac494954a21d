"""The calls that the benchmark needs: put bodies on one queue, take the oldest, each unit durable on return."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path


class Wrong(Exception):
    """A store returned wrong data, or did not accept a setting."""


class Peer(abc.ABC):
    """An open store with one queue in its own directory ``path``, prepared for about ``room_bytes`` of content."""

    name: ClassVar[str]
    sync: ClassVar[str]  # the setting that makes a unit durable when its call returns; the constructor checks it
    reuses: ClassVar[bool] = True  # after enough work it reuses pages or logs
    prefill_max: ClassVar[int] = 1 << 30  # messages put at once before taking is measured

    def __init__(self, path: Path, room_bytes: int) -> None:
        self.path = path
        self.room_bytes = room_bytes

    @classmethod
    @abc.abstractmethod
    def version(cls) -> str:
        """Of what is measured."""

    @classmethod
    def lacks(cls, threads: int, batch: int, in_flight: int, *, puts: bool, takes: bool) -> str | None:  # noqa: ARG003
        """The reason if it is not measured in this mode."""
        return "no asynchronous calls: compare with 64 threads" if in_flight else None

    @abc.abstractmethod
    def publisher(self) -> Callable[[Sequence[bytes]], None]:
        """For one thread: puts all of these as one durable unit."""

    @abc.abstractmethod
    def consumer(self) -> Callable[[int], list[bytes]]:
        """For one thread: gets up to this many of the oldest messages and acknowledges them as one durable unit."""

    @abc.abstractmethod
    def close(self) -> None:
        """In good order."""

    @abc.abstractmethod
    def remaining(self) -> Iterable[bytes]:
        """After ``close``: opens it again and returns the queue's bodies in order."""


class ReadablePeer(Peer):
    """A store whose contents can be read by key without being consumed."""

    @abc.abstractmethod
    def keys(self) -> Iterable[Any]:
        """Of what is on the queue, in order."""

    @abc.abstractmethod
    def reader(self) -> Callable[[Any], bytes]:
        """For one thread: the body with this key."""

    @abc.abstractmethod
    def scan(self) -> Iterable[bytes]:
        """All bodies on the queue, in order."""

    def has_views(self) -> bool:
        """Whether ``views`` can be called."""
        return False

    def views(self) -> Iterable[memoryview]:
        """The same without a copy for each."""
        raise NotImplementedError
