"""``make bench-quorum``: its probe sees a loop that stands still, its ratios are right, and a short run works."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pamqp", reason="the extra broker is not installed")
pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.stores import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from broker_systems import ONE_HOST, QUORUM, SINGLE, TRIO  # found by the line above
from loop_stalls import BOUNDS_MS, LoopProbe, Stalls
from rabbitmq_cluster_report import ratios

if TYPE_CHECKING:
    from pathlib import Path


def test_a_loop_that_stands_still_is_seen_and_only_while_it_is_watched() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        probe = LoopProbe(loop)
        probe.begin()
        loop.call_soon_threadsafe(time.sleep, 0.15)
        found = probe.end()
        assert found.longest_ms >= 100
        assert sum(found.counts[BOUNDS_MS.index(100) + 1 :]) >= 1
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.03), loop).result()
        assert probe.end() == Stalls()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def row(system: str, rates: list[float], p99_us: float, cpu_s: list[float], work: str = "window 100") -> dict[str, Any]:
    samples = [
        {"publish": {"rate": rate, "p99_us": p99_us, "processes": [{"cpu_s": each} for each in cpu_s]}}
        for rate in rates
    ]
    return {"work": work, "system": system, "relayed": False, "samples": samples}


def test_targets_are_judged_by_the_median_of_the_rounds() -> None:
    rows = [
        row(QUORUM, [10, 10, 10], 1000, [9e-6] * 3),
        row(TRIO, [10, 25, 30], 1200, [5e-6, 2e-6, 4e-6]),
        row(SINGLE, [50, 50, 50], 500, [4.5e-6]),
    ]
    found = {(one["what"], one["to"]): one for one in ratios(rows)}
    assert (found["publish", QUORUM]["median"], found["publish", QUORUM]["met"]) == (2.5, True)
    assert (found["p99 of publish", QUORUM]["median"], found["p99 of publish", QUORUM]["met"]) == (1.2, False)
    assert found["publish", SINGLE]["met"] is None
    leader, follower = (
        next(one for (what, _), one in found.items() if role in what) for role in ("leader", "follower")
    )
    assert (round(leader["median"], 3), leader["met"]) == (0.5, True)
    assert (round(follower["median"], 3), follower["met"]) == (4, False)


def test_ten_hosts_are_compared_with_one() -> None:
    rows = [row(name, [rate], 1, [], "ten queues") for name, rate in ((QUORUM, 1), (TRIO, 4), (ONE_HOST, 2))]
    found = {(one["of"], one["to"]): one["median"] for one in ratios(rows) if one["what"] == "publish"}
    assert found == {(TRIO, QUORUM): 4, (ONE_HOST, QUORUM): 2, (ONE_HOST, TRIO): 0.5}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("rabbitmq-server") is None, reason="no RabbitMQ here: it is NOT measured")
def test_a_quick_run_measures_every_load_on_every_system(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "rabbitmq_cluster.py", "--quick", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "results.json").read_text())
    assert len(told["rows"]) == 3 * (3 + 2) + 4
    assert all(len(each["samples"]) == 1 and not each["errors"] for each in told["rows"])
    assert {one["loop"] for one in told["stalls"]} == {"broker", "member", "idle process"}
    assert all(sum(one["counts"]) > 0 for one in told["stalls"])
