"""Commands beside a broker that a signal has stopped, and Ctrl-C while they wait for one that answers late."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.command import fails, run, told
from kit.serve_process import ServeProcess
from kit.stores import SMALL_SEGMENT
from logstore.store import control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

XID = logstore.Xid(1, b"order-17", b"db1")
CHANGES: dict[str, tuple[object, ...]] = {
    "purge": ("purge", "DIR", "orders"),
    "compact": ("compact", "DIR"),
    "checkpoint": ("checkpoint", "DIR"),
    "commit": ("in-doubt", "DIR", "commit", XID),
    "rollback": ("in-doubt", "DIR", "rollback", XID),
}
PID = 4711  # of a process that only answers


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with logstore.open(tmp_path / "DIR", segment_size=SMALL_SEGMENT) as store:
        queue = store.declare_queue("orders")
        first, *_ = store.publish_many(queue, [b"an order"] * 20)
        branch = store.begin(XID)
        store.dequeue(first, queue, transaction=branch)
        branch.end()
        branch.prepare()
    return tmp_path / "DIR"


@pytest.fixture
def stopped(path: Path) -> Iterator[ServeProcess]:
    broker = ServeProcess(path)
    broker.signal(signal.SIGSTOP)
    try:
        yield broker
    finally:
        broker.kill()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_gives_up_on_a_stopped_broker_says_how_to_continue_it_and_changes_nothing(
    stopped: ServeProcess, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PATIENCE_S", 0.3)
    for options in ((), ("--dry-run",)):
        said = fails(run(*CHANGES[change], *options), 3)
        assert f"DIR is open in process {stopped.pid} (logstore serve): a broker that does not answer (0.3 s)" in said
        assert "nothing was done" in said
        assert f"'kill -CONT {stopped.pid}'" in said
    stopped.signal(signal.SIGCONT)
    (row,) = told("queues", "DIR")["queues"]
    assert (row["depth"], row["locked"], row["consumers"]) == (20, 1, 0)
    assert "control command" not in stopped.errors.read_text()


def test_a_stopped_broker_drops_the_command_of_a_caller_who_has_gone(path: Path, stopped: ServeProcess) -> None:
    with pytest.raises(logstore.OutcomeUnknown, match="has not answered"):
        control.call(path, "purge", {"queue": "orders"}, timeout_s=0.1)
    stopped.signal(signal.SIGCONT)
    deadline = time.monotonic() + 30
    while "control command purge {'queue': 'orders'} is dropped" not in stopped.errors.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert told("queues", path)["queues"][0]["depth"] == 20


@pytest.mark.parametrize("command", ["tail", "stats", "queues"])
def test_a_command_that_only_looks_gives_up_on_a_stopped_broker_sooner_and_reads_the_log(
    path: Path, stopped: ServeProcess, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "SIGN_OF_LIFE_S", 0.3)
    found = told(command, path)
    assert (
        f"is open in process {stopped.pid} (logstore serve): a broker that does not answer (0.3 s)" in found["problem"]
    )
    assert found.get("through", "log") == "log"
    text = run(command, path)
    assert text.returncode == 0
    assert f"'kill -CONT {stopped.pid}'" in text.stdout
    stopped.signal(signal.SIGCONT)
    assert told(command, path)["problem"] is None


def test_looking_gives_a_broker_two_seconds_at_most() -> None:
    assert control.SIGN_OF_LIFE_S <= 2


@contextlib.contextmanager
def answering(path: Path, answer: Callable[[str], bytes]) -> Iterator[None]:
    """A process that answers each command on the control socket of a store that is open."""
    with logstore.open(path), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path / control.SOCKET_NAME))
        listener.listen(4)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as caller, caller.makefile("rb") as lines:
                        caller.sendall(answer(json.loads(lines.readline())["command"]))
                        lines.readline()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)


def line(**fields: object) -> bytes:
    return json.dumps({"logstore-control": 1, **fields}).encode() + b"\n"


@pytest.mark.parametrize(
    ("typed_at", "said"),
    [
        ("ping", "interrupted before the broker was asked for 'purge': nothing was done"),
        ("purge", f"interrupted: the broker (process {PID}) may still execute 'purge'; its log says whether it did"),
    ],
)
def test_ctrl_c_ends_the_wait_at_once_and_says_whether_the_broker_may_still_execute_the_command(
    path: Path, typed_at: str, said: str
) -> None:
    seen = threading.Event()

    def interrupt(*_: object) -> None:
        if not seen.is_set():
            seen.set()
            raise KeyboardInterrupt

    def answer(command: str) -> bytes:
        while command == typed_at and not seen.wait(
            0.01
        ):  # Python sees one that comes just before a wait only after it
            os.kill(os.getpid(), signal.SIGINT)
        return b"" if command == typed_at else line(result={"pid": PID})

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with answering(path, answer):
            assert fails(run("purge", path, "orders"), 130) == f"logstore: {said}\n"
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_command_that_takes_long_says_once_for_which_process_it_waits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "NOTICE_S", 0.05)
    waits = threading.Event()
    echo = control._is_readable

    def is_readable(connection: socket.socket, timeout_s: float) -> bool:
        found = echo(connection, timeout_s)
        waits.set()
        return found

    monkeypatch.setattr(control, "_is_readable", is_readable)

    def answer(command: str) -> bytes:
        if command == "ping":
            return line(result={"pid": PID})
        assert waits.wait(30)
        return line(result={"messages": 5})

    with answering(path, answer):
        result = run("purge", path, "orders")
    assert (result.returncode, result.stdout) == (0, "purged: 5 messages of orders\n")
    assert result.stderr == f"logstore: waiting for the broker (process {PID}) …\n"
