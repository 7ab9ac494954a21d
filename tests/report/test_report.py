"""`logstore report`: its series are compared with known counts, its page is tested with arbitrary names of users."""

from __future__ import annotations

import html
import json
import logging
import os
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.exported import export_with_a_gap, manifest_of
from kit.report_page import ReportPage, check_tiles
from kit.row_histories import make_history
from kit.row_oracle import message_rows, record_rows
from kit.stores import ROOT, SMALL_SEGMENT
from logstore import holds
from logstore.arrow import export
from logstore.cli import run
from logstore.core.extras import MissingExtra
from logstore.core.moments import moment
from logstore.errors import OptionError, StoreError, UnknownQueue
from logstore.export.manifest import ExportDamaged
from logstore.export.target import read_manifest
from logstore.report import report, write_page
from logstore.report.counts import BUCKETS_MAX, NICE_US, Counts, Grid, Held, Latency, micros, step_us
from logstore.report.figures import figures
from logstore.report.page import page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore

VOID = {"meta", "br", "hr", "img", "input", "link"}
HOSTILE = "<script>alert(\"1\")</script>&<b onclick='x'>$\\frac{a}{b}$ --> ]]>"


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store whose counts are known: see the tests."""
    path = tmp_path_factory.mktemp("known") / "store"
    store = logstore.open(path, segment_size=SMALL_SEGMENT)
    dead = store.declare_queue("dead")
    orders = store.declare_queue("orders", dead_letter="dead")
    audit = store.declare_queue("audit")
    for number in range(30):
        store.publish(orders, b"x" * 100, header=b"h" * (number % 3))
    for _ in range(10):
        store.publish([orders, audit], b"y" * 50)
    for delivery in orders.acquire(5):
        delivery.accept()
    again = orders.acquire(4)
    for delivery in again:
        delivery.release()
    for delivery in orders.acquire(4):
        delivery.accept()
    for delivery in orders.acquire(2):
        delivery.reject()
    with store.transaction() as tx:
        store.publish(audit, b"z", transaction=tx)
    rolled_back = store.begin()
    store.publish(audit, b"never", transaction=rolled_back)
    rolled_back.rollback()
    doubt = store.begin(xid=logstore.Xid(7, b"g", b"b"))
    store.publish(audit, b"perhaps", transaction=doubt)
    doubt.end()
    doubt.prepare()
    store.stage(content=b"staged")
    assert len(dead.acquire(10)) == 2
    store.close()
    return path


@pytest.fixture(scope="module")
def figures_of_known(known: Path) -> dict[str, Any]:
    return report(known)


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["queue"]: one for one in rows}


def test_the_figures_are_those_of_the_known_store(figures_of_known: dict[str, Any]) -> None:
    found = figures_of_known
    queues = by_name(found["depth"]["queues"])
    assert {name: (one["enqueued"], one["ended"], one["depth"]) for name, one in queues.items()} == {
        "orders": (40, 11, 29),
        "audit": (11, 0, 11),
        "dead": (2, 0, 2),
    }
    assert found["depth"]["total"][-1] == 42
    said = found["summary"]
    assert (said["published"], said["content_bytes"]) == (44, 30 * 100 + 10 * 50 + 1 + 5 + 7 + 6)
    assert (said["closed"], said["outcomes"]) == (10, {"dequeued": 9, "rolled_back": 1})
    assert {name: said[name] for name in ("open", "places", "pending", "staged", "queues", "in_doubt")} == {
        "open": 34,
        "places": 42,
        "pending": 1,
        "staged": 2,
        "queues": 3,
        "in_doubt": 1,
    }
    orders = by_name(found["deliveries"])["orders"]
    assert (orders["settled"], orders["redelivered"], orders["most"], orders["dead_lettered"]) == (11, 4, 2, 2)
    assert by_name(found["latency"]["queues"])["orders"]["count"] == 9
    (doubt,) = found["in_doubt"]
    assert (doubt["xid"], doubt["operations"], doubt["queues"]) == ("7:67:62", 1, ["audit"])
    assert sum(found["written"]["commits"]) >= 1
    assert found["tail"]["holding_messages"] > 0


def expected_depths(path: Path, times: list[str], step: timedelta) -> dict[int, list[int]]:
    """The depth, computed backwards from the waiting messages at the end."""
    closed, opened = message_rows(path)
    places = [place for row in [*closed, *opened] for place in row["places"]]
    rows = record_rows(path)
    gone = {row["queue_id"]: row["lsn"] for row in rows if row["type"] == "QUEUE_DELETE"}
    signs = {"MESSAGE_START": 1, "MESSAGE_ENQUEUE": 1, "MESSAGE_DEQUEUE": -1}
    changes = [
        (queue_id, row["effect_time"], signs[row["type"]])
        for row in rows
        if row["type"] in signs and not row["relocated"] and row["effect_lsn"] is not None
        for queue_id in row["queue_ids"] or ()
        if row["effect_lsn"] < gone.get(queue_id, 1 << 63)
    ]
    changes += [(one["queue_id"], one["dequeue_time"], -1) for one in places if one["reason"] == "queue_deleted"]
    waiting = Counter(one["queue_id"] for row in opened for one in row["places"] if one["dequeue_lsn"] is None)
    ends = [datetime.fromisoformat(time) + step for time in times]
    return {
        queue_id: [
            waiting[queue_id] - sum(sign for one, time, sign in changes if one == queue_id and time >= end)
            for end in ends
        ]
        for queue_id in {one for one, _, _ in changes} | set(waiting)
    }


@pytest.mark.parametrize("seed", [3, 11])
def test_counts_of_random_histories_equal_those_of_plain_python(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "store"
    make_history(path, seed)
    found = report(path, top=50)
    step = timedelta(seconds=found["interval_s"])
    series = {one["queue_id"]: one["values"] for one in found["depth"]["series"]}
    assert series == expected_depths(path, found["times"], step)
    closed, opened = message_rows(path)
    places = [place for row in [*closed, *opened] for place in row["places"]]
    assert found["summary"]["outcomes"] == dict(Counter(row["outcome"] for row in closed))
    assert found["summary"]["open"] == len(opened)
    told = [one for one in places if one["dequeue_time"] is not None]
    assert sum(one["settled"] for one in found["deliveries"]) == len(told)
    assert sum(one["redelivered"] for one in found["deliveries"]) == sum(
        (one["delivery_count"] or 0) > 1 for one in told
    )
    taken = [one for one in told if one["reason"] in (None, "accepted", "rejected") and one["enqueue_time"]]
    assert sum(one["count"] for one in found["latency"]["queues"]) == len(taken)
    total = found["bytes"]["total"]
    for name in ("content_bytes", "record_bytes", "copied_bytes"):
        assert total[name] == sum(row[name] for row in [*closed, *opened])
    records = record_rows(path)
    assert sum(found["written"]["records"]) == len(records)
    assert sum(found["written"]["record_bytes"]) == sum(row["record_bytes"] for row in records)
    assert sum(found["written"]["copied_bytes"]) == sum(row["record_bytes"] for row in records if row["relocated"])


def test_a_part_of_the_time_is_cut_at_the_given_times(tmp_path: Path) -> None:
    path = tmp_path / "store"
    make_history(path, 5)
    rows = record_rows(path)
    gone = {row["queue_id"]: row["lsn"] for row in rows if row["type"] == "QUEUE_DELETE"}
    came = [
        row["effect_time"]
        for row in rows
        if row["type"] in ("MESSAGE_START", "MESSAGE_ENQUEUE") and not row["relocated"]
        if row["effect_time"] is not None
        for one in row["queue_ids"] or ()
        if row["effect_lsn"] < gone.get(one, 1 << 63)
    ]
    times = sorted(set(came))
    start, stop = times[len(times) // 3], times[2 * len(times) // 3]
    found = report(path, start=start, stop=stop, top=50)
    places = [time for time in came if start <= time < stop]
    assert sum(found["depth"]["enqueued"]) == len(places) > 0
    assert sum(found["written"]["records"]) == sum(start <= row["time"] < stop for row in rows)
    at_stop = expected_depths(path, [stop.isoformat()], timedelta(0))
    assert {one["queue_id"]: one["depth"] for one in found["depth"]["queues"]} == {
        queue_id: depth for queue_id, (depth,) in at_stop.items()
    }


def test_depth_includes_messages_whose_beginning_was_recycled(
    open_store: Callable[..., MessageStore], store_dir: Path
) -> None:
    store = open_store(durability="relaxed")
    queue = store.declare_queue("queue")
    ids: list[int] = []
    done: list[tuple[int, int]] = []  # where the log was after each step, and how many waited then
    for number in range(1200):
        ids += [store.publish(queue, bytes(4000)) for _ in range(3 if number < 60 else 1)]
        for _ in range(3 if number > 1150 else 1):  # so few wait that nothing is moved: old segments are just let go
            store.dequeue(ids.pop(0), queue)
        done.append((store.next_lsn, len(ids)))
    store.close()
    rows = record_rows(store_dir)
    assert done[100][0] < rows[0]["lsn"], "the beginning is gone"
    found = report(store_dir)
    step = timedelta(seconds=found["interval_s"])
    # An interval may end within a step, which changes the depth by three at most on its way.
    last = {}
    for row in rows:
        if row["type"] in ("MESSAGE_START", "MESSAGE_DEQUEUE") and not row["relocated"]:
            last[row["lsn"]] = row["time"]
    checked = 0
    for index, time in enumerate(found["times"]):
        end = datetime.fromisoformat(time) + step
        before = [lsn for lsn, moment in last.items() if moment < end]
        steps = [depth for lsn, depth in done if before and lsn <= max(before)]
        following = [depth for lsn, depth in done if before and lsn > max(before)][:1]
        if steps:
            depth = found["depth"]["total"][index]
            assert min(steps[-1:] + following) - 3 <= depth <= max(steps[-1:] + following) + 3, time
            checked += 1
    assert checked > 0
    assert found["depth"]["total"][-1] == len(ids)
    assert found["summary"]["unseen"] > 0
    assert "where the log was recycled since" in page(found)
    assert found["depth"]["queues"][0]["deepest"] > len(ids)


def test_depth_of_an_export_is_drawn_from_its_last_gap_on(tmp_path: Path) -> None:
    target = tmp_path / "target"
    export_with_a_gap(tmp_path / "store", target)
    found = report(target)
    (slow,) = [one for one in found["depth"]["series"] if one["queue"] == "slow"]
    known = [one for one in slow["values"] if one is not None]
    assert None in slow["values"], "before the gap"
    assert slow["values"][-len(known) :] == known
    assert set(known) <= {5, 6, 7, 8}
    row = by_name(found["depth"]["queues"])["slow"]
    assert (row["deepest"], row["depth"]) == (8, 8)
    assert all(one is None or one >= 0 for one in found["depth"]["total"])
    text = page(found)
    since = found["depth"]["known_from"].replace("T", " ").replace("+00:00", "")[:23]
    assert html.escape(f"the depth of queues is known, and drawn, only from {since} UTC on") in text
    check_tiles(text)

    before = report(target, stop=datetime.fromisoformat(found["depth"]["known_from"]))
    assert {one["depth"] for one in before["depth"]["queues"]} == {None}
    assert ("Waiting", ("–", "places, at the end of the time asked for")) in dict(
        ReportPage(page(before)).tiles
    ).items()


def test_a_transaction_that_ended_in_a_gap_of_an_export_is_not_in_doubt(tmp_path: Path) -> None:
    export_with_a_gap(tmp_path / "store", tmp_path / "target")
    assert [one["xid"] for one in report(tmp_path / "target")["in_doubt"]] == ["2:67:62"]


def test_a_queue_and_a_past_time_limit_the_report(known: Path, figures_of_known: dict[str, Any]) -> None:
    whole = figures_of_known
    audit = report(known, queues=["audit"])
    assert [one["queue"] for one in audit["depth"]["queues"]] == ["audit"]
    assert audit["summary"]["places"] == 11
    assert "of content, all queues" in page(audit)
    assert by_name(audit["depth"]["queues"])["audit"] == by_name(whole["depth"]["queues"])["audit"]
    later = datetime.fromisoformat(whole["last_time"]) + timedelta(days=1)
    after = report(known, start=later)
    assert (after["times"], after["summary"]["published"], after["latency"]["queues"]) == ([], 0, [])
    assert by_name(after["depth"]["queues"])["orders"]["depth"] == 29, "what waits still waits"
    before = report(known, stop=later)
    same = {name: before[name] for name in ("depth", "written", "latency", "bytes", "deliveries", "times")}
    assert same == {name: whole[name] for name in same}


COUNTED = ("interval_s", "times", "summary", "depth", "written", "latency", "bytes", "deliveries", "oldest")


def counted(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in COUNTED}


def test_the_report_of_an_export_equals_that_of_its_store(
    known: Path, figures_of_known: dict[str, Any], tmp_path: Path
) -> None:
    export(known, tmp_path / "target")
    found = report(tmp_path / "target")
    assert counted(found) == counted(figures_of_known)
    assert [doubt["xid"] for doubt in found["in_doubt"]] == ["7:67:62"]
    assert (found["kind"], found["tail"]) == ("export", None)
    check_page(page(found))
    audit = report(tmp_path / "target", queues=["audit"])
    assert [one["queue"] for one in audit["depth"]["queues"]] == ["audit"]
    with pytest.raises(UnknownQueue, match="there are: 'audit', 'dead', 'orders'"):
        report(tmp_path / "target", queues=["nobody"])


def test_a_stuck_message_is_the_oldest_although_it_was_relocated(
    open_store: Callable[..., MessageStore], store_dir: Path, tmp_path: Path
) -> None:
    store, target = open_store(), tmp_path / "target"
    queue = store.declare_queue("stuck")
    stuck = store.publish(queue, b"since hours")
    prepared = store.begin(xid=logstore.Xid(1, b"gone", b""))
    bound = store.publish(store.declare_queue("other"), b"bound")
    store.dequeue(bound, "other", transaction=prepared)
    prepared.end()
    prepared.prepare()
    churned = store.declare_queue("churn")
    store.dequeue_many(store.publish_many(churned, [bytes(20_000)] * 110), churned)
    store.compact()
    store.publish_many(store.declare_queue("young"), [b"x"] * 50)  # more than are told one by one, and not relocated
    store.close()
    export(store_dir, target)
    for found in (report(store_dir), report(target)):
        first, second, *_ = found["oldest"]
        assert (first["id"], first["queue"], first["moved"]) == (stuck, "stuck", True)
        assert found["summary"]["oldest_since"] == first["since"] == min(one["since"] for one in found["oldest"])
        assert first["remedy"] == "consume or purge queue 'stuck'"
        assert second["id"] == bound
        assert "commit or roll back" in second["remedy"]
        assert first["remedy"] in html.unescape(page(found))


def test_a_transaction_decided_in_a_later_export_is_counted_as_decided(
    open_store: Callable[..., MessageStore], store_dir: Path, tmp_path: Path
) -> None:
    store, target = open_store(), tmp_path / "target"
    queue = store.declare_queue("queue")
    ids = store.publish_many(queue, [b"x"] * 10)
    doubts = [store.begin(xid=logstore.Xid(1, b"%d" % number, b"")) for number in range(3)]
    for number, doubt in enumerate(doubts):
        store.dequeue(ids[number], queue, transaction=doubt)
        store.publish(queue, b"y", transaction=doubt)
        doubt.end()
        doubt.prepare()
    export(store_dir, target)
    between = report(target)
    assert (len(between["in_doubt"]), between["depth"]["total"][-1]) == (3, 10)
    doubts[0].commit()
    doubts[1].rollback()
    export(store_dir, target)
    after = report(target)
    assert [doubt["xid"] for doubt in after["in_doubt"]] == ["1:32:"]
    assert (after["depth"]["total"][-1], sum(after["depth"]["enqueued"])) == (10, 11)
    assert after["summary"]["outcomes"] == {"dequeued": 1, "rolled_back": 1}


def test_an_open_set_of_another_moment_is_refused(known: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    export(known, target)
    (target / manifest_of(target).open[0].path).unlink()
    with pytest.raises(StoreError, match="run the export again"):
        report(target)


# ---- The page


class Page(HTMLParser):
    """Takes a page apart; complains of a tag that is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], "tags that stay open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def check_page(text: str) -> Page:
    """Check that the page loads nothing, runs nothing, and has no id twice."""
    found = Page(text)
    assert not {"script", "iframe", "object", "embed", "link", "img", "image", "base", "form"} & set(found.tags)
    for name, value in found.attributes:
        assert not name.startswith("on"), name
        assert name not in ("src", "srcset", "action", "data"), (name, value)
        if name in ("href", "xlink:href"):
            assert (value or "").startswith("#"), value
    assert "@import" not in text
    assert all(url.startswith("#") for url in re.findall(r"url\(['\"]?([^)]*)", text))
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for name, value in found.attributes:
        if name in ("xlink:href", "clip-path") and value:
            assert re.sub(r"^url\(|\)$", "", value)[1:] in ids, value
    return found


def test_a_page_loads_nothing_and_runs_nothing(figures_of_known: dict[str, Any], tmp_path: Path) -> None:
    found = figures_of_known
    target = tmp_path / "page.html"
    write_page(found, target)
    made = check_page(target.read_text("utf-8"))
    assert made.tags["svg"] == 12, "six pictures, each for a wide page and for a phone"
    assert {"orders", "audit", "dead", "7:67:62"} <= {word.strip() for word in made.words}
    assert page(found) == target.read_text("utf-8"), "equal figures are equal bytes"


@pytest.mark.parametrize(
    "what", ["a closed store", "a live store", "an export", "a queue", "a past time", "many queues"]
)
def test_every_tile_says_what_the_tables_below_it_say(
    what: str, known: Path, open_store: Callable[..., MessageStore], store_dir: Path, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}
    path = known
    if what == "an export":
        path = tmp_path / "target"
        export(known, path)
    elif what == "a live store":
        path = store_dir
        store = open_store()
        make_moved(store)
    elif what == "a queue":
        asked["queues"] = ["audit"]
    elif what == "a past time":
        first, last = (datetime.fromisoformat(report(known)[name]) for name in ("first_time", "last_time"))
        asked["stop"] = first + (last - first) / 2
    elif what == "many queues":
        path = store_dir
        numbered(open_store, 30)
        asked["top"] = 3
    check_tiles(page(report(path, **asked)))


def make_moved(store: MessageStore) -> None:
    """Old messages, more than a table lists, that a relocation has moved, and young ones."""
    old = store.declare_queue("old", dead_letter=store.declare_queue("dead").name)
    store.publish_many(old, [b"old"] * 30)
    for delivery in old.acquire(10):
        delivery.reject()
    churned = store.declare_queue("churn")
    for _ in range(8):
        store.dequeue_many(store.publish_many(churned, [bytes(20_000)] * 110), churned)
        store.compact()
    store.publish_many(old, [b"young"] * 5)


def test_the_age_of_a_message_whose_time_only_the_tail_knows_is_that_of_the_tail(
    open_store: Callable[..., MessageStore], store_dir: Path
) -> None:
    make_moved(open_store())
    document = report(store_dir)
    tail = document["tail"]
    holder = next(one for one in tail["holders"] if one["kind"] == "message")
    held = Held(holder["id"], 1, None, 3, 1, 0, staged=False, moved=True)
    counts = Counts(Grid(0, 1_000_000, 0), {1: "old"}, oldest=[held])
    facts = {name: document[name] for name in ("from", "to", "read_time", "queues_asked")}
    found = figures(counts, facts, 10, tail)
    (one,) = found["oldest"]
    assert one["since"] == found["summary"]["oldest_since"] == holder["since"] is not None
    unknown = Counts(Grid(0, 1_000_000, 0), {1: "old"}, oldest=[replace(held, id=1)])
    found = figures(unknown, facts, 10, tail)
    ages = [one["since"] for one in found["tail"]["holders"]]
    assert found["oldest"][0]["since"] is None
    assert (found["summary"]["oldest_since"], found["summary"]["oldest_is_known"]) == (min(ages), False)


def test_a_report_beside_a_writer_is_of_one_moment(open_store: Callable[..., MessageStore], store_dir: Path) -> None:
    store = open_store()
    make_moved(store)
    found = report(store_dir)
    assert found["tail"]["next_lsn"] == found["end_lsn"]
    assert found["summary"]["places"] == sum(one["depth"] for one in found["depth"]["queues"])


def test_on_a_phone_only_the_boxes_of_tables_scroll_sideways(figures_of_known: dict[str, Any]) -> None:
    text = page(figures_of_known)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    tables = [one for tables in ReportPage(text).tables.values() for one in tables]
    assert len(tables) > 10
    assert all(one.scrolls for one in tables)
    assert re.search(r"\.scroll \{[^}]*overflow-x: auto", text)
    assert re.search(r"\np, h1, h2, summary, figcaption, li, \.tile \{[^}]*overflow-wrap: anywhere", text)
    assert re.search(r"figure svg \{[^}]*max-width: 100%", text)
    narrow = [int(width) for width in re.findall(r'-narrow" role="img"[^>]* width="(\d+)"', text)]
    assert len(narrow) == 6
    assert max(narrow) <= 390 - 2 * (10 + 12 + 1), "the page's and the section's padding, and its border"


def test_what_an_export_could_not_have_is_said_on_its_page(
    open_store: Callable[..., MessageStore], store_dir: Path, tmp_path: Path, known: Path
) -> None:
    store, target = open_store(), tmp_path / "target"
    make_moved(store)
    store.close()
    export(store_dir, target)
    manifest = read_manifest(target)
    assert manifest is not None
    missing = manifest.missing_before
    assert missing is not None
    found = report(target)
    assert found["missing_before"] == {"lsn": missing.lsn, "time": missing.time.isoformat()}
    said = [line for line in ReportPage(page(found)).texts[""] if f"everything below LSN {missing.lsn}" in line]
    assert said[0].startswith("recycled before the first export: ")
    assert "how many messages that was is not recorded" in said[0]
    (own,) = [line for line in ReportPage(page(report(store_dir))).texts[""] if f"below LSN {missing.lsn}" in line]
    assert own.startswith("no longer in the log: everything")
    assert report(known)["missing_before"] is None
    assert "below LSN" not in page(report(known))


def test_names_given_by_users_are_escaped(open_store: Callable[..., MessageStore], store_dir: Path) -> None:
    store = open_store()
    queue = store.declare_queue(HOSTILE)
    for _ in range(3):
        store.publish(queue, b"x")
    queue.acquire(1)[0].accept()
    doubt = store.begin(xid=logstore.Xid(1, b"<b>", b"'"))
    store.publish(queue, b"x", transaction=doubt)
    doubt.end()
    doubt.prepare()
    store.close()
    found = report(store_dir, title=f"</title>{HOSTILE}")
    text = page(found)
    made = check_page(text)
    assert "alert(" not in re.sub(r"&lt;script&gt;alert\(", "", text)
    assert HOSTILE in {word.strip() for word in made.words}
    assert any(HOSTILE[:20] in word for word in made.words)


def numbered(open_store: Callable[..., MessageStore], count: int) -> None:
    store = open_store()
    for number in range(count):
        queue = store.declare_queue(f"queue-{number:04d}")
        store.publish_many(queue, [b"x"] * (1 + (number % 7)), wait=False)
    store.close()


def test_the_first_of_many_queues_are_listed_and_the_others_summed_up(
    open_store: Callable[..., MessageStore], store_dir: Path
) -> None:
    numbered(open_store, 300)
    found = report(store_dir, top=5)
    depth = found["depth"]
    assert (len(depth["queues"]), len(depth["series"]), depth["rest"]["queues"]) == (300, 5, 295)
    assert depth["rest"]["depth"] + sum(one["values"][-1] for one in depth["series"]) == depth["total"][-1]
    text = page(found)
    check_page(text)
    assert "295 others together" in text
    assert len(text) < 400_000


def test_a_single_other_queue_is_not_called_several(open_store: Callable[..., MessageStore], store_dir: Path) -> None:
    numbered(open_store, 6)
    text = page(report(store_dir, top=5))
    check_page(text)
    assert "1 other queue" in text
    assert "together" not in text


def test_an_empty_log_has_a_page(open_store: Callable[..., MessageStore], store_dir: Path) -> None:
    open_store().close()
    found = report(store_dir)
    assert found["summary"]["published"] == 0
    made = check_page(page(found))
    assert "No message was on any queue." in made.words


def test_a_single_message_has_a_page(open_store: Callable[..., MessageStore], store_dir: Path) -> None:
    store = open_store()
    store.publish(store.declare_queue("one"), b"x")
    store.close()
    found = report(store_dir)
    assert found["depth"]["total"][-1] == 1
    check_page(page(found))


def test_a_report_beside_a_writer_shows_durable_records_and_leaves_no_hold(
    open_store: Callable[..., MessageStore], store_dir: Path
) -> None:
    store = open_store()
    queue = store.declare_queue("live")
    store.publish_many(queue, [b"x"] * 100)
    found = report(store_dir)
    assert (found["state"], found["depth"]["total"][-1]) == ("live", 100)
    assert found["tail"]["holds"] == []
    assert holds.list_holds(store_dir) == []


# ---- The command


def test_the_command_writes_a_page_and_prints_its_name(
    known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["report", str(known)]) == 0
    assert capsys.readouterr().out == "store-report.html\n"
    check_page((tmp_path / "store-report.html").read_text("utf-8"))
    assert run(["report", str(known), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["depth"] == report(known)["depth"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["store-report.html"], "--json writes no page"
    assert run(["report", str(known), "--json", "-o", "both.html", "--title", "Monday"]) == 0
    assert "<title>Monday</title>" in (tmp_path / "both.html").read_text("utf-8")


@pytest.mark.parametrize("python", ["as usual", "warnings are errors"])
def test_the_command_prints_nothing_on_stderr_whatever_the_fonts_and_caches_are(
    open_store: Callable[..., MessageStore], store_dir: Path, tmp_path: Path, python: str
) -> None:
    store = open_store()
    store.publish(store.declare_queue("注文 \N{SLIGHTLY SMILING FACE} العربية"), b"x")
    store.close()
    command = [sys.executable, "-m", "logstore", "report", str(store_dir), "-o", str(tmp_path / "page.html")]
    more = {"PYTHONWARNINGS": "error"} if python != "as usual" else {"MPLCONFIGDIR": "/dev/null/none"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | more)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_page_leaves_the_log_level_of_matplotlib_as_it_was(figures_of_known: dict[str, Any]) -> None:
    logger = logging.getLogger("matplotlib")
    before = logger.level
    try:
        logger.setLevel(logging.INFO)
        page(figures_of_known)
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)


def test_misuse_gives_one_line(known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status, word in (
        ((str(known), "--queue", "nobody"), 1, "no queue 'nobody'; there are: 'audit', 'dead', 'orders'"),
        ((str(known), "--from", "yesterday"), 2, "'yesterday' is not a time"),
        ((str(known), "--from", "2026-03-02", "--to", "2026-03-01"), 2, "--from must be before --to"),
        ((str(known), "-o", str(tmp_path)), 2, "is a directory"),
        ((str(known), "-o", str(tmp_path / "no" / "page.html")), 3, "cannot be written: No such file or directory"),
        ((str(tmp_path), "-o", str(tmp_path / "page.html")), 3, "it is not a store"),
    ):
        assert run(["report", *arguments]) == status, arguments
        said = capsys.readouterr().err
        assert word in said
        assert said.count("\n") == 1


def test_an_existing_file_is_replaced_only_by_a_complete_page(
    figures_of_known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = figures_of_known
    target = tmp_path / "page.html"
    target.write_text("what was there")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("logstore.report.run.os.fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        write_page(found, target)
    assert target.read_text() == "what was there"
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_without_its_libraries_the_command_names_the_extra(
    known: Path, tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    for missing in ("pyarrow", "matplotlib", "jinja2"):
        done = run_python(
            """
            import sys
            class Blocked:
                def find_spec(self, name, path=None, target=None):
                    if name.partition(".")[0] == sys.argv[1]:
                        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            sys.meta_path.insert(0, Blocked())
            from logstore.cli import run
            sys.exit(run(["report", sys.argv[2], "-o", sys.argv[3]]))
            """,
            missing,
            known,
            tmp_path / "page.html",
        )
        assert done.returncode == 3, missing
        assert re.search(r"pip install '/path/to/checkout\[(report|arrow)\]'", done.stderr), (missing, done.stderr)
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("gone", ["a file", "its end", "the manifest"])
def test_a_missing_or_damaged_file_of_an_export_is_named(known: Path, tmp_path: Path, gone: str) -> None:
    target = tmp_path / "target"
    export(known, target)
    lost = min(target.glob("records/*/*.parquet")) if gone != "the manifest" else target / "_manifest.json"
    if gone == "its end":
        lost.write_bytes(bytes(lost.stat().st_size))
    else:
        lost.unlink()
    with pytest.raises(ExportDamaged, match=f"{lost.name}.*restore|{lost.name} is missing.*Restore"):
        report(target)


def test_wrong_arguments_are_typed_errors(known: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="with a time zone"):
        report(known, start=datetime(2026, 1, 1))  # noqa: DTZ001 - the mistake that is meant
    with pytest.raises(OptionError, match="top is a number"):
        report(known, top=0)
    with pytest.raises(UnknownQueue):
        report(known, queues=["orders", "no"])
    assert issubclass(MissingExtra, StoreError)


# ---- The pieces


def test_intervals_cover_the_given_time_and_are_few() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        first = chance.randrange(0, 1 << 51)
        last = first + chance.randrange(0, 1 << chance.randrange(1, 60))
        grid = Grid.over(first, last)
        assert 1 <= grid.buckets <= BUCKETS_MAX
        assert grid.start_us <= first <= last < grid.stop_us
        assert grid.start_us % grid.step_us == 0
        assert grid.index(first) == 0
        assert grid.index(last) == grid.buckets - 1
        assert grid.step_us in NICE_US or grid.step_us % NICE_US[-1] == 0
    day = datetime(2026, 3, 1, tzinfo=UTC)
    assert moment(micros(day)) == day


def test_every_latency_is_in_one_narrow_step() -> None:
    edge = 0
    for step in range(128 + 64 * 40):
        low, high = step_us(step)
        assert low == edge, "no gap, no overlap"
        assert high - low == 1 or (high - low) <= low / 64
        edge = high


def test_percentiles_are_as_accurate_as_the_page_says() -> None:
    import numpy as np

    chance = np.random.default_rng(5)
    waited = np.sort(np.floor(chance.lognormal(9, 2.5, 20_000)).astype(np.int64))
    latency = Latency()
    edges = [step_us(step) for step in range(128 + 64 * 50)]
    steps = np.searchsorted([low for low, _ in edges], waited, side="right") - 1
    latency.add(dict(Counter(map(int, steps))), int(waited.sum()), int(waited[0]), int(waited[-1]))
    for rank in (0.5, 0.9, 0.99, 0.999, 1.0):
        exact = int(waited[max(int(np.ceil(rank * len(waited))) - 1, 0)])
        assert abs(latency.quantile_us(rank) - exact) <= max(0.5, 0.008 * exact)


def test_the_page_is_part_of_the_package() -> None:
    assert (ROOT / "logstore" / "report" / "page.html").is_file()
    assert '"*.html"' in (ROOT / "pyproject.toml").read_text()


def test_a_wrong_directory_is_refused_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> None:
        raise AssertionError("Java would start")

    monkeypatch.setattr("logstore.commands.report._session", start)
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty"):
        assert run(["report", str(tmp_path / name), "--spark"]) == 3
