"""Ports for servers that a test stops and starts again."""

from __future__ import annotations

import contextlib
import os
import random
import socket

_LOWEST_PORT, _PORTS = 12_000, 20_000
_WORKERS = 8
_given: set[int] = set()  # a server that is stopped takes its port again


def free_ports(count: int) -> list[int]:
    """Ports below those that the kernel gives to outgoing connections, which could take one before it is used.

    No port is given twice, here or in another worker of the same run.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _WORKERS
    found: list[int] = []
    while len(found) < count:
        port = _LOWEST_PORT + random.SystemRandom().randrange(_PORTS // _WORKERS) * _WORKERS + worker
        with contextlib.suppress(OSError):
            if port not in _given:
                socket.create_server(("127.0.0.1", port)).close()
                _given.add(port)
                found.append(port)
    return found
