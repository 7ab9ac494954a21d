"""A real, disposable PostgreSQL server for a test, and a proxy that can cut its connections at a chosen statement.

The server uses a directory under the system's temporary one, listens on a Unix socket there and on a loopback port, and
runs as an unprivileged user if the tests run as root, because PostgreSQL refuses root. It does not sync: the tests kill
processes, but do not cut the power.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from kit.patience import PATIENCE_S, wait_until
from kit.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PASSWORD: Final = "it's a s3cret"
DATABASE: Final = "postgres"

SETTINGS: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",  # so that what is on is what the catalog turned on
    "shared_buffers": "16MB",
    "max_connections": "30",
    "autovacuum": "off",
    "logging_collector": "off",
}


_schemas = itertools.count(1)


def fresh_schema() -> str:
    """The name of an unused schema."""
    return f"s{next(_schemas)}"


@functools.cache
def programs() -> Path | None:
    """The directory of ``initdb`` and ``postgres``: in the PATH, or Debian's newest version."""
    places = [Path(found).resolve().parent for found in [shutil.which("postgres")] if found]
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    places += sorted(versions, key=lambda path: float(path.parent.name), reverse=True)
    for place in places:
        if (place / "postgres").exists() and (place / "initdb").exists():
            return place
    return None


def required_programs() -> Path:
    """As :func:`programs`; without a server the test is skipped, or fails where skipping would hide something."""
    found = programs()
    if found is None:
        why = "there is no PostgreSQL server: install Debian's package postgresql"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    return found


def _unprivileged() -> str | None:
    """The user for the server if the tests run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            pwd.getpwnam(name)
            return name
    raise AssertionError("neither postgres nor nobody is a user here")


def _open_to_all() -> Path:
    """A temporary directory that other users can reach, with a name short enough for a socket in it."""
    for place in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        reached = all(each.stat().st_mode & 0o001 for each in (place, *place.parents))
        if reached and len(str(place)) < 50 and os.access(place, os.W_OK):
            return place
    raise AssertionError("no temporary directory is open to another user here")


class Server:
    """A server with a superuser ``owner`` who has a password. Stop it, kill it, start it again."""

    def __init__(self) -> None:
        self.bin = required_programs()
        self.user = _unprivileged()
        self.home = Path(tempfile.mkdtemp(prefix="logstore-postgres-", dir=_open_to_all()))
        self.data = self.home / "data"
        self.process: subprocess.Popen[bytes] | None = None
        (self.port,) = free_ports(1)
        if self.user is not None:
            shutil.chown(self.home, self.user)
        secret = self.home / "password"
        secret.write_text(PASSWORD)
        if self.user is not None:
            shutil.chown(secret, self.user)
        self._run(
            "initdb",
            f"--pgdata={self.data}",
            "--username=owner",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        )

    def _options(self) -> dict[str, Any]:
        as_user = {} if self.user is None else {"user": self.user, "group": _group_of(self.user), "extra_groups": []}
        # Where the tests run under ASan, the server does not.
        ours = ("PG", "LC_", "LD_PRELOAD", "ASAN_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {"cwd": self.home, "env": {**environment, "LC_ALL": "C"}, "stdin": subprocess.DEVNULL, **as_user}

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.bin / program, *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            **self._options(),
        )
        assert done.returncode == 0, done.stderr

    # ---- starting and stopping

    def start(self) -> None:
        """Start it and wait until it answers, also for remaining processes of a killed server."""
        assert self.process is None, "it runs already"

        def started() -> bool:
            self._launch()
            return self._answers()

        wait_until(started, "the server starts")

    def _launch(self) -> None:
        settings = [f"-c{name}={value}" for name, value in SETTINGS.items()]
        places = [f"-cunix_socket_directories={self.home}", "-clisten_addresses=127.0.0.1", f"-cport={self.port}"]
        log = (self.home / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.data, *settings, *places],
                stdout=log,
                stderr=log,
                **self._options(),
            )

    def _answers(self) -> bool:
        """Whether it serves; False if it has ended because processes of a killed server still hold its memory."""
        assert self.process is not None
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                self.process = None
                return False
            with contextlib.suppress(Exception), self.session() as session:
                return bool(session.execute("SELECT true").fetchone())
            time.sleep(0.05)
        raise AssertionError((self.home / "log").read_text())

    def stop(self) -> None:
        """Stop at once: sessions are ended, committed data stays."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server process itself, and wait for the end of its children, who may answer until they notice."""
        children = self._children()
        self._end(signal.SIGKILL)
        wait_until(lambda: not any(map(_is_alive, children)), "the processes of the killed server end")

    def _end(self, number: int) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            process.wait(PATIENCE_S)

    def freeze(self) -> None:
        """Suspend all its processes: connections stay open, but only the kernel answers."""
        self._to_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume them."""
        self._to_all(signal.SIGCONT)

    def _to_all(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)  # first, so that no further child is made
        for pid in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _children(self) -> list[int]:
        assert self.process is not None
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in listed.read_text().split()]

    def remove(self) -> None:
        """Stop it for good."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.home, ignore_errors=True)

    # ---- use

    def url(self, user: str = "owner", password: str | None = PASSWORD, **query: str) -> str:
        """The string for ``connect=``: the Unix socket, unless ``host`` and ``port`` are given."""
        import sqlalchemy as sa

        query = {"host": str(self.home), "port": str(self.port), **query}
        made = sa.URL.create("postgresql+psycopg", user, password, None, None, DATABASE, query)
        return made.render_as_string(hide_password=False)

    @contextlib.contextmanager
    def session(self, user: str = "owner") -> Iterator[Any]:
        """A session of the test's own, each statement committed by itself."""
        import psycopg

        with psycopg.connect(
            host=str(self.home),
            port=self.port,
            user=user,
            password=PASSWORD,
            dbname=DATABASE,
            autocommit=True,
            connect_timeout=PATIENCE_S,
        ) as connection:
            yield connection

    def value(self, statement: str) -> Any:
        """The first value of what the statement gives."""
        with self.session() as session:
            row = session.execute(statement).fetchone()
        return None if row is None else row[0]

    def run(self, *statements: str) -> None:
        """Each committed by itself."""
        with self.session() as session:
            for statement in statements:
                session.execute(statement)

    OTHERS: Final = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"

    def sessions(self) -> list[int]:
        """The processes of all sessions but this one."""
        with self.session() as session:
            return [row[0] for row in session.execute(f"SELECT pid {self.OTHERS}").fetchall()]

    def drop_sessions(self) -> None:
        """End every session, as an operator would with pg_terminate_backend, until none is left."""
        wait_until(lambda: self.sessions(), "there is a session to drop")
        self.run(f"SELECT pg_terminate_backend(pid) {self.OTHERS}")
        wait_until(lambda: not self.sessions(), "the sessions are gone")

    def kill_a_session(self) -> None:
        """Kill one of its processes; the server then ends all sessions and recovers."""
        os.kill(self.sessions()[0], signal.SIGKILL)

        def recovered() -> bool:
            with contextlib.suppress(Exception):
                return not self.sessions()
            return False

        wait_until(recovered, "the server has recovered")


def _group_of(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def _is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        after_the_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return after_the_name.split()[0] != "Z"


class Wire:
    """A loopback port in front of a server. A client's connection can be cut before or after a word that it sends."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.word = b""
        self.cut: str | None = None
        self.then: Callable[[], object] = lambda: None
        self.go = threading.Event()  # "late": set to pass the word to the server
        self._answering: socket.socket | None = None  # the server's side of a connection that is cut "behind" the word
        self._answered = threading.Event()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self) -> str:
        """As the server's, through here."""
        return self.server.url(host="127.0.0.1", port=str(self.port), sslmode="disable", gssencmode="disable")

    def cut_at(self, word: bytes, how: str, *, then: Callable[[], object] = lambda: None) -> None:
        """Cut the connection when a client next sends ``word``; ``then`` is called before the client is cut off.

        "before": the server never gets the word. "behind": the server has answered it, and the answer gets lost.
        "late": the server gets the word after the client is cut off, when ``go`` is set.
        """
        self.go.clear()
        self._answered.clear()
        self.word, self.cut, self.then = word, how, then

    def close(self) -> None:
        """Both sides."""
        self.go.set()
        self._listener.close()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.server.port))
            except OSError:  # as a server that is away would refuse it
                client.close()
                continue
            self._sockets += [client, server]
            threading.Thread(target=self._up, args=(client, server), daemon=True).start()
            threading.Thread(target=self._down, args=(server, client), daemon=True).start()

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if self._answering is server:
                    self._answered.set()
                else:
                    client.sendall(data)
        _hang_up(client)

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                how = self.cut if self.word in data else None
                if how is None:
                    server.sendall(data)
                else:
                    self.cut = None
                    self._cut_off(client, server, data, how)
        _hang_up(server, reading=False)

    def _cut_off(self, client: socket.socket, server: socket.socket, data: bytes, how: str) -> None:
        if how == "behind":
            # A server that has the word may still die without obeying it; it answers only after it has obeyed.
            self._answering = server
            server.sendall(data)
            assert self._answered.wait(PATIENCE_S)
        self.then()
        _hang_up(client)
        if how == "late":
            assert self.go.wait(PATIENCE_S)
            server.sendall(data)


def _hang_up(one: socket.socket, *, reading: bool = True) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR if reading else socket.SHUT_WR)


def running_server() -> Iterator[Server]:
    """For a fixture: a server that runs, and is gone afterwards."""
    made = Server()
    try:
        made.start()
        yield made
    finally:
        made.remove()
