"""Holds: the writer keeps the log for a reader, as long as the reader lives and within its limits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.command import run
from kit.patience import PATIENCE_S, wait_until
from kit.stores import ROOT, SMALL_SEGMENT, segment_files
from logstore import errors
from logstore.codec.files import Hold as HoldFile
from logstore.errors import OptionError
from logstore.holds import hold, list_holds
from logstore.inspect import LogRecycled, Reader, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore


OWNER = """
import sys, logstore.holds
held = logstore.holds.hold(sys.argv[1], "elsewhere")
print(held.lsn, flush=True)
sys.stdin.read()
"""


def churn(store: MessageStore, rounds: int = 1) -> None:
    """Publishes and consumes two segments per round."""
    queue = store.declare_queue("q")
    for _ in range(rounds):
        store.dequeue_many(store.publish_many(queue, [bytes(20_000)] * 55), queue)
        store.compact()


def first_of(path: Path, **options: Any) -> int:
    with Reader(path, **options) as reader:
        return next(reader.records()).lsn


def test_a_held_log_is_read_from_its_beginning_however_far_the_base_has_moved(store: MessageStore) -> None:
    with hold(store.path, "export") as held:
        first = held.lsn
        assert first == store.base_lsn
        published = store.publish_many(store.declare_queue("q"), [b"%d" % n for n in range(100)])
        store.dequeue_many(published, "q")
        churn(store, 3)
        assert store.base_lsn > first
        with Reader(store.path, hold=held) as reader:
            records = list(reader.records())
            assert reader.info.base_lsn == first
        assert records[0].lsn == first + 4096
        assert set(published) <= {record.lsn for record in records}
        assert first_of(store.path) == store.base_lsn + 4096  # the log itself begins at its base
    churn(store)
    assert store.stats()["held_segments"] == 0
    with pytest.raises(LogRecycled, match="passed it"):
        hold(store.path, "late", lsn=first)


def test_another_process_reads_the_held_log_with_the_holds_lsn(open_store: Callable[..., Any]) -> None:
    store = open_store()
    first = store.base_lsn
    with hold(store.path, "planner", limit_bytes=1 << 40):
        churn(store, 3)
        assert store.base_lsn > first
        with Reader(store.path, keep_lsn=first) as reader:
            assert reader.info.base_lsn == first
            assert next(reader.records()).lsn == first + 4096
        store.close()
        assert first_of(store.path, keep_lsn=first) == first + 4096
        with Reader(store.path) as searched:
            end = searched.info.end_lsn
        with Reader(store.path, keep_lsn=first, end_lsn=end) as reader:
            assert reader.info.base_lsn == first
            assert max(record.lsn + record.length for record in reader.records()) == end
    with pytest.raises(OptionError, match="end_lsn stands with keep_lsn"):
        first_of(store.path, end_lsn=end)
    with (
        pytest.raises(OptionError, match="no batch ends"),
        Reader(store.path, keep_lsn=first, end_lsn=end - 8) as wrong,
    ):
        list(wrong.records())
    store = open_store()
    churn(store, 4)
    for _ in range(2):
        with pytest.raises(LogRecycled):
            first_of(store.path, keep_lsn=first)
        store.close()


def test_a_log_kept_by_another_hold_can_be_held_too_and_outlives_that_hold(store: MessageStore) -> None:
    with hold(store.path, "first", limit_bytes=1 << 40) as first:
        lsn = first.lsn
        churn(store, 3)
        assert store.base_lsn > lsn
        later = store.base_lsn - SMALL_SEGMENT
        with hold(store.path, "second", lsn=lsn, limit_bytes=1 << 40) as second:
            assert second.lsn == lsn
            with hold(store.path, "third", lsn=later, limit_bytes=1 << 40) as third:
                assert third.lsn == later
            first.release()
            churn(store, 3)
            assert first_of(store.path, hold=second) == lsn + 4096
    churn(store)
    with hold(store.path, "higher", limit_bytes=1 << 40):
        churn(store, 2)
        with pytest.raises(LogRecycled, match="passed it"):
            hold(store.path, "late", lsn=lsn)  # nothing keeps that part


def test_rows_about_records_below_a_hold_do_not_depend_on_recycling(store: MessageStore) -> None:
    arrow = pytest.importorskip("logstore.arrow")
    pytest.importorskip("pyarrow")
    queue = store.declare_queue("q")
    before = store.publish_many(queue, [bytes(20_000)] * 110)
    with hold(store.path, "held", lsn=store.next_lsn, limit_bytes=1 << 40) as held:
        after = store.publish_many(queue, [bytes(20_000)] * 3)
        store.dequeue_many([*before[:50], *after], queue)
        stop = store.durable_lsn
        columns = ["lsn", "id", "type", "enqueue_lsn", "enqueue_time"]

        def rows() -> Any:
            return arrow.read(store.path, start_lsn=held.lsn, stop_lsn=stop, columns=columns, hold=held, batch_rows=1)

        early, late = rows().read_all(), rows()  # this one is read after the log below the hold is gone
        store.dequeue_many(before[50:], queue)
        churn(store, 4)
        assert not (store.path / segment_name(before[0], SMALL_SEGMENT)).exists()
        assert store.base_lsn > held.lsn
        assert late.read_all() == early == rows().read_all()
        told = {row["id"]: row["enqueue_lsn"] for row in early.to_pylist() if row["type"] == "MESSAGE_DEQUEUE"}
        assert told == dict.fromkeys(before[:50]) | {key: key for key in after}


def test_an_error_names_a_hold_only_if_it_kept_no_longer(store: MessageStore) -> None:
    store.publish_many(store.declare_queue("q"), [bytes(20_000)] * 55)

    def unread(**options: Any) -> str:
        reader = Reader(store.path, **options)
        churn(store, 4)
        with reader, pytest.raises(LogRecycled) as failed:
            list(reader.batches())
        return failed.value.message

    assert "no hold was taken" in unread()
    keep = store.base_lsn
    assert f"from LSN {keep} on no hold keeps it" in unread(keep_lsn=keep)
    with hold(store.path, "above", lsn=store.next_lsn + SMALL_SEGMENT, limit_bytes=1 << 40) as held:
        said = unread(hold=held)
        assert f"below LSN {held.lsn}, from which on the hold above keeps it" in said
    with hold(store.path, "small", limit_bytes=1) as held:
        assert re.search("since the hold small is (over its limit|overtaken)", unread(hold=held))


def test_a_hold_from_the_end_of_an_epoch_keeps_the_next_epoch(open_store: Callable[..., Any]) -> None:
    store = open_store()
    store.publish(store.declare_queue("q"), b"")
    store.close()
    with Reader(store.path) as reader:
        end = reader.info.end_lsn
    kept = end + SMALL_SEGMENT  # between the two epochs no file has a name
    with hold(store.path, "follower", lsn=kept, limit_bytes=1 << 40) as held:
        store = open_store()
        store.dequeue_many([message.id for message in store.queue("q").browse()], "q")
        churn(store, 4)
        assert store.base_lsn > kept
        with Reader(store.path, hold=held) as reader, Reader(store.path, keep_lsn=kept) as other:
            records = list(reader.records())
            assert [one.lsn for one in records] == [one.lsn for one in other.records()]
            assert kept < records[0].lsn < store.base_lsn


def test_a_hold_is_listed_with_its_owner_and_its_kept_bytes(store: MessageStore) -> None:
    assert list_holds(store.path) == []
    before = datetime.now(UTC)
    with hold(store.path, "a.b-c_d", limit_bytes=1 << 33, expires_s=600) as held:
        assert (held.name, held.limit_bytes) == ("a.b-c_d", 1 << 33)
        churn(store, 3)
        (listed,) = list_holds(store.path)
        assert (listed.name, listed.lsn, listed.limit_bytes) == ("a.b-c_d", held.lsn, 1 << 33)
        assert listed.state == "honoured"
        assert listed.honoured
        assert listed.alive
        stats = store.stats()
        assert stats["holds"] == 1
        assert 0 < stats["held_bytes"] == stats["held_segments"] * SMALL_SEGMENT <= listed.kept_bytes
        assert abs((listed.created - before).total_seconds()) < PATIENCE_S
        assert (listed.expires - listed.created).total_seconds() == pytest.approx(600)
        assert listed.age_s + listed.left_s == pytest.approx(600, abs=0.1)
        assert listed.pid in (os.getpid(), None)
    assert list_holds(store.path) == []
    assert store.stats()["holds"] == 0


def test_the_kernel_names_the_process_that_owns_a_hold(store: MessageStore) -> None:
    with hold(store.path, "a"):
        (listed,) = list_holds(store.path)
    if listed.pid is None:
        pytest.skip("SKIPPED LOUDLY: /proc/locks shows no owner here; naming the owner was NOT tried")
    assert listed.pid == os.getpid()


def test_a_hold_ends_with_its_process_and_its_segments_are_reused(store: MessageStore) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(store.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert owner.stdout is not None
    first = int(owner.stdout.readline())
    name = f"{first:016x}.seg"
    churn(store, 4)
    assert (store.path / name).exists()
    (listed,) = list_holds(store.path)
    assert listed.pid in (owner.pid, None)
    with pytest.raises(errors.StoreError, match="belongs to a running process"):
        hold(store.path, "elsewhere")
    owner.send_signal(signal.SIGKILL)
    owner.wait(PATIENCE_S)
    assert [each.state for each in list_holds(store.path)] == ["abandoned"]
    store.compact()  # the log itself is idle
    assert not (store.path / name).exists()
    assert list_holds(store.path) == []
    with hold(store.path, "elsewhere"):
        pass


def test_advancing_a_hold_releases_the_log_below_it(store: MessageStore) -> None:
    with hold(store.path, "a") as held:
        first = held.lsn
        churn(store, 3)
        kept = list_holds(store.path)[0].kept_bytes
        held.advance(first + 2 * SMALL_SEGMENT)
        assert held.lsn == first + 2 * SMALL_SEGMENT
        assert list_holds(store.path)[0].kept_bytes == kept - 2 * SMALL_SEGMENT
        store.compact()
        assert not (store.path / f"{first:016x}.seg").exists()
        with pytest.raises(errors.OptionError, match="cannot go back"):
            held.advance(first)
        held.renew(7200)
        assert list_holds(store.path)[0].left_s > 7000


def test_a_hold_whose_time_has_run_out_keeps_nothing_and_says_so(store: MessageStore) -> None:
    with hold(store.path, "a", expires_s=0.01) as held:
        first = held.lsn
        wait_until(lambda: list_holds(store.path)[0].state == "expired")
        churn(store, 3)
        assert not (store.path / f"{first:016x}.seg").exists()
        with pytest.raises(LogRecycled), Reader(store.path, hold=held) as reader:
            list(reader.records())
        with pytest.raises(LogRecycled, match="run out"):
            held.renew()
        assert list_holds(store.path)[0].state == "overtaken"


def test_a_hold_over_its_limit_is_dropped_and_starves_nobody(store_dir: Path, open_store: Callable[..., Any]) -> None:
    store = open_store(max_log_bytes=6 * SMALL_SEGMENT)
    with hold(store_dir, "greedy", limit_bytes=2 * SMALL_SEGMENT), hold(store_dir, "fine") as fine:
        churn(store, 12)  # no StoreFull, though the second hold keeps several times max_log_bytes
        assert store.stats()["held_bytes"] > 2 * 6 * SMALL_SEGMENT
        states = {each.name: each for each in list_holds(store_dir)}
        assert states["greedy"].state == "over its limit"
        assert states["greedy"].kept_bytes == 0
        assert states["fine"].honoured
        assert first_of(store_dir, hold=fine) == fine.lsn + 4096
        counted = store.stats()
        assert counted["log_bytes"] - counted["held_bytes"] <= 6 * SMALL_SEGMENT
    store.compact()
    assert len(segment_files(store_dir)) <= 6


def test_segments_kept_by_holds_cause_no_relocation(store: MessageStore) -> None:
    store.publish(store.declare_queue("stuck"), bytes(20_000))
    queue = store.declare_queue("q")

    def moved() -> int:
        """The number of segments relocated while twenty segments are published and consumed."""
        before = store.stats()["segments_relocated"]
        for _ in range(50):
            store.dequeue_many(store.publish_many(queue, [bytes(20_000)] * 10), queue)
        return int(store.stats()["segments_relocated"]) - before

    moved()
    without = moved()
    with hold(store.path, "a"):
        moved()
        assert store.stats()["held_segments"] >= 10
        assert moved() <= 1.5 * without + 3


def test_a_hold_outlives_the_writers_that_come_and_go(store_dir: Path, open_store: Callable[..., Any]) -> None:
    with open_store() as store:
        store.publish(store.declare_queue("q"), b"first")
    with hold(store_dir, "a") as held:
        for _ in range(2):
            with open_store() as store:
                store.queue("q").purge()
                churn(store, 3)
                assert store.base_lsn > held.lsn
        with Reader(store_dir, hold=held) as reader:
            assert reader.info.base_lsn == held.lsn
            assert b"first" in [getattr(record.body, "content", b"") for record in reader.records()]
            assert reader.info.state == "closed"


@pytest.mark.parametrize("name", ["", "a/b", "..\x00", "ä", "a b", "x" * 65, "a\n"])
def test_an_invalid_name_never_becomes_a_path(store: MessageStore, name: str) -> None:
    with pytest.raises(errors.OptionError, match="name"):
        hold(store.path, name)
    assert list((store.path / "holds").iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"limit_bytes": 0},
        {"limit_bytes": True},
        {"limit_bytes": 1 << 63},
        {"expires_s": 0},
        {"expires_s": float("nan")},
        {"expires_s": 1e12},
        {"lsn": 0},
        {"lsn": 1 << 63},
        {"lsn": "1"},
    ],
)
def test_numbers_out_of_range_are_refused(store: MessageStore, options: dict[str, Any]) -> None:
    with pytest.raises(errors.OptionError):
        hold(store.path, "a", **options)
    assert list((store.path / "holds").iterdir()) == []


def test_a_directory_that_is_no_store_has_no_holds(tmp_path: Path) -> None:
    for call in (lambda: hold(tmp_path / "none", "a"), lambda: list_holds(tmp_path)):
        with pytest.raises(errors.NotAStore):
            call()


def test_a_released_hold_says_so(store: MessageStore) -> None:
    held = hold(store.path, "a")
    held.release()
    held.release()
    with pytest.raises(errors.StoreClosed):
        held.advance(1 << 40)
    with pytest.raises(errors.StoreClosed):
        Reader(store.path, hold=held)


def test_a_hold_on_another_store_is_refused(store: MessageStore, tmp_path: Path) -> None:
    with hold(store.path, "a") as held, pytest.raises(errors.OptionError, match="not on"):
        Reader(tmp_path / "elsewhere", hold=held)


def test_a_forked_child_cannot_use_its_parents_hold(store_dir: Path) -> None:
    logstore.open(store_dir, segment_size=SMALL_SEGMENT).close()
    held = hold(store_dir, "a")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            held.renew()
        except errors.StoreForked:
            held.release()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert [each.state for each in list_holds(store_dir)] == ["honoured"]
    held.release()


def test_damaged_and_foreign_holds_are_listed_as_such(store: MessageStore) -> None:
    import fcntl
    from uuid import UUID

    far = (datetime.now(UTC).timestamp() + 1000) * 1_000_000
    foreign = HoldFile(UUID(int=1), store.base_lsn, 1, int(far), 1).encode()
    files = []
    for name, content in (("damaged", b"LSTRHOLD rubbish"), ("foreign", foreign)):
        path = store.path / "holds" / f"{name}.hold"
        path.write_bytes(content)
        files.append(path.open("r+b"))
        fcntl.flock(files[-1], fcntl.LOCK_EX)
    assert [(each.name, each.state) for each in list_holds(store.path)] == [
        ("damaged", "damaged"),
        ("foreign", "of another store"),
    ]
    assert store.stats()["holds"] == 0
    for file in files:
        file.close()


# ---- the command


def test_the_command_lists_holds_for_people_and_machines(store: MessageStore) -> None:
    said = run("holds", store.path)
    assert (said.returncode, said.stdout) == (0, "there are no holds\n")
    with hold(store.path, "export", limit_bytes=1 << 30) as held:
        churn(store, 3)
        said = run("holds", store.path)
        assert said.returncode == 0
        assert "export" in said.stdout
        assert "honoured" in said.stdout
        (listed,) = json.loads(run("holds", store.path, "--json").stdout)["holds"]
        assert (listed["name"], listed["lsn"], listed["state"]) == ("export", held.lsn, "honoured")
        assert listed["kept_bytes"] > 0
    assert json.loads(run("holds", store.path, "--json").stdout) == {"store": str(store.path), "holds": []}


def test_the_command_reports_a_directory_that_is_no_store(tmp_path: Path) -> None:
    said = run("holds", tmp_path)
    assert said.returncode == 3
    assert said.stderr.count("\n") == 1
    assert str(tmp_path) in said.stderr
