"""Messages that are hidden until a time, or that expire: every call that gives them times, and what consumers get when.

Most tests have a store on a simulated disk, whose wall clock only the test moves.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import logstore
from kit.command import fine
from kit.killed import and_then_killed, quick_directory, remove
from kit.patience import PATIENCE_S
from kit.simulated import ALL_KEPT, ALL_LOST, Disk
from kit.store_model import as_time
from logstore import arrow, errors
from logstore.inspect import Inspection
from logstore.store import times as package_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logstore import Delivery, MessageStore, Queue

SECOND = 1_000_000
LARGE = 9_000  # more than one record of a simulated store holds


class Clocked:
    """A store on a simulated disk, and its clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = Disk()
        self.store = self.disk.open(path, background=0)
        self.queue = self.store.declare_queue("q")

    def in_s(self, seconds: float) -> float:
        """So many seconds from now, as callers give a time; half a second more, which no call takes."""
        return self.disk.now_us / SECOND + seconds + 0.5

    def pass_s(self, seconds: float) -> None:
        self.disk.jump(round(seconds * SECOND))

    def again(self, *, crash: int | None = None) -> None:
        """Opens it again, after a close or on the disk that a power cut leaves."""
        before = self.disk
        if crash is not None:
            self.disk = before.crash(crash)
        self.store.close()
        self.store = self.disk.open(self.path, background=0)
        self.queue = self.store.queue("q")

    def texts(self, n: int = 100) -> list[bytes]:
        """The contents that an acquire gets, which go back."""
        return told(self.queue.acquire(n))

    def expired(self, n: int = 100) -> list[bytes]:
        return told(self.queue.expired(n))


def told(deliveries: list[Delivery]) -> list[bytes]:
    found = [delivery.content for delivery in deliveries]
    for delivery in deliveries:
        delivery.release(unseen=True)
    return found


@pytest.fixture
def clocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocked]:
    made = Clocked(tmp_path / "clocked")
    monkeypatch.setattr(package_times, "now_us", lambda: made.disk.now_us)
    yield made
    made.store.close()


# ---- hidden ----


def test_a_message_is_offered_from_its_time_on_at_its_old_place(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    store.publish(queue, b"later", not_before=clocked.in_s(10))
    store.publish(queue, b"now")
    assert clocked.texts() == [b"now"]
    counts = queue.counts()
    assert (counts.depth, counts.ready, counts.hidden, queue.hidden, queue.depth) == (2, 1, 1, 1, 2)
    assert (counts.bytes, counts.ready_bytes) == (8, 3)
    assert [message.content for message in queue.browse(load=True)] == [b"later", b"now"]
    clocked.pass_s(11)
    assert clocked.texts() == [b"later", b"now"]
    assert queue.counts() == logstore.QueueCounts(2, 2, 0, 0, 8, 8)
    assert queue.acquire()[0].redelivered is False  # waiting is no delivery


def test_every_acquire_leaves_out_what_is_hidden_or_expired(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    plain = store.publish(queue, b"plain")
    hidden = store.publish(queue, b"hidden", not_before=clocked.in_s(10))
    gone = store.publish(queue, b"gone", expires=clocked.in_s(1))
    clocked.pass_s(2)
    (first,) = queue.acquire(3)
    assert first.id == plain
    assert queue.acquire(5, after=first.position) == []
    assert queue.acquire_ids([hidden, gone]) == []
    assert queue.acquire(1, timeout=0) == []
    assert queue.counts().expired == 1


def test_a_hidden_message_is_taken_by_its_id_and_purged(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    key = store.publish(queue, b"1", not_before=clocked.in_s(10))
    store.publish_many(queue, [b"2", b"3"], not_before=clocked.in_s(10))
    store.publish(queue, b"4", expires=clocked.in_s(1))
    clocked.pass_s(2)
    store.dequeue(key, queue)
    assert queue.depth == 3
    assert queue.purge() == 3
    assert (queue.depth, store.stats()["messages"]) == (0, 0)


# ---- expired ----


def test_an_expired_message_is_given_by_expired_only_and_settled_like_any(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    dead = store.declare_queue("dead")
    for text in (b"a", b"b", b"c", b"d"):
        store.publish(queue, text, header=b"h", expires=clocked.in_s(5))
    store.publish(queue, b"stays")
    assert queue.expired(10) == []
    clocked.pass_s(6)
    assert clocked.texts() == [b"stays"]
    assert clocked.expired() == [b"a", b"b", b"c", b"d"]  # released, they are expired again
    first, second = queue.expired(2, load=True)
    assert (first.content, first.header, second.content) == (b"a", b"h", b"b")
    assert (queue.counts().expired, queue.counts().acquired) == (2, 2)
    first.accept()
    queue.move(second, dead, note=b"expired")
    third = queue.expired()[0]
    with store.transaction() as transaction:
        third.accept(transaction=transaction)
    assert clocked.expired() == [b"d"]
    (moved,) = dead.acquire()
    assert (moved.content, moved.note, moved.expires) == (b"b", b"expired", None)


def test_an_acquired_message_expires_when_it_is_released(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    store.publish(queue, b"m", expires=clocked.in_s(5))
    (held,) = queue.acquire()
    clocked.pass_s(6)
    assert queue.expired() == []
    held.release()
    assert clocked.texts() == []
    assert clocked.expired() == [b"m"]


def test_a_hidden_message_that_expires_is_never_offered(clocked: Clocked) -> None:
    clocked.store.publish(clocked.queue, b"m", not_before=clocked.in_s(5), expires=clocked.in_s(6))
    (held,) = [clocked.store.publish(clocked.queue, b"held")]
    (delivery,) = clocked.queue.acquire_ids([held])
    delivery.release(delay=10)
    clocked.pass_s(7)
    assert clocked.texts() == []
    assert clocked.expired() == [b"m"]
    clocked.pass_s(10)
    assert clocked.texts() == [b"held"]


# ---- times are kept ----


@pytest.mark.parametrize("crash", [None, ALL_LOST, ALL_KEPT], ids=["closed", "cut", "killed"])
@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
def test_times_stay_through_opens(clocked: Clocked, crash: int | None, size: int) -> None:
    store, queue = clocked.store, clocked.queue
    times = clocked.in_s(10), clocked.in_s(20)
    other = store.declare_queue("other")
    store.publish([queue, other], b"a" * size, not_before=times[0], expires=times[1])
    store.publish_many(queue, [b"b" * size, b"c" * size], headers=[b"1", b"2"], not_before=times[0])
    staged = store.stage(b"h", b"d" * size)
    store.enqueue(staged, [queue, other], not_before=times[0])
    clocked.again(crash=crash)
    shown = [(m.content[:1], m.not_before, m.expires) for m in clocked.queue.browse()]
    late, end = (as_time(round(seconds * SECOND)) for seconds in times)
    assert shown == [(b"a", late, end), (b"b", late, None), (b"c", late, None), (b"d", late, None)]
    assert clocked.texts() == []
    clocked.pass_s(11)
    assert [text[:1] for text in clocked.texts()] == [b"a", b"b", b"c", b"d"]
    clocked.pass_s(10)
    assert [text[:1] for text in told(clocked.store.queue("other").expired(9))] == [b"a"]


def test_times_stay_when_messages_are_relocated(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    passing = store.declare_queue("passing")
    store.publish(queue, b"m" * LARGE, header=b"h", not_before=clocked.in_s(10), expires=clocked.in_s(20))
    store.publish(queue, b"n", not_before=clocked.in_s(10))
    for _ in range(60):
        store.dequeue_many(store.publish_many(passing, [bytes(3000)] * 20), passing)
    assert store.stats()["segments_relocated"] > 0
    clocked.again()
    assert [m.header for m in clocked.queue.browse()] == [b"h", b""]
    clocked.pass_s(11)
    assert [text[:1] for text in clocked.texts()] == [b"m", b"n"]
    clocked.pass_s(10)
    assert [text[:1] for text in clocked.expired()] == [b"m"]


def test_a_clock_that_goes_back_offers_later_and_loses_nothing(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    store.publish(queue, b"due", not_before=clocked.in_s(10))
    store.publish(queue, b"not due", not_before=clocked.in_s(30))
    clocked.pass_s(11)
    assert clocked.texts() == [b"due"]
    clocked.pass_s(-1000)
    assert clocked.texts() == [b"due"]
    clocked.again()
    assert clocked.texts() == []  # the log has the times, and no clock
    clocked.pass_s(1100)
    assert clocked.texts() == [b"due", b"not due"]


def test_an_inspection_counts_what_is_hidden_or_expired_now(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    store.publish_many(queue, [b"1", b"2"], not_before=time.time() + 10_000)
    store.publish(queue, b"3")
    store.close()
    with Inspection(store.path) as inspection:
        inspection.read()
        (life,) = inspection.queues()
        assert (life.depth, life.ready, life.hidden, life.expired, life.ready_bytes) == (3, 1, 2, 0, 1)


def test_the_log_as_a_table_shows_the_times_that_were_given(store: MessageStore) -> None:
    queue, late, end = store.declare_queue("q"), datetime(2998, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
    store.publish(queue, b"m", not_before=late, expires=end)
    store.publish(queue, bytes(3 << 20), expires=end)
    store.publish(queue, b"n", acquire=True).release(delay=late - datetime.now(UTC), wait=True)
    table = arrow.read(store.path, columns=["type", "not_before", "expires"]).read_all()
    rows = [row for row in table.to_pylist() if row["not_before"] or row["expires"]]
    assert [(row["type"], row["expires"]) for row in rows] == [
        ("MESSAGE_START_PLACED", end),
        ("MESSAGE_MOVE", end),
        ("PLACE_STATES", None),
    ]
    assert (rows[0]["not_before"], rows[1]["not_before"]) == (late, None)
    assert abs(rows[2]["not_before"] - late) < timedelta(seconds=PATIENCE_S)


def test_verify_and_salvage_keep_the_times(store: MessageStore, tmp_path: Path) -> None:
    queue, late, end = store.declare_queue("q"), datetime(2998, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
    store.publish(queue, b"m", not_before=late)
    store.publish(queue, bytes(3 << 20), expires=end)
    store.close()
    assert "problems          none" in fine("verify", store.path)
    fine("salvage", store.path, tmp_path / "saved")
    with logstore.open(tmp_path / "saved") as saved:
        assert [(m.not_before, m.expires) for m in saved.messages("q")] == [(late, None), (None, end)]


def publish_and_tell(path: Path, kept: list[Any]) -> list[int]:
    store = logstore.open(path)
    kept.append(store)
    queue, far = store.declare_queue("q"), datetime(2999, 1, 1, tzinfo=UTC)
    return [store.publish(queue, b"m", not_before=far), store.publish(queue, bytes(3 << 20), expires=far)]


def test_times_stay_when_the_process_is_killed() -> None:
    place = quick_directory("times-")
    try:
        ids = and_then_killed(publish_and_tell, place / "store")
        far = datetime(2999, 1, 1, tzinfo=UTC)
        with logstore.open(place / "store") as store:
            shown = [(m.id, m.not_before, m.expires) for m in store.messages("q")]
            assert shown == [(ids[0], far, None), (ids[1], None, far)]
            assert store.queue("q").hidden == 1
    finally:
        remove(place)


# ---- giving times ----


def test_times_are_seconds_or_datetimes(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    whole, day = int(clocked.in_s(100)), timedelta(days=1)
    first = datetime.fromtimestamp(whole, UTC)
    east = first.astimezone(timezone(timedelta(hours=5, minutes=30)))
    store.publish(queue, b"an int", not_before=whole, expires=whole + 86400)
    store.publish(queue, b"a float", not_before=float(whole), expires=float(whole + 86400))
    store.publish(queue, b"in UTC", not_before=first, expires=first + day)
    store.publish(queue, b"in the east", not_before=east, expires=east + day)
    shown = list(queue.browse())
    assert [(m.not_before, m.expires) for m in shown] == [(first, first + day)] * 4
    assert {m.not_before.tzinfo for m in shown if m.not_before is not None} == {UTC}


GIVING: dict[str, Callable[..., object]] = {
    "publish": lambda store, queue, **times: store.publish(queue, b"m", **times),
    "publish parts": lambda store, queue, **times: store.publish(queue, [b"m", b"n"], **times),
    "publish_many": lambda store, queue, **times: store.publish_many(queue, [b"m"], **times),
    "publish_many of an Arrow array": lambda store, queue, **times: store.publish_many(
        queue, pa.array([b"m"]), **times
    ),
    "publish_many of a stream": lambda store, queue, **times: store.publish_many(queue, iter([b"m"]), **times),
    "enqueue": lambda store, queue, **times: store.enqueue(store.stage(b"", b"m"), queue, **times),
    "enqueue with a header": lambda store, queue, **times: store.enqueue(
        store.stage(b"", b"m"), queue, header=b"h", **times
    ),
    "move": lambda store, queue, **times: queue.move(acquired(store, queue), queue, **times),
}


def acquired(store: MessageStore, queue: Queue) -> Delivery:
    key = store.publish(queue, b"m")
    return queue.acquire_ids([key])[0]


@pytest.mark.parametrize("call", GIVING)
def test_every_call_that_makes_a_place_gives_it_times(clocked: Clocked, call: str) -> None:
    store, queue = clocked.store, clocked.queue
    late, end = clocked.in_s(5), clocked.in_s(9)
    GIVING[call](store, queue, not_before=late)
    GIVING[call](store, queue, expires=end)
    GIVING[call](store, queue, not_before=late, expires=end)
    first, second = as_time(round(late * SECOND)), as_time(round(end * SECOND))
    assert [(m.not_before, m.expires) for m in queue.browse()] == [(first, None), (None, second), (first, second)]
    (offered,) = queue.acquire(5)
    assert (offered.expires, offered.delivery_count) == (second, 1)


WRONG: dict[str, tuple[object, str]] = {
    "a str": ("tomorrow", "a number of seconds since 1970, or a datetime with a time zone, not 'tomorrow'"),
    "a bool": (True, "a number of seconds since 1970"),
    "bytes": (b"1", "a number of seconds since 1970"),
    "a list": ([1], "a number of seconds since 1970"),
    "nan": (float("nan"), "not nan"),
    "inf": (float("inf"), "not inf"),
    "minus inf": (-float("inf"), "not -inf"),
    "a naive datetime": (datetime(2999, 1, 1), "a datetime with a time zone"),  # noqa: DTZ001 - what is refused
    "zero": (0, "in the past"),
    "a negative number": (-5.0, "in the past"),
    "a past datetime": (datetime(1999, 1, 1, tzinfo=UTC), "in the past"),
    "milliseconds": (1_900_000_000_000, "after the year 9999.*milliseconds"),
    "a huge int": (10**400, "after the year 9999"),
    "a huge float": (1e308, "after the year 9999"),
}


@pytest.mark.parametrize("name", ["not_before", "expires"])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("call", ["publish", "publish_many of a stream", "enqueue", "move"])
def test_a_wrong_time_is_refused_and_nothing_is_done(clocked: Clocked, call: str, wrong: str, name: str) -> None:
    value, said = WRONG[wrong]
    with pytest.raises(errors.OptionError, match=f"{name} is .*{said}"):
        GIVING[call](clocked.store, clocked.queue, **{name: value})
    assert clocked.queue.hidden == 0
    assert clocked.queue.depth == (1 if call == "move" else 0)


def test_a_message_that_would_expire_before_it_is_offered_is_refused(clocked: Clocked) -> None:
    late = clocked.in_s(10)
    for expires in (late, late - 1):
        with pytest.raises(errors.OptionError, match=r"expires \(.*\) is not after not_before"):
            clocked.store.publish(clocked.queue, b"m", not_before=late, expires=expires)


@pytest.mark.parametrize("content", [b"m", [b"m"]], ids=["one buffer", "parts"])
def test_a_publish_that_acquires_takes_no_not_before(clocked: Clocked, content: Any) -> None:
    publish: Any = clocked.store.publish
    for expires in (None, clocked.in_s(20)):
        with pytest.raises(errors.OptionError, match="takes no not_before, because a message that is hidden"):
            publish(clocked.queue, content, acquire=True, not_before=clocked.in_s(9), expires=expires)
    assert clocked.queue.depth == 0


@pytest.mark.parametrize("content", [b"m", [b"m"]], ids=["one buffer", "parts"])
def test_a_message_that_its_publisher_acquires_expires_when_it_is_released(clocked: Clocked, content: Any) -> None:
    store, queue = clocked.store, clocked.queue
    early, late = (store.publish(queue, content, acquire=True, expires=clocked.in_s(9)) for _ in range(2))
    assert early.expires is not None
    assert early.delivery_count == 1
    early.release()
    (again,) = queue.acquire(5)
    assert again.id == early.id
    clocked.pass_s(10)
    assert (queue.acquired, queue.expired(5)) == (2, [])
    late.release()
    assert queue.acquire(5) == []
    assert [one.id for one in queue.expired(5)] == [late.id]


# ---- releases with a delay ----


@pytest.mark.parametrize("token", [False, True], ids=["delivery", "token"])
@pytest.mark.parametrize("delay", [5, 5.0, timedelta(seconds=5)], ids=["int", "float", "timedelta"])
def test_a_release_with_a_delay_hides_the_message_at_its_old_place(clocked: Clocked, delay: Any, token: bool) -> None:
    store, queue = clocked.store, clocked.queue
    store.publish(queue, b"a", header=b"h", expires=clocked.in_s(60))
    store.publish(queue, b"b")
    (held,) = queue.acquire()
    store.annotate(held.id, queue, b"note")
    position = held.position
    if token:
        queue.release(held.detach(), delay=delay)
    else:
        held.release(delay=delay)
    with pytest.raises(errors.NotEnqueued):
        held.accept()
    assert clocked.texts() == [b"b"]
    clocked.pass_s(6)
    (again,) = queue.acquire()
    assert (again.content, again.position, again.delivery_count, again.redelivered) == (b"a", position, 2, True)
    assert (again.note, again.header) == (b"note", b"h")
    assert again.expires is not None


def test_a_delay_holds_after_an_open_with_the_count(clocked: Clocked) -> None:
    clocked.store.publish(clocked.queue, b"m")
    clocked.queue.acquire()[0].release(delay=30, wait=True)
    clocked.again(crash=ALL_LOST)
    assert clocked.texts() == []
    clocked.pass_s(31)
    (again,) = clocked.queue.acquire()
    assert (again.delivery_count, again.redelivered) == (2, True)


def test_a_delay_of_nothing_is_a_plain_release(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    store.publish(queue, b"m")
    end = store.next_lsn
    for delay in (0, 0.0, timedelta(0)):
        queue.acquire()[0].release(delay=delay, wait=True, unseen=True)
    queue.release(queue.acquire()[0].detach(), delay=0)
    assert (store.next_lsn, queue.ready) == (end, 1)


def test_an_unseen_release_with_a_delay_does_not_count(clocked: Clocked) -> None:
    clocked.store.publish(clocked.queue, b"m")
    clocked.queue.acquire()[0].release(delay=1, unseen=True)
    clocked.pass_s(2)
    (again,) = clocked.queue.acquire()
    assert (again.delivery_count, again.redelivered) == (1, False)


def test_a_release_to_the_back_keeps_the_expiry_and_takes_a_delay(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    end = clocked.in_s(60)
    store.publish(queue, b"a", expires=end)
    store.publish(queue, b"b")
    queue.acquire()[0].release(to_back=True)
    store.force()
    assert clocked.texts() == [b"b", b"a"]
    assert [m.expires for m in queue.browse()] == [None, as_time(round(end * SECOND))]
    queue.acquire(2)[1].release(to_back=True, delay=5)
    store.force()
    assert clocked.texts() == [b"b"]
    clocked.pass_s(6)
    assert clocked.texts() == [b"b", b"a"]
    clocked.pass_s(60)
    assert clocked.expired() == [b"a"]


WRONG_DELAYS: dict[str, tuple[object, str]] = {
    "a str": ("5", "a number of seconds, 0 or more, or a timedelta, not '5'"),
    "a bool": (True, "a number of seconds"),
    "nan": (float("nan"), "not nan"),
    "inf": (float("inf"), "not inf"),
    "a datetime": (datetime(2999, 1, 1, tzinfo=UTC), "a number of seconds"),
    "negative": (-1, "0 or more, not -1"),
    "a negative timedelta": (timedelta(seconds=-1), "0 or more"),
    "milliseconds since 1970": (1_900_000_000_000, "after the year 9999.*milliseconds"),
    "the longest timedelta": (timedelta.max, "after the year 9999"),
}


@pytest.mark.parametrize("wrong", WRONG_DELAYS)
def test_a_wrong_delay_is_refused_and_the_message_stays_acquired(clocked: Clocked, wrong: str) -> None:
    value, said = WRONG_DELAYS[wrong]
    clocked.store.publish(clocked.queue, b"m")
    (held,) = clocked.queue.acquire()
    with pytest.raises(errors.OptionError, match=f"delay .*{said}"):
        held.release(delay=value)  # type: ignore[arg-type] # what is refused
    assert clocked.queue.acquired == 1
    held.accept()


def test_a_token_that_was_settled_is_not_released_later(clocked: Clocked) -> None:
    clocked.store.publish(clocked.queue, b"m")
    token = clocked.queue.acquire()[0].detach()
    clocked.queue.accept(token)
    with pytest.raises(errors.NotEnqueued):
        clocked.queue.release(token, delay=5)


# ---- transactions ----


@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
def test_in_a_transaction_times_count_from_the_commit_on(clocked: Clocked, size: int) -> None:
    store, queue = clocked.store, clocked.queue
    with store.transaction() as transaction:
        store.publish(queue, b"a" * size, not_before=clocked.in_s(5), transaction=transaction)
        store.publish(queue, b"b" * size, expires=clocked.in_s(5), transaction=transaction)
        store.publish_many(queue, [b"c" * size], not_before=clocked.in_s(99), transaction=transaction)
        assert queue.depth == 0
        clocked.pass_s(6)
        assert (queue.expired(), queue.counts().expired) == ([], 0)
    assert [text[:1] for text in clocked.texts()] == [b"a"]
    assert [text[:1] for text in clocked.expired()] == [b"b"]
    assert queue.hidden == 1


def test_a_rollback_leaves_no_message_with_times(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    with pytest.raises(ZeroDivisionError), store.transaction() as transaction:
        store.publish([queue], bytes(LARGE), not_before=clocked.in_s(5), transaction=transaction)
        _ = 1 / 0
    assert store.stats()["messages"] == 0


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_in_doubt_keeps_the_times(clocked: Clocked, commits: bool) -> None:
    store, queue = clocked.store, clocked.queue
    store.publish(queue, b"moved")
    branch = store.begin(logstore.Xid(1, b"g"))
    store.publish(queue, b"published", not_before=clocked.in_s(5), transaction=branch)
    queue.move(queue.acquire()[0], queue, expires=clocked.in_s(5), transaction=branch)
    branch.end()
    branch.prepare()
    clocked.again(crash=ALL_LOST)
    assert clocked.texts() == []
    (doubtful,) = clocked.store.in_doubt()
    if not commits:
        doubtful.rollback()
        assert clocked.texts() == [b"moved"]
        return
    doubtful.commit()
    assert clocked.texts() == [b"moved"]
    clocked.pass_s(6)
    assert clocked.texts() == [b"published"]
    assert clocked.expired() == [b"moved"]


def test_a_rollback_brings_back_a_message_that_has_expired_meanwhile(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    store.publish(queue, b"m", expires=clocked.in_s(5))
    transaction = store.begin()
    queue.accept(queue.acquire()[0], transaction=transaction)
    clocked.pass_s(6)
    assert queue.expired() == []
    transaction.rollback()
    assert clocked.expired() == [b"m"]


# ---- waking ----


def test_a_thread_that_waits_gets_the_message_when_its_time_comes(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    got: list[Delivery] = []
    waiting = threading.Thread(target=lambda: got.extend(queue.acquire(timeout=PATIENCE_S)))
    waiting.start()
    due = time.time() + 0.2
    store.publish(queue, b"m", not_before=due)
    waiting.join()
    assert [delivery.content for delivery in got] == [b"m"]
    assert time.time() >= due
    got[0].release(delay=0.1)
    assert queue.acquire(timeout=PATIENCE_S)[0].delivery_count == 2


def test_a_task_that_waits_gets_the_message_when_its_time_comes(store: MessageStore) -> None:
    queue = store.declare_queue("q")

    async def run() -> list[bytes]:
        now = time.time()
        store.publish(queue, b"second", not_before=now + 0.3, wait=False)
        store.publish(queue, b"first", not_before=now + 0.1, wait=False)
        got = []
        async with asyncio.timeout(PATIENCE_S):
            async for delivery in queue:
                got.append(delivery.content)
                delivery.accept(wait=False)
                if len(got) == 2:
                    break
        return got

    assert asyncio.run(run()) == [b"first", b"second"]


@pytest.mark.parametrize("event", ["on_released", "on_expired"])
def test_listeners_are_told_when_a_time_comes(store: MessageStore, event: str) -> None:
    queue, told_of = store.declare_queue("q"), threading.Event()
    listener = getattr(queue, event)(lambda _: told_of.set())
    if event == "on_released":
        store.publish(queue, b"m", not_before=time.time() + 0.1)
    else:
        store.publish(queue, b"m", expires=time.time() + 0.1)
    assert told_of.wait(PATIENCE_S)
    found = queue.acquire() if event == "on_released" else queue.expired()
    assert [delivery.content for delivery in found] == [b"m"]
    listener.close()


# ---- many ----


def test_messages_of_random_times_are_offered_in_the_order_of_the_queue(clocked: Clocked) -> None:
    store, queue = clocked.store, clocked.queue
    order = [(number * 7919) % 600 for number in range(600)]
    for number, wait_s in enumerate(order):
        store.publish(queue, b"%d" % number, not_before=clocked.in_s(wait_s + 1), wait=False)
    store.force()
    seen: list[int] = []
    for now in itertools.count(0, 100):
        if now > 0:
            clocked.pass_s(100)
        due = [number for number, wait_s in enumerate(order) if wait_s + 1 < now and number not in set(seen)]
        found = queue.acquire(1000)
        assert abs(len(found) - len(due)) <= 2  # at the edge of a second
        numbers = [int(delivery.content) for delivery in found]
        assert numbers == sorted(numbers)
        seen += numbers
        for delivery in found:
            delivery.accept(wait=False)
        if len(seen) == 600:
            break
    assert sorted(seen) == list(range(600))
    assert queue.depth == 0
