"""``max_log_bytes`` is stored: an open with the option and an open store set it, and every later open applies it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.stores import SMALL_SEGMENT, segment_files
from logstore.store.limit import LIMIT_KEY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore

    Open = Callable[..., MessageStore]

LIMIT = 8 * SMALL_SEGMENT


def limit_of(store: MessageStore) -> int | None:
    return store.fullness().max_log_bytes


def fill(store: MessageStore) -> None:
    with pytest.raises(logstore.StoreFull):
        store.publish_many(store.declare_queue("q"), [bytes(20_000)] * 2000)


def test_the_next_open_without_the_option_applies_the_limit(open_store: Open, store_dir: Path) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    open_store(max_log_bytes=LIMIT).close()
    store = open_store()
    assert limit_of(store) == LIMIT
    fill(store)
    assert len(segment_files(store_dir)) * SMALL_SEGMENT <= LIMIT
    row = json.loads(store.config[LIMIT_KEY])
    assert row["bytes"] == LIMIT
    assert before <= datetime.fromisoformat(row["set_at"]) <= datetime.now(UTC)


def test_the_option_changes_the_limit_and_the_same_limit_changes_nothing(open_store: Open) -> None:
    open_store(max_log_bytes=LIMIT).close()
    store = open_store(max_log_bytes=LIMIT)
    row = store.config[LIMIT_KEY]
    store.close()
    open_store(max_log_bytes=LIMIT).close()
    store = open_store(max_log_bytes=2 * LIMIT)
    assert limit_of(store) == 2 * LIMIT
    store.close()
    store = open_store()
    assert limit_of(store) == 2 * LIMIT
    assert json.loads(store.config[LIMIT_KEY]) != json.loads(row)


@pytest.mark.parametrize("text", ["1G", "1 GiB", "1048576K", str(1 << 30)])
def test_the_limit_may_be_a_text_as_the_commands_take_it(open_store: Open, text: str) -> None:
    assert limit_of(open_store(max_log_bytes=text)) == 1 << 30


def test_none_clears_the_limit_and_a_full_store_has_room_again(open_store: Open) -> None:
    store = open_store(max_log_bytes=LIMIT)
    fill(store)
    store.close()
    store = open_store(max_log_bytes="none")
    assert limit_of(store) is None
    assert LIMIT_KEY not in store.config
    store.publish("q", bytes(20_000))
    assert not store.fullness().full
    store.close()
    assert limit_of(open_store()) is None


@pytest.mark.parametrize("limit", [6 * SMALL_SEGMENT - 1, 0, -1, "some", 1.5, True])
def test_a_limit_below_six_segments_is_refused_before_anything_changes(
    open_store: Open, store_dir: Path, limit: Any
) -> None:
    with pytest.raises((logstore.OptionError, TypeError), match="max_log_bytes"):
        open_store(max_log_bytes=limit)
    assert not segment_files(store_dir)
    open_store(max_log_bytes=LIMIT).close()
    with pytest.raises((logstore.OptionError, TypeError), match="max_log_bytes"):
        open_store(max_log_bytes=limit)
    assert limit_of(open_store()) == LIMIT


@pytest.mark.parametrize("place", ["absent", "above/absent", "empty"])
@pytest.mark.parametrize(
    "options",
    [
        {"max_log_bytes": 1 << 20},
        {"max_log_bytes": 3 << 20, "segment_size": 1 << 20},
        {"max_log_bytes": "some"},
        {"segment_size": 0},
        {"initial_segments": 0},
        {"max_write_buffers": 1},
        {"max_undurable_bytes": 0},
        {"max_prepared": 0},
        {"prepared_timeout": -1},
        {"scrub_rate": 1},
        {"durability": "some"},
        {"connect": "some"},
        {"connect": "nonsense://user@host/database"},
        {"catalog": "some schema\0"},
        {"catalog_timeout": 0},
    ],
    ids=str,
)
def test_an_open_that_is_refused_for_an_option_leaves_no_trace(
    tmp_path: Path, options: dict[str, Any], place: str
) -> None:
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((logstore.OptionError, TypeError)):
        logstore.open(tmp_path / place, **options)
    assert sorted(tmp_path.rglob("*")) == before
    with logstore.open(tmp_path / place, segment_size=2 << 20) as store:
        assert store.segment_size == 2 << 20


def test_a_limit_below_the_log_is_accepted_and_refuses_growth_until_enough_is_consumed(
    open_store: Open, store_dir: Path
) -> None:
    store = open_store()
    queue = store.declare_queue("q")
    ids = store.publish_many(queue, [bytes(20_000)] * 600)
    store.close()
    store = open_store(max_log_bytes=LIMIT)
    with pytest.raises(logstore.StoreFull):
        for _ in range(200):  # before it was closed it may have made files in advance
            ids = [*ids, store.publish("q", bytes(20_000))]
    store.close()
    store = open_store()
    assert limit_of(store) == LIMIT
    store.dequeue_many(ids, "q")
    store.publish("q", b"room")
    store.compact()
    assert len(segment_files(store_dir)) * SMALL_SEGMENT <= LIMIT


@pytest.mark.parametrize("limit", [2 * LIMIT, "8M", "none"])
def test_an_open_store_takes_another_limit_at_once_and_keeps_it(
    open_store: Open, store_dir: Path, limit: int | str
) -> None:
    store = open_store(max_log_bytes=LIMIT)
    fill(store)
    store.set_max_log_bytes(limit)
    wanted = None if limit == "none" else 2 * LIMIT
    assert limit_of(store) == wanted
    store.publish("q", bytes(20_000))
    if wanted is not None:
        fill(store)
        assert LIMIT < len(segment_files(store_dir)) * SMALL_SEGMENT <= wanted
    store.close()
    assert limit_of(open_store()) == wanted


def test_an_open_store_takes_a_lower_limit_and_does_not_grow(open_store: Open, store_dir: Path) -> None:
    store = open_store()
    store.publish_many(store.declare_queue("q"), [bytes(20_000)] * 600)
    store.set_max_log_bytes(LIMIT)
    with pytest.raises(logstore.StoreFull):
        store.publish_many("q", [bytes(20_000)] * 200)
    before = len(segment_files(store_dir))
    with pytest.raises(logstore.StoreFull):
        store.publish("q", bytes(200_000))
    assert len(segment_files(store_dir)) == before


@pytest.mark.parametrize("limit", [6 * SMALL_SEGMENT - 1, 0, -1, "some", 1.5, True])
def test_an_open_store_refuses_what_an_open_refuses(open_store: Open, limit: Any) -> None:
    store = open_store(max_log_bytes=LIMIT)
    with pytest.raises((logstore.OptionError, TypeError), match="max_log_bytes"):
        store.set_max_log_bytes(limit)
    assert limit_of(store) == LIMIT
    store.close()
    with pytest.raises(logstore.StoreClosed):
        store.set_max_log_bytes(2 * LIMIT)
    assert limit_of(open_store()) == LIMIT


def test_a_limit_that_the_catalog_does_not_take_is_not_in_force(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise logstore.CatalogUnavailable("the catalog gives no answer")

    store = open_store(max_log_bytes=LIMIT)
    with monkeypatch.context() as patches:
        patches.setattr("logstore.store.maintenance.keep_limit", refuse)
        with pytest.raises(logstore.CatalogUnavailable):
            store.set_max_log_bytes("none")
    assert limit_of(store) == LIMIT
    fill(store)


def test_an_open_that_fails_does_not_change_the_stored_limit(open_store: Open) -> None:
    store = open_store(max_log_bytes=LIMIT)
    with pytest.raises(logstore.StoreLocked):
        open_store(max_log_bytes=2 * LIMIT)
    store.close()
    assert limit_of(open_store()) == LIMIT


@pytest.mark.parametrize("row", ["", "8388608", "[]", '{"bytes": 1.5, "set_at": "2026-01-01"}', '{"bytes": -1}'])
def test_a_row_that_is_no_limit_is_named_and_the_option_replaces_it(open_store: Open, row: str) -> None:
    store = open_store()
    store.config[LIMIT_KEY] = row
    store.close()
    with pytest.raises(logstore.CatalogError, match=LIMIT_KEY):
        open_store()
    open_store(max_log_bytes=LIMIT).close()
    assert limit_of(open_store()) == LIMIT
