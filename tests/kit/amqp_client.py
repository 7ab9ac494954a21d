"""A raw AMQP client for tests: it sends exactly the bytes it is told to, and reads frames one by one."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any, Self

from pamqp import body, commands, frame, header, heartbeat

from kit.patience import PATIENCE_S

if TYPE_CHECKING:
    from types import TracebackType

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"


def raw_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A frame of any type and payload."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def publish_bytes(key: str, content: bytes = b"", *, channel: int = 1, **options: Any) -> bytes:
    """The frames of a publish."""
    properties = options.pop("properties", None)
    parts: list[Any] = [
        commands.Basic.Publish(routing_key=key, **options),
        header.ContentHeader(0, len(content), properties or commands.Basic.Properties()),
    ]
    parts += [body.ContentBody(content[at : at + 100_000]) for at in range(0, len(content), 100_000)]
    return b"".join(frame.marshal(each, channel) for each in parts)


class RawClient:
    """One socket. `expect` reads the next frame and asserts its type."""

    def __init__(self, port: int, *, timeout: float = PATIENCE_S, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # so that a frame is sent at once
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", port))
        self.buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, channel: int, *values: Any) -> None:
        self.socket.sendall(b"".join(frame.marshal(value, channel) for value in values))

    def receive(self) -> tuple[int, Any]:
        """The next frame that is not a heartbeat: channel and value. `ConnectionError` at the end."""
        while True:
            number, value = self.receive_any()
            if not isinstance(value, heartbeat.Heartbeat):
                return number, value

    def receive_any(self) -> tuple[int, Any]:
        while True:
            if self.buffer.startswith(b"AMQP") and len(self.buffer) >= 8:
                header_bytes, self.buffer = self.buffer[:8], self.buffer[8:]
                return 0, header_bytes
            if len(self.buffer) >= 7:
                size = struct.unpack_from(">I", self.buffer, 3)[0] + 8
                if len(self.buffer) >= size:
                    _, number, value = frame.unmarshal(self.buffer[:size])
                    self.buffer = self.buffer[size:]
                    return number, value
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self.buffer += data

    def expect(self, kind: type[Any]) -> Any:
        _, value = self.receive()
        assert isinstance(value, kind), f"expected {kind.__name__}, got {describe(value)}"
        return value

    def expect_end(self) -> None:
        """The broker closes the connection without another frame."""
        try:
            data = self.buffer or self.socket.recv(1 << 16)
        except ConnectionResetError:
            return
        assert data == b"", f"expected the end, got {data!r}"

    def expect_connection_close(self, code: int) -> str:
        close = self.expect(commands.Connection.Close)
        assert close.reply_code == code, f"expected {code}, got {close.reply_code} {close.reply_text}"
        self.send(0, commands.Connection.CloseOk())
        self.expect_end()
        return str(close.reply_text)

    def expect_channel_close(self, code: int) -> str:
        close = self.expect(commands.Channel.Close)
        assert close.reply_code == code, f"expected {code}, got {close.reply_code} {close.reply_text}"
        return str(close.reply_text)

    def start(
        self, name: str = "guest", password: str = "guest", product: str | None = None, *, wants_blocked: bool = False
    ) -> None:
        self.send_bytes(PROTOCOL_HEADER)
        self.expect(commands.Connection.Start)
        response = f"\x00{name}\x00{password}"
        properties: dict[str, Any] = {} if product is None else {"product": product}
        if wants_blocked:
            properties["capabilities"] = {"connection.blocked": True}
        self.send(0, commands.Connection.StartOk(properties, "PLAIN", response, "en_US"))

    def open(
        self,
        *,
        channels: int = 1,
        frame_max: int = 131072,
        heartbeat: int = 0,
        channel_max: int = 0,
        product: str | None = None,
        virtual_host: str = "/",
        wants_blocked: bool = False,
    ) -> RawClient:
        """Log in and open channels 1, 2, …"""
        self.start(product=product, wants_blocked=wants_blocked)
        self.expect(commands.Connection.Tune)
        self.send(
            0, commands.Connection.TuneOk(channel_max, frame_max, heartbeat), commands.Connection.Open(virtual_host)
        )
        self.expect(commands.Connection.OpenOk)
        for number in range(1, channels + 1):
            self.open_channel(number)
        return self

    def open_channel(self, number: int) -> None:
        self.send(number, commands.Channel.Open())
        self.expect(commands.Channel.OpenOk)

    def declare(self, queue: str, **options: Any) -> Any:
        self.send(1, commands.Queue.Declare(queue=queue, **options))
        return self.expect(commands.Queue.DeclareOk)

    def publish(self, key: str, content: bytes = b"", **options: Any) -> None:
        self.socket.sendall(publish_bytes(key, content, **options))

    def content(self) -> tuple[header.ContentHeader, bytes]:
        """The content that follows a deliver, get-ok or return."""
        head = self.expect(header.ContentHeader)
        pieces = b""
        while len(pieces) < head.body_size:
            pieces += self.expect(body.ContentBody).value
        return head, pieces

    def delivery(self) -> tuple[commands.Basic.Deliver, bytes]:
        deliver = self.expect(commands.Basic.Deliver)
        return deliver, self.content()[1]


def describe(value: Any) -> str:
    if isinstance(value, commands.Connection.Close | commands.Channel.Close):
        return f"{value.name} {value.reply_code} {value.reply_text}"
    return getattr(value, "name", repr(value))
