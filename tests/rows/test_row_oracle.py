"""The oracle of the rows is itself right: compared with known operations on a store, counted by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.killed import and_then_killed
from kit.row_oracle import EPOCH, MESSAGE_COLUMNS, OPEN_COLUMNS, message_rows, record_rows
from logstore.core.xid import Xid
from logstore.holds import hold

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT = 512 << 10


def by_id(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row for row in rows}


def only(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The only row with these values."""
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    assert len(found) == 1
    return found[0]


@pytest.fixture
def store_dir(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_publish_and_its_dequeue_are_two_records_and_one_message(store_dir: Path) -> None:
    with logstore.open(store_dir, segment_size=SEGMENT) as store:
        queue = store.declare_queue("orders")
        message = store.publish(queue, b"content", header=b"head")
        queue.acquire()[0].release()
        queue.acquire()[0].accept()
    rows = record_rows(store_dir)
    start = only(rows, type="MESSAGE_START")
    dequeue = only(rows, type="MESSAGE_DEQUEUE")
    assert (start["lsn"], start["id"], start["prev"], start["stream"]) == (message, message, None, "message")
    assert (start["queue_id"], start["queue"], start["queue_count"], start["queue_ids"]) == (1, "orders", 1, [1])
    assert (start["header"], start["header_bytes"], start["content_bytes"], start["content_offset"]) == (
        b"head",
        4,
        7,
        0,
    )
    assert (start["inline_enqueue"], start["deletes"], start["tx_id"], start["outcome"]) == (True, False, None, None)
    assert (start["effect_lsn"], start["effect_time"]) == (message, start["time"])
    assert (dequeue["id"], dequeue["prev"], dequeue["deletes"]) == (message, message, True)
    assert (dequeue["enqueue_lsn"], dequeue["enqueue_time"]) == (message, start["time"])
    assert (dequeue["delivery_count"], dequeue["redelivered"]) == (2, True)
    assert {row["type"] for row in rows} >= {"BATCH", "CLOSE"}
    assert all(row["stream"] == "log" and row["id"] is None for row in rows if row["type"] in ("BATCH", "CLOSE"))
    assert all(row["time"] > EPOCH and row["segment"] == SEGMENT for row in rows)
    assert [row["lsn"] for row in rows] == sorted({row["lsn"] for row in rows})

    (closed,), left = message_rows(store_dir)
    assert left == []
    assert list(closed) == MESSAGE_COLUMNS
    assert (closed["id"], closed["queue"], closed["outcome"], closed["end_lsn"]) == (
        message,
        "orders",
        "dequeued",
        dequeue["lsn"],
    )
    assert (closed["enqueue_lsn"], closed["dequeue_lsn"], closed["place_count"]) == (message, dequeue["lsn"], 1)
    assert (closed["record_count"], closed["record_bytes"]) == (2, start["record_bytes"] + dequeue["record_bytes"])
    assert (closed["header_bytes"], closed["content_bytes"], closed["delivery_count"]) == (4, 7, 2)
    assert closed["whole"] is True


def test_body_is_cut_and_rows_are_those_from_start_to_before_stop(store_dir: Path) -> None:
    with logstore.open(store_dir, segment_size=SEGMENT) as store:
        queue = store.declare_queue("orders")
        ids = store.publish_many(queue, [b"content %d" % number for number in range(5)])
    assert [row["lsn"] for row in record_rows(store_dir, ids[1], ids[4])] == list(ids[1:4])
    starts = [row for row in record_rows(store_dir, body=3) if row["type"] == "MESSAGE_START"]
    assert [row["body"] for row in starts] == [b"con"] * 5
    assert [row["content_bytes"] for row in starts] == [9] * 5


def test_work_of_a_transaction_takes_effect_at_its_outcome_and_not_at_all_without_one(store_dir: Path) -> None:
    with logstore.open(store_dir, segment_size=SEGMENT) as store:
        one, two = store.declare_queue("one"), store.declare_queue("two")
        kept = store.publish(one, b"kept")
        with store.transaction() as tx:
            committed = store.publish(two, b"committed", transaction=tx)
            store.dequeue(kept, one, tx)
        tx = store.begin()
        undone = store.publish(two, b"undone", transaction=tx)
        store.dequeue(committed, two, tx)
        tx.rollback()
    rows = record_rows(store_dir)
    commit, rollback = only(rows, type="TX_COMMIT"), only(rows, type="TX_ROLLBACK")
    start = only(rows, id=committed, type="MESSAGE_START")
    assert (start["outcome"], start["effect_lsn"], start["tx_id"]) == ("committed", commit["lsn"], commit["id"])
    assert only(rows, id=undone, type="MESSAGE_START")["effect_lsn"] is None
    dequeue = only(rows, id=committed, type="MESSAGE_DEQUEUE")
    assert (dequeue["outcome"], dequeue["effect_lsn"]) == ("rolled_back", None)
    assert dequeue["enqueue_lsn"] == commit["lsn"]
    earlier = record_rows(store_dir, as_of_lsn=commit["lsn"])
    assert only(earlier, id=committed, type="MESSAGE_START")["outcome"] == "open"

    closed, left = message_rows(store_dir)
    ends = {message: (row["outcome"], row["end_lsn"]) for message, row in by_id(closed).items()}
    assert ends == {kept: ("dequeued", commit["lsn"]), undone: ("rolled_back", rollback["lsn"])}
    (still,) = left
    assert list(still) == OPEN_COLUMNS
    assert (still["id"], still["enqueue_lsn"], still["enqueue_tx"]) == (committed, commit["lsn"], commit["id"])
    assert (still["dequeue_lsn"], still["pending"], still["staged"]) == (None, 0, False)


def doubt_and_drafts(path: Path, kept: list[Any]) -> tuple[int, int, int, int]:
    """A prepared transaction, one without an outcome, and a staged message."""
    store = logstore.open(path, segment_size=SEGMENT)
    queue = store.declare_queue("orders")
    kept.append(store)
    tx = store.begin(Xid(7, b"\x01", b"\x02"))
    doubtful = store.publish(queue, b"doubtful", transaction=tx)
    tx.end()
    tx.prepare()
    undecided = store.begin()
    kept.append(undecided)
    lost = store.publish(queue, b"lost", transaction=undecided)
    draft = store.stage(b"h", b"draft")
    store.force()
    last = store.publish(queue, b"last")  # acknowledged, so recovery accepts it
    return doubtful, lost, draft, last


def test_a_crash_leaves_doubt_undoes_the_undecided_and_drops_drafts(store_dir: Path) -> None:
    doubtful, lost, draft, last = and_then_killed(doubt_and_drafts, store_dir)
    rows = record_rows(store_dir)
    assert only(rows, id=doubtful, type="MESSAGE_START")["outcome"] == "prepared"
    assert only(rows, id=lost, type="MESSAGE_START")["outcome"] == "open"
    assert {row["xid"] for row in rows if row["xid"]} == {"7:01:02"}
    assert [row["id"] for row in message_rows(store_dir)[1]] == sorted([doubtful, lost, draft, last])
    with hold(store_dir, "reader") as held:
        logstore.open(store_dir).close()
        rows = record_rows(store_dir, hold=held)
        closed, left = message_rows(store_dir, hold=held)
    rollback = only(rows, type="TX_ROLLBACK")
    epoch = min(row["lsn"] for row in rows if row["epoch"] == 2)
    ends = {message: (row["outcome"], row["end_lsn"]) for message, row in by_id(closed).items()}
    assert ends == {lost: ("rolled_back", rollback["lsn"]), draft: ("dropped", epoch)}
    assert [(row["id"], row["pending"], row["staged"]) for row in left[:1]] == [(doubtful, 1, True)]
    assert [(row["queue"], row["pending"], row["staged"]) for row in left[1:]] == [("orders", 0, False)]


def test_fan_out_chunks_and_a_deleted_queue_all_end_in_one_row(store_dir: Path) -> None:
    with logstore.open(store_dir, segment_size=SEGMENT) as store:
        queues = [store.declare_queue(name) for name in ("a", "b", "c")]
        long = store.stage(b"head", b"first ")
        store.append_content(long, b"second ")
        store.append_content(long, b"third")
        store.enqueue(long, queues)
        store.dequeue(long, queues[1])
        store.delete_queue("a")
        queues[2].acquire()[0].reject()
        gone = store.stage(b"", b"never sent")
        store.destroy(gone)
    closed, left = message_rows(store_dir)
    assert left == []
    row = by_id(closed)[long]
    assert (row["content_bytes"], row["place_count"], row["outcome"], row["reason"]) == (18, 3, "dequeued", "rejected")
    assert [place["queue"] for place in row["places"]] == [None, "b", "c"]  # the first queue has no name any more
    assert row["places"][0]["reason"] == "queue_deleted"
    assert row["places"][0]["dequeue_lsn"] == only(record_rows(store_dir), type="QUEUE_DELETE")["lsn"]
    assert row["record_count"] == 6
    assert by_id(closed)[gone]["outcome"] == "destroyed"


def test_a_relocated_message_keeps_its_history_and_a_dequeue_its_enqueue_time(store_dir: Path) -> None:
    with (
        logstore.open(store_dir, segment_size=SEGMENT) as store,
        hold(store_dir, "reader", limit_bytes=1 << 30) as held,
    ):
        queue = store.declare_queue("orders")
        stuck = store.publish(queue, b"stuck")
        for _ in range(12):
            for message in store.publish_many(queue, [bytes(20_000)] * 40):
                store.dequeue(message, queue)
        store.compact()
        store.dequeue(stuck, queue)
        store.force()
        rows = record_rows(store_dir, hold=held)
        closed, _ = message_rows(store_dir, hold=held)
        later, _ = message_rows(store_dir, start_lsn=stuck + 8, hold=held)
    start = only(rows, id=stuck, type="MESSAGE_START", relocated=False)
    dequeue = only(rows, id=stuck, type="MESSAGE_DEQUEUE")
    copies = [row for row in rows if row["id"] == stuck and row["relocated"]]
    assert copies
    assert dequeue["prev"] == copies[-1]["lsn"]
    assert (dequeue["enqueue_lsn"], dequeue["enqueue_time"]) == (stuck, start["time"])
    row = by_id(closed)[stuck]
    assert (row["whole"], row["enqueue_lsn"], row["start_time"]) == (True, stuck, start["time"])
    assert (row["copy_count"], row["copied_bytes"]) == (len(copies), sum(copy["record_bytes"] for copy in copies))
    assert row["record_count"] == 2
    adopted = by_id(later)[stuck]
    assert (adopted["whole"], adopted["enqueue_lsn"], adopted["enqueue_time"]) == (False, stuck, start["time"])
    assert (adopted["start_time"], adopted["record_count"]) == (None, 1)
    assert len(closed) == 481
