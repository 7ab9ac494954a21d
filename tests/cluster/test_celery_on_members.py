"""Celery with the addresses of three members, of which one after the other is killed."""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("celery", reason="Celery is not installed")
pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.celery_app import Sender, runs, settings_of_the_page, worker
from kit.patience import wait_until
from kit.stores import ROOT
from kit.torture import tortured

sys.path.insert(0, str(ROOT / "tools"))

from chaos_cluster import Cluster  # found by the line above

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 20 if tortured() else 3


def lost(sender: Sender, directory: Path) -> set[int]:
    """The accepted tasks that were not run."""
    return set(sender.accepted) - {number for number, _ in runs(directory)}


@pytest.mark.timeout(120 + 60 * KILLS)
def test_kills_of_members_lose_no_task_that_was_accepted_and_each_further_run_is_marked(tmp_path: Path) -> None:
    chance = random.Random(4)
    cluster = Cluster(tmp_path, 3, 4, ROOT, amqp=True)
    try:
        cluster.form()
        url = ";".join(f"amqp://guest:guest@{address}//" for address in cluster.amqp)
        settings = {**settings_of_the_page(), "task_ignore_result": True}
        led = 0
        with worker(tmp_path, url, **settings) as app:
            sender = Sender(app)

            def goes_on(sent: int, run: int) -> None:
                """Waits until this many more were accepted, and run."""
                goals = len(sender.accepted) + sent, len(runs(tmp_path)) + run
                wait_until(lambda: len(sender.accepted) >= goals[0] and len(runs(tmp_path)) >= goals[1])

            sender.start()
            try:
                for _ in range(KILLS):
                    goes_on(chance.randrange(1, 30), chance.randrange(1, 30))
                    member = chance.choice(cluster.members)
                    led += member == cluster.leader()
                    cluster.take(member).kill()
                    goes_on(chance.randrange(1, 30), chance.randrange(1, 30))
                    cluster.start(member)
            finally:
                sender.ending.set()
                sender.join()
            wait_until(lambda: not lost(sender, tmp_path), "every task was run")
        cluster.close()
    finally:
        cluster.end()
    found = runs(tmp_path)
    again = len(found) - len({number for number, _ in found})
    print(
        f"kills: {KILLS}, of the leader: {led}, tasks: {len(sender.accepted)}, lost: {len(lost(sender, tmp_path))}, "
        f"sent again: {sum(sender.sends.values()) - len(sender.sends)}, run again: {again}"
    )
    unmarked = Counter(number for number, marked in found if not marked)
    assert unmarked <= sender.sends, "what was not sent again is marked when it is run again"
