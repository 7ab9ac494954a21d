"""The control socket: the way in which a command reaches the broker that has a store open, or a member of a cluster.

A broker listens on ``control.sock`` in its store directory (mode 0600; the directory has 0700). A client connects,
sends one request and gets one reply. Each is one line of JSON::

    {"logstore-control": 1, "command": "in-doubt.commit", "arguments": {"xid": "1:6f:"}}
    {"logstore-control": 1, "result": {"id": 524388, "operations": 2}}
    {"logstore-control": 1, "error": {"kind": "UnknownXid", "message": "..."}}

The kind of an error is a name in ``logstore.errors``. The version changes when the meaning of an existing command or
field changes; new commands and new fields do not change it. Each side ignores unknown fields. A command is one entry
in the mapping that :class:`ControlServer` is given. A member of a cluster has a socket of its own, with the same lines.

Invariant: a client that sends nothing, too much or invalid data, or does not read its reply, never blocks the event
loop. It occupies one of ``SESSIONS_MAX`` sockets for at most ``PATIENCE_S`` and nothing else.

A command whose caller has hung up is not begun; one that was begun is finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import select
import socket
import stat
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from logstore import errors
from logstore.core.directory import with_directory
from logstore.core.lock_holder import holder, is_stopped, store_locked
from logstore.errors import OutcomeUnknown, StoreError, StoreLocked
from logstore.store.changes import change_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

__all__ = ["PROTOCOL_VERSION", "SOCKET_NAME", "ControlServer", "call", "is_served", "process_that_answers"]

logger = logging.getLogger("logstore.control")

# Commands that change nothing.
READING = frozenset({"connections", "fullness", "peek", "ping", "stats", "status", "tail"})

SECRET = "password_hash"  # an argument whose value is not logged

T = TypeVar("T")

SOCKET_NAME: Final = "control.sock"
PROTOCOL_VERSION: Final = 1
REQUEST_BYTES_MAX: Final = 64 << 10
REPLY_BYTES_MAX: Final = 16 << 20
SESSIONS_MAX: Final = 16  # at the same time; further ones are refused
PATIENCE_S: Final = 5.0  # for the request to arrive, and again for the reply to be read
SIGN_OF_LIFE_S: Final = 2.0  # for the answer to a ping, before a command reads the log by itself
CALL_S: Final = 600.0  # a caller's default timeout; a command may have to wait for the disk
NOTICE_S: Final = 3.0  # a caller that has waited this long for an answer gets a message that it waits

_VERSION_KEY: Final = "logstore-control"


class Kind(NamedTuple):
    """A kind of process with a control socket."""

    socket_name: str
    program: str
    """Its name in texts."""
    directory: str
    """What its directory is called in texts."""


BROKER: Final = Kind(SOCKET_NAME, "broker", "the store")
_PEER: Final = struct.Struct("iII")  # pid, uid, gid


# ---- Both sides


@contextlib.contextmanager
def _short_path(store_dir: Path, name: str = SOCKET_NAME) -> Iterator[str]:
    """A path to the socket that fits into a socket address (107 bytes), even if the store's path is longer."""
    directory = os.open(store_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{name}"
    finally:
        os.close(directory)


def _line(**fields: object) -> bytes:
    return json.dumps({_VERSION_KEY: PROTOCOL_VERSION, **fields}).encode() + b"\n"


def _read_line(line: bytes, whose: str) -> dict[str, Any]:
    """The JSON object on a line. Raises ``StoreError`` if there is none, ``VersionError`` for another version."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or type(fields.get(_VERSION_KEY)) is not int:
        raise StoreError(f"{whose} is not a line of the control protocol")
    if fields[_VERSION_KEY] != PROTOCOL_VERSION:
        raise errors.VersionError(
            f"{whose} has version {fields[_VERSION_KEY]} of the control protocol, and this logstore has version "
            f"{PROTOCOL_VERSION}: use the logstore that runs the other side"
        )
    return fields


# ---- The caller's side


def is_served(store_dir: Path, kind: Kind = BROKER) -> bool:
    """Whether a broker listens on this store's control socket, even one that accepts nothing now."""
    with _client_socket() as made:
        try:
            _dial(made, store_dir, kind)
        except OSError as error:
            return _is_busy(error)
    return True


def process_that_answers(store_dir: Path, timeout_s: float | None = None) -> int | None:
    """The process id of the broker that has this store open, as it answers a ping; None if the answer has none.

    Raises ``StoreLocked`` if no broker listens, or if it gives no answer within ``timeout_s`` (``PATIENCE_S``) seconds.
    """
    limit_s = PATIENCE_S if timeout_s is None else timeout_s
    try:
        pid = call(store_dir, "ping", {}, timeout_s=limit_s).get("pid")
    except OutcomeUnknown as error:
        raise _silent(store_dir, limit_s) from error
    return pid if isinstance(pid, int) else None


def call(
    store_dir: Path,
    command: str,
    arguments: Mapping[str, Any],
    *,
    timeout_s: float = CALL_S,
    on_wait: Callable[[], None] | None = None,
    kind: Kind = BROKER,
) -> dict[str, Any]:
    """Sends a command to the broker that has this store open, and returns its result.

    ``on_wait`` is called once if there is no answer after ``NOTICE_S`` seconds.

    Raises ``StoreLocked`` if no broker listens, ``OutcomeUnknown`` if the broker closes the connection or does not
    answer within ``timeout_s``, ``VersionError`` if it uses another protocol version, and otherwise the broker's error.
    """
    with _connect(store_dir, kind) as connection:
        try:
            with contextlib.suppress(BrokenPipeError):  # the broker hung up, and may have sent the reason before
                connection.sendall(_line(command=command, arguments=dict(arguments)))
            if on_wait is not None and timeout_s > NOTICE_S and not _is_readable(connection, NOTICE_S):
                on_wait()
                timeout_s -= NOTICE_S
            line = _receive(connection, time.monotonic() + timeout_s)
        except TimeoutError as error:
            raise _unanswered(kind, command, f"has not answered in {timeout_s:g} s") from error
        except OSError as error:
            raise _unanswered(kind, command, f"can no longer be reached ({error.strerror})") from error
    if not line.endswith(b"\n"):
        raise _unanswered(kind, command, "closed the connection before it answered")
    reply = _read_line(line, f"the {kind.program}'s answer")
    result, problem = reply.get("result"), reply.get("error")
    if isinstance(problem, dict):
        raise _problem(str(problem.get("kind")), str(problem.get("message")))
    if not isinstance(result, dict):
        raise StoreError(f"the {kind.program}'s answer is not a line of the control protocol")
    return result


def _connect(store_dir: Path, kind: Kind = BROKER) -> socket.socket:
    path = store_dir / kind.socket_name
    made = _client_socket()
    try:
        _dial(made, store_dir, kind)
    except OSError as error:
        made.close()
        if _is_busy(error):
            raise _silent(store_dir, kind=kind) from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise StoreLocked(f"this user may not use {path}: run the command as the {kind.program}'s user") from error
        raise store_locked(
            store_dir,
            f"no {kind.program} listens on {path}: use that program's own means, or end it and try again",
            kind.directory,
        ) from error
    return made


def _is_busy(error: OSError) -> bool:
    """Whether a connection failed because a listener that exists has not accepted the earlier ones."""
    return error.errno in (errno.EAGAIN, errno.ETIMEDOUT) or isinstance(error, TimeoutError)


def _silent(store_dir: Path, waited_s: float | None = None, kind: Kind = BROKER) -> StoreLocked:
    """The error for a broker that gives no sign of life. It says how to continue one that a signal has stopped."""
    pid = holder(store_dir)
    if pid is not None and is_stopped(pid):
        why = f"the process is stopped; continue it with 'kill -CONT {pid}'"
    else:
        why = "look at its log and its process"
    waited = "" if waited_s is None else f" ({waited_s:g} s)"
    return store_locked(
        store_dir,
        f"a {kind.program} that does not answer{waited}, so nothing was done: {why}, and repeat the command",
        kind.directory,
    )


def _client_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    made.settimeout(PATIENCE_S)
    return made


def _dial(made: socket.socket, store_dir: Path, kind: Kind = BROKER) -> None:
    with _short_path(store_dir, kind.socket_name) as short:
        made.connect(short)


def _is_readable(connection: socket.socket, timeout_s: float) -> bool:
    """Whether an answer, or the end of the connection, arrives within this time."""
    watched = select.poll()
    watched.register(connection, select.POLLIN)
    return bool(watched.poll(timeout_s * 1000))


def _receive(connection: socket.socket, until_s: float) -> bytes:
    """Reads up to the end of a line, or of the connection. Raises ``TimeoutError`` at that monotonic time."""
    received = bytearray()
    while not received.endswith(b"\n") and len(received) < REPLY_BYTES_MAX:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        data = connection.recv(1 << 16)
        if not data:
            break
        received += data
    return bytes(received)


def _unanswered(kind: Kind, command: str, what: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the {kind.program} {what}: it is unknown whether {command!r} was done; check, and repeat the command if it "
        "was not"
    )


def _problem(kind: str, message: str) -> StoreError:
    found = getattr(errors, kind, None) if kind in errors.__all__ else None
    if found is None or found is errors.CorruptLog:  # CorruptLog needs more than a message
        return StoreError(message)
    return cast("StoreError", found(message))


# ---- The broker's side


class _CallerGone(Exception):
    """The caller of a command has hung up before it was begun."""


_CALLER: Final[ContextVar[_Session]] = ContextVar("_CALLER")  # of the command that a task executes


class ControlServer:
    """Listens on a store's control socket in one event loop, and passes each command to its handler.

    A handler takes the arguments and returns the result, both JSON objects. A ``StoreError`` that it raises is sent to
    the caller. It runs on the event loop, and moves slow work to :meth:`in_thread`.
    """

    def __init__(self, store_dir: Path, handlers: Mapping[str, Handler], kind: Kind = BROKER) -> None:
        self._store_dir = store_dir.absolute()
        self.kind = kind
        self._handlers = {"ping": self._ping, **handlers}
        self._listener: asyncio.Server | None = None
        self._own: tuple[int, int] | None = None  # device and inode of our socket
        self._sessions: set[_Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="logstore-control")
        self._turn = asyncio.Lock()  # to use the thread

    async def start(self) -> None:
        """Starts to listen. Replaces the socket of a broker that died. Raises ``StoreError`` on failure."""
        path = self._store_dir / self.kind.socket_name
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            self._clear_the_way(path)
            os.fchmod(made.fileno(), 0o600)  # before it has a name
            with _short_path(self._store_dir, self.kind.socket_name) as short:
                made.bind(short)
            status = path.lstat()
            self._own = status.st_dev, status.st_ino
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_unix_server(lambda: _Session(self), sock=made, backlog=SESSIONS_MAX)
        except OSError as error:
            made.close()
            self._remove_socket()
            raise StoreError(f"no control socket can be made at {path}: {error.strerror or error}") from error
        except StoreError:
            made.close()
            raise

    def _clear_the_way(self, path: Path) -> None:
        """Removes a dead broker's socket. Safe, because only the process with the store's write lock gets here."""
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(status.st_mode):
            raise StoreError(f"{path} is not a socket and takes the name of the control socket: remove it")
        if is_served(self._store_dir, self.kind):
            raise StoreError(f"another {self.kind.program} of this process listens on {path} already")
        path.unlink()

    async def stop(self, timeout_s: float) -> None:
        """Accepts no more commands and removes the socket. Commands in progress get ``timeout_s`` seconds to end."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._remove_socket()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for session in list(self._sessions):
            session.hang_up()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _remove_socket(self) -> None:
        path = self._store_dir / self.kind.socket_name
        own, self._own = self._own, None
        with contextlib.suppress(OSError):
            status = path.lstat()
            if (status.st_dev, status.st_ino) == own:
                path.unlink()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs ``work``, which may wait for the disk, in another thread. One piece of work runs at a time.

        It is not begun if the caller has hung up while it waited for its turn.
        """
        async with self._turn:
            if _CALLER.get().has_hung_up():
                raise _CallerGone
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _ping(self, _arguments: dict[str, Any]) -> dict[str, Any]:
        return {"pid": os.getpid(), "commands": sorted(self._handlers)}

    # For sessions.

    def admit(self, session: _Session) -> bool:
        """Adds the session. False if there are too many already."""
        if len(self._sessions) >= SESSIONS_MAX:
            return False
        self._sessions.add(session)
        return True

    def leave(self, session: _Session) -> None:
        """Removes a session that has ended."""
        self._sessions.discard(session)

    def serve(self, session: _Session, line: bytes) -> None:
        """Starts to execute the command on this line; the session gets the reply."""
        task = asyncio.get_running_loop().create_task(self._serve(session, line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, session: _Session, line: bytes) -> None:
        _CALLER.set(session)
        try:
            reply = _line(result=await self._do(session, line))
        except StoreError as error:
            reply = refusal(error)
        except Exception:
            logger.exception("a control command failed")
            reply = refusal(StoreError(f"the {self.kind.program} failed to execute the command; see its log"))
        session.reply(reply)

    async def _do(self, session: _Session, line: bytes) -> dict[str, Any]:
        request = _read_line(line, "the request")
        command, arguments = request.get("command"), request.get("arguments", {})
        if not isinstance(command, str) or not isinstance(arguments, dict):
            raise StoreError("the request names no command, or its arguments are not a JSON object")
        handler = self._handlers.get(command)
        if handler is None:
            has = ", ".join(sorted(self._handlers))
            raise StoreError(f"this {self.kind.program} has no command {command!r}; it has {has}")
        shown = {name: "…" if name == SECRET else value for name, value in arguments.items()}
        level = logging.DEBUG if command in READING or arguments.get("dry_run") is True else logging.INFO
        try:
            if session.has_hung_up():
                raise _CallerGone
            logger.debug("control command %s %s", command, shown)
            result = await handler(arguments)
        except _CallerGone:
            logger.log(level, "control command %s %s is dropped: its caller has hung up", command, shown)
            return {}
        except StoreError as error:
            said = with_directory(error.message, self._store_dir)
            logger.log(level, "control command %s %s has failed: %s", command, shown, said)
            raise
        done = change_text(command, arguments, result)
        if done is not None:
            logger.info("%s", done)
        return result


def refusal(error: StoreError) -> bytes:
    """An error as a reply."""
    return _line(error={"kind": type(error).__name__, "message": error.message})


class _Session(asyncio.Protocol):
    """One caller: reads one line and writes one line."""

    def __init__(self, server: ControlServer) -> None:
        self._server = server
        self._received = bytearray()
        self._is_asked = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        uid = peer_uid(transport)
        if uid not in (0, os.geteuid()):
            self._refuse(f"user {uid} may not control this {self._server.kind.program}: run the command as its user")
        elif not self._server.admit(self):
            self._refuse(f"the {self._server.kind.program} is busy with {SESSIONS_MAX} other commands: try again later")
        else:
            self._set_timer()

    def _refuse(self, why: str) -> None:
        self._is_asked = True
        self.reply(refusal(StoreError(why)))

    def _set_timer(self) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self.hang_up)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def data_received(self, data: bytes) -> None:
        if self._is_asked or self._transport is None:
            return
        self._received += data
        line, newline, _ = self._received.partition(b"\n")
        if newline and len(line) < REQUEST_BYTES_MAX:
            self._is_asked = True
            self._cancel_timer()
            self._transport.pause_reading()
            self._server.serve(self, bytes(line))
        elif len(self._received) >= REQUEST_BYTES_MAX:
            self._refuse(f"a request is shorter than {REQUEST_BYTES_MAX} bytes; this one is longer")

    def eof_received(self) -> bool:
        """Keeps the connection open for the reply if the caller closes its sending side after the request."""
        return self._is_asked

    def reply(self, line: bytes) -> None:
        """Sends the reply, and closes the connection when it was sent or ``PATIENCE_S`` have passed."""
        if self._transport is None or self._transport.is_closing():
            return
        self._received.clear()
        self._set_timer()
        self._transport.write(line)
        self._transport.close()

    def has_hung_up(self) -> bool:
        """Whether the caller has closed its socket. One that has closed only its sending side waits for the reply."""
        if self._transport is None or self._transport.is_closing():
            return True
        watched = select.poll()
        watched.register(self._transport.get_extra_info("socket"), 0)  # POLLHUP and POLLERR are always told
        return bool(watched.poll(0))

    def hang_up(self) -> None:
        """Aborts the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._cancel_timer()
        self._transport = None
        self._server.leave(self)


def peer_uid(transport: asyncio.BaseTransport) -> int:
    """The user id of the process at the other end, from the kernel; -1 if it is unknown."""
    peer = transport.get_extra_info("socket")
    try:
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    except OSError:
        return -1
    return int(_PEER.unpack(credentials)[1])
