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
from logstore.store.fullness import Fullness, QueueLoad, full_document
from logstore.terminal.state import full_lines

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


def test_a_store_is_nearly_full_before_it_refuses_and_a_publisher_that_waits_then_is_never_refused(
    open_store: Open,
) -> None:
    store = open_store(max_log_bytes=LIMIT)
    queue = store.declare_queue("orders")
    ids = []
    left = store.fullness().growth_bytes_left
    assert left is not None
    assert left > SMALL_SEGMENT
    for _ in range(3):
        while not store.nearly_full:
            ids.append(store.publish(queue, BODY))
        found = store.fullness()
        assert (found.near, found.full, found.since, found.cause) == (True, False, None, "limit")
        assert found.growth_bytes_left is not None
        assert len(BODY) < found.growth_bytes_left < SMALL_SEGMENT / 2
        while store.nearly_full:
            store.dequeue(ids.pop(), queue)
        assert not store.fullness().near


def test_a_store_without_a_limit_knows_no_bound_and_is_not_nearly_full(store: MessageStore) -> None:
    assert (store.nearly_full, store.fullness().near, store.fullness().growth_bytes_left) == (False, False, None)


def test_listeners_are_told_when_it_is_nearly_full_and_when_that_is_over_by_a_thread_or_a_loop(
    open_store: Open,
) -> None:
    store = open_store(max_log_bytes=LIMIT)
    queue = store.declare_queue("orders")
    by_thread: SimpleQueue[bool] = SimpleQueue()

    async def watched() -> list[bool]:
        loop = asyncio.get_running_loop()
        told_of: list[bool] = []
        changed = asyncio.Event()

        def heard(found: Fullness) -> None:
            told_of.append(found.near)
            changed.set()

        store.on_fullness(heard, near=True, loop=loop)
        while not store.nearly_full:
            await loop.run_in_executor(None, store.publish, queue, BODY)
        await asyncio.wait_for(changed.wait(), PATIENCE_S)
        assert await loop.run_in_executor(None, lambda: by_thread.get(timeout=PATIENCE_S))
        changed.clear()
        await loop.run_in_executor(None, store.queue("orders").purge)
        await asyncio.wait_for(changed.wait(), PATIENCE_S)
        return told_of

    with store.on_fullness(lambda found: by_thread.put(found.near), near=True):
        assert asyncio.run(watched()) == [True, False]
        assert by_thread.get(timeout=PATIENCE_S) is False


def test_a_nearly_full_store_is_shown_as_such(open_store: Open) -> None:
    store = open_store(max_log_bytes=LIMIT)
    queue = store.declare_queue("orders")
    while not store.nearly_full:
        store.publish(queue, BODY)
    document = full_document(store)
    assert document is not None
    assert (document["level"], document["cause"], document["since"]) == ("nearly full", "limit", None)
    assert document["growth_bytes_left"] < SMALL_SEGMENT
    assert full_lines(document, 200)[0].startswith("NEARLY FULL: the log has ")
    assert document["remedies"][0].startswith("consume or purge queue 'orders' (")


def test_a_disk_that_has_room_again_is_found_without_a_publish(
    mounted_disk: Callable[[int], Path], open_store: Open
) -> None:
    disk = mounted_disk(12)
    store = open_store(disk / "store")
    other = disk / "other"
    other.write_bytes(bytes(4 << 20))
    fill(store)
    heard: SimpleQueue[tuple[bool, bool]] = SimpleQueue()
    with store.on_fullness(lambda found: heard.put((found.near, found.full)), near=True):
        assert store.nearly_full
        other.unlink()
        store.look_for_room()
        assert heard.get(timeout=PATIENCE_S) == (False, False)


def test_what_cannot_be_called_is_refused(store: MessageStore) -> None:
    with pytest.raises(TypeError):
        store.on_fullness(None)  # type: ignore[arg-type] # what is refused
    with pytest.raises(TypeError):
        store.on_fullness(print, loop=1)  # type: ignore[arg-type] # what is refused
