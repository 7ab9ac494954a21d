"""AMQP 0-9-1 for the load client: login and calls through pamqp, and hand-made frames for messages.

Frames that are sent often are prepared: a block of publishes differs from the previous one in eight bytes of each body.
Received data is only counted and kept while the clock runs; `check_deliveries` checks every byte afterwards.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Any, Final

from pamqp import base, commands, header
from pamqp import frame as pamqp_frame

if TYPE_CHECKING:
    from collections.abc import Iterable

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
PREFIX: Final = struct.Struct(">BHI")  # type, channel, size
ACK: Final = struct.Struct(">BHIHHQBB")  # a whole basic.ack: prefix, class, method, tag, multiple, end octet
_ACK_BYTES: Final = 13
_SEQUENCE: Final = struct.Struct(">Q")
_END: Final = 0xCE

CHANNEL: Final = 1
ACK_INDEX: Final = commands.Basic.Ack.index
DELIVER_INDEX: Final = commands.Basic.Deliver.index
CANCEL_OK_INDEX: Final = commands.Basic.CancelOk.index
CONSUME_OK_INDEX: Final = commands.Basic.ConsumeOk.index

PERSISTENT: Final = commands.Basic.Properties(delivery_mode=2)
READ_BYTES: Final = 1 << 18


class WireError(Exception):
    """The server closed the channel or the connection, or violated the protocol."""


class Link:
    """One connection with one channel. Blocking for the login and for calls, non-blocking for the load."""

    def __init__(
        self, host: str, port: int, user: str, password: str, vhost: str = "/", timeout_s: float = 30.0
    ) -> None:
        self.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._unsent: memoryview | None = None
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(commands.Connection.Start)
        self.call(
            0,
            commands.Connection.StartOk({}, "PLAIN", f"\0{user}\0{password}", "en_US"),
            commands.Connection.Tune,
        )
        tune = self.last
        assert isinstance(tune, commands.Connection.Tune)
        self.frame_bytes_max = tune.frame_max or 131072
        self._send(0, commands.Connection.TuneOk(tune.channel_max, self.frame_bytes_max, 0))
        self.call(0, commands.Connection.Open(vhost), commands.Connection.OpenOk)
        self.call(CHANNEL, commands.Channel.Open(), commands.Channel.OpenOk)

    # Calls, one at a time.

    def _send(self, channel: int, method: base.Frame) -> None:
        self.socket.sendall(pamqp_frame.marshal(method, channel))

    def call(self, channel: int, method: base.Frame, answer: type[base.Frame]) -> Any:
        """Sends a method and waits for its answer. Raises `WireError` for another one."""
        self._send(channel, method)
        return self._expect(answer)

    def _expect(self, answer: type[base.Frame]) -> Any:
        while True:
            size = PREFIX.unpack_from(self._received)[2] + 8 if len(self._received) >= PREFIX.size else PREFIX.size
            if size > PREFIX.size and len(self._received) >= size:
                data, self._received = self._received[:size], self._received[size:]
                if data[0] == HEARTBEAT:
                    continue
                _, _, got = pamqp_frame.unmarshal(data)
                if not isinstance(got, answer):
                    raise WireError(f"{answer.name} was expected, but the server said {got!r}: {vars_of(got)}")
                self.last = got
                return got
            more = self.socket.recv(READ_BYTES)
            if not more:
                raise WireError(f"the server hung up before {answer.name}")
            self._received += more

    def declare(self, queue: str, arguments: dict[str, Any]) -> int:
        """A durable queue; how many messages it has."""
        declare = commands.Queue.Declare(queue=queue, durable=True, arguments=arguments)
        return int(self.call(CHANNEL, declare, commands.Queue.DeclareOk).message_count)

    def ready(self, queue: str) -> int:
        """How many messages wait on the queue."""
        declare = commands.Queue.Declare(queue=queue, passive=True)
        return int(self.call(CHANNEL, declare, commands.Queue.DeclareOk).message_count)

    def close(self) -> None:
        """Closes the connection, and ignores errors."""
        with contextlib.suppress(OSError, WireError):
            self.socket.settimeout(5)
            self.call(0, commands.Connection.Close(200, "done", 0, 0), commands.Connection.CloseOk)
        self.socket.close()

    # Load.

    def fileno(self) -> int:
        """The socket's number, so that `select` accepts the link itself."""
        return self.socket.fileno()

    @property
    def is_full(self) -> bool:
        """Whether bytes wait that the socket has not accepted yet."""
        return self._unsent is not None

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Sends what the socket accepts, keeps the rest. Only when not `is_full`; the buffer may be reused at once."""
        assert self._unsent is None
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._unsent = memoryview(bytes(memoryview(data)[sent:]))

    def send_rest(self) -> None:
        """The socket has room again."""
        if self._unsent is None:
            return
        with contextlib.suppress(BlockingIOError):
            sent = self.socket.send(self._unsent)
            self._unsent = self._unsent[sent:] if sent < len(self._unsent) else None

    def receive(self) -> bytes:
        """The data received. Raises `WireError` if the server hung up."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise WireError("the server hung up")
        return data


def vars_of(method: object) -> dict[str, Any]:
    """A method's arguments, for people."""
    return {name: getattr(method, name, None) for name in getattr(method, "__slots__", ())}


def explain(data: bytes) -> str:
    """An unexpected frame, as text."""
    try:
        _, channel, got = pamqp_frame.unmarshal(data)
    except Exception as error:  # noqa: BLE001 - the text goes into an error message
        return f"unreadable frame {data[:40]!r}: {error}"
    return f"channel {channel}: {got!r} {vars_of(got)}"


class Messages:
    """The messages of one queue: each body begins with its number, the rest is the queue's own pattern."""

    def __init__(self, queue: str, body_bytes: int, seed: int) -> None:
        self.body_bytes = body_bytes
        pattern = bytes((seed * 31 + at * 7 + (at >> 8)) & 0xFF for at in range(body_bytes - _SEQUENCE.size))
        self.pattern = pattern
        self.properties = PERSISTENT.marshal()
        method = pamqp_frame.marshal(commands.Basic.Publish(exchange="", routing_key=queue), CHANNEL)
        head = pamqp_frame.marshal(header.ContentHeader(0, body_bytes, PERSISTENT), CHANNEL)
        body = PREFIX.pack(BODY, CHANNEL, body_bytes) + bytes(_SEQUENCE.size) + pattern + bytes((_END,))
        self.frame_bytes = len(method) + len(head) + len(body)
        self._number_at = len(method) + len(head) + PREFIX.size
        self.block_messages = max(1, (128 << 10) // self.frame_bytes)
        self._block = bytearray((method + head + body) * self.block_messages)

    def encoded(self, first: int, count: int) -> memoryview:
        """Publishes number `first` and following; at most `block_messages`. Valid until the next call."""
        at, block, size = self._number_at, self._block, self.frame_bytes
        pack_into = _SEQUENCE.pack_into
        for number in range(first, first + count):
            pack_into(block, at, number)
            at += size
        return memoryview(block)[: count * size]


def acks(first: int, count: int) -> bytes:
    """A basic.ack for each delivery tag from `first` on."""
    index_class, index_method = ACK_INDEX >> 16, ACK_INDEX & 0xFFFF
    pack = ACK.pack
    return b"".join(
        [
            pack(METHOD, CHANNEL, _ACK_BYTES, index_class, index_method, tag, 0, _END)
            for tag in range(first, first + count)
        ]
    )


def ack_up_to(tag: int) -> bytes:
    """One basic.ack for everything up to `tag`."""
    return ACK.pack(METHOD, CHANNEL, _ACK_BYTES, ACK_INDEX >> 16, ACK_INDEX & 0xFFFF, tag, 1, _END)


def check_deliveries(chunks: Iterable[bytes | memoryview], messages: Messages, count: int) -> None:
    """Checks that every message came once, in order, not redelivered, with right bytes. Raises `WireError`."""
    data = b"".join(chunks)
    at = number = 0
    while at < len(data):
        kind, _, size = PREFIX.unpack_from(data, at)
        payload = data[at + PREFIX.size : at + PREFIX.size + size]
        if data[at + PREFIX.size + size] != _END:
            raise WireError("a frame does not end with its end octet")
        at += PREFIX.size + size + 1
        if kind == METHOD:
            if int.from_bytes(payload[:4], "big") != DELIVER_INDEX:
                continue
            tag_at = 5 + payload[4]
            tag, redelivered = struct.unpack_from(">QB", payload, tag_at)
            if tag != number + 1 or redelivered:
                raise WireError(f"delivery {number} has tag {tag} and redelivered={redelivered}")
        elif kind == HEADER:
            if payload[4:12] != _SEQUENCE.pack(messages.body_bytes) or payload[12:] != messages.properties:
                raise WireError(f"the header of message {number} is not the one that was published")
        elif kind == BODY:
            if payload != _SEQUENCE.pack(number) + messages.pattern:
                raise WireError(f"the content of message {number} is not the one that was published")
            number += 1
    if number != count:
        raise WireError(f"{number} messages came of {count}")
