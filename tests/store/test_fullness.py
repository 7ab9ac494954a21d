"""A store that is full says since when, why, and what would free it; and it calls when that begins and ends."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.command import fine, told
from kit.patience import PATIENCE_S
from kit.stores import SMALL_SEGMENT
from logstore.holds import hold
from logstore.store.fullness import Fullness, QueueLoad

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore

    Open = Callable[..., MessageStore]

LIMIT = 8 * SMALL_SEGMENT
BODY = bytes(20_000)


def fill(store: MessageStore) -> list[int]:
    """Publishes until the store is full; the ids."""
    with pytest.raises(logstore.StoreFull) as refused:
        store.publish_many(store.declare_queue("orders"), [BODY] * 4000)
    store.force()
    return list(refused.value.published)  # type: ignore[attr-defined] # set by the store


def test_a_store_with_room_is_not_full(store: MessageStore) -> None:
    found = store.fullness()
    assert (found.full, found.cause, found.since, found.max_log_bytes) == (False, None, None, None)
    assert found._as_dict() is None


def test_a_full_store_names_the_limit_and_the_moment_of_the_first_refusal(open_store: Open) -> None:
    store = open_store(max_log_bytes=LIMIT)
    before = datetime.now(UTC) - timedelta(seconds=1)
    ids = fill(store)
    found = store.fullness()
    assert (found.full, found.cause, found.max_log_bytes) == (True, "limit", LIMIT)
    assert found.since is not None
    assert before <= found.since <= datetime.now(UTC)
    assert found.log_bytes == store.stats()["log_bytes"] <= LIMIT
    assert len(ids) * len(BODY) < found.live_bytes < found.log_bytes
    assert f"max_log_bytes is {LIMIT}" in found.reason
    with pytest.raises(logstore.StoreFull):
        store.publish("orders", BODY)
    assert store.fullness().since == found.since
    queue, limit = found._remedies(QueueLoad("orders", len(ids)))
    assert queue == f"consume or purge queue 'orders' ({len(ids)} messages)"
    assert "--max-log-bytes" in limit
    store.dequeue_many(ids, "orders")
    store.force()
    store.publish("orders", BODY)
    assert (store.fullness().full, store.fullness().since, store.stats()["full"]) == (False, None, False)


def test_live_bytes_mean_the_same_everywhere_and_what_admission_counts_has_its_own_name(
    open_store: Open, store_dir: Path
) -> None:
    store = open_store(max_log_bytes=LIMIT)
    made = len(fill(store))
    found, stats, tail = store.fullness(), store.stats(), store.tail()
    live = sum(segment.live_bytes for segment in tail.segments)
    assert live == tail.live_bytes == found.live_bytes == stats["live_bytes"]
    counted = live + 128 * made
    assert counted == found.counted_bytes == stats["counted_bytes"]
    assert f"{live} of them live ({counted} counted against the limit)" in found.reason
    store.close()
    for command in ("stats", "tail", "info"):
        document = json.loads(fine(command, store_dir, "--json"))
        for part in (document["full"], document.get("log", {}), document):
            assert part.get("live_bytes", live) == live
            assert part.get("counted_bytes", counted) == counted


def test_a_full_disk_is_named_with_the_holds_that_take_room_on_it(
    mounted_disk: Callable[[int], Path], open_store: Open
) -> None:
    path = mounted_disk(12) / "store"
    store = open_store(path)
    with hold(path, "export", limit_bytes=1 << 30):
        queue = store.declare_queue("orders")
        for _ in range(4):
            store.dequeue_many(store.publish_many(queue, [BODY] * 25), queue)
        fill(store)
        found = store.fullness()
        assert (found.full, found.cause, found.max_log_bytes) == (True, "disk", None)
        assert "the disk has no room for another segment of 524288 bytes" in found.reason
        assert found.held_bytes > 0
        document = told("info", path)["full"]
        assert document["cause"] == "disk"
        assert any("end hold 'export', which keeps" in one for one in document["remedies"])
        assert document["remedies"][-1].startswith("make room on the disk")
        assert fine("info", path).startswith("FULL: the log has ")
        assert fine("tail", path).startswith("FULL: the log has ")
        assert told("tail", path)["full"]["remedies"][0].startswith("consume or purge queue 'orders' (")
    store.queue("orders").purge()
    store.publish("orders", BODY)
    assert told("info", path)["full"] is told("tail", path)["full"] is None


def test_a_callback_is_called_once_when_the_store_is_full_and_once_when_it_has_room(open_store: Open) -> None:
    store = open_store(max_log_bytes=LIMIT)

    async def watched() -> list[Fullness]:
        loop = asyncio.get_running_loop()
        told_of: list[Fullness] = []
        changed = asyncio.Event()

        def heard(found: Fullness) -> None:
            told_of.append(found)
            changed.set()

        store.on_fullness(heard, loop=loop)
        ids = await loop.run_in_executor(None, fill, store)
        await asyncio.wait_for(changed.wait(), 30)
        changed.clear()
        for _ in range(20):
            with pytest.raises(logstore.StoreFull):
                store.publish("orders", BODY)
        await loop.run_in_executor(None, store.dequeue_many, ids, "orders")
        await asyncio.wait_for(changed.wait(), 30)
        return told_of

    assert [found.full for found in asyncio.run(watched())] == [True, False]


def test_without_a_loop_a_thread_of_the_store_calls_until_the_listener_is_closed(open_store: Open) -> None:
    store = open_store(max_log_bytes=LIMIT)
    heard: SimpleQueue[tuple[bool, str]] = SimpleQueue()
    ended = store.on_fullness(print)
    with store.on_fullness(lambda found: heard.put((found.full, threading.current_thread().name))):
        ended.close()
        ids = fill(store)
        assert heard.get(timeout=PATIENCE_S) == (True, "logstore-completions")
        store.dequeue_many(ids, "orders")
        assert heard.get(timeout=PATIENCE_S) == (False, "logstore-completions")
    fill(store)
    store.close()
    assert heard.empty()


def test_what_cannot_be_called_is_refused(store: MessageStore) -> None:
    with pytest.raises(TypeError):
        store.on_fullness(None)  # type: ignore[arg-type] # what is refused
    with pytest.raises(TypeError):
        store.on_fullness(print, loop=1)  # type: ignore[arg-type] # what is refused
