"""System calls that fail in a running broker: a tracer makes the Nth call of a kind fail, in any thread.

Outcome for every call: clients get only true answers; the broker continues, or prints the reason and ends; and the
store then has every confirmed message. A sample runs here; with LOGSTORE_TORTURE_S every N of every kind, up to the
first that the scenario does not reach, or until the time is over.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pika.exceptions import AMQPError, NackError

from kit.killed import quick_directory, remove
from kit.patience import PATIENCE_S, wait_until
from kit.serve_process import ServeProcess
from kit.storm_clients import Journal, connect, decode, encode, make_queues
from kit.torture import seconds_to_spend, tortured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# A result of 0 is a write that wrote nothing. Larger ones cannot be made up: a tracer skips the call altogether.
FAULTS = {
    "fdatasync": ("error=EIO", "error=ENOSPC", "error=EINTR"),
    "pwrite64": ("error=EIO", "error=ENOSPC", "error=EINTR", "retval=0"),
    "openat": ("error=EMFILE", "error=EIO"),
    "fsync": ("error=EIO",),
    "rename,renameat,renameat2": ("error=EIO", "error=ENOSPC"),
    "fallocate": ("error=ENOSPC", "error=EINTR"),
    "unlink,unlinkat": ("error=EIO",),
    "pread64": ("error=EIO", "retval=0"),
}
CASES = [(call, fault) for call, faults in FAULTS.items() for fault in faults]
MESSAGES = 45
SIZE = 60_000
SAMPLE = 3


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory: SIGKILL loses nothing that the kernel has, and there is no disk to wait for."""
    made = quick_directory("logstore-storm-")
    yield made
    remove(made)


@pytest.fixture(scope="module")
def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.skip("SKIPPED LOUDLY: strace is not installed; failing system calls of the broker were NOT tried")
    probe = subprocess.Popen(["sleep", "60"])
    try:
        tried = subprocess.run(
            ["timeout", "-s", "INT", "1", found, "-p", str(probe.pid)], capture_output=True, check=False
        )
    finally:
        probe.kill()
        probe.wait()
    if b"attached" not in tried.stderr:
        pytest.skip(f"SKIPPED LOUDLY: no process may be traced here ({tried.stderr.decode().strip()[:200]})")
    return found


@contextlib.contextmanager
def injecting(strace: str, pid: int, call: str, fault: str, when: str, log: Path) -> Iterator[None]:
    """Within this context the calls of that number fail, in every present and future thread."""
    command = [strace, "-f", "-p", str(pid), "-o", str(log), "-e", f"trace={call}", "-e"]
    tracer = subprocess.Popen([*command, f"inject={call}:{fault}:when={when}"], stderr=subprocess.PIPE)
    try:
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        assert b"attached" in line, line
        tasks = len(os.listdir(f"/proc/{pid}/task"))
        wait_until(lambda: traced(pid) >= tasks, "attaching to every thread")
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        try:
            tracer.wait(10)
        except subprocess.TimeoutExpired:  # it waits for a thread that does not stop; the kernel detaches all the same
            tracer.kill()
            tracer.wait()
        tracer.stderr.close()


def traced(pid: int) -> int:
    count = 0
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/status") as file:
                count += any(line.startswith("TracerPid") and line.split()[1] != "0" for line in file)
    return count


def opened(port: int) -> Any:
    channel = connect(port).channel()
    channel.confirm_delivery()
    return channel


def publish(channel: Any, journal: Journal, number: int) -> None:
    name = (0, number)
    journal.queues[name] = "one"
    try:
        channel.basic_publish("", "one", encode(name, SIZE), pika.BasicProperties(delivery_mode=2))
    except NackError:  # not taken, or not known to be on the disk
        return
    journal.confirmed.add(name)


def take(channel: Any, journal: Journal) -> None:
    method, _, body = channel.basic_get("one")
    if method is None:
        return
    name = decode(body)
    assert name not in journal.settled, "an acknowledged message was delivered again"
    journal.taken.add(name)
    channel.basic_ack(method.delivery_tag)
    channel.queue_declare("one", passive=True)
    journal.settled.add(name)


def scenario(port: int, journal: Journal, channel: Any, first: int) -> None:
    """Publishing, consuming, a transaction and a new queue, over several segments."""
    for number in range(first, first + MESSAGES):
        publish(channel, journal, number)
        if number % 3:
            take(channel, journal)
        if number == first + MESSAGES // 2:
            with contextlib.closing(connect(port)) as other:
                transacted = other.channel()
                transacted.queue_declare(f"new{first}", durable=True)
                transacted.tx_select()
                transacted.basic_publish("", "two", b"\0\1" + (first).to_bytes(8, "big"))
                journal.queues[1, first] = "two"
                transacted.tx_commit()
                journal.confirmed.add((1, first))


def within_time(process: ServeProcess, work: Callable[[], None]) -> None:
    """The clients' work until the broker ends, if it does. A client that waits for ever fails the test."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except (AMQPError, OSError):
            pass
        except BaseException as problem:  # noqa: BLE001 - raised below
            failures.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        process.kill()
        raise AssertionError(f"a client has waited for {PATIENCE_S:.0f} s for an answer that did not come")
    if failures:
        raise failures[0]


def ends_or_serves(process: ServeProcess) -> bool:
    """Whether it still serves; otherwise it must have ended by itself, with a status other than 0."""
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert process.ended(0.05) not in (0, -signal.SIGSEGV, -signal.SIGABRT)
            return False
        with contextlib.suppress(AMQPError, OSError), contextlib.closing(connect(process.port)):
            return True
    return True


def one_fault(strace: str, directory: Path, call: str, fault: str, when: str) -> int:
    """Run the scenario with that fault, restart, and judge. Returns how often the fault took effect."""
    store, log, journal = directory / "store", directory / "trace", Journal()
    process = ServeProcess(store, options=["--segment-size", "1MiB"])
    try:
        make_queues(process.port)
        channel = opened(process.port)
        with injecting(strace, process.pid, call, fault, when, log):
            within_time(process, lambda: scenario(process.port, journal, channel, 0))
        if ends_or_serves(process):
            within_time(process, lambda: scenario(process.port, journal, opened(process.port), 1000))
            assert process.stop() in (0, 1)
        said = process.errors.read_text()
        assert "Traceback" not in said, said
        assert all(len(line) < 600 for line in said.splitlines())
    finally:
        process.kill()
    journal.check(store)  # which opens it
    return log.read_text().count("(INJECTED)")


def sampled(dice: random.Random) -> list[tuple[str, str, str]]:
    """A sample of cases, always with a disk that is full in the middle of a batch."""
    always = [("pwrite64", "error=ENOSPC")]
    others = dice.sample([case for case in CASES if case not in always], SAMPLE - len(always))
    return [(*case, f"{dice.randrange(1, 8)}{dice.choice(stickiness(case[1]))}") for case in always + others]


def stickiness(fault: str) -> list[str]:
    """Once, or from there on; but not EINTR for ever, which would be repeated for ever."""
    return [""] if fault == "error=EINTR" else ["", "+"]


@pytest.mark.acceptance
def test_a_failed_sync_confirms_nothing_and_ends_the_broker_with_plain_lines(strace: str, tmp_path: Path) -> None:
    """Outcome: a nack or 541, "the store cannot go on" on stderr, and an exit status that is not 0."""
    store, journal = tmp_path / "store", Journal()
    process = ServeProcess(store, options=["--segment-size", "1MiB"])
    heard: list[BaseException] = []

    def publish_until_it_ends() -> None:
        channel = opened(process.port)
        try:
            for number in range(1000):
                publish(channel, journal, number)
        except AMQPError as told:
            heard.append(told)

    try:
        make_queues(process.port)
        with injecting(strace, process.pid, "fdatasync", "error=EIO", "5+", tmp_path / "trace"):
            within_time(process, publish_until_it_ends)
        assert process.ended(PATIENCE_S) == 1
    finally:
        process.kill()
    (told,) = heard
    assert isinstance(told, pika.exceptions.ConnectionClosedByBroker)
    assert told.reply_code == 541
    assert "can no longer write" in told.reply_text
    lines = process.complaints()
    assert 1 <= len(lines) <= 3
    assert all("a write or sync of the log failed" in line for line in lines), "\n".join(lines)
    assert lines[-1].startswith("logstore: the store can no longer write")
    assert 0 < len(journal.confirmed) < 1000
    journal.check(store)


@pytest.mark.acceptance
@pytest.mark.timeout(0 if tortured() else 300)
def test_a_failed_system_call_in_the_broker_gives_no_client_a_false_answer(strace: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("LOGSTORE_SEED") or random.randrange(1 << 32))
    print(f"LOGSTORE_SEED={seed}")
    struck = 0
    for number, (call, fault, when) in enumerate(sampled(random.Random(seed))):
        print(call, fault, when)
        directory = tmp_path / str(number)
        directory.mkdir()
        struck += one_fault(strace, directory, call, fault, when) > 0
    assert struck >= 1, "hardly any call was made to fail: nothing was tested"


@pytest.mark.acceptance
@pytest.mark.timeout(0)
@pytest.mark.skipif(not tortured(), reason="every N of every call takes long: set LOGSTORE_TORTURE_S")
def test_no_failed_system_call_in_the_broker_gives_a_client_a_false_answer(strace: str, tmp_path: Path) -> None:
    """Every N that the scenario reaches, in ascending order, so that a time limit leaves out the largest."""
    until = time.monotonic() + seconds_to_spend(60)
    alive = {(call, fault, sticky) for call, fault in CASES for sticky in stickiness(fault)}
    tried = reached = 0
    number = 0
    while alive and time.monotonic() < until:
        number += 1
        for case in sorted(alive):
            if time.monotonic() > until:
                break
            call, fault, sticky = case
            directory = tmp_path / f"{tried}"
            directory.mkdir()
            print(call, fault, f"{number}{sticky}")
            tried += 1
            if one_fault(strace, directory, call, fault, f"{number}{sticky}") == 0:
                alive.discard(case)
            else:
                reached = max(reached, number)
            shutil.rmtree(directory)
    print(f"{tried} tried, the largest N that struck is {reached}, {len(alive)} kinds were not exhausted")
