"""Changes of a replicated store's catalog stand in its log, and every copy's catalog agrees with it."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import logstore
from kit.copy_group import Group, all_agree, contents
from kit.patience import wait_until
from logstore import errors
from logstore.catalog import changes as catalog_changes
from logstore.catalog.catalog import Catalog
from logstore.catalog.changes import Change, decode_rows, encode_rows, rows_between
from logstore.catalog.database import CatalogDatabase
from logstore.catalog.rows import Contents, StoredBinding, StoredExchange, StoredQueue, canonical
from logstore.catalog.statements import execute
from logstore.cluster import catalog_log
from logstore.cluster.catalog_log import FollowedCatalog
from logstore.cluster.replica import Copy, detach
from logstore.codec.records import RecordType
from logstore.inspect import catalog_changes as log_changes
from logstore.inspect.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path, catalog=True)
    yield made
    made.close()


def change_much(store: logstore.MessageStore) -> None:
    store.declare_queue("dead")
    store.declare_queue("invoices", arguments={"x": [1, "ü"]}, dead_letter="dead")
    store.declare_exchange("events", type="topic", arguments={"a": 1})
    store.declare_exchange("fallback", alternate="events")
    store.bind("events", "invoices", "a.#")
    store.bind("events", "invoices", "b.#", arguments={"n": 2})
    store.bind("events", "orders", "a.#")
    store.config.update({"one": "1", "two": "2", "three": "ü"})
    store.config["one"] = "11"
    del store.config["two"]
    store.unbind("events", "invoices", "a.#")
    store.publish("invoices", b"lost with its queue")
    store.delete_queue("invoices")
    store.delete_exchange("fallback")


def test_every_copy_has_each_change_of_the_leaders_catalog(group: Group) -> None:
    store = group.lead(0)
    change_much(store)
    wait_until(lambda: all_agree(group), "the others have applied it")
    assert [queue.name for queue in store.queues()] == ["orders", "dead"]
    assert contents(group.stores[2])[4] == {"one": "11", "three": "ü"}
    group.cease()
    store = group.lead(1)
    assert [binding.queue for binding in store.bindings()] == ["orders"]
    assert store.declare_queue("later").id == 4  # 3 was given out, and is never reused
    wait_until(lambda: all_agree(group), "the others have applied that, too")


def test_a_change_stands_in_the_log_with_the_deletion_of_its_queue(group: Group) -> None:
    store = group.lead(0)
    change_much(store)
    group.close()
    with Reader(group.stores[0], undurable=True) as reader:
        records = list(reader.records())
    changes = [record for record in records if record.type is RecordType.CATALOG_CHANGE]
    assert len(changes) == 13
    with Reader(group.stores[0], undurable=True) as reader:
        assert list(reader.records(RecordType.CATALOG_CHANGE)) == changes
    at = next(number for number, record in enumerate(records) if record.type is RecordType.QUEUE_DELETE)
    assert records[at + 1].type is RecordType.CATALOG_CHANGE


def test_a_change_that_no_majority_has_is_in_no_catalog(group: Group) -> None:
    store = group.lead(0)
    store.declare_queue("first")
    wait_until(lambda: all_agree(group), "all have it")
    before = contents(group.stores[0])
    group.reached = {0}
    raised: list[BaseException] = []

    def declare() -> None:
        try:
            store.declare_queue("second")
        except errors.StoreError as error:
            raised.append(error)

    lsn = store.next_lsn
    waiting = threading.Thread(target=declare)
    waiting.start()
    wait_until(lambda: store.next_lsn > lsn, "it is in the log")
    group.cease()
    waiting.join()
    assert isinstance(raised[0], errors.OutcomeUnknown)
    assert contents(group.stores[0]) == before
    group.reached = {0, 1, 2}
    group.reopen(0)
    assert contents(group.stores[0]) == before
    group.reached = {1, 2}
    store = group.lead(1)
    store.declare_queue("third")
    group.cease()
    behind = group.copy(0)
    behind.vote(group.copy(1).member().term, 2)
    behind.cut(next(batch.index for batch in group.sent if batch.term == 3) - 1)
    for batch in group.sent:
        if batch.term == 3:
            behind.take(batch)
    behind.durable(behind.info().end_lsn)
    wait_until(lambda: all_agree(group), "the leader of before has it, too")
    assert [queue.name for queue in contents(group.stores[0])[1]] == ["orders", "first", "third"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("step", ["before its file", "in its file", "after its file"])
def test_a_leader_that_dies_between_log_and_file_has_the_change_when_it_follows(
    group: Group, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = group.lead(0)
    real = CatalogDatabase._execute

    class Died(BaseException):
        pass

    def die(self: CatalogDatabase, steps: Any, after: Contents) -> None:
        if step == "after its file":
            real(self, steps, after)
        elif step == "in its file":
            with pytest.raises(Died), self._transaction() as connection:
                execute(connection, steps)
                raise Died
        raise Died

    monkeypatch.setattr(CatalogDatabase, "_execute", die)
    with pytest.raises(Died):
        store.declare_queue("second")
    monkeypatch.undo()
    wait_until(lambda: contents(group.stores[1]) == contents(group.stores[2]), "the others have applied it")
    group.cease()
    group.reopen(0)
    last = group.sent[-1]
    group.copy(0).durable(last.end_lsn)
    assert all_agree(group)
    assert [queue.name for queue in contents(group.stores[0])[1]] == ["orders", "second"]  # type: ignore[attr-defined]


def test_a_leader_whose_file_failed_makes_the_change_before_the_next_one(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = group.lead(0)

    def fail(*_: object) -> None:
        raise errors.CatalogUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(CatalogDatabase, "_execute", fail)
        with pytest.raises(errors.CatalogUnavailable):
            store.declare_queue("second")
        with pytest.raises(errors.CatalogUnavailable):
            store.declare_queue("third")
    assert store.declare_queue("third").id == 3
    assert store.declare_queue("second").id == 2
    wait_until(lambda: all_agree(group), "the others have applied both")


@pytest.mark.parametrize("after_log", [False, True])
def test_a_change_that_an_exception_interrupted_is_made_or_not_as_the_log_says(
    group: Group, after_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = group.lead(0)
    real = catalog_log.LeaderLog.write

    def interrupt(self: catalog_log.LeaderLog, carried: catalog_log.Carried) -> None:
        if after_log:
            real(self, carried)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(catalog_log.LeaderLog, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.declare_queue("second")
    assert store.declare_queue("third").id == (3 if after_log else 2)
    wait_until(lambda: all_agree(group), "the others agree")


def test_a_leader_notes_how_far_its_file_has_come_unless_a_change_is_open(group: Group) -> None:
    store = group.lead(0)
    store.declare_queue("first")
    queue = store.queue("orders")
    copy = group.copy(0)
    for _ in range(300):
        store.publish(queue, bytes(3000), wait=False)
        for delivery in queue.acquire(10):
            delivery.accept()
    copy.drop_kept(copy.kept()[-1])
    held = len(list(group.stores[0].glob("*.seg")))
    with closing(sqlite3.connect(group.stores[0] / "catalog.sqlite")) as database:
        before = database.execute("SELECT lsn FROM applied").fetchone()[0]
        assert store._catalog is not None
        open_change = threading.Event(), threading.Event()

        def change() -> None:
            with store._catalog.changes():  # type: ignore[union-attr]
                open_change[0].set()
                open_change[1].wait()

        changing = threading.Thread(target=change)
        changing.start()
        open_change[0].wait()
        copy.note_catalog()  # does not wait
        assert database.execute("SELECT lsn FROM applied").fetchone()[0] == before
        open_change[1].set()
        changing.join()
        copy.note_catalog()
        assert database.execute("SELECT lsn FROM applied").fetchone()[0] > before
    for _ in range(300):
        store.publish(queue, bytes(3000), wait=False)
        for delivery in queue.acquire(10):
            delivery.accept()
    assert len(list(group.stores[0].glob("*.seg"))) <= held
    group.cease()
    group.reopen(0)
    assert all_agree(group)


def test_a_copy_whose_file_is_older_gets_what_it_lacks_from_below_the_checkpoint(group: Group, tmp_path: Path) -> None:
    store = group.lead(0)
    store.declare_queue("first")
    group.cease()
    copy = group.copy(1)
    copy.close()
    shutil.copy(group.stores[1] / "catalog.sqlite", tmp_path / "older.sqlite")
    group.copies[1] = copy = group.open(1)
    store = group.lead(0)
    change_much(store)
    for _ in range(50):
        store.publish("orders", bytes(3000))
    group.cease()
    copy.durable(copy.info().end_lsn)
    assert copy.checkpoint()
    copy.close()
    for name in ("catalog.sqlite-wal", "catalog.sqlite-shm"):
        (group.stores[1] / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "older.sqlite", group.stores[1] / "catalog.sqlite")
    group.copies[1] = copy = group.open(1)
    assert copy.info().changes_from_lsn > 1 << 40
    copy.durable(copy.info().end_lsn)
    assert contents(group.stores[1]) == contents(group.stores[0])


def test_a_file_that_lacks_what_the_log_no_longer_has_is_refused(group: Group, tmp_path: Path) -> None:
    store = group.lead(0)
    store.declare_queue("first")
    group.cease()
    group.copy(1).close()
    shutil.copy(group.stores[1] / "catalog.sqlite", tmp_path / "older.sqlite")
    group.copies[1] = group.open(1)
    store = group.lead(0)
    queue = store.declare_queue("second")
    for _ in range(600):
        store.publish(queue, bytes(3000), wait=False)
        for delivery in queue.acquire(10):
            delivery.accept()
    group.cease()
    copy = group.copy(1)
    copy.durable(copy.info().end_lsn)
    copy.note_catalog()
    copy.drop_kept(copy.kept()[-1])
    store = group.lead(0)
    queue = store.queue("second")
    for _ in range(200):
        store.publish(queue, bytes(3000), wait=False)
        for delivery in queue.acquire(10):
            delivery.accept()
    group.cease()
    copy.close()
    for name in ("catalog.sqlite-wal", "catalog.sqlite-shm"):
        (group.stores[1] / name).unlink(missing_ok=True)
    shutil.copy(group.stores[1] / "catalog.sqlite", tmp_path / "right.sqlite")
    shutil.copy(tmp_path / "older.sqlite", group.stores[1] / "catalog.sqlite")
    with pytest.raises(errors.CatalogMismatch, match="logstore cluster rebuild"):
        group.open(1)
    shutil.copy(tmp_path / "right.sqlite", group.stores[1] / "catalog.sqlite")
    group.copies[1] = group.open(1)


def test_a_detached_copy_has_each_change_that_its_log_has_and_its_file_had_not(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = group.lead(0)
    store.declare_queue("gone")
    store.declare_exchange("events", type="topic")
    wait_until(lambda: all_agree(group), "all have it")
    monkeypatch.setattr(group.copies[1], "durable", lambda lsn: None)  # it dies before it hears of that
    store.bind("events", "orders", "a.#")
    store.config["one"] = "1"
    store.delete_queue("gone")
    store.declare_queue("late")
    published = store.publish("late", b"in a queue that the file does not have")
    before = contents(group.stores[0])
    group.close()
    assert contents(group.stores[1]) != before
    with logstore.open(detach(group.paths[1])) as single:
        assert [message.id for message in single.messages("late")] == [published]
    assert contents(group.stores[1]) == before


def test_a_detach_that_was_killed_before_its_catalog_had_all_is_finished_by_the_same_call(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = group.lead(0)
    store.declare_queue("durable")
    wait_until(lambda: all_agree(group), "all have it")
    group.reached = {0}

    def declare() -> None:
        with pytest.raises(errors.OutcomeUnknown):
            store.declare_queue("undurable")

    lsn = store.next_lsn
    waiting = threading.Thread(target=declare)
    waiting.start()
    wait_until(lambda: store.next_lsn > lsn, "it is in the log")
    group.close()
    waiting.join()
    with monkeypatch.context() as patch:
        patch.setattr(log_changes, "take_undurable", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            detach(group.paths[0])
    with pytest.raises(errors.NotAStore, match="is detached"):
        Copy.open(group.paths[0])
    with pytest.raises(errors.ReplicatedStore):
        logstore.open(group.stores[0])
    assert [queue.name for queue in contents(group.stores[0])[1]] == ["orders", "durable"]
    with logstore.open(detach(group.paths[0])) as single:
        assert [queue.name for queue in single.queues()] == ["orders", "durable", "undurable"]


def test_a_copy_whose_catalog_lacks_what_its_log_no_longer_has_is_not_detached(group: Group, tmp_path: Path) -> None:
    group.lead(0).declare_queue("first")
    group.close()
    with closing(sqlite3.connect(group.stores[1] / "catalog.sqlite")) as database:
        database.execute("DROP TABLE applied")
        database.commit()
    with pytest.raises(errors.CatalogMismatch, match="does not say which changes"):
        detach(group.paths[1])
    shutil.copy(group.stores[2] / "catalog.sqlite", group.stores[1] / "catalog.sqlite")
    group.open(1).close()  # it still takes part


def test_a_file_of_no_member_is_refused(group: Group, tmp_path: Path) -> None:
    group.lead(0).declare_queue("first")
    group.cease()
    group.copy(1).close()
    with closing(sqlite3.connect(group.stores[1] / "catalog.sqlite")) as database:
        database.execute("DROP TABLE applied")
        database.commit()
    with pytest.raises(errors.CatalogMismatch, match="does not say which changes"):
        group.open(1)
    group.copy(2).close()
    shutil.copy(group.stores[2] / "catalog.sqlite", group.stores[1] / "catalog.sqlite")
    group.copies[2] = group.open(2)
    group.copies[1] = group.open(1)


def test_a_follower_that_failed_to_write_its_file_goes_on_where_it_stopped(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = group.copy(1)._catalog
    assert followed is not None
    rows = rows_between(Contents(), Contents(config={"a": "1"}))
    changes = [Change((followed.applied_lsn or 0) + number, rows) for number in (10, 20)]
    real = catalog_changes._counted
    calls = 0

    def fail_once(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise sqlite3.OperationalError("disk I/O error")
        return real(*given)

    monkeypatch.setattr(catalog_changes, "_counted", fail_once)
    with pytest.raises(errors.CatalogError):
        followed.apply(changes)
    assert followed.applied_lsn == changes[0].end_lsn
    followed.apply([])
    assert followed.applied_lsn == changes[1].end_lsn


def test_a_change_that_is_too_long_for_the_log_is_refused_and_nothing_changes(group: Group) -> None:
    store = group.lead(0)
    with pytest.raises(errors.OptionError, match="make several"):
        store.config["big"] = "x" * 200_000
    store.config["small"] = "x"
    wait_until(lambda: all_agree(group), "the others have the small one")
    assert dict(store.config) == {"small": "x"}


names = st.sampled_from(["a", "b", "ü", "d" * 255])
texts = st.sampled_from(["{}", canonical("a test", {"x": 1}), canonical("a test", {"y": "ü"})])


@st.composite
def some_contents(draw: st.DrawFn) -> Contents:
    """Anything that a catalog may have."""
    made = Contents(next_queue_id=100)
    for number, name in enumerate(draw(st.lists(names, unique=True))):
        queue_id = draw(st.integers(1, 9)) * 10 + number
        made.queues[name] = StoredQueue(queue_id, name, draw(texts), None)
        made.queue_names[queue_id] = name
    for name in draw(st.lists(names, unique=True)):
        made.exchanges[name] = StoredExchange(name, "topic", draw(texts), None)
    if made.queues and made.exchanges:
        for key in draw(st.lists(st.sampled_from(["", "k", "k.#"]), unique=True)):
            exchange = draw(st.sampled_from(sorted(made.exchanges)))
            queue = made.queues[draw(st.sampled_from(sorted(made.queues)))]
            made.bindings[StoredBinding(exchange, queue.id, key, draw(texts))] = None
    made.config.update(draw(st.dictionaries(names, st.sampled_from(["", "1", "ü"]))))
    return made


def with_a_binding(arguments: str) -> Contents:
    made = Contents(next_queue_id=100)
    made.queues["a"] = StoredQueue(10, "a", "{}", None)
    made.queue_names[10] = "a"
    made.exchanges["b"] = StoredExchange("b", "topic", arguments, None)
    made.bindings[StoredBinding("b", 10, "", "{}")] = None
    return made


def with_a_dead_letter_queue(arguments: str) -> Contents:
    made = with_a_binding("{}")
    made.queues["dead"] = StoredQueue(11, "dead", arguments, None)
    made.queues["user"] = StoredQueue(12, "user", arguments, 11)
    made.queue_names |= {11: "dead", 12: "user"}
    made.bindings[StoredBinding("b", 11, "", "{}")] = None
    return made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(steps=st.lists(some_contents(), min_size=1, max_size=4))
@example(steps=[with_a_dead_letter_queue("{}"), with_a_dead_letter_queue('{"x":1}'), with_a_binding("{}")])
@example(steps=[with_a_binding("{}"), with_a_binding(canonical("a test", {"x": 1}))])
def test_the_rows_between_two_contents_make_the_second_of_the_first(
    steps: list[Contents], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place, uuid = tmp_path_factory.mktemp("catalog"), bytes(range(16))
    Catalog.create(place, store_uuid=uuid).close()
    before = Contents()
    with FollowedCatalog(place, uuid) as followed:
        followed.begin(replicated=False, changes_from_lsn=0, end_lsn=1000)
        for number, after in enumerate(steps):
            rows = rows_between(before, after)
            assert not rows or decode_rows(encode_rows(rows), len(rows)) == rows
            followed.apply([Change(2000 + number, rows)])
            before = after
    with closing(Catalog.open(place, store_uuid=uuid, read_only=True)) as catalog:
        now = catalog._now
    assert now.queues == before.queues
    assert now.exchanges == before.exchanges
    assert set(now.bindings) == set(before.bindings)
    assert now.config == before.config


# ---- transient queues


def test_a_new_leader_ends_the_transient_queues_of_the_one_before(group: Group) -> None:
    store = group.lead(0)
    queue = store.declare_queue("session", transient=True)
    store.publish_many(queue, [b"1", b"2", b"3"])
    store.publish(["orders", "session"], b"both")
    wait_until(lambda: all_agree(group), "the others have applied the block of ids")
    assert contents(group.stores[2])[0] == queue.id + 1024
    group.cease()
    store = group.lead(1)
    assert [one.name for one in store.queues()] == ["orders"]
    with pytest.raises(errors.UnknownQueue):
        store.publish("session", b"4")
    later = store.declare_queue("session", transient=True)
    assert later.id == queue.id + 1024
    store.publish(later, b"5")
    wait_until(lambda: all_agree(group), "the others have applied its block")
    group.close()
    for path in group.stores:
        with Reader(path, undurable=True) as reader:
            ended = [record.body.queue_id for record in reader.records(RecordType.QUEUE_DELETE)]
        assert ended == [queue.id]


def test_a_store_that_is_detached_drops_them_as_transient_ones(group: Group) -> None:
    store = group.lead(0)
    queue = store.declare_queue("session", transient=True)
    store.publish(queue, b"1")
    wait_until(lambda: all_agree(group), "the others have applied the block of ids")
    group.close()
    with logstore.open(detach(group.paths[1])) as single:
        assert [(one.id, one.transient) for one in single.recovery.dropped_queues] == [(queue.id, True)]
        assert [one.name for one in single.queues()] == ["orders"]
