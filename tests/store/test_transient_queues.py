"""A transient queue needs no commit of the catalog, and ends with the open that declared it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logstore
from kit.interrupts import every_step, interrupt
from kit.killed import and_then_killed
from kit.stores import contents
from logstore import cli, errors
from logstore.catalog.transient import BLOCKS_KEY, BLOCKS_MAX, TransientIds
from logstore.core.reports import DroppedQueue
from logstore.salvage import salvage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore


def declare(store: MessageStore, name: str = "t", **options: object) -> logstore.Queue:
    return store.declare_queue(name, transient=True, **options)  # type: ignore[arg-type] # the tests' own options


# ---- a queue like any other, as long as the store is open


def test_it_takes_publishes_acquires_transactions_and_rejects_as_any_queue(store: MessageStore) -> None:
    dead = store.declare_queue("dead")
    queue = declare(store, arguments={"a": 1}, dead_letter=dead)
    assert (queue.transient, dead.transient) == (True, False)
    assert (queue.arguments, queue.dead_letter) == ({"a": 1}, "dead")
    assert store.queue("t") is queue
    assert queue in store.queues()
    store.publish([queue, dead], b"both")
    with store.transaction() as transaction:
        store.publish("t", b"later", transaction=transaction)
    first, second = queue.acquire(2)
    first.accept()
    second.reject()
    assert [message.content for message in dead.browse()] == [b"both", b"later"]
    assert queue.depth == 0


def test_declaring_a_thousand_of_them_makes_one_commit_of_the_catalog(store: MessageStore) -> None:
    catalog = store._names()
    before = catalog.contents().revision
    ids = [declare(store, f"t{number}").id for number in range(1024)]
    assert catalog.contents().revision == before + 1
    assert len(set(ids)) == 1024
    for number in range(1024):
        store.delete_queue(f"t{number}", wait=False)
    assert catalog.contents().revision == before + 1
    assert declare(store, "t0").id not in ids
    assert catalog.contents().revision == before + 2


def test_declared_again_it_is_the_same_queue_if_nothing_differs(store: MessageStore) -> None:
    store.declare_queue("dead")
    queue = declare(store, arguments={"a": 1}, dead_letter="dead")
    assert declare(store, arguments={"a": 1}, dead_letter="dead") is queue
    for other in ({}, {"arguments": {"a": 1}}, {"arguments": {"a": 2}, "dead_letter": "dead"}):
        with pytest.raises(errors.QueueExists, match="transient queue 't' exists with arguments"):
            declare(store, **other)


def test_a_name_belongs_to_a_durable_or_to_a_transient_queue(store: MessageStore) -> None:
    store.declare_queue("d")
    declare(store)
    with pytest.raises(errors.QueueExists, match="'d' exists and is durable"):
        declare(store, "d")
    with pytest.raises(errors.QueueExists, match="'t' exists and is transient"):
        store.declare_queue("t")
    store.delete_queue("t")
    assert not store.declare_queue("t").transient


def test_a_dead_letter_queue_is_not_deleted_before_the_transient_queues_that_name_it(store: MessageStore) -> None:
    store.declare_queue("dead")
    declare(store, "dead too")
    users = [declare(store, dead_letter="dead"), declare(store, "u", dead_letter="dead too")]
    for target, user in (("dead", "t"), ("dead too", "u")):
        with pytest.raises(errors.CatalogError, match=f"the dead-letter queue of '{user}'"):
            store.delete_queue(target)
    for user in users:
        store.delete_queue(user)
    store.delete_queue("dead")
    store.delete_queue("dead too")
    assert store.queues() == []


def test_what_only_the_catalog_can_keep_is_refused(store: MessageStore) -> None:
    declare(store)
    store.declare_exchange("x")
    with pytest.raises(errors.OptionError, match="'t' is transient, and bindings"):
        store.bind("x", "t")
    with pytest.raises(errors.OptionError, match="'t' is transient, so it cannot be the dead-letter queue"):
        store.declare_queue("d", dead_letter="t")
    assert [queue.name for queue in store.queues()] == ["t"]


@pytest.mark.parametrize("name", ["", "x" * 256, "\0", 7])
def test_a_name_that_no_queue_can_have_is_refused(store: MessageStore, name: object) -> None:
    with pytest.raises((errors.OptionError, TypeError)):
        store.declare_queue(name, transient=True)  # type: ignore[arg-type] # a wrong one is the point
    with pytest.raises(errors.UnknownQueue, match="'gone'"):
        declare(store, dead_letter="gone")
    assert store.queues() == []


def test_an_interrupted_declaration_leaves_no_queue_or_a_whole_one(store: MessageStore) -> None:
    for number, _ in every_step(lambda number: declare(store, f"t{number}"), interrupt):
        queue = declare(store, f"t{number}")
        assert store.queue(f"t{number}") is queue
        store.publish(queue, b"x", wait=False)
        assert [message.content for message in queue.browse()] == [b"x"]
    assert number > 50
    assert len({one.id for one in store.queues()}) == number + 1  # the last call was not interrupted


def test_an_interrupted_deletion_is_completed_by_the_next_call(store: MessageStore) -> None:
    def delete(number: int) -> None:
        queues.append(declare(store, f"t{number}"))
        store.publish(queues[-1], b"x", wait=False)
        store.delete_queue(queues[-1], wait=False)

    queues: list[logstore.Queue] = []
    for number, _ in every_step(delete, interrupt, stride=3):
        again = declare(store, f"t{number}")
        assert again is store.queue(f"t{number}")
        store.publish(again, b"y", wait=False)
        assert [message.content for message in again.browse()] in ([b"y"], [b"x", b"y"])
        store.delete_queue(again)
        with pytest.raises(errors.UnknownQueue):
            store.queue(f"t{number}")
    assert store.queues() == []


# ---- the end of the open


def fill(path: Path, kept: list[object]) -> None:
    store = logstore.open(path, segment_size=1 << 19)
    durable = store.declare_queue("kept")
    queue = declare(store)
    store.publish_many(queue, [b"1", b"2"])
    store.publish([durable, queue], b"both")
    branch = store.begin(logstore.Xid(1, b"g"))
    store.publish([durable, queue], b"in doubt", transaction=branch)
    branch.end()
    branch.prepare()
    kept += [store, branch]


def test_after_a_kill_its_messages_are_dropped_and_those_of_durable_queues_are_there(
    store_dir: Path, open_store: Callable[..., MessageStore], capfd: pytest.CaptureFixture[str]
) -> None:
    and_then_killed(fill, store_dir)
    assert cli.run(["queues", str(store_dir), "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["queues"]
    assert [(row["name"], row["transient"], row["depth"]) for row in rows] == [("kept", False, 1), (None, True, 3)]
    said = {}
    for command in ("queues", "in-doubt", "tail", "recover"):
        assert cli.run([command, str(store_dir), *(["--dry-run"] if command == "recover" else [])]) == 0
        said[command] = capfd.readouterr().out
    assert all("transient" in text and "deleted" not in text for text in said.values()), said
    assert "3 places on queue 2, which was transient" in said["recover"]
    store = open_store()
    assert store.recovery.dropped_queues == (DroppedQueue(2, 3, transient=True),)
    [branch] = store.in_doubt()
    branch.commit()
    assert [message.content for message in store.queue("kept").browse()] == [b"both", b"in doubt"]
    with pytest.raises(errors.UnknownQueue):
        store.queue("t")
    assert declare(store).id > 2
    assert declare(store).depth == 0


def test_a_clean_close_ends_it_too_and_a_deleted_queue_is_still_told_apart(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store()
    gone = store.declare_queue("gone")
    store.publish(gone, b"1")
    store.publish(declare(store), b"2")
    assert store._catalog is not None
    store._catalog.delete_queue(gone.id)
    store.close()
    store = open_store()
    assert store.recovery.dropped_queues == (DroppedQueue(1, 1), DroppedQueue(2, 1, transient=True))
    store.close()
    assert open_store().recovery.dropped_queues == ()


def test_salvage_leaves_it_out_and_says_so(store_dir: Path, tmp_path: Path) -> None:
    and_then_killed(fill, store_dir)
    report = salvage(store_dir, tmp_path / "new")
    assert "not copied: messages on 1 transient queue (2)" in report.notes
    assert (report.messages, report.places, report.queues_unnamed) == (2, 1, [])
    with logstore.open(tmp_path / "new") as store:
        assert contents(store.queue("kept")) == [b"both"]


def test_a_repair_of_the_catalog_calls_it_transient(store_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    and_then_killed(fill, store_dir)
    assert cli.run(["repair-catalog", str(store_dir), "--dry-run"]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "queue 2 is transient, so the catalog does not have it, and the next open drops 3 messages on it" in said
    assert "it was deleted" not in said


# ---- the note in the configuration


def test_blocks_that_follow_each_other_are_noted_as_one(open_store: Callable[..., MessageStore]) -> None:
    for name in ("a", "b", "c"):
        store = open_store()
        if name == "c":
            store.declare_queue(name)
        declare(store)
        text = store.config[BLOCKS_KEY]
        store.close()
    assert text == "1-2048 2050-3073"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=30))
def test_a_note_has_exactly_the_ids_that_were_reserved(blocks: list[tuple[int, int]]) -> None:
    noted, ids, next_id = TransientIds(), set(), 1
    for between, count in blocks:
        block = range(next_id + between, next_id + between + count)
        noted, next_id = noted.with_block(block), block.stop
        ids |= set(block)
    read = TransientIds.parsed(str(noted))
    assert [one for one in range(next_id + 3) if one in read] == sorted(ids)
    assert read.end == (max(ids) + 1 if ids else 0)
    assert all(before.stop < after.start for before, after in zip(list(read), list(read)[1:], strict=False))


def test_a_note_is_bounded_and_keeps_the_newest() -> None:
    noted = TransientIds()
    for number in range(BLOCKS_MAX + 5):
        noted = noted.with_block(range(10 * number + 1, 10 * number + 3))
    assert (len(list(noted)), 1 in noted, 51 in noted, noted.end) == (BLOCKS_MAX, False, True, 10 * BLOCKS_MAX + 43)


@pytest.mark.parametrize("text", ["x", "1", "1-", "-1", "2-1", "0-3", "1-3 3-5", "5-6 1-2", "1-3 4-5", "²-3", "1--3"])
def test_a_note_that_cannot_be_read_names_no_id(text: str, open_store: Callable[..., MessageStore]) -> None:
    assert list(TransientIds.parsed(text)) == []
