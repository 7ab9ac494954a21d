"""The control socket: one line each way, only for the broker's own user, safe against any caller."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import socket
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.patience import PATIENCE_S, wait_until
from logstore.store import control
from logstore.store.control import PROTOCOL_VERSION, REQUEST_BYTES_MAX, SESSIONS_MAX, SOCKET_NAME, ControlServer, call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ADDRESS_BYTES_MAX = 107


class Listening:
    """A control server on its own event loop, with a list of the commands that it received."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.may_go_on = threading.Event()
        self.asked: list[dict[str, Any]] = []
        self.loop = asyncio.new_event_loop()
        self.unhandled: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.unhandled.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.server = ControlServer(
            directory, {"echo": self._echo, "slow": self._slow, "refuse": self._refuse, "fail": self._fail}
        )
        self.run(self.server.start())

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    async def _echo(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(arguments)
        return {"said": arguments}

    async def _slow(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(arguments)
        await self.server.in_thread(lambda: self.may_go_on.wait(PATIENCE_S))
        return {"done": True}

    async def _refuse(self, arguments: dict[str, Any]) -> dict[str, Any]:
        kind = getattr(logstore, arguments["kind"])
        raise kind("such is life") if kind is not logstore.CorruptLog else kind("bits", segment="s", offset=1, lsn=2)

    async def _fail(self, _arguments: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("a defect")

    def stop(self) -> None:
        self.may_go_on.set()
        self.run(self.server.stop(PATIENCE_S))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()
        assert self.unhandled == []

    def connect(self) -> socket.socket:
        made = control._connect(self.directory)
        made.settimeout(PATIENCE_S)
        return made


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Callable[..., Listening]]:
    made: list[Listening] = []

    def start(directory: Path = tmp_path) -> Listening:
        made.append(Listening(directory))
        return made[-1]

    yield start
    for each in made:
        each.stop()


@pytest.fixture
def listening(listen: Callable[..., Listening]) -> Listening:
    return listen()


def answer(connection: socket.socket) -> dict[str, Any]:
    """Its answer, one line, up to the end of the connection."""
    with connection, connection.makefile("rb") as lines:
        (line,) = lines.readlines()
    said: dict[str, Any] = json.loads(line)
    assert said["logstore-control"] == PROTOCOL_VERSION
    return said


def request(**fields: Any) -> bytes:
    return json.dumps({"logstore-control": PROTOCOL_VERSION} | fields).encode() + b"\n"


# ---- Commands


def test_a_command_gets_and_returns_any_json_value(listening: Listening) -> None:
    arguments = {"xid": "1:ab:", "text": "ü\n\x1b", "numbers": [1, 2.5, None, True]}
    assert call(listening.directory, "echo", arguments) == {"said": arguments}
    assert listening.asked == [arguments]


def test_ping_returns_the_process_id_and_the_commands(listening: Listening) -> None:
    said = call(listening.directory, "ping", {})
    assert said == {"pid": os.getpid(), "commands": ["echo", "fail", "ping", "refuse", "slow"]}


@pytest.mark.parametrize("kind", ["UnknownXid", "StorePoisoned", "OutcomeUnknown", "UnknownQueue", "StoreError"])
def test_an_error_in_the_broker_is_the_same_error_for_the_caller(listening: Listening, kind: str) -> None:
    with pytest.raises(logstore.StoreError, match="such is life") as raised:
        call(listening.directory, "refuse", {"kind": kind})
    assert type(raised.value) is getattr(logstore, kind)


def test_an_error_that_is_more_than_a_message_keeps_its_message(listening: Listening) -> None:
    with pytest.raises(logstore.StoreError, match="damaged in segment s at offset 1"):
        call(listening.directory, "refuse", {"kind": "CorruptLog"})


def test_an_unknown_command_is_refused_with_those_that_are_known(listening: Listening) -> None:
    with pytest.raises(logstore.StoreError, match=r"'dance'.* echo, fail, ping"):
        call(listening.directory, "dance", {})


def test_a_defect_of_the_broker_is_logged_by_the_broker_and_not_shown_to_the_caller(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(logstore.StoreError, match="failed to execute the command; see its log"):
        call(listening.directory, "fail", {})
    assert "a defect" in caplog.text


def test_a_slow_command_delays_no_other_caller(listening: Listening) -> None:
    with listening.connect() as slow:
        slow.sendall(request(command="slow"))
        wait_until(lambda: listening.asked)
        assert call(listening.directory, "echo", {}) == {"said": {}}
        listening.may_go_on.set()
        assert answer(slow)["result"] == {"done": True}


# ---- Without a listener


@pytest.mark.parametrize("what", ["nothing", "stale", "file"])
def test_without_a_listener_the_store_is_locked(tmp_path: Path, what: str) -> None:
    path = tmp_path / SOCKET_NAME
    if what == "stale":
        socket.socket(socket.AF_UNIX).bind(str(path))
    elif what == "file":
        path.touch()
    assert not control.is_served(tmp_path)
    with pytest.raises(logstore.StoreLocked, match="no broker listens"):
        call(tmp_path, "ping", {})


def test_a_listener_that_falls_silent_leaves_the_outcome_unknown(listening: Listening) -> None:
    with pytest.raises(logstore.OutcomeUnknown, match="has not answered"):
        call(listening.directory, "slow", {}, timeout_s=0.1)


@pytest.mark.parametrize("last", [b"", b'{"logstore-control": 1, "result'])
def test_a_listener_that_goes_away_leaves_the_outcome_unknown(tmp_path: Path, last: bytes) -> None:
    with pytest.raises(logstore.OutcomeUnknown, match="closed the connection before it answered"):
        call_an_impostor(tmp_path, last)


@pytest.mark.parametrize("line", [b"hello\n", b"[]\n", b'{"logstore-control": 1}\n', b'{"logstore-control": true}\n'])
def test_a_listener_that_speaks_something_else_is_a_store_error(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(logstore.StoreError, match="control protocol"):
        call_an_impostor(tmp_path, line)


def test_a_listener_of_another_version_is_a_version_error(tmp_path: Path) -> None:
    with pytest.raises(logstore.VersionError, match="version 2"):
        call_an_impostor(tmp_path, b'{"logstore-control": 2, "result": {}}\n')


def call_an_impostor(directory: Path, says: bytes) -> None:
    """Calls a listener that is not a store's and that answers with these bytes."""
    with socket.socket(socket.AF_UNIX) as impostor:
        with control._short_path(directory) as short:
            impostor.bind(short)
        impostor.listen()

        def serve() -> None:
            connection, _ = impostor.accept()
            with connection, connection.makefile("rb") as lines:
                lines.readline()
                connection.sendall(says)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            call(directory, "ping", {})
        finally:
            thread.join(PATIENCE_S)


# ---- The socket


def test_only_the_owner_may_use_the_socket_and_it_goes_with_its_server(listen: Callable[..., Listening]) -> None:
    listening = listen()
    path = listening.directory / SOCKET_NAME
    status = path.stat()
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o600
    listening.run(listening.server.stop(PATIENCE_S))
    assert not path.exists()


def test_a_path_longer_than_an_address_works(tmp_path: Path, listen: Callable[..., Listening]) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    assert len(os.fsencode(deep / SOCKET_NAME)) > ADDRESS_BYTES_MAX
    listening = listen(deep)
    assert call(deep, "echo", {}) == {"said": {}}
    listening.run(listening.server.stop(PATIENCE_S))
    assert list(deep.iterdir()) == []


def test_the_socket_of_a_broker_that_died_is_replaced(tmp_path: Path, listen: Callable[..., Listening]) -> None:
    with socket.socket(socket.AF_UNIX) as dead, control._short_path(tmp_path) as short:
        dead.bind(short)
    assert call(listen().directory, "echo", {}) == {"said": {}}


def test_the_socket_of_a_living_server_is_not_replaced(listen: Callable[..., Listening]) -> None:
    listening = listen()
    with pytest.raises(logstore.StoreError, match="listens on .* already"):
        listening.run(ControlServer(listening.directory, {}).start())
    assert call(listening.directory, "echo", {}) == {"said": {}}


def test_another_file_of_that_name_is_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / SOCKET_NAME
    path.write_text("mine")
    with pytest.raises(logstore.StoreError, match="is not a socket"):
        asyncio.run(ControlServer(tmp_path, {}).start())
    assert path.read_text() == "mine"


def test_a_server_that_ends_does_not_remove_another_servers_socket(listen: Callable[..., Listening]) -> None:
    first = listen()
    (first.directory / SOCKET_NAME).unlink()
    second = listen()
    first.run(first.server.stop(PATIENCE_S))
    assert call(second.directory, "echo", {}) == {"said": {}}


def test_stopping_waits_for_running_commands_and_answers_them(listening: Listening) -> None:
    with listening.connect() as slow:
        slow.sendall(request(command="slow"))
        wait_until(lambda: listening.asked)
        stopping = asyncio.run_coroutine_threadsafe(listening.server.stop(PATIENCE_S), listening.loop)
        wait_until(lambda: not (listening.directory / SOCKET_NAME).exists())
        listening.may_go_on.set()
        stopping.result(PATIENCE_S)
        assert answer(slow)["result"] == {"done": True}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_even_with_the_socket_in_hand(listening: Listening, tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    ask = (
        "import os, socket, sys\n"
        f"os.setresuid({nobody}, {nobody}, {nobody})\n"
        "connection = socket.socket(socket.AF_UNIX)\n"
        "connection.connect('control.sock')\n"
        "try: connection.sendall(sys.stdin.buffer.read())\n"
        "except BrokenPipeError: pass\n"  # it does not wait for commands
        "print(connection.recv(1000))\n"
    )
    tmp_path.chmod(0o755)
    (tmp_path / SOCKET_NAME).chmod(0o666)
    ended = subprocess.run(
        [sys.executable, "-c", ask],
        input=request(command="echo"),
        cwd=tmp_path,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert b"may not control this broker" in ended.stdout, ended
    assert listening.asked == []


# ---- Hostile and clumsy callers


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"GET / HTTP/1.1\r\n",
        b"\xff\xfe\n",
        b"null\n",
        b"[1]\n",
        b"{}\n",
        b"[" * (REQUEST_BYTES_MAX - 10) + b"\n",
        b'{"logstore-control": "1", "command": "echo"}\n',
        request(command=5),
        request(),
        request(command="echo", arguments=[]),
    ],
)
def test_malformed_requests_are_refused_in_one_line_and_do_nothing(listening: Listening, line: bytes) -> None:
    connection = listening.connect()
    connection.sendall(line)
    assert answer(connection)["error"]["kind"] == "StoreError"
    assert listening.asked == []
    assert call(listening.directory, "echo", {}) == {"said": {}}


def test_a_caller_that_half_closes_after_its_command_is_answered(listening: Listening) -> None:
    connection = listening.connect()
    connection.sendall(request(command="ping"))
    connection.shutdown(socket.SHUT_WR)
    assert answer(connection)["result"]["pid"] == os.getpid()


def test_another_version_is_refused_as_such(listening: Listening) -> None:
    connection = listening.connect()
    connection.sendall(b'{"logstore-control": 2, "command": "echo"}\n')
    assert answer(connection)["error"]["kind"] == "VersionError"


def test_a_request_that_is_too_long_is_refused_before_its_end(listening: Listening) -> None:
    connection = listening.connect()
    connection.sendall(b"x" * REQUEST_BYTES_MAX)
    assert "bytes" in answer(connection)["error"]["message"]


def test_unknown_fields_are_ignored(listening: Listening) -> None:
    connection = listening.connect()
    connection.sendall(request(command="echo", arguments={}, colour="red"))
    assert answer(connection)["result"] == {"said": {}}


def test_a_request_may_come_in_pieces_and_only_its_first_line_counts(listening: Listening) -> None:
    connection = listening.connect()
    line = request(command="echo", arguments={"n": 1})
    for at in range(0, len(line), 7):
        connection.sendall(line[at : at + 7])
    with contextlib.suppress(OSError):  # it may have closed the connection
        connection.sendall(request(command="echo", arguments={"n": 2}))
    with contextlib.suppress(ConnectionResetError):
        answer(connection)
    assert listening.asked == [{"n": 1}]


def test_a_silent_caller_is_disconnected(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PATIENCE_S", 0.2)
    with listening.connect() as silent, listening.connect() as slow:
        slow.sendall(b'{"logstore')
        for each in (silent, slow):
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(100) == b""


def test_a_caller_that_reads_no_answer_is_disconnected(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PATIENCE_S", 0.5)
    large = "x" * (REQUEST_BYTES_MAX - 200)

    async def enlarge(arguments: dict[str, Any]) -> dict[str, Any]:
        listening.asked.append(arguments)
        return {"said": large * 100}

    listening.server._handlers["large"] = enlarge
    with listening.connect() as deaf:
        deaf.sendall(request(command="large"))
        wait_until(lambda: listening.asked)
        wait_until(lambda: not listening.server._sessions)
    monkeypatch.undo()
    assert len(call(listening.directory, "large", {})["said"]) == 100 * len(large)


def test_many_callers_use_at_most_their_sockets_and_free_them_at_the_end(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PATIENCE_S", PATIENCE_S)
    crowd = [listening.connect() for _ in range(SESSIONS_MAX)]
    wait_until(lambda: len(listening.server._sessions) == SESSIONS_MAX)
    with pytest.raises(logstore.StoreError, match="busy"):
        call(listening.directory, "echo", {})
    assert len(listening.server._sessions) == SESSIONS_MAX
    for each in crowd:
        each.close()
    wait_until(lambda: not listening.server._sessions)
    assert call(listening.directory, "echo", {}) == {"said": {}}


def test_a_caller_that_disconnects_does_not_stop_its_command_once_that_has_begun(listening: Listening) -> None:
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        listening.may_go_on.wait(PATIENCE_S)

    async def finish(_: dict[str, Any]) -> dict[str, Any]:
        await listening.server.in_thread(work)
        done.set()
        return {}

    listening.server._handlers["finish"] = finish
    with listening.connect() as hasty:
        hasty.sendall(request(command="finish"))
        assert begun.wait(PATIENCE_S)
    listening.may_go_on.set()
    assert done.wait(PATIENCE_S)
    assert call(listening.directory, "echo", {}) == {"said": {}}


def test_a_command_that_is_read_after_its_caller_has_hung_up_is_not_begun_and_the_log_says_so(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "logstore")
    listening.loop.call_soon_threadsafe(listening.may_go_on.wait, PATIENCE_S)  # nothing is read meanwhile
    with listening.connect() as gone:
        gone.sendall(request(command="echo", arguments={"n": 1}))
    listening.may_go_on.set()
    wait_until(lambda: "control command echo {'n': 1} is dropped: its caller has hung up" in caplog.text)
    assert call(listening.directory, "echo", {"n": 2}) == {"said": {"n": 2}}
    assert listening.asked == [{"n": 2}]


def test_a_command_whose_caller_hangs_up_while_another_one_is_under_way_is_not_begun(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "logstore")
    waits, done = threading.Event(), threading.Event()

    async def change(_: dict[str, Any]) -> dict[str, Any]:
        waits.set()
        await listening.server.in_thread(done.set)
        return {}

    listening.server._handlers["change"] = change
    with listening.connect() as slow:
        slow.sendall(request(command="slow"))
        wait_until(lambda: listening.asked)
        with listening.connect() as gone:
            gone.sendall(request(command="change"))
            assert waits.wait(PATIENCE_S)
        listening.may_go_on.set()
        assert answer(slow)["result"] == {"done": True}
    wait_until(lambda: not listening.server._tasks)
    assert "control command change {} is dropped: its caller has hung up" in caplog.text
    assert not done.is_set()


def test_a_caller_is_told_once_that_it_waits(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "NOTICE_S", 0.05)
    waits = []

    def on_wait() -> None:
        waits.append(True)
        listening.may_go_on.set()

    assert call(listening.directory, "slow", {}, on_wait=on_wait) == {"done": True}
    assert waits == [True]


@pytest.mark.parametrize("backlog", [SESSIONS_MAX, 0])
def test_a_listener_without_a_sign_of_life_is_there_and_does_not_answer(tmp_path: Path, backlog: int) -> None:
    with socket.socket(socket.AF_UNIX) as silent, control._client_socket() as earlier:
        silent.bind(str(tmp_path / SOCKET_NAME))
        silent.listen(backlog)
        control._dial(earlier, tmp_path)  # takes all of a backlog of 0
        assert control.is_served(tmp_path)
        with pytest.raises(logstore.StoreLocked, match="a broker that does not answer"):
            control.process_that_answers(tmp_path, 0.1)


def test_importing_the_library_does_not_import_the_socket(run_python: Callable[..., Any]) -> None:
    ended = run_python("import logstore, sys; print('logstore.store.control' in sys.modules)")
    assert ended.stdout.strip() == "False", ended.stderr
