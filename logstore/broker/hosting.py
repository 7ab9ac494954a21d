"""The virtual hosts that `logstore serve` opens beside `/`, and the commands that change them while it runs.

A host that cannot be opened is not served, and the others are. The rows of the hosts are in the catalog of `/`; see
`logstore.broker.host_list`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from logstore.broker.errors import CONNECTION_FORCED, INTERNAL_ERROR, ConnectionException
from logstore.broker.host_list import (
    OPTIONS,
    PRESENT,
    HostList,
    change_limit,
    check_host_name,
    down_text,
    exists_text,
    held_by,
    held_text,
    missing_text,
    unknown_text,
    unopened_text,
)
from logstore.broker.memory_queue import MemoryQueue
from logstore.broker.user_changes import USER_CHANGES, change_user
from logstore.core.host_directory import ROOT
from logstore.errors import OptionError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logstore import MessageStore
    from logstore.broker.host import Host
    from logstore.broker.server import Server
    from logstore.store.control import Handler

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Hosting:
    """Opens, adds, removes, reopens and closes the hosts of one server. Belongs to its event loop."""

    def __init__(self, server: Server, root: MessageStore, options: Mapping[str, Any]) -> None:
        """`root` is the store of `/`; `options` are those of `logstore.open` for every other store."""
        self._server = server
        self._root = root
        self._options = options
        self._list = HostList(root)
        self._stores: dict[str, MessageStore] = {}
        self._lock = asyncio.Lock()  # one change at a time

    @property
    def commands(self) -> dict[str, Handler]:
        """The commands of the control socket of `/`."""
        of_users = {f"user.{verb}": functools.partial(self._change_user, verb) for verb in USER_CHANGES}
        of_hosts = {"add": self._add, "remove": self._remove, "reopen": self._reopen, "set": self._set}
        return {**{f"vhost.{verb}": handler for verb, handler in of_hosts.items()}, **of_users}

    async def open_all(self) -> None:
        """Open every host that the catalog has, after finishing removals that a crash has interrupted."""
        try:
            await self._change(self._list.finish_removals)
        except StoreError as error:
            logger.warning("a virtual host is not removed completely: %s", error)
        await asyncio.gather(*(self._open(row.name) for row in self._list.rows() if row.state == PRESENT))

    async def close(self) -> None:
        """Close the stores. Their hosts have ended."""
        stores, self._stores = self._stores, {}
        await asyncio.gather(*(self._close(name, store) for name, store in stores.items()))

    async def _open(self, name: str) -> StoreError | OSError | None:
        """Open a host that is present. If it cannot be opened it is down, and the error is returned."""
        try:
            store = await self._in_thread(lambda: self._list.open(name, self._options))
            self._stores[name] = store
            await self._server.open_host(name, store)
        except (StoreError, OSError) as error:
            self._server.down.add(name)
            logger.error("vhost %r is not served: %s: %s", name, self._list.path(name), error)
            await self._close_store(name)
            return error
        self._server.down.discard(name)
        logger.info("vhost %r: store %s", name, store.path)
        return None

    async def _close_store(self, name: str) -> None:
        """Close the store of a host that is not open, if it has one."""
        store = self._stores.pop(name, None)
        if store is not None:
            await self._close(name, store)

    async def _close(self, name: str, store: MessageStore) -> None:
        try:
            await self._in_thread(store.close)
        except StoreError as error:
            logger.warning("the store of vhost %r is not closed cleanly: %s", name, error)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._server.loop.run_in_executor(None, work)

    async def _change(self, work: Callable[[], T], name: str = ROOT) -> T:
        """Change the catalog of a host, in turn with the declarations of its clients."""
        changes = self._server.hosts[name].vhost.changes
        async with changes.turn():
            return await changes.do(work)

    async def _add(self, arguments: dict[str, Any]) -> dict[str, Any]:
        name = _name(arguments)
        options = {**self._options, **{key: arguments[key] for key in OPTIONS if arguments.get(key) is not None}}
        async with self._lock:
            await self._change(self._list.finish_removals)
            if self._list.row(name) is not None:
                return {"refused": exists_text(name)}
            store = await self._change(lambda: self._list.make(name, options))
            self._stores[name] = store
            await self._server.open_host(name, store)
            return {"directory": str(store.path), **await self._in_thread(lambda: held_by(store))}

    async def _remove(self, arguments: dict[str, Any]) -> dict[str, Any]:
        name = _name(arguments)
        is_wanted = arguments.get("yes") is True
        async with self._lock:
            done: dict[str, Any] = {"directory": str(self._list.path(name)), "messages": 0, "in_doubt": 0}
            if self._list.row(name) is None:
                if not any(row.name == name for row in self._list.rows()):
                    return {"refused": missing_text(name)}
                await self._change(self._list.finish_removals)
                return done
            host = self._server.hosts.get(name)
            if host is None and not is_wanted:
                return {"refused": unknown_text(name, "it is not served; see the broker's log")}
            if host is not None:
                done |= _held(host)
                if not is_wanted and (done["messages"] or done["in_doubt"]):
                    return {"refused": held_text(name, done)}
                await self._end(host)
                done |= _held(host)
                if not is_wanted and (done["messages"] or done["in_doubt"]):  # they came meanwhile
                    await self._server.open_host(name, host.store)
                    return {"refused": held_text(name, done)}
            try:
                await self._change(lambda: self._list.begin_removal(name))
            except StoreError:
                if host is not None and self._list.row(name) is not None:
                    await self._server.open_host(name, host.store)
                raise
            self._server.down.discard(name)
            await self._close_store(name)
            await self._change(self._list.finish_removals)
            return done

    async def _reopen(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Open a host that is down anew, which is as safe as a start: nothing of the old store is open by then."""
        name = _name(arguments)
        async with self._lock:
            if self._list.row(name) is None:
                return {"refused": missing_text(name)}
            done: dict[str, Any] = {"directory": str(self._list.path(name)), "reopened": False}
            host = self._server.hosts.get(name)
            if host is not None and host.poison is None:
                return done | _held(host)
            self._server.down.add(name)  # clients get 541 until it is open
            if host is not None:
                await self._server.close_host(name, ConnectionException(INTERNAL_ERROR, f"vhost '{name}' is down"))
            await self._close_store(name)
            error = await self._open(name)
            if error is not None:
                return {"refused": down_text(name, error)}
            return done | {"reopened": True} | _held(self._server.hosts[name])

    async def _set(self, arguments: dict[str, Any]) -> dict[str, Any]:
        limit = arguments.get("max_log_bytes")
        if not isinstance(limit, int | str):
            raise OptionError(f"max_log_bytes is a size or 'none', not {limit!r}")
        name = ROOT if arguments.get("name") == ROOT else _name(arguments)
        async with self._lock:
            host = self._server.hosts.get(name)
            if host is not None:
                return await self._change(lambda: change_limit(name, host.store, limit), name)
            return {"refused": missing_text(name) if self._list.row(name) is None else unopened_text(name)}

    async def _change_user(self, verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._change(lambda: change_user(self._root, verb, arguments))

    async def _end(self, host: Host) -> None:
        error = ConnectionException(CONNECTION_FORCED, f"vhost '{host.name}' is deleted")
        await self._server.close_host(host.name, error)


def _held(host: Host) -> dict[str, int]:
    in_memory = [queue for queue in host.vhost.queues.values() if isinstance(queue, MemoryQueue)]
    held = held_by(host.store)
    held["messages"] += sum(queue.ready_count + queue.unacknowledged_count for queue in in_memory)
    return held


def _name(arguments: dict[str, Any]) -> str:
    name = arguments.get("name")
    if not isinstance(name, str):
        raise OptionError(f"name is a text, not {name!r}")
    return check_host_name(name)
