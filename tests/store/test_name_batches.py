"""Queues and bindings change in batches, and a batch is one commit of the catalog: all of it or nothing."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.interrupts import every_step, interrupt
from kit.killed import and_then_killed
from kit.stores import contents
from logstore import BindingRow, ExchangeRow, QueueDeclaration, errors
from logstore.catalog.database import CatalogDatabase
from logstore.core.reports import DroppedQueue
from logstore.store.declarations import BATCH_MAX

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore


def commits(store: MessageStore) -> int:
    return store._names().contents().revision


def names(store: MessageStore) -> list[str]:
    return [queue.name for queue in store.queues()]


def many(count: int, **fields: Any) -> list[QueueDeclaration]:
    return [QueueDeclaration(f"q{number}", **fields) for number in range(count)]


# ---- one commit


def test_a_thousand_queues_are_declared_bound_and_deleted_in_one_commit_each(
    store: MessageStore, open_store: Callable[..., MessageStore]
) -> None:
    store.declare_exchange("x", type="topic")
    before = commits(store)
    queues = store.declare_queues(many(1000, arguments={"n": 1}))
    assert commits(store) == before + 1
    assert [queue.id for queue in queues] == list(range(1, 1001))
    assert all(store.queue(queue.name) is queue and queue.arguments == {"n": 1} for queue in queues)
    bindings = [BindingRow("x", queue.name, f"key.{queue.id}") for queue in queues]
    store.bind_many(bindings)
    assert commits(store) == before + 2
    assert store.bindings() == bindings
    store.publish_many(queues[7], [b"1", b"2"])
    store.close()
    store = open_store()
    assert (len(store.queues()), store.bindings(), contents(store.queue("q7"))) == (1000, bindings, [b"1", b"2"])
    store.unbind_many(bindings[:500])
    assert commits(store) == before + 3
    assert store.bindings() == bindings[500:]
    store.delete_queues(f"q{number}" for number in range(1, 1000))
    assert commits(store) == before + 4
    assert (names(store), store.bindings(), store.stats()["messages"]) == (["q0"], [], 0)
    store.close()
    assert names(open_store()) == ["q0"]


def test_what_exists_already_costs_no_commit(store: MessageStore) -> None:
    first = store.declare_queues(many(3))
    store.declare_exchange("x")
    bindings = [BindingRow("x", "q0"), BindingRow("x", "q0", "k", {"a": 1})]
    store.bind_many(bindings)
    before = commits(store)
    assert store.declare_queues(many(3)) == first
    store.bind_many(bindings)
    store.unbind_many([BindingRow("x", "q1")])
    assert commits(store) == before
    assert store.declare_queues(many(5))[:3] == first
    assert commits(store) == before + 1
    store.unbind_many([*bindings, BindingRow("x", "q1")])
    assert store.bindings() == []


def test_a_batch_may_name_an_earlier_queue_of_it_for_dead_letters(
    store: MessageStore, open_store: Callable[..., MessageStore]
) -> None:
    batch = [
        QueueDeclaration("dead"),
        QueueDeclaration("q", dead_letter="dead"),
        QueueDeclaration("t", dead_letter="q", transient=True),
    ]
    dead, queue, transient = store.declare_queues(batch)
    assert (queue.dead_letter, transient.dead_letter) == ("dead", "q")
    store.publish(queue, b"refused")
    queue.acquire(1)[0].reject()
    assert contents(dead) == [b"refused"]
    assert store.declare_queues([QueueDeclaration("late", dead_letter=dead)])[0].dead_letter == "dead"
    store.close()
    store = open_store()
    assert [(one.name, one.dead_letter) for one in store.queues()] == [("dead", None), ("q", "dead"), ("late", "dead")]
    with pytest.raises(errors.CatalogError, match="'dead' is the dead-letter queue of 'late'"):
        store.delete_queues(["q", "dead"])
    assert names(store) == ["dead", "q", "late"]
    store.delete_queues(["dead", "q", "late"])  # a dead-letter queue goes with the queues that name it
    assert names(store) == []


def test_transient_queues_of_a_batch_have_no_row(store: MessageStore, open_store: Callable[..., MessageStore]) -> None:
    batch = [QueueDeclaration("d"), *(QueueDeclaration(f"t{number}", transient=True) for number in range(1500))]
    queues = store.declare_queues(batch)
    assert [queue.transient for queue in queues] == [False] + [True] * 1500
    assert len({queue.id for queue in queues}) == 1501
    assert commits(store) == 2, "one for the ids, one for the row"
    assert store.declare_queues(batch) == queues
    store.publish([queues[0], queues[1500]], b"both")
    assert [row.name for row in store._names().queues()] == ["d"]
    store.delete_queues([*queues[1:1500]])
    assert commits(store) == 2
    assert names(store) == ["t1499", "d"]
    store.close()
    store = open_store()
    assert store.recovery.dropped_queues == (DroppedQueue(queues[1500].id, 1, transient=True),)
    assert contents(store.queue("d")) == [b"both"]


def test_a_batch_deletes_durable_and_transient_queues_together(store: MessageStore) -> None:
    dead, user = store.declare_queues([QueueDeclaration("dead"), QueueDeclaration("t", None, "dead", transient=True)])
    with pytest.raises(errors.CatalogError, match="'dead' is the dead-letter queue of 't'"):
        store.delete_queues([dead])
    before = commits(store)
    store.delete_queues([dead, user])
    assert (names(store), commits(store)) == ([], before + 1)
    for queue in (dead, user):
        with pytest.raises(errors.UnknownQueue):
            store.publish(queue, b"late")


def test_many_exchanges_are_declared_and_deleted_with_their_bindings_in_one_commit_each(
    store: MessageStore, open_store: Callable[..., MessageStore]
) -> None:
    queue = store.declare_queue("q")
    rows = [ExchangeRow("x0", "topic", {"n": 1}), *(ExchangeRow(f"x{n}", alternate="x0") for n in range(1, 500))]
    before = commits(store)
    store.declare_exchanges(rows)
    assert commits(store) == before + 1
    assert store.exchanges() == sorted(rows, key=lambda row: row.name)
    store.declare_exchanges(rows)
    assert commits(store) == before + 1, "they exist"
    store.bind_many(BindingRow(row.name, queue.name) for row in rows)
    store.close()
    store = open_store()
    assert (len(store.exchanges()), len(store.bindings())) == (500, 500)
    store.delete_exchanges([*rows[1:498], "x498"])
    assert [row.name for row in store.exchanges()] == ["x0", "x499"]
    assert store.bindings() == [BindingRow("x0", "q"), BindingRow("x499", "q")]
    assert commits(store) == before + 3
    store.delete_exchanges(["x499"])
    store.delete_exchanges(["x0"])
    store.close()
    assert open_store().exchanges() == []


# ---- all or nothing


WRONG: dict[str, tuple[list[object], type[Exception], str]] = {
    "another one of its name": ([QueueDeclaration("old", {"a": 1})], errors.QueueExists, "'old' exists with arguments"),
    "a transient name": ([QueueDeclaration("old", transient=True)], errors.QueueExists, "'old' exists and is durable"),
    "a durable name": ([QueueDeclaration("brief")], errors.QueueExists, "'brief' exists and is transient"),
    "twice": ([QueueDeclaration("new")], errors.OptionError, "queue 'new' is declared twice"),
    "a dead letter of none": ([QueueDeclaration("a", dead_letter="none")], errors.UnknownQueue, "'none'"),
    "its own dead letter": ([QueueDeclaration("a", dead_letter="a")], errors.UnknownQueue, "'a'"),
    "a later dead letter": (
        [QueueDeclaration("a", dead_letter="z"), QueueDeclaration("z")],
        errors.UnknownQueue,
        "no queue is called 'z'",
    ),
    "a transient dead letter": (
        [QueueDeclaration("a", dead_letter="brief")],
        errors.OptionError,
        "'brief' is transient, so it cannot be the dead-letter queue of durable queue 'a'",
    ),
    "a wrong dead letter": ([QueueDeclaration("a", dead_letter=7)], TypeError, "dead_letter is a Queue or its name"),  # type: ignore[arg-type] # a wrong one is the point
    "a name that is none": ([QueueDeclaration("")], errors.OptionError, "the name of a queue is empty"),
    "a name of another type": ([QueueDeclaration(7)], TypeError, "the name of a queue is a str"),  # type: ignore[arg-type] # the same
    "arguments of no JSON": ([QueueDeclaration("a", {"a": {1}})], errors.OptionError, "cannot be stored as JSON"),
    "another type": (["a"], TypeError, "a QueueDeclaration"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_declaration_that_cannot_be_made_is_named_and_none_is_made(store: MessageStore, what: str) -> None:
    store.declare_queue("old")
    store.declare_queue("brief", transient=True)
    wrong, error, said = WRONG[what]
    before = names(store), commits(store), store._names().next_queue_id
    with pytest.raises(error, match=said) as raised:
        store.declare_queues([QueueDeclaration("new"), QueueDeclaration("new t", transient=True), *wrong])  # type: ignore[list-item] # the same
    assert str(raised.value).startswith("declarations[2]: ")
    assert (names(store), commits(store), store._names().next_queue_id) == before
    assert [queue.name for queue in store.declare_queues(many(2))] == ["q0", "q1"]


def test_a_dead_letter_queue_of_the_batch_that_is_transient_is_refused(store: MessageStore) -> None:
    batch = [QueueDeclaration("t", transient=True), QueueDeclaration("d", dead_letter="t")]
    with pytest.raises(errors.OptionError, match=r"declarations\[1\]: queue 't' is transient"):
        store.declare_queues(batch)
    assert names(store) == []


@pytest.mark.parametrize(
    "call", ["declare_queues", "delete_queues", "declare_exchanges", "delete_exchanges", "bind_many", "unbind_many"]
)
def test_a_batch_that_is_empty_too_large_or_no_batch_is_refused(store: MessageStore, call: str) -> None:
    entries: dict[str, Any] = {
        "declare_queues": QueueDeclaration("q"),
        "delete_queues": "q",
        "declare_exchanges": ExchangeRow("x"),
        "delete_exchanges": "x",
    }
    entry = entries.get(call, BindingRow("x", "q"))
    given = 0

    def endless() -> Any:
        nonlocal given
        while True:
            given += 1
            yield entry

    with pytest.raises(errors.OptionError, match="is empty; name at least one"):
        getattr(store, call)([])
    with pytest.raises(errors.OptionError, match="has more than 10000 entries; make several batches"):
        getattr(store, call)(endless())
    assert given == BATCH_MAX + 1
    for wrong in (None, 7, "q", b"q"):
        with pytest.raises(TypeError, match="is an iterable of"):
            getattr(store, call)(wrong)
    for wrong in (None, 7, b"q"):
        with pytest.raises(TypeError, match=r"\[0\]: "):
            getattr(store, call)([wrong])
    assert names(store) == []


def test_a_deletion_that_cannot_be_made_is_named_and_none_is_made(
    store: MessageStore, open_store: Callable[..., MessageStore], tmp_path: Path
) -> None:
    first, second = store.declare_queues(many(2))
    gone = store.declare_queue("gone")
    store.delete_queue(gone)
    foreign = open_store(tmp_path / "other").declare_queue("q0")
    before = commits(store)
    for wrong, error, said in (
        ("none", errors.UnknownQueue, "there is no queue 'none'"),
        (gone, errors.UnknownQueue, "queue 'gone' was deleted"),
        (foreign, errors.UnknownQueue, "belongs to another store"),
        ("q0", errors.OptionError, "queue 'q0' occurs twice in the batch"),
        (7, TypeError, "a queue is a Queue or its name"),
    ):
        with pytest.raises(error, match=said) as raised:
            store.delete_queues([first, second, wrong])  # type: ignore[list-item] # a wrong one is the point
        assert str(raised.value).startswith("queues[2]: ")
        assert (names(store), commits(store)) == (["q0", "q1"], before)
    store.publish([first, second], b"still there")


def test_an_exchange_that_cannot_be_declared_or_deleted_is_named_and_none_is(store: MessageStore) -> None:
    store.declare_exchange("old", alternate=store.declare_exchange("rest").name)
    before = store.exchanges(), commits(store)
    for wrong, error, said in (
        (ExchangeRow("old"), errors.CatalogError, "'old' exists as 'direct'"),
        (ExchangeRow("new", "topic"), errors.OptionError, r"exchanges\[1\]: exchange 'new' occurs twice"),
        (ExchangeRow("a", alternate="b"), errors.UnknownExchange, "'b'"),
        (ExchangeRow("a", alternate=7), TypeError, "alternate"),  # type: ignore[arg-type] # a wrong one is the point
        (ExchangeRow(""), errors.OptionError, r"exchanges\[1\]: the name of an exchange is empty"),
        (ExchangeRow("a", "direct", {"a": {1}}), errors.OptionError, "cannot be stored as JSON"),
        ("a", TypeError, "an ExchangeRow"),
    ):
        with pytest.raises(error, match=said):
            store.declare_exchanges([ExchangeRow("new"), wrong])  # type: ignore[list-item] # the same
        assert (store.exchanges(), commits(store)) == before
    for gone, failure, told in (
        (["old", "none"], errors.UnknownExchange, r"exchanges\[1\]: no exchange is called 'none'"),
        (["old", "old"], errors.OptionError, "exchange 'old' occurs twice"),
        (["old", "rest"], errors.CatalogError, "'rest' is the alternate of 'old': delete that one first"),
    ):
        with pytest.raises(failure, match=told):
            store.delete_exchanges(gone)
        assert (store.exchanges(), commits(store)) == before


def test_a_binding_that_cannot_be_made_is_named_and_none_is_made(store: MessageStore) -> None:
    store.declare_queues([*many(2), QueueDeclaration("t", transient=True)])
    store.declare_exchange("x")
    for wrong, error, said in (
        (BindingRow("y", "q0"), errors.UnknownExchange, "'y'"),
        (BindingRow("x", "q7"), errors.UnknownQueue, "'q7'"),
        (BindingRow("x", "t"), errors.OptionError, "'t' is transient, and bindings"),
        (BindingRow("x", "q0", "k"), errors.OptionError, "queue 'q0' to exchange 'x' occurs twice"),
        (BindingRow("x", "q0", 7), TypeError, "a binding key is a str"),  # type: ignore[arg-type] # a wrong one is the point
        (BindingRow("x", store.queue("q0")), TypeError, "the queue is a str"),  # type: ignore[arg-type] # the same
        (BindingRow(None, "q0"), TypeError, "the exchange is a str"),  # type: ignore[arg-type] # the same
        (BindingRow("x", "q0", "k" * 256), errors.OptionError, "a binding key has 256 bytes"),
        (BindingRow("x", "q0", "", {"a": {1}}), errors.OptionError, "cannot be stored as JSON"),
        ("q0", TypeError, "a BindingRow"),
    ):
        for call in (store.bind_many, store.unbind_many):
            with pytest.raises(error, match=said) as raised:
                call([BindingRow("x", "q0", "k"), BindingRow("x", "q1", "k"), wrong])  # type: ignore[list-item] # the same
            assert str(raised.value).startswith("bindings[2]: ")
    assert store.bindings() == []


@pytest.mark.parametrize("after_commit", [False, True])
def test_a_batch_whose_commit_gave_no_answer_is_made_or_not_as_the_catalog_says(
    store: MessageStore, after_commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CatalogDatabase._execute

    def lose_the_answer(self: CatalogDatabase, steps: Any, after: Any) -> None:
        before = self._now
        if after_commit:
            real(self, steps, after)
        self._now, self._stale = before, True
        raise errors.CatalogUnavailable("no answer")

    store.declare_queues([*many(2), QueueDeclaration("old t", transient=True)])
    batch = [QueueDeclaration("new"), QueueDeclaration("new t", transient=True)]
    with monkeypatch.context() as patch:
        patch.setattr(CatalogDatabase, "_execute", lose_the_answer)
        with pytest.raises(errors.CatalogUnavailable):
            store.declare_queues(batch)
    made = {"new", "new t"} if after_commit else set()
    store.settle_names()
    assert set(names(store)) == {"q0", "q1", "old t"} | made
    with monkeypatch.context() as patch:
        patch.setattr(CatalogDatabase, "_execute", lose_the_answer)
        with pytest.raises(errors.CatalogUnavailable):
            store.delete_queues(["q0", "old t"])
    store.settle_names()
    assert set(names(store)) == {"q1"} | made | (set() if after_commit else {"q0", "old t"})
    for queue in store.queues():
        store.publish(queue, b"it takes messages")
    assert len(store.declare_queues([*many(2), *batch])) == 4


def test_an_interrupted_batch_is_made_wholly_or_not_at_all(store: MessageStore) -> None:
    def batch(number: int) -> list[QueueDeclaration]:
        return [QueueDeclaration(f"d{number}"), QueueDeclaration(f"t{number}", transient=True)]

    outcomes = set()
    for number, _ in every_step(lambda number: store.declare_queues(batch(number)), interrupt, stride=7):
        store.declare_queue("next")  # brings the names up to date
        made = {name for name in names(store) if name in (f"d{number}", f"t{number}")}
        assert len(made) in (0, 2)
        outcomes.add(len(made))
        queues = store.declare_queues(batch(number))
        store.publish(queues, b"x", wait=False)
        store.delete_queues(queues, wait=False)
    assert outcomes == {0, 2}


def test_an_interrupted_deletion_of_a_batch_is_made_wholly_or_not_at_all(store: MessageStore) -> None:
    outcomes = set()
    batch = [QueueDeclaration("d"), QueueDeclaration("e"), QueueDeclaration("t", transient=True)]
    queues = store.declare_queues(batch)
    for _ in every_step(lambda _: store.delete_queues(queues, wait=False), interrupt, stride=7):
        left = [name for name in "det" if is_there(store, name)]
        assert len(left) in (0, 3)
        outcomes.add(len(left))
        queues[:] = store.declare_queues(batch)
        store.publish(queues, b"x", wait=False)
    assert outcomes == {0, 3}


def is_there(store: MessageStore, name: str) -> bool:
    try:
        store.publish(name, b"x", wait=False)
    except errors.UnknownQueue:
        return False
    return True


# ---- kills


HALF_DONE = """
import os, signal, sys, logstore
from logstore import QueueDeclaration
from logstore.catalog.database import CatalogDatabase
store = logstore.open(sys.argv[1], segment_size=512 << 10)
kept, *gone = store.declare_queues([QueueDeclaration(name) for name in ("kept", "a", "b", "c")])
store.publish_many(gone[0], [b"1", b"2", b"3"])
store.publish([kept, *gone], b"on all")

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

"""


@pytest.mark.parametrize(
    ("where", "dropped"),
    [
        ("CatalogDatabase._execute = die", None),
        ("store._end = die", [2, 3, 4]),
        ("real = store._end; store._end = lambda one: (real(one), one.name == 'b' and (store.force(), die()))", [4]),
        ("store.force_unless_relaxed = die", None),
    ],
)
def test_a_kill_within_a_deletion_leaves_all_queues_or_none(
    where: str,
    dropped: list[int] | None,
    run_python: Callable[..., subprocess.CompletedProcess[str]],
    store_dir: Path,
    open_store: Callable[..., MessageStore],
) -> None:
    done = run_python(f"{HALF_DONE}{where}\nstore.delete_queues(gone)", store_dir)
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = open_store()
    if "_execute" in where:
        assert names(store) == ["kept", "a", "b", "c"]
        assert contents(store.queue("a")) == [b"1", b"2", b"3", b"on all"]
        return
    assert names(store) == ["kept"]
    assert contents(store.queue("kept")) == [b"on all"]
    if dropped is not None:
        assert [one.id for one in store.recovery.dropped_queues] == dropped
    assert store.declare_queue("a").id == 5
    assert store.queue("a").depth == 0


def test_after_a_kill_all_queues_of_a_batch_are_there(store_dir: Path, open_store: Callable[..., MessageStore]) -> None:
    def work(kept: list[object]) -> None:
        store = logstore.open(store_dir, segment_size=1 << 19)
        kept.append(store)
        store.declare_exchange("x")
        store.declare_queues(many(300, arguments={"n": 1}))
        store.bind_many(BindingRow("x", f"q{number}") for number in range(300))
        store.update_queue("q7", arguments={"n": 7})

    and_then_killed(work)
    store = open_store()
    assert (len(store.queues()), len(store.bindings())) == (300, 300)
    assert (store.queue("q7").arguments, store.queue("q8").arguments) == ({"n": 7}, {"n": 1})


# ---- new arguments


def test_new_arguments_of_a_queue_are_durable_and_its_handle_shows_them(
    store: MessageStore, open_store: Callable[..., MessageStore]
) -> None:
    store.declare_exchange("x")
    dead = store.declare_queue("dead")
    queue = store.declare_queue("q", arguments={"a": 1}, dead_letter=dead)
    store.bind("x", queue, "k")
    store.publish(queue, b"stays")
    before = commits(store)
    store.update_queue(queue, arguments={"b": [1, "ü"]})
    assert commits(store) == before + 1
    assert (queue.arguments, queue.dead_letter) == ({"b": [1, "ü"]}, "dead")
    store.update_queue("q", arguments={"b": [1, "ü"]})
    assert commits(store) == before + 1, "nothing changed"
    assert store.declare_queue("q", arguments={"b": [1, "ü"]}, dead_letter=dead) is queue
    with pytest.raises(errors.QueueExists):
        store.declare_queue("q", arguments={"a": 1}, dead_letter=dead)
    store.close()
    store = open_store()
    queue = store.queue("q")
    assert (queue.id, queue.arguments, queue.dead_letter) == (2, {"b": [1, "ü"]}, "dead")
    assert (contents(queue), len(store.bindings())) == ([b"stays"], 1)
    store.update_queue(queue, arguments=None)
    assert queue.arguments == {}


def test_new_arguments_of_a_transient_queue_cost_no_commit(store: MessageStore) -> None:
    queue = store.declare_queue("t", arguments={"a": 1}, transient=True)
    before = commits(store)
    store.update_queue(queue, arguments={"a": 2})
    assert (queue.arguments, commits(store)) == ({"a": 2}, before)
    assert store.declare_queue("t", arguments={"a": 2}, transient=True) is queue


def test_wrong_arguments_or_an_unknown_queue_change_nothing(store: MessageStore) -> None:
    queue = store.declare_queue("q", arguments={"a": 1})
    for wrong, error in ((7, TypeError), ({1: 2}, errors.OptionError), ({"a": float("nan")}, errors.OptionError)):
        with pytest.raises(error):
            store.update_queue(queue, arguments=wrong)  # type: ignore[arg-type] # a wrong one is the point
    with pytest.raises(errors.UnknownQueue):
        store.update_queue("none", arguments={})
    with pytest.raises(TypeError):
        store.update_queue(7, arguments={})  # type: ignore[arg-type] # the same
    assert queue.arguments == {"a": 1}
    store.delete_queue(queue)
    with pytest.raises(errors.UnknownQueue):
        store.update_queue(queue, arguments={})


def test_interrupted_new_arguments_are_shown_as_the_catalog_has_them(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    outcomes = set()
    for number, _ in every_step(lambda number: store.update_queue(queue, arguments={"n": number}), interrupt, stride=5):
        store.settle_names()
        assert store._names().queue("q").arguments == queue.arguments
        outcomes.add(queue.arguments == {"n": number})
    assert outcomes == {False, True}


# ---- beside other threads


def test_batches_of_many_threads_do_not_mix(store: MessageStore) -> None:
    raised: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(10):
                batch = [QueueDeclaration(f"{thread}.{number}.{one}") for one in range(5)]
                queues = store.declare_queues(batch)
                store.publish(queues, b"x", wait=False)
                store.update_queue(queues[0], arguments={"n": number})
                if number % 2:
                    store.delete_queues(queues, wait=False)
        except BaseException as problem:
            raised.append(problem)
            raise

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not raised
    assert len(store.queues()) == 4 * 5 * 5
    assert {queue.depth for queue in store.queues()} == {1}
