"""The promises of ``salvage``: everything readable is kept, everything lost is named, and nothing is invented."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logstore
from kit.command import fails, fine, run, told
from kit.replicated import END_LSN, KNOWN_DURABLE_LSN, golden_copy
from kit.salvage_cases import (
    SEGMENT,
    Harm,
    Live,
    Truth,
    add_records,
    damage_bytes,
    examine,
    make_store,
    open_small,
    remove,
    segments,
    swap_sectors,
    take_truth,
    truncate,
    wrong,
)
from kit.stores import SMALL_SEGMENT, contents
from kit.torture import part_of
from logstore import errors
from logstore.catalog.backends import FILE_NAME
from logstore.codec.records import RecordFlag, RecordType
from logstore.inspect import Reader
from logstore.salvage import FOUND_QUEUE, salvage
from logstore.salvage.catalog import Names, read_names
from logstore.salvage.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENDS = ("closed", "killed", "torn")
KINDS = ("zeros", "random", "flip", "cut", "missing", "swapped", "header", "record")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Truth]]:
    """One store for each kind of end, with its known contents."""
    base = tmp_path_factory.mktemp("stores")
    return [(base / end, make_store(base / end, seed, end=end)) for seed, end in enumerate(ENDS, 1)]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """A store small enough to damage every record of it."""
    path = tmp_path_factory.mktemp("swept") / "store"
    return path, make_store(path, 2, steps=60)


@cache
def catalog_of(path: Path) -> Names:
    """The catalog, read once, because damage to the log does not change it."""
    with Source(path) as source:
        return read_names(path, source.uuid, connect=None, schema=None)


def harm_store(path: Path, truth: Truth, kind: str, rng: random.Random) -> list[Harm]:
    """Causes one kind of damage near a record of the log."""
    record = rng.choice(truth.records)
    file, offset = path / f"{record.lsn - record.lsn % SEGMENT:016x}.seg", record.lsn % SEGMENT
    if not file.exists() or file.stat().st_size < offset + record.length:
        return []  # it is gone already
    near = offset + 8 * rng.randrange(6)
    size = min(rng.choice((1, 8, 64, 512, 4096)), SEGMENT - near)
    match kind:
        case "zeros":
            return [damage_bytes(file, near, bytes(size))]
        case "random":
            return [damage_bytes(file, near, rng.randbytes(size))]
        case "cut":
            return [truncate(file, min(near, file.stat().st_size))]
        case "missing":
            return [remove(file)]
        case "swapped":
            return swap_sectors(file, near // 512 * 512, 512 * rng.randrange(8, 128))
        case "header":  # with its magic, or after its version, because a larger version is refused as a newer store
            return [damage_bytes(file, rng.choice((0, 12 + rng.randrange(4000))), rng.randbytes(50))]
        case "record":
            return [damage_bytes(file, offset, bytes(record.length))]
    at = offset + rng.randrange(record.length)
    return [damage_bytes(file, at, bytes([file.read_bytes()[at] ^ 1 << rng.randrange(8)]))]


# ---- Recovered and lost


@pytest.mark.parametrize("end", ENDS)
def test_of_a_store_that_is_not_damaged_everything_is_recovered_and_nothing_is_lost(tmp_path: Path, end: str) -> None:
    truth = make_store(tmp_path / "store", 11, end=end)
    found = examine(tmp_path / "store")
    assert list(wrong(truth, found, [])) == []
    assert found.state.messages.keys() == truth.messages.keys() | truth.hidden.keys()
    assert (found.state.lost, found.state.doubtful, found.log.gaps, found.log.damaged) == ([], [], [], [])
    assert (found.log.torn is not None) == (end == "torn")
    report = salvage(tmp_path / "store", tmp_path / "new")
    assert report.whole


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.integers(0, 2),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
)
def test_after_any_damage_every_known_message_is_either_recovered_or_lost(
    stores: list[tuple[Path, Truth]],
    tmp_path_factory: pytest.TempPathFactory,
    which: int,
    kinds: list[str],
    seed: int,
) -> None:
    path, truth = stores[which]
    check_damage(path, truth, tmp_path_factory.mktemp("damaged"), kinds, random.Random(seed))


def check_damage(path: Path, truth: Truth, place: Path, kinds: list[str], rng: random.Random) -> None:
    copy = place / "copy"
    shutil.copytree(path, copy)
    try:
        harm = [one for kind in kinds for one in harm_store(copy, truth, kind, rng)]
        assert list(wrong(truth, examine(copy, catalog_of(path)), harm)) == []
    finally:
        shutil.rmtree(place)


@pytest.mark.slow
def test_after_much_damage_to_many_stores_every_known_message_is_either_recovered_or_lost(tmp_path: Path) -> None:
    for seed in part_of(range(100, 130), 7):
        path = tmp_path / f"store{seed}"
        truth = make_store(path, seed, end=ENDS[seed % 3])
        for turn in range(60):
            rng = random.Random(seed * 1000 + turn)
            kinds = rng.choices(KINDS, k=rng.choice((1, 1, 2, 3)))
            (tmp_path / "place").mkdir()
            check_damage(path, truth, tmp_path / "place", kinds, rng)
        shutil.rmtree(path)


@pytest.mark.parametrize("part", ["header", "body", "whole"])
def test_one_damaged_record_costs_that_record_only(swept: tuple[Path, Truth], part: str) -> None:
    path, truth = swept
    costs, names = 0, catalog_of(path)
    for record in truth.records[:: 2 if part == "whole" else 5]:
        file, offset = path / f"{record.lsn - record.lsn % SEGMENT:016x}.seg", record.lsn % SEGMENT
        before = file.read_bytes()[offset : offset + record.length]
        low, end = {"header": (0, 48), "body": (48, record.length), "whole": (0, record.length)}[part]
        if low == end:
            continue
        harm = damage_bytes(file, offset + low, bytes(255 - one for one in before[low:end]))
        try:
            found = examine(path, names)
        finally:
            damage_bytes(file, offset, before)
        assert list(wrong(truth, found, [harm])) == [], record
        missed = truth.messages.keys() - found.state.messages.keys()
        assert missed <= {record.id}, record
        costs += len(missed)
        unknown = [gap for gap in found.log.gaps if gap.records != 0]
        assert len(unknown) + len(found.log.damaged) <= 1, record
        if unknown:
            assert (unknown[0].lsn, unknown[0].end_lsn, unknown[0].records) == (
                record.lsn,
                record.lsn + record.length,
                1,
            ), record
    assert costs > 0


# ---- The new store


def test_the_new_store_is_complete_and_works_like_any_other(tmp_path: Path) -> None:
    truth = make_store(tmp_path / "store", 5)
    rng = random.Random(5)
    before = {one.name: one.read_bytes() for one in (tmp_path / "store").iterdir() if one.is_file()}
    victim = next(record for record in truth.records if record.id in truth.messages and record.lsn > SEGMENT)
    file = tmp_path / "store" / f"{victim.lsn - victim.lsn % SEGMENT:016x}.seg"
    damage_bytes(file, victim.lsn % SEGMENT, rng.randbytes(victim.length))
    before[file.name] = file.read_bytes()
    with pytest.raises(errors.CorruptLog):
        logstore.open(tmp_path / "store").close()
    found = examine(tmp_path / "store")
    report = salvage(tmp_path / "store", tmp_path / "new")
    after = {one.name: one.read_bytes() for one in (tmp_path / "store").iterdir() if one.is_file()}
    assert after == before
    assert not report.whole
    assert told("verify", tmp_path / "new", "--thorough")["problems"] == []
    with logstore.open(tmp_path / "new") as store:
        shown = take_truth(store)
        for one, live in shown.messages.items():
            if one in truth.messages:
                assert live == truth.messages[one]
        for name, order in shown.order.items():
            kept = set(order)
            assert order == [one for one in truth.order.get(name, order) if one in kept]
        assert shown.messages.keys() >= truth.messages.keys() - {one.id for one in found.state.lost}
        assert {one.id for one in store.in_doubt()} == set(found.state.transactions)
        assert store.next_lsn > max(record.lsn for record in truth.records)
        assert [one.name for one in store.exchanges()] == ["news"]
        assert [(one.exchange, one.queue, one.key) for one in store.bindings()] == [("news", "one", "key")]
        assert dict(store.config)["color"] == "blue"
        for transaction in store.in_doubt():
            rng.choice((transaction.commit, transaction.rollback))()
        for queue in store.queues():
            store.dequeue_many([message.id for message in store.messages(queue)], queue)
        made = [store.publish("one", rng.randbytes(3000)) for _ in range(300)]
        store.compact()
    with logstore.open(tmp_path / "new") as store:
        assert [message.id for message in store.messages("one")] == made
    assert told("verify", tmp_path / "new")["problems"] == []


def test_branches_in_doubt_get_the_same_outcome_in_both_stores(tmp_path: Path) -> None:
    make_store(tmp_path / "store", 23)
    salvage(tmp_path / "store", tmp_path / "new")
    shown = []
    for name in ("store", "new"):
        with logstore.open(tmp_path / name) as store:
            for transaction in sorted(store.in_doubt(), key=lambda one: one.id):
                (transaction.commit if transaction.id % 3 else transaction.rollback)()
            truth = take_truth(store)
            locked = {queue.name: [message.locked for message in store.messages(queue)] for queue in store.queues()}
            shown.append((truth.messages, truth.names, locked, {name: set(ids) for name, ids in truth.order.items()}))
    assert shown[0] == shown[1]


def test_a_salvaged_store_can_be_salvaged_again(tmp_path: Path) -> None:
    make_store(tmp_path / "store", 7)
    salvage(tmp_path / "store", tmp_path / "new")
    report = salvage(tmp_path / "new", tmp_path / "newer")
    assert report.whole
    with logstore.open(tmp_path / "store") as old, logstore.open(tmp_path / "newer") as new:
        one, other = take_truth(old), take_truth(new)
    assert (one.messages, one.order, one.names) == (other.messages, other.order, other.names)


def test_content_headers_and_fan_out_of_any_shape_survive(tmp_path: Path) -> None:
    rng = random.Random(1)
    with open_small(tmp_path / "store") as store:
        for i in range(40):
            store.declare_queue(f"q{i}")
        names = [queue.name for queue in store.queues()]
        sizes = (0, 1, 4000, 4031, 4032, 4033, 70_000, 300_000)
        made = {store.publish(rng.sample(names, 1 + i), rng.randbytes(size)): size for i, size in enumerate(sizes)}
        wide = store.publish(names, b"wide", header=rng.randbytes(3000))
        with store.transaction() as tx:
            for _ in range(5):
                store.publish(rng.sample(names, 3), b"ordered", transaction=tx)
        store.dequeue(wide, names[3])
        truth = take_truth(store)
    report = salvage(tmp_path / "store", tmp_path / "new")
    assert (report.whole, report.messages) == (True, len(made) + 6)
    with logstore.open(tmp_path / "new") as store:
        shown = take_truth(store)
    assert (shown.messages, shown.order) == (truth.messages, truth.order)


def test_a_message_whose_queue_is_lost_is_put_where_it_is_found(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.declare_queue("one")
        lost = store.stage(b"head", b"where do I belong")
        store.enqueue(lost, "one")
        kept = store.publish("one", b"here")
    truth = Truth(messages={})
    add_records(truth, tmp_path / "store")
    enqueue = next(record for record in truth.records if record.type is RecordType.MESSAGE_ENQUEUE)
    damage_bytes(segments(tmp_path / "store")[0], enqueue.lsn % SEGMENT + 50, b"?")
    report = salvage(tmp_path / "store", tmp_path / "new")
    assert [(one["id"], one["found"]) for one in report.lost] == [(lost, True)]
    with logstore.open(tmp_path / "new") as store:
        assert [message.id for message in store.messages("one")] == [kept]
        assert [message.id for message in store.messages(FOUND_QUEUE)] == [lost]
        assert (store.load_content(lost), store.header(lost)) == (b"where do I belong", b"head")


# ---- Doubt


def a_store_with(path: Path, work: Callable[[Any], Any]) -> Truth:
    with open_small(path) as store:
        store.declare_queue("one")
        store.declare_queue("two")
        work(store)
        truth = take_truth(store)
    add_records(truth, path)
    return truth


def break_record(path: Path, truth: Truth, kind: RecordType, *, header: bool, flags: int = 0) -> int:
    """Damages the first record of this kind; returns the id of its chain."""
    record = next(one for one in truth.records if one.type is kind and int(one.flags) & flags == flags)
    at = record.lsn % SEGMENT + (12 if header else 48)
    damage_bytes(path / f"{record.lsn - record.lsn % SEGMENT:016x}.seg", at, b"\xee" * 8)
    return record.id


def test_a_message_whose_last_dequeue_is_damaged_stays_dead_if_the_header_says_so(tmp_path: Path) -> None:
    truth = a_store_with(tmp_path / "s", lambda store: store.dequeue(store.publish("one", b"gone"), "one"))
    flags = RecordFlag.DELETES
    break_record(tmp_path / "s", truth, RecordType.MESSAGE_DEQUEUE, header=False, flags=flags)
    found = examine(tmp_path / "s")
    assert (found.state.messages, found.state.lost) == ({}, [])


def test_a_message_whose_dequeue_is_lost_comes_back_and_is_said_to_be_doubtful(tmp_path: Path) -> None:
    truth = a_store_with(tmp_path / "s", lambda store: store.dequeue(store.publish("one", b"back"), "one"))
    message_id = break_record(tmp_path / "s", truth, RecordType.MESSAGE_DEQUEUE, header=True)
    found = examine(tmp_path / "s")
    assert list(found.state.messages) == [message_id]
    assert found.state.maybe_consumed == 1
    assert found.state.messages[message_id].last_lsn < found.state.doubt_lsn


@pytest.mark.parametrize("dequeues", [False, True])
def test_of_a_transaction_whose_outcome_is_lost_every_message_is_kept(tmp_path: Path, dequeues: bool) -> None:
    def work(store: Any) -> None:
        made = store.publish(["one", "two"], b"kept")
        with store.transaction() as tx:
            if dequeues:
                store.dequeue(made, "two", transaction=tx)
            store.publish("one", b"in doubt", transaction=tx)

    truth = a_store_with(tmp_path / "s", work)
    break_record(tmp_path / "s", truth, RecordType.TX_COMMIT, header=True)
    found = examine(tmp_path / "s")
    contents = sorted(content for content, _ in found.contents.values())
    assert contents == [b"in doubt", b"kept"]
    told_of = {one.id for one in found.state.doubtful}
    assert len(told_of) == 1 + dequeues
    assert len(found.state.lost_transactions) == 1


def test_a_commit_whose_checksum_alone_is_damaged_is_still_a_commit(tmp_path: Path) -> None:
    def work(store: Any) -> None:
        with store.transaction() as tx:
            store.publish("one", b"committed", transaction=tx)

    truth = a_store_with(tmp_path / "s", work)
    record = next(one for one in truth.records if one.type is RecordType.TX_COMMIT)
    damage_bytes(segments(tmp_path / "s")[0], record.lsn % SEGMENT, b"\xee" * 8)
    found = examine(tmp_path / "s")
    assert (len(found.state.messages), found.state.doubtful) == (1, [])


def test_a_content_without_its_last_chunk_is_lost_and_not_cut_short(tmp_path: Path) -> None:
    truth = a_store_with(tmp_path / "s", lambda store: store.publish("one", bytes(9000)))
    last = [one for one in truth.records if one.type is RecordType.MESSAGE_CHUNK][-1]
    damage_bytes(segments(tmp_path / "s")[0], last.lsn % SEGMENT, bytes(last.length))
    found = examine(tmp_path / "s")
    assert found.state.messages == {}
    assert [(one.id, one.queues) for one in found.state.lost] == [(last.id, [1])]


def test_a_prepared_transaction_whose_prepare_is_damaged_stays_in_doubt(tmp_path: Path) -> None:
    xid = logstore.Xid(7, b"global", b"branch")

    def work(store: Any) -> None:
        tx = store.begin(xid)
        store.publish("one", b"pending", transaction=tx)
        tx.end()
        tx.prepare()

    truth = a_store_with(tmp_path / "s", work)
    break_record(tmp_path / "s", truth, RecordType.TX_PREPARE, header=False)
    salvage(tmp_path / "s", tmp_path / "new")
    with logstore.open(tmp_path / "new") as store:
        (transaction,) = store.in_doubt()
        assert transaction.xid == xid
        transaction.commit()
        assert [store.load_content(message.id) for message in store.messages("one")] == [b"pending"]


def test_a_transaction_whose_xid_was_given_again_is_not_in_doubt_any_more(tmp_path: Path) -> None:
    xid = logstore.Xid(7, b"global", b"branch")
    ids = []

    def work(store: Any) -> None:
        for outcome in (True, False):
            tx = store.begin(xid)
            store.publish("one", b"in transaction", transaction=tx)
            tx.end()
            tx.prepare()
            ids.append(tx.id)
            if outcome:
                tx.commit()

    truth = a_store_with(tmp_path / "s", work)
    break_record(tmp_path / "s", truth, RecordType.TX_COMMIT, header=True)
    report = salvage(tmp_path / "s", tmp_path / "new")
    assert [(one["id"], one["in_doubt"]) for one in report.transactions] == [(ids[0], False)]
    with logstore.open(tmp_path / "new") as store:
        assert [one.id for one in store.in_doubt()] == [ids[1]]
        assert store.queue("one").depth == 1


# ---- Identifying the store


@pytest.mark.parametrize("names", [["META"], ["META", "CLOSED", "HINT", "LOCK"], ["CLOSED"], ["LOCK", "HINT"]])
def test_side_files_may_be_missing(stores: list[tuple[Path, Truth]], tmp_path: Path, names: list[str]) -> None:
    path, truth = stores[0]
    shutil.copytree(path, tmp_path / "copy")
    for name in names:
        (tmp_path / "copy" / name).unlink()
    assert list(wrong(truth, examine(tmp_path / "copy"), [])) == []


def test_without_any_header_the_meta_file_says_which_store_it_is(
    stores: list[tuple[Path, Truth]], tmp_path: Path
) -> None:
    path, truth = stores[0]
    shutil.copytree(path, tmp_path / "copy")
    for file in segments(tmp_path / "copy"):
        damage_bytes(file, 0, bytes(4096))
    assert list(wrong(truth, examine(tmp_path / "copy"), [])) == []


def test_a_store_that_nothing_identifies_is_refused_with_that_reason(tmp_path: Path) -> None:
    make_store(tmp_path / "store", 3, steps=20)
    for name in ("META", "HINT", "CLOSED"):
        (tmp_path / "store" / name).unlink()
    for file in segments(tmp_path / "store"):
        damage_bytes(file, 0, bytes(4096))
    assert "nothing identifies the store" in fails(run("salvage", tmp_path / "store", tmp_path / "new"), 3)
    assert not (tmp_path / "new").exists()


def test_a_meta_file_of_another_store_is_not_believed(stores: list[tuple[Path, Truth]], tmp_path: Path) -> None:
    path, truth = stores[0]
    shutil.copytree(path, tmp_path / "copy")
    open_small(tmp_path / "other").close()
    shutil.copyfile(tmp_path / "other" / "META", tmp_path / "copy" / "META")
    assert list(wrong(truth, examine(tmp_path / "copy"), [])) == []


# ---- The catalog


def test_without_a_catalog_queues_are_named_after_their_ids(stores: list[tuple[Path, Truth]], tmp_path: Path) -> None:
    path, truth = stores[0]
    shutil.copytree(path, tmp_path / "copy")
    (tmp_path / "copy" / FILE_NAME).unlink()
    report = salvage(tmp_path / "copy", tmp_path / "new")
    assert report.queues_unnamed == [1, 2, 3, 4]
    assert not report.whole
    with logstore.open(tmp_path / "new") as store:
        shown = {queue.name: [message.id for message in store.messages(queue)] for queue in store.queues()}
        assert shown == {f"queue-{one}": truth.order[name] for one, name in truth.names.items()}
        assert store.declare_queue("fifth").id == 5


def test_the_names_of_another_stores_catalog_are_not_taken(stores: list[tuple[Path, Truth]], tmp_path: Path) -> None:
    shutil.copytree(stores[0][0], tmp_path / "copy")
    with open_small(tmp_path / "other") as other:
        other.declare_queue("stranger")
    shutil.copyfile(tmp_path / "other" / FILE_NAME, tmp_path / "copy" / FILE_NAME)
    report = salvage(tmp_path / "copy", tmp_path / "new")
    assert report.queues_unnamed == [1, 2, 3, 4]
    with logstore.open(tmp_path / "new") as store:
        assert "stranger" not in {queue.name for queue in store.queues()}


def test_with_an_older_catalog_only_newer_queues_lose_their_names(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.declare_queue("old")
    shutil.copyfile(tmp_path / "store" / FILE_NAME, tmp_path / "kept")
    with open_small(tmp_path / "store") as store:
        store.declare_queue("new")
        store.publish(["old", "new"], b"both")
        store.declare_queue("gone")
        store.publish("gone", b"with it")
        store.delete_queue("gone")
    shutil.copyfile(tmp_path / "kept", tmp_path / "store" / FILE_NAME)
    with pytest.raises(errors.CatalogMismatch):
        open_small(tmp_path / "store")
    report = salvage(tmp_path / "store", tmp_path / "new")
    assert (report.queues_unnamed, report.messages) == ([2], 1)
    with logstore.open(tmp_path / "new") as store:
        assert [(queue.id, queue.name, queue.depth) for queue in store.queues()] == [(1, "old", 1), (2, "queue-2", 1)]
        assert store.declare_queue("next").id == 4


def test_of_a_damaged_catalog_the_readable_rows_are_kept(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        for i in range(300):
            store.declare_queue(f"queue with a long name {i:100}")
        made = store.publish([queue.name for queue in store.queues()][:200], b"wide")
    file = tmp_path / "store" / FILE_NAME
    with sqlite3.connect(file) as connection:
        (page,) = (
            connection.execute("SELECT max(pageno) FROM dbstat WHERE name = 'queues' AND pagetype = 'leaf'").fetchone()
            if _has_dbstat(connection)
            else (6,)
        )
    raw = bytearray(file.read_bytes())
    raw[(page - 1) * 4096 : page * 4096] = bytes(4096)
    file.write_bytes(raw)
    with pytest.raises(errors.CatalogError):
        open_small(tmp_path / "store")
    report = salvage(tmp_path / "store", tmp_path / "new")
    assert report.messages == 1
    with logstore.open(tmp_path / "new") as store:
        assert len(store.queues()) >= 200
        assert sum(queue.depth for queue in store.queues()) == 200
        assert store.load_content(made) == b"wide"


def _has_dbstat(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1 FROM dbstat LIMIT 1")
    except sqlite3.Error:
        return False
    return True


def test_a_queue_deleted_in_the_catalog_only_stays_deleted(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.declare_queue("one")
        store.declare_queue("two")
        store.publish(["one", "two"], b"both")
        store.publish("two", b"only there")
    with sqlite3.connect(tmp_path / "store" / FILE_NAME) as connection:
        connection.execute("DELETE FROM queues WHERE name = 'two'")
    report = salvage(tmp_path / "store", tmp_path / "new")
    assert (report.whole, report.messages, report.places) == (True, 1, 1)


# ---- The command


def test_the_command_exits_0_if_nothing_is_lost_and_1_if_something_is(tmp_path: Path) -> None:
    truth = make_store(tmp_path / "store", 3)
    said = told("salvage", tmp_path / "store", tmp_path / "new")
    assert (said["whole"], said["messages"], said["lost"]) == (True, len(truth.messages.keys() | truth.hidden), [])
    victim = next(one for one in truth.messages if one > truth.base_lsn and len(truth.chains[one]) == 1)
    file = tmp_path / "store" / f"{victim - victim % SEGMENT:016x}.seg"
    damage_bytes(file, victim % SEGMENT + truth.chains[victim][0].length - 8, b"\xee" * 8)
    result = run("salvage", tmp_path / "store", tmp_path / "other", "--report", tmp_path / "report.json")
    assert "from 0 to 1 messages are lost, 1 record is damaged" in fails(result, 1)
    written = json.loads((tmp_path / "report.json").read_text())
    assert [one["id"] for one in written["lost"]] == [victim]
    assert written["lost"][0]["queue_names_probable"] == sorted(
        truth.messages[victim].queues, key=list(truth.names.values()).index
    )
    with logstore.open(tmp_path / "other") as store:
        assert victim not in take_truth(store).messages


def test_a_dry_run_reports_the_result_and_writes_nothing(tmp_path: Path) -> None:
    make_store(tmp_path / "store", 3)
    before = sorted(one.name for one in tmp_path.iterdir())
    assert "nothing was written" in fine("salvage", tmp_path / "store", "--dry-run")
    said = told("salvage", tmp_path / "store", tmp_path / "new", "--dry-run")
    assert (said["target"], said["whole"]) == (None, True)
    assert sorted(one.name for one in tmp_path.iterdir()) == before


def test_misuse_raises_and_leaves_nothing_behind(tmp_path: Path) -> None:
    make_store(tmp_path / "store", 3, steps=10)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "file").touch()
    fails(run("salvage", tmp_path / "store"), 2)
    for target in ("full", "file", "store", "store/inside"):
        assert (
            "choose another one" in fails(run("salvage", tmp_path / "store", tmp_path / target), 2) or "store" in target
        )
    fails(run("salvage", tmp_path / "nowhere", tmp_path / "new"), 3)
    fails(run("salvage", tmp_path / "full", tmp_path / "new"), 3)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "full", "store"]


def test_a_store_that_is_open_is_refused_and_one_that_is_being_salvaged_cannot_be_opened(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.declare_queue("one")
        assert "is open in this process already" in fails(run("salvage", tmp_path / "store", tmp_path / "new"), 3)
    seen = []

    def show(what: str, done: int, total: int) -> None:
        with pytest.raises(errors.StoreLocked):
            open_small(tmp_path / "store")
        seen.append(what)

    salvage(tmp_path / "store", tmp_path / "new", show=show)
    assert seen


def test_a_full_disk_leaves_no_half_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    make_store(tmp_path / "store", 3)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(errors.StoreFull):
        salvage(tmp_path / "store", tmp_path / "new")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["store"]


def test_blocks_that_the_disk_cannot_read_are_damage_like_any_other(
    stores: list[tuple[Path, Truth]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    path, truth = stores[0]
    record = next(one for one in reversed(truth.records) if one.id in truth.messages)
    name, block = f"{record.lsn - record.lsn % SEGMENT:016x}.seg", record.lsn % SEGMENT // 4096 * 4096
    pread = os.pread

    def failing(file: int, size: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{file}").endswith(name) and offset < block + 4096 and offset + size > block:
            raise OSError(5, "Input/output error")
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", failing)
    found = examine(path)
    first_lsn = int(name[:16], 16)
    assert list(wrong(truth, found, [Harm(first_lsn + block, first_lsn + block + 4096)])) == []
    assert found.log.disk_error_bytes == 4096


def test_a_log_of_a_later_version_is_refused(tmp_path: Path) -> None:
    make_store(tmp_path / "store", 3, steps=10)
    damage_bytes(segments(tmp_path / "store")[0], 8, b"\x09")
    assert "newer" in fails(run("salvage", tmp_path / "store", tmp_path / "new"), 3)


def test_messages_keep_their_segment_size_and_order(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store", segment_size=1 << 20) as store:
        queue = store.declare_queue("one")
        first = list(store.publish_many(queue, [bytes([i]) * 100 for i in range(200)]))
        with store.transaction() as tx:
            late = store.publish(queue, b"late", transaction=tx)
            early = store.publish(queue, b"early")
        order = [message.id for message in store.messages(queue)]
    assert order == [*first, early, late]
    salvage(tmp_path / "store", tmp_path / "new")
    with Reader(tmp_path / "new") as reader:
        assert reader.info.segment_size == 1 << 20
    with logstore.open(tmp_path / "new") as store:
        assert [message.id for message in store.messages("one")] == order
        assert take_truth(store).messages[late] == Live(b"late", b"", frozenset({"one"}))


def test_a_copy_of_a_replicated_store_is_salvaged_to_a_single_one_with_what_was_undurable(tmp_path: Path) -> None:
    path, new = golden_copy(tmp_path / "store"), tmp_path / "new"
    report = salvage(path, new)
    undurable = END_LSN - KNOWN_DURABLE_LSN
    assert (report.whole, report.replicated) == (
        True,
        {"term": 5, "index": 7, "known_durable_lsn": KNOWN_DURABLE_LSN, "undurable_bytes": undurable},
    )
    with logstore.open(new) as store:
        found = {queue.name: contents(queue) for queue in store.queues() if queue.name in ("q1", "q7")}
    assert found == {"q1": [b"before replication", b"not known durable"], "q7": [b"of term 2", b"of term 5"]}
    with Reader(new) as reader:
        assert (reader.info.index, reader.info.term, reader.info.known_durable_lsn) == (0, 0, 0)
        kinds = {record.type for record in reader.records()}
    assert not kinds & {RecordType.MEMBERS, RecordType.CATALOG_CHANGE}
    assert f"{undurable} bytes of its log, above LSN {KNOWN_DURABLE_LSN}, were not known to be durable" in fine(
        "salvage", path, "--dry-run"
    )


def test_what_is_undurable_is_counted_in_bytes_of_the_log_and_not_in_lsns(tmp_path: Path) -> None:
    path = golden_copy(tmp_path / "store")
    (path / f"{5 << 40:016x}.seg").unlink()
    report = salvage(path, None)
    with Reader(path, undurable=True) as reader:
        last = [record for record in reader.records() if record.type is RecordType.BATCH][-1]
        assert (report.replicated or {})["undurable_bytes"] == reader.info.end_lsn - reader.info.known_durable_lsn
    assert last.body.index == 5  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [RecordType.MEMBERS, RecordType.CATALOG_CHANGE])
def test_damage_to_the_records_of_replication_costs_no_message(tmp_path: Path, kind: RecordType) -> None:
    path = golden_copy(tmp_path / "store")
    with Reader(path) as reader:
        lsn = next(record.lsn for record in reader.records() if record.type is kind)
    file = path / f"{2 << 40:016x}.seg"
    raw = bytearray(file.read_bytes())
    raw[lsn - (2 << 40) + 60] ^= 1
    file.write_bytes(raw)
    report = salvage(path, None)
    assert [one["type"] for one in report.lost_records] == [kind.name]
    assert (report.whole, report.messages) == (True, 4)


def test_a_single_store_has_nothing_of_replication_in_its_report(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT) as store:
        store.publish(store.declare_queue("q"), b"x")
    assert salvage(tmp_path / "store", None).replicated is None
    assert "replicated" not in fine("salvage", tmp_path / "store", "--dry-run")
