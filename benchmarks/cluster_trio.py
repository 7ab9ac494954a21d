"""Three members for a benchmark, each in a process of its own, and a single store in another."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from logstore.cluster import config, founding, newcomer

if TYPE_CHECKING:
    from collections.abc import Callable

WORKER = Path(__file__).with_name("cluster_worker.py")
BROKER = Path(__file__).with_name("broker_member.py")
WITHIN_S = 120.0
LOOK_S = 0.01


class Worker:
    """A process that takes commands, see cluster_worker.py."""

    def __init__(self, directory: Path, *kind: str, program: Path = WORKER) -> None:
        self.directory = directory
        self.kind = kind
        self.program = program
        self.start()

    def start(self) -> None:
        """Starts the process, also again after it was killed."""
        with self.directory.with_suffix(".log").open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(self.program), str(self.directory), str(os.getpid()), *self.kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._answer()

    def do(self, command: str, *given: Any) -> Any:
        """The answer to a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, given]) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.directory.name} has ended: see {self.directory.with_suffix('.log')}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)


class Trio:
    """Three members with one host, of which each is a voter."""

    def __init__(self, place: Path, *, program: Path = WORKER) -> None:
        """``program``: of the members; those of BROKER have a broker."""
        self.place = place
        self.program = program
        self.workers: list[Worker] = []
        self.members: dict[str, int] = {}
        """Ids by name."""
        founding.found(place / "m1", self._identity("m1"))
        self._run("m1")
        self.leader().do("declare")
        self.join("m2")
        self.join("m3")
        wait_for(lambda: self.leader().do("standing")["voters"] == len(self.workers), "every member is a voter")

    def join(self, name: str) -> None:
        """Another member; it becomes a voter by itself."""
        newcomer.join(self.place / name, self._identity(name, config.read(self.workers[0].directory).advertise))
        self._run(name)

    def _run(self, name: str) -> None:
        self.members[name] = config.read(self.place / name).member
        self.workers.append(Worker(self.place / name, program=self.program))

    def _identity(self, name: str, join: str = "") -> config.MemberFile:
        member, cluster = founding.new_identity()
        with _free_address() as listens, _free_address() as serves:
            return config.MemberFile(
                name=name,
                member=member,
                cluster=cluster,
                listen=_text(listens),
                join=(join,) if join else (),
                amqp=_text(serves) if self.program == BROKER else "",
            )

    def leader(self) -> Worker:
        """The one that serves, once there is one."""
        found: list[tuple[int, Worker]] = []

        def look() -> bool:
            standings = [(each.do("standing"), each) for each in self.workers]
            found[:] = [(one["term"], each) for one, each in standings if one["state"] == "leads"]
            return bool(found)

        wait_for(look, "a member serves")
        return max(found, key=lambda one: one[0])[1]  # one that was frozen takes a moment to hear of another

    def followers(self) -> list[Worker]:
        """The others."""
        leader = self.leader()
        return [each for each in self.workers if each is not leader]

    def settle(self) -> None:
        """All have everything."""

        def equal() -> bool:
            found = [each.do("standing") for each in self.workers]
            return len({(one["index"], one["durable_index"]) for one in found}) == 1

        wait_for(equal, "all members have everything")

    def near(self) -> None:
        """Each voter has what the leader had a moment ago: none is still catching up."""
        index = self.leader().do("standing")["index"]
        wait_for(lambda: all(each.do("standing")["index"] >= index for each in self.workers), "the voters are near")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.workers:
            each.kill()


def wait_for(holds: Callable[[], bool], what: str) -> None:
    """Looks until it holds."""
    end = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {WITHIN_S:.0f} s: {what}")
        time.sleep(LOOK_S)


def _free_address() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _text(bound: socket.socket) -> str:
    return f"127.0.0.1:{bound.getsockname()[1]}"
