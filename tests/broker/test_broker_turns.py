"""Turns of the event loop: one client's work of many units lets the others have their answers meanwhile."""

from __future__ import annotations

import logging
import struct
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands, frame, header

from kit.amqp_client import raw_frame
from kit.live_broker import message_bytes
from kit.patience import PATIENCE_S, wait_until
from logstore.broker import connection as connections
from logstore.broker import turns as turn_module
from logstore.broker.heartbeats import Heartbeats
from logstore.broker.receiving import Pause
from logstore.broker.replies import REPLIES_HELD_MAX
from logstore.broker.turns import LOOP_UNITS, TURN_UNITS, Turns, all_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from kit.amqp_client import RawClient
    from kit.live_broker import Broker

ANSWERS = 50
PROPERTIES = b"\x00\x00"


# ---- the ring --------------------------------------------------------------------------------------------------------


class Loop:
    """A loop whose turns a test makes."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.timers: list[Callable[[], object]] = []
        self.now = 0.0

    def call_soon(self, call: Callable[..., object], *arguments: Any) -> None:
        self.calls.append((call, arguments))

    def call_later(self, _delay_s: float, call: Callable[[], object]) -> Loop:
        self.timers.append(call)
        return self

    def cancel(self) -> None:
        """Of a timer."""

    def time(self) -> float:
        return self.now

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call, arguments in calls:
            call(*arguments)


class Worker:
    """Has work for some turns."""

    def __init__(self, turns: Turns, name: str, parts: int, log: list[str], units: int = TURN_UNITS) -> None:
        self.turns, self.name, self.parts, self.log, self.units = turns, name, parts, log, units

    def take_turn(self) -> int:
        self.log.append(self.name)
        self.parts -= 1
        if self.parts:
            self.turns.add(self)
        return self.units


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def turns(loop: Loop) -> Turns:
    return Turns(loop)  # type: ignore[arg-type] # what it needs of a loop


def test_everybody_in_the_ring_has_a_turn_before_anybody_has_the_next(loop: Loop, turns: Turns) -> None:
    log: list[str] = []
    for name in "abc":
        turns.add(Worker(turns, name, 3, log))
    while loop.calls:
        loop.turn()
    assert "".join(log) == "abcabcabc"


def test_a_turn_of_the_loop_has_so_many_units_and_no_more(loop: Loop, turns: Turns) -> None:
    log: list[str] = []
    for number in range(100):
        turns.add(Worker(turns, str(number), 1, log))
    loop.turn()
    assert len(log) == LOOP_UNITS // TURN_UNITS
    while loop.calls:
        loop.turn()
    assert log == [str(number) for number in range(100)]


def test_what_a_socket_brings_is_handled_at_once_until_the_units_are_used_up(loop: Loop, turns: Turns) -> None:
    log: list[str] = []
    small = [Worker(turns, "small", 1, log, units=LOOP_UNITS // 8) for _ in range(30)]
    for worker in small:
        turns.at_once(worker)
    assert len(log) == 8
    loop.turn()
    assert len(log) == 16
    turns.at_once(Worker(turns, "newcomer", 1, log))
    assert log[-1] == "newcomer", "each turn of the loop has units for the sockets"


def test_calls_for_the_end_of_work_are_made_once_after_all_of_it_and_need_no_turn_of_the_loop(
    loop: Loop, turns: Turns
) -> None:
    log: list[str] = []

    def inner() -> None:
        turns.at_end(lambda: log.append("end of the inner work"))
        log.append("inner work")

    def outer() -> None:
        turns.at_end(lambda: log.append("end"))
        turns.together(inner)
        log.append("outer work")

    turns.together(outer)
    assert log == ["inner work", "outer work", "end", "end of the inner work"]
    assert not loop.calls
    turns.at_end(lambda: log.append("later"))
    assert log[-1] != "later"
    loop.turn()
    assert log[-1] == "later"


def test_a_defect_in_work_or_in_a_call_at_its_end_keeps_no_other_call_from_being_made(
    turns: Turns, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "logger", logging.getLogger("defects"))
    log: list[str] = []

    def broken() -> None:
        raise ValueError("broken")

    def work() -> None:
        turns.at_end(broken)
        turns.at_end(lambda: log.append("end"))
        raise KeyError("work")

    with pytest.raises(KeyError, match="work"):
        turns.together(work)
    assert log == ["end"]
    assert "broken" in caplog.text


def test_a_defect_of_one_does_not_keep_the_others_from_their_turns(
    loop: Loop, turns: Turns, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Brokers that live on between tests take a defect in the package's log for one of theirs.
    monkeypatch.setattr(turn_module, "logger", logging.getLogger("defects"))

    class Broken(Worker):
        def take_turn(self) -> int:
            raise ValueError("broken")

    log: list[str] = []
    turns.add(Broken(turns, "broken", 1, log))
    turns.add(Worker(turns, "whole", 1, log))
    loop.turn()
    assert log == ["whole"]
    assert "failed in its turn" in caplog.text


def test_who_has_nothing_to_do_any_more_has_no_turn(loop: Loop, turns: Turns) -> None:
    log: list[str] = []
    worker = Worker(turns, "gone", 1, log)
    turns.add(worker)
    turns.discard(worker)
    loop.turn()
    assert log == []


def test_all_parts_of_some_work_have_its_result() -> None:
    def parts() -> Generator[None, None, str]:
        yield
        yield
        return "result"

    assert all_of(parts()) == "result"


# ---- heartbeats ------------------------------------------------------------------------------------------------------


class Peer:
    """What the heartbeats use of a connection."""

    is_paused = False

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.aborted = False
        self.transport = self.outbox = self.limits = self.receiving = self
        self.socket_is_full = False
        self.stall_s = 60.0

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0

    def send(self, data: bytes) -> None:
        pass

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("has_sent", [True, False])
def test_a_peer_is_given_up_only_after_its_socket_was_read(loop: Loop, has_sent: bool) -> None:
    peer = Peer(loop)
    beats = Heartbeats(peer)  # type: ignore[arg-type] # what they need of a connection
    beats.start(1)
    loop.now = 3.0  # the loop was held up; timers come first
    loop.timers.pop()()
    loop.turn()
    assert not peer.aborted, "the loop has not looked at the sockets yet"
    if has_sent:
        beats.received()
    loop.turn()
    assert peer.aborted is not has_sent


# ---- neighbours ------------------------------------------------------------------------------------------------------


def answers_until_done(neighbour: RawClient, work: Callable[[], object]) -> int:
    """Does the work in a thread; how many answers the neighbour had meanwhile."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            problems.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    answers = 0
    while thread.is_alive():
        neighbour.declare("asked")
        answers += 1
    thread.join(PATIENCE_S)
    if problems:
        raise problems[0]
    return answers


@pytest.fixture
def neighbour(broker: Broker) -> Iterator[RawClient]:
    """It shares a process with the broker; so threads hand over sooner than after the usual 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    client = broker.raw().open()
    client.declare("asked")
    yield client
    sys.setswitchinterval(before)


def content_frames(key: bytes, body_size: int, pieces: list[bytes], channel: int = 1) -> bytes:
    publish = struct.pack(">HHH", 60, 40, 0) + b"\x00" + bytes([len(key)]) + key + b"\x00"
    head = struct.pack(">HHQ", 60, 0, body_size) + PROPERTIES
    frames = [raw_frame(1, channel, publish), raw_frame(2, channel, head)]
    return b"".join(frames + [raw_frame(3, channel, piece) for piece in pieces])


def test_a_body_in_tiny_frames_lets_a_neighbour_have_its_answers(broker: Broker, neighbour: RawClient) -> None:
    client = broker.raw().open()
    client.declare("q")
    size = 2 << 20
    data = content_frames(b"q", size, [b"xy"] * (size // 2))

    def work() -> None:
        client.send_bytes(data)
        assert client.declare("q").message_count == 1

    assert answers_until_done(neighbour, work) >= ANSWERS


@pytest.mark.parametrize("durable", [True, False])
def test_a_publisher_of_small_messages_lets_a_neighbour_have_its_answers(
    broker: Broker, neighbour: RawClient, durable: bool
) -> None:
    client = broker.raw().open()
    client.declare("q", durable=durable)
    count = 300_000
    data = content_frames(b"q", 20, [b"x" * 20]) * count

    def work() -> None:
        client.send_bytes(data)
        assert client.declare("q", durable=durable).message_count == count

    assert answers_until_done(neighbour, work) >= ANSWERS


def test_many_gets_of_large_messages_are_answered_as_the_client_reads(broker: Broker, neighbour: RawClient) -> None:
    client = broker.raw().open()
    client.declare("q", durable=True)
    size, count = 2 << 20, 40
    queue = broker.store.queue("q")
    for number in range(count):
        broker.store.publish(queue, bytes([number]) * size, header=b"")
    most: list[int] = []
    broker.call(lambda: spy_on_outbox(most))
    client.send_bytes(frame.marshal(commands.Basic.Get(queue="q", no_ack=True), 1) * count)
    wait_until(lambda: len(most) > 0, "the first one is sent")
    assert neighbour.declare("asked").message_count == 0
    for number in range(count):
        client.expect(commands.Basic.GetOk)
        _, body = client.content()
        assert body == bytes([number]) * size
        neighbour.declare("asked")
    assert max(most) < 3 * size, "one is read from the log when the client has taken the one before"


def spy_on_outbox(most: list[int]) -> None:
    original = connections.Connection.send_all

    def send_all(self: Any, parts: list[bytes | memoryview]) -> None:
        original(self, parts)
        most.append(self.outbox.size_bytes + self.transport.get_write_buffer_size())

    connections.Connection.send_all = send_all  # type: ignore[method-assign] # until the fixture below takes it back


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections.Connection, "send_all", connections.Connection.send_all)


def test_a_client_that_asks_for_ever_and_reads_nothing_is_not_read_any_more(broker: Broker) -> None:
    client = broker.raw(receive_buffer=4096).open()
    client.declare("q", durable=True)
    queue = broker.store.queue("q")
    for _ in range(3):
        broker.store.publish(queue, bytes(16 << 20), header=b"")
    get = frame.marshal(commands.Basic.Get(queue="q"), 1)
    most = 5 * REPLIES_HELD_MAX
    client.send_bytes(get * most)
    [server_side] = broker.server.connections

    def is_paused() -> bool:
        return bool(server_side.receiving.pauses & Pause.REPLIES)

    wait_until(lambda: broker.call(is_paused), "nothing is read")
    assert broker.call(lambda: server_side.replies.count) <= REPLIES_HELD_MAX + TURN_UNITS
    for _ in range(3):
        client.expect(commands.Basic.GetOk)
        client.content()
    for _ in range(most - 3):
        client.expect(commands.Basic.GetEmpty)


def with_unacked(broker: Broker, count: int) -> RawClient:
    """A consumer that has got so many messages, and acknowledged none."""
    client = broker.raw().open()
    client.declare("q", durable=True)
    broker.store.publish_many(broker.store.queue("q"), [b"%d" % number for number in range(count)])
    client.send(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    client.expect(commands.Basic.ConsumeOk)
    for number in range(count):
        assert client.delivery()[1] == b"%d" % number
    return client


@pytest.mark.parametrize("end", ["channel closed", "connection lost", "recover", "nack"])
def test_very_many_deliveries_go_back_in_order_and_in_turns(broker: Broker, neighbour: RawClient, end: str) -> None:
    count = 6_000
    client = with_unacked(broker, count)
    second = broker.raw().open()
    parts: list[int] = []
    host = broker.server.hosts["/"]
    queue = host.vhost.queues["q"]

    def look() -> None:
        parts.append(queue.ready_count)
        if queue.unacknowledged_count:
            broker.loop.call_soon(look)

    broker.call(lambda: broker.loop.call_soon(look))
    if end == "channel closed":
        client.send(1, commands.Channel.Close(200, "", 0, 0))
        client.expect(commands.Channel.CloseOk)
    elif end == "connection lost":
        client.socket.close()
    else:
        client.send(1, commands.Basic.Cancel(consumer_tag="c"))
        client.expect(commands.Basic.CancelOk)
        if end == "recover":
            client.send(1, commands.Basic.Recover(requeue=True))
            client.expect(commands.Basic.RecoverOk)
        else:
            client.send(1, commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=True))
    wait_until(lambda: broker.call(lambda: queue.unacknowledged_count) == 0, "all are back")
    assert len({each for each in parts if 0 < each < count}) >= 5, "the loop turned meanwhile"
    second.send(1, commands.Basic.Consume(queue="q", no_ack=True))
    second.expect(commands.Basic.ConsumeOk)
    for number in range(count):
        deliver, body = second.delivery()
        assert (body, deliver.redelivered) == (b"%d" % number, True)
    neighbour.declare("asked")


def test_a_large_commit_lets_a_neighbour_have_its_answers_and_is_whole_when_it_is_answered(
    broker: Broker, neighbour: RawClient
) -> None:
    client = broker.raw().open()
    client.declare("memory")
    client.declare("disk", durable=True)
    client.send(1, commands.Tx.Select())
    client.expect(commands.Tx.SelectOk)
    count = 20_000
    data = (content_frames(b"memory", 2, [b"in"]) + content_frames(b"disk", 2, [b"on"])) * count
    client.send_bytes(data)
    client.send(1, commands.Basic.Qos())  # all of it has arrived
    client.expect(commands.Basic.QosOk)

    def work() -> None:
        client.send(1, commands.Tx.Commit())
        client.expect(commands.Tx.CommitOk)
        assert client.declare("memory").message_count == count
        assert client.declare("disk", durable=True).message_count == count

    assert answers_until_done(neighbour, work) >= ANSWERS


def test_a_purge_ends_with_what_was_there_when_it_began(broker: Broker) -> None:
    client = broker.raw().open()
    client.declare("q")
    other = broker.raw().open()
    count = 20_000
    client.send_bytes(content_frames(b"q", 2, [b"xy"]) * count)
    assert client.declare("q").message_count == count
    queue = broker.server.hosts["/"].vhost.queues["q"]
    server = broker.server
    parts = queue.purge()
    broker.call(lambda: next(parts))
    other.publish("q", b"later")
    assert other.declare("q").message_count == 1
    assert broker.call(lambda: all_of(parts)) == count
    assert other.declare("q").message_count == 1
    client.send(1, commands.Queue.Purge(queue="q"))
    assert client.expect(commands.Queue.PurgeOk).message_count == 1
    assert broker.call(lambda: (queue.held_bytes, message_bytes(server))) == (0, 0)


def test_a_queue_that_is_deleted_during_its_purge_gives_its_memory_back_once(broker: Broker) -> None:
    client = broker.raw().open()
    client.declare("q")
    count = 3 * TURN_UNITS
    client.send_bytes(content_frames(b"q", 2, [b"xy"]) * count)
    assert client.declare("q").message_count == count
    queue = broker.server.hosts["/"].vhost.queues["q"]
    parts = queue.purge()
    broker.call(lambda: next(parts))
    client.send(1, commands.Queue.Delete(queue="q"))
    client.expect(commands.Queue.DeleteOk)
    broker.call(lambda: all_of(parts))
    assert broker.call(lambda: message_bytes(broker.server)) == 0


def test_consumers_of_many_queues_are_served_in_turns(broker: Broker, neighbour: RawClient) -> None:
    client = broker.raw().open()
    queues, each = 40, 1_000
    for number in range(queues):
        client.declare(f"q{number}", durable=True)
        broker.store.publish_many(broker.store.queue(f"q{number}"), [b"x" * 20] * each)
    consumer = broker.raw().open()

    def work() -> None:
        for number in range(queues):
            consumer.send(1, commands.Basic.Consume(queue=f"q{number}", no_ack=True, nowait=True))
        got = 0
        while got < queues * each:
            _, value = consumer.receive()
            got += isinstance(value, header.ContentHeader)

    assert answers_until_done(neighbour, work) >= ANSWERS
