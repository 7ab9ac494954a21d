"""Waits of a client for what a broker does with it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from kit.patience import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from kit.amqp_client import RawClient
    from kit.live_broker import Broker
    from logstore.broker.receiving import Pause


def nothing_comes(client: RawClient) -> None:
    client.socket.settimeout(0.25)
    with pytest.raises(TimeoutError):
        client.receive()
    client.socket.settimeout(PATIENCE_S)


def send_until_paused(broker: Broker, client: RawClient, frames: bytes, pause: Pause) -> None:
    """Send the frames again and again, until the broker does not read from a connection for this reason."""
    unsent = b""

    def is_paused() -> bool:
        nonlocal unsent
        with contextlib.suppress(BlockingIOError):
            unsent = unsent or frames
            unsent = unsent[client.socket.send(unsent) :]
        return broker.call(lambda: any(each.receiving.pauses & pause for each in broker.server.connections))

    client.socket.setblocking(False)
    wait_until(is_paused, f"{pause!r}")
    client.socket.settimeout(PATIENCE_S)
