"""``logstore export`` as an operator uses it: its output and its exit status."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import logstore
from kit.command import COMMAND, run, spawn, told
from kit.exported import SEGMENT, damage, everything, manifest_of, recycle, store_dir
from kit.patience import PATIENCE_S
from logstore.export import upkeep
from logstore.export.target import Target
from logstore.holds import list_holds

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["store_dir"]  # a fixture


def test_it_reports_the_written_part_and_then_that_nothing_is_new(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    planned = told("export", store_dir, target, "--dry-run")
    assert not target.exists()
    first = told("export", store_dir, target)
    assert (planned["dry_run"], first["dry_run"]) == (True, False)
    same = ("start_lsn", "last_lsn", "log_bytes", "gap")
    assert [planned[name] for name in same] == [first[name] for name in same]
    assert (first["messages"], first["open"], first["files"]) == (15, 45, 2)
    done = run("export", store_dir, target)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing new below LSN" in done.stdout
    with logstore.open(store_dir) as store:
        store.publish("orders", b"more")
    done = run("export", store_dir, target)
    assert done.returncode == 0
    assert "46 messages open" in done.stdout
    assert "would be exported: 0 bytes" in run("export", store_dir, target, "--dry-run").stdout


def test_verify_finds_every_kind_of_damage_and_says_where(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert run("export", store_dir, target, "--body", "1K").returncode == 0
    whole = run("export", "--verify", target)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert "3 files" in whole.stdout
    before = everything(target)
    records, messages = (target / manifest_of(target).of(name)[0].path for name in ("records", "messages"))
    damage(records)
    messages.unlink()
    stray = records.with_name("stray.parquet")
    stray.write_bytes(b"")
    done = run("export", "--verify", target)
    assert done.returncode == 1
    assert "3 problems were found" in done.stderr
    for name, problem in (
        (records.name, "hash is wrong"),
        (messages.name, "missing"),
        (stray.name, "is not a file of"),
    ):
        assert any(name in line and problem in line for line in done.stdout.splitlines())
    found = run("export", "--verify", target, "--json")
    assert found.returncode == 1
    document = json.loads(found.stdout)
    assert (document["ok"], len(document["problems"])) == (False, 3)
    stray.unlink()
    messages.write_bytes(before[messages.relative_to(target).as_posix()])
    records.write_bytes(before[records.relative_to(target).as_posix()][:-1])
    assert "bytes and not" in run("export", "--verify", target).stdout


def test_each_refusal_is_one_line_and_has_its_exit_status(store_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    cases = [
        (2, "missing argument TARGET", ("export", store_dir)),
        (2, "inside the store", ("export", store_dir, store_dir / "x")),
        (2, "is not a compression", ("export", store_dir, target, "--compression", "zip")),
        (2, "takes only the export's directory", ("export", "--verify", store_dir, target)),
        (3, "cannot be opened", ("export", tmp_path / "nothing", target)),
        (3, "contains no export", ("export", "--verify", tmp_path)),
        (3, "check the path", ("export", store_dir, tmp_path / "no" / "such" / "directory")),
    ]
    for status, said, arguments in cases:
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (status, "")
        assert done.stderr.count("\n") == 1
        assert said in done.stderr, done.stderr
    assert not target.exists()
    with Target(target):
        done = run("export", store_dir, target)
        assert (done.returncode, "wait until it has ended" in done.stderr) == (3, True)


def test_a_gap_is_a_problem_unless_allowed_and_verify_then_lists_it(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    with logstore.open(path, segment_size=SEGMENT) as store:
        store.publish(store.declare_queue("other"), b"stays")
    assert run("export", path, target).returncode == 0
    recycle(path, 20)
    recycle(path, 20)
    done = run("export", path, target)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "--allow-gap" in done.stderr
    done = run("export", path, target, "--allow-gap")
    assert done.returncode == 0
    assert "lost before it was exported" in done.stdout
    done = run("export", "--verify", target)
    assert done.returncode == 0
    assert "lost before it was exported" in done.stdout


def test_what_was_recycled_before_the_first_export_is_told_on_stderr_and_in_json(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    logstore.open(path, segment_size=SEGMENT).close()
    recycle(path, 20)
    lsn = told("info", path)["oldest_lsn"]
    refused = run("export", path, target, "--require-complete")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert f"below LSN {lsn}, logged before 20" in refused.stderr
    assert run("export", path, target, "--require-complete", "--allow-gap").returncode == 2
    planned = run("export", path, target, "--dry-run")
    assert f"recycled before the first export: everything below LSN {lsn}" in planned.stdout
    done = spawn("export", path, target, "--json")
    assert done.returncode == 0
    assert f"below LSN {lsn}" in done.stderr
    assert "--every" in done.stderr
    assert json.loads(done.stdout)["missing_before"]["lsn"] == lsn
    again = spawn("export", path, target)
    assert (again.returncode, again.stderr) == (0, "")
    assert f"below LSN {lsn}" in run("export", "--verify", target).stdout
    assert told("export", "--verify", target)["missing_before"]["lsn"] == lsn


def test_info_shows_how_far_back_the_log_goes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    logstore.open(path, segment_size=SEGMENT).close()
    new = told("info", path)
    assert (new["oldest_lsn"], new["from_beginning"]) == (SEGMENT, True)
    assert f"{SEGMENT} (the beginning)" in run("info", path).stdout
    recycle(path, 20)
    old = told("info", path)
    assert (old["oldest_lsn"] > SEGMENT, old["from_beginning"]) == (True, False)
    assert old["oldest_time"] >= new["oldest_time"]
    assert "the log below it was recycled" in run("info", path).stdout


def test_a_following_run_exports_new_records_and_holds_the_log_until_it_is_stopped(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("orders")
        store.publish(queue, b"one")
        command = [*COMMAND, "export", str(path), str(target), "--every", "0.1", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert json.loads(process.stdout.readline())["open"] == 1
                assert [(one.alive, one.name[:7]) for one in list_holds(path)] == [(True, "export-")]
                for _ in range(10):
                    store.dequeue_many(list(store.publish_many(queue, [bytes(20_000)] * 40)), queue)
                store.compact()
                messages, until = 0, time.monotonic() + PATIENCE_S
                while messages < 400 and time.monotonic() < until:
                    messages += json.loads(process.stdout.readline())["messages"]
                assert messages == 400
            finally:
                process.send_signal(signal.SIGINT)
                process.stdout.read()
        assert process.returncode == 128 + signal.SIGINT
        assert all(not one.alive for one in list_holds(path))
    assert run("export", path, target).returncode == 0
    assert run("export", "--verify", target).returncode == 0


def test_keep_tells_what_would_go_what_went_and_later_readers_know_it(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    assert run("export", store_dir, target).returncode == 0
    before = manifest_of(target)
    rows = {name: sum(file.rows for file in before.of(name)) for name in ("records", "messages")}
    day = before.files[0].day
    late = datetime.now(UTC) + timedelta(days=91, hours=1)
    monkeypatch.setattr(upkeep, "_now", lambda: late)
    assert "dropped" not in run("export", store_dir, target, "--dry-run").stdout
    planned = told("export", store_dir, target, "--keep", "90d", "--dry-run")
    assert planned["expired"] == [file.path for file in before.files]
    shown = run("export", store_dir, target, "--keep", "90d", "--dry-run").stdout
    assert f"would be dropped, being too old: 2 files with {sum(rows.values())} rows, of days up to {day}" in shown
    assert told("export", store_dir, target, "--keep", "92d")["dropped_files"] == 0
    assert manifest_of(target) == before
    done = run("export", store_dir, target, "--keep", "12w")
    assert f"dropped, being too old: 2 files with {sum(rows.values())} rows" in done.stdout
    verified = told("export", "--verify", target)
    assert (verified["ok"], verified["records"]) == (True, 0)
    assert {one["dataset"]: one["rows"] for one in verified["dropped"]} == rows
    assert f"dropped, being too old: records of LSN {before.first_lsn} to" in run("export", "--verify", target).stdout
    with logstore.open(store_dir) as store:
        store.publish("orders", b"more")
    report = told("export", store_dir, target)
    assert (report["dropped_files"], report["dropped_rows"], report["merged_files"]) == (0, 0, 0)
    assert told("sql", target, "SELECT count(*) FROM records")["rows"] == [[report["records"]]]
    assert [one["rows"] for one in told("report", target)["dropped"]] == list(rows.values())
    for text in ("90", "0d", "-1d", "d", "1y"):
        refused = run("export", store_dir, target, "--keep", text)
        assert (refused.returncode, "is not an age; write 90d" in refused.stderr) == (2, True)


def test_the_help_names_it_among_the_commands_that_work_while_a_broker_runs() -> None:
    section = run("--help").stdout.partition("(works while a broker runs):")[2].partition("\n\n")[0]
    assert "\n  export " in section
