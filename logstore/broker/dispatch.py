"""Dispatch of received frames: each frame goes to its handler, or is refused in the present state.

Errors are raised as AMQP exceptions; `Connection.on_error` closes the channel or the connection.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from logstore.broker import basic, frames, topology
from logstore.broker.channel import Channel
from logstore.broker.errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    NOT_ALLOWED,
    UNEXPECTED_FRAME,
    ConnectionException,
)
from logstore.broker.memory import CHANNEL_BYTES

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from logstore.broker.connection import Connection

_HANDLERS: Final = {**basic.HANDLERS, **topology.HANDLERS}
_CONNECTION_CLASS: Final = commands.Connection.frame_id
_PUBLISH: Final = commands.Basic.Publish.index
_CHANNEL_OPEN: Final = commands.Channel.Open.index
_CHANNEL_CLOSE: Final = commands.Channel.Close.index
_CHANNEL_CLOSE_OK: Final = commands.Channel.CloseOk.index
_CHANGES: Final = topology.HANDLERS.keys() | {commands.Basic.Cancel.index}  # slow methods that block their channel only


class State(enum.Enum):
    """The state of a connection."""

    OPENING = enum.auto()
    OPEN = enum.auto()
    RELAYED = enum.auto()  # its bytes are passed on to another member, and from it
    CLOSING = enum.auto()  # we sent connection.close and wait for close-ok
    CLOSED = enum.auto()


def dispatch(
    connection: Connection, channel: Channel | None, kind: int, number: int, index: int, payload: bytes
) -> None:
    """Pass a frame to its handler. `channel` is the one with this number; None if there is none."""
    if kind == frames.HEARTBEAT:
        if number or payload:
            raise ConnectionException(FRAME_ERROR, "a heartbeat belongs to channel 0 and has no payload")
    elif connection.state is not State.OPEN or not number:
        _on_connection_frame(connection, kind, number, index, payload)
    elif channel is None:
        _on_unknown_channel(connection, kind, number, index, payload)
    elif channel.held is not None:
        connection.receiving.hold(channel.held, (kind, number, payload))
    elif not channel.is_open:
        _on_closing_channel(connection, channel, kind, index)
    else:
        work = _on_channel_frame(connection, channel, kind, index, payload)
        if work is not None and (index in _CHANGES or channel.publishing.expects_content):
            connection.suspend_channel(channel, index, work)
        elif work is not None:
            connection.suspend(channel, index, work)


def _on_channel_frame(
    connection: Connection, channel: Channel, kind: int, index: int, payload: bytes
) -> Coroutine[Any, Any, None] | None:
    publishing = channel.publishing
    if kind == frames.BODY:
        return publishing.on_body(payload)
    if kind == frames.HEADER:
        return publishing.on_header(payload)
    if publishing.expects_content:
        raise ConnectionException(UNEXPECTED_FRAME, "expected content frames, got a method instead")
    if index == _PUBLISH:
        publishing.on_publish(payload)
        return None
    if index >> 16 == _CONNECTION_CLASS:
        raise ConnectionException(COMMAND_INVALID, "connection methods belong to channel 0")
    method = frames.decode_method(frames.method_index(payload), payload)
    handler = _HANDLERS.get(index)
    if handler is not None:
        return handler(channel, method)
    if index == _CHANNEL_CLOSE:
        channel.give_up()
        channel.reply(commands.Channel.CloseOk())
        _remove(connection, channel)
    elif index == _CHANNEL_OPEN:
        raise ConnectionException(CHANNEL_ERROR, "second 'channel.open' seen")
    else:
        raise ConnectionException(COMMAND_INVALID, f"a client may not send {method.name} here")
    return None


def _remove(connection: Connection, channel: Channel) -> None:
    del connection.channels[channel.number]
    connection.holdings.count_out(CHANNEL_BYTES)


def _on_unknown_channel(connection: Connection, kind: int, number: int, index: int, payload: bytes) -> None:
    if kind != frames.METHOD or index != _CHANNEL_OPEN:
        if index == _CHANNEL_CLOSE_OK:
            return  # the second close-ok, after both sides sent a close
        raise ConnectionException(CHANNEL_ERROR, f"expected 'channel.open' on channel {number} first")
    frames.decode_method(index, payload)
    if number > connection.channels_max or len(connection.channels) >= connection.channels_max:
        raise ConnectionException(
            NOT_ALLOWED, f"channel {number}: the negotiated channel_max is {connection.channels_max}"
        )
    connection.holdings.count(CHANNEL_BYTES)
    channel = connection.channels[number] = Channel(connection, number)
    channel.reply(commands.Channel.OpenOk())


def _on_closing_channel(connection: Connection, channel: Channel, kind: int, index: int) -> None:
    """Ignore all frames after a channel exception until the client has answered it."""
    if kind != frames.METHOD:
        return
    if index == _CHANNEL_CLOSE:
        channel.reply(commands.Channel.CloseOk())
    elif index == _CHANNEL_CLOSE_OK:
        _remove(connection, channel)


def _on_connection_frame(connection: Connection, kind: int, number: int, index: int, payload: bytes) -> None:
    if connection.state is State.CLOSING:
        if kind == frames.METHOD and index in (
            commands.Connection.CloseOk.index,
            commands.Connection.Close.index,
        ):
            connection.shut()
        return
    if kind != frames.METHOD:
        raise ConnectionException(UNEXPECTED_FRAME, "a content frame belongs to a channel")
    method = frames.decode_method(frames.method_index(payload), payload)
    if isinstance(method, commands.Connection.Close):
        connection.on_client_close()
    elif number:
        raise ConnectionException(CHANNEL_ERROR, "no channel may be used before connection.open")
    elif connection.state is State.OPENING:
        work = connection.handshake.on_method(method)
        if work is not None:
            connection.suspend(None, index, work)
    elif index >> 16 != _CONNECTION_CLASS:
        raise ConnectionException(COMMAND_INVALID, f"{method.name} does not belong to channel 0")
    else:
        raise ConnectionException(COMMAND_INVALID, f"{method.name} is out of order")
