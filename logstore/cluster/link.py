"""One connection between two members: its handshake, what waits to be sent, and what was received.

    dialler                            dialled
    preamble, HELLO ─────────────────▶ judges it; closes an older connection
                    ◀───────────────── preamble, HELLO, WELCOME        (or: preamble, REFUSED)
    judges it, open
    WELCOME ─────────────────────────▶ open                            (or: REFUSED)

What always holds: nothing is delivered before the connection is open, and nothing after it was closed here; engine
frames of one host keep their order. Frames of a host wait behind its own parts only, and parts of several hosts
alternate, so heartbeats of other hosts pass bulk. No bytes of a peer cause a traceback: they close the connection, with
a reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from logstore.cluster import frames
from logstore.cluster.frames import BadFrame, Closing, Hello, HostNumber, Message, Refused, Welcome
from logstore.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logstore.cluster.frames import Fields
    from logstore.cluster.replica import Batch
    from logstore.cluster.transport import Transport

WINDOW_BYTES: Final = 16 << 20  # bytes of parts that were sent to a peer and that it has not consumed
HIGH_BYTES: Final = 256 << 10  # if this many bytes wait for the socket, parts wait, so that heartbeats can pass them
UNSENT_BYTES_MAX: Final = 4 << 20  # limit of everything but parts, for a peer that does not read
UPDATE_BYTES: Final = 2 << 20  # asyncio holds up to twice this much of an update before its reader takes it
HOSTS_MAX: Final = 65_536  # numbers that a peer may announce
QUIET_TICKS: Final = 3  # after this long without a byte the peer is silent
HANDSHAKE_TICKS: Final = 20
CLOSE_TICKS: Final = 3  # how long a peer may take to read the reason


_RESETS: Final = (ConnectionResetError, BrokenPipeError, ConnectionAbortedError, ssl.SSLEOFError)


class State(enum.Enum):
    """What a connection waits for."""

    HELLO = 1
    WELCOME = 2
    OPEN = 3
    CLOSED = 4
    HANDED = 5  # to streams, for another purpose than frames


class Why(enum.StrEnum):
    """Why a connection is refused or closed; sent in ``Refused`` and ``Closing``."""

    CLUSTER = "other cluster"
    VERSION = "other version"
    MEMBER = "wrong member"
    NAME = "wrong name"
    RUNS = "another process"
    OLDER = "older connection"
    CROSSED = "crossing connection"
    HANDLER = "refused by the member"
    FRAME = "bad frame"
    SILENT = "silent"
    UNREAD = "does not read"
    NEWER = "newer connection"
    REMOVED = "no peer any more"
    RENEWED = "renewed"
    STOPPING = "the member stops"
    TLS = "TLS"
    UNANSWERED = "no answer"


class Received:
    """A received engine frame. With batches it holds room of its sender until :meth:`consumed` is called."""

    __slots__ = ("_bytes", "_link", "batches", "frame", "host")

    def __init__(
        self, host: int, frame: Fields, batches: Sequence[Batch] = (), link: Link | None = None, bytes_: int = 0
    ) -> None:
        self.host = host
        """This member's number of the host."""
        self.frame = frame
        """``engine.Frame._make(frame)``, with entries."""
        self.batches = batches
        self._link = link
        self._bytes = bytes_

    def consumed(self) -> None:
        """Called when the batches take no memory here any more: they were written or dropped.

        A second call does nothing.
        """
        link, self._link = self._link, None
        if link is not None:
            link.consumed(self._bytes)


class Link(asyncio.BufferedProtocol):
    """One connection; ``number`` is 0 if the peer dialled."""

    transport: asyncio.Transport

    def __init__(self, owner: Transport, *, dials: int | None = None, purpose: str = "frames") -> None:
        """``dials``: the id of the peer that this side dials, 0 if only its address is known; None: the peer dialled.

        HELLO tells.
        """
        self.owner = owner
        self.peer = dials or 0
        self.purpose = purpose
        self.is_dialled = dials is not None
        self.number = 0
        self.hello: Hello | None = None  # the peer's
        self.state = State.HELLO
        self.opened: asyncio.Future[None] = owner.loop.create_future()
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None  # once it was handed over
        self._reader = frames.Reader()
        self._joiner = frames.Joiner()
        self._urgent: list[bytes | bytearray] = []  # whole frames
        self._records: list[bytes] = []  # for one frame
        # By host: frames as buffers, and their bytes that count for the window.
        self._bulk: dict[int, deque[tuple[list[Any], int]]] = {}
        self._unsent = 0  # bytes of records in _bulk
        self._is_full = False
        self._is_scheduled = False
        self._announced: set[int] = set()
        self._numbers: dict[int, bytes] = {}  # of the peer
        self._sent_bytes = 0
        self._acknowledged_bytes = 0
        self._wanted_bytes = 0
        self._taken_bytes = 0
        self._consumed_bytes = 0
        self._told_bytes = 0
        self._ticks = 0
        self._quiet = 0
        self._has_heard = False
        self._has_sent = False
        self._lost_by = ""
        self._is_made = False

    # ---- called by asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection, with TLS if it is used, is open: the side that dialled speaks first."""
        self.transport = cast("asyncio.Transport", transport)
        self._is_made = True
        self.transport.set_write_buffer_limits(high=HIGH_BYTES)
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):  # heartbeats cannot pass what the kernel holds unsent
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, HIGH_BYTES)
        if not self.owner.made(self):
            self.state = State.CLOSED
            self.transport.abort()
        elif self.is_dialled:
            self.number = self.owner.next_number()
            try:
                data = frames.hello_bytes(self.owner.hello(self.peer, self.number, self.purpose))
            except OptionError as error:
                self._lost_by = str(error)
                self.close_silently()
                self.owner.refused(self, Why.HANDLER, str(error))
            else:
                self.transport.write(data)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        """The memory for the next received bytes."""
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were received."""
        self._has_heard = True
        self._reader.filled(nbytes)
        if self.state is State.CLOSED:
            self._reader.rest()
            return
        try:
            if self.hello is None and not self._greet():
                return
            self._read_all()
        except BadFrame as error:
            self.close(Why.FRAME, str(error))

    def pause_writing(self) -> None:
        """The socket's buffer is full."""
        self._is_full = True

    def resume_writing(self) -> None:
        """The socket has room again."""
        self._is_full = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed. An end that was not announced is that of the peer's process."""
        if isinstance(exc, ssl.SSLError) and self.state in (State.HELLO, State.WELCOME):
            self.owner.refused(self, Why.TLS, str(exc))
        elif self.state is State.HELLO and self.is_dialled and not self._has_heard:
            # With TLS this side learns no reason.
            self._lost_by = "the peer closed the connection before it answered: compare ca, cert and key on both sides"
            self.owner.refused(self, Why.UNANSWERED, self._lost_by)
        reset = exc is None or isinstance(exc, _RESETS)
        self._end(reset, self._lost_by or (f"the connection ended: {exc}" if exc else "the peer closed the connection"))
        self.owner.gone(self)

    # ---- the handshake ----

    def _greet(self) -> bool:
        """Reads the peer's HELLO; returns whether it was accepted."""
        found = self._reader.preamble()
        if found is None:
            return False
        lowest, highest, body = found
        if not lowest <= self.owner.me.versions[1] or not self.owner.me.versions[0] <= highest:
            mine = self.owner.me.versions
            self.refuse(Why.VERSION, f"here versions {mine[0]} to {mine[1]} are spoken, there {lowest} to {highest}")
            return False
        if not body:  # a refusal follows, or something that is ignored
            self.hello = Hello(bytes(16), 0, "", "", (lowest, highest), 0, 0, 0, 0, "", {})
            return True
        hello = frames.hello_of(body)
        if hello.versions != (lowest, highest):
            raise BadFrame("HELLO has other versions than its preamble")
        refused = self.owner.judge(self, hello)
        if refused is not None:
            self.refuse(*refused)
            return False
        if not self.is_dialled:
            try:
                answer = frames.hello_bytes(self.owner.hello(self.peer, 0, hello.purpose))
            except OptionError as error:
                self.refuse(Why.HANDLER, str(error))
                return False
            self.purpose = hello.purpose
            self.hello = hello
            self.owner.took(self, hello)
            self.transport.write(answer)
            self.transport.write(self.owner.messages.frame(Welcome()))
        self.hello = hello
        self.state = State.WELCOME
        return True

    def _on_answer(self, message: Message) -> None:
        if isinstance(message, Refused):
            self._lost_by = f"{message.kind}: {message.reason}"
            self.close_silently()
            self.owner.refused(self, message.kind, message.reason)
        elif not isinstance(message, Welcome) or self.state is not State.WELCOME:
            raise BadFrame(f"{type(message).__name__} came before WELCOME")
        else:
            if self.is_dialled:
                self.transport.write(self.owner.messages.frame(Welcome()))
            self.state = State.OPEN
            self._ticks = 0
            self.owner.opened(self)
            if not self.opened.done():
                self.opened.set_result(None)

    def refuse(self, why: Why, reason: str) -> None:
        """Refuses a HELLO."""
        if self.state is State.CLOSED:
            return
        if not self.is_dialled:
            self.transport.write(frames.hello_bytes(None, self.owner.me.versions))
        self.transport.write(self.owner.messages.frame(Refused(why, reason)))
        self._lost_by = f"{why}: {reason}"
        self.close_silently()
        self.owner.refused(self, why, reason)

    def hand_over(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Hands over the open connection as streams, which begin with the bytes received behind the handshake."""
        loop = self.owner.loop
        reader = asyncio.StreamReader(limit=UPDATE_BYTES, loop=loop)
        protocol = _Handed(reader, self)
        self.state = State.HANDED
        self.transport.pause_reading()  # uvloop supports both kinds of protocol, but must be told when the kind changes
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        self.transport.resume_reading()
        rest = self._reader.rest()
        self._reader.drop()
        if rest:
            reader.feed_data(rest)
        return reader, asyncio.StreamWriter(self.transport, protocol, reader, loop)

    def pass_to(self, protocol: asyncio.Protocol) -> None:
        """Gives the transport of the streams to another protocol, which must call ``owner.gone`` at its end.

        Nothing may have come since the streams were read for the last time.
        """
        self.transport.pause_reading()
        self.transport.set_protocol(protocol)
        self.transport.resume_reading()

    def streams_opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The streams of an open connection that is not for frames."""
        assert self.streams is not None
        return self.streams

    # ---- receiving ----

    def _read_all(self) -> None:
        received: list[Received] = []
        while self.state not in (State.CLOSED, State.HANDED):
            found = self._reader.frame()
            if found is None:
                break
            kind, frame = found
            if kind == frames.CONTROL:
                received = self._deliver(received)
                self._on_control(frame)
            elif self.state is not State.OPEN:
                raise BadFrame(f"a frame of type {kind} came before WELCOME")
            elif kind == frames.RECORDS:
                self._on_records(frame, received)
            else:
                self._on_part(frame, received)
        self._deliver(received)

    def _deliver(self, received: list[Received]) -> list[Received]:
        if received and self.state is State.OPEN:
            self.owner.handler.frames(self.peer, received)
        return []

    def _on_control(self, frame: memoryview) -> None:
        message = self.owner.messages.read(frame)
        if message is None or self.state is State.CLOSED:
            return
        if self.state is not State.OPEN:
            self._on_answer(message)
        elif isinstance(message, HostNumber):
            if len(self._numbers) >= HOSTS_MAX or self._numbers.get(message.number, message.uuid) != message.uuid:
                raise BadFrame(f"host number {message.number} cannot be given")
            self._numbers[message.number] = message.uuid
        elif isinstance(message, Closing | Refused):
            self._lost_by = f"{message.kind}: {message.reason}"
            self._end(message.kind == Why.STOPPING, self._lost_by)
            self.transport.close()
        elif isinstance(message, Welcome):
            raise BadFrame("a second WELCOME came")
        else:
            self.owner.handler.control(self.peer, message)

    def _host(self, number: int) -> int | None:
        """The number of this member for the peer's host number; None: this member has no such host."""
        uuid = self._numbers.get(number)
        if uuid is None:
            raise BadFrame(f"host number {number} was not announced")
        return self.owner.host_of(uuid)

    def _on_records(self, frame: memoryview, received: list[Received]) -> None:
        for number, fields in frames.records_of(frame, self.peer):
            if fields[6] == frames.TYPE_ACK:
                self._on_ack(fields[3])
                continue
            host = self._host(number)
            if self._joiner.is_open(number):
                raise BadFrame(f"a frame of host number {number} came between the parts of another")
            if host is not None:
                received.append(Received(host, fields))

    def _on_part(self, frame: memoryview, received: list[Received]) -> None:
        self._taken_bytes += len(frame)
        if self._taken_bytes - self._told_bytes > WINDOW_BYTES:
            raise BadFrame(f"more than {WINDOW_BYTES} bytes came unacknowledged")
        joined = self._joiner.take(frame, self.peer)
        if joined is None:
            return
        number, fields, batches, count = joined
        host = self._host(number)
        if host is None:
            self.consumed(count)
        else:
            received.append(Received(host, fields, batches, self, count))

    def consumed(self, count: int) -> None:
        """So many bytes of parts have been processed: tells the peer at the end of the turn."""
        self._consumed_bytes += count
        self._schedule()

    def _on_ack(self, total: int) -> None:
        if not self._acknowledged_bytes <= total <= self._sent_bytes:
            raise BadFrame(f"{total} bytes are acknowledged, after {self._acknowledged_bytes} of {self._sent_bytes}")
        self._acknowledged_bytes = total
        if 0 < self._wanted_bytes <= self.room():
            self._wanted_bytes = 0
            self.owner.loop.call_soon(self._tell_room)

    def _tell_room(self) -> None:
        if self.state is State.OPEN:
            self.owner.handler.room(self.peer)

    # ---- sending ----

    def room(self, wanted: int = 0) -> int:
        """How many bytes of parts may be sent now. If they are fewer than wanted, the member is called back once."""
        found = WINDOW_BYTES - (self._sent_bytes - self._acknowledged_bytes)
        if found < wanted:
            self._wanted_bytes = wanted
        return found

    def announce(self, host: int, uuid: bytes) -> None:
        """Tells the peer the number of a host, once."""
        if host not in self._announced:
            self._announced.add(host)
            self.send_control(HostNumber(host, uuid))

    def send_control(self, message: Message) -> None:
        """Sends a control message at the end of the turn, before parts that wait."""
        self._urgent.append(self.owner.messages.frame(message))
        self._schedule()

    def send_record(self, host: int, record: bytes) -> None:
        """Sends an engine frame without entries, behind the parts of the same host."""
        waiting = self._bulk.get(host)
        if waiting is None:
            self._records.append(record)
        else:
            waiting.append(([frames.records_frame([record])], frames.HEAD.size + frames.RECORD.size))
            self._unsent += frames.HEAD.size + frames.RECORD.size
        self._schedule()

    def send_parts(self, host: int, parts: list[list[Any]]) -> bool:
        """Sends a message if there is room for it; otherwise the member is called back when there is."""
        size = sum(sum(map(len, part)) for part in parts)
        if self.room(size) < size:
            return False
        self._sent_bytes += size
        waiting = self._bulk.get(host)
        if waiting is None:
            waiting = self._bulk[host] = deque()
        waiting.extend((part, 0) for part in parts)
        self._schedule()
        return True

    def _schedule(self) -> None:
        if not self._is_scheduled and self.state is State.OPEN:
            self._is_scheduled = True
            self.owner.loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._is_scheduled = False
        self._flush()

    def _flush(self) -> None:
        """Makes one write: first frames that may pass parts, then parts, host by host, until the socket is full."""
        if self.state is not State.OPEN:
            return
        out: list[Any] = self._urgent
        self._urgent = []
        records = self._records
        if self._consumed_bytes > self._told_bytes:
            self._told_bytes = self._consumed_bytes
            records.append(frames.ack(self._told_bytes))
        if records:
            self._records = []
            most = frames.RECORDS_MAX
            out += [frames.records_frame(records[at : at + most]) for at in range(0, len(records), most)]
        if self._bulk and not self._is_full:
            size = 0
            while self._bulk and size <= HIGH_BYTES:
                host, waiting = next(iter(self._bulk.items()))
                part, count = waiting.popleft()
                del self._bulk[host]
                if waiting:
                    self._bulk[host] = waiting  # all parts of this message were written: the next host's turn
                self._unsent -= count
                out += part
                size += sum(map(len, part))
        if out:
            self._has_sent = True
            self.transport.writelines(out)
        if self._unsent > UNSENT_BYTES_MAX or self.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._lost_by = f"{Why.UNREAD}: more than {UNSENT_BYTES_MAX} bytes wait for the peer"
            self._end(False, self._lost_by)
            self.transport.abort()
        elif self._bulk and not self._is_full:
            self._schedule()

    # ---- time, and the end ----

    def tick(self) -> None:
        """A heartbeat has passed: pings if nothing else was sent, and closes the connection of a silent peer."""
        self._ticks += 1
        if self.state in (State.HELLO, State.WELCOME):
            if self._ticks >= HANDSHAKE_TICKS:
                self._lost_by = f"{Why.SILENT}: no handshake"
                self.close_silently()
                self.transport.abort()
        elif self.state is State.CLOSED:
            if self._ticks >= CLOSE_TICKS:
                self.transport.abort()
        elif self.state is State.OPEN:
            self._quiet = 0 if self._has_heard else self._quiet + 1
            if self._quiet >= QUIET_TICKS:
                self._lost_by = f"{Why.SILENT}: nothing came for {QUIET_TICKS} heartbeats"
                self._end(False, self._lost_by)
                self.transport.abort()
            elif not self._has_sent:
                self.transport.write(frames.records_frame([]))
            self._has_heard = self._has_sent = False

    def close(self, why: Why, reason: str) -> None:
        """Sends a reason to the peer, and closes."""
        if self.state in (State.CLOSED, State.HANDED):
            self.transport.abort()
            return
        if self.state is State.HELLO and not self.is_dialled:
            self.transport.write(frames.hello_bytes(None, self.owner.me.versions))
        kind = Closing if self.state is State.OPEN else Refused
        self.transport.write(self.owner.messages.frame(kind(why, reason)))
        was_open = self.state is State.OPEN
        self._lost_by = f"{why}: {reason}"
        self._end(False, self._lost_by)
        self.transport.close()
        if not was_open:
            self.owner.refused(self, why, reason)

    def close_silently(self) -> None:
        """Closes without a message to the peer; the owner is told that the connection is gone."""
        self._end(False, self._lost_by)
        if self._is_made:
            self.transport.close()

    def _end(self, reset: bool, text: str) -> None:
        """Delivers nothing more from here on."""
        if self.state is State.CLOSED:
            return
        was_open = self.state is State.OPEN
        lasted = was_open and self._ticks > 0
        self.state = State.CLOSED
        self._ticks = 0
        for held in (self._urgent, self._records, self._bulk):
            held.clear()
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(text))
            self.opened.exception()  # nobody may wait for it
        self.owner.ended(self, reset=reset, was_open=was_open, lasted=lasted, text=text)


class _Handed(asyncio.StreamReaderProtocol):
    """Streams that tell the transport when they end."""

    def __init__(self, reader: asyncio.StreamReader, link: Link) -> None:
        super().__init__(reader, loop=link.owner.loop)
        self._link = link

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._link.owner.gone(self._link)
