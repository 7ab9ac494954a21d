"""What a broker asks of the cluster in whose member it runs: which hosts there are, and who leads them.

Without a cluster there is nothing elsewhere: a broker has all its hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from logstore.broker.relay import Handover


@dataclass(frozen=True, slots=True)
class Leader:
    """A member that leads a host."""

    member: int
    name: str


class Elsewhere(Protocol):
    """Answers from memory, on the broker's loop. Each change is told by :meth:`Server.hosts_have_changed`."""

    def has_host(self, name: str) -> bool:
        """Whether the cluster has a virtual host of this name."""

    def leader(self, name: str) -> Leader | None:
        """The other member that leads it; None: this one does, or nobody is known."""

    async def open_relay(self, leader: Leader, handover: Handover) -> tuple[asyncio.Transport, Callable[[], object]]:
        """A link to the leader that has accepted it, and what is to be called when it has ended; see ``Relay``.

        Raises ``NotLed``, and ``ConnectionException`` if it refuses for good.
        """

    async def why_not(self, name: str) -> str:
        """Why nobody leads it, for people."""

    def has_ended(self, name: str) -> None:
        """The host's store, which this broker has open, can be used no longer: the host is to be closed."""
