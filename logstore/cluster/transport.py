"""The connections of a member to the others: who dials, which connection counts, and what is reported to the member.

One loop, one thread. It moves frames of the engines and their batches, and knows neither store nor engine.

Two members have one connection of the purpose ``frames``. Each side may dial. Of two dials that cross one is refused,
by a rule that both sides evaluate alike (R12); the first row that applies counts:

| a HELLO comes, and | then |
| --- | --- |
| another process of the peer is connected | refused: one of the two runs in a copied directory, or has just died |
| its number is not above the newest taken from this process of the peer | refused: it is older |
| this member has no own dial to the peer, neither in progress nor open | taken |
| the HELLO says that the peer saw this dial, or comes from a later process | taken: the peer has lost this dial |
| this member is the lower of the two | refused: the dials cross, and the peer takes this member's |
| this member is the higher | taken: the peer refuses this member's dial, by the row above |

A process that has died is noticed at once if its machine lives, and else when nothing came for three heartbeats. So the
first row delays a new start by no more than that, and no two processes take part as one member, which could vote twice.

A HELLO that is taken ends this member's own dial and closes the older connection before a frame of the new one is read.

Other purposes have a connection of their own, which becomes a pair of streams: ``update``; ``join``, by which a program
that nobody knows yet asks for the cluster's members; and ``relay``, for a client of another member's broker.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import logstore
from logstore.cluster import addresses, frames
from logstore.cluster.certificates import member_name
from logstore.cluster.frames import Carried, Hello, Identity, Message, Messages
from logstore.cluster.link import HANDSHAKE_TICKS, Link, Received, State, Why
from logstore.cluster.replica import UUID_BYTES
from logstore.core import arguments
from logstore.errors import OptionError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from logstore.cluster.addresses import Tls
    from logstore.cluster.engine import Frame

__all__ = [
    "Carried",
    "Handler",
    "Hello",
    "Identity",
    "Me",
    "Message",
    "Nobody",
    "Received",
    "Transport",
    "new_event_loop",
]

logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 0.1
BACKOFF_S: Final = (0.05, 1.0)  # between dials: the first pause and the longest
GREETING_MAX: Final = 64  # sockets that have not said HELLO
PURPOSES: Final = ("frames", "update", "join", "relay")
NO_CLUSTER: Final = bytes(UUID_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """The identity of this member."""

    cluster: bytes
    """The cluster's UUID."""
    member: int
    name: str
    start: int = field(default_factory=time.time_ns)
    """Of this process: larger than that of any earlier process of the member. If it is not, because a clock was set
    back, the member is refused until the connection of the earlier process has ended."""
    program: str = logstore.__version__
    versions: tuple[int, int] = frames.VERSIONS
    """The lowest and the highest version of the wire."""


class Handler(Protocol):
    """The calls that a member implements. All of it is called on the loop, and returns at once."""

    def identity(self, peer: int) -> dict[bytes, Identity]:
        """The state of each host on this member's disk, for a HELLO to this peer."""

    def greeted(self, peer: int, hello: Hello) -> str | None:
        """Judges a peer's HELLO: returns a reason to refuse it, or None. Asked on both sides of a connection."""

    def connected(self, peer: int) -> None:
        """Frames can be sent."""

    def lost(self, peer: int, reset: bool) -> None:
        """The connection is gone, or the peer's machine refused a dial, even if there was no connection before.

        ``reset``: the peer's process is gone or closed it, so an election need not wait (``Engine.lost``). Not so if
        the peer is silent.
        """

    def frames(self, peer: int, received: list[Received]) -> None:
        """Engine frames have arrived; they are in order."""

    def control(self, peer: int, message: Message) -> None:
        """A control message has arrived."""

    def room(self, peer: int) -> None:
        """There is now as much room as the latest :meth:`Transport.send` or ``room`` needed and did not find."""

    def refused(self, peer: int, kind: str, reason: str) -> None:
        """A connection was refused, by either side; ``kind`` is one of ``link.Why``. ``peer`` is 0 if it is unknown."""

    def update(self, peer: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A peer has opened a connection for an update."""

    def join(self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A program that wants to become a member has opened a connection. With TLS its certificate has its name."""

    def relay(self, name: str, link: Link) -> None:
        """A peer of this name relays a client, over the link's streams."""

    def is_expected(self, hello: Hello) -> bool:
        """Whether a member that :meth:`Transport.set_peers` did not name may connect nevertheless."""


class Nobody:
    """The handler of a transport that only opens connections for another purpose than frames: it has no host."""

    def identity(self, peer: int) -> dict[bytes, Identity]:  # noqa: ARG002
        """None."""
        return {}

    def greeted(self, peer: int, hello: Hello) -> str | None:  # noqa: ARG002
        """Anybody may answer."""
        return None

    def refused(self, peer: int, kind: str, reason: str) -> None:
        """The call that opens the connection raises that."""

    def lost(self, peer: int, reset: bool) -> None:
        """So also here."""


class _Peer:
    """A member that this one talks to. Without an address it is not dialled, and goes with its connection."""

    def __init__(self, member: int, name: str, address: str) -> None:
        self.member = member
        self.name = name
        self.address = address
        self.link: Link | None = None  # the link that counts; open, or its HELLO was accepted
        self.dialling: Link | None = None  # since HELLO was sent
        self.task: asyncio.Task[None] | None = None  # dials
        self.timer: asyncio.TimerHandle | None = None  # until the next dial
        self.backoff_s = 0.0
        self.newest = (0, 0)  # start and number of the newest dial that was accepted
        self.last = ""  # why there is no connection
        self.speaks = 0  # the highest version that it announced last

    def own(self) -> Link | None:
        """The link of this side's dial, in progress or open."""
        if self.dialling is not None:
            return self.dialling
        return self.link if self.link is not None and self.link.is_dialled else None

    def stop_dialling(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.task is not None and self.dialling is None:  # else it is about to end
            self.task.cancel()
        self.timer = self.task = None
        if self.dialling is not None:
            dialling, self.dialling = self.dialling, None
            dialling.close_silently()


class Transport:
    """All connections of a member. It belongs to the loop that runs when it is made."""

    def __init__(
        self,
        me: Me,
        handler: Handler,
        *,
        tls: Tls | None = None,
        messages: Iterable[type[Message]] = (),
        heartbeat_s: float = HEARTBEAT_S,
        backoff_s: tuple[float, float] = BACKOFF_S,
    ) -> None:
        """``messages`` are the control messages of the member. ``OptionError``: an option is impossible."""
        if len(me.cluster) != UUID_BYTES:
            raise OptionError(f"cluster is a UUID: {UUID_BYTES} bytes")
        arguments.integer("member", me.member, 1, (1 << 64) - 1)
        member_name(me.name)
        self.me = me
        self.handler = handler
        self.messages = Messages(messages)
        self.loop = asyncio.get_running_loop()
        self._contexts = None if tls is None else (tls.context(listens=False), tls.context(listens=True))
        self._tls = tls
        self._heartbeat_s = heartbeat_s
        self._backoff_s = backoff_s
        self._peers: dict[int, _Peer] = {}
        self._links: set[Link] = set()
        self._greeting: set[Link] = set()
        self._uuids: dict[int, bytes] = {}
        self._hosts: dict[bytes, int] = {}
        self._next_host = 1
        self._numbers = 0
        self._made: tuple[Any, Any, list[list[Any]]] = None, None, []  # the newest append: its content, and its frames
        self._server: asyncio.Server | None = None
        self._listen = ""
        self._ticker: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] | None = None  # links that are being closed; done when none is left

    # ---- for the member ----

    async def start(self, listen: str) -> str:
        """Listens, and dials the peers from now on. The address, with the real port where 0 was given.

        Raises ``OptionError`` for an address that needs TLS, ``StoreError`` if it cannot be used.
        """
        if self._contexts is None:
            addresses.judge_plain([listen, *(peer.address for peer in self._peers.values())])
        host, port = addresses.parse(listen)
        context, limit_s = (None, None) if self._contexts is None else (self._contexts[1], self._handshake_s)
        try:
            self._server = await self.loop.create_server(
                lambda: Link(self), host, port, ssl=context, ssl_handshake_timeout=limit_s
            )
        except OSError as error:
            raise StoreError(f"the cluster's address {listen} cannot be used: {error}") from error
        self._listen = addresses.joined(host, self._server.sockets[0].getsockname()[1])
        if self._heartbeat_s:
            self._ticker = self.loop.call_later(self._heartbeat_s, self._on_timer)
        for peer in self._peers.values():
            self._dial_soon(peer, 0)
        return self._listen

    def set_peers(self, peers: Mapping[int, tuple[str, str]]) -> None:
        """The other members: by id, name and address. Connections to others that were named before are closed.

        Raises ``OptionError`` for a name or an address that cannot be one, or needs TLS; then nothing changes.
        """
        for member, (name, address) in peers.items():
            arguments.integer("member", member, 1, (1 << 64) - 1)
            member_name(name)
            addresses.parse(address)
            if member == self.me.member:
                raise OptionError(f"member {member} is no peer of its own")
        if self._contexts is None:
            addresses.judge_plain([*(address for _, address in peers.values()), *filter(None, [self._listen])])
        for member, peer in list(self._peers.items()):
            named = peers.get(member)
            if named == (peer.name, peer.address) or (named is None and not peer.address):
                continue
            if named is not None and (named[0], "") == (peer.name, peer.address):
                peer.address = named[1]  # it connected before it was listed here
                continue
            peer.stop_dialling()
            del self._peers[member]
            for link in [link for link in self._links if link.peer == member]:
                link.close(Why.REMOVED, f"member {self.me.member} has no such peer any more")
        for member, (name, address) in peers.items():
            if member not in self._peers:
                self._peers[member] = _Peer(member, name, address)
                self._dial_soon(self._peers[member], 0)

    def renew(self, member: int = 0) -> None:
        """Ends all connections for frames, or those to one peer, and dials again: HELLO then has the present state."""
        for peer in self._peers.values():
            if member in (0, peer.member):
                peer.stop_dialling()
        for link in [link for link in self._links if link.purpose == "frames" and member in (0, link.peer)]:
            link.close(Why.RENEWED, f"member {self.me.member} connects anew, because a copy is another")
        for peer in self._peers.values():
            self._dial_soon(peer, 0)

    async def close(self) -> None:
        """Closes every connection, and returns when they are gone. A second call does nothing."""
        if self._closed is not None:
            return
        self._closed = self.loop.create_future()
        if self._server is not None:
            self._server.close()
        for peer in self._peers.values():
            peer.stop_dialling()
        for link in list(self._links):
            link.close(Why.STOPPING, f"member {self.me.member} stops")
        if self._links:
            await self._closed
        if self._ticker is not None:
            self._ticker.cancel()

    def host(self, uuid: bytes) -> int:
        """The number of a host here, for :meth:`send`. Frames of hosts without one are dropped."""
        if len(uuid) != UUID_BYTES:
            raise OptionError(f"a host is named by its store's UUID: {UUID_BYTES} bytes")
        number = self._hosts.get(uuid)
        if number is None:
            number = self._hosts[uuid] = self._next_host
            self._uuids[number] = uuid
            self._next_host += 1
        return number

    def drop_host(self, number: int) -> None:
        """The host is no longer here. Its number is not given again."""
        uuid = self._uuids.pop(number, None)
        if uuid is not None:
            del self._hosts[uuid]

    def send(self, peer: int, host: int, frame: Frame, carried: Sequence[Carried] = ()) -> bool:
        """Sends an engine frame of a host, with the batches of an ``APPEND``, at the end of this turn of the loop.

        False: not connected, or too little :meth:`room` (then ``Handler.room`` follows); nothing was sent. Raises
        ``OptionError`` if the frame cannot be expressed, or does not fit its batches.
        """
        link = self._open_link(peer)
        uuid = self._uuids.get(host)
        if uuid is None:
            raise OptionError(f"{host} is no host of this member")
        if link is None:
            return False
        if carried:
            parts = self._parts(host, frame, carried)
            link.announce(host, uuid)
            return link.send_parts(host, parts)
        made = frames.record(host, frame)
        link.announce(host, uuid)
        link.send_record(host, made)
        return True

    def _parts(self, host: int, frame: Frame, carried: Sequence[Carried]) -> list[list[Any]]:
        """Makes the frames of an append once, because the same append mostly goes to several peers in turn."""
        said = (host, frame[0], frame[2:])  # all but the peer
        if said != self._made[0] or carried[0][0] is not self._made[1]:
            self._made = said, carried[0][0], frames.message_parts(host, frame, carried)
        return self._made[2]

    def control(self, peer: int, message: Message) -> bool:
        """Sends a control message. False: not connected. Raises ``OptionError`` for one that is too long or unknown."""
        link = self._open_link(peer)
        if link is not None:
            link.send_control(message)
        return link is not None

    def room(self, peer: int, wanted: int = 0) -> int:
        """How many bytes of batches (``frames.message_bytes``) may be sent to the peer now; 0: not connected.

        If they are fewer than ``wanted``, ``Handler.room`` is called when there are as many.
        """
        link = self._open_link(peer)
        return 0 if link is None else link.room(wanted)

    def why_not(self, peer: int) -> str:
        """Why there is no connection to the peer; empty if there is one."""
        known = self._peers.get(peer)
        if known is None:
            return f"member {peer} is no peer"
        return "" if self._open_link(peer) is not None else known.last or "not connected yet"

    def speaks(self, peer: int) -> int:
        """The highest version of the protocol that the peer announced in its latest connection; 0: there was none."""
        known = self._peers.get(peer)
        return 0 if known is None else known.speaks

    async def open_update(self, peer: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a connection for an update. Raises ``StoreError`` if the peer refuses it, or cannot be reached."""
        known = self._peers.get(peer)
        if known is None or self._closed is not None:
            raise OptionError(f"member {peer} is no peer")
        return (await self._opened(known, "update")).streams_opened()

    async def open_relay(self, peer: int) -> Link:
        """Opens a connection for a client that is relayed. Raises ``StoreError`` if it cannot be had."""
        known = self._peers.get(peer)
        if known is None or self._closed is not None:
            raise StoreError(f"member {peer} is no peer")
        return await self._opened(known, "relay")

    async def open_join(self, address: str) -> tuple[Hello, asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a connection to a member whose address alone is known; returns its HELLO and the streams.

        Raises ``OptionError`` for an address that needs TLS, ``StoreError`` if it refuses, or cannot be reached.
        """
        if self._tls is None:
            addresses.judge_plain([address])
        link = await self._opened(_Peer(0, "", address), "join")
        assert link.hello is not None
        return link.hello, *link.streams_opened()

    async def _opened(self, peer: _Peer, purpose: str) -> Link:
        try:
            async with asyncio.timeout(self._handshake_s):
                link = await self._connect(peer, purpose)
                await link.opened
        except (OSError, TimeoutError) as error:
            who = f"member {peer.member}" if peer.member else "a member"
            raise StoreError(f"no {purpose} from {who} at {peer.address}: {_text(error)}") from error
        return link

    def tick(self) -> None:
        """A heartbeat has passed. The transport's own timer calls this, unless ``heartbeat_s`` is 0."""
        for link in list(self._links):
            link.tick()

    # ---- for links ----

    def made(self, link: Link) -> bool:
        """A link has a socket; returns whether the link is still wanted."""
        if self._closed is not None or (not link.is_dialled and len(self._greeting) >= GREETING_MAX):
            return False
        self._links.add(link)
        if not link.is_dialled:
            self._greeting.add(link)
        elif link.purpose == "frames":
            peer = self._peers.get(link.peer)
            if peer is None or peer.link is not None:  # taken while it connected
                self._links.discard(link)
                return False
            peer.dialling = link
        return True

    def next_number(self) -> int:
        """The number of a new dial."""
        self._numbers += 1
        return self._numbers

    def hello(self, peer: int, number: int, purpose: str) -> Hello:
        """The HELLO of this side."""
        known = self._peers.get(peer)
        me, seen = self.me, (0, 0) if known is None else known.newest
        hosts = {} if purpose == "join" else self.handler.identity(peer)
        return Hello(
            me.cluster, me.member, me.name, me.program, me.versions, me.start, number, *seen, purpose, hosts
        )  # fmt: skip

    def judge(self, link: Link, hello: Hello) -> tuple[Why, str] | None:
        """Why a HELLO is refused; None: it is accepted."""
        peer = self._peers.get(hello.member)
        names = addresses.dns_names(link.transport.get_extra_info("peercert"))
        joins = (link.purpose if link.is_dialled else hello.purpose) == "join"
        unknown = self.me.cluster if link.is_dialled else hello.cluster
        if hello.cluster != self.me.cluster and not (joins and unknown == NO_CLUSTER):
            return Why.CLUSTER, f"this is cluster {self.me.cluster.hex()}, not {hello.cluster.hex()}"
        is_wrong = hello.purpose not in PURPOSES or (not joins and link.is_dialled and link.peer != hello.member)
        if is_wrong or (peer is None and not joins and not self._is_stranger(link, hello)):
            return Why.MEMBER, f"member {hello.member} is not expected at {self._listen} for {hello.purpose}"
        if peer is not None and hello.name != peer.name:
            return Why.NAME, f"member {hello.member} is called {peer.name}, not {hello.name}"
        if self._contexts is not None and hello.name not in names:
            return Why.NAME, f"the certificate of {hello.name} is one of {', '.join(sorted(names)) or 'nobody'}"
        link.peer = hello.member
        if joins:
            return None
        if peer is not None and (refused := self._judge_process(peer, hello)) is not None:
            return refused
        if peer is not None and not link.is_dialled and hello.purpose == "frames":
            refused = self._judge_order(peer, hello)
            if refused is not None:
                return refused
        reason = self.handler.greeted(hello.member, hello)
        if reason is None and peer is None:
            self._peers[hello.member] = _Peer(hello.member, hello.name, "")
        return None if reason is None else (Why.HANDLER, reason)

    def _is_stranger(self, link: Link, hello: Hello) -> bool:
        """Whether the handler expects this member although no address of it is known here."""
        return not link.is_dialled and hello.purpose == "frames" and self.handler.is_expected(hello)

    def _judge_process(self, peer: _Peer, hello: Hello) -> tuple[Why, str] | None:
        held = peer.link
        if held is None or held.hello is None or held.hello.start == hello.start:
            return None
        return Why.RUNS, (
            f"another process is connected as member {hello.member} ({hello.name}): its directory was copied and both "
            "run, or that one has just died and is not given up yet; stop the one that is not meant"
        )

    def _judge_order(self, peer: _Peer, hello: Hello) -> tuple[Why, str] | None:
        """Decides between two links, by the table at the top of this file."""
        if hello.start == peer.newest[0] and hello.connection <= peer.newest[1]:
            return Why.OLDER, f"connection {hello.connection} came after connection {peer.newest[1]}"
        own = peer.own()
        if own is not None and self.me.member < peer.member:
            is_later_process = own.hello is not None and hello.start > own.hello.start
            saw = (hello.seen_start, hello.seen_connection) >= (self.me.start, own.number)
            if not saw and not is_later_process:
                return Why.CROSSED, f"member {self.me.member} dials as well, with connection {own.number}"
        return None

    def took(self, link: Link, hello: Hello) -> None:
        """The side that was dialled has accepted a HELLO."""
        self._greeting.discard(link)
        if hello.purpose != "frames":
            return
        peer = self._peers[hello.member]
        peer.newest = (hello.start, hello.connection)
        peer.stop_dialling()
        self._supersede(peer, link)

    def _supersede(self, peer: _Peer, link: Link) -> None:
        older, peer.link = peer.link, link
        if older is not None:
            older.close(Why.NEWER, "a newer connection was taken")

    def opened(self, link: Link) -> None:
        """Both sides have accepted each other's HELLO."""
        self._greeting.discard(link)
        if link.purpose != "frames":
            link.streams = link.hand_over()
            if not link.is_dialled and link.purpose == "update":
                self.handler.update(link.peer, *link.streams)
            elif not link.is_dialled and link.hello is not None and link.purpose == "relay":
                self.handler.relay(link.hello.name, link)
            elif not link.is_dialled and link.hello is not None:
                self.handler.join(link.hello, *link.streams)
            return
        peer = self._peers[link.peer]
        peer.speaks = 0 if link.hello is None else link.hello.versions[1]
        if link.is_dialled:
            peer.dialling = None
            self._supersede(peer, link)
        peer.last = ""
        logger.info("connected to member %d (%s)", peer.member, peer.name)
        self.handler.connected(link.peer)

    def refused(self, link: Link, kind: str, reason: str) -> None:
        """One of the sides has refused a HELLO."""
        if kind != Why.CROSSED:
            logger.info("a connection with member %d was refused: %s: %s", link.peer, kind, reason)
        self.handler.refused(link.peer, kind, reason)

    def ended(self, link: Link, *, reset: bool, was_open: bool, lasted: bool, text: str) -> None:
        """A link delivers nothing more. ``lasted``: it was open for a heartbeat, so the peer is dialled at once."""
        self._greeting.discard(link)
        peer = self._peers.get(link.peer)
        if link.purpose != "frames" or peer is None:
            if was_open:
                self.handler.lost(link.peer, reset)
            return
        if peer.link is link or peer.dialling is link:
            peer.last = text
            if peer.link is link:
                peer.link = None
            else:
                peer.dialling = None
            if lasted:
                peer.backoff_s = 0.0
            self._dial_soon(peer, 0 if lasted else None)
            if not peer.address and peer.link is None:
                del self._peers[peer.member]
        if was_open:
            logger.info("the connection to member %d (%s) is gone: %s", peer.member, peer.name, text)
            self.handler.lost(link.peer, reset)

    def gone(self, link: Link) -> None:
        """A link's socket is closed."""
        self._links.discard(link)
        self._greeting.discard(link)
        if self._closed is not None and not self._links and not self._closed.done():
            self._closed.set_result(None)

    def host_of(self, uuid: bytes) -> int | None:
        """The number of a host here, if this member has it."""
        return self._hosts.get(uuid)

    # ---- dialling ----

    @property
    def _handshake_s(self) -> float:
        return HANDSHAKE_TICKS * HEARTBEAT_S

    def _open_link(self, peer: int) -> Link | None:
        known = self._peers.get(peer)
        link = None if known is None else known.link
        return link if link is not None and link.state is State.OPEN else None

    def _dial_soon(self, peer: _Peer, delay_s: float | None) -> None:
        """Dials after this time; None: after a pause that grows with each attempt."""
        if self._closed is not None or self._server is None or self._peers.get(peer.member) is not peer:
            return
        if peer.link is not None or peer.task is not None or peer.timer is not None or not peer.address:
            return
        if delay_s is None:
            peer.backoff_s = min(max(2 * peer.backoff_s, self._backoff_s[0]), self._backoff_s[1])
            delay_s = peer.backoff_s
        peer.timer = self.loop.call_later(delay_s, self._dial, peer)

    def _dial(self, peer: _Peer) -> None:
        peer.timer = None
        peer.task = self.loop.create_task(self._dialled(peer))

    async def _dialled(self, peer: _Peer) -> None:
        was_refused = False
        link = None
        try:
            async with asyncio.timeout(self._handshake_s):
                link = await self._connect(peer, "frames")
        except (OSError, TimeoutError) as error:
            peer.last = f"{peer.address} cannot be reached: {_text(error)}"
            was_refused = isinstance(error, ConnectionRefusedError | ConnectionResetError)
            if isinstance(error, ssl.SSLError):
                self.handler.refused(peer.member, Why.TLS, peer.last)
        if peer.task is asyncio.current_task():
            peer.task = None
            if link is None or link.state is State.CLOSED:
                self._dial_soon(peer, None)
            if was_refused:
                self.handler.lost(peer.member, True)

    async def _connect(self, peer: _Peer, purpose: str) -> Link:
        host, port = addresses.parse(peer.address)
        context, name = (None, None) if self._contexts is None else (self._contexts[0], peer.name)
        if self._tls is not None and not peer.name:  # any member may answer: judge() compares its certificate
            context, name = self._tls.context(listens=False), host
            context.check_hostname = False
        link = Link(self, dials=peer.member, purpose=purpose)
        try:
            await self.loop.create_connection(lambda: link, host, port, ssl=context, server_hostname=name)
        except BaseException:
            link.close_silently()  # uvloop tells it nothing
            self.gone(link)
            raise
        return link

    def _on_timer(self) -> None:
        self._ticker = self.loop.call_later(self._heartbeat_s, self._on_timer)
        self.tick()


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop for a member: uvloop's where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
