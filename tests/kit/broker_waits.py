"""Waits in which a broker must not send anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.patience import PATIENCE_S

if TYPE_CHECKING:
    from kit.amqp_client import RawClient


def nothing_comes(client: RawClient) -> None:
    client.socket.settimeout(0.25)
    with pytest.raises(TimeoutError):
        client.receive()
    client.socket.settimeout(PATIENCE_S)
