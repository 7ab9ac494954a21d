"""Errors are for operators: they name nothing of the code, and the next command with its directory."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import logstore
from kit.command import fails, run
from kit.stores import ROOT
from logstore.inspect import Reader

# Public names with an underscore that a text may contain: options of an open and of a reader, and calls.
PUBLIC = {*inspect.signature(logstore.open).parameters, "keep_lsn", "end_lsn", "limit_bytes", "append_content"}


def texts_of_the_core() -> list[tuple[str, str]]:
    """The file and the text of each literal with a space that the core gives to a call."""
    found = []
    for path in sorted((ROOT / "csrc").rglob("*.c")):
        if "tests" in path.parts:
            continue
        code = re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL)
        code = re.sub(r"_Static_assert\(.*?\);", "", code, flags=re.DOTALL)
        for literal in re.findall(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+', code):
            text = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', literal))
            if " " in text:
                found.append((path.name, text))
    return found


def test_no_text_of_the_core_has_a_name_of_its_code() -> None:
    texts = texts_of_the_core()
    assert len(texts) > 100
    for name, text in texts:
        own = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text)) - PUBLIC
        assert not own, (name, text)
        assert not re.search(r"\bls_|\w->|vfs|__", text), (name, text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with logstore.open(tmp_path / "a store") as store:
        store.publish(store.declare_queue("orders"), b"x")
        doubt = store.begin(logstore.Xid(1, b"other"))
        doubt.end()
        doubt.prepare()
    return tmp_path / "a store"


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("purge", "none"), "queues"),
        (("peek", "none"), "queues"),
        (("in-doubt", "commit", "1:6f:6f"), "in-doubt"),
    ],
)
def test_the_next_command_is_given_with_the_directory_quoted_for_a_shell(
    path: Path, arguments: tuple[str, ...], command: str
) -> None:
    assert f"'logstore {command} '{path}'" in fails(run(arguments[0], path, *arguments[1:]), 1)


def test_a_catalog_older_than_its_log_leads_to_its_repair(path: Path) -> None:
    old = (path / "catalog.sqlite").read_bytes()
    with logstore.open(path) as store:
        store.publish(store.declare_queue("later"), b"x")
    (path / "catalog.sqlite").write_bytes(old)
    with Reader(path) as reader:
        end_lsn = reader.info.end_lsn
    for segment in path.glob("*.seg"):
        if int(segment.stem, 16) >= end_lsn:
            segment.unlink()  # a spare: without one, compacting would not make the log smaller
    for command in (("recover",), ("recover", "--dry-run"), ("queues",), ("compact",), ("compact", "--dry-run")):
        said = fails(run(command[0], path, *command[1:]), 3)
        assert f"'logstore repair-catalog '{path}' --dry-run'" in said
    assert run("repair-catalog", path).returncode == 0
    assert run("recover", path).returncode == 0


def test_a_directory_that_is_no_store_is_to_be_checked(tmp_path: Path) -> None:
    assert "check the path" in fails(run("info", tmp_path), 3)
