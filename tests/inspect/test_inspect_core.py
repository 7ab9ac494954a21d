"""The core's replay without an open, called from Python: it equals the store; and the output of chain and dump."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logstore
from kit.patience import PATIENCE_S
from logstore import Xid, errors
from logstore.cli import run as run_command
from logstore.codec.strict import StrictReplay
from logstore.holds import hold
from logstore.inspect import Inspection, Reader

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT = 512 << 10


def read(path: Path, **options: Any) -> Inspection:
    made = Inspection(path, **options)
    made.read()
    return made


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run_command([str(each) for each in arguments]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(said(capsys, *arguments, "--json"))
    return told


# ---- The state


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["publish", "fan", "take", "stage", "begin", "work", "prepare", "commit", "checkpoint"]))
    | st.tuples(st.sampled_from(["many"]), st.integers(1, 30)),
    max_size=40,
)


def same_as_writer(store: logstore.MessageStore, path: Path, **options: Any) -> None:
    """Checks that it equals the writer's state: each queue in order with its locks, and every transaction."""
    store.force()
    with read(path, **options) as found:
        for queue in store.queues():
            places = [] if queue.depth == 0 else list(found.places(queue.id))
            assert places == [(message.id, message.locked) for message in store.messages(queue)]
        assert {one.id for one in found.transactions() if one.prepared} == {one.id for one in store.in_doubt()}
        stats = store.stats()
        assert (found.recovery.messages, found.recovery.places) == (stats["messages"], stats["places"])
        assert len(found.transactions()) == stats["transactions"]
        assert found.info.end_lsn <= store.next_lsn  # an idle store may write one more batch for its base


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS)
def test_the_state_is_the_writers_while_it_runs_and_that_of_the_next_open_afterwards(
    tmp_path_factory: pytest.TempPathFactory, work: list[tuple[Any, ...]]
) -> None:
    path = tmp_path_factory.mktemp("core") / "store"
    transaction, number = None, 0
    with logstore.open(path, segment_size=SEGMENT) as store, hold(path, "inspection"):
        queues = [store.declare_queue("a"), store.declare_queue("b")]
        for kind, *rest in work:
            number += 1
            queue = queues[number % 2]
            if kind == "publish":
                store.publish(queue, bytes(number))
            elif kind == "fan":
                store.publish(queues, bytes(number))
            elif kind == "many":
                store.dequeue_many(store.publish_many(queue, [bytes(15_000)] * rest[0]), queue)
            elif kind == "take":
                waiting = [one.id for one in store.messages(queue) if not one.locked]
                store.dequeue_many(waiting[:1], queue)
            elif kind == "stage":
                store.stage(b"", b"never enqueued")
            elif kind == "begin" and transaction is None:
                transaction = store.begin(Xid(1, number.to_bytes(4, "big")))
            elif kind == "work" and transaction is not None:
                store.publish(queue, b"pending", transaction=transaction)
                waiting = [one.id for one in store.messages(queue) if not one.locked]
                if waiting:
                    store.dequeue(waiting[0], queue, transaction=transaction)
            elif kind in ("prepare", "commit") and transaction is not None:
                transaction.end()
                transaction.prepare()
                if kind == "commit":
                    transaction.commit()
                transaction = None
            elif kind == "checkpoint":
                store.checkpoint()
        same_as_writer(store, path)
        same_as_writer(store, path, checked=True)
    with read(path) as found:
        foretold = {one.id: (one.depth, one.locked) for one in found.queues() if one.depth > 0}
        messages = found.recovery.messages
    with logstore.open(path) as store:
        stats = store.stats()
        assert messages == stats["messages"]
        names = {queue.name: queue.id for queue in store.queues()}
        counted = {names[name]: (one["depth"], one["locked"]) for name, one in stats["queues"].items() if one["depth"]}
        assert foretold == counted


def test_it_agrees_with_the_replay_in_python_on_bytes_and_pending_work(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue, other = store.declare_queue("q"), store.declare_queue("r")
        ids = store.publish_many(queue, [bytes(n) for n in range(50)])
        transaction = store.begin(Xid(3, b"t"))
        store.dequeue(ids[7], queue, transaction=transaction)
        store.publish(other, b"new", transaction=transaction)
        transaction.end()
        transaction.prepare()
    with Reader(path) as reader:
        replay = StrictReplay(reader.info.base_lsn)
        for record in reader.records():
            replay.apply(record)
        second = replay.finish()
    with read(path) as found:
        queues = {one.id: (one.depth, one.locked, one.content_bytes) for one in found.queues() if one.depth}
        (one,) = found.transactions()
        work = [(each.message_id, each.queue_id, each.enqueues, each.lsn) for each in one.work]
    assert queues == {key: (each.depth, each.locked, each.content_bytes) for key, each in second.queues.items()}
    (known,) = second.transactions
    assert work == [(each.message_id, each.queue_id, each.kind == 1, each.lsn) for each in known.work]
    assert str(one.xid) == "3:74:"


def test_calls_before_the_end_or_after_the_close_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path):
        pass
    found = Inspection(path)
    with pytest.raises(errors.StoreClosed, match="not been read to its end"):
        found.queues()
    found.read()
    assert found.queues() == []
    found.close()
    found.close()
    with pytest.raises(errors.StoreClosed):
        found.queues()
    with pytest.raises(errors.NotAStore):
        Inspection(tmp_path / "nothing")


def test_the_log_alone_decides_if_a_checkpoint_contradicts_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("q")
        ids = store.publish_many(queue, [b"x"] * 20)
        store.checkpoint()
        store.dequeue_many(ids[:5], queue)
    with read(path) as found, read(path, checkpoint=False) as alone:
        assert found.recovery.checkpoint_used
        assert not alone.recovery.checkpoint_used
        assert found._differs_from(alone) is None
        assert list(found.places(1)) == list(alone.places(1)) == [(one, False) for one in ids[5:]]


# ---- chain and dump


@pytest.fixture
def moved(tmp_path: Path) -> tuple[Path, int, int, int]:
    """A store with a relocated message, a long locked one, and the transaction that locks it."""
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        orders, audit = store.declare_queue("orders"), store.declare_queue("audit")
        stuck = store.publish([orders, audit], b"stuck" * 20)
        store.dequeue(stuck, audit)
        long = store.stage(b"h", b"x" * 10)
        store.append_content(long, b"y" * 50_000)
        store.enqueue(long, audit)
        transaction = store.begin(Xid(7, b"branch"))
        store.dequeue(long, audit, transaction=transaction)
        transaction.end()
        transaction.prepare()
        first = store.base_lsn
        while store.base_lsn < first + 4 * SEGMENT:
            store.dequeue_many(store.publish_many(orders, [bytes(20_000)] * 10), orders)
        return path, stuck, long, transaction.id


def test_a_chain_tells_what_each_record_means_and_where_the_message_is_now(
    moved: tuple[Path, int, int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    path, stuck, long, tx_id = moved
    told = document(capsys, "chain", path, stuck)
    now = told["now"]
    assert (now["state"], now["moved"]) == ("live", True)
    none = {"delivery_count": 0, "not_before": None, "hidden": False, "expires": None, "expired": False}
    none |= {"own_header": False, "note_bytes": 0, "note_text": None, "note_base64": "", "text": ""}
    assert now["queues"] == [{"id": 1, "name": "orders", "locked": False} | none]
    last = told["records"][-1]
    assert last["lsn"] == now["lsn"]
    assert last["meaning"] == "relocated: the whole message is here now, on queue 'orders'"
    shown = said(capsys, "chain", path, hex(long))
    assert (
        "relocated: its whole state, 50010 bytes of content, on queue 'audit', dequeued from queue 'audit' by" in shown
    )
    assert shown.splitlines()[-1].startswith("now: live, relocated to LSN ")
    assert shown.splitlines()[-1].endswith("on audit (locked by a transaction)")
    told = document(capsys, "chain", path, tx_id)
    assert told["now"] == {"state": "prepared", "xid": "7:6272616e6368:", "lsn": told["records"][-1]["lsn"]}
    assert {one["id"] for one in told["operations"]} == {long}


def test_a_chain_shows_that_its_message_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "store"
    with logstore.open(path) as store:
        queue = store.declare_queue("q")
        key = store.publish(queue, b"x")
        store.dequeue(key, queue)
    told = document(capsys, "chain", path, key)
    assert told["now"] == {"state": "over"}
    meanings = [one["meaning"] for one in told["records"]]
    assert meanings == ["published to queue 'q'", "dequeued from queue 'q', and with that it is dead"]


def test_a_dump_is_filtered_by_chain_and_by_queue(
    moved: tuple[Path, int, int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    path, stuck, long, _ = moved
    lines = [json.loads(line) for line in said(capsys, "dump", path, "--json", "--queue", "audit").splitlines()]
    assert {one["id"] for one in lines} == {long}
    assert said(capsys, "dump", path, "--queue", "2") == said(capsys, "dump", path, "--queue", "audit")
    lines = [json.loads(line) for line in said(capsys, "dump", path, "--json", "--id", stuck).splitlines()]
    assert {one["id"] for one in lines} == {stuck}
    assert said(capsys, "dump", path, "--queue", "audit", "--id", stuck) == ""
    assert run_command(["dump", str(path), "--queue", "nowhere"]) == 1
    assert "there is no queue 'nowhere'" in capsys.readouterr().err


def test_a_following_dump_shows_new_records_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("q")
        first = store.publish(queue, b"before")
        command = [sys.executable, "-m", "logstore", "dump", str(path), "--follow", "--json", "--type", "MESSAGE_START"]
        process = subprocess.Popen([*command, "--limit", "151"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            seen = [json.loads(process.stdout.readline())["id"]]
            published = [store.publish(queue, bytes(9000)) for _ in range(150)]  # three segments
            seen += [json.loads(line)["id"] for line in process.stdout]
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
    assert seen == [first, *published]


def test_info_counts_holds_and_their_kept_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from logstore.holds import hold

    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store, hold(path, "export"):
        queue = store.declare_queue("q")
        for _ in range(8):
            store.dequeue_many(store.publish_many(queue, [bytes(20_000)] * 20), queue)
        told = document(capsys, "info", path)
        assert told["holds"] == 1
        assert told["held_bytes"] % SEGMENT == 0
        assert told["checkpoint_lsn"] is None
    assert Counter(document(capsys, "info", path))["holds"] == 0
