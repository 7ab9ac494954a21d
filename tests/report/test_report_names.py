"""Names in a report: cut in one place, told apart, in any script, and never markup."""

from __future__ import annotations

import html
import re
import warnings
from typing import TYPE_CHECKING

import pytest

from kit.troubled_store import ARABIC, CHINESE, EMOJI, HINDI, HOSTILE, LONG
from logstore.arrow import export
from logstore.report import report
from logstore.report.names import labels, short
from logstore.report.page import page
from logstore.terminal.tables import cells_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore

FOREIGN = (CHINESE, ARABIC, HINDI, EMOJI, LONG, HOSTILE, "注" * 80, "row-1")


def consumed(store: MessageStore) -> None:
    for name in FOREIGN:
        queue = store.declare_queue(name)
        store.publish_many(queue, [b"x"] * 3)
        queue.acquire(1)[0].accept()


def test_no_glyph_is_missing_whatever_the_script(open_store: Callable[..., MessageStore], store_dir: Path) -> None:
    store = open_store()
    consumed(store)
    store.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = page(report(store_dir))
    for name in FOREIGN:
        shown = html.escape(short(name, 90))
        assert re.search(rf"<text[^>]*>\s*<title>{re.escape(html.escape(name))}</title>{re.escape(shown)}<", text), name


def test_a_long_name_is_cut_in_pictures_and_whole_in_tables_and_tooltips(
    open_store: Callable[..., MessageStore], store_dir: Path
) -> None:
    store = open_store()
    consumed(store)
    store.close()
    text = page(report(store_dir))
    assert f'<li title="{LONG}">' in text
    assert f"<bdi>{short(LONG)}</bdi>" in text
    assert f'<td class="name">{LONG}</td>' in text


@pytest.mark.parametrize("name", [*FOREIGN, "a" * 200, "\N{DEVANAGARI VOWEL SIGN AA}" * 100, "e\u0301" * 99])
@pytest.mark.parametrize("columns", [10, 34, 60])
def test_a_cut_name_fits_and_keeps_its_ends(name: str, columns: int) -> None:
    cut = short(name, columns)
    assert cells_of(cut) <= columns
    if cut != name:
        head, tail = cut.split("…")
        assert name.startswith(head)
        assert name.endswith(tail)
        assert head


def test_a_short_name_is_not_cut_and_what_nobody_can_see_is_shown() -> None:
    assert short("orders") == "orders"
    assert short("a\x00b\nc") == "a\ufffdb\ufffdc"


def test_a_queue_that_was_declared_again_carries_its_id() -> None:
    assert labels({3: "orders", 7: "orders", 8: "audit"}) == {3: "orders (#3)", 7: "orders (#7)", 8: "audit"}


def test_both_queues_of_one_name_are_told_apart_on_the_page_of_an_export(
    open_store: Callable[..., MessageStore], store_dir: Path, tmp_path: Path
) -> None:
    store, target = open_store(), tmp_path / "target"
    first = store.declare_queue("orders")
    store.publish_many(first, [b"x"] * 3)
    store.force()
    export(store_dir, target)
    store.delete_queue(first)
    second = store.declare_queue("orders")
    store.publish_many(second, [b"x"] * 2)
    store.force()
    export(store_dir, target)
    text = page(report(target))
    for one in (first, second):
        assert f'<td class="name">orders (#{one.id})</td>' in text
    assert {one["queue"] for one in report(target)["depth"]["queues"]} == {"orders"}


def test_every_picture_has_a_sentence_from_its_data(open_store: Callable[..., MessageStore], store_dir: Path) -> None:
    store = open_store()
    queue = store.declare_queue("orders")
    store.publish_many(queue, [bytes(100)] * 30)
    for delivery in queue.acquire(10):
        delivery.accept()
    store.close()
    text = page(report(store_dir))
    says = re.findall(r'<p class="says">(.*?)</p>', text)
    assert len(says) == text.count("<figure>") == 6
    depth, flow, written, latency, cost, tail = sorted(
        says,
        key=lambda one: [key in one for key in ("Depth", "ended", "written", "taken from", "most:", "segment")][::-1],
    )
    assert depth.startswith("Depth of 1 queue; the deepest, “orders”, had 20 from ")
    assert "30 places were enqueued and 10 ended, so 20 more wait than before" in flow
    assert "none of them copies" in written
    assert latency.startswith("Half of the 10 messages taken from “orders” waited up to ")
    assert cost.startswith("“orders” has the most: ")
    assert cost.endswith("100 % of all.")
    assert tail.startswith("1 segment with ")
