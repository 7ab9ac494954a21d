"""Backups: a complete copy of a store in use, with its durable state at the LSN that the backup names; or nothing."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit import postgres
from kit.command import run
from kit.crashed import crash, snapshot
from kit.journal_writer import assert_is_the_state_at, running
from kit.stores import SMALL_SEGMENT, contents, segment_files
from logstore import errors
from logstore.backup import back_up, plan_backup
from logstore.backup import copying as module
from logstore.catalog.catalog import Catalog
from logstore.codec.files import Hint, decode_segment
from logstore.holds import hold, list_holds
from logstore.inspect import LogRecycled, Reader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore

pytestmark = pytest.mark.on_disk


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """Three segments, two queues, sixty messages, closed."""
    path = tmp_path / "closed"
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        orders = store.declare_queue("orders", arguments={"a": 1})
        store.declare_queue("other", dead_letter="orders")
        store.declare_exchange("all", type="fanout")
        store.bind("all", "orders", "key")
        store.config["name"] = "value"
        store.publish_many(orders, [b"%d" % n * 5000 for n in range(60)])
    return path


def left_beside(target: Path) -> list[str]:
    """The remains of a failed backup."""
    return [entry.name for entry in target.parent.iterdir() if entry.name.startswith(f".{target.name}.")]


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# ---- contents


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_backup_beside_a_writer_is_the_state_at_the_lsn_it_names(tmp_path: Path, seed: int) -> None:
    reports = []
    with running(tmp_path, seed) as writer:
        for number, rate in enumerate((None, 8e6, None)):
            writer.wait_for(30_000 * (number + 1))
            target = tmp_path / f"backup{number}"
            reports.append(back_up(writer.store_dir, target, rate_bytes_s=rate))
        writer.wait_for_recycling(3)
        counted = writer.end()
    assert counted["segments_recycled"] > 3
    assert counted["relocated_bytes"] > 0
    assert list_holds(writer.store_dir) == []
    for report in reports:
        assert report.bytes == sum(path.stat().st_size for path in report.target.iterdir())
        assert_is_the_state_at(report.target, writer.journal, report.lsn)
    assert reports[0].lsn < reports[1].lsn < reports[2].lsn


def test_a_store_backs_itself_up_while_other_threads_publish(store: MessageStore, tmp_path: Path) -> None:
    queue = store.declare_queue("q")
    stop = threading.Event()
    published: list[int] = []

    def work() -> None:
        while not stop.is_set():
            published.append(store.publish(queue, b"%d" % len(published)))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        while len(published) < 20:
            time.sleep(0.001)
        report = store.backup(tmp_path / "backup")
    finally:
        stop.set()
        thread.join()
    assert store.publish(queue, b"and it goes on") > report.lsn
    with logstore.open(tmp_path / "backup") as copy:
        kept = [message.id for message in copy.messages("q")]
    assert kept == [one for one in published if one < report.lsn]
    assert len(kept) >= 20


@pytest.mark.parametrize("state", ["closed", "crashed", "live"])
def test_the_same_state_gives_the_same_bytes_and_a_backup_opens_alone(tmp_path: Path, closed: Path, state: str) -> None:
    opened = None
    if state == "crashed":
        crash(closed, "[store.publish('orders', b'x%d' % n) for n in range(10)]")
    elif state == "live":
        opened = logstore.open(closed)
        opened.publish("orders", b"x")
    with Reader(closed) as reader:
        assert reader.info.state == state
        end_lsn = reader.info.end_lsn
    reports = [back_up(closed, tmp_path / name) for name in ("one", "two")]
    if opened is not None:
        opened.close()
    assert reports[0].lsn == reports[1].lsn == end_lsn
    assert bytes_of(reports[0].target) == bytes_of(reports[1].target)
    names = {"META", "LOCK", "catalog.sqlite", *(path.name for path in segment_files(reports[0].target))}
    assert set(bytes_of(reports[0].target)) - {"CLOSED"} == names
    for path in reports[0].target.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.stat().st_blocks * 512 >= path.stat().st_size, "sparse"
    assert reports[0].target.stat().st_mode & 0o777 == 0o700
    assert run("verify", reports[0].target).returncode == 0
    with logstore.open(reports[0].target) as copy:
        assert copy.recovery.clean == (state == "closed")
        assert contents(copy.queue("orders"))[:60] == [b"%d" % n * 5000 for n in range(60)]
        assert copy.queue("orders").depth == {"closed": 60, "crashed": 70, "live": 61}[state]
        assert copy.queue("other").dead_letter == "orders"
        assert [(one.exchange, one.queue, one.key) for one in copy.bindings()] == [("all", "orders", "key")]
        assert dict(copy.config) == {"name": "value"}
        copy.publish("orders", b"goes on")


def test_a_backup_of_a_crashed_store_has_the_state_of_its_recovery(tmp_path: Path) -> None:
    path = tmp_path / "crashed"
    crash(
        path, "q = store.declare_queue('q'); [store.publish(q, b'%d' % n) for n in range(50)]; store.stage(b'', b's')"
    )
    last = segment_files(path)[0]
    with Reader(path) as reader:
        at = reader.info.end_lsn - reader.segments()[0].first_lsn
    raw = bytearray(last.read_bytes())
    raw[at : at + 200] = os.urandom(200)
    last.write_bytes(raw)  # of a write that was cut short
    back_up(path, tmp_path / "backup")
    with logstore.open(tmp_path / "backup") as copy, logstore.open(path) as original:
        assert contents(copy.queue("q")) == contents(original.queue("q")) == [b"%d" % n for n in range(50)]
        assert copy.recovery.staged_dropped == original.recovery.staged_dropped == 1


def test_leaving_out_a_last_segment_of_unneeded_copies_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store, hold(path, "all") as held:
        store.publish_many(store.declare_queue("old"), [b"%02d" % n * 10_000 for n in range(40)])
        queue = store.declare_queue("q")
        for _ in range(10):
            store.dequeue_many(store.publish_many(queue, [bytes(20_000)] * 40), queue)
        with Reader(path, hold=held) as reader:
            parts = [part for part in reader.segments() if not part.current]
            uuid = reader.info.uuid
        cuts = []
        for part in parts:
            found = decode_segment((path / part.name).read_bytes(), part.end_lsn)
            batch, records = found.batches[0]
            end_lsn = batch.lsn + batch.body.bytes
            before = [one for one in parts if one.end_lsn <= part.first_lsn]
            if before and all(module._is_copy(record) for record in records):
                cuts.append((part, batch, end_lsn, before[-1].end_lsn))
        shutil.copytree(path, tmp_path / "cut", ignore=shutil.ignore_patterns("*.hold", "*.sock"))
    assert cuts, "no move has begun a segment"
    part, batch, end_lsn, before_lsn = cuts[-1]
    cut = tmp_path / "cut"
    with (cut / "LOCK").open("r+b") as lock:  # as if the writer were just there
        fcntl.flock(lock, fcntl.LOCK_EX)
        (cut / "HINT").write_bytes(Hint(uuid, part.epoch, end_lsn, batch.body.base_lsn).encode())
        report = back_up(cut, tmp_path / "backup")
    assert report.lsn == end_lsn
    with Reader(tmp_path / "backup") as reader:
        assert reader.info.end_lsn == before_lsn
    with logstore.open(tmp_path / "backup") as copy:
        assert contents(copy.queue("old")) == [b"%02d" % n * 10_000 for n in range(40)]


def test_a_closed_store_is_not_changed_by_being_copied(tmp_path: Path, closed: Path) -> None:
    before = snapshot(closed)
    back_up(closed, tmp_path / "backup")
    after = snapshot(closed)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= {str(closed / "holds"), str(closed / "holds" / "LOCK")}


def test_files_of_a_running_broker_are_not_copied(tmp_path: Path, closed: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, logstore.open(closed), hold(closed, "other"):
        server.bind(str(closed / "control.sock"))
        back_up(closed, tmp_path / "backup")
        assert (closed / "HINT").exists()
    assert not {"control.sock", "HINT", "holds"} & set(bytes_of(tmp_path / "backup"))


def test_a_catalog_on_a_server_is_backed_up_as_a_file(tmp_path: Path) -> None:
    for server in postgres.running_server():
        place = {"connect": server.url(), "catalog": "backed_up"}
        with logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT, **place) as store:
            store.declare_queue("last resort")
            store.declare_queue("orders", arguments={"ü": [1, None]}, dead_letter="last resort")
            store.delete_queue(store.declare_queue("gone"))
            store.declare_exchange("z alternate")
            store.declare_exchange("a", alternate="z alternate")
            store.bind("a", "orders", "k", arguments={"x": 1})
            store.bind("a", "last resort", "k")
            store.config["k"] = "v"
            store.publish("orders", b"content")
            store.backup(tmp_path / "backup")
            bindings, exchanges = store.bindings(), store.exchanges()
        said = run(
            "backup", tmp_path / "store", tmp_path / "second", "--connect", server.url(), "--catalog", "backed_up"
        )
        assert said.returncode == 0, said.stderr
    for name in ("backup", "second"):
        with logstore.open(tmp_path / name) as copy:  # the server is gone
            assert contents(copy.queue("orders")) == [b"content"]
            assert (copy.bindings(), copy.exchanges()) == (bindings, exchanges)
            assert copy.queue("orders").dead_letter == "last resort"
            assert copy.declare_queue("new").id == 4
            assert dict(copy.config) == {"k": "v"}


# ---- target


def test_a_target_that_is_in_use_is_refused_and_left_alone(tmp_path: Path, closed: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_bytes(b"mine")
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path)
    for target in ("full", "file", "link", "none/below", "closed", "closed/inside", "closed/holds/inside"):
        with pytest.raises(errors.OptionError, match="target|directory"):
            back_up(closed, tmp_path / target)
        assert run("backup", closed, tmp_path / target).returncode == 2
    assert snapshot(tmp_path) == before


def test_an_empty_directory_becomes_the_backup(tmp_path: Path, closed: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o755)
    back_up(closed, tmp_path / "empty")
    assert Reader(tmp_path / "empty").info.clean


def test_a_directory_without_a_store_cannot_be_backed_up(tmp_path: Path) -> None:
    with pytest.raises(errors.NotAStore):
        back_up(tmp_path, tmp_path / "backup")
    assert run("backup", tmp_path / "none", tmp_path / "backup").returncode == 3


def test_a_target_that_another_process_fills_meanwhile_is_left_alone(tmp_path: Path, closed: Path) -> None:
    target = tmp_path / "backup"

    def fill(done: int, total: int) -> None:
        target.mkdir(exist_ok=True)
        (target / "theirs").write_bytes(b"x")

    with pytest.raises(errors.StoreError, match="meanwhile"):
        back_up(closed, target, progress=fill)
    assert bytes_of(target) == {"theirs": b"x"}
    assert left_beside(target) == []


# ---- all or nothing


def killed_at(point: int | str, source: Path, target: Path) -> int:
    """Backs up in a child that kills itself at the n-th piece, or at the rename; how the child ended."""
    pid = os.fork()
    if pid == 0:
        pieces = 0

        def progress(done: int, total: int) -> None:
            nonlocal pieces
            pieces += 1
            if pieces == point:
                os.kill(os.getpid(), signal.SIGKILL)

        real = os.rename

        def rename(from_path: Any, to_path: Any) -> None:
            if point == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            real(from_path, to_path)
            os.kill(os.getpid(), signal.SIGKILL)

        try:
            if isinstance(point, str):
                os.rename = rename
            back_up(source, target, progress=progress)
        finally:
            os._exit(0)
    status = os.waitpid(pid, 0)[1]
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def test_a_kill_at_any_moment_leaves_nothing_or_a_complete_backup(tmp_path: Path, closed: Path) -> None:
    whole = bytes_of(back_up(closed, tmp_path / "whole").target)
    chance = random.Random(7)
    points: list[int | str] = ["before", "after", *sorted(chance.sample(range(1, 60), 8)), 10_000]
    ended = set()
    for point in points:
        target = tmp_path / f"killed{point}"
        ended.add(killed_at(point, closed, target))
        if target.exists():
            assert bytes_of(target) == whole
        else:
            assert len(left_beside(target)) == 1
            back_up(closed, target)  # clears away what the dead one left
            assert bytes_of(target) == whole
        assert left_beside(target) == []
        assert (tmp_path / "killedbefore").exists()
    assert ended == {-signal.SIGKILL, 0}
    with hold(closed, "last"):
        assert [one.name for one in list_holds(closed)] == ["last"]  # those of the dead are cleared away


def test_a_directory_with_such_a_name_that_no_backup_made_is_left_alone(tmp_path: Path, closed: Path) -> None:
    theirs = [tmp_path / ".b.backup-0123abcd", tmp_path / ".b.backup-old", tmp_path / ".b.backup-01234567"]
    for path in theirs:
        path.mkdir()
    (theirs[0] / "thesis.tex").write_bytes(b"mine")
    back_up(closed, tmp_path / "b")
    assert [path.exists() for path in theirs] == [True, True, False]  # the last is empty, as a dead one may leave it


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "open", "mkdir"])
def test_whichever_call_fails_nothing_or_a_complete_backup_is_left(
    tmp_path: Path, closed: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    whole = bytes_of(back_up(closed, tmp_path / "whole").target)
    real = getattr(os, call)
    nth, succeeded = 0, False
    while not succeeded:
        nth += 1
        left = nth

        def failing(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **options)

        target = tmp_path / f"failed{nth}"
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            try:
                back_up(closed, target)
                succeeded = left > 0
            except errors.StoreError as error:
                said = error.message
                assert str(target) in said or str(tmp_path) in said
        if target.exists():
            assert bytes_of(target) == whole
        assert left_beside(target) == []
        assert list_holds(closed) == []
        nth += nth // 8  # closely at first, then in strides
    assert nth > 1 or call == "mkdir"


def test_a_full_disk_is_reported_before_and_during_the_copy(
    tmp_path: Path, closed: Path, mounted_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = mounted_disk(1)
    with pytest.raises(errors.StoreError, match="make room"):
        back_up(closed, small / "backup")
    said = run("backup", closed, small / "backup", "--dry-run", "--json")
    plan = json.loads(said.stdout)
    assert said.returncode == 1
    assert plan["bytes"] > plan["free_bytes"]
    monkeypatch.setattr(module, "_free_bytes", lambda directory: 1 << 50)
    with pytest.raises(errors.StoreError, match="is full: make room"):
        back_up(closed, small / "backup")
    assert list(small.iterdir()) == []


def test_damage_stops_a_backup_with_its_place_and_nothing_is_left(tmp_path: Path, closed: Path) -> None:
    first = segment_files(closed)[0]
    raw = bytearray(first.read_bytes())
    raw[70_000] ^= 1
    first.write_bytes(raw)
    with pytest.raises(errors.CorruptLog, match="salvage") as caught:
        back_up(closed, tmp_path / "backup")
    assert caught.value.segment == first.name
    assert caught.value.offset <= 70_000
    said = run("backup", closed, tmp_path / "backup")
    assert said.returncode == 3
    assert "salvage" in said.stderr
    assert not (tmp_path / "backup").exists()
    assert left_beside(tmp_path / "backup") == []


def test_a_damaged_header_or_catalog_stops_a_backup(tmp_path: Path, closed: Path) -> None:
    for name, at in ((segment_files(closed)[1].name, 100), ("META", 100), ("catalog.sqlite", 30)):
        path = tmp_path / "damaged"
        shutil.copytree(closed, path)
        raw = bytearray((path / name).read_bytes())
        raw[at : at + 4000] = bytes(4000)
        (path / name).write_bytes(raw)
        with pytest.raises(errors.StoreError):
            back_up(path, tmp_path / "backup")
        assert not (tmp_path / "backup").exists()
        assert left_beside(tmp_path / "backup") == []
        shutil.rmtree(path)


def test_another_stores_catalog_is_not_backed_up(tmp_path: Path, closed: Path) -> None:
    with logstore.open(tmp_path / "another"):
        pass
    shutil.copy(tmp_path / "another" / "catalog.sqlite", closed / "catalog.sqlite")
    with pytest.raises(errors.CatalogMismatch):
        back_up(closed, tmp_path / "backup")
    (closed / "catalog.sqlite").unlink()
    with pytest.raises(errors.CatalogMismatch, match="missing"):
        back_up(closed, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_a_writer_too_fast_for_the_holds_limit_ends_the_backup(
    store: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logstore.inspect.reader.READ_AHEAD_BYTES", 0)
    queue = store.declare_queue("q")
    ids = store.publish_many(queue, [bytes(20_000)] * 100)
    overtaken = False

    def progress(done: int, total: int) -> None:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            store.dequeue_many(ids, queue)
            for _ in range(4):
                store.dequeue_many(store.publish_many(queue, [bytes(20_000)] * 60), queue)
                store.compact()

    with pytest.raises(LogRecycled, match="hold limit"):
        back_up(store.path, tmp_path / "backup", hold_limit_bytes=1, progress=progress)
    assert not (tmp_path / "backup").exists()
    report = store.backup(tmp_path / "backup")  # nothing is wrong with the store
    assert report.lsn > ids[-1]


# ---- pace, plan, command


def test_a_rate_is_respected_and_the_hold_renewed_meanwhile(
    tmp_path: Path, closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    renewed: list[float] = []
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", sleep)
    real = module.Hold.renew
    monkeypatch.setattr(module.Hold, "renew", lambda self: (renewed.append(now[0]), real(self)))
    report = back_up(closed, tmp_path / "backup", rate_bytes_s=5000)
    log = report.segments * SMALL_SEGMENT
    assert log / 5000 <= sum(slept) <= (log + 10_000) / 5000
    assert report.seconds == pytest.approx(sum(slept))
    assert len(renewed) >= 1


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
def test_an_invalid_rate_is_refused(tmp_path: Path, closed: Path, rate: float) -> None:
    with pytest.raises(errors.OptionError, match="rate"):
        back_up(closed, tmp_path / "backup", rate_bytes_s=rate)
    assert run("backup", closed, tmp_path / "backup", "--rate", rate).returncode == 2 or rate != rate


def test_a_dry_run_reports_the_size_and_writes_nothing(tmp_path: Path, closed: Path) -> None:
    before = snapshot(tmp_path)
    plan = plan_backup(closed, tmp_path / "backup")
    said = run("backup", closed, tmp_path / "backup", "--dry-run", "--json")
    told = json.loads(said.stdout)
    assert said.returncode == 0
    assert (told["bytes"], told["segments"], told["lsn"]) == (plan.bytes, plan.segments, plan.lsn)
    assert snapshot(tmp_path) == before
    assert run("backup", closed, tmp_path / "backup", "--dry-run").stdout.startswith("would be copied: ")
    report = back_up(closed, tmp_path / "backup")
    assert report.bytes <= plan.bytes
    assert plan.bytes - report.bytes < SMALL_SEGMENT


def test_the_command_reports_for_people_and_machines(tmp_path: Path, closed: Path) -> None:
    said = run("backup", closed, tmp_path / "one", "--json", "--rate", "500", "--hold-limit", "1G")
    told = json.loads(said.stdout)
    assert said.returncode == 0
    fields = {"store", "target", "dry_run", "lsn", "base_lsn", "bytes", "segments", "seconds", "hosts_left_out"}
    assert set(told) == fields
    assert told["bytes"] == sum(path.stat().st_size for path in (tmp_path / "one").iterdir())
    said = run("backup", closed, tmp_path / "two")
    assert said.returncode == 0
    assert f"below LSN {told['lsn']}" in said.stdout
    assert run("backup", closed, tmp_path / "one").returncode == 2


def test_a_backup_has_its_stores_uuid(tmp_path: Path, closed: Path) -> None:
    back_up(closed, tmp_path / "backup")
    with Reader(closed) as one, Reader(tmp_path / "backup") as two:
        assert one.info.uuid == two.info.uuid
        Catalog.open(tmp_path / "backup", store_uuid=one.info.uuid.bytes, read_only=True).close()
