"""The figures of a salvage: true losses lie within the ranges that it gives, and no figure contradicts another."""

from __future__ import annotations

import random
import re
import shutil
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logstore
from kit.command import fails, run
from kit.salvage_cases import (
    SEGMENT,
    Truth,
    add_records,
    damage_bytes,
    examine,
    make_store,
    open_small,
    remove,
    segments,
    take_truth,
    truncate,
    wrong_extents,
)
from kit.torture import part_of
from logstore import errors
from logstore.codec.records import RecordType
from logstore.inspect import Reader
from logstore.salvage import salvage
from logstore.salvage.catalog import Names, read_names
from logstore.salvage.source import Source

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.salvage import Salvaged

ENDS = ("closed", "killed", "torn")
SECTORS = (512, 4096)


def publishing(path: Path, messages: int, *, seed: int = 0) -> Truth:
    """A closed store whose messages were only published, on one to three queues each."""
    rng = random.Random(seed)
    with open_small(path) as store:
        names = [store.declare_queue(name).name for name in ("one", "two", "three", "four")]
        for _ in range(messages):
            store.publish(rng.sample(names, rng.choice((1, 1, 2, 3))), rng.randbytes(rng.choice((0, 9, 90, 900, 2000))))
        truth = take_truth(store)
    add_records(truth, path)
    return truth


def deleting(path: Path) -> Truth:
    """A closed store in which queues were deleted, and messages enqueued on and dequeued from further queues."""
    rng = random.Random(5)
    with open_small(path) as store:
        names = [store.declare_queue(f"q{i}").name for i in range(12)]
        made = []
        for i in range(300):
            made.append(store.publish(rng.sample(names, rng.choice((1, 1, 2))), rng.randbytes(rng.choice((9, 900)))))
            with suppress(errors.AlreadyEnqueued, errors.UnknownMessage):
                store.enqueue(rng.choice(made), rng.choice(names))
            with suppress(errors.NotEnqueued, errors.UnknownMessage):
                store.dequeue(rng.choice(made), rng.choice(names))
            if i % 40 == 39:
                store.delete_queue(names.pop(rng.randrange(len(names))))
        truth = take_truth(store)
    add_records(truth, path)
    return truth


@cache
def catalog_of(path: Path) -> Names:
    """The catalog, read once, because damage to the log does not change it."""
    with Source(path) as source:
        return read_names(path, source.uuid, connect=None, schema=None)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Truth]]:
    """A store of each kind of end after all kinds of work, one after only publishes, and one with deleted queues."""
    base = tmp_path_factory.mktemp("extents")
    made = [(base / end, make_store(base / end, seed, end=end)) for seed, end in enumerate(ENDS, 31)]
    made.append((base / "published", publishing(base / "published", 300)))
    return [*made, (base / "deleted", deleting(base / "deleted"))]


def harm(path: Path, rng: random.Random) -> None:
    """Damages sectors, a range of bytes, the end of a segment or a whole one."""
    file = rng.choice(segments(path))
    size = file.stat().st_size
    kind = rng.choice(("sector", "sector", "sectors", "range", "range", "cut", "missing"))
    if kind == "missing" or size <= 8192:
        remove(file)
    elif kind == "cut":
        truncate(file, rng.randrange(4096, size))
    elif kind == "range":
        offset = rng.randrange(4096, size)
        damage_bytes(file, offset, rng.randbytes(min(rng.choice((1, 8, 100, 3000, 20_000)), size - offset)))
    else:
        for _ in range(1 if kind == "sector" else 5):
            sector = rng.choice(SECTORS)
            offset = rng.randrange(4096, size - sector + 1) // sector * sector
            damage_bytes(file, offset, rng.choice((bytes(sector), rng.randbytes(sector))))


def check(path: Path, truth: Truth, place: Path, seed: int) -> None:
    """Damages a copy and compares the figures with what was stored."""
    rng = random.Random(seed)
    copy = place / "copy"
    shutil.copytree(path, copy)
    try:
        for _ in range(rng.choice((1, 1, 2, 3))):
            if segments(copy):
                harm(copy, rng)
        if segments(copy):
            assert list(wrong_extents(truth, examine(copy, catalog_of(path)))) == []
            agrees(salvage(copy, None))
    finally:
        shutil.rmtree(place)


def agrees(report: Salvaged) -> None:
    """No figure of the report contradicts another."""
    least, most = report.lost_messages["least"], report.lost_messages["most"]
    named = [one for one in report.lost if not one["found"]]
    assert least == sum(one["certain"] for one in named)
    assert most is None or least <= len(named) <= most
    assert report.unreadable_bytes == sum(one["bytes"] for one in report.lost_ranges)
    ranges = sorted((one["lsn"], one["end_lsn"]) for one in report.lost_ranges)
    assert all(end <= low for (_, end), (low, _) in pairwise(ranges))
    assert not report.whole or (most == 0 and not report.lost)
    for queue in report.queues:
        assert queue["lost"]["most"] is None or queue["lost"]["least"] <= queue["lost"]["most"]


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.integers(0, 4), seed=st.integers(0, 2**32))
def test_after_any_damage_the_true_losses_lie_within_the_ranges_of_the_report(
    stores: list[tuple[Path, Truth]], tmp_path_factory: pytest.TempPathFactory, which: int, seed: int
) -> None:
    path, truth = stores[which]
    check(path, truth, tmp_path_factory.mktemp("damaged"), seed)


@pytest.mark.slow
def test_after_much_damage_to_many_stores_the_true_losses_lie_within_the_ranges(tmp_path: Path) -> None:
    for seed in part_of(range(200, 230), 7):  # prime to 3 and 4, so that every kind of store is among them
        path = tmp_path / f"store{seed}"
        truth = make_store(path, seed, end=ENDS[seed % 3]) if seed % 4 else publishing(path, 200, seed=seed)
        for turn in range(60):
            (tmp_path / "place").mkdir()
            check(path, truth, tmp_path / "place", seed * 1000 + turn)
        shutil.rmtree(path)


# ---- What is known exactly


def test_of_1500_messages_the_4_that_an_unreadable_sector_took_are_within_every_figure(tmp_path: Path) -> None:
    """One of them lies in a record whose header is whole, and three in the 4776 bytes of the unreadable range."""
    with logstore.open(tmp_path / "store") as store:
        queue = store.declare_queue("orders")
        store.declare_queue("idle")
        stored = list(store.publish_many(queue, [b"%04d" % i + bytes(1508) for i in range(1500)]))
    with Reader(tmp_path / "store") as reader:
        starts = {one.id: one for one in reader.records() if one.type is RecordType.MESSAGE_START}
        first_lsn = reader.segments()[0].first_lsn
        batches = [batch.lsn for batch in reader.batches()]
    victims = next(
        stored[i : i + 4]
        for i in range(700, 1490)
        if not any(starts[stored[i]].lsn < lsn <= starts[stored[i + 4]].lsn for lsn in batches)
    )
    damage_bytes(segments(tmp_path / "store")[0], victims[0] - first_lsn + 700, b"\xee" * 4096)
    report = salvage(tmp_path / "store", tmp_path / "new")
    with logstore.open(tmp_path / "new") as store:
        back = [message.id for message in store.messages("orders")]
    assert sorted(set(stored) - set(back)) == victims
    assert (report.messages, len(back)) == (1496, 1496)
    assert report.lost_messages == {"least": 0, "most": 4}  # the range may have held the dequeue of the named one
    assert [one["id"] for one in report.lost] == victims[:1]
    rows = {one["name"]: (one["recovered"], one["lost"]) for one in report.queues}
    assert rows == {"orders": (1496, {"least": 0, "most": 4}), "idle": (0, {"least": 0, "most": 4})}
    assert [one["bytes"] for one in report.lost_ranges] == [4776]
    assert (report.unreadable_bytes, report.disk_error_bytes) == (4776, 0)
    agrees(report)
    said = run("salvage", tmp_path / "store", "--dry-run")
    assert "from 0 to 4 messages are lost" in fails(said, 1)
    for line in ("lost messages +from 0 to 4", "unreadable bytes +4776 bytes", "orders +1496 +from 0 to 4"):
        assert any(re.search(line, one) for one in said.stdout.splitlines()), (line, said.stdout)
    assert "not listed: at most 3 messages" in said.stdout


def test_a_message_whose_content_alone_is_damaged_is_exactly_one_lost_message(tmp_path: Path) -> None:
    truth = publishing(tmp_path / "store", 40)
    record = next(one for one in truth.records if one.type is RecordType.MESSAGE_START and 500 < one.length < 1500)
    damage_bytes(segments(tmp_path / "store")[0], record.lsn % SEGMENT + record.length - 50, b"\xee" * 8)
    report = salvage(tmp_path / "store", tmp_path / "new")
    assert report.lost_messages == {"least": 1, "most": 1}
    assert [(one["id"], one["certain"]) for one in report.lost] == [(record.id, True)]
    assert {one["name"]: one["lost"] for one in report.queues} == {
        name: {"least": 0, "most": 1} for name in truth.order
    }
    assert report.unreadable_bytes == 0
    assert "1 message is lost" in fails(run("salvage", tmp_path / "store", "--dry-run"), 1)


def test_a_content_without_its_last_chunk_is_lost_on_exactly_its_queues(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        for name in ("one", "two", "three"):
            store.declare_queue(name)
        store.publish(["one", "two"], bytes(9000))
        last = store.publish("one", b"kept")
    truth = Truth()
    add_records(truth, tmp_path / "store")
    chunk = [one for one in truth.records if one.type is RecordType.MESSAGE_CHUNK][-1]
    damage_bytes(segments(tmp_path / "store")[0], chunk.lsn % SEGMENT + 64, b"\xee" * 8)
    report = salvage(tmp_path / "store", None)
    assert report.lost_messages == {"least": 1, "most": 1}
    exactly = {"least": 1, "most": 1}
    assert [(one["name"], one["recovered"], one["lost"]) for one in report.queues] == [
        ("one", 1, exactly),
        ("two", 0, exactly),
    ]
    assert last not in [one["id"] for one in report.lost]


def test_a_message_that_may_have_been_consumed_behind_the_damage_is_only_perhaps_lost(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.declare_queue("one")
        victim = store.publish("one", bytes(500))
        store.publish("one", b"kept")
        store.dequeue(victim, "one")
    truth = Truth()
    add_records(truth, tmp_path / "store")
    file = segments(tmp_path / "store")[0]
    for record in truth.chains[victim]:
        whole = record.type is RecordType.MESSAGE_DEQUEUE
        offset, size = (0, record.length) if whole else (200, 8)
        damage_bytes(file, record.lsn % SEGMENT + offset, b"\xee" * size)
    report = salvage(tmp_path / "store", None)
    assert [(one["id"], one["certain"]) for one in report.lost] == [(victim, False)]
    assert report.lost_messages["least"] == 0


def test_the_footer_of_a_segment_says_how_many_messages_unreadable_batches_of_it_held(tmp_path: Path) -> None:
    truth = publishing(tmp_path / "store", 300)
    file = segments(tmp_path / "store")[1]
    low, end = int(file.name[:16], 16) + 8192, int(file.name[:16], 16) + 8192 + 20_000
    damage_bytes(file, 8192, b"\xee" * (end - low))
    hit = {one.id for one in truth.records if one.id in truth.messages and one.lsn < end and low < one.lsn + one.length}
    report = salvage(tmp_path / "store", None)
    assert report.lost_messages["most"] == len(hit)
    assert len(hit) > 10


def test_with_neither_a_batch_record_nor_the_first_segment_the_number_is_unknown(tmp_path: Path) -> None:
    truth = publishing(tmp_path / "store", 150)
    remove(segments(tmp_path / "store")[0])
    for file in segments(tmp_path / "store"):
        for record in truth.records:
            if record.type is RecordType.BATCH and record.lsn - record.lsn % SEGMENT == int(file.name[:16], 16):
                damage_bytes(file, record.lsn % SEGMENT, b"\xee" * record.length)
    report = salvage(tmp_path / "store", None)
    assert report.lost_messages["most"] is None
    assert not report.whole
    said = run("salvage", tmp_path / "store", "--dry-run")
    assert "an unknown number of messages are lost" in fails(said, 1)
    assert any(re.fullmatch(r"lost messages +unknown", one) for one in said.stdout.splitlines())


def test_a_message_whose_relocated_copy_is_damaged_is_lost_by_name_although_an_older_record_is_readable(
    tmp_path: Path,
) -> None:
    with open_small(tmp_path / "store") as store:
        for name in ("one", "two", "passing"):
            store.declare_queue(name)
        victim = store.publish(["one", "two"], bytes(900))

        def fill() -> None:
            store.dequeue(store.publish("passing", bytes(3000)), "passing")

        while store.next_lsn < victim - victim % SEGMENT + SEGMENT + 8192:
            fill()
        store.dequeue(victim, "two")
        store.publish("one", b"keeps the segment of the dequeue")
        while not store.stats()["relocated_bytes"]:
            fill()
    truth = Truth()
    add_records(truth, tmp_path / "store")
    older, copy = truth.chains[victim]
    assert (older.type, copy.type, victim < truth.base_lsn) == (
        RecordType.MESSAGE_DEQUEUE,
        RecordType.MESSAGE_START,
        True,
    )
    file = tmp_path / "store" / f"{copy.lsn - copy.lsn % SEGMENT:016x}.seg"
    damage_bytes(file, copy.lsn % SEGMENT + 200, b"\xee" * 8)
    report = salvage(tmp_path / "store", None)
    assert [one["id"] for one in report.lost] == [victim]
    assert report.lost_messages["most"] == 1


def test_the_count_of_a_batch_bounds_all_its_unreadable_ranges_together(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store") as store:
        queue = store.declare_queue("orders")
        stored = list(store.publish_many(queue, [bytes(900)] * 200))
    with Reader(tmp_path / "store") as reader:
        first_lsn = reader.segments()[0].first_lsn
        batch = max(reader.batches(), key=lambda one: len(one.raw))
    inside = [one for one in stored if batch.lsn < one < batch.lsn + len(batch.raw)]
    assert len(inside) > 30
    for victim in (inside[5], inside[15], inside[25]):  # with the next one: in each range two records
        damage_bytes(segments(tmp_path / "store")[0], victim - first_lsn, b"\xee" * 1000)
    report = salvage(tmp_path / "store", None)
    assert len(report.lost_ranges) == 3
    assert report.lost_messages == {"least": 0, "most": 6}
