"""Celery, unmodified: tasks, results, remote control, countdowns, and a broker that is killed under it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import celery
import pytest

from kit.celery_app import Sender, runs, settings_of_the_page, worker
from kit.patience import PATIENCE_S, wait_until
from kit.serve_process import ServeProcess, serving

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 10


@pytest.mark.parametrize("results", ["rpc", "on disk"])
def test_a_celery_worker_runs_a_task_and_answers_its_remote_control(tmp_path: Path, results: str) -> None:
    backend = "rpc://" if results == "rpc" else f"db+sqlite:///{tmp_path}/results.db"
    with serving(tmp_path / "store") as broker:
        with worker(tmp_path, broker.url, backend) as app:
            assert app.send_task("tasks.add", (20, 22)).get(timeout=PATIENCE_S) == 42
            (answer,) = app.control.ping(timeout=PATIENCE_S, limit=1)
            assert list(answer.values()) == [{"ok": "pong"}]
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


def test_the_page_shows_the_settings_that_keep_tasks() -> None:
    settings = settings_of_the_page()
    assert settings["broker_transport_options"] == {"confirm_publish": True}
    assert settings["task_acks_late"] is True
    assert settings["task_reject_on_worker_lost"] is True


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_kills_of_the_broker_lose_no_task_that_was_accepted(tmp_path: Path) -> None:
    settings = {**settings_of_the_page(), "task_ignore_result": True}
    store = tmp_path / "store"
    broker = ServeProcess(store)
    try:
        with worker(tmp_path, broker.url, **settings) as app:
            sender = Sender(app)
            sender.start()
            try:
                for _ in range(KILLS):
                    goals = (
                        len(sender.accepted) + random.randrange(5, 50),
                        len(runs(tmp_path)) + random.randrange(1, 50),
                    )
                    wait_until(lambda goals=goals: len(sender.accepted) >= goals[0] and len(runs(tmp_path)) >= goals[1])
                    broker.kill()
                    broker = ServeProcess(store, broker.port)
            finally:
                sender.ending.set()
                sender.join()
            assert len(sender.accepted) >= 5 * KILLS
            wait_until(lambda: set(sender.accepted) <= {number for number, _ in runs(tmp_path)})
        assert broker.stop() == 0
    finally:
        broker.kill()
