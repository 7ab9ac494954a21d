"""The handshake, from the first byte to connection.open-ok: protocol header, login, tune, virtual host.

The steps have a fixed order; any other order is a connection exception. Before the login, frames larger
than a login are refused. `handshakes` ends a handshake whose client is slow.
"""

from __future__ import annotations

import enum
import platform
import struct
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands, decode

from logstore import __version__
from logstore.broker import frames
from logstore.broker.errors import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    NOT_ALLOWED,
    SYNTAX_ERROR,
    ConnectionException,
)
from logstore.broker.fields import MalformedFields, check_arguments
from logstore.broker.host import Host
from logstore.broker.limits import FRAME_BYTES_MIN
from logstore.broker.password_checks import TooManyChecks
from logstore.broker.relay import Handover

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pamqp import base

    from logstore.broker.connection import Connection

MECHANISMS: Final = "PLAIN AMQPLAIN"
LOCALE: Final = "en_US"


SERVER_PROPERTIES: Final[dict[str, Any]] = {
    "product": "logstore",
    "version": __version__,
    "platform": f"Python {platform.python_version()}",
    "information": "an append-only, log-structured message store",
    "capabilities": {
        "publisher_confirms": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "per_consumer_qos": True,
        "authentication_failure_close": True,
        "exchange_exchange_bindings": False,
        "connection.blocked": True,
        "consumer_priorities": False,
        "direct_reply_to": False,
    },
}


# The products whose basic.qos with global=false limits the whole channel at once, as AMQP 0-9-1 has it. kombu, which
# says that it is py-amqp, takes every broker but RabbitMQ to do so. To all others it limits each later consumer.
SHARING_PREFETCH: Final = frozenset({"py-amqp"})


class LoginRefused(ConnectionException):
    """The error 403.

    Its text has no reason, which would show a stranger which users exist; the reason is in the log.
    """

    def __init__(self, mechanism: str, reason: str) -> None:
        super().__init__(
            ACCESS_REFUSED,
            f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile.",
        )
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class _Step(enum.Enum):
    HEADER = enum.auto()
    START_OK = enum.auto()
    TUNE_OK = enum.auto()
    OPEN = enum.auto()
    DONE = enum.auto()


class Handshake:
    """The handshake of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._step = _Step.HEADER
        self._header = b""
        self._heartbeat_s = 0

    @property
    def step(self) -> object:
        """The next step that the client has to take. It is another object after each step."""
        return self._step

    @property
    def checks_password(self) -> bool:
        """True before the login, and so while it is in progress."""
        return self._step is _Step.START_OK

    @property
    def wants_header(self) -> bool:
        """True until the protocol header is complete."""
        return self._step is _Step.HEADER

    def on_header(self, data: bytes) -> bytes:
        """Remove the protocol header from the first bytes. Returns the remaining bytes, which are frames."""
        wanted = frames.PROTOCOL_HEADER
        missing = len(wanted) - len(self._header)
        self._header += data[:missing]
        if not wanted.startswith(self._header):
            # As the specification requires: send the supported protocol header, and close the socket.
            self._connection.send(wanted)
            self._connection.shut()
            return b""
        if len(self._header) < len(wanted):
            return b""
        self._step = _Step.START_OK
        self._connection.reply(
            commands.Connection.Start(server_properties=SERVER_PROPERTIES, mechanisms=MECHANISMS, locales=LOCALE)
        )
        return data[missing:]

    def on_method(self, method: base.Frame) -> Coroutine[Any, Any, None] | None:
        """Do the next step; returns a coroutine if it takes long."""
        if self._step is _Step.START_OK and isinstance(method, commands.Connection.StartOk):
            return self._login(method)
        if self._step is _Step.TUNE_OK and isinstance(method, commands.Connection.TuneOk):
            self._tune(method)
        elif self._step is _Step.OPEN and isinstance(method, commands.Connection.Open):
            return self._open(method)
        else:
            raise ConnectionException(COMMAND_INVALID, f"{method.name} is out of order")
        return None

    async def _login(self, method: commands.Connection.StartOk) -> None:
        connection = self._connection
        capabilities = method.client_properties.get("capabilities")
        if isinstance(capabilities, dict):
            connection.wants_cancel_notice = capabilities.get("consumer_cancel_notify") is True
            connection.wants_blocked_notice = capabilities.get("connection.blocked") is True
        name, password = _credentials(method)
        connection.prefetch_is_shared = method.client_properties.get("product") in SHARING_PREFETCH
        try:
            refusal = await connection.server.users.refusal(name, password, connection.peer)
        except TooManyChecks as error:
            raise ConnectionException(NOT_ALLOWED, str(error)) from None
        if connection.has_given_up:
            return
        if refusal is not None:
            raise LoginRefused(method.mechanism, refusal)
        connection.user = name
        self._step = _Step.TUNE_OK
        limits = connection.limits
        connection.reply(commands.Connection.Tune(limits.channels_max, limits.frame_bytes_max, limits.heartbeat_s))

    def _tune(self, method: commands.Connection.TuneOk) -> None:
        connection = self._connection
        connection.channels_max = _negotiated("channel_max", method.channel_max, connection.channels_max, 1)
        connection.frame_bytes_max = _negotiated(
            "frame_max", method.frame_max, connection.frame_bytes_max, FRAME_BYTES_MIN
        )
        connection.receiving.reader.frame_bytes_max = connection.frame_bytes_max
        connection.heartbeats.start(method.heartbeat)
        self._heartbeat_s = method.heartbeat
        self._step = _Step.OPEN

    def _open(self, method: commands.Connection.Open) -> Coroutine[Any, Any, None] | None:
        connection = self._connection
        assert connection.user is not None  # since the login
        host = connection.server.find_host(method.virtual_host, connection.user)
        self._step = _Step.DONE
        if host is None:
            return self._await_host(method.virtual_host, connection.user)
        self._opened(host)
        return None

    async def _await_host(self, name: str, user: str) -> None:
        connection = self._connection
        host = connection.peer
        handover = Handover(
            name,
            user,
            (str(host[0]), int(host[1])) if isinstance(host, tuple) else (str(host), 0),
            connection.channels_max,
            connection.frame_bytes_max,
            self._heartbeat_s,
            connection.wants_cancel_notice,
            connection.wants_blocked_notice,
            connection.prefetch_is_shared,
        )
        found = await connection.server.await_host(connection, handover)
        if isinstance(found, Host):
            if not connection.has_given_up:
                self._opened(found)
            return
        leader, upstream, upstream_gone = found
        if connection.has_given_up:
            upstream.abort()
            upstream_gone()
            return
        connection.relay_to(name, leader, upstream, upstream_gone)

    def take_over(self, handover: Handover, host: Host) -> None:
        """Another member has done the handshake."""
        connection = self._connection
        connection.user = handover.user
        connection.channels_max = min(handover.channels_max, connection.channels_max)
        connection.frame_bytes_max = connection.receiving.reader.frame_bytes_max = handover.frame_bytes_max
        connection.wants_cancel_notice = handover.wants_cancel_notice
        connection.wants_blocked_notice = handover.wants_blocked_notice
        connection.prefetch_is_shared = handover.prefetch_is_shared
        self._header = frames.PROTOCOL_HEADER
        self._step = _Step.DONE
        connection.heartbeats.start(handover.heartbeat_s)
        self._opened(host)
        connection.flush()

    def _opened(self, host: Host) -> None:
        connection = self._connection
        connection.server.admit(connection, host)
        connection.opened(host)
        connection.reply(commands.Connection.OpenOk())


def _negotiated(name: str, asked: int, offered: int, least: int) -> int:
    """The negotiated value: the client's, or the offered one if the client answers 0."""
    if not asked:
        return offered
    if asked < least:
        raise ConnectionException(
            NOT_ALLOWED, f"negotiated {name} = {asked} is lower than the minimum allowed value ({least})"
        )
    if asked > offered:
        raise ConnectionException(
            NOT_ALLOWED, f"negotiated {name} = {asked} is higher than the maximum allowed value ({offered})"
        )
    return asked


def _credentials(method: commands.Connection.StartOk) -> tuple[str, str]:
    response: Any = method.response  # pamqp decodes it to str if it is valid UTF-8
    data = response.encode() if isinstance(response, str) else bytes(response)
    if method.mechanism == "PLAIN":
        parts = data.split(b"\x00")
        if len(parts) != 3:
            raise ConnectionException(SYNTAX_ERROR, "the PLAIN response is malformed")
        name, password = parts[1], parts[2]
    elif method.mechanism == "AMQPLAIN":
        name, password = _amqplain(data)
    else:
        raise ConnectionException(
            ACCESS_REFUSED, f"mechanism {method.mechanism} is not offered; use one of {MECHANISMS}"
        )
    try:
        return name.decode(), password.decode()
    except UnicodeDecodeError:
        raise ConnectionException(SYNTAX_ERROR, "name and password must be UTF-8") from None


def _amqplain(data: bytes) -> tuple[bytes, bytes]:
    table_bytes = struct.pack(">I", len(data)) + data
    try:
        check_arguments(("table",), table_bytes, 0)
        _, table = decode.field_table(table_bytes)
    except (MalformedFields, ValueError, ArithmeticError, OSError):
        raise ConnectionException(SYNTAX_ERROR, "the AMQPLAIN response is malformed") from None
    values = [table.get("LOGIN"), table.get("PASSWORD")]
    name, password = (value.encode() if isinstance(value, str) else value for value in values)
    if not isinstance(name, bytes) or not isinstance(password, bytes):
        raise ConnectionException(SYNTAX_ERROR, "the AMQPLAIN response lacks LOGIN or PASSWORD")
    return name, password
