"""The states of places as ``peek``, ``chain``, ``tail``, ``verify`` and ``salvage`` have them."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.command import fine, told
from kit.serve_process import serving
from kit.stores import SMALL_SEGMENT
from logstore.codec.strict import StrictReplay
from logstore.inspect import Inspection
from logstore.inspect.peek import peek
from logstore.salvage import run as salvage_run
from logstore.store import times as package_times
from logstore.verify.verification import Verification

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.codec.state import EndState

PAST, SINCE = datetime(2001, 1, 1, tzinfo=UTC), "expired since 2001-01-01 00:00:00.000 UTC"
LATE, END = datetime(2998, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
UNTIL, EXPIRES = "hidden until 2998-01-01 00:00:00.000 UTC", "expires 2999-01-01 00:00:00.000 UTC"


class Stated:
    """A closed store: on "q" a hidden, an expired, a moved, a noted and a plain message, in this order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
            queue, failed = store.declare_queue("q"), store.declare_queue("failed")
            self.hidden = store.publish(queue, b"hidden", header=b"kind=a", not_before=LATE, expires=END)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(package_times, "now_us", lambda: 1)  # the package refuses an expiry in the past
                self.expired = store.publish(queue, b"expired", expires=PAST)
            self.noted = store.publish(queue, b"noted")
            store.annotate(self.noted, queue, b"seen twice")
            moved = store.publish(failed, b"moved", header=b"old", acquire=True)
            self.moved = moved.id
            failed.move(moved, queue, header=b"new", note=b"\x00\xff")
            self.plain = store.publish(queue, b"plain", header=b"kind=b")

    def peeked(self) -> dict[int, dict[str, Any]]:
        return {one["id"]: one for one in told("peek", self.path, "q", "-n", 100)["messages"]}


@pytest.fixture
def stated(tmp_path: Path) -> Stated:
    return Stated(tmp_path / "store")


def test_peek_shows_the_times_note_and_header_that_each_place_has(stated: Stated) -> None:
    found = stated.peeked()
    hidden, expired, moved = found[stated.hidden], found[stated.expired], found[stated.moved]
    assert (hidden["hidden"], hidden["expired"], hidden["not_before"]) == (
        True,
        False,
        LATE.isoformat("T", "milliseconds"),
    )
    assert hidden["expires"] == END.isoformat("T", "milliseconds")
    assert (base64.b64decode(hidden["header_base64"]), hidden["own_header"]) == (b"kind=a", False)
    assert (expired["hidden"], expired["expired"], expired["body_text"]) == (False, True, "expired")
    assert (found[stated.noted]["note_text"], found[stated.noted]["note_bytes"]) == ("seen twice", 10)
    assert (base64.b64decode(moved["header_base64"]), moved["own_header"]) == (b"new", True)
    assert (moved["note_text"], base64.b64decode(moved["note_base64"])) == (None, b"\x00\xff")
    plain = found[stated.plain]
    assert (plain["hidden"], plain["expired"], plain["not_before"], plain["expires"]) == (False, False, None, None)
    assert (plain["note_bytes"], plain["own_header"], plain["delivery_count"]) == (0, False, 0)


def test_peek_for_people_says_what_hides_a_message_and_shows_its_note(stated: Stated) -> None:
    lines = fine("peek", stated.path, "q", "-n", 100).splitlines()
    heads = {int(line.split()[1].rstrip(",")): line for line in lines if line.startswith("message ")}
    assert heads[stated.hidden].endswith(f", 6 bytes, {UNTIL}, {EXPIRES}")
    assert heads[stated.expired].endswith(f", 7 bytes, {SINCE}")
    assert heads[stated.plain].endswith(", 5 bytes")
    assert lines[lines.index(heads[stated.noted]) + 1] == "  note: seen twice"
    after = lines.index(heads[stated.moved])
    assert lines[after + 1 : after + 5] == [
        "  note: hex 00 ff",
        "  a header of its place, 3 bytes, stands for the message's:",
        "  header: new",
        "  body: moved",
    ]


def test_a_running_broker_lists_the_states_too(stated: Stated) -> None:
    segment = min(stated.path.glob("*.seg"))
    with logstore.open(stated.path, segment_size=SMALL_SEGMENT) as store:
        (noted,) = store.queue("q").acquire()
        noted.release()
    before = stated.peeked()
    assert (before[stated.noted]["delivery_count"], before[stated.plain]["delivery_count"]) == (1, 0)
    with serving(stated.path):
        at = segment.read_bytes().index(b"hidden")
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(b"rot!!")  # so that the log cannot be read beside the broker
        found = stated.peeked()
    for one in (stated.expired, stated.noted, stated.moved, stated.plain):
        assert found[one]["lsn"] is None
        assert found[one] | {"lsn": None, "time": None} == before[one] | {"lsn": None, "time": None}


def test_peek_and_the_open_store_agree_on_states_also_after_relocation(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "s", segment_size=SMALL_SEGMENT) as store:
        kept, churn, other = (store.declare_queue(name) for name in ("kept", "churn", "other"))
        for number in range(12):
            store.publish([kept, other], b"m", header=b"h%d" % number, not_before=LATE if number % 2 else None)
            one = store.publish(other, bytes(number * 5_000), header=b"old", acquire=True)
            other.move(one, kept, header=b"new%d" % number, note=b"n%d" % number)
        for _ in range(60):
            store.publish_many(churn, [bytes(10_000)] * 20)
            for delivery in churn.acquire(20):
                delivery.accept(wait=False)
        store.force()
        store.compact()
        with Inspection(tmp_path / "s") as found:
            found.read()
            for queue in (kept, other):
                assert [(one.id, one.header, one.state.note, one.hidden) for one in peek(found, queue.id, 1000, 0)] == [
                    (one.id, one.header, one.note, one.not_before is not None) for one in store.messages(queue)
                ]


def test_chain_says_the_state_of_each_place_and_shows_the_rows_that_gave_it(stated: Stated) -> None:
    def now(message_id: int) -> str:
        return fine("chain", stated.path, message_id).splitlines()[-1]

    assert now(stated.hidden).endswith(f", on q ({UNTIL}, {EXPIRES})")
    assert now(stated.expired).endswith(f", on q ({SINCE})")
    assert now(stated.noted).endswith(", on q (with the note 'seen twice')")
    assert now(stated.moved).endswith(", on q (with the note hex 00 ff, with a header of its own of 3 bytes)")
    assert now(stated.plain).endswith(", on q")
    (queue,) = told("chain", stated.path, stated.hidden)["now"]["queues"]
    assert (queue["name"], queue["hidden"], queue["not_before"]) == ("q", True, LATE.isoformat("T", "milliseconds"))
    with logstore.open(stated.path) as store:
        for delivery in store.queue("q").acquire(2):
            delivery.release(delay=1_000_000)
    found = told("chain", stated.path, stated.noted)
    *_, states = found["records"]
    assert (states["type"], [row["id"] for row in states["body"]["rows"]]) == ("PLACE_STATES", [stated.noted])
    assert found["now"]["queues"][0]["delivery_count"] == 1
    assert now(stated.noted).split(" (")[1].startswith("delivered once, hidden until 20")
    assert "message" not in found["operations"]


def test_the_tail_says_until_when_a_place_that_holds_the_base_is_hidden(stated: Stated) -> None:
    found = {one["id"]: one for one in told("tail", stated.path)["holders"]}
    hidden, expired = found[stated.hidden], found[stated.expired]
    (place,) = hidden["places"]
    assert (place["state"], place["not_before_us"]) == ("hidden", int(LATE.timestamp()) * 1_000_000)
    assert hidden["remedy"] == f"consume or purge queue 'q' ({UNTIL})"
    assert expired["places"][0]["state"] == "expired"
    assert expired["remedy"] == f"consume or purge queue 'q' ({SINCE})"
    assert found[stated.plain]["places"][0] | {"position": 0, "queue_id": 0} == {
        "queue_id": 0,
        "queue": "q",
        "state": "waits",
        "position": 0,
        "transaction": None,
        "transaction_state": None,
        "xid": None,
        "consumer": None,
        "unreadable": False,
        "not_before_us": None,
        "expires_us": None,
    }
    assert UNTIL in fine("tail", stated.path)


def test_the_tail_names_the_transaction_that_a_note_waits_for(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "s") as store:
        queue = store.declare_queue("q")
        one = store.publish(queue, b"m")
        transaction = store.begin()
        store.annotate(one, queue, b"n", transaction=transaction)
        made = store.publish(queue, b"new", transaction=transaction)
        store.annotate(made, queue, b"n", transaction=transaction)
        places = {holder.id: holder.places for holder in store.tail().holders}
        assert [(place.state, place.transaction) for place in places[one]] == [("locked", transaction.id)]
        assert [place.state for place in places[made]] == ["note pending", "enqueue pending"]


def lose_a_note(messages: dict[int, Any], message_id: int) -> None:
    message = messages[message_id]
    (place,) = message.places
    message.places = (place._replace(state=replace(place.state, note=b"")),)


def test_verify_finds_a_note_that_one_replay_has_lost(stated: Stated, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "problems          none" in fine("verify", stated.path)
    finish = StrictReplay.finish

    def loses(replay: StrictReplay, **options: Any) -> EndState:
        end = finish(replay, **options)
        lose_a_note(replay.messages, stated.moved)
        return end

    monkeypatch.setattr(StrictReplay, "finish", loses)
    found = Verification(stated.path)
    found.run(lambda _: None, connect=None, schema=None)
    assert [one.text for one in found.findings.problems] == [
        f"the core's replay and the second one differ: message {stated.moved} on queue 1 has note 00ff, not ''"
    ]


def test_a_salvage_that_loses_a_note_fails_its_proof(
    stated: Stated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_message = salvage_run.write_message

    def loses(writer: Any, message_id: int, message: Any, read: Any) -> int:
        if message_id != stated.moved:
            return write_message(writer, message_id, message, read)
        places = message.places
        lose_a_note({message_id: message}, message_id)
        try:
            return write_message(writer, message_id, message, read)
        finally:
            message.places = places

    monkeypatch.setattr(salvage_run, "write_message", loses)
    with pytest.raises(AssertionError, match=f"message {stated.moved} on queue 1 has note"):
        salvage_run.salvage(stated.path, tmp_path / "new")
    assert not (tmp_path / "new").exists()
