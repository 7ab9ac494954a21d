"""A change that is refused leaves a closed store unopened, and its dry run says the same."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.command import fails, run, told
from kit.stores import SMALL_SEGMENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

XID = logstore.Xid(1, b"order-17", b"db1")
OTHER = logstore.Xid(1, b"order-18", b"db1")

CHANGES: dict[str, tuple[object, ...]] = {
    "purge": ("purge", "DIR", "orders"),
    "compact": ("compact", "DIR"),
    "checkpoint": ("checkpoint", "DIR"),
    "commit": ("in-doubt", "DIR", "commit", XID),
    "rollback": ("in-doubt", "DIR", "rollback", XID),
    "recover": ("recover", "DIR"),
    "repair-catalog": ("repair-catalog", "DIR"),
    "salvage": ("salvage", "DIR", "NEW"),
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with logstore.open(tmp_path / "DIR", segment_size=SMALL_SEGMENT) as store:
        queue = store.declare_queue("orders")
        first, *_ = store.publish_many(queue, [b"an order"] * 20)
        branch = store.begin(XID)
        store.dequeue(first, queue, transaction=branch)
        branch.end()
        branch.prepare()
    return tmp_path / "DIR"


def empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def as_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("no store")


def damage(path: Path) -> None:
    segment = min(path.glob("*.seg"))
    data = bytearray(segment.read_bytes())
    at = data.index(b"an order")
    data[at : at + 4] = b"rot!"
    segment.write_bytes(data)
    (path / "CHECKPOINT").unlink(missing_ok=True)


def block_the_lock(path: Path) -> None:
    (path / "LOCK").unlink()
    (path / "LOCK").mkdir()


MISTAKES: dict[str, Callable[[Path], object]] = {
    "no directory": shutil.rmtree,
    "an empty directory": empty,
    "a file": as_file,
    "a damaged log": damage,
    "no catalog": lambda path: (path / "catalog.sqlite").unlink(),
    "a LOCK that is no file": block_the_lock,
}


def files(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir() if one.is_file()} if path.is_dir() else {}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_and_its_dry_run_say_the_same_of_a_store_that_cannot_be_changed(
    path: Path, change: str, mistake: str
) -> None:
    MISTAKES[mistake](path)
    before = files(path)
    would = run(*CHANGES[change], "--dry-run")
    assert files(path) == before
    done = run(*CHANGES[change])
    assert (done.returncode, done.stderr) == (would.returncode, would.stderr)
    repairs = change in ("salvage", "repair-catalog") and mistake in ("no catalog", "a LOCK that is no file")
    assert repairs or done.returncode != 0, done
    assert files(path) == before


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_and_its_dry_run_say_the_same_of_a_store_that_a_program_has_open(path: Path, change: str) -> None:
    with logstore.open(path):
        would = fails(run(*CHANGES[change], "--dry-run"), 3)
        assert fails(run(*CHANGES[change]), 3) == would


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("purge", "DIR", "order"), 1),
        (("purge", "DIR", "1"), 1),
        (("in-doubt", "DIR", "commit", OTHER), 1),
        (("in-doubt", "DIR", "rollback", OTHER), 1),
        (("in-doubt", "DIR", "commit", "nonsense"), 2),
        *(((*change, "--catalog", "name"), 2) for change in CHANGES.values()),
        *(((*change, "--connect", "mysql://x"), 2) for change in CHANGES.values()),
        *(((*change, "--frobnicate"), 2) for change in CHANGES.values()),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_what_is_refused_spends_no_epoch_and_its_dry_run_says_the_same(
    path: Path, arguments: tuple[object, ...], status: int
) -> None:
    epoch, before = told("info", path)["epoch"], files(path)
    refused = fails(run(*arguments), status)
    assert fails(run(*arguments, "--dry-run"), status) == refused
    assert told("info", path)["epoch"] == epoch
    assert files(path) == before


def test_the_error_of_an_unknown_queue_names_those_like_it(path: Path) -> None:
    assert "there is no queue 'order'; there is 'orders'" in fails(run("purge", path, "order"), 1)


@pytest.mark.parametrize("arguments", [("purge", "DIR", "none"), ("in-doubt", "DIR", "commit", OTHER)], ids=str)
def test_an_unknown_name_in_an_open_store_is_a_question_for_its_writer(
    path: Path, arguments: tuple[object, ...]
) -> None:
    with logstore.open(path):
        refused = fails(run(*arguments), 3)
        assert "no broker listens" in refused
        assert fails(run(*arguments, "--dry-run"), 3) == refused


@pytest.mark.parametrize(
    "options",
    [
        ("--port", "70000"),
        ("--host", "no such host"),
        ("--segment-size", "2G"),
        ("--segment-size", "0"),
        ("--initial-segments", "0"),
        ("--max-write-buffers", "1"),
        ("--max-write-buffers", "65"),
        ("--max-log-bytes", "1M"),
        ("--max-log-bytes", "5K"),
        ("--max-log-bytes", "0"),
        ("--max-undurable-bytes", "0"),
        ("--max-prepared", "0"),
        ("--prepared-timeout", "-1"),
        ("--prepared-timeout", "nan"),
        ("--scrub", "1"),
        ("--durability", "maybe"),
        ("--catalog", "name"),
        ("--connect", "mysql://x"),
        ("--connect", "sqlite:///x"),
        ("--catalog-timeout", "-1"),
        ("--stop-timeout", "0"),
    ],
    ids=" ".join,
)
def test_serve_refuses_a_wrong_value_before_it_opens_the_store(path: Path, options: tuple[str, str]) -> None:
    epoch, before = told("info", path)["epoch"], files(path)
    result = run("serve", path, "--port", "0", *options)
    assert result.returncode in (1, 2), result
    assert result.stderr.count("\n") == 1
    assert told("info", path)["epoch"] == epoch
    assert files(path) == before
