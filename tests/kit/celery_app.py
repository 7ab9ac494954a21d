"""A Celery worker as a process, an application that sends tasks to it, and what the tasks noted when they were run."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import celery

from kit.pages import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TASKS = """
import os
import celery

app = celery.Celery("tasks", broker={url!r}, backend={backend!r})
app.conf.broker_connection_retry_on_startup = True
app.conf.update({settings!r})


@app.task(name="tasks.add")
def add(a, b):
    return a + b


@app.task(name="tasks.note", bind=True)
def note(self, number):
    with open("noted", "ab", 0) as noted:
        noted.write(b"%d %d\\n" % (number, self.request.delivery_info["redelivered"]))
"""


@contextlib.contextmanager
def worker(directory: Path, url: str, backend: str = "rpc://", **settings: Any) -> Iterator[celery.Celery]:
    """A worker of one process, and an application that sends to it."""
    (directory / "tasks.py").write_text(TASKS.format(url=url, backend=backend, settings=settings))
    (directory / "noted").touch()
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


def settings_of_the_page() -> dict[str, Any]:
    """Those that docs/celery.md names."""
    (block,) = [block for block in blocks("docs/celery.md") if block.kind == "python"]
    page: dict[str, Any] = {}
    exec(block.text, page)
    with page["app"] as app:
        return {name: app.conf[name] for name in re.findall(r"^app\.conf\.(\w+) =", block.text, re.MULTILINE)}


class Sender(threading.Thread):
    """Sends numbered tasks until it is stopped. Those whose call returned are accepted; the others are sent again."""

    def __init__(self, app: celery.Celery) -> None:
        super().__init__()
        self.app = app
        self.accepted: list[int] = []
        self.sends: Counter[int] = Counter()
        """How often each number was sent."""
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.is_set():
            number = len(self.accepted)
            self.sends[number] += 1
            with contextlib.suppress(Exception):  # the outcome is unknown; Celery raises errors of many packages
                self.app.send_task("tasks.note", (number,), retry=False)
                self.accepted.append(number)
            time.sleep(0.001)


def runs(directory: Path) -> list[tuple[int, bool]]:
    """The numbers of the tasks that were run, and whether their messages were marked; a last line may be incomplete."""
    lines = (directory / "noted").read_bytes().rpartition(b"\n")[0].splitlines()
    return [(int(number), bool(int(marked))) for number, marked in map(bytes.split, lines)]
