"""Celery, unmodified: one worker, one task, its result, and its remote control."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import celery

from kit.serve_process import serving

if TYPE_CHECKING:
    from pathlib import Path

TASKS = """
import celery

app = celery.Celery("tasks", broker={url!r}, backend="rpc://")
app.conf.broker_connection_retry_on_startup = True


@app.task(name="tasks.add")
def add(a, b):
    return a + b
"""


def test_a_celery_worker_runs_a_task_and_answers_its_remote_control(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as broker:
        (tmp_path / "tasks.py").write_text(TASKS.format(url=broker.url))
        log = tmp_path / "worker.log"
        with log.open("wb") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "-l", "info"],
                cwd=tmp_path,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": str(tmp_path)},
            )
        try:
            app = celery.Celery("tasks", broker=broker.url, backend="rpc://")
            result = app.send_task("tasks.add", (20, 22))
            try:
                assert result.get(timeout=60) == 42
            except celery.exceptions.TimeoutError:
                raise AssertionError(log.read_text()) from None
            assert [list(answer.values()) for answer in app.control.ping(timeout=5)] == [[{"ok": "pong"}]]
            for number in range(20):
                assert app.send_task("tasks.add", (number, 1)).get(timeout=20) == number + 1
            app.close()
        finally:
            worker.terminate()
            worker.wait(30)
        assert "Traceback" not in log.read_text()
        assert broker.stop() == 0
