"""Runs a member as a process of its own: the lock on its directory, and ``member.sock``, which answers commands.

The socket has an event loop of its own, in the main thread. What a command asks of the member is asked in a further
thread, so neither loop waits for the other.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from contextlib import AsyncExitStack, ExitStack, closing
from typing import TYPE_CHECKING, Any, Final

from logstore.cluster import config, reports
from logstore.cluster.directory import SOCKET_NAME, hosts, locked, takes_part
from logstore.cluster.member import Member
from logstore.cluster.transport import new_event_loop
from logstore.errors import NoMajority, NotLeader, OptionError, StoreError
from logstore.store.control import ControlServer, Kind, call, is_served

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore.catalog.catalog import Catalog
    from logstore.cluster.config import MemberFile
    from logstore.store.control import Handler

    Arguments = dict[str, Any]

MEMBER: Final = Kind(SOCKET_NAME, "member", "the member's directory")
USER_VERBS: Final = ("add", "password", "permit", "forbid", "remove")
TRANSFER_S: Final = 5.0
"""How long a transfer may take: 300 ms for each target, and the election."""
_LOOK_S: Final = 0.02
_STOP_S: Final = 1.0


def run(
    directory: Path, limits: Arguments | None = None, *, opened: Callable[[], None], ready: Callable[[str], None]
) -> None:
    """Runs the member of this directory until SIGINT or SIGTERM.

    ``limits``: of its broker, by the fields of ``logstore.broker.Limits``.
    ``opened`` is called when its copies are open, and ``ready`` with one line when commands reach it, too. The main
    thread calls it. Raises ``StoreLocked`` if it runs already, and what :func:`config.read` and a start of ``Member``
    raise.
    """
    directory = directory.absolute()
    file = config.read(directory)
    with locked(directory), ExitStack() as ends:
        users = None
        if file.amqp:
            from logstore.cluster import brokering, member_users  # late: the broker needs more packages

            brokering.check_address(file)
            users = ends.enter_context(closing(member_users.open_users(directory, file.cluster)))
        member = ends.enter_context(Member(directory, file.config(directory)))
        opened()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            socket = MemberSocket(directory, file, member, users)
            runner.run(_until_stopped(socket, file, member, users, ready, limits or {}))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the stop is already in progress


async def _until_stopped(
    commands: MemberSocket,
    file: MemberFile,
    member: Member,
    users: Catalog | None,
    ready: Callable[[str], None],
    limits: Arguments,
) -> None:
    loop = asyncio.get_running_loop()
    stops = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stops.set)
    async with AsyncExitStack() as ends:
        # Last of all: a thread may still wait for a majority, and only this ends it.
        ends.push_async_callback(loop.run_in_executor, None, member.close)
        if users is not None:
            from logstore.broker.limits import Limits
            from logstore.cluster.brokering import Brokering

            broker = Brokering(member, file, users, Limits(**limits))
            await broker.start()
            ends.push_async_callback(broker.stop)
        await commands.start()
        ends.push_async_callback(commands.stop)
        ready(commands.ready_line())
        await stops.wait()


class MemberSocket:
    """The socket of a running member, and its commands."""

    def __init__(self, directory: Path, file: MemberFile, member: Member, users: Catalog | None = None) -> None:
        """``users``: of the broker, if the member runs one."""
        self._directory = directory
        self._users = users
        self._file = file
        self._member = member
        commands: dict[str, Handler] = {
            "add": self._add,
            "publish": self._publish,
            "rebuild": self._rebuild,
            "remove": self._remove,
            "reopen": self._reopen,
            "status": self._status,
            "transfer": self._transfer,
            **{f"user.{verb}": functools.partial(self._change_user, verb) for verb in USER_VERBS},
        }
        self._socket = ControlServer(directory, commands, MEMBER)

    async def start(self) -> None:
        """Listens on the socket. Raises ``StoreError``."""
        await self._socket.start()

    async def stop(self) -> None:
        """Takes no more commands, and removes the socket."""
        await self._socket.stop(_STOP_S)

    def ready_line(self) -> str:
        """The line that a process prints when it is ready."""
        names = ", ".join(path.name for path in hosts(self._directory) if takes_part(path)) or "none"
        amqp = f", AMQP on {self._file.amqp}" if self._file.amqp else ""
        return f"ready: {self._file.name} listens on {self._member.address}{amqp}, hosts: {names}"

    async def _status(self, _arguments: Arguments) -> dict[str, Any]:
        report = await self._socket.in_thread(self._member.report)
        return {**reports.member_keys(self._directory, self._file), "running": True, "pid": os.getpid(), **report}

    async def _transfer(self, arguments: Arguments) -> dict[str, Any]:
        name, wanted = _text(arguments, "host"), _text(arguments, "member")
        host = await self._host(name)
        me = self._file.member
        if host["leader"] is None:
            raise NoMajority(f"host {name} has no leader now, so there is nothing to hand over: look with 'status'")
        if host["leader"] != me or host["state"] != "leads":
            leader = f"member {host['leader_name'] or host['leader']}"
            raise NotLeader(
                f"{leader} leads host {name}, and {self._directory} is the directory of member {self._file.name}: give "
                "the command where that member runs",
                host["leader"],
            )
        target = _member_of(host, wanted)
        if target["member"] == me:
            raise OptionError(f"member {self._file.name} leads host {name} already")
        if not target["voter"]:
            raise OptionError(f"member {wanted} is a standby of host {name}, and only a voter can lead")
        await self._socket.in_thread(lambda: self._member.transfer(name, target["member"]))
        until_s = time.monotonic() + TRANSFER_S
        while time.monotonic() < until_s:
            host = await self._host(name)
            if host["leader"] not in (None, me):
                return {"host": name, "leader": host["leader"], "leader_name": host["leader_name"]}
            await asyncio.sleep(_LOOK_S)
        raise NoMajority(f"no member has taken host {name} over in {TRANSFER_S:g} s: look with 'status'")

    async def _add(self, arguments: Arguments) -> dict[str, Any]:
        name, size = _text(arguments, "host"), arguments.get("segment_size")
        voters = await self._socket.in_thread(lambda: self._member.add_host(name, segment_size=size))
        return {"host": name, "voters": voters}

    async def _remove(self, arguments: Arguments) -> dict[str, Any]:
        name = _text(arguments, "host")
        host = await self._host(name)
        leaves = _member_of(host, _text(arguments, "member"))
        await self._socket.in_thread(lambda: self._member.remove(name, leaves["member"]))
        return {"host": name, "member": leaves["member"], "name": leaves["name"]}

    async def _rebuild(self, arguments: Arguments) -> dict[str, Any]:
        name, keep = _text(arguments, "host"), arguments.get("keep") is True
        return await self._socket.in_thread(lambda: _rebuilt(self._member, name, keep))

    async def _change_user(self, verb: str, arguments: Arguments) -> dict[str, Any]:
        if self._users is None:
            raise OptionError(
                f"member {self._file.name} runs no broker and has no users: set amqp in cluster.toml and start it again"
            )
        from logstore.cluster.member_users import change

        users = self._users
        return await self._socket.in_thread(lambda: change(users, self._directory, verb, arguments))

    async def _reopen(self, arguments: Arguments) -> dict[str, Any]:
        name = _text(arguments, "host")
        done = await self._socket.in_thread(lambda: self._member.reopen(name))
        return {"host": name, "was_open": done.was_open, "problem": done.problem or None}

    async def _publish(self, arguments: Arguments) -> dict[str, Any]:
        name, queue, text = (_text(arguments, key) for key in ("host", "queue", "text"))

        def publish() -> int:
            store = self._member.store(name)
            if not any(each.name == queue for each in store.queues()):
                store.declare_queue(queue)
            return store.publish(queue, text.encode())

        return {"host": name, "queue": queue, "id": await self._socket.in_thread(publish)}

    async def _host(self, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = (await self._socket.in_thread(self._member.report))["hosts"]
        for host in found:
            if host["host"] == name:
                return host
        names = ", ".join(host["host"] for host in found) or "none"
        raise OptionError(f"this member has no host called {name!r}: it has {names}")


def _rebuilt(member: Member, host: str, keep: bool) -> dict[str, Any]:
    done = member.rebuild(host, keep=keep)
    return {"host": host, "kept": None if done.kept is None else str(done.kept), "is_complete": done.is_complete}


def _text(arguments: Arguments, key: str) -> str:
    value = arguments.get(key)
    if not isinstance(value, str):
        raise OptionError(f"the request has no text {key!r}")
    return value


def _member_of(host: dict[str, Any], wanted: str) -> dict[str, Any]:
    """The member of the host that has this name or id. Raises ``OptionError``."""
    members: list[dict[str, Any]] = host["members"]
    for one in members:
        if wanted in (one["name"], str(one["member"])):
            return one
    names = ", ".join(str(one["name"] or one["member"]) for one in members)
    raise OptionError(f"host {host['host']} has no member {wanted!r}: it has {names}")


# ---- the caller's side -----------------------------------------------------------------------------------------------


def status(directory: Path) -> dict[str, Any]:
    """The state of the member in this directory; if it does not run, the state that the directory shows."""
    directory = directory.absolute()
    config.read(directory)
    if not is_served(directory, MEMBER):
        return reports.at_rest(directory)
    return call(directory, "status", {}, kind=MEMBER)


def change_user(directory: Path, verb: str, arguments: Arguments) -> dict[str, Any]:
    """Changes a user of the member's broker, through the member if it runs. What a refusal says is in ``refused``."""
    directory = directory.absolute()
    config.read(directory)
    if is_served(directory, MEMBER):
        return call(directory, f"user.{verb}", arguments, kind=MEMBER)
    from logstore.cluster.member_users import change_at_rest

    return change_at_rest(directory, verb, arguments)


def ask(directory: Path, command: str, arguments: Arguments) -> dict[str, Any]:
    """Sends a command to the running member. Raises its errors, and ``StoreError`` if it does not run."""
    directory = directory.absolute()
    file = config.read(directory)
    if not is_served(directory, MEMBER):
        raise StoreError(f"member {file.name} does not run: start it with 'logstore cluster run --dir {directory}'")
    return call(directory, command, arguments, kind=MEMBER)


def rebuild(directory: Path, host: str, *, keep: bool) -> dict[str, Any]:
    """Lets the running member rebuild its copy of a host; a member that does not run is started for that time.

    Raises as :meth:`Member.rebuild` does.
    """
    directory = directory.absolute()
    file = config.read(directory)
    if is_served(directory, MEMBER):
        return call(directory, "rebuild", {"host": host, "keep": keep}, kind=MEMBER)
    with locked(directory), Member(directory, file.config(directory)) as member:
        return _rebuilt(member, host, keep)
