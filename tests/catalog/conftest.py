"""One PostgreSQL server for all tests of catalogs in a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit import postgres
from kit.postgres import Server, Wire

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    yield from postgres.running_server()


@pytest.fixture
def server(shared_server: Server) -> Server:
    """A running server, whatever the previous test did to it."""
    if shared_server.process is None:
        shared_server.start()
    return shared_server


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    made = Wire(server)
    yield made
    made.close()
