"""Celery, unmodified: tasks, results, remote control, countdowns, and a broker that is killed under it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import celery
import pytest

from kit.pages import blocks
from kit.patience import PATIENCE_S, wait_until
from kit.serve_process import ServeProcess, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLS = 10
TASKS = """
import os
import celery

app = celery.Celery("tasks", broker={url!r}, backend={backend!r})
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
def worker(directory: Path, url: str, backend: str = "rpc://", **settings: Any) -> Iterator[celery.Celery]:
    """A worker of one process, and an application that sends to it."""
    (directory / "tasks.py").write_text(TASKS.format(url=url, backend=backend, settings=settings))
    log = directory / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "-c", "1", "-E", "-l", "info"],
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(directory)},
        )
    try:
        with celery.Celery("tasks", broker=url, backend=backend) as app:
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


@pytest.mark.parametrize("results", ["rpc", "on disk"])
def test_a_celery_worker_runs_a_task_and_answers_its_remote_control(tmp_path: Path, results: str) -> None:
    backend = "rpc://" if results == "rpc" else f"db+sqlite:///{tmp_path}/results.db"
    with serving(tmp_path / "store") as broker:
        with worker(tmp_path, broker.url, backend) as app:
            assert app.send_task("tasks.add", (20, 22)).get(timeout=PATIENCE_S) == 42
            assert [list(answer.values()) for answer in app.control.ping(timeout=5)] == [[{"ok": "pong"}]]
            for number in range(20):
                assert app.send_task("tasks.add", (number, 1)).get(timeout=PATIENCE_S) == number + 1
        assert "Traceback" not in (tmp_path / "worker.log").read_text()
        assert broker.stop() == 0


def test_a_plain_task_does_not_wait_behind_more_countdown_tasks_than_the_prefetch(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as broker, worker(tmp_path, broker.url) as app:
        for _ in range(8):  # of 4
            app.send_task("tasks.add", (1, 1), countdown=3600)
        assert app.send_task("tasks.add", (20, 22)).get(timeout=PATIENCE_S) == 42


@pytest.mark.parametrize(
    ("setting", "value", "argument"),
    [("task_queue_max_priority", 10, "x-max-priority"), ("task_default_queue_type", "quorum", "x-queue-type")],
)
def test_queues_that_the_broker_lacks_are_refused_with_the_argument_s_name(
    setting: str, value: Any, argument: str, tmp_path: Path
) -> None:
    with serving(tmp_path / "store") as broker, celery.Celery("tasks", broker=broker.url) as app:
        app.conf[setting] = value
        with pytest.raises(Exception, match=argument):
            app.send_task("tasks.add", (1, 1), retry=False)


def settings_of_the_page() -> dict[str, Any]:
    (block,) = [block for block in blocks("docs/celery.md") if block.kind == "python"]
    page: dict[str, Any] = {}
    exec(block.text, page)
    with page["app"] as app:
        return {name: app.conf[name] for name in re.findall(r"^app\.conf\.(\w+) =", block.text, re.MULTILINE)}


def test_the_page_shows_the_settings_that_keep_tasks() -> None:
    settings = settings_of_the_page()
    assert settings["broker_transport_options"] == {"confirm_publish": True}
    assert settings["task_acks_late"] is True
    assert settings["task_reject_on_worker_lost"] is True


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
    settings = {**settings_of_the_page(), "task_ignore_result": True}
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
