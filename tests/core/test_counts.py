"""Numbers that people read agree with their nouns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.command import fine, run, told
from kit.stores import ROOT
from logstore.core.counts import counted

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), ("1", "1 message"), (21, "21 messages")],
)
def test_one_is_singular_and_every_other_number_plural(number: object, text: str) -> None:
    assert counted(number, "message") == text


def test_a_verb_or_an_irregular_plural_is_given() -> None:
    assert counted(1, "batch", "batches") == "1 batch"
    assert counted("from 0 to 1", "message is lost", "messages are lost") == "from 0 to 1 messages are lost"


def test_the_commands_say_one_in_the_singular(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store") as store:
        orders = store.declare_queue("orders")
        first = store.publish(orders, b"x")
        branch = store.begin(logstore.Xid(1, b"order", b"db"))
        store.dequeue(first, orders, transaction=branch)
        branch.end()
        branch.prepare()
    for arguments in (
        ("info",), ("queues",), ("stats",), ("tail",), ("verify",), ("recover", "--dry-run"), ("compact", "--dry-run"),
        ("checkpoint", "--dry-run"), ("purge", "orders", "--dry-run"), ("peek", "orders"), ("salvage", "--dry-run"),
        ("backup", str(tmp_path / "target"), "--dry-run"),
    ):  # fmt: skip
        said = "".join(run(arguments[0], tmp_path / "store", *arguments[1:])[1:])
        assert not re.search(r"(?<![\d.,])1 [a-z]+s\b(?! not)", said), said
    (row,) = told("in-doubt", tmp_path / "store")["in_doubt"]
    said = fine("in-doubt", tmp_path / "store", "commit", row["xid"], "--dry-run")
    assert said.startswith("would be committed: 1 operation of transaction")


def test_no_text_puts_a_plural_noun_straight_behind_a_count_that_may_be_one() -> None:
    """Nouns of the store; a number that is a limit, or never one, may stand before a plain plural."""
    nouns = "messages|records|segments|transactions|operations|files|places|connections|channels|units|rounds|spares"
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("commands", "store", "broker", "export")
        for path in (ROOT / "logstore" / folder).rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(rf"\}} (?:more |open |prepared )?(?:{nouns})\b", line)
    ]
    assert found == []
