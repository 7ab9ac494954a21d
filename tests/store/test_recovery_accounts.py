"""The report of recovery: everything that it drops, rolls back or completes is counted once and correctly.

The process of every store here was killed. The dry run uses the second decoder and its own replay, so the two reports
check each other.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from kit.stores import contents
from logstore import cli
from logstore.codec.records import QueueDelete, RecordType
from logstore.core.reports import DroppedQueue, Staged
from logstore.holds import Hold, hold
from logstore.inspect import Reader

Open = Callable[..., logstore.MessageStore]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

NOTHING_DONE = {
    "transactions_abandoned": 0,
    "queues_dropped": 0,
    "places_dropped": 0,
}

NAMES = ("staged", "abandoned", "dropped_queues")

START = """
import os, signal, sys, logstore
from logstore import Xid
store = logstore.open(sys.argv[1], segment_size=512 << 10)

def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(run_python: Run, store_dir: Path) -> Callable[..., Path]:
    """A process works on the store, makes everything durable, and is killed, at the latest at the end."""

    def run(work: str) -> Path:
        done = run_python(START + work + "\nstore.force()\ndie()", store_dir)
        assert done.returncode == -signal.SIGKILL, done.stderr
        return store_dir

    return run


def told(capfd: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """The output of ``logstore recover`` as JSON."""
    capfd.readouterr()
    status = cli.run(["recover", *map(str, arguments), "--json"])
    said, complaint = capfd.readouterr()
    assert (status, complaint) == (0, "")
    return json.loads(said)


def accounts(path: Path, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The report of a recovery; checks that its dry run reported the same."""
    foretold = told(capfd, path, "--dry-run")
    report = told(capfd, path)
    for name in foretold.keys() - {"dry_run", "bytes_read"}:
        assert report[name] == foretold[name], name
    return dict(report)


def logged(path: Path, kind: RecordType, held: Hold | None = None) -> list[Any]:
    """The records of one type, also those below the base that the hold keeps."""
    with Reader(path, hold=held) as reader:
        return [record for record in reader.records() if record.type is kind]


def of_nothing(report: dict[str, Any]) -> dict[str, Any]:
    return {name: report[name] for name in NOTHING_DONE}


# ---- Queues that are missing in the catalog

HALF_DELETED = """
gone, kept, empty = (store.declare_queue(name) for name in ("gone", "kept", "empty"))
store.publish_many(gone, [b"%d" % n for n in range(10)])
store.publish([gone, kept], b"on both")
store.delete_queue(empty)
store._end = lambda queue: die()  # what comes between the catalog's commit and the log's record
store.delete_queue(gone)
"""


def test_a_kill_between_the_catalogs_deletion_and_the_logs_is_finished_and_accounted_for(
    killed: Callable[..., Path], open_store: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    path = killed(HALF_DELETED)
    assert [record.body for record in logged(path, RecordType.QUEUE_DELETE)] == [QueueDelete(3)]
    report = accounts(path, capfd)
    assert (report["queues_dropped"], report["places_dropped"]) == (1, 11)
    assert (report["messages"], report["places"]) == (1, 1)
    assert [record.body for record in logged(path, RecordType.QUEUE_DELETE)] == [QueueDelete(3), QueueDelete(1)]
    assert of_nothing(accounts(path, capfd)) == NOTHING_DONE
    store = open_store()
    assert [queue.name for queue in store.queues()] == ["kept"]
    assert contents(store.queue("kept")) == [b"on both"]
    assert store.declare_queue("gone").id == 4
    assert store.queue("gone").depth == 0


def test_a_kill_right_after_recovery_leaves_the_deletion_finished(
    killed: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    killed(HALF_DELETED)
    path = killed("assert store.recovery.places_dropped == 11; die()")
    assert of_nothing(accounts(path, capfd)) == NOTHING_DONE


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_half_deleted_queue_with_nothing_but_work_in_doubt_is_finished_and_the_outcome_changes_nothing_on_it(
    outcome: str, killed: Callable[..., Path], open_store: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    path = killed("""
gone, kept = store.declare_queue("gone"), store.declare_queue("kept")
transaction = store.begin(Xid(7, b"global"))
store.publish(gone, b"never seen", transaction=transaction)
store.publish([gone, kept], b"seen on one", transaction=transaction)
transaction.end()
transaction.prepare()
store._end = lambda queue: die()
store.delete_queue(gone)
""")
    report = accounts(path, capfd)
    assert (report["queues_dropped"], report["places_dropped"], report["transactions_in_doubt"]) == (1, 0, 1)
    assert [record.body for record in logged(path, RecordType.QUEUE_DELETE)] == [QueueDelete(1)]
    store = open_store()
    assert store.recovery.queues_dropped == 0
    [transaction] = store.in_doubt()
    getattr(transaction, outcome)()
    assert contents(store.queue("kept")) == ([b"seen on one"] if outcome == "commit" else [])
    assert store.stats()["messages"] == store.queue("kept").depth
    store.close()
    assert of_nothing(accounts(path, capfd)) == NOTHING_DONE


IN_DOUBT_ON_GONE = """
gone, kept = store.declare_queue("gone"), store.declare_queue("kept")
both = store.publish([gone, kept], b"on both")
alone = store.publish(gone, b"on one")
transaction = store.begin(Xid(7, b"global"))
store.publish(gone, b"published", transaction=transaction)
store.enqueue(store.stage(b"header", b"staged"), gone, transaction)
store.publish([gone, kept], b"published on both", transaction=transaction)
store.dequeue(both, gone, transaction)
store.dequeue(alone, gone, transaction)
transaction.end()
transaction.prepare()
store._end = lambda queue: die()
store.delete_queue(gone)
"""


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_the_open_that_finishes_a_deletion_drops_what_only_work_in_doubt_on_that_queue_kept(
    outcome: str, killed: Callable[..., Path], open_store: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    path = killed(IN_DOUBT_ON_GONE)
    foretold = told(capfd, path, "--dry-run")
    store = open_store()
    assert store.recovery.queues_dropped == 1
    assert (store.recovery.places_dropped, foretold["places_dropped"]) == (2, 2)
    assert (store.recovery.staged_dropped, foretold["staged_dropped"]) == (1, 1)
    assert (store.recovery.messages, foretold["messages"]) == (2, 2)
    assert store.stats()["messages"] == 2
    [transaction] = store.in_doubt()
    getattr(transaction, outcome)()
    assert contents(store.queue("kept")) == [b"on both", *([b"published on both"] if outcome == "commit" else [])]
    assert store.stats()["messages"] == store.queue("kept").depth
    store.close()
    assert of_nothing(accounts(path, capfd)) == NOTHING_DONE


def test_a_reader_beside_the_store_that_finished_a_deletion_agrees_with_its_checkpoint(
    killed: Callable[..., Path], open_store: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    """The log does not say whether the open or a later call deleted the queue, and only the open drops such work."""
    path = killed(IN_DOUBT_ON_GONE)
    store = open_store()
    store.checkpoint()
    assert cli.run(["verify", str(path)]) == 0, capfd.readouterr()
    store.publish(store.queue("kept"), b"later")
    store.checkpoint()
    assert cli.run(["verify", str(path)]) == 0, capfd.readouterr()


def test_a_place_that_only_an_abandoned_transaction_made_is_not_counted_as_dropped(
    killed: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    path = killed("""
gone = store.declare_queue("gone")
transaction = store.begin()
store.publish(gone, b"abandoned", transaction=transaction)
store.force()
store._end = lambda queue: die()
store.delete_queue(gone)
""")
    report = accounts(path, capfd)
    assert (report["transactions_abandoned"], report["places_dropped"]) == (1, 0)
    assert report["messages"] == 0


# ---- Transactions


def test_every_transaction_is_in_one_of_four_accounts(
    killed: Callable[..., Path], open_store: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    path = killed("""
queue = store.declare_queue("q")
store.publish_many(queue, [b"%d" % n for n in range(6)])
taken = [message.id for message in store.messages(queue)]

def work(n, xid=None):
    transaction = store.begin(xid)
    store.publish(queue, b"new %d" % n, transaction=transaction)
    store.dequeue(taken[n], queue, transaction)
    return transaction

work(0).commit()
work(1).rollback()
left = [work(2), work(3, Xid(1, b"active"))]
left.append(work(4, Xid(1, b"ended")))
left[-1].end()
prepared = work(5, Xid(1, b"prepared", b"b"))
prepared.end()
prepared.prepare()
""")
    with hold(path, "rollbacks") as held:  # an open may relocate what lives and advance the base
        report = accounts(path, capfd)
        names = ("committed", "rolled_back", "abandoned", "in_doubt")
        assert [report[f"transactions_{name}"] for name in names] == [1, 1, 3, 1]
        assert [one["xid"] for one in report["in_doubt"]] == ["1:7072657061726564:62"]
        assert (report["messages"], report["places"]) == (7, 6)
        again = accounts(path, capfd)
        assert [again[f"transactions_{name}"] for name in names] == [1, 4, 0, 1]
        assert len({record.id for record in logged(path, RecordType.TX_ROLLBACK, held)}) == 4
    assert contents(open_store().queue("q")) == [b"1", b"2", b"3", b"4", b"5", b"new 0"]


# ---- Orphans


def test_a_message_that_was_staged_and_never_enqueued_is_dropped_and_counted_with_its_content(
    killed: Callable[..., Path], open_store: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    path = killed("""
queue = store.declare_queue("q")
store.stage(b"header")
for _ in range(3):
    store.append_content(store.stage(b"", bytes(5000)), bytes(40_000))
store.destroy(store.stage())
enqueued = store.stage(b"", b"kept")
store.enqueue(enqueued, queue)
staged_again = store.begin()
store.enqueue(store.stage(b"", b"its enqueue is undone"), queue, staged_again)
published = store.begin()
store.publish(queue, b"goes with its transaction", transaction=published)
in_doubt = store.begin(Xid(1, b"g"))
store.enqueue(store.stage(b"", b"waits for the outcome"), queue, in_doubt)
in_doubt.end()
in_doubt.prepare()
""")
    report = accounts(path, capfd)
    assert report["staged_dropped"] == 5
    assert report["transactions_abandoned"] == 2
    assert (report["messages"], report["places"]) == (2, 1)
    store = open_store()
    store.in_doubt()[0].commit()
    assert contents(store.queue("q")) == [b"kept", b"waits for the outcome"]


def test_records_of_chains_that_began_below_the_base_are_counted_and_do_no_harm(
    killed: Callable[..., Path], open_store: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    path = killed("""
queue = store.declare_queue("q")
old = store.publish_many(queue, [b"old"] * 5)
ended = store.begin()
store.publish(queue, b"old too", transaction=ended)
store.publish_many(queue, [bytes(20_000) for _ in range(60)])
first = store.tail().segments[0].first_lsn
store.publish(queue, b"kept")
ended.commit()
for message in list(store.messages(queue))[:-2]:
    store.dequeue(message.id, queue)
store.dequeue([message.id for message in store.messages(queue) if message.content == b"old too"][0], queue)
store.compact()
assert store.base_lsn > first
""")
    with Reader(path) as reader:
        base = reader.info.base_lsn
        left = Counter(record.type for record in reader.records() if 0 < record.id < base)
    notes = {RecordType.MESSAGE_DELETE, RecordType.TX_DELETE}  # ends that are known without these records
    counted = {kind: count for kind, count in left.items() if kind not in notes}
    assert counted[RecordType.MESSAGE_DEQUEUE] > 0
    assert counted[RecordType.TX_COMMIT] == 1
    report = accounts(path, capfd)
    assert report["orphans"] == sum(counted.values())
    assert report["orphan_transactions"] == counted[RecordType.TX_COMMIT]
    assert report["orphan_messages"] == report["orphans"] - report["orphan_transactions"]
    assert (report["messages"], report["places"], report["transactions_committed"]) == (1, 1, 0)
    assert contents(open_store().queue("q")) == [b"kept"]


def test_a_torn_tail_is_counted_and_the_log_before_it_is_kept(
    killed: Callable[..., Path], open_store: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    path = killed("""
queue = store.declare_queue("q")
for n in range(3):
    store.publish(queue, b"%d" % n * 5000)
""")
    with Reader(path) as reader:
        last = list(reader.batches())[-1]
    with (path / f"{last.first_lsn:016x}.seg").open("r+b") as file:
        file.seek(last.lsn - last.first_lsn + 3000)
        file.write(b"not what was written")
    report = accounts(path, capfd)
    assert report["torn_bytes"] == len(last.raw)
    assert report["end_lsn"] == last.lsn
    assert report["messages"] == 2
    assert accounts(path, capfd)["torn_bytes"] == 0


# ---- The report itself


def test_everything_that_recovery_ends_is_named(
    killed: Callable[..., Path], open_store: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    path = killed("""
kept, gone, gone_too = (store.declare_queue(name) for name in ("kept", "gone", "gone too"))
store.publish_many(gone, [b"1", b"2", b"3"])
store.publish([kept, gone_too], b"both")
store.append_content(store.stage(b"header", b"123"), b"4567")
store.stage()
local, branch = store.begin(), store.begin(Xid(5, b"global", b"branch"))
for transaction in (local, branch, branch):
    store.publish(kept, b"undone", transaction=transaction)
in_doubt = store.begin(Xid(6, b"global"))
in_doubt.end()
in_doubt.prepare()
store.force()
for queue in (gone, gone_too):
    store._catalog.delete_queue(queue.id)
""")
    with Reader(path) as reader:
        records = list(reader.records())
    started = {record.type: record.id for record in records}
    starts = [record.id for record in records if record.type is RecordType.MESSAGE_START]
    foretold = told(capfd, path, "--dry-run")
    capfd.readouterr()
    assert cli.run(["recover", str(path), "--dry-run"]) == 0
    lines = capfd.readouterr().out.splitlines()
    store = open_store()
    report = store.recovery
    assert report.dropped_queues == (DroppedQueue(2, 3), DroppedQueue(3, 1))
    assert report.staged == (Staged(starts[4], 7), Staged(starts[5], 0))
    [local, branch] = report.abandoned
    assert (local.id, local.xid, local.operations) == (started[RecordType.TX_START], None, 1)
    assert (branch.xid, branch.operations) == (logstore.Xid(5, b"global", b"branch"), 2)
    assert (report.operations_undone, report.staged_bytes) == (3, 7)
    dropped = [{"id": 2, "places": 3, "transient": False}, {"id": 3, "places": 1, "transient": False}]
    assert foretold["dropped_queues"] == dropped
    assert foretold["staged"] == [{"id": one.id, "content_bytes": one.content_bytes} for one in report.staged]
    assert foretold["abandoned"] == [
        {"id": local.id, "xid": None, "operations": 1},
        {"id": branch.id, "xid": "5:676c6f62616c:6272616e6368", "operations": 2},
    ]
    for line in (
        "dropped: 3 places on queue 2, which was deleted",
        f"dropped: message {starts[4]}, never enqueued, 7 bytes",
        f"rolled back: transaction {local.id}, local, 1 operation",
        f"rolled back: transaction {branch.id}, xid 5:676c6f62616c:6272616e6368, 2 operations",
        f"in doubt: transaction {store.in_doubt()[0].id}, xid 6:676c6f62616c:",
    ):
        assert line in lines


def test_a_thousand_staged_messages_are_named_and_all_are_counted(
    killed: Callable[..., Path], open_store: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    path = killed("for _ in range(1500): store.stage()")
    assert len(told(capfd, path, "--dry-run")["staged"]) == 1000
    capfd.readouterr()
    assert cli.run(["recover", str(path), "--dry-run"]) == 0
    assert capfd.readouterr().out.count("never enqueued") < 100
    report = open_store().recovery
    assert (report.staged_dropped, len(report.staged)) == (1500, 1000)


def test_the_library_and_the_command_report_the_same(
    killed: Callable[..., Path], open_store: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    more = "store.stage(); transaction = store.begin(); store.force()"
    path = killed(HALF_DELETED.replace("store.delete_queue(empty)", more))
    foretold = told(capfd, path, "--dry-run")
    report = open_store().recovery
    assert (report.staged_dropped, report.transactions_abandoned, report.queues_dropped) == (1, 1, 1)
    for name in foretold.keys() - {"store", "dry_run", "bytes_read", "in_doubt", *NAMES}:
        assert getattr(report, name) == foretold[name], name
    assert report.total_us >= report.scan_us + report.transactions_us + report.messages_us > 0


def test_a_store_that_was_closed_has_nothing_to_account_for(
    open_store: Open, store_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = open_store()
    store.publish(store.declare_queue("q"), b"one")
    store.begin()
    store.close()
    report = accounts(store_dir, capfd)
    assert report["clean"]
    assert of_nothing(report) == NOTHING_DONE
    assert (report["staged_dropped"], report["orphans"], report["torn_bytes"]) == (0, 0, 0)
    assert report["transactions_rolled_back"] == 1, "closing rolls back what is open, and says so in the log"


def test_the_text_report_has_each_account_on_its_own_line(
    killed: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    path = killed(HALF_DELETED)
    capfd.readouterr()
    assert cli.run(["recover", str(path), "--dry-run"]) == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    for line in ("places dropped 11", "queues dropped 1", "staged dropped 0", "transactions abandoned 0", "orphans 0"):
        assert line.split() in lines
