"""Errors from outside: wrong directories, files, limits and arguments.

Each raises a typed error that says what happened, where, and what to do next. Nothing is lost or changed by it, and the
store works again once the cause is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.stores import ROOT, SMALL_SEGMENT, contents, segment_files
from logstore import errors
from logstore.codec.files import Meta, SegmentHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logstore import MessageStore

Open = Any
Run = Any
NOBODY = 65534


def explains(problem: BaseException, *words: object) -> None:
    """The message is a sentence for an operator and contains these words."""
    text = str(problem)
    assert len(text.split()) >= 6, text
    assert ";" in text or ":" in text or ". " in text, text  # it says what happened, then what to do
    for word in words:
        assert str(word) in text, text


def fingerprint(directory: Path) -> dict[str, str]:
    """A digest of every segment and of the files that make the directory a store; other files may change."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.iterdir())
        if path.suffix == ".seg" or path.name == "META"
    }


@pytest.fixture
def closed(open_store: Open, store_dir: Path) -> Path:
    """A store with a few segments of messages, after an orderly close."""
    with open_store() as store:
        queue = store.declare_queue("q")
        for number in range(60):
            store.publish(queue, b"%d " % number + bytes([number]) * 20_000, header=b"h")
    return store_dir


EXPECTED = [b"%d " % number + bytes([number]) * 20_000 for number in range(60)]


def in_use(directory: Path) -> list[Path]:
    """The segments of the log."""
    return [file for file in segment_files(directory) if file.read_bytes()[:8] == b"LOGSTORE"]


# ---- the wrong directory ----


def test_a_directory_that_is_not_there_is_no_store_unless_one_may_be_made(store_dir: Path) -> None:
    with pytest.raises(errors.NotAStore) as caught:
        logstore.open(store_dir, create=False)
    explains(caught.value, store_dir)
    assert not store_dir.exists()


def test_an_empty_directory_is_no_store_and_stays_empty(store_dir: Path) -> None:
    store_dir.mkdir()
    with pytest.raises(errors.NotAStore):
        logstore.open(store_dir, create=False)
    assert list(store_dir.iterdir()) == []


def test_a_directory_with_other_files_does_not_become_a_store(store_dir: Path) -> None:
    store_dir.mkdir()
    (store_dir / "letters.txt").write_text("dear")
    with pytest.raises(errors.NotAStore) as caught:
        logstore.open(store_dir)
    explains(caught.value, store_dir, "letters.txt")
    assert [path.name for path in store_dir.iterdir()] == ["letters.txt"]


def test_segments_whose_meta_was_lost_are_never_made_into_a_new_store(closed: Path, open_store: Open) -> None:
    meta = (closed / "META").read_bytes()
    (closed / "META").unlink()
    before = fingerprint(closed)
    with pytest.raises(errors.NotAStore) as caught:
        open_store()
    explains(caught.value, closed)
    assert fingerprint(closed) == before
    (closed / "META").write_bytes(meta)
    assert contents(open_store().queue("q")) == EXPECTED


def test_lost_and_found_alone_leaves_a_directory_empty_enough(store_dir: Path, open_store: Open) -> None:
    (store_dir / "lost+found").mkdir(parents=True)
    open_store().declare_queue("q")


def test_a_creation_that_was_interrupted_before_its_first_file_was_complete_starts_again(
    store_dir: Path, open_store: Open
) -> None:
    store_dir.mkdir()
    (store_dir / "LOCK").touch()
    (store_dir / "META.part").write_bytes(b"half")
    open_store().declare_queue("q")
    assert not (store_dir / "META.part").exists()


def test_a_file_or_a_path_through_one_is_no_store(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, file / "below", file / "far" / "below"):
        with pytest.raises(errors.StoreError) as caught:
            logstore.open(path)
        explains(caught.value, path)
    assert file.read_text() == "x"


@pytest.mark.parametrize("path", ["", "nul\0byte", "x" * 300])
def test_an_invalid_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((errors.StoreError, ValueError)):
        logstore.open(path)
    assert list(tmp_path.rglob("*.seg")) == []


@pytest.mark.parametrize("meta", [b"", b"junk", bytes(4096), b"LSTRMETA" + bytes(4088), os.urandom(4096)])
def test_an_invalid_meta_is_refused_and_left_unchanged(closed: Path, open_store: Open, meta: bytes) -> None:
    (closed / "META").write_bytes(meta)
    before = fingerprint(closed)
    with pytest.raises(errors.StoreError) as caught:
        open_store()
    assert isinstance(caught.value, errors.NotAStore | errors.CorruptLog)
    explains(caught.value)
    assert fingerprint(closed) == before


def test_a_meta_without_any_segment_is_corruption(closed: Path, open_store: Open) -> None:
    for file in segment_files(closed):
        file.unlink()
    with pytest.raises(errors.CorruptLog) as caught:
        open_store()
    explains(caught.value)
    assert segment_files(closed) == []


@pytest.mark.parametrize("name", ["META", "LOCK", "segment", "catalog.sqlite"])
@pytest.mark.parametrize("kind", ["symlink", "fifo", "socket", "directory"])
def test_a_file_that_is_not_regular_is_refused_without_waiting(
    closed: Path, tmp_path: Path, open_store: Open, name: str, kind: str
) -> None:
    victim = in_use(closed)[0] if name == "segment" else closed / name
    if name == "catalog.sqlite" and kind == "symlink":
        pytest.skip("SQLite's own business: an operator may link the catalog to another disk")
    kept = tmp_path / "kept"
    victim.rename(kept)
    if kind == "symlink":
        victim.symlink_to(kept)
    elif kind == "fifo":
        os.mkfifo(victim)
    elif kind == "socket":
        made = socket.socket(socket.AF_UNIX)
        here = Path.cwd()
        os.chdir(closed)  # a socket's path must be short
        try:
            made.bind(victim.name)
        finally:
            os.chdir(here)
            made.close()
    else:
        victim.mkdir()
    with pytest.raises(errors.StoreError) as caught:
        open_store()
    explains(caught.value)
    shutil.rmtree(victim) if kind == "directory" else victim.unlink()
    kept.rename(victim)
    assert contents(open_store().queue("q")) == EXPECTED


# ---- of another store, of a newer or an older version ----


def newer(data: bytes) -> bytes:
    """The version field follows the magic of eight bytes."""
    return data[:8] + (2).to_bytes(4, "little") + data[12:]


def test_a_newer_version_is_refused_in_meta_and_in_every_header(closed: Path, open_store: Open) -> None:
    files = [closed / "META", *in_use(closed)]
    assert len(files) > 3
    for file in files:
        original = file.read_bytes()
        file.write_bytes(newer(original))
        before = fingerprint(closed)
        with pytest.raises(errors.VersionError) as caught:
            open_store()
        explains(caught.value)
        assert fingerprint(closed) == before
        file.write_bytes(original)
    assert contents(open_store().queue("q")) == EXPECTED


def test_another_stores_segment_in_place_of_ours_is_corruption(closed: Path, tmp_path: Path, open_store: Open) -> None:
    with open_store(tmp_path / "other") as other:
        queue = other.declare_queue("q")
        for _ in range(60):
            other.publish(queue, bytes(20_000))
    for file in in_use(closed)[:-1]:
        original = file.read_bytes()
        shutil.copy(tmp_path / "other" / file.name, file)
        with pytest.raises(errors.CorruptLog) as caught:
            open_store()
        assert caught.value.segment == file.name
        explains(caught.value, file.name)
        file.write_bytes(original)
    assert contents(open_store().queue("q")) == EXPECTED


def test_a_stray_segment_of_another_store_is_never_taken_for_ours(
    closed: Path, tmp_path: Path, open_store: Open
) -> None:
    with open_store(tmp_path / "other") as other:
        other.publish(other.declare_queue("q"), b"not yours")
    stray = in_use(tmp_path / "other")[0]
    last = int(segment_files(closed)[-1].stem, 16)
    shutil.copy(stray, closed / f"{last + SMALL_SEGMENT:016x}.seg")
    assert contents(open_store().queue("q")) == EXPECTED


def test_a_catalog_that_is_not_the_logs_is_refused(closed: Path, tmp_path: Path, open_store: Open) -> None:
    with open_store(tmp_path / "other") as other:
        other.declare_queue("q")
    mine = closed / "catalog.sqlite"
    kept = mine.read_bytes()
    before = fingerprint(closed)
    mine.unlink()
    with pytest.raises(errors.CatalogMismatch) as caught:
        open_store()
    explains(caught.value)
    shutil.copy(tmp_path / "other" / "catalog.sqlite", mine)
    with pytest.raises(errors.CatalogMismatch) as caught:
        open_store()
    explains(caught.value)
    mine.write_bytes(b"")
    with pytest.raises(errors.CatalogMismatch):
        open_store()
    mine.write_bytes(b"not a database at all " * 300)
    with pytest.raises(errors.CatalogError) as damaged:
        open_store()
    explains(damaged.value)
    assert fingerprint(closed) == before
    mine.write_bytes(kept)
    assert contents(open_store().queue("q")) == EXPECTED


def test_a_catalog_older_than_the_log_is_refused(closed: Path, open_store: Open) -> None:
    mine = closed / "catalog.sqlite"
    old = mine.read_bytes()
    with open_store() as store:
        store.publish(store.declare_queue("younger"), b"x")
    young = mine.read_bytes()
    mine.write_bytes(old)
    before = fingerprint(closed)
    with pytest.raises(errors.CatalogMismatch, match="older") as caught:
        open_store()
    explains(caught.value)
    assert fingerprint(closed) == before
    mine.write_bytes(young)
    assert contents(open_store().queue("younger")) == [b"x"]


# ---- of another user ----


def test_a_store_that_is_open_elsewhere_is_locked(store: MessageStore, run_python: Run, open_store: Open) -> None:
    queue = store.declare_queue("q")
    code = """
        import sys, logstore
        try:
            logstore.open(sys.argv[1])
        except logstore.StoreLocked as problem:
            print(problem)
    """
    found = run_python(code, store.path)
    assert str(store.path) in found.stdout, found.stderr
    assert "close it" in found.stdout
    with pytest.raises(errors.StoreLocked) as caught:
        open_store()
    explains(caught.value, store.path)
    store.publish(queue, b"undisturbed")
    store.close()
    assert contents(open_store().queue("q")) == [b"undisturbed"]


def test_a_lock_goes_with_its_process_however_that_ends(store_dir: Path, open_store: Open) -> None:
    code = (
        "import sys, time, logstore\n"
        "store = logstore.open(sys.argv[1], segment_size=524288)\n"
        "store.publish(store.declare_queue('q'), b'acknowledged')\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(store_dir)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    with pytest.raises(errors.StoreLocked):
        open_store()
    process.kill()
    process.communicate()
    assert contents(open_store().queue("q")) == [b"acknowledged"]


@pytest.fixture
def open_to_all(tmp_path: Path) -> Iterator[Path]:
    """A directory that an unprivileged user can reach."""
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="logstore-nobody-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def as_nobody(code: str, *arguments: object) -> str:
    """Runs the code without privileges, even as root; returns its output."""
    body = "import os, sys\n"
    if os.getuid() == 0:
        # imported while it is readable: the checkout may belong to root
        body += "import logstore, logstore.catalog, sqlalchemy, sqlalchemy.dialects.sqlite, sqlite3\n"
        body += f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    body += "import logstore\n" + code
    found = subprocess.run(
        [sys.executable, "-c", body, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


TRY_TO_OPEN = (
    "try:\n"
    "    logstore.open(sys.argv[1])\n"
    "except logstore.StoreError as problem:\n"
    "    print(type(problem).__name__, type(problem.__cause__).__name__, problem)\n"
)


def test_a_directory_that_may_not_be_written_is_a_plain_error(open_to_all: Path) -> None:
    locked_up = open_to_all / "root's"
    locked_up.mkdir(mode=0o555)
    for path in (locked_up, locked_up / "store", locked_up / "a" / "b"):
        said = as_nobody(TRY_TO_OPEN, path)
        assert said.startswith(("StoreError PermissionError", "StoreError OSError")), said
        assert str(path) in said
    assert list(locked_up.iterdir()) == []


def test_a_store_of_another_user_is_a_plain_error_and_unharmed(open_to_all: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("SKIPPED LOUDLY: only root can make another user's store")
    path = open_to_all / "store"
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        store.publish(store.declare_queue("q"), b"mine")
    said = as_nobody(TRY_TO_OPEN, path)
    assert said.startswith("StoreError"), said
    with logstore.open(path) as store:
        assert contents(store.queue("q")) == [b"mine"]


# ---- no room ----


def fill(store: MessageStore, size: int = 20_000) -> list[int]:
    queue = store.declare_queue("q")
    ids: list[int] = []
    with pytest.raises(errors.StoreFull) as caught:
        for _ in range(20_000):
            ids.append(store.publish(queue, b"%d" % len(ids) + bytes(size)))
    explains(caught.value)
    return ids


def test_in_a_full_store_every_growing_operation_raises_and_the_others_work(open_store: Open) -> None:
    store = open_store(max_log_bytes=6 * SMALL_SEGMENT)
    ids = fill(store)
    queue, other = store.queue("q"), store.declare_queue("other")
    staged = None
    with contextlib.suppress(errors.StoreFull):
        staged = store.stage(b"", b"")
    growing: list[Callable[[], object]] = [
        lambda: store.publish(queue, b""),
        lambda: store.publish_many(queue, [b"x", b"y"]),
        lambda: store.publish(queue, [b"parts"]),
        lambda: store.stage(),
        lambda: store.enqueue(ids[0], other),
    ]
    for grow in growing:
        with pytest.raises(errors.StoreFull, match="nothing was changed"):
            grow()
    with store.transaction() as transaction, pytest.raises(errors.StoreFull, match="nothing was changed"):
        store.publish(queue, b"", transaction=transaction)
    assert staged is None
    assert store.stats()["full"] is True
    assert [message.id for message in queue.browse()] == ids
    assert store.load_content(ids[-1]).endswith(bytes(100))
    queue.acquire(1)[0].release()
    queue.acquire(1)[0].accept()
    store.dequeue(ids[1], queue)
    store.force()
    store.compact()
    assert queue.depth == len(ids) - 2
    store.dequeue_many(ids[2:], queue)
    store.publish(queue, b"room again")
    assert store.stats()["full"] is False
    assert contents(queue) == [b"room again"]


def test_a_publish_many_that_runs_full_says_how_far_it_came(open_store: Open) -> None:
    store = open_store(max_log_bytes=6 * SMALL_SEGMENT)
    queue = store.declare_queue("q")
    with pytest.raises(errors.StoreFull) as caught:
        store.publish_many(queue, [b"%d" % i + bytes(20_000) for i in range(1000)])
    stored = list(caught.value.published)  # type: ignore[attr-defined]
    assert 0 < len(stored) < 1000
    assert [message.id for message in queue.browse()] == stored
    assert store.durable_lsn == store.next_lsn


def test_a_large_content_that_does_not_fit_leaves_nothing(open_store: Open) -> None:
    store = open_store(max_log_bytes=6 * SMALL_SEGMENT)
    queue = store.declare_queue("q")
    for content in (bytes(20 << 20), (bytes(100_000) for _ in range(200))):
        with pytest.raises(errors.StoreFull):
            store.publish(queue, content)
        assert store.stats()["messages"] == 0
    store.compact()
    key = store.publish(queue, bytes(200_000))
    assert store.load_content(key) == bytes(200_000)


def test_a_file_size_limit_refuses_a_store_that_can_be_made_later(
    store_dir: Path, run_python: Run, open_store: Open
) -> None:
    code = """
        import resource, sys, logstore
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            logstore.open(sys.argv[1], segment_size=524288)
        except logstore.StoreFull as problem:
            print(problem)
    """
    found = run_python(code, store_dir)
    assert "another segment of 524288 bytes cannot be made" in found.stdout, found.stderr
    open_store().declare_queue("q")


def test_a_write_that_the_system_refuses_poisons_and_loses_nothing_acknowledged(
    store_dir: Path, run_python: Run, open_store: Open
) -> None:
    code = """
        import resource, sys, logstore
        store = logstore.open(sys.argv[1], segment_size=524288, initial_segments=6)  # no more are wanted soon
        queue = store.declare_queue("q")
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        try:
            for number in range(10_000):
                store.publish(queue, b"%d " % number + bytes(20_000))
                print(number, flush=True)
        except logstore.OutcomeUnknown:
            pass
        try:
            store.publish(queue, b"refused")
        except logstore.StorePoisoned as problem:
            print(problem)
        store.close()
    """
    found = run_python(code, store_dir)
    *acknowledged, refusal = found.stdout.splitlines()
    assert "open it again" in refusal, found.stderr
    assert len(acknowledged) > 5
    store = open_store()
    there = [int(content.split()[0]) for content in contents(store.queue("q"))]
    assert there in (list(range(len(acknowledged))), list(range(len(acknowledged) + 1)))
    store.publish("q", b"and on")


@pytest.fixture
def small_disk(mounted_disk: Callable[[int], Path]) -> Path:
    """A file system of 8 MiB."""
    return mounted_disk(8)


def test_a_full_disk_refuses_growth_loses_nothing_and_is_drained(small_disk: Path, open_store: Open) -> None:
    path = small_disk / "store"
    store = open_store(path)
    ids = fill(store)
    assert len(ids) > 100
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="space"), ballast.open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    for _ in range(2):  # each takes one of the two segments that are reserved for opening
        store.close()
        store = open_store(path)
        queue = store.queue("q")
        assert [message.id for message in queue.browse()] == ids
        store.dequeue(ids.pop(0), queue)
    store.dequeue_many(ids, queue)
    ballast.unlink()
    store.compact()
    again = store.publish_many(queue, [bytes(20_000)] * 50)
    store.close()
    store = open_store(path)
    assert [message.id for message in store.messages("q")] == list(again)
    store.close()


def test_a_store_that_could_not_be_made_for_want_of_room_is_made_later(small_disk: Path, open_store: Open) -> None:
    path = small_disk / "store"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(7 << 20))
    with pytest.raises(errors.StoreFull) as caught:
        open_store(path, segment_size=1 << 20)
    explains(caught.value)
    ballast.unlink()
    store = open_store(path, segment_size=1 << 20)
    store.publish(store.declare_queue("q"), b"x")
    store.close()


# ---- damage ----


def walk_image(closed: Path, tmp_path: Path, name: str) -> Path:
    """A copy of the store, for damage."""
    return Path(shutil.copytree(closed, tmp_path / name))


def test_no_flipped_bit_goes_unnoticed_after_an_orderly_close(closed: Path, tmp_path: Path, open_store: Open) -> None:
    chance = random.Random(7)
    image = walk_image(closed, tmp_path, "image")
    refused = 0
    for number in range(120):
        file = chance.choice(in_use(closed))
        original = file.read_bytes()
        end = len(original.rstrip(b"\0"))
        at = chance.choice([chance.randrange(end), chance.randrange(64), 4096 + chance.randrange(200)])
        damaged = bytearray(original)
        damaged[at] ^= 1 << chance.randrange(8)
        shutil.rmtree(image)
        walk_image(closed, tmp_path, "image")
        (image / file.name).write_bytes(damaged)
        before = fingerprint(image)
        try:
            store = open_store(image)
        except errors.CorruptLog as problem:
            refused += 1
            assert (problem.segment, problem.lsn) == (file.name, int(file.stem, 16) + problem.offset), number
            assert problem.offset <= at or at < 4096
            explains(problem, file.name)
            assert fingerprint(image) == before
        except errors.VersionError:
            assert 8 <= at < 12
            assert fingerprint(image) == before
        else:  # in the batch of CLOSE itself, or above the end of the log in this file
            assert contents(store.queue("q")) == EXPECTED, (file.name, at)
            assert not store.recovery.clean or at >= end - 1 or original[4096:].rstrip(b"\0") == b"", (file.name, at)
            store.close()
    assert refused > 100


def test_a_shortened_or_missing_segment_is_corruption(closed: Path, tmp_path: Path, open_store: Open) -> None:
    files = in_use(closed)
    image = walk_image(closed, tmp_path, "image")
    for file in files[:-1]:
        for size in (0, 1, 4095, 4096, 5000, SMALL_SEGMENT // 2, None):
            shutil.rmtree(image)
            walk_image(closed, tmp_path, "image")
            victim = image / file.name
            victim.unlink() if size is None else os.truncate(victim, size)
            before = fingerprint(image)
            with pytest.raises(errors.CorruptLog) as caught:
                open_store(image)
            explains(caught.value, file.name)
            assert fingerprint(image) == before
    for size in (4096, 10_000, SMALL_SEGMENT // 4, SMALL_SEGMENT - 1):  # looks like a torn tail, but the file is short
        shutil.rmtree(image)
        walk_image(closed, tmp_path, "image")
        last = image / files[-1].name
        os.truncate(last, size)
        with pytest.raises(errors.CorruptLog, match="cut short") as caught:
            open_store(image)
        explains(caught.value, last.name)
        assert caught.value.offset == size


def test_damage_raises_on_reading_and_costs_that_message_only(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    ids = store.publish_many(queue, [b"%d" % i + bytes(10_000) for i in range(3)])
    segment = next(
        file for file in segment_files(store.path) if int(file.stem, 16) <= ids[1] < int(file.stem, 16) + SMALL_SEGMENT
    )
    with segment.open("r+b") as file:
        file.seek(ids[1] - int(segment.stem, 16) + 5000)
        file.write(b"\xff")
    for read in (lambda: store.load_content(ids[1]), lambda: store.header(ids[1]), lambda: contents(queue)):
        with pytest.raises(errors.CorruptLog) as caught:
            read()
        assert caught.value.segment == segment.name
        assert caught.value.lsn == ids[1]
        explains(caught.value, segment.name)
    assert store.load_content(ids[0]).startswith(b"0")
    assert store.load_content(ids[2]).startswith(b"2")
    store.dequeue(ids[1], queue)
    assert len(contents(queue)) == 2
    store.publish(queue, b"on")


def test_unknown_files_in_the_directory_are_ignored(closed: Path, open_store: Open) -> None:
    strange = [
        "notes.txt",
        "0000000000000000.seg.bak",
        "XYZ.seg",
        "000000000008000.seg",
        "0000000000080000.SEG",
        "ä.seg",
    ]
    for name in strange:
        (closed / name).write_bytes(b"not yours to touch")
    (closed / "holds" / "junk").write_bytes(b"?")
    store = open_store()
    assert contents(store.queue("q")) == EXPECTED
    store.close()
    assert all((closed / name).read_bytes() == b"not yours to touch" for name in strange)


def test_a_spare_full_of_noise_is_only_a_spare(closed: Path, open_store: Open) -> None:
    spares = [file for file in segment_files(closed) if file not in in_use(closed)]
    assert spares
    for file in spares:
        file.write_bytes(random.Random(1).randbytes(SMALL_SEGMENT))
    store = open_store()
    assert contents(store.queue("q")) == EXPECTED
    for _ in range(100):
        store.publish("q", bytes(20_000), wait=False)
    store.close()
    assert open_store().queue("q").depth == 160


def test_the_python_decoder_reads_the_headers_and_meta_of_the_core(closed: Path) -> None:
    meta = Meta.decode((closed / "META").read_bytes())
    assert meta.segment_size == SMALL_SEGMENT
    assert meta.max_undurable_bytes >= 2 * SMALL_SEGMENT
    end = 0
    for file in in_use(closed):
        header = SegmentHeader.decode(file.read_bytes())
        assert (header.uuid, header.segment_size) == (meta.uuid, SMALL_SEGMENT)
        assert header.first_lsn == int(file.stem, 16)
        assert end <= header.prev_end_lsn <= header.first_lsn
        end = header.prev_end_lsn


# ---- arguments ----


def test_an_invalid_id_is_refused(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    key = store.publish(queue, b"x")
    calls: list[Callable[[Any], object]] = [
        store.load_content,
        store.header,
        store.destroy,
        lambda wrong: store.append_content(wrong, b""),
        lambda wrong: store.enqueue(wrong, queue),
        lambda wrong: store.dequeue(wrong, queue),
        lambda wrong: store.dequeue_many([wrong], queue),
    ]
    for call in calls:
        for wrong in (0, -1, 1, key + 1, key - 1, 2**63, 2**64, 2**200):
            with pytest.raises(errors.UnknownMessage) as caught:
                call(wrong)
            explains(caught.value)
        for strange in (None, "1", 1.0, b"1", True, [key]):
            with pytest.raises(TypeError):
                call(strange)
    assert contents(queue) == [b"x"]


def test_an_unknown_queue_is_reported_by_name(store: MessageStore) -> None:
    key = store.stage()
    for call in (
        lambda: store.publish("nowhere", b""),
        lambda: store.publish_many("nowhere", [b""]),
        lambda: store.enqueue(key, "nowhere"),
        lambda: store.dequeue(key, "nowhere"),
        lambda: store.dequeue_many([key], "nowhere"),
        lambda: list(store.messages("nowhere")),
        lambda: store.delete_queue("nowhere"),
        lambda: store.queue("nowhere"),
    ):
        with pytest.raises(errors.UnknownQueue) as caught:
            call()
        explains(caught.value, "nowhere")


def test_a_second_dequeue_raises_another_error_than_a_dequeue_of_an_unknown_message(store: MessageStore) -> None:
    first, second = store.declare_queue("first"), store.declare_queue("second")
    key = store.publish([first, second], b"x")
    store.dequeue(key, first)
    with pytest.raises(errors.NotEnqueued) as not_there:
        store.dequeue(key, first)
    assert str(key) in str(not_there.value)
    store.dequeue(key, second)
    with pytest.raises(errors.UnknownMessage) as gone:
        store.dequeue(key, second)
    explains(gone.value, key)


@pytest.mark.parametrize("name", ["", "a" * 10_000, "nul\0", "\ud800", 5, None, b"bytes"])
def test_an_invalid_queue_name_is_refused(store: MessageStore, name: Any) -> None:
    with pytest.raises((errors.StoreError, TypeError, ValueError)):
        store.declare_queue(name)
    assert store.queues() == []
    store.declare_queue("fine")


@pytest.mark.parametrize("arguments", [{"x": object()}, {1: 2}, [1], "text", {"x": float("nan")}])
def test_arguments_that_json_cannot_hold_are_refused(store: MessageStore, arguments: Any) -> None:
    with pytest.raises((errors.StoreError, TypeError, ValueError)):
        store.declare_queue("q", arguments=arguments)
    assert store.queues() == []


def test_names_may_be_any_text(store: MessageStore, open_store: Open) -> None:
    names = ["../../etc/passwd", "a/b", "ä ö 🙂", "'; DROP TABLE queue; --", "%s%n", "-rf", " ", "A", "a"]
    for name in names:
        store.publish(store.declare_queue(name), name.encode())
    store.close()
    store = open_store()
    assert [(queue.name, contents(queue)) for queue in store.queues()] == [(name, [name.encode()]) for name in names]


@pytest.mark.parametrize("name", ["contents", "headers"])
def test_an_item_of_a_batch_that_is_a_buffer_and_cannot_be_read_is_not_called_another_type(
    store: MessageStore, name: str
) -> None:
    queue, released = store.declare_queue("q"), memoryview(b"x")
    released.release()
    for item, reason in ((memoryview(b"abcd")[::2], "not C-contiguous"), (released, "released memoryview")):
        batch: dict[str, Any] = {"contents": [b""], name: [item]}
        with pytest.raises(TypeError, match=f"^{name} is an iterable .* reading it failed: .*{reason}"):
            store.publish_many(queue, **batch)


@pytest.mark.parametrize("name", ["contents", "headers"])
@pytest.mark.parametrize("kind", [list, iter])
@pytest.mark.parametrize("index", [0, 3, 2500])
def test_an_error_of_a_batch_has_the_index_of_the_wrong_item(
    store: MessageStore, name: str, kind: Callable[[list[Any]], Any], index: int
) -> None:
    batch: dict[str, list[Any]] = {"contents": [b""] * 3000, "headers": [b""] * 3000}
    batch[name][index] = "text"
    with pytest.raises(TypeError, match=f"^{name} is .* reading it failed: item {index}: a bytes-like object"):
        store.publish_many(store.declare_queue("q"), kind(batch["contents"]), headers=kind(batch["headers"]))
