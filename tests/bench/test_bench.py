"""``logstore bench``: its figures are right, it finds errors, and it leaves the stores of others unchanged."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import logstore
from kit.command import Result, fails, run
from kit.crashed import snapshot
from logstore.bench import runner as bench
from logstore.bench import workers as bench_workers
from logstore.bench.counts import Tally, Times, sum_of
from logstore.bench.load import DISTINCT, Backlog, Contents
from logstore.bench.plan import PROFILES, Plan, plan
from logstore.bench.report import Moment
from logstore.bench.watch import Watch, log_bytes
from logstore.commands.bench import _moment_table

if TYPE_CHECKING:
    pass

MIB = 1 << 20


def measured(path: Path, *arguments: object) -> dict[str, Any]:
    """The JSON output of a successful run."""
    done = run("bench", path, "--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["problems"] == []
    return report


def foreign_store(path: Path) -> int:
    with logstore.open(path, segment_size=MIB) as store:
        return store.publish(store.declare_queue("orders"), b"mine")


# ---- The counts


@given(st.lists(st.integers(0, 1 << 62), min_size=1), st.floats(0.001, 1))
def test_a_percentile_is_within_a_thirtieth_of_the_exact_one(times: list[int], share: float) -> None:
    counted = Times()
    for took_ns in times:
        counted.add(took_ns)
    exact = sorted(times)[max(0, -(-round(share * len(times) * 1e9) // 10**9) - 1)]
    said = counted.at_most_us(share)
    assert said is not None
    assert exact * 0.999999 <= said * 1000 <= exact * (1 + 1 / 30) + 1


def test_times_that_were_counted_apart_add_up_to_the_same() -> None:
    dice = random.Random(5)
    together, parts = Times(), [Times(), Times(), Times()]
    for _ in range(3000):
        took_ns = round(10 ** dice.uniform(0, 10))
        together.add(took_ns)
        dice.choice(parts).add(took_ns)
    total = sum_of([Tally(calls=part) for part in parts]).calls
    assert total.as_dict() == together.as_dict()
    assert Times().as_dict()["p99_us"] is None


# ---- Published messages are recognised


@pytest.mark.parametrize("size", [24, 25, 1000])
def test_only_the_content_with_the_right_bytes_and_number_passes(size: int) -> None:
    contents = Contents(size)
    made = contents.some(DISTINCT - 2, 5, stamp_ns=77)
    assert [len(one) for one in made] == [size] * 5
    assert [contents.stamp_ns(one) for one in made] == [77, 0, 0, 0, 0]
    for i, one in enumerate(made):
        assert contents.is_right(one, DISTINCT - 2 + i)
        assert contents.is_right(one, None)
        assert not contents.is_right(one, DISTINCT - 1 + i)
        for at in (8, 15, 16, size - 1):
            wrong = bytearray(one)
            wrong[at] ^= 0x80
            assert not contents.is_right(bytes(wrong), DISTINCT - 2 + i)
            assert not contents.is_right(bytes(wrong), None)
        assert not contents.is_right(one[:-1], None)


# ---- Runs


@pytest.mark.parametrize(
    "flags",
    [
        "--batch 1 --take 1 --publishers 3 --consumers 2",
        "--batch 7 --take 20 --queues 3 --publishers 2 --consumers 2",
        "--fan-out 3 --batch 10 --consumers 2",
        "--acquire --queues 2 --consumers 3 --survivors 0.1 --survivors-max 20",
        "--transaction-share 0.5 --transaction 7 --acquire",
        "--transaction-share 1 --batch 20 --take 33 --survivors 0.2",
        "--no-wait --batch 1 --take 1",
        "--durability relaxed --acquire --fan-out 2",
        "--sawtooth --depth 500 --stuck 3 --prepared 2",
    ],
)
def test_every_way_to_run_consumes_its_messages_and_leaves_nothing_behind(tmp_path: Path, flags: str) -> None:
    path = tmp_path / "store"
    said = measured(path, "--messages", 1000, "--size", 100, "--verify", "--segment-size", "1M", *flags.split())
    fan_out = said["plan"]["fan_out"]
    assert said["published"]["messages"] == 1000
    assert said["published"]["places"] == 1000 * fan_out == said["consumed"]["places"] + said["survivors"]
    assert said["published"]["content_bytes"] == 100_000
    assert said["compared_after_restart"] == said["survivors"] + said["plan"]["stuck"]
    assert said["published"]["calls"]["count"] > 0
    assert said["published"]["calls"]["p50_us"] <= said["published"]["calls"]["p999_us"]
    assert said["commits"]["batches"] > 0
    assert said["log"]["bytes_max"] >= said["log"]["bytes_end"] == said["log"]["bytes_max"] // MIB * MIB
    if "share 1 " in flags:
        assert said["published"]["transactions"] == 50
    if "--survivors" in flags:
        assert 0 < said["survivors"] <= said["plan"]["survivors_max"]
    with logstore.open(path, create=False) as store:
        assert store.queues() == []
        assert store.in_doubt() == []
        assert store.stats()["messages"] == 0


def test_a_run_ends_after_its_seconds_and_consumes_waiting_messages(tmp_path: Path) -> None:
    said = measured(tmp_path / "store", "--seconds", 0.2, "--size", 0)
    assert said["published"]["messages"] == said["consumed"]["messages"] > 0
    assert said["published"]["seconds"] >= 0.2


def test_kept_messages_wait_for_a_run_that_only_consumes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    said = measured(path, "--messages", 500, "--consumers", 0, "--keep", "--fan-out", 2)
    assert said["consumed"]["messages"] == 0
    with logstore.open(path, create=False) as store:
        assert [queue.depth for queue in store.queues()] == [500, 500]
    said = measured(path, "--publishers", 0, "--consumers", 2, "--acquire", "--queues", 2, "--verify")
    assert (said["published"]["messages"], said["consumed"]["messages"]) == (0, 1000)


def test_a_store_that_is_full_makes_publishers_wait_for_consumers(tmp_path: Path) -> None:
    flags = ("--segment-size", "1M", "--max-log-bytes", "6M", "--bytes", "24M", "--size", "8K")
    said = measured(tmp_path / "store", *flags, "--sawtooth", "--depth", 1_000_000)
    assert said["published"]["refused_full"] > 0
    assert said["published"]["messages"] == said["consumed"]["messages"] == 24 * MIB // 8192
    assert said["log"]["bytes_max"] <= 6 * MIB


def test_a_store_full_of_unconsumed_messages_ends_the_run(tmp_path: Path) -> None:
    flags = ("--segment-size", "1M", "--max-log-bytes", "6M", "--bytes", "24M", "--size", "8K", "--consumers", 0)
    assert "full" in fails(run("bench", tmp_path / "store", *flags), 3)


# ---- The tail


def test_half_a_gigabyte_in_small_extends_the_log_and_the_log_comes_back(tmp_path: Path) -> None:
    """``--profile tail`` with 0.5 GB, here scaled to 24 MB."""
    flags = ("--bytes", "24M", "--depth", 6000, "--survivors-max", 200)
    said = measured(tmp_path / "store", "--profile", "tail", *flags)
    made = said["plan"]
    assert (made["segment_size"], made["initial_segments"], made["verify"]) == (MIB, 2, True)
    # 6 000 messages of 1 KiB wait, so the log was extended. It is looked at now and then, not at its largest.
    assert said["log"]["bytes_max"] >= 6 * MIB
    assert said["segments"]["recycled"] > 0
    assert said["segments"]["relocated"] > 0  # the stuck message had to be relocated
    assert said["compared_after_restart"] == 201 == said["survivors"] + made["stuck"]
    assert [one["when"] for one in said["returns"]] == ["with what stayed", "empty"]
    for one in said["returns"]:
        assert one["bytes"] <= one["bound"] == 5 * MIB
    assert said["log"]["base_lsn_end"] > said["log"]["base_lsn_before"]


def test_the_profile_of_the_tail_is_half_a_gigabyte_through_two_segments_of_a_mebibyte() -> None:
    made = plan("tail")
    assert made.message_limit == -(-500_000_000 // 1024)
    assert (made.segment_size, made.initial_segments, made.must_return) == (MIB, 2, True)
    assert set(PROFILES) == {"tail", "broker", "stream"}


def test_a_log_that_does_not_shrink_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "bound_bytes", lambda segment_size, counted_bytes: 1)
    monkeypatch.setattr(bench, "RETURN_S", 0.0)
    said = run("bench", tmp_path / "store", "--profile", "tail", "--bytes", "1M")
    assert "did not shrink to" in fails(Result(said.returncode, said.stdout, said.stderr), 1)


# ---- Errors that it must detect


def test_a_content_that_differs_from_the_published_one_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = logstore.MessageStore.publish_many, itertools.count()

    def bad(store: Any, queue: Any, contents: list[bytes], **options: Any) -> Any:
        stored = [each if next(made) % 32 else each[:-1] + bytes([each[-1] ^ 1]) for each in contents]
        return real(store, queue, stored, **options)

    monkeypatch.setattr(logstore.MessageStore, "publish_many", bad)
    for flags in ((), ("--acquire",)):
        said = run("bench", tmp_path / "store", "--messages", 300, "--verify", "--json", *flags)
        assert "contents differ from the published ones" in fails(said, 1)
        assert json.loads(said.stdout)["consumed"]["wrong"] > 0


def test_a_message_that_is_consumed_twice_instead_of_another_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bench_workers.Dequeuer.account

    def bad(worker: Any, items: Any) -> None:
        real(worker, [items[0], items[0], *items[2:]])

    monkeypatch.setattr(bench_workers.Dequeuer, "account", bad)
    said = run("bench", tmp_path / "store", "--messages", 300)
    assert "sums of their ids differ" in fails(said, 1)


def test_a_missing_message_after_a_restart_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    real = logstore.open

    def open_and_lose(path: Path, **options: Any) -> Any:
        store = real(path, **options)
        if opened:
            queue = store.queue(bench.STUCK_QUEUE)
            store.dequeue(next(iter(queue.browse())).id, queue)
            monkeypatch.setattr(store, "load_content", lambda *_: b"")
        opened.append(path)
        return store

    monkeypatch.setattr(logstore, "open", open_and_lose)
    said = run("bench", tmp_path / "store", "--messages", 300, "--stuck", 2, "--verify")
    assert "after a restart" in fails(said, 1)
    assert "1 message is on queue 'logstore-bench.stuck', not 2" in said.stderr


# ---- While it runs


def test_control_c_ends_a_run_quietly_and_the_store_opens_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-m", "logstore", "bench", str(path), "--seconds", "600", "--segment-size", "1M"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    until = time.monotonic() + 60
    while max((int(each.stem, 16) for each in path.glob("*.seg")), default=0) < 12 * MIB:  # it is running
        assert time.monotonic() < until
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGINT)  # like a terminal: the whole process group
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, b"", b"")
    with logstore.open(path, create=False) as store:
        assert [queue.name for queue in store.queues()] == ["logstore-bench.0"]


def test_progress_shows_the_position_and_the_rate() -> None:
    before = Moment(1.0, 1000, 900, 1_024_000, 100, MIB, 2 * MIB, 5000, 2, 3, 4, 5, 6)
    now = replace(before, seconds=2.0, published=3000, consumed=2400)
    with io.StringIO() as drawn:
        Console(file=drawn, width=80).print(_moment_table(Plan(messages=6000), now, before))
        said = " ".join(drawn.getvalue().split())
    assert "2.0 s 50%" in said
    assert "published 3,000 (2,000/s)" in said
    assert "consumed 2,400 (1,500/s)" in said
    assert "at most 2097152 bytes (2 MiB)" in said
    assert "4 made, 5 recycled, 6 relocated" in said


# ---- Stores of others


def test_a_store_with_other_queues_is_refused_unchanged_unless_an_option_allows_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    mine = foreign_store(path)

    before = snapshot(path)
    assert "'orders'" in fails(run("bench", path, "--messages", 10), 2)
    assert snapshot(path) == before
    measured(path, "--messages", 100, "--existing", "--verify", "--stuck", 1)
    with logstore.open(path, create=False) as store:
        assert [queue.name for queue in store.queues()] == ["orders"]
        assert store.load_content(mine) == b"mine"


def test_a_directory_with_other_files_is_refused_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("dear")
    assert "letters" in fails(run("bench", tmp_path, "--messages", 10), 3)
    assert [one.name for one in tmp_path.iterdir()] == ["letters"]


def test_a_store_that_is_open_elsewhere_is_locked(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store", segment_size=MIB):
        assert "open" in fails(run("bench", tmp_path / "store", "--messages", 10), 3)


@pytest.mark.parametrize(
    "flags",
    [
        "--publishers 0",
        "--publishers 0 --consumers 0",
        "--batch 0",
        "--verify --size 10",
        "--sawtooth --depth 0",
        "--bytes 10M --size 0",
        "--survivors 2",
        "--profile nothing",
    ],
)
def test_conflicting_options_are_misuse_and_create_no_store(tmp_path: Path, flags: str) -> None:
    fails(run("bench", tmp_path / "store", *flags.split()), 2)
    assert not (tmp_path / "store").exists()


# ---- Waiting for each other


def test_publishers_wait_for_room_until_a_consumer_or_the_end_releases_them() -> None:
    backlog = Backlog(Plan(depth=10), 0)
    assert backlog.wait_for_room(20)  # more than the depth, but nothing waits
    backlog.published(20)
    backlog.end(stop=True)
    assert not backlog.wait_for_room(1)
    assert not backlog.wait_for_turn()


# ---- The watch


def test_the_watch_counts_each_file_once_sparse_ones_in_full_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "0000000000100000.seg").write_bytes(bytes(4096))
    os.link(tmp_path / "0000000000100000.seg", tmp_path / "0000000000200000.seg")  # in the middle of a rename
    with (tmp_path / "0000000000300000.seg").open("wb") as sparse:
        sparse.truncate(MIB)
    (tmp_path / "META").write_bytes(bytes(512))
    assert log_bytes(tmp_path) == 4096 + MIB
    assert log_bytes(tmp_path / "nothing") == 0
    with Watch(tmp_path, every_s=0.001) as watch:
        (tmp_path / "0000000000400000.seg").write_bytes(bytes(8192))
        until = time.monotonic() + 60
        while watch.largest < 12288 + MIB and time.monotonic() < until:
            time.sleep(0.001)
        (tmp_path / "0000000000400000.seg").unlink()
    assert watch.samples[0][1] == 4096 + MIB
    assert (watch.largest, watch.last) == (12288 + MIB, 4096 + MIB)
    assert watch.since(watch.samples[-1][0]) == watch.samples[-1:]


def test_a_watch_process_that_died_raises(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended early with status"), Watch(tmp_path) as watch:
        watch._process.kill()
        watch._process.wait()


def test_the_options_are_explained_in_the_help() -> None:
    said = run("bench", "--help")
    assert said.returncode == 0
    for name in (*PROFILES, "--sawtooth", "--max-log-bytes", "threads"):
        assert name in said.stdout
