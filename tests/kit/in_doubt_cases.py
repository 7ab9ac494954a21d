"""Prepared transactions for the tests of ``logstore in-doubt``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import logstore
from kit.command import told

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT = 512 << 10
MOVE = logstore.Xid(1, b"order-17", b"db1")
FILL = logstore.Xid(-7, b"\xff\x00")


def prepare(store: Any) -> None:
    incoming, outgoing = store.declare_queue("in"), store.declare_queue("out")
    first = store.publish(incoming, b"1")
    store.publish(incoming, b"2")
    move = store.begin(MOVE)
    store.dequeue(first, incoming, move)
    store.enqueue(first, outgoing, move)
    fill = store.begin(FILL)
    for content in (b"3", b"4"):
        store.publish([incoming, outgoing], content, transaction=fill)
    for transaction in (move, fill):
        transaction.end()
        transaction.prepare()


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = told("in-doubt", path, "list")["in_doubt"]
    return found


def on_queues(path: Path) -> tuple[list[bytes], list[bytes], int]:
    """The unlocked messages on "in" and "out", and the number of transactions in doubt."""
    with logstore.open(path) as store:
        seen = [[each.content for each in store.messages(name) if not each.locked] for name in ("in", "out")]
        return seen[0], seen[1], len(store.in_doubt())
