"""A member of a cluster, as a program has it: :class:`Member` starts one, and asks its loop (``member_loop.py``)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from logstore.cluster import engine as engines
from logstore.cluster import reports
from logstore.cluster.adding import VOTERS_WITHIN_S
from logstore.cluster.group import KEPT_BYTES, Standing
from logstore.cluster.member_loop import MemberLoop, Seat
from logstore.cluster.membership import CHANGE_WITHIN_S, Wanted
from logstore.cluster.rebuilding import COPY_WITHIN_S, Rebuilt
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from types import TracebackType

    from logstore.cluster.addresses import Tls
    from logstore.cluster.group import HostNews
    from logstore.cluster.relaying import Acceptor
    from logstore.cluster.reopening import Reopened
    from logstore.cluster.transport import Me
    from logstore.store.message_store import MessageStore

__all__ = ["LEADER_WITHIN_S", "Member", "MemberConfig", "Seat", "Standing"]

_T = TypeVar("_T")

LEADER_WITHIN_S: Final = 3.0
"""How long a caller waits for a leader unless it says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """The settings that a member needs to take part."""

    cluster: bytes
    """The cluster's UUID, 16 bytes."""
    member: int
    """This member's id, from 1 on."""
    name: str
    listen: str
    """The address for other members, ``host:port``."""
    advertise: str = ""
    """Where others reach it, if that is another address."""
    join: Sequence[str] = ()
    """Addresses of members, of which one is asked while this member lacks a copy. The others are known from the hosts'
    configurations."""
    tls: Tls | None = None
    """Needed unless every address is of the loopback."""
    kept_bytes: int = KEPT_BYTES
    """How much of each log's end stays for members that lag; one that lags more gets an update by segments."""


class Member:
    """A running member. Its methods may be called from any thread; it closes with ``with`` or :meth:`close`.

    ``directory`` has one directory for each host, a replicated store, with ``VOTE`` and the member's copy in it. A host
    whose copy cannot be opened is not served, and the member lives on: see :meth:`standings`.
    """

    def __init__(self, directory: str | Path, config: MemberConfig) -> None:
        """Starts the member, and returns when it listens.

        Raises ``OptionError``, and ``StoreError`` if it cannot listen.
        """
        self.directory = Path(directory)
        self.config = config
        self._running = MemberLoop(self.directory, config)
        self._closed = False
        try:
            self._run(self._running.start())
        except BaseException:
            self._closed = True
            self._running.end()
            raise

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        if threading.get_ident() == self._running.thread_id:
            work.close()
            raise StoreError("a blocking call on the member's own loop would never end: make it in another thread")
        return asyncio.run_coroutine_threadsafe(work, self._running.loop).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the member; it first hands over the hosts that it leads, if another member can take them.

        A second call does nothing.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._run(self._running.stop())
        finally:
            self._running.end()

    @property
    def address(self) -> str:
        """The address where the member listens for other members."""
        return self._running.address

    def standings(self) -> dict[str, Standing]:
        """The state of each host on this member, by name."""

        async def ask() -> dict[str, Standing]:
            return {group.name: group.standing() for group in self._running.all_groups()}

        return self._run(ask())

    def report(self) -> dict[str, Any]:
        """The hosts, their members and the connections, in the form of ``logstore cluster status --json``."""

        async def ask() -> dict[str, Any]:
            return reports.running(self._running)

        return self._run(ask())

    def transfer(self, host: str, member: int = 0) -> None:
        """Hands the host over to this voter, or to any. ``EngineRefused``: this member does not lead it."""

        async def hand_over() -> None:
            self._running.group(host).transfer(member)

        self._run(hand_over())

    def members(self, host: str) -> list[Seat]:
        """The members of a host's group, as this member knows them."""

        async def ask() -> list[Seat]:
            return self._running.seats(self._running.group(host))

        return self._run(ask())

    def add_host(self, host: str, *, segment_size: int | None = None, within_s: float = VOTERS_WITHIN_S) -> int:
        """Makes a host that this member leads and the others join; how many voters it has after at most that long.

        Every other member must answer. Raises ``OptionError`` for a name that is taken or impossible, ``StoreError`` if
        a member does not answer or the disk refuses: then there is no such host.
        """
        return self._run(self._running.adding.add(host, segment_size, within_s))

    def remove(self, host: str, member: int, *, within_s: float = CHANGE_WITHIN_S) -> None:
        """Removes a member from a host's group, through its leader; one that leads hands over first.

        Its copy stays as it is, and takes part no longer. Raises ``OptionError`` for the only voter, ``NoMajority`` if
        it was not done in time: the same call finds out.
        """
        self._run(self._running.change(host, Wanted(engines.REMOVE, member), within_s))

    def rebuild(
        self, host: str, *, keep: bool = False, within_s: float = CHANGE_WITHIN_S, copy_within_s: float = COPY_WITHIN_S
    ) -> Rebuilt:
        """Replaces this member's copy of a host by a fresh one from the others; see ``rebuilding.py``.

        The others remove this member, its copy is discarded (``keep``: put aside as ``kept-N``), and it joins again.
        Waits ``within_s`` for the first and ``copy_within_s`` for the last, which goes on afterwards. Raises
        ``OptionError`` for an unknown host, and ``NoMajority`` if the others do not remove it in time: then its copy
        stays.
        """
        work = self._running.rebuilding.rebuild(host, keep=keep, within_s=within_s, copy_within_s=copy_within_s)
        return self._run(work)

    def reopen(self, host: str) -> Reopened:
        """Opens a host again whose copy has failed, without a new start of the member; see ``reopening.py``.

        A host that has not failed stays as it is. Raises ``OptionError`` for an unknown host, and what keeps the copy
        out, if it fails again: then it stays out. ``StoreError``, too, if the directory has less than what this member
        has said since it started, or while the copy is being rebuilt or opened again.
        """
        return self._run(self._running.reopening.reopen(host))

    def store(self, host: str, *, within_s: float = LEADER_WITHIN_S) -> MessageStore:
        """The store of a host that this member leads; waits up to the given time for an election to end.

        Raises ``NotLeader``, which names who leads, and ``NoMajority`` if no member leads.
        """
        return self._run(self._running.leading(host, within_s))

    def listen_to_hosts(self, listener: Callable[[HostNews], object] | None) -> None:
        """From now on it is called with each host as it stands, and whenever its store or leader changes; None ends it.

        The member's loop calls it, so it must not wait.
        """

        async def listen() -> None:
            self._running.listen(listener)

        self._run(listen())

    def accept_relays(self, acceptor: Acceptor | None) -> Me:
        """From now on other members may relay clients to this one: ``acceptor`` is awaited on the member's loop.

        Returns who this process is to the others: links that relay to them say the same.
        """

        async def accept() -> None:
            self._running.relay_acceptor = acceptor

        self._run(accept())
        return self._running.transport.me

    def why_not_led(self, host: str) -> str:
        """Why nobody leads a host, for people. Raises ``OptionError`` for an unknown one."""
        return self._run(self._running.why_not_led(host))

    async def lagging(self, host: str) -> list[str]:
        """The names of the members for which publishes to a host wait that this member leads.

        A coroutine for a program with an event loop of its own. Raises ``OptionError`` for an unknown host.
        """

        async def ask() -> list[str]:
            return reports.lagging(self._running, self._running.group(host))

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(), self._running.loop))

    @contextlib.asynccontextmanager
    async def leading(self, host: str, *, within_s: float = LEADER_WITHIN_S) -> AsyncIterator[MessageStore]:
        """The same as :meth:`store`, for a program with an event loop of its own.

        The store's calls wait; make them in threads.
        """
        work = self._running.leading(host, within_s)
        yield await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._running.loop))
