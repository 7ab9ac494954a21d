"""Separate RabbitMQ nodes for this program, from the distribution's package: one, or a cluster.

Each has its own name, ports, data directory and log; a cluster shares one cookie and one port mapper (epmd). All is on
the loopback interface; it touches nothing of an installed node, and ends with the program, by process id. The package's
wrapper requires the system's directories, so the script behind it is run: as the user `rabbitmq` if this program runs
as root, else as the caller.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self

SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL: Final = SERVER.with_name("rabbitmqctl")
USER: Final = "rabbitmq"
START_S: Final = 90.0
STOP_S: Final = 30.0


class Missing(Exception):
    """A program is not installed; the text says how to get it."""


def need() -> None:
    """Raises `Missing` if the package is not there."""
    if not SERVER.exists():
        raise Missing(f"RabbitMQ is not installed ({SERVER} is missing): apt-get install rabbitmq-server")
    for program in ("epmd", "erl"):
        if shutil.which(program) is None:
            raise Missing(f"{program} is not installed: apt-get install rabbitmq-server")


def free_port() -> int:
    """A port on the loopback interface that nobody listens on."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _of_user() -> dict[str, Any]:
    return {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}


class RabbitServer:
    """One running node. `port` takes clients, `pids` are the processes that do its work."""

    def __init__(self, directory: Path, *, name: str = "load", joins: RabbitServer | None = None) -> None:
        """Starts it and waits until it can be connected to. Raises `Missing`, or `RuntimeError` with its log.

        `joins`: a node of the cluster that it joins.
        """
        need()
        self.directory = directory
        self.port = free_port()
        self.node = f"{name}{os.getpid()}@localhost"
        self.cookie = secrets.token_hex(20) if joins is None else joins.cookie
        self.epmd_port = free_port() if joins is None else joins.epmd_port
        self._make_directory(joins)
        environment = self._environment()
        self._epmd = None if joins is not None else self._start_port_mapper(environment)
        with (directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [SERVER],
                env=environment,
                cwd=directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                **_of_user(),
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _start_port_mapper(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["epmd", "-port", str(self.epmd_port), "-address", "127.0.0.1"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **_of_user(),
        )

    def _make_directory(self, joins: RabbitServer | None) -> None:
        """What the node needs, readable for its user alone."""
        for name in ("mnesia", "log", "home"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "enabled_plugins").write_text("[].\n")
        lines = [f"listeners.tcp.1 = 127.0.0.1:{self.port}", "log.file.level = warning"]
        if joins is not None:
            lines.append("cluster_formation.peer_discovery_backend = classic_config")
            for number, node in enumerate((joins.node, self.node), 1):
                lines.append(f"cluster_formation.classic_config.nodes.{number} = {node}")
        (self.directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        cookie = self.directory / "home" / ".erlang.cookie"
        cookie.write_text(self.cookie)
        cookie.chmod(0o400)
        if os.geteuid() == 0:
            for path in (self.directory, *self.directory.rglob("*")):
                shutil.chown(path, USER, USER)
        self.directory.chmod(0o700)

    def _environment(self) -> dict[str, str]:
        here = self.directory
        return {
            "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            "LANG": "C.UTF-8",
            "HOME": str(here / "home"),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": str(here / "log" / "erl_crash.dump"),
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": str(here / "mnesia"),
            "RABBITMQ_LOG_BASE": str(here / "log"),
            "RABBITMQ_PID_FILE": str(here / "pid"),
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "enabled_plugins"),
        }

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.2)
            else:
                self.pids = tuple(self._beams())
                if self.pids:
                    return
        raise RuntimeError(f"RabbitMQ did not start:\n{self.output()[-2000:]}")

    def output(self) -> str:
        """Its output."""
        return (self.directory / "output").read_text(errors="replace")

    def _beams(self) -> list[int]:
        """The Erlang virtual machine among the descendants of the started process."""
        parents: dict[int, int] = {}
        names: dict[int, str] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                head, _, tail = stat.read_text().rpartition(")")
            except OSError:
                continue
            pid = int(stat.parent.name)
            parents[pid] = int(tail.split()[1])
            names[pid] = head.partition("(")[2]
        found = []
        for pid, name in names.items():
            each = pid
            while each not in (0, self._process.pid):
                each = parents.get(each, 0)
            if each and name.startswith("beam"):
                found.append(pid)
        return found

    def ask(self, *command: str) -> Any:
        """What `rabbitmqctl` answers. Raises `RuntimeError`."""
        done = subprocess.run(
            [CONTROL, "--quiet", "--formatter", "json", *command],
            env=self._environment(),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
            **_of_user(),
        )
        if done.returncode != 0:
            raise RuntimeError(f"rabbitmqctl {' '.join(command)}: {done.stderr[-2000:]}")
        return json.loads(done.stdout)

    @staticmethod
    def version() -> str:
        """Of the package's server, from where it lies."""
        found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        return found[-1].name.partition("-")[2] if found else "unknown"

    def stop(self) -> None:
        """Ends the node, in order or by force, and the port mapper."""
        for pid in getattr(self, "pids", ()):
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        try:
            self._process.wait(STOP_S if getattr(self, "pids", ()) else 0.1)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # its own session has no other processes
            self._process.wait()
        if self._epmd is not None:
            self._epmd.terminate()
            self._epmd.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class RabbitCluster:
    """Nodes of one cluster, the first of which has the port mapper."""

    def __init__(self, directory: Path, nodes: int) -> None:
        """Starts them. Raises as `RabbitServer` does, and `RuntimeError` if they are no cluster."""
        self.nodes: list[RabbitServer] = []
        try:
            for number in range(1, nodes + 1):
                first = self.nodes[0] if self.nodes else None
                self.nodes.append(RabbitServer(directory / f"r{number}", name=f"load{number}-", joins=first))
            running = self.nodes[0].ask("cluster_status")["running_nodes"]
            if sorted(running) != sorted(each.node for each in self.nodes):
                raise RuntimeError(f"RabbitMQ's nodes are no cluster; running are {running}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all; the port mapper last."""
        with contextlib.ExitStack() as ends:
            for each in self.nodes:
                ends.callback(each.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
