"""``make bench``: a short run works from end to end, and its statements about other stores and this one are right."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kit.stores import ROOT
from kit.torture import tortured

sys.path.insert(0, str(ROOT / "benchmarks"))

import peers
from builds import Build
from peers.base import Peer, Wrong
from peers.own import Logstore
from peers.sqlite import Sqlite
from report import BEGIN, END, write_page
from results import Results
from run import SUITES, parsed, planned
from slices import BOTH, CONSUME, MODES, PUBLISH, Book, Mode, Slices, Span
from targets import Judge

import logstore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

SHORT = Span(0.02, 1 << 20)
BODIES = [bytes([number]) * 100 for number in range(50)]


def ran(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "benchmarks" / "run.py", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=240, check=False)


def measured(directory: Path, *arguments: object) -> dict[str, Any]:
    done = ran("--quick", "--dir", directory, "--out", directory / "out", *arguments)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads((directory / "out" / "results.json").read_text())
    return told


# ---- The program


def test_a_quick_run_measures_the_store_sqlite_and_the_limit_and_judges_the_comparable_ones(tmp_path: Path) -> None:
    told = measured(
        tmp_path,
        *("--only", "grid,transactions,logs", "--peers", "logstore,sqlite"),
        *("--sizes", 1024, "--modes", "1 thread,batches of 10,asyncio"),
    )
    results = Results.from_dict(told["rows"])
    assert {row.engine for row in results.rows.values()} == {"logstore", "SQLite", "C loop", "one log", "two logs"}
    for row in results.rows.values():
        assert bool(row.samples) != bool(row.reason), "a figure, or why there is none"
        assert all(sample > 0 for sample in row.samples)
        assert row.sync
    for work in (PUBLISH, CONSUME, BOTH):
        for mode in ("1 thread", "batches of 10"):
            assert results.find("grid", "logstore", work, mode, 1024)
            assert results.find("grid", "SQLite", work, mode, 1024)
    assert results.rows["grid", "SQLite", PUBLISH, "asyncio, 1000 in flight", 1024].reason
    works = [verdict["work"] for verdict in told["targets"]]
    assert works.count("one publisher, 1 KiB, each durable") == 2
    assert "local transactions, 1 thread, 10 operations" in works
    assert told["conditions"]["quick"] is True
    tables = (tmp_path / "out" / "tables.txt").read_text()
    assert "publish: messages/s, 1 KiB (1024 bytes) each" in tables
    assert "WAL, synchronous=FULL" in tables
    left = [path.name for path in tmp_path.iterdir()]
    assert left == ["out"], "what it wrote to measure is gone"


def another_checkout(directory: Path) -> Path:
    """A copy of the package with an environment that imports it."""
    python = directory / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    shutil.copytree(ROOT / "logstore", directory / "logstore")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={directory} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return directory


def assert_both_builds_are_measured_alike(told: dict[str, Any], suites: Iterable[str]) -> None:
    rows = Results.from_dict(told["rows"])
    for suite in suites:
        own, before = (
            {(row.work, row.mode, row.content_bytes): len(row.samples) for row in rows.of(suite) if row.engine == name}
            for name in ("logstore", "before")
        )
        assert own == before, suite
        assert any(own.values()), suite


@pytest.mark.slow
@pytest.mark.skipif(not tortured(), reason="each suite twice takes long: set LOGSTORE_TORTURE_S")
def test_every_suite_ends_well_with_every_store_that_is_installed_and_another_build(tmp_path: Path) -> None:
    told = measured(tmp_path, "--before", another_checkout(tmp_path / "checkout"))
    assert set(told["conditions"]["seconds"]) == set(SUITES)
    assert len(told["targets"]) > 40
    of_one_build = {"syncs", "growing", "logs", "bounds"}
    assert_both_builds_are_measured_alike(told, set(SUITES) - of_one_build)
    assert told["conditions"]["syncs"].keys() >= {"logstore", "before"} or "syncs_not_counted" in told["conditions"]


def test_another_build_is_measured_in_the_same_run_and_judged(tmp_path: Path) -> None:
    told = measured(
        tmp_path, "--before", another_checkout(tmp_path / "checkout"), "--only", "grid,reads", "--peers", "logstore",
        *("--sizes", 1024, "--modes", "1 thread,batches of 1000"),
    )  # fmt: skip
    assert_both_builds_are_measured_alike(told, ("grid", "reads"))
    against = [verdict["work"] for verdict in told["targets"] if verdict["against"] == "before"]
    assert "publish_many, 1 KiB, force per 1000" in against
    assert "contents, 1 KiB, scan in order" in against


@pytest.mark.slow
def test_recovery_is_compared_with_reading_and_hashing(tmp_path: Path) -> None:
    told = measured(
        tmp_path, "--only", "recovery", "--peers", "logstore", "--recovery-messages", 3000, "--recovery-gib", 0.003
    )
    results = Results.from_dict(told["rows"])
    for size in (100, 1024):
        for state in ("cold", "warm"):
            for engine in ("logstore", "read and hash"):
                row = results.find("recovery", engine, state, "log", size)
                assert row is not None
                assert row.median > 0


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="no strace here: syncs are NOT counted")
needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="no matplotlib here: pictures are NOT checked"
)


@needs_strace
def test_strace_counts_one_sync_for_each_durable_unit(tmp_path: Path) -> None:
    told = measured(tmp_path, "--only", "syncs", "--peers", "logstore")
    problem = told["conditions"].get("syncs_not_counted", "")
    if "does not work here" in problem:
        pytest.skip(problem)
    counts = told["conditions"]["syncs"]
    assert counts["C loop"] == {"publish 1": 1.0}
    assert min(counts["logstore"].values()) >= 1
    assert counts["logstore"]["transaction of 10"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "grid,nothing"], "there is no nothing"),
        (["--peers", "sqlite"], "logstore is what is measured"),
        (["--rounds", "0"], "--rounds is at least 1"),
        (["--sizes", "12,many"], "--sizes"),
        (["--modes", "sixty"], "nothing is left to measure"),
    ],
)
def test_a_wrong_argument_is_answered_in_a_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        planned(parsed(arguments))
    assert says in capsys.readouterr().err
    assert ended.value.code == 2


def test_a_page_without_marks_and_a_run_that_is_not_there_are_refused(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="make bench"):
        write_page(page, results)
    results.write_text("{}")
    with pytest.raises(SystemExit, match="no place for figures"):
        write_page(page, results)
    assert page.read_text() == "nothing"


@needs_matplotlib
def test_the_page_of_figures_is_written_from_a_run_and_twice_is_as_once(tmp_path: Path) -> None:
    measured(tmp_path, "--only", "logs,grid", "--peers", "logstore,sqlite", "--sizes", 100, "--modes", "batches of 10")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    written = []
    for _ in range(2):
        write_page(page, tmp_path / "out" / "results.json")
        written.append(page.read_text())
    assert written[0] == written[1]
    assert written[0].startswith(f"before\n{BEGIN}\n")
    assert written[0].endswith(f"{END}\nafter\n")
    assert "old" not in written[0]
    assert "| logstore | strict: fdatasync a group |" in written[0]
    assert "![bench publish](img/bench_publish.svg)" in written[0]
    assert (tmp_path / "img" / "bench_publish.svg").read_text().startswith("<svg ")


# ---- Every installed store does the work


@pytest.mark.parametrize("name", list(peers.KNOWN))
def test_a_store_does_every_workload_in_every_mode_and_holds_the_expected_messages(name: str, tmp_path: Path) -> None:
    kinds, missing = peers.available([name])
    if missing:
        pytest.skip(missing[0])
    slices = Slices(kinds[0](tmp_path / "peer", 1 << 20), BODIES)
    done = 0
    for work in (PUBLISH, BOTH, CONSUME):
        for mode in (Mode("one"), Mode("threads", threads=8), Mode("batches", batch=10), MODES[-1]):
            puts, takes = work != CONSUME, work != PUBLISH
            if slices.peer.lacks(mode.threads, mode.batch, mode.in_flight, puts=puts, takes=takes) is None:
                if work == CONSUME:
                    slices.fill(100)
                assert slices.rate(work, mode, SHORT) > 0
                done += 1
    assert done >= 6
    slices.fill(3)
    slices.peer.close()
    slices.book.verify(slices.peer)


# ---- Two builds in one run


def test_a_build_in_its_own_process_does_the_same_work_and_holds_the_expected_messages(tmp_path: Path) -> None:
    slices = Build(apart=True).make(Slices.open, Logstore, tmp_path / "store", 1 << 20, BODIES)
    slices.fill(100)
    for work, mode in ((BOTH, Mode("threads", threads=8)), (CONSUME, Mode("one")), (PUBLISH, MODES[-1])):
        assert slices.rate(work, mode, SHORT) > 0
    assert slices.processor_us() > 0
    slices.close()
    with logstore.open(tmp_path / "store", create=False) as store:
        assert store.queue("measured").depth > 0


def test_a_build_in_its_own_process_that_holds_wrong_messages_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests'}:{ROOT / 'tests' / 'tools'}")  # for the class of this test
    slices = Build(apart=True).make(Slices.open, Missing, tmp_path / "store", 1 << 20, BODIES)
    slices.fill(3)
    with pytest.raises(Wrong, match="faulty holds 0 messages"):
        slices.close()


def test_an_error_of_a_build_and_the_end_of_its_process_are_told(tmp_path: Path) -> None:
    slices = Build(apart=True).make(Slices.open, Logstore, tmp_path / "store", 1 << 20, BODIES)
    with pytest.raises(Wrong, match="AttributeError"):
        slices.no_such_work()
    with pytest.raises(Wrong, match="StoreLocked"):
        Build(apart=True).make(Slices.open, Logstore, tmp_path / "store", 1 << 20, BODIES)
    with pytest.raises(Wrong, match="ended with status 3"):
        Build(apart=True).make(os._exit, 3)
    slices.close()


def test_a_checkout_without_an_environment_and_one_that_imports_another_package_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(["--before", str(tmp_path)])
    assert "has no environment" in capsys.readouterr().err
    made = tmp_path / ".venv" / "bin" / "python"
    made.parent.mkdir(parents=True)
    made.symlink_to(sys.executable)
    with pytest.raises(SystemExit):
        parsed(["--before", str(tmp_path)])
    assert "does not import the package of" in capsys.readouterr().err


# ---- A faulty store is detected


class Faulty(Peer):
    """In memory; applies a test's fault to the given bodies."""

    name = "faulty"
    sync = "none"

    def __init__(self, fault: Callable[[list[bytes]], list[bytes]], path: Path) -> None:
        super().__init__(path, 0)
        self.fault = fault
        self.held: list[bytes] = []

    @classmethod
    def version(cls) -> str:
        return "1"

    def publisher(self) -> Callable[[Sequence[bytes]], None]:
        return self.held.extend

    def consumer(self) -> Callable[[int], list[bytes]]:
        def consume(count: int) -> list[bytes]:
            taken, self.held = self.held[:count], self.held[count:]
            return self.fault(taken)

        return consume

    def close(self) -> None:
        pass

    def remaining(self) -> Iterable[bytes]:
        return self.fault(self.held)


class Missing(Faulty):
    """Loses everything when it is closed."""

    def __init__(self, path: Path, room_bytes: int) -> None:
        super().__init__(lambda bodies: [], path)


FAULTS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "loses one": lambda bodies: bodies[1:],
    "gives one twice": lambda bodies: [*bodies[:1], *bodies],
    "gives another order": lambda bodies: bodies[::-1],
    "changes a byte": lambda bodies: [b"?" + body[1:] for body in bodies],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_with_wrong_contents_is_not_listed(fault: str, tmp_path: Path) -> None:
    peer = Faulty(FAULTS[fault], tmp_path)
    book = Book()
    peer.publisher()(BODIES)
    book.published(BODIES, ordered=True)
    with pytest.raises(Wrong):
        book.verify(peer)


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "gives another order"])
def test_a_faulty_store_is_detected_with_threads_too(fault: str, tmp_path: Path) -> None:
    peer = Faulty(FAULTS[fault], tmp_path)
    slices = Slices(peer, BODIES)
    peer.publisher()(BODIES)
    slices.book.published(BODIES, ordered=False)
    with pytest.raises(Wrong):
        slices.book.consumed(peer.consumer()(10), ordered=False)
        peer.fault = list
        slices.book.verify(peer)


def test_messages_of_one_thread_come_in_order_after_those_of_many() -> None:
    book = Book()
    book.published(BODIES[:10], ordered=False)
    book.published(BODIES[10:], ordered=True)
    book.consumed([*reversed(BODIES[:10]), *BODIES[10:20]], ordered=True)
    with pytest.raises(Wrong):
        book.consumed([BODIES[21], BODIES[20]], ordered=True)


# ---- The judge


def rows_with(**rates: float) -> Results:
    results = Results()
    for engine, rate in rates.items():
        name = engine.replace("_", " ")
        results.row("grid", name, PUBLISH, "1 thread", 100).samples.extend([rate] * 3)
    return results


def test_a_target_is_met_or_missed_by_the_median_of_neighbouring_slices() -> None:
    met, ahead = Judge(rows_with(logstore=96.0, C_loop=100.0, SQLite=90.0), set()).judge()
    assert (met.met, met.median) == (True, 0.96)
    assert ahead.against == "SQLite"
    missed, ahead = Judge(rows_with(logstore=94.0, C_loop=100.0, SQLite=95.0), set()).judge()
    assert not missed.met
    assert not ahead.met


def test_the_build_before_is_compared_with_but_is_no_peer() -> None:
    results = rows_with(logstore=100.0, SQLite=90.0, before=200.0)
    peer, before = Judge(results, set()).judge()
    assert (peer.against, peer.met) == ("SQLite", True)
    assert (before.against, before.met) == ("before", False)


def test_a_store_that_syncs_too_seldom_is_not_compared_with() -> None:
    results = rows_with(logstore=96.0, C_loop=100.0, SQLite=90.0, LMDB=900.0)
    assert Judge(results, {"LMDB"}).judge()[1].against == "SQLite"
    assert Judge(results, set()).judge()[1].against == "LMDB"


def test_a_store_with_reduced_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="SQLite does not do what it was told"):

        class Memory(Sqlite):
            """Its journal stays in memory, whatever its settings."""

            def __init__(self) -> None:
                super().__init__(tmp_path / "sqlite", 0)

            def _file(self) -> str:
                return ":memory:"

        Memory()
    assert Logstore.sync.startswith("strict")
