"""The queue systems that a user may choose instead of the broker, each a process that syncs before it answers.

They come from the distribution (apt-get install redis-server beanstalkd postgresql), and run with default settings
except for paths, ports, and the sync. All listen on the loopback interface only, keep their data in a new directory,
and end with the program, by process id. `nats-server` must know ``sync_interval: always``, which versions before 2.10
do not.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self

from rabbitmq_server import Missing, free_port

START_S: Final = 30.0
STOP_S: Final = 30.0
_NATS_FIRST: Final = (2, 10)


class QueueServer:
    """One running process, and those that it has started. Subclasses say how it is started."""

    program: str
    package: str
    sync: str  # the setting by which an answer means that the message is on disk

    def __init__(self, directory: Path) -> None:
        """Starts it and waits until it can be connected to. Raises `Missing`, or `RuntimeError` with its output."""
        directory.mkdir()
        self.directory = directory
        self.port = free_port()
        self._output = directory / "output"
        command, more = self.command()
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **more,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    @classmethod
    def path(cls) -> str:
        """Of its program. Raises `Missing`."""
        found = shutil.which(cls.program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin")
        if found is None:
            raise Missing(f"{cls.program} is not installed: apt-get install {cls.package}")
        return found

    @classmethod
    def version(cls) -> str:
        """Of the program."""
        told = subprocess.run([cls.path(), "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"\d+(\.\d+)+", told.stdout + told.stderr)
        return found[0] if found else "unknown"

    def command(self) -> tuple[list[str], dict[str, Any]]:
        """The command, and further arguments of `Popen`."""
        raise NotImplementedError

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.program} did not start: {self._output.read_text(errors='replace')[-2000:]}")

    @property
    def pids(self) -> tuple[int, ...]:
        """The process and its children at this moment: PostgreSQL has one for each connection."""
        found = [self._process.pid]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[1]) == self._process.pid:
                        found.append(int(entry.name))
        return tuple(found)

    def stop(self) -> None:
        """Stops it in order, or by force."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class RedisServer(QueueServer):
    """An append-only file that is synced before each answer; no snapshots."""

    program, package, sync = "redis-server", "redis-server", "appendfsync always"

    def command(self) -> tuple[list[str], dict[str, Any]]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        return [self.path(), *[part for name, value in settings.items() for part in (f"--{name}", value)]], {}


class BeanstalkServer(QueueServer):
    """A binary log that is synced at each write."""

    program, package, sync = "beanstalkd", "beanstalkd", "-f 0"

    @classmethod
    def version(cls) -> str:
        told = subprocess.run([cls.path(), "-v"], capture_output=True, text=True, check=False)
        return told.stdout.split()[-1]

    def command(self) -> tuple[list[str], dict[str, Any]]:
        return [self.path(), "-b", str(self.directory), "-f", "0", "-l", "127.0.0.1", "-p", str(self.port)], {}


class PostgresServer(QueueServer):
    """A cluster of its own, in the newest version that is installed."""

    program, package, sync = "postgres", "postgresql", "synchronous_commit on"
    _USER: Final = "postgres"

    @classmethod
    def path(cls) -> str:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda each: float(each.parts[4]))
        if not found:
            raise Missing("PostgreSQL is not installed: apt-get install postgresql")
        return str(found[-1])

    def command(self) -> tuple[list[str], dict[str, Any]]:
        of_user: dict[str, Any] = {"user": self._USER, "group": self._USER, "extra_groups": []}
        of_user = of_user if os.geteuid() == 0 else {}
        data = self.directory / "data"
        data.mkdir(mode=0o700)
        if of_user:
            for path in (self.directory, data):
                shutil.chown(path, self._USER, self._USER)
        initdb = Path(self.path()).with_name("initdb")
        made = subprocess.run(
            [initdb, "-D", data, "-U", self._USER, "--auth=trust", "--no-locale", "-E", "UTF8"],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
            **of_user,
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb: {made.stderr[-2000:]}")
        command = [self.path(), "-D", str(data), "-p", str(self.port), "-c", "listen_addresses=127.0.0.1"]
        return [*command, "-c", "unix_socket_directories="], {"cwd": self.directory, **of_user}


class NatsServer(QueueServer):
    """JetStream with a file store that is synced before each acknowledgement."""

    program, package, sync = "nats-server", "nats-server", "sync_interval: always"

    def command(self) -> tuple[list[str], dict[str, Any]]:
        version = self.version()
        if tuple(int(part) for part in version.split(".")[:2]) < _NATS_FIRST:
            raise Missing(f"nats-server {version} cannot sync before it answers: it needs version 2.10 or later")
        settings = self.directory / "settings"
        settings.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{self.directory}", sync_interval: always }}\n'
        )
        return [self.path(), "-c", str(settings)], {}


SERVERS: Final[dict[str, type[QueueServer]]] = {
    "redis": RedisServer,
    "beanstalkd": BeanstalkServer,
    "postgresql": PostgresServer,
    "nats": NatsServer,
}
