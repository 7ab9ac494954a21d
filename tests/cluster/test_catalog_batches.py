"""A batch of names is one change of a replicated store's log: every copy and new leader has all of it or nothing."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.copy_group import Group, all_agree, contents
from kit.killed import and_then_killed
from kit.patience import PATIENCE_S, wait_until
from logstore import BindingRow, QueueDeclaration, errors
from logstore.catalog.database import CatalogDatabase
from logstore.cluster.replica import detach
from logstore.codec.records import RecordType
from logstore.inspect.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path, catalog=True)
    yield made
    made.close()


def declare_many(store: logstore.MessageStore, count: int = 50) -> list[logstore.Queue]:
    store.declare_exchange("events")
    dead, *others = (QueueDeclaration(f"q{number}", {"n": number}) for number in range(count))
    users = (dataclasses.replace(one, dead_letter="q0") for one in others)
    queues = store.declare_queues([dead, *users])
    store.bind_many(BindingRow("events", queue.name, "k") for queue in queues)
    return queues


def test_a_batch_is_one_change_of_the_log_which_every_copy_and_a_new_leader_have(group: Group) -> None:
    store = group.lead(0)
    queues = declare_many(store)
    store.publish([queues[0], queues[1], store.queue("orders")], b"on three")
    store.publish_many(queues[2], [b"1", b"2"])
    store.update_queue(queues[3], arguments={"n": "new"})
    store.unbind_many(BindingRow("events", f"q{number}", "k") for number in range(10))
    store.delete_queues(queues[1:3] + queues[4:])
    wait_until(lambda: all_agree(group), "the others have applied it")
    group.cease()
    store = group.lead(1)
    left = {queue.name: queue.arguments for queue in store.queues()}
    assert left == {"orders": {}, "q0": {"n": 0}, "q3": {"n": "new"}}
    assert [message.content for message in store.queue("orders").browse()] == [b"before", b"on three"]
    assert store.stats()["messages"] == 2
    assert store.declare_queues([QueueDeclaration("later")])[0].id == 52
    store.update_queue("q3", arguments={"n": "newer"})
    wait_until(lambda: all_agree(group), "the others have applied that, too")
    group.close()
    with Reader(group.stores[0], undurable=True) as reader:
        records = list(reader.records())
    changes = [record.body for record in records if record.type is RecordType.CATALOG_CHANGE]
    assert [len(change.rows) for change in changes] == [1, 50, 50, 1, 10, 48, 1, 1]
    at = next(number for number, record in enumerate(records) if record.type is RecordType.QUEUE_DELETE)
    deletions = records[at : at + 48]
    assert {record.type for record in deletions} == {RecordType.QUEUE_DELETE}
    assert {record.body.queue_id for record in deletions} == set(range(3, 52)) - {5}
    assert records[at + 48].type is RecordType.CATALOG_CHANGE
    with Reader(group.stores[2], undurable=True) as reader:
        first, last = deletions[0].lsn, records[at + 48].lsn
        assert not [batch for batch in reader.batches() if first < batch.lsn < last], "they stand in one batch"


@pytest.mark.parametrize("call", ["declare", "delete"])
def test_a_batch_that_a_leader_left_between_log_and_file_is_whole_in_every_copy(
    group: Group, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = group.lead(0)
    if call == "delete":
        queues = declare_many(store)

    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(CatalogDatabase, "_execute", die)
        with pytest.raises(Died):
            if call == "declare":
                store.declare_queues(QueueDeclaration(f"q{number}") for number in range(50))
            else:
                store.delete_queues(queues)
    wait_until(lambda: contents(group.stores[1]) == contents(group.stores[2]), "the others have applied it")
    group.cease()
    group.reopen(0)
    group.copy(0).durable(group.sent[-1].end_lsn)
    assert all_agree(group)
    store = group.lead(2)
    assert len(store.queues()) == (51 if call == "declare" else 1)
    for queue in store.queues():
        store.publish(queue, b"it takes messages")


def test_a_batch_that_no_majority_has_is_in_no_catalog(group: Group) -> None:
    store = group.lead(0)
    queues = declare_many(store)
    wait_until(lambda: all_agree(group), "all have it")
    before = contents(group.stores[0])
    group.reached = {0}
    raised: list[BaseException] = []

    def delete() -> None:
        try:
            store.delete_queues(queues)
        except errors.StoreError as error:
            raised.append(error)

    lsn = store.next_lsn
    waiting = threading.Thread(target=delete)
    waiting.start()
    wait_until(lambda: store.next_lsn > lsn, "it is in the log")
    group.cease()
    waiting.join()
    assert isinstance(raised[0], errors.OutcomeUnknown)
    group.reached = {1, 2}
    assert len(group.lead(1).queues()) == 51
    assert contents(group.stores[2]) == before


def test_a_batch_that_is_too_long_for_the_log_is_refused_and_nothing_changes(group: Group) -> None:
    store = group.lead(0)
    with pytest.raises(errors.OptionError, match="make several"):
        store.declare_queues(QueueDeclaration(f"q{number}", {"x": "x" * 1000}) for number in range(1000))
    assert [queue.name for queue in store.queues()] == ["orders"]
    queues = [
        queue
        for some in range(10)
        for queue in store.declare_queues(QueueDeclaration(f"q{some}.{number}") for number in range(200))
    ]
    with pytest.raises(errors.OptionError, match="deletes 2000 queues.*make several"):
        store.delete_queues(queues)
    store.settle_names()
    store.publish([queues[0], queues[-1]], b"they are there")
    for some in range(10):
        store.delete_queues(queues[200 * some : 200 * some + 200])
    wait_until(lambda: all_agree(group), "the others have the small ones")
    assert [queue.name for queue in store.queues()] == ["orders"]


def killed_between_log_and_file(place: Path, kept: list[object]) -> None:
    """A leader that is killed while its file is about to get a batch of deletions that its log has."""
    group = Group(place, catalog=True)
    store = group.lead(0)
    queues = declare_many(store)
    store.publish([*queues, store.queue("orders")], b"on all")
    reached, never = threading.Event(), threading.Event()

    def stop(*_: object) -> None:
        reached.set()
        never.wait()

    CatalogDatabase._execute = stop  # type: ignore[method-assign] # this process is killed with it
    deleting = threading.Thread(target=store.delete_queues, args=(queues,), daemon=True)
    deleting.start()
    assert reached.wait(PATIENCE_S)
    kept += [group, deleting]


def test_a_member_that_was_killed_between_log_and_file_has_the_whole_batch_when_it_is_opened(tmp_path: Path) -> None:
    and_then_killed(killed_between_log_and_file, tmp_path)
    store_dir = tmp_path / "member-1" / "copy-1"
    assert len(contents(store_dir)[1]) == 51  # type: ignore[arg-type] # the queues
    with logstore.open(detach(tmp_path / "member-1")) as store:
        assert [queue.name for queue in store.queues()] == ["orders"]
        assert [message.content for message in store.queue("orders").browse()] == [b"before", b"on all"]
        assert store.bindings() == []
