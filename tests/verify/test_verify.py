"""``logstore verify``: finds every flipped bit below the log's end, with its place and the affected messages."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import logstore
from kit.command import fails, fine, run
from kit.torture import tortured
from logstore import Xid, errors
from logstore.codec.records import RecordType
from logstore.commands.verify import describe
from logstore.holds import hold, list_holds
from logstore.inspect import Reader
from logstore.verify import Verification, verification, witness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEGMENT = 512 << 10
HEADER = 4096


def verify(path: Path, **options: Any) -> dict[str, Any]:
    """The output of ``verify --json``."""
    found = Verification(path, **options)
    try:
        found.run(lambda _: None, connect=None, schema=None)
    finally:
        found.close()
    return describe(path, found)


class Whole(NamedTuple):
    """A closed store with a few objects of every kind, and their places."""

    path: Path
    segments: dict[str, int]  # bytes of the log in each segment
    records: list[tuple[int, int, RecordType | int, int]]  # LSN, length, type, id
    queues: dict[int, set[str]]  # ids of live messages by queue


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    path = tmp_path_factory.mktemp("verify") / "store"
    queues: dict[int, set[str]] = {}
    with logstore.open(path, segment_size=SEGMENT) as store:
        first, second = store.declare_queue("first"), store.declare_queue("second")
        for n in range(4):
            queues[store.publish(first, bytes([n]) * 150, header=b"h")] = {"first"}
        queues[store.publish([first, second], b"both")] = {"first", "second"}
        gone = store.publish(first, b"gone")
        store.dequeue(gone, first)
        staged = store.stage(b"head", b"part")
        store.append_content(staged, b"more" * 100)
        store.enqueue(staged, second)
        queues[staged] = {"second"}
        with store.transaction() as local:
            queues[store.publish(second, b"committed", transaction=local)] = {"second"}
    with logstore.open(path) as store:
        doubtful = store.begin(Xid(5, b"branch"))
        store.publish("first", b"waits", transaction=doubtful)
        doubtful.end()
        doubtful.prepare()
        store.checkpoint()  # an open uses it and does not read the log below it
    with Reader(path) as reader:
        segments = {one.name: one.end_lsn - one.first_lsn for one in reader.segments() if one.end_lsn > one.first_lsn}
        records = [(one.lsn, one.length, one.type, one.id) for one in reader.records()]
    return Whole(path, segments, records, queues)


@pytest.fixture
def store(whole: Whole, tmp_path: Path) -> Path:
    """A copy for damage."""
    shutil.copytree(whole.path, tmp_path / "store")
    return tmp_path / "store"


def flip(path: Path, offset: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def costs(whole: Whole, said: dict[str, Any], lsn: int) -> None:
    """Checks the report about the record with the flipped byte."""
    told = said["affected"]
    start, _, kind, chain = next(one for one in whole.records if one[0] <= lsn < one[0] + one[1])
    named = {one["id"]: set(one["queues"]) for one in told["messages"]}
    if kind in (RecordType.BATCH, RecordType.FOOTER, RecordType.CLOSE):
        assert named == {}, (start, kind)
    elif kind is RecordType.MESSAGE_START and chain in whole.queues:
        assert chain in named or told["records_unknown"], (start, kind)
        if chain in named:
            assert named.keys() == {chain}
            assert named[chain] <= whole.queues[chain]


def flips(whole: Whole, every: int) -> Iterator[tuple[str, int]]:
    """Bytes of the log and its headers; they touch records of every kind."""
    for name, size in whole.segments.items():
        yield from ((name, offset) for offset in (*range(0, 96, 11), 1000, 4088, HEADER - 1))
        yield from ((name, offset) for offset in range(HEADER, size, every))


def every_flip_is_found(whole: Whole, store: Path, every: int) -> int:
    chance = random.Random(every)
    count = 0
    for name, offset in flips(whole, every):
        bit = chance.randrange(8)
        flip(store / name, offset, bit)
        try:
            said = verify(store)
        except errors.VersionError:  # the version is judged before any checksum
            assert offset in range(8, 12)
            continue
        finally:
            flip(store / name, offset, bit)
        problem = said["problems"][0]
        assert not said["ok"], (name, offset, bit)
        assert problem["kind"] == "damage"
        assert problem["segment"] == name
        assert problem["offset"] <= offset, (name, offset, bit)
        assert problem["lsn"] == int(name[:16], 16) + problem["offset"]
        if offset >= HEADER:
            costs(whole, said, int(name[:16], 16) + offset)
        count += 1
    return count


def test_a_store_with_a_little_of_everything_is_sound(whole: Whole) -> None:
    said = verify(whole.path)
    assert (said["ok"], said["problems"], said["notes"], said["affected"]) == (True, [], [], None)
    assert said["compared"] == len(whole.records)
    assert (said["messages"], said["in_doubt"]) == (len(whole.queues) + 1, 1)
    assert said["checkpoint_lsn"] is not None


def test_verify_finds_damage_that_an_open_by_a_checkpoint_does_not_read(whole: Whole, store: Path) -> None:
    name = min(whole.segments)
    flip(store / name, HEADER + 400, 2)
    with logstore.open(store) as opened:
        assert opened.recovery.checkpoint_used
    said = verify(store)
    assert [(one["kind"], one["segment"]) for one in said["problems"]] == [("damage", name)]


def test_a_checkpoint_that_differs_from_the_log_is_found(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification.Inspection, "_differs_from", lambda *_: "the number of places of 7")
    (problem,) = verify(store)["problems"]
    assert problem["kind"] == "checkpoint"
    assert "gives another state than the log: the number of places of 7" in problem["text"]
    monkeypatch.undo()
    assert verify(store)["ok"]


def test_flipped_bits_below_the_end_are_found_with_their_place_and_the_affected_messages(
    whole: Whole, store: Path
) -> None:
    assert every_flip_is_found(whole, store, 89) > 60
    assert verify(store)["ok"]


def test_verify_of_a_damaged_store_and_the_damage_error_name_the_salvage_that_comes_next(
    whole: Whole, tmp_path: Path
) -> None:
    store = tmp_path / "a store"
    shutil.copytree(whole.path, store)
    assert verify(store)["next"] is None
    assert "next:" not in run("verify", store).stdout
    flip(store / min(whole.segments), HEADER + 300, 1)
    salvage = f"logstore salvage '{store}' NEW"
    assert verify(store)["next"] == salvage
    last = run("verify", store).stdout.splitlines()[-1]
    assert last == f"next: {salvage} copies what is readable into a new store; or restore a backup"
    refused = fails(run("dump", store), 3)
    assert f"'logstore verify '{store}''" in refused
    assert f"'{salvage}'" in refused


def test_verify_beside_a_writer_says_that_a_salvage_needs_a_closed_store(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store", segment_size=SEGMENT) as store:
        key = store.publish(store.declare_queue("q"), b"x" * 1000)
        flip(tmp_path / "store" / f"{key - key % SEGMENT:016x}.seg", key % SEGMENT + 500, 1)
        last = run("verify", tmp_path / "store").stdout.splitlines()[-1]
    assert last.startswith(f"next: logstore salvage {tmp_path / 'store'} NEW ")
    assert "after the writer has closed the store" in last


@pytest.mark.slow
def test_many_flipped_bytes_are_found_with_their_place_and_the_affected_messages(whole: Whole, store: Path) -> None:
    stride = 5 if tortured() else 17
    assert every_flip_is_found(whole, store, stride) > 3500 // stride
    assert verify(store)["ok"]


@pytest.mark.parametrize("name", ["META", "CLOSED", "HINT", "CHECKPOINT", "holds/reader.hold"])
def test_a_flipped_bit_in_a_side_file_is_found(store: Path, name: str) -> None:
    if name.startswith("holds/"):
        with logstore.open(store), hold(store, "reader"):
            raw = (store / name).read_bytes()
        (store / name).write_bytes(raw)
    assert verify(store)["ok"]
    size = (store / name).stat().st_size
    for offset in range(0, size, 7 if size < 4096 else 101):
        flip(store / name, offset, offset % 8)
        try:
            said = verify(store)
            assert not said["ok"], offset
            assert any(name.rsplit("/", maxsplit=1)[-1] in one["text"] for one in said["problems"]), offset
        except (errors.NotAStore, errors.VersionError):
            assert name == "META"
        finally:
            flip(store / name, offset, offset % 8)
    assert verify(store)["ok"]


@pytest.mark.parametrize("name", ["CLOSED", "HINT"])
def test_a_file_of_another_store_is_found(store: Path, tmp_path: Path, name: str) -> None:
    with logstore.open(tmp_path / "another"):
        pass
    shutil.copy(tmp_path / "another" / name, store / name)
    assert [one["text"] for one in verify(store)["problems"]] == [f"{name} belongs to another store"]


def test_a_hint_that_a_power_cut_left_empty_is_no_problem(store: Path) -> None:
    (store / "HINT").write_bytes(b"")
    assert verify(store)["ok"]
    (store / "HINT").write_bytes(bytes(64))
    assert verify(store)["ok"]


def test_a_loss_of_confirmed_bytes_is_reported_although_the_log_looks_torn(store: Path, whole: Whole) -> None:
    name = max(whole.segments)
    with (store / name).open("r+b") as file:  # as if the last batches had never been written
        last = max(lsn for lsn, _, kind, _ in whole.records if kind is RecordType.BATCH)
        before = max(lsn for lsn, _, kind, _ in whole.records if kind is RecordType.BATCH and lsn < last)
        file.seek(before % SEGMENT)
        file.write(bytes(last - before + 300))
    (store / "CLOSED").unlink()
    (store / "CHECKPOINT").unlink()
    said = verify(store)
    assert said["ok"]
    assert "but lost after the disk had confirmed them" in said["notes"][0]


def test_a_chain_that_contradicts_itself_is_named_by_the_second_witness(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = witness.StrictReplay.finish

    def otherwise(self: Any, **options: Any) -> Any:
        made = finish(self, **options)
        made.messages += 1
        return made

    monkeypatch.setattr(witness.StrictReplay, "finish", otherwise)
    problem = verify(store)["problems"][0]
    assert problem["kind"] == "replay"
    assert "the core's replay gives messages 8, the second one 9" in problem["text"]


def test_a_large_log_is_sampled_and_all_of_it_compared_only_if_asked(
    store: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "SMALL_BYTES", 0)
    said = verify(store)
    assert said["ok"]
    assert 0 < said["compared"] < len(whole.records)
    assert verify(store, thorough=True)["compared"] == len(whole.records)
    monkeypatch.setattr(witness, "encode_record", lambda *_: b"")
    said = verify(store)
    assert {one["kind"] for one in said["problems"]} == {"decoder"}


def test_a_slow_verify_holds_the_log_until_it_has_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    seen: list[tuple[int, int]] = []
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("q")
        ids = store.publish_many(queue, [bytes(20_000)] * 120)
        read = verification.Inspection.read

        def watched(self: Any, show: Any, **options: Any) -> None:
            (one,) = list_holds(path)
            assert one.honoured
            store.dequeue_many(ids, queue)
            for _ in range(5):
                store.dequeue_many(store.publish_many(queue, [bytes(20_000)] * 40), queue)
            assert store.base_lsn > self.info.base_lsn + 2 * SEGMENT  # it is passed by the base, and still reads

            def noted(done: int) -> None:
                show(done)
                seen.append((done, list_holds(path)[0].lsn))

            read(self, noted, **options)

        monkeypatch.setattr(verification.Inspection, "read", watched)
        said = verify(path, rate=4 << 20)
        assert (said["ok"], said["state"]) == (True, "live")
        assert said["bytes"] > 120 * 20_000
        assert list_holds(path) == []
    assert seen[-1][1] > seen[0][1]  # the hold advanced past the part that was read


def test_reading_past_the_page_cache_finds_the_same(store: Path, whole: Whole) -> None:
    assert verify(store, direct=True)["ok"]
    name = next(iter(whole.segments))
    flip(store / name, HEADER + 500, 3)
    said = verify(store, direct=True)
    assert [one["segment"] for one in said["problems"]] == [name]


def test_damage_is_reported_with_the_affected_messages_while_a_writer_runs(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("q")
        key = store.publish(queue, b"x" * 1000)
        store.publish(queue, b"y" * 1000)
        flip(path / f"{key - key % SEGMENT:016x}.seg", key % SEGMENT + 500, 1)
        said = verify(path)
        assert (said["ok"], said["state"]) == (False, "live")
        assert [(one["id"], one["lsn"]) for one in said["affected"]["messages"]] == [(key, key)]
        assert f"in its record at LSN {key}" in said["problems"][0]["text"]


@pytest.mark.parametrize("staged", [False, True])
def test_work_in_doubt_on_a_deleted_queue_keeps_no_message_in_either_replay(tmp_path: Path, staged: bool) -> None:
    path = tmp_path / "store"
    with logstore.open(path) as store:
        gone = store.declare_queue("gone")
        transaction = store.begin(Xid(1, b"g"))
        if staged:
            store.enqueue(store.stage(b"", b"staged"), gone, transaction)
        else:
            store.publish(gone, b"published", transaction=transaction)
        transaction.end()
        transaction.prepare()
        store.delete_queue(gone)
        assert store.stats()["messages"] == 1
        assert verify(path)["problems"] == []
    said = verify(path)
    assert (said["messages"], said["in_doubt"], said["problems"]) == (0, 1, [])
    with logstore.open(path) as store:
        store.force()
        said = verify(path)
        assert (said["messages"], said["in_doubt"], said["problems"]) == (0, 1, [])


WRITER = """
import sys, logstore
store = logstore.open(sys.argv[1], segment_size=int(sys.argv[2]))
queue = store.declare_queue("q")
store.publish_many(queue, [b"first"] * 5)
store.checkpoint()
open_transaction = store.begin()
store.publish(queue, b"never committed", transaction=open_transaction)
store.stage(b"head", b"never enqueued")
store.force()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("before", ["_check_checkpoint", "_ask_the_witness"])
def test_a_writer_that_dies_between_two_readings_is_no_contradiction(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had begun belongs to the first state, and not to the second, although the log ends at the same LSN."""
    path = tmp_path / "store"
    words = [sys.executable, "-c", WRITER, str(path), str(SEGMENT)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        step = getattr(Verification, before)

        def after_its_death(self: Verification, *arguments: Any) -> None:
            writer.kill()
            writer.wait()
            step(self, *arguments)

        monkeypatch.setattr(Verification, before, after_its_death)
        found = verify(path, thorough=True)
    assert (found["state"], found["problems"]) == ("live", [])


def test_a_backup_of_a_running_store_is_called_a_copy_with_nothing_lost(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "backup"
    with logstore.open(path, segment_size=SEGMENT) as store:
        store.publish(store.declare_queue("q"), b"one")
        fine("backup", path, target)
    text = fine("verify", target)
    assert "a copy of a running store: the next open recovers it" in text
    assert "the copy is consistent: it has everything that was durable below LSN" in text
    assert "crash" not in text
    assert verify(target)["copied"] is True
    assert verify(path)["copied"] is False


def test_damage_beside_a_writer_says_when_the_loss_is_known(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        store.publish(store.declare_queue("q"), bytes(100_000))
        segment = min(path.glob("*.seg"))
        raw = bytearray(segment.read_bytes())
        raw[HEADER + 50_000] ^= 1
        with segment.open("r+b") as file:
            file.seek(HEADER + 50_000)
            file.write(raw[HEADER + 50_000 : HEADER + 50_001])
        text = run("verify", path).stdout
    assert "how many messages a salvage would lose is known after the writer has closed the store" in text
    assert "unknown" not in text
