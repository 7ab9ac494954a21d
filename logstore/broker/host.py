"""One virtual host of a running broker: its store, its objects in memory, and its clients.

Hosts share the process, the port, the users and the event loop, and nothing else. Each has a store of its own, so no
transaction, binding or message belongs to two, and a store that is full or fails concerns its own host only.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from logstore.broker.blocking import Blocking
from logstore.broker.control import BrokerControl
from logstore.broker.space import Space
from logstore.broker.uploads import Uploads
from logstore.broker.vhost import VirtualHost
from logstore.broker.wakeups import WakeUps
from logstore.core.host_directory import ROOT

if TYPE_CHECKING:
    from logstore import MessageStore
    from logstore.broker.connection import Connection
    from logstore.broker.server import Server
    from logstore.store.fullness import Fullness

logger = logging.getLogger(__name__)


class Host:
    """An open host. Belongs to the event loop that makes it; the store has the predeclared exchanges."""

    def __init__(self, server: Server, name: str, store: MessageStore) -> None:
        self.name = name
        self.store = store
        self.connections: set[Connection] = set()  # from connection.open on
        self.poison: Exception | None = None  # why the store can no longer write
        self.wakeups = WakeUps(store, server.loop, server.turns, functools.partial(server.on_poison, self))
        self.vhost = VirtualHost(name, store, self.wakeups, server.budget)
        self.uploads = Uploads(store, self.wakeups, server.limits)
        self.blocking = Blocking(server, self)
        self.space = Space(server, self)
        self.control = BrokerControl(server, self)
        self._is_full = False
        self._fullness_listener = store.on_fullness(self._on_fullness, loop=server.loop)
        self._on_fullness(store.fullness())
        store.never_wait_for_names_here()

    @property
    def has_ended(self) -> bool:
        """The store is used no longer, or cannot be used."""
        return self.wakeups.stopped or self.poison is not None

    def stop(self) -> None:
        """Ignore every later report of the store; the connections have ended."""
        self._fullness_listener.close()
        self.wakeups.stop()
        self.uploads.stop()
        self.blocking.stop()
        self.space.stop()

    @property
    def blocked_reason(self) -> str | None:
        """Why publishers are told that they are blocked; None: they are not."""
        return self.space.reason or self.blocking.reason

    @property
    def store_text(self) -> str:
        """What the log calls the store."""
        return "the store" if self.name == ROOT else f"the store of vhost {self.name!r}"

    def _on_fullness(self, found: Fullness) -> None:
        """Log that the store has become full, or has room again: one line each, however many messages are refused."""
        if self.wakeups.stopped or found.full == self._is_full:
            return
        self._is_full = found.full
        if found.full:
            logger.warning(
                "%s is full: %s. Messages wait, and are refused in the end: 'logstore info %s' says what would free it",
                self.store_text,
                found.reason,
                self.store.path,
            )
        else:
            logger.info(
                "%s has room again: the log has %d bytes, %d of them live",
                self.store_text,
                found.log_bytes,
                found.live_bytes,
            )
