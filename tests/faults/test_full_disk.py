"""A full disk: every message can be dequeued, and every promise is kept.

The file system is a small tmpfs with the log and the catalog on it; a ballast file uses up the rest.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from logstore import Xid, cli, errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore

    Open = Callable[..., MessageStore]

LIVE = 100_000
PREPARED = 2_000
MIB = 1 << 20


@pytest.fixture
def small_disk(mounted_disk: Callable[[int], Path]) -> Path:
    """A file system of 64 MiB."""
    return mounted_disk(64)


def take_the_rest(disk: Path, but: int = 0) -> None:
    """Fill the disk until no block, or only this many bytes, is left."""
    with (disk / "ballast").open("ab", buffering=0) as file:
        for size in (MIB, 4096):
            with contextlib.suppress(OSError):
                while os.statvfs(disk).f_bavail * 4096 > but:
                    file.write(bytes(size))
    assert os.statvfs(disk).f_bavail * 4096 <= but


def publish_until_full(store: MessageStore, queue: Any, ids: list[int]) -> None:
    """Small ones, singly acknowledged in groups."""
    while True:
        try:
            ids.extend(store.publish_many(queue, [b"%07d" % number for number in range(1000)]))
        except errors.StoreFull as problem:
            ids.extend(getattr(problem, "published", ()))
            return


def prepare_moves(store: MessageStore, number: int, ids: list[int]) -> None:
    """Prepared: one message is dequeued from the first queue and another is enqueued on the second."""
    transaction = store.begin(Xid(5, number.to_bytes(4, "big"), b"full"))
    store.dequeue(ids[number], "in", transaction=transaction)
    store.publish("out", b"%d" % number, transaction=transaction)
    transaction.end()
    transaction.prepare(wait=False)


def outcome(transaction: Any) -> tuple[int, bool]:
    """Decide it: every other one is committed."""
    number = int.from_bytes(transaction.xid.gtrid, "big")
    return number, number % 2 == 0


@pytest.mark.parametrize("segment_size", [MIB // 2, MIB, 4 * MIB])
def test_on_a_full_disk_every_outcome_and_every_dequeue_succeeds_through_restarts(
    small_disk: Path, open_store: Open, segment_size: int
) -> None:
    path = small_disk / "store"
    options = {"segment_size": segment_size, "max_prepared": PREPARED}
    store = open_store(path, **options)
    waiting = store.declare_queue("in")
    store.declare_queue("out")
    ids: list[int] = []
    for _ in range(LIVE // 1000):
        ids.extend(store.publish_many(waiting, [b"%07d" % number for number in range(1000)]))
    for number in range(PREPARED):
        prepare_moves(store, number, ids)
    store.force()
    take_the_rest(small_disk)
    publish_until_full(store, waiting, ids)
    assert len(ids) >= LIVE
    for _ in range(3):
        store.close()
        store = open_store(path, **options)
        assert len(store.in_doubt()) == PREPARED
    committed: set[int] = set()
    for count, transaction in enumerate(store.in_doubt()):
        number, commits = outcome(transaction)
        if commits:
            transaction.commit()
            committed.add(number)
        else:
            transaction.rollback()
        if count == PREPARED // 2:
            store.close()
            store = open_store(path, **options)
            break
    for transaction in store.in_doubt():
        number, commits = outcome(transaction)
        if commits:
            transaction.commit(wait=False)
            committed.add(number)
        else:
            transaction.rollback(wait=False)
    store.force()
    assert committed == set(range(0, PREPARED, 2))
    expected = [key for number, key in enumerate(ids) if number not in committed]
    store.close()
    store = open_store(path, **options)
    assert [message.id for message in store.messages("in")] == expected
    assert [delivery.content for delivery in store.queue("out").browse()] == [b"%d" % one for one in sorted(committed)]

    dice = random.Random(11)
    while expected:  # the newest first is the worst order for a log; then at random; singly, and in crowds
        some = expected[-20_000:]
        del expected[-20_000:]
        dice.shuffle(some)
        for key in some[:500]:
            store.dequeue(key, "in")
        store.dequeue_many(some[500:], "in")
        store.close()
        store = open_store(path, **options)
        assert store.queue("in").depth == len(expected)
    assert store.queue("out").purge() == len(committed)
    (small_disk / "ballast").unlink()
    fresh: list[int] = []
    publish_until_full(store, "in", fresh)
    assert len(fresh) > LIVE


# ---- With all that a store may have beside its log


def verified(path: Path) -> None:
    """Every checksum, chain and reference, and the checkpoint against the log."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = cli.run(["verify", str(path)])
    assert status == 0, out.getvalue() + err.getvalue()


def content_of(number: int) -> bytes:
    return b"%09d" % number * 400


def grow_until_full(store: MessageStore, expected: dict[int, bytes], number: int) -> int:
    """Publish hundreds of messages until no more is accepted; the next one's number."""
    for batch in (100, 1):
        while True:
            contents = [content_of(number + i) for i in range(batch)]
            try:
                ids = store.publish_many("in", contents)
            except errors.StoreFull as problem:
                ids = getattr(problem, "published", [])
            expected.update(zip(ids, contents, strict=False))
            number += len(ids)
            if len(ids) < batch:
                break
    return number


def is_whole(store: MessageStore, expected: dict[int, bytes]) -> None:
    assert [(message.id, message.content) for message in store.messages("in")] == list(expected.items())


@pytest.mark.parametrize("limited_by", ["the disk", "max_log_bytes"])
def test_filling_draining_and_reopening_with_checkpoints_and_backups_loses_nothing(
    small_disk: Path, open_store: Open, tmp_path: Path, limited_by: str
) -> None:
    """Two rounds without deleting a file by hand: no ballast, no backup, no checkpoint."""
    options: dict[str, Any] = {"segment_size": MIB}
    if limited_by == "max_log_bytes":
        options["max_log_bytes"] = 12 * MIB
    path = small_disk / "store"
    store = open_store(path, **options)
    store.declare_queue("in")
    expected: dict[int, bytes] = {}
    ids = store.publish_many("in", [content_of(number) for number in range(500)])
    expected.update(zip(ids, map(content_of, range(500)), strict=True))
    store.checkpoint()
    backups = [(small_disk / "backup", dict(expected))]
    store.backup(backups[0][0])
    if limited_by == "the disk":
        take_the_rest(small_disk, but=12 * MIB)
    taken: list[int] = []
    number = 500
    for cycle in range(2):
        before = number
        number = grow_until_full(store, expected, number)
        taken.append(len(expected))
        assert number > before
        with contextlib.suppress(errors.StoreFull, OSError):
            store.checkpoint()  # for which there may be no room; then it was refused, and nothing else happened
        backups.append((tmp_path / f"backup-{cycle}", dict(expected)))
        store.backup(backups[-1][0])
        is_whole(store, expected)
        store.close()
        verified(path)
        store = open_store(path, **options)
        is_whole(store, expected)
        waiting = list(expected)
        for gone in (waiting[1::2], waiting[::2][: len(waiting) // 2 - 7]):  # every other one, then nearly all
            store.dequeue_many(gone, "in")
            for key in gone:
                del expected[key]
            is_whole(store, expected)
            store.close()
            verified(path)
            store = open_store(path, **options)
            is_whole(store, expected)
        assert 0 < len(expected) <= 8
    assert min(taken[1:]) > 0.8 * taken[0]  # what is full of dead messages takes as many new ones
    for place, kept in backups:
        verified(place)
        is_whole(open_store(place), kept)


def test_too_many_open_files_for_a_new_segment_give_a_clear_error(tmp_path: Path) -> None:
    code = (
        "import logstore, os, resource, sys\n"
        "store = logstore.open(sys.argv[1], segment_size=512 << 10)\n"
        "queue = store.declare_queue('q')\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "taken = []\n"
        "try:\n"
        "    while True: taken.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError: pass\n"
        "def publish():\n"
        "    for _ in range(100): store.publish(queue, bytes(100_000))\n"
        "try: publish()\n"
        "except logstore.StoreFull as error: said = error.message\n"
        "for one in taken: os.close(one)\n"
        "publish()\n"
        "store.close()\n"
        "print(said)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "store"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    assert "too many files are open; nothing was changed. Close connections or raise the limit" in done.stdout
    assert "full" not in done.stdout
