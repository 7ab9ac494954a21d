"""Checkpoints, as seen by a user and by the Python decoder: a store is equal with and without one after any work."""

from __future__ import annotations

import os
import shutil
import signal
import traceback
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logstore
from kit.checkpoints import (
    BLOCK,
    CheckpointFile,
    Kind,
    MessageFlags,
    decode_checkpoint,
    encode_checkpoint,
)
from kit.stores import SMALL_SEGMENT, contents, segment_files
from logstore.codec.records import InvalidRecord
from logstore.errors import CorruptLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore

QUEUES = ("a", "b", "c")


def killed_after(work: Callable[[], object]) -> None:
    """Runs the function in a separate process, which then ends by kill -9."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "the work failed: see its traceback"


def facts(store: MessageStore) -> dict[str, Any]:
    """Everything that a user can see of the store and that background work does not change."""
    stats = store.stats()
    return {
        "queues": {queue.name: (queue.depth, contents(queue)) for queue in store.queues()},
        "in_doubt": [(one.id, str(one.xid)) for one in store.in_doubt()],
        "messages": stats["messages"],
        "locked": {name: one["locked"] for name, one in stats["queues"].items()},
        "base": store.recovery.base_lsn,
    }


def both_ways(path: Path) -> tuple[logstore.Recovery, dict[str, Any], dict[str, Any]]:
    """The report of an open with the checkpoint, and the facts with it and without it."""
    without = path.with_name(path.name + "-without")
    shutil.rmtree(without, ignore_errors=True)
    shutil.copytree(path, without)
    (without / "CHECKPOINT").unlink(missing_ok=True)
    with logstore.open(path) as store:
        report = store.recovery
        found = facts(store)
    with logstore.open(without) as store:
        assert not store.recovery.checkpoint_used
        assert store.recovery.checkpoint_ignored == ""
        return report, found, facts(store)


def busy_store(store: MessageStore) -> None:
    """Objects of every kind: chunks, fan-out, pending and prepared work, a deleted queue, relocated messages."""
    a, b, c = (store.declare_queue(name) for name in QUEUES)
    gone = store.declare_queue("gone")
    store.publish((a, b, gone), b"fan-out")
    store.publish(a, bytes(200_000), header=b"long")
    keys = list(store.publish_many(a, [b"%d" % i for i in range(40)]))
    store.publish(gone, b"nobody's")
    in_doubt = store.begin(logstore.Xid(1, b"doubt", b"1"))
    store.publish(c, b"perhaps", transaction=in_doubt)
    store.dequeue(keys[3], a, transaction=in_doubt)
    store.enqueue(keys[4], b, transaction=in_doubt)
    in_doubt.end()
    in_doubt.prepare()
    with store.transaction() as tx:
        for i in range(5):
            store.publish(b, b"committed %d" % i, transaction=tx)
    store.delete_queue(gone)
    for _ in range(8):
        store.dequeue_many(store.publish_many(c, [bytes(10_000)] * 50), c)
    staged = store.stage(b"header", b"never enqueued")
    assert staged
    store.dequeue(keys[0], a)
    store.publish_many(c, [b"lately"] * 3)


def test_a_checkpoint_spares_the_replay_and_nothing_else(store_dir: Path, open_store: Callable[..., Any]) -> None:
    store = open_store()
    busy_store(store)
    expected = store.checkpoint_size()
    made = store.checkpoint()
    assert (made.bytes, made.messages, made.transactions) == (expected.bytes, expected.messages, expected.transactions)
    assert made.lsn <= store.next_lsn
    assert made.seconds > 0
    assert (store.stats()["checkpoints"], store.stats()["checkpoint_lsn"]) == (1, made.lsn)
    store.publish("a", b"behind it")
    store.close()
    copy = store_dir.with_name("copy")
    shutil.copytree(store_dir, copy)
    report, found, without = both_ways(copy)
    assert report.checkpoint_used
    assert found == without
    assert contents_of(found, "a")[-1] == b"behind it"
    with logstore.open(store_dir) as again:
        assert again.recovery.checkpoint_used
        assert again.recovery.checkpoint_lsn == made.lsn
        assert again.recovery.checkpoint_bytes == made.bytes
        assert again.recovery.records < 20
        assert facts(again)["queues"] == found["queues"]


def contents_of(found: dict[str, Any], queue: str) -> list[bytes]:
    listed: list[bytes] = found["queues"][queue][1]
    return listed


def test_the_page_describes_the_bytes_that_the_core_writes(store_dir: Path, store: MessageStore) -> None:
    busy_store(store)
    made = store.checkpoint()
    raw = (store_dir / "CHECKPOINT").read_bytes()
    assert len(raw) == made.bytes
    read = decode_checkpoint(raw)
    assert encode_checkpoint(read.header, read.deletions, read.transactions, read.messages) == raw
    assert read.header.lsn == made.lsn
    assert len(read.messages) == made.messages
    assert {one.kind for one in read.messages} == {Kind.PLAIN, Kind.SINGLE, Kind.CHAIN}
    assert [one.gtrid for one in read.transactions] == [b"doubt"]
    by_flag = [one for one in read.messages if one.flags & MessageFlags.STAGED and not one.operations]
    assert len(by_flag) == 1
    assert sum(len(one.operations) for one in read.messages) == 3
    assert max(one.content_total for one in read.messages) == 200_000
    depth = {queue.id: queue.depth for queue in store.queues()}
    places = [place.queue_id for one in read.messages for place in one.places]
    assert {id_: places.count(id_) for id_ in depth} == depth


def test_many_blocks_are_one_stream_of_rows(store_dir: Path, store: MessageStore) -> None:
    keys = store.publish_many(store.declare_queue("a"), [b""] * 9000)
    store.checkpoint()
    raw = (store_dir / "CHECKPOINT").read_bytes()
    read = decode_checkpoint(raw)
    assert read.header.block_count == 4
    assert [one.id for one in read.messages] == list(keys)
    assert encode_checkpoint(read.header, read.deletions, read.transactions, read.messages) == raw


def tampered(raw: bytes, at: int, value: int) -> bytes:
    """The checkpoint with one byte changed and all checksums right, made from docs/format.md alone."""
    from xxhash import xxh64_intdigest

    header = decode_checkpoint(raw).header
    changed = bytearray(raw)
    changed[at] = value
    for index in range(header.block_count):
        start = 4096 + BLOCK * index
        stop = min(start + BLOCK, len(raw))
        digest = xxh64_intdigest(changed[start + 8 : stop], header.block_seed(index))
        changed[start : start + 8] = digest.to_bytes(8, "little")
    changed[4088:4096] = xxh64_intdigest(changed[:4088], 0).to_bytes(8, "little")
    return bytes(changed)


@pytest.fixture(scope="module")
def busy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("checkpoint") / "store"
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        busy_store(store)
        store.checkpoint()
        store.publish("a", b"behind it")
    return path


def decoded(raw: bytes) -> CheckpointFile | None:
    try:
        return decode_checkpoint(raw)
    except InvalidRecord:
        return None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_both_codecs_refuse_and_accept_the_same_sealed_nonsense(busy_dir: Path, data: st.DataObject) -> None:
    whole = (busy_dir / "CHECKPOINT").read_bytes()
    at = data.draw(st.integers(4096 + 8, len(whole) - 1))
    raw = tampered(whole, at, data.draw(st.integers(0, 255)))
    state = refusal_by_the_core(busy_dir, raw)
    assert (decoded(raw) is None) == (state == "it is damaged"), (at, state)


def refusal_by_the_core(path: Path, raw: bytes) -> str:
    """The reason why an inspection rejects the checkpoint; '' if it was used. Writes nothing."""
    from logstore._core import ffi, lib

    kept = (path / "CHECKPOINT").read_bytes()
    store, lsn, report = ffi.new("ls_store **"), ffi.new("uint64_t *"), ffi.new("ls_recovery *")
    try:
        (path / "CHECKPOINT").write_bytes(raw)
        assert lib.ls_inspect_open(ffi.NULL, str(path).encode(), 0, store) == 0
        lib.ls_recovery_report(store[0], report)
        text: bytes = ffi.string(lib.ls_checkpoint_state_text(report.checkpoint_state))
        lib.ls_inspect_step(store[0], 1 << 40, lsn)
        return "" if report.checkpoint_used else text.decode()
    finally:
        lib.ls_free(store[0])
        (path / "CHECKPOINT").write_bytes(kept)


@settings(max_examples=300)
@given(st.binary(max_size=300), st.integers(0, 5000))
def test_arbitrary_bytes_raise_nothing_but_that_they_are_no_checkpoint(noise: bytes, at: int) -> None:
    raw = bytearray(5000)
    raw[at : at + len(noise)] = noise
    for some in (bytes(raw), b"LSTRCKPT" + noise, noise):
        assert decoded(some) is None


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda raw: raw[:-1], "it is damaged"),
        (lambda raw: b"", "it is damaged"),
        (lambda raw: raw[:8] + b"\2" + raw[9:], "it is of a newer format version"),
        (lambda raw: raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:], "it is damaged"),
    ],
)
def test_an_unusable_checkpoint_is_ignored_and_named_in_the_report(
    busy_dir: Path, tmp_path: Path, spoil: Callable[[bytes], bytes], why: str
) -> None:
    path = tmp_path / "spoiled"
    shutil.copytree(busy_dir, path)
    (path / "CHECKPOINT").write_bytes(spoil((busy_dir / "CHECKPOINT").read_bytes()))
    _, _, without = both_ways(path)
    (path / "CHECKPOINT").write_bytes(spoil((busy_dir / "CHECKPOINT").read_bytes()))
    with logstore.open(path) as store:
        assert store.recovery.checkpoint_ignored == why
        assert not store.recovery.checkpoint_used
        assert facts(store)["queues"] == without["queues"]


def test_another_stores_checkpoint_is_ignored(busy_dir: Path, open_store: Callable[..., Any], store_dir: Path) -> None:
    open_store().close()
    shutil.copy(busy_dir / "CHECKPOINT", store_dir)
    with logstore.open(store_dir) as store:
        assert store.recovery.checkpoint_ignored == "it is another store's"


def test_damage_below_a_used_checkpoint_is_met_by_the_read_that_needs_it(
    store_dir: Path, open_store: Callable[..., Any]
) -> None:
    store = open_store()
    queue = store.declare_queue("a")
    keys = list(store.publish_many(queue, [bytes([i]) * 3000 for i in range(250)]))
    store.checkpoint()
    store.close()
    first = segment_files(store_dir)[0]
    raw = bytearray(first.read_bytes())
    raw[keys[7] % SMALL_SEGMENT + 500] ^= 1
    first.write_bytes(raw)
    with logstore.open(store_dir) as again:
        assert again.recovery.checkpoint_used
        assert again.load_content(keys[6]) == bytes([6]) * 3000
        with pytest.raises(CorruptLog) as caught:
            again.load_content(keys[7])
        assert (caught.value.segment, caught.value.lsn) == (first.name, keys[7])
        assert again.load_content(keys[8]) == bytes([8]) * 3000
    (store_dir / "CHECKPOINT").unlink()
    with pytest.raises(CorruptLog):
        logstore.open(store_dir)


def test_an_older_copy_of_the_log_ignores_a_later_checkpoint(
    store_dir: Path, open_store: Callable[..., Any], tmp_path: Path
) -> None:
    store = open_store()
    store.publish_many(store.declare_queue("a"), [b"early"] * 10)
    store.close()
    before = shutil.copytree(store_dir, tmp_path / "before")
    with open_store() as store:
        store.publish_many("a", [b"late"] * 10)
        store.checkpoint()
    shutil.copy(store_dir / "CHECKPOINT", before)
    with logstore.open(before) as older:
        assert older.recovery.checkpoint_ignored == "the log ends before it"
        assert older.queue("a").depth == 10


STEPS = st.lists(
    st.sampled_from(
        ["publish", "long", "fan", "take", "stage", "begin", "commit", "prepare", "rollback", "churn", "checkpoint"]
    ),
    min_size=5,
    max_size=40,
)


def any_work(path: Path, steps: list[str], random: Random) -> None:
    """Executes the steps; everything is durable at the end."""
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        queues = [store.declare_queue(name) for name in QUEUES]
        open_one: logstore.Transaction | None = None
        for number, step in enumerate(steps):
            queue = random.choice(queues)
            if step == "publish":
                store.publish_many(queue, [b"%d" % number] * random.randrange(1, 20), transaction=open_one, wait=False)
            elif step == "long":
                store.publish(queue, bytes(random.randrange(100_000)), wait=False)
            elif step == "fan":
                store.publish(queues, b"all", transaction=open_one, wait=False)
            elif step == "take":
                free = [one.id for one in store.messages(queue) if not one.locked]
                for key in free[: random.randrange(1, 8)]:
                    store.dequeue(key, queue, transaction=open_one, wait=False)
            elif step == "stage":
                store.stage(b"", b"staged", wait=False)
            elif step == "begin" and open_one is None:
                open_one = store.begin(random.choice([None, logstore.Xid(1, b"%d" % number, b"")]))
            elif step in ("commit", "rollback", "prepare") and open_one is not None:
                if open_one.xid is not None:
                    open_one.end()
                if step == "prepare" and open_one.xid is not None:
                    open_one.prepare()
                elif step == "rollback":
                    open_one.rollback()
                else:
                    open_one.commit()
                open_one = None
            elif step == "churn":
                store.dequeue_many(store.publish_many(queue, [bytes(20_000)] * 60), queue, wait=False)
            elif step == "checkpoint":
                store.checkpoint()
        store.force()


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.integers(0, 2**32))
def test_after_any_work_and_a_kill_the_store_is_the_same_with_and_without(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], seed: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "store"
    killed_after(lambda: any_work(path, steps, Random(seed)))
    report, found, without = both_ways(path)
    assert found == without
    if "checkpoint" in steps:
        assert report.checkpoint_used or report.checkpoint_ignored == "the base of the log has passed it"


def test_a_header_says_how_much_there_is(busy_dir: Path) -> None:
    read = decode_checkpoint((busy_dir / "CHECKPOINT").read_bytes())
    for name in ("messages", "places", "operations", "transactions", "deletions"):
        more = replace(read.header, **{name: getattr(read.header, name) + 1})
        raw = more.encode() + (busy_dir / "CHECKPOINT").read_bytes()[4096:]
        assert decoded(raw) is None
        assert refusal_by_the_core(busy_dir, raw) == "it is damaged"
