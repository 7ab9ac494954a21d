"""``logstore cluster demo``: members of one cluster on this machine, each a process, made by the commands of a user.

Each has a broker, if what that needs is installed.
"""

from __future__ import annotations

import importlib.util
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logstore.cluster import config, founding, newcomer
from logstore.cluster.directory import copy_number, hosts
from logstore.cluster.running import status
from logstore.errors import OptionError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOST: Final = "main"
SEGMENT_BYTES: Final = 1 << 20  # of the host's log: three copies in a temporary directory
MEMBERS_MAX: Final = 5
READY_WITHIN_S: Final = 60.0
LOOK_S: Final = 0.05
STOP_S: Final = 15.0


@dataclass(slots=True)
class _Process:
    """A member's process."""

    name: str
    directory: Path
    process: subprocess.Popen[str]
    pidfd: int


class Demo:
    """The members that run. Everything is ended by :meth:`stop`."""

    def __init__(self, directory: Path, members: int, tell: Callable[[str], None]) -> None:
        """Sets up the object; no member is started yet. ``tell`` is called with each line for the user."""
        if not 1 <= members <= MEMBERS_MAX:
            raise OptionError(f"a demo has 1 to {MEMBERS_MAX} members, not {members}")
        self._directory = directory.absolute()
        self._names = [f"m{number}" for number in range(1, members + 1)]
        self._tell = tell
        self._running: list[_Process] = []

    def start(self) -> None:
        """Makes the missing members and starts all; returns when each member is a voter and one of them leads."""
        self._directory.mkdir(parents=True, exist_ok=True)
        first, *others = self._names
        founded = (self._directory / first / config.FILE_NAME).exists()
        if not founded:
            founding.found(
                self._directory / first, _identity(first), host=HOST, segment_size=SEGMENT_BYTES
            )  # fmt: skip
        self._run(first)
        for name in others:
            if not (self._directory / name / config.FILE_NAME).exists():
                self._wait(lambda: self._leads() is not None, "one member leads")
                at = config.read(self._directory / first).advertise
                newcomer.join(self._directory / name, _identity(name, at))
            self._run(name)
        self._wait(lambda: self._voters() >= set(self._names), "every member is a voter")

    def show(self) -> None:
        """Prints which members run, and what to try."""
        leader = self._leads() or self._running[0]
        other = next((each for each in self._running if each is not leader), leader)
        brokers = [config.read(each.directory).amqp for each in self._running]
        as_vhost = " AMQP clients see it as the virtual host '/', at any of the addresses." if all(brokers) else ""
        self._tell(f"{len(self._running)} members run. {leader.name} leads the host {HOST!r}.{as_vhost}")
        for each, amqp in zip(self._running, brokers, strict=True):
            address = f"AMQP {amqp}" if amqp else config.read(each.directory).listen
            self._tell(f"  {each.name}  process {each.process.pid}  {address}  {each.directory}")
        there, here = shlex.quote(str(leader.directory)), shlex.quote(str(other.directory))
        (host_dir,) = hosts(other.directory)
        copy = host_dir / f"copy-{copy_number(host_dir)}"
        self._tell("Try, in another terminal:")
        self._tell(f"  logstore cluster publish {HOST} orders 'the first message' --dir {there}")
        self._tell(f"  kill -9 {leader.process.pid}")
        self._tell(f"  logstore cluster status --watch --dir {here}")
        self._tell(f"  logstore peek {shlex.quote(str(copy))} orders")
        self._tell("Ctrl-C ends them all.")

    def watch(self) -> None:
        """Reports which members end, until all have ended."""
        poll = select.poll()
        for each in self._running:
            poll.register(each.pidfd, select.POLLIN)
        left = {each.pidfd: each for each in self._running}
        while left:
            for fd, _ in poll.poll():
                poll.unregister(fd)
                each = left.pop(fd)
                self._tell(f"{each.name} {_ended(each.process.wait())}; it starts again with")
                self._tell(f"  logstore cluster run --dir {shlex.quote(str(each.directory))}")

    def stop(self) -> None:
        """Ends every member that runs, and waits for it."""
        for each in self._running:
            if each.process.poll() is None:
                each.process.terminate()
        end = time.monotonic() + STOP_S
        for each in self._running:
            try:
                each.process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()
            os.close(each.pidfd)
        self._running.clear()

    # ---- inside ----

    def _run(self, name: str) -> None:
        directory = self._directory / name
        command = [sys.executable, "-m", "logstore", "cluster", "run", "--dir", str(directory)]
        with (self._directory / f"{name}.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        self._running.append(_Process(name, directory, process, os.pidfd_open(process.pid)))
        assert process.stdout is not None
        if not process.stdout.readline().startswith("ready: "):
            raise StoreError(f"{name} does not start: see {self._directory / f'{name}.log'}")

    def _leads(self) -> _Process | None:
        for each in self._running:
            for host in status(each.directory)["hosts"]:
                if host["state"] == "leads":
                    return each
        return None

    def _voters(self) -> set[str]:
        """The members as the leader knows them."""
        leader = self._leads()
        if leader is None:
            return set()
        found = status(leader.directory)["hosts"]
        return {member["name"] for host in found for member in host["members"] if member["voter"]}

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + READY_WITHIN_S
        while not holds():
            for each in self._running:
                if each.process.poll() is not None:
                    raise StoreError(
                        f"{each.name} {_ended(each.process.returncode)}: see {self._directory / f'{each.name}.log'}"
                    )
            if time.monotonic() > end:
                raise StoreError(f"not within {READY_WITHIN_S:.0f} s: {what}. See the logs in {self._directory}")
            time.sleep(LOOK_S)


def _identity(name: str, join: str = "") -> config.MemberFile:
    member, cluster = founding.new_identity()
    with _free_port() as listens, _free_port() as serves:
        listen, amqp = (f"127.0.0.1:{one.getsockname()[1]}" for one in (listens, serves))
    return config.MemberFile(
        name=name,
        member=member,
        cluster=cluster,
        listen=listen,
        join=(join,) if join else (),
        amqp=amqp if importlib.util.find_spec("pamqp") is not None else "",
    )


def _free_port() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _ended(code: int) -> str:
    return f"was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with status {code}"


@contextmanager
def started(directory: Path, members: int, tell: Callable[[str], None]) -> Iterator[Demo]:
    """A demo whose members run; they are ended when the block ends, also by an exception."""
    demo = Demo(directory, members, tell)
    try:
        demo.start()
        yield demo
    finally:
        demo.stop()
