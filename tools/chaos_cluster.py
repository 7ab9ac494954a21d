"""The members of a chaos run: their directories, their proxies, and the process of each."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos_disks import Disks
from chaos_member import HOST
from chaos_network import Namespaces
from chaos_proxy import Proxies

from logstore.cluster import certificates, config, founding, newcomer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PATIENCE_S = 120.0
"""What has not happened by then does not happen: this is a violation."""
LOOK_S = 0.02
STACKS_S = 10.0
SEGMENT_BYTES = 256 << 10


class Failure(Exception):
    """A member did what none may do, or the cluster does not work although it is healed."""


class Gone(Exception):
    """The process has died, or is stopped: it does not answer."""


class Refused(Exception):
    """The process answered with an error."""


class Process:
    """One run of a process that takes commands: a member, or the clients of all."""

    def __init__(
        self,
        program: str,
        journals: Path,
        run: str,
        seed: int,
        *given: object,
        package: Path,
        there: Sequence[str] = (),
    ) -> None:
        """``there``: what runs a command in the member's network."""
        self.run = run
        self.is_stopped = False
        self.errors = journals.parent / f"{run}.stderr"
        path = Path(__file__).with_name(program)
        command = [*there, sys.executable, "-P", path, journals, run, seed, os.getpid(), *given]
        environment = {**os.environ, "PYTHONPATH": str(package)}
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        self._answers = b""
        self._read(PATIENCE_S)

    def ask(self, command: str, within_s: float = PATIENCE_S) -> Any:
        """The answer. Raises ``Refused``, and ``Gone`` if there is no process that answers."""
        if self.is_stopped:
            raise Gone(self.run)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Gone(self.run) from error
        answer = self._read(within_s)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["answer"]

    def _read(self, within_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        end = time.monotonic() + within_s
        while b"\n" not in self._answers:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self._show_stacks()
                raise Failure(f"{self.run} has not answered within {within_s:.0f} s: its threads are in {self.errors}")
            piece = os.read(self._process.stdout.fileno(), 1 << 20)
            if not piece:
                raise Gone(self.run)
            self._answers += piece
        line, _, self._answers = self._answers.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _show_stacks(self) -> None:
        """Of all threads, in the file of its errors."""
        size = self.errors.stat().st_size
        self._process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + STACKS_S
        while self.errors.stat().st_size == size and time.monotonic() < end:
            time.sleep(LOOK_S)

    def kill(self) -> None:
        """It is dead when this returns. Raises ``Failure`` if it had ended by itself."""
        self._process.send_signal(signal.SIGKILL)
        self._ended(-signal.SIGKILL)

    def close(self) -> None:
        """An orderly end."""
        self.ask("close")
        self._ended(0)

    def judge(self) -> None:
        """Raises ``Failure`` if it has ended by itself."""
        if self._process.poll() is not None:
            self._ended(None)

    def _ended(self, expected: int | None) -> None:
        status = self._process.wait(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if status != expected:
            raise Failure(f"{self.run} ended by itself with status {status}: see {self.errors}")

    def stop(self) -> None:
        """SIGSTOP."""
        self.is_stopped = True
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)
        self.is_stopped = False


def free_address() -> str:
    """Of the loopback, with a port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def copied(of: Path, to: Path) -> None:
    """Without the sockets of processes that were killed."""
    sockets = {path.name for path in of.rglob("*.sock") if path.is_socket()}
    shutil.copytree(of, to, ignore=lambda _, names: sockets & set(names))


class Cluster:
    """The members, from 1 on."""

    def __init__(
        self,
        place: Path,
        members: int,
        seed: int,
        package: Path,
        *,
        file_system: str = "",
        namespaces: bool = False,
        amqp: bool = False,
    ) -> None:
        """``package``: the import path of the members' logstore. ``file_system``: of disks of their own, or none.

        ``amqp``: the members run brokers, and clients of these send and receive.
        """
        self.place = place
        self.seed = seed
        self.package = package
        self.journals = place / "journals"
        self.journals.mkdir()
        self.members = list(range(1, members + 1))
        self.disks = Disks(self.members, file_system) if file_system else None
        self.network = Namespaces(self.members) if namespaces else Proxies()
        self.processes: dict[int, Process] = {}
        self.excused: set[int] = set()
        """Members whose disk has failed: they may leave the group until they are started again."""
        self._runs = dict.fromkeys(self.members, 0)
        self._addresses = {member: self.network.addresses(member) for member in self.members}
        self.amqp = [free_address() for _ in self.members] if amqp else []
        """Of each member's broker."""
        self.clients: Process | None = None
        self._authority = certificates.make_authority(place) if namespaces else None

    def directory(self, member: int) -> Path:
        """The member's."""
        return (self.disks.path(member) if self.disks is not None else self.place) / f"m{member}"

    def form(self) -> None:
        """Makes and starts all members; all have joined on return, and the queue is there."""
        _, uuid = founding.new_identity()
        first = self.members[0]
        for member in self.members:
            listen, reached = self._addresses[member]
            wanted = config.MemberFile(
                name=f"m{member}",
                member=member,
                cluster=uuid,
                listen=listen,
                advertise=reached,
                join=() if member == first else (self._addresses[first][1],),
                amqp=self.amqp[member - 1] if self.amqp else "",
                **self._tls(member),
            )
            if member == first:
                founding.found(
                    self.directory(member), wanted, host=HOST, segment_size=SEGMENT_BYTES, is_id_given=True
                )  # fmt: skip
            else:
                with self.network.inside(member):
                    newcomer.join(self.directory(member), wanted, is_id_given=True)
            self.start(member)
            voters = member if member < 3 else member - 1 + member % 2  # an even one stands by
            self.wait(
                lambda seats=[member, voters]: self._ask_leader("seats") == seats,
                f"the group has {member} members and {voters} voters",
            )
        if not self.amqp:
            self.wait(lambda: self._ask_leader("declare") is None, "the queue is there")
        else:
            ports = [address.rpartition(":")[2] for address in self.amqp]
            self.clients = Process("chaos_amqp.py", self.journals, "clients", self.seed, *ports, package=self.package)

    def _tls(self, member: int) -> dict[str, str]:
        """The files of a member that is not on the loopback."""
        if self._authority is None:
            return {}
        host = self._addresses[member][0].partition(":")[0]
        own = certificates.make_certificate(self.place, self._authority, f"m{member}", [host])
        return {"ca": str(self._authority.cert), "cert": str(own.cert), "key": str(own.key)}

    def start(self, member: int) -> None:
        """Starts the member's next process, whose senders and receivers wait."""
        self._runs[member] += 1
        run = f"m{member}-{self._runs[member]}"
        self.processes[member] = Process(
            "chaos_member.py",
            self.journals,
            run,
            self.seed,
            self.directory(member),
            package=self.package,
            there=self.network.command(member),
        )

    def take(self, member: int) -> Process:
        """The member's process, which the caller ends."""
        return self.processes.pop(member)

    def leader(self) -> int | None:
        """The member that serves, of those that answer; of two the one of the newer term."""
        found = []
        for member, process in self.processes.items():
            with contextlib.suppress(Gone, Refused):
                standing = process.ask("standing")
                if standing["state"] == "failed" and member not in self.excused:
                    raise Failure(f"{process.run} has left the group: {standing['problem']}")
                if standing["state"] == "leads":
                    found.append((standing["term"], member))
        return max(found)[1] if found else None

    def has_failed(self, member: int) -> bool:
        """Whether its copy has left the group; a stopped process is not asked."""
        try:
            return bool(self.processes[member].ask("standing")["state"] == "failed")
        except (Gone, Refused):
            return False

    def _ask_leader(self, command: str) -> Any:
        leader = self.leader()
        try:
            return Refused if leader is None else self.processes[leader].ask(command)
        except (Gone, Refused):
            return Refused

    def wait(self, holds: Callable[[], object], what: str) -> None:
        """Waits for an event. Raises ``Failure`` if it does not come."""
        end = time.monotonic() + PATIENCE_S
        while not holds():
            for process in self._all():
                process.judge()
            if time.monotonic() > end:
                raise Failure(f"not within {PATIENCE_S:.0f} s: {what}")
            time.sleep(LOOK_S)

    def ask_all(self, command: str) -> None:
        """Asks every member, and the clients."""
        for process in self._all():
            process.ask(command)

    def _all(self) -> list[Process]:
        return [*self.processes.values(), *([] if self.clients is None else [self.clients])]

    def stock(self) -> dict[str, Any]:
        """The queue, from the leader; nobody works meanwhile."""
        found: list[Any] = []

        def look() -> bool:
            answer = self._ask_leader("stock")
            found[:] = [answer]
            return answer is not Refused

        self.wait(look, "the leader lists its queue")
        stock: dict[str, Any] = found[0]
        return stock

    def wait_until_equal(self) -> None:
        """Waits until every member knows all that there is to be durable."""

        def are_equal() -> bool:
            try:
                standings = [process.ask("standing") for process in self.processes.values()]
            except Refused:
                return False
            return len({(one["index"], one["durable_index"]) for one in standings}) == 1 and all(
                one["index"] == one["durable_index"] for one in standings
            )

        self.wait(are_equal, "all members have all")

    def close(self) -> None:
        """Closes the clients and all members in order."""
        if self.clients is not None:
            clients, self.clients = self.clients, None
            clients.close()
        for member in list(self.processes):
            self.take(member).close()

    def end(self) -> None:
        """Ends what is left, however the run has ended."""
        if self.clients is not None:
            with contextlib.suppress(Failure):
                self.clients.kill()
        for member in list(self.processes):
            with contextlib.suppress(Failure):
                self.take(member).kill()
        self.network.close()

    def end_disks(self, *, keep: bool) -> None:
        """Removes the disks, if there are any; the directories of the members are kept in that of the run, or not."""
        if self.disks is None:
            return
        try:
            for member in self.members if keep else ():
                if self.directory(member).exists():
                    copied(self.directory(member), self.place / f"m{member}")
        finally:
            self.disks.end()
