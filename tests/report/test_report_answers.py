"""A report begins with what is stuck, since when, what it costs, and the command that frees it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.amqp_client import RawClient
from kit.clock_jumps import JumpingClock
from kit.command import told
from kit.serve_process import serving
from kit.stores import ROOT, SMALL_SEGMENT
from kit.troubled_store import AGAIN, BUSY, CHINESE, DEAD, HOSTILE, IDLE, LONG, NOW_S, PARKED, XID
from logstore import holds
from logstore.arrow import export
from logstore.cli import run
from logstore.errors import OptionError
from logstore.report import report
from logstore.report.answers import KINDS, Known
from logstore.report.page import page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore

DAY_S = 86_400
NOBODY: dict[str, Any] = {"queues": None, "connections": None, "full": None, "problem": "no broker serves this store"}


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> JumpingClock:
    return JumpingClock(tmp_path_factory.mktemp("clock"))


def as_child(clock: JumpingClock, *arguments: str) -> str:
    """The output of Python with this clock."""
    places = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYTHONWARNINGS": "error"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, env=clock.environment | places, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def troubled(clock: JumpingClock, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("troubled") / "store"
    clock.stand(NOW_S)
    as_child(clock, "-m", "kit.troubled_store", str(path), clock.environment["CLOCK_JUMPS"])
    return path


@pytest.fixture(scope="module")
def found(clock: JumpingClock, troubled: Path) -> dict[str, Any]:
    """The report at the time at which the store was closed."""
    clock.stand(NOW_S)
    document: dict[str, Any] = json.loads(as_child(clock, "-m", "logstore", "report", str(troubled), "--json"))
    return document


def of_queue(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = [one for one in found["answers"] if one["queue"] == name]
    return dict(one)


def test_a_transaction_in_doubt_comes_first_with_both_outcomes_as_commands(
    found: dict[str, Any], troubled: Path
) -> None:
    first = found["answers"][0]
    assert (first["kind"], first["level"], first["xid"]) == ("in_doubt", "stuck", str(XID))
    assert first["since"] == "2026-02-27T09:00:00+00:00"
    assert (first["messages"], first["content_bytes"]) == (2, 100 * (len("to the warehouse") + len("first")))
    assert first["commands"] == [
        f"logstore in-doubt {troubled} rollback {XID}",
        f"logstore in-doubt {troubled} commit {XID}",
    ]
    assert "3 d, since 2026-02-27 09:00 UTC" in page(found)


def test_a_queue_that_nobody_consumes_is_stuck_and_a_busy_one_beside_it_is_no_answer(found: dict[str, Any]) -> None:
    idle = of_queue(found, IDLE)
    assert (idle["kind"], idle["messages"]) == ("queue", 1221)
    assert idle["text"] == "1\u202f221 messages of “billing” wait, and nothing takes them"
    assert idle["held_bytes"] > 0
    assert BUSY not in {one["queue"] for one in found["answers"]}


def test_dead_letters_a_queue_that_falls_behind_and_a_scheduled_message_are_told_apart(found: dict[str, Any]) -> None:
    kinds = {name: of_queue(found, name)["kind"] for name in (DEAD, CHINESE, PARKED, AGAIN)}
    assert kinds == {DEAD: "dead_letters", CHINESE: "behind", PARKED: "scheduled", AGAIN: "queue"}
    assert of_queue(found, DEAD)["messages"] == 24
    assert of_queue(found, PARKED)["details"] == ["the first is due 2026-03-03 15:00:00.000 UTC"]


def test_answers_are_in_the_order_of_their_kinds(found: dict[str, Any]) -> None:
    order = list(KINDS)
    kinds = [order.index(one["kind"]) for one in found["answers"]]
    assert kinds == sorted(kinds)
    assert len(set(kinds)) >= 4


def test_every_command_of_an_answer_is_one_of_logstore_and_runs(found: dict[str, Any]) -> None:
    commands_of_all = [command for one in found["answers"] for command in one["commands"]]
    assert len(commands_of_all) >= 8
    for command in commands_of_all:
        name, *words = shlex.split(command)
        assert name == "logstore"
        dry = ["--dry-run"] if {"purge", "commit", "rollback"} & set(words) else []
        assert run([*words, *dry]) == 0, command


def test_the_commands_work_for_any_name(open_store: Callable[..., MessageStore], store_dir: Path) -> None:
    store = open_store()
    for name in ("--help", "two words", "it's", "$(touch x)", HOSTILE, LONG):
        store.publish(store.declare_queue(name), b"x")
    store.close()
    known = Known(str(store_dir), {}, {}, {}, {}, 1, None, 0)
    for one in report(store_dir)["depth"]["queues"]:
        assert run(shlex.split(known.command("purge", one["queue"]))[1:]) == 0
    assert report(store_dir)["summary"]["places"] == 0


def test_a_page_begins_with_the_answers_and_has_the_text_of_each(found: dict[str, Any]) -> None:
    text = page(found)
    assert text.index('id="answers"') < text.index('class="tiles"') < text.index('id="depth"')
    assert text.count('<li class="answer ') == len(found["answers"])
    assert "3 need a decision, 2 keep room, 1 waits for its time." in text


def test_of_many_answers_of_one_kind_the_page_shows_the_first_and_counts_the_others(found: dict[str, Any]) -> None:
    (idle,) = [one for one in found["answers"] if one["queue"] == IDLE]
    others = [one for one in found["answers"] if one["kind"] != "queue"]
    text = page(found | {"answers": [*others, *[idle] * 1200]})
    assert text.count('<li class="answer ') == len(others) + 5
    assert "Not shown: 1\u202f195 queues from which nothing is taken; --json has all." in text


def test_a_store_in_which_nothing_is_stuck_says_so_in_one_line(
    open_store: Callable[..., MessageStore], store_dir: Path
) -> None:
    store = open_store()
    store.close()
    empty = report(store_dir)
    assert empty["answers"] == []
    assert "Nothing is stuck: no message waits." in page(empty)
    store = open_store()
    store.publish(store.declare_queue("orders"), b"x")
    fresh = report(store_dir)
    assert fresh["answers"] == []
    assert "Nothing is stuck: 1 place of messages waits, none for long." in page(fresh)


OPEN_FOR_HOURS = """
import json, struct, sys
import logstore
from logstore.report import report
from kit.stores import SMALL_SEGMENT

def at(seconds):
    with open(sys.argv[2], "r+b") as clock:
        clock.write(struct.pack("=qq", seconds, 1))

now = int(sys.argv[3])
at(now - 3 * 3600)
store = logstore.open(sys.argv[1], segment_size=SMALL_SEGMENT)
orders = store.declare_queue("orders")
begun = store.begin()
store.publish(orders, bytes(500), transaction=begun)
store.force()
at(now - 30)
young = store.begin()
store.publish(orders, b"x", transaction=young)
store.force()
at(now)
print(json.dumps({"id": begun.id, "report": report(sys.argv[1])}))
begun.rollback()
young.rollback()
store.close()
"""


def test_a_transaction_that_is_open_for_hours_is_an_answer_and_a_young_one_is_not(
    clock: JumpingClock, tmp_path: Path
) -> None:
    place = (str(tmp_path / "store"), clock.environment["CLOCK_JUMPS"], str(NOW_S))
    made = json.loads(as_child(clock, "-c", OPEN_FOR_HOURS, *place))
    (one,) = made["report"]["answers"]
    assert (one["kind"], one["level"], one["tx_id"], one["xid"]) == ("transaction", "stuck", made["id"], None)
    assert (one["queue"], one["messages"], one["content_bytes"]) == ("orders", 1, 500)
    assert one["since"] == "2026-03-02T06:00:00+00:00"
    assert one["held_bytes"] is not None, "it holds the oldest segment"
    assert "“orders”: it was neither committed nor rolled back" in one["text"]


def test_a_hold_is_an_answer_with_what_it_keeps_and_its_process(
    open_store: Callable[..., MessageStore], store_dir: Path
) -> None:
    store = open_store(segment_size=SMALL_SEGMENT)
    queue = store.declare_queue("churn")
    with holds.hold(store_dir, "night-copy", limit_bytes=1 << 30):
        for _ in range(4):
            store.dequeue_many(store.publish_many(queue, [bytes(20_000)] * 110), queue)
        (one,) = [one for one in report(store_dir)["answers"] if one["kind"] == "hold"]
    assert "“night-copy” of process" in one["text"]
    assert one["held_bytes"] > SMALL_SEGMENT
    assert one["commands"] == [f"logstore holds {store_dir}"]


def test_an_export_has_the_same_answers_and_says_what_it_cannot_know(
    troubled: Path, found: dict[str, Any], tmp_path: Path
) -> None:
    export(troubled, tmp_path / "target")
    exported = report(tmp_path / "target")
    assert [(one["kind"], one["queue"]) for one in exported["answers"]] == [
        (one["kind"], one["queue"]) for one in found["answers"]
    ]
    assert all(one["held_bytes"] is None for one in exported["answers"])
    (said,) = exported["not_known"]
    assert "An export does not have consumers" in said
    assert said in page(exported)
    assert exported["answers"][0]["commands"][0].startswith("logstore in-doubt DIR rollback ")


def test_only_the_queues_asked_for_have_answers_but_transactions_always_do(troubled: Path) -> None:
    asked = report(troubled, queues=[PARKED])
    assert {one["kind"] for one in asked["answers"]} == {"in_doubt", "scheduled"}
    assert any("transactions and holds are of the whole log" in one for one in asked["not_known"])


def old_store(clock: JumpingClock, path: Path) -> None:
    """Messages of yesterday on two queues."""
    clock.jump(-DAY_S)
    as_child(
        clock,
        "-c",
        f"import logstore; store = logstore.open({str(path)!r})\n"
        "store.publish_many(store.declare_queue('orders'), [b'an order'] * 5)\n"
        "store.publish_many(store.declare_queue('idle'), [b'nobody'] * 3)\n"
        "store.close()",
    )


def test_a_running_broker_names_the_consumer_that_does_not_acknowledge(clock: JumpingClock, tmp_path: Path) -> None:
    path = tmp_path / "store"
    old_store(clock, path)
    with serving(path) as broker, RawClient(broker.port).open() as client:
        client.send(1, commands.Basic.Qos(0, 2), commands.Basic.Consume(queue="orders"))
        client.expect(commands.Basic.QosOk)
        client.expect(commands.Basic.ConsumeOk)
        assert [client.delivery()[1] for _ in range(2)] == [b"an order"] * 2
        document = told("report", path)
    by_kind = {(one["kind"], one["queue"]): one for one in document["answers"]}
    hangs = by_kind["client", "orders"]
    assert hangs["messages"] == 2
    assert re.fullmatch(r"127\.0\.0\.1:\d+", hangs["consumer"])
    assert f"Client {hangs['consumer']} of user “guest” has 2 unacknowledged messages" in hangs["text"]
    assert by_kind["queue", "orders"]["text"] == "5 messages of “orders” wait, and nothing is acknowledged"
    assert hangs["since"] > by_kind["queue", "orders"]["since"], "it was not connected yesterday"
    assert "1 consumer, 2 messages not acknowledged" in by_kind["queue", "orders"]["details"]
    assert "the queue has no consumer" in by_kind["queue", "idle"]["text"]
    assert document["not_known"] == []
    assert document["answers"][0] is hangs, "a client comes before the queue that waits for it"


def test_a_store_that_no_broker_serves_says_that_consumers_are_not_known(
    open_store: Callable[..., MessageStore], store_dir: Path
) -> None:
    open_store()
    (said,) = told("report", store_dir)["not_known"]
    assert said.startswith("Consumers and unacknowledged messages are not known: no broker serves this store")


def test_what_holds_back_the_log_is_not_denied_if_not_all_of_it_was_looked_at(
    open_store: Callable[..., MessageStore], store_dir: Path
) -> None:
    store = open_store()
    store.publish_many(store.declare_queue("first"), [b"x"] * 1500)
    store.publish(store.declare_queue("second"), b"x")
    document = report(store_dir)
    known = Known("DIR", {}, {}, {}, {}, 1, None, 0)
    answer = {"kind": "queue", "level": "stuck", "text": "", "details": [], "remedy": "", "commands": []}
    empty = dict.fromkeys(("since", "messages", "content_bytes", "held_bytes", "queue", "tx_id"))
    denied = "it does not hold back the log"
    assert known.held_bytes("queue", 2) is None
    assert denied not in page(document | {"answers": [answer | empty]})
    fewer = document["tail"] | {"holding_messages": 1}
    assert denied in page(document | {"answers": [answer | empty], "tail": fewer})


def test_a_full_log_comes_before_all_else(troubled: Path) -> None:
    full = {"level": "full", "since": "2026-03-02T08:00:00+00:00", "reason": "no room", "remedies": ["purge 'billing'"]}
    first = report(troubled, broker=NOBODY | {"full": full})["answers"][0]
    assert (first["kind"], first["text"]) == ("full", "The log is full: no room")
    assert (first["since"], first["remedy"]) == (full["since"], "purge 'billing'")


def test_what_a_broker_says_must_be_complete(troubled: Path) -> None:
    with pytest.raises(OptionError, match="broker has no 'connections'"):
        report(troubled, broker={"queues": []})
