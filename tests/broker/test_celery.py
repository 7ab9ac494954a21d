"""Celery, unmodified: tasks, results, remote control, countdowns, and a broker that is killed under it."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import celery
import pytest

from kit.serve_process import ServeProcess, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANSWER_S = 120  # of a busy machine
KILLS = 10
TASKS = """
import os
import celery

app = celery.Celery("tasks", broker={url!r}, backend="rpc://")
app.conf.broker_connection_retry_on_startup = True
app.conf.update({settings!r})


@app.task(name="tasks.add")
def add(a, b):
    return a + b


@app.task(name="tasks.note")
def note(number):
    with open("noted", "ab", 0) as noted:
        noted.write(b"%d\\n" % number)
"""


@contextlib.contextmanager
def worker(directory: Path, url: str, **settings: Any) -> Iterator[celery.Celery]:
    """A worker of one process, and an application that sends to it."""
    (directory / "tasks.py").write_text(TASKS.format(url=url, settings=settings))
    log = directory / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "-c", "1", "-l", "info"],
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(directory)},
        )
    try:
        with celery.Celery("tasks", broker=url, backend="rpc://") as app:
            app.conf.update(settings)
            yield app
    except celery.exceptions.TimeoutError:
        raise AssertionError(log.read_text()) from None
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_a_celery_worker_runs_a_task_and_answers_its_remote_control(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as broker:
        with worker(tmp_path, broker.url) as app:
            assert app.send_task("tasks.add", (20, 22)).get(timeout=ANSWER_S) == 42
            assert [list(answer.values()) for answer in app.control.ping(timeout=5)] == [[{"ok": "pong"}]]
            for number in range(20):
                assert app.send_task("tasks.add", (number, 1)).get(timeout=ANSWER_S) == number + 1
        assert "Traceback" not in (tmp_path / "worker.log").read_text()
        assert broker.stop() == 0


def test_a_plain_task_does_not_wait_behind_more_countdown_tasks_than_the_prefetch(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as broker, worker(tmp_path, broker.url) as app:
        for _ in range(8):  # of 4
            app.send_task("tasks.add", (1, 1), countdown=3600)
        assert app.send_task("tasks.add", (20, 22)).get(timeout=ANSWER_S) == 42


def test_a_queue_with_priorities_is_refused_with_the_argument_s_name(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as broker, celery.Celery("tasks", broker=broker.url) as app:
        app.conf.task_queue_max_priority = 10
        with pytest.raises(Exception, match="x-max-priority"):
            app.send_task("tasks.add", (1, 1), retry=False)


class Sender(threading.Thread):
    """Sends numbered tasks until it is stopped. Those whose call returned are accepted."""

    def __init__(self, app: celery.Celery) -> None:
        super().__init__()
        self.app = app
        self.accepted: list[int] = []
        self.ending = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.ending.is_set():
            with contextlib.suppress(Exception):  # the outcome is unknown; Celery raises errors of many packages
                self.app.send_task("tasks.note", (number,), retry=False)
                self.accepted.append(number)
            number += 1
            time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_kills_of_the_broker_lose_no_task_that_was_accepted(tmp_path: Path) -> None:
    """With the settings of the page: confirmed publishes, and acknowledgements after the work."""
    settings = {
        "broker_transport_options": {"confirm_publish": True},
        "task_acks_late": True,
        "task_ignore_result": True,
        "broker_connection_max_retries": None,
    }
    store = tmp_path / "store"
    noted = tmp_path / "noted"
    noted.touch()
    broker = ServeProcess(store)
    try:
        with worker(tmp_path, broker.url, **settings) as app:
            sender = Sender(app)
            sender.start()
            try:
                for _ in range(KILLS):
                    goals = len(sender.accepted) + random.randrange(5, 50), len(done(noted)) + random.randrange(1, 50)
                    wait_until(lambda goals=goals: len(sender.accepted) >= goals[0] and len(done(noted)) >= goals[1])
                    broker.kill()
                    broker = ServeProcess(store, broker.port)
            finally:
                sender.ending.set()
                sender.join()
            assert len(sender.accepted) >= 5 * KILLS
            wait_until(lambda: set(sender.accepted) <= set(done(noted)))
        assert broker.stop() == 0
    finally:
        broker.kill()


def done(noted: Path) -> list[int]:
    """The numbers of the tasks that were run; the last line may be incomplete."""
    return [int(line) for line in noted.read_bytes().rpartition(b"\n")[0].split()]


def wait_until(happened: Any) -> None:
    end = time.monotonic() + ANSWER_S
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)
