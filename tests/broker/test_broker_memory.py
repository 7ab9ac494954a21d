"""The memory budget: what is held is counted, no user has a whole share, and whoever waits goes on."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import body, commands, frame, header

from kit.amqp_client import publish_bytes, raw_frame
from kit.broker_waits import send_until_paused
from kit.command import run
from kit.live_broker import message_bytes
from kit.patience import wait_until
from kit.serve_process import ServeProcess
from logstore.broker.holdings import CLIENT_BYTES_FREE
from logstore.broker.memory import CHANNEL_BYTES, DELIVERY_BYTES, MemoryBudget, Share
from logstore.broker.receiving import Pause
from logstore.broker.replies import REPLIES_HELD_MAX
from logstore.broker.streams import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kit.amqp_client import RawClient
    from kit.live_broker import Broker

FRAME = 100_000
KIB = 1 << 10
MIB = 1 << 20


# ---- Shares


class Ring:
    """Turns that a test gives itself."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def add(self, one: Any) -> None:
        self.waiting.append(one)

    def turn(self) -> None:
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one.take_turn()


class User:
    """Takes as much as it can get, in steps, and waits when it gets nothing."""

    def __init__(self, share: Share, step: int) -> None:
        self.share, self.step, self.held, self.woken = share, step, 0, 0

    def take(self) -> None:
        while self.share.fits(self.held, self.step):
            self.held += self.step
            self.share.add(self.step)
        self.share.await_bytes(self)

    def has_bytes(self) -> None:
        self.woken += 1
        self.take()

    def give_back(self, size: int) -> None:
        self.held -= size
        self.share.give_back(size)


@pytest.fixture
def ring() -> Ring:
    return Ring()


@pytest.fixture
def share(ring: Ring) -> Share:
    made = Share(100_000)
    made.serve(ring)  # type: ignore[arg-type] # what a share needs of the turns
    return made


def test_the_shares_are_the_budget() -> None:
    budget = MemoryBudget(1 << 30)
    assert sum(share.bytes_max for share in budget.shares.values()) == 1 << 30


@pytest.mark.parametrize("count", [1, 2, 10, 99])
def test_users_that_want_everything_leave_a_part_for_a_newcomer(share: Share, count: int) -> None:
    users = [User(share, 10) for _ in range(count)]
    for user in users:
        user.take()
    assert share.used_bytes <= share.bytes_max
    assert users[0].held <= share.bytes_max // 2
    newcomer = User(share, 10)
    newcomer.take()
    assert newcomer.held > 0 or count > 30


def test_who_waits_is_woken_by_bytes_and_not_by_time_and_asks_again(share: Share, ring: Ring) -> None:
    first, second = User(share, 1000), User(share, 1000)
    first.take()
    second.take()
    assert (first.woken, second.woken, ring.waiting) == (0, 0, [])
    first.give_back(20_000)
    ring.turn()
    assert (first.woken, second.woken) == (1, 1)
    assert second.held > 25_000
    assert share.waiting_count == 2


def test_very_many_are_woken_in_turns_the_one_that_has_waited_longest_first(share: Share, ring: Ring) -> None:
    order: list[int] = []

    class Waiter:
        def __init__(self, number: int) -> None:
            self.number = number

        def has_bytes(self) -> None:
            order.append(self.number)

    share.add(1)
    for number in range(1000):
        share.await_bytes(Waiter(number))
    share.give_back(1)
    ring.turn()
    assert 0 < len(order) < 100
    while ring.waiting:
        ring.turn()
    assert order == list(range(1000))


def test_bytes_that_are_given_back_while_others_are_woken_wake_those_that_wait_again(share: Share, ring: Ring) -> None:
    share.add(share.bytes_max)
    users = [User(share, 50_000) for _ in range(100)]
    for user in users:
        user.take()
    share.give_back(0)
    assert not ring.waiting
    share.give_back(1)  # a round begins
    ring.turn()
    assert {user.woken for user in users} == {0, 1}
    share.give_back(1)  # another one is to follow, as some have waited again since
    while ring.waiting:
        ring.turn()
    assert {user.woken for user in users} == {2}


def test_a_user_that_has_gone_is_not_woken(share: Share, ring: Ring) -> None:
    users = [User(share, 1000) for _ in range(3)]
    for user in users:
        user.take()
    share.forget(users[1])
    users[0].give_back(1000)
    share.forget(users[2])
    ring.turn()
    assert [user.woken for user in users] == [1, 0, 0]


# ---- Unacknowledged deliveries


def with_messages(broker: Broker, queue: str, count: int, body_bytes: int = 1) -> None:
    handle = broker.store.queue(queue)
    broker.store.publish_many(handle, [b"x" * body_bytes] * count)


def consume(client: RawClient, queue: str = "q", *, channel: int = 1) -> None:
    client.send(channel, commands.Basic.Consume(queue=queue))
    client.expect(commands.Basic.ConsumeOk)


def nothing_more(client: RawClient) -> None:
    """The answer to a call comes next, so nothing was delivered before it."""
    client.send(1, commands.Basic.Qos(prefetch_count=0))
    client.expect(commands.Basic.QosOk)


def unacknowledged_bytes(broker: Broker) -> int:
    return broker.call(lambda: broker.server.budget.unacknowledged.used_bytes)


def share_of(count: int) -> int:
    """A budget whose share for unacknowledged deliveries has so many."""
    return 8 * count * DELIVERY_BYTES


def test_a_consumer_without_prefetch_has_its_limit_and_an_acknowledgement_resumes_it(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(unacked_per_consumer_max=10)
    client = broker.raw().open()
    client.declare("q", durable=True)
    with_messages(broker, "q", 25)
    consume(client)
    for expected in (10, 20, 25):
        for _ in range(expected - 10 if expected < 25 else 20, expected):
            tag = client.delivery()[0].delivery_tag
        assert tag == expected
        nothing_more(client)
        client.send(1, commands.Basic.Ack(expected, multiple=True))
    assert client.declare("q", passive=True).message_count == 0
    assert unacknowledged_bytes(broker) == 0


def test_unacknowledged_deliveries_of_all_channels_are_limited_and_a_newcomer_gets_some(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(memory_bytes_max=share_of(1000))
    first = broker.raw().open()
    first.declare("q", durable=True)
    with_messages(broker, "q", 3000)
    consume(first)
    budget = broker.server.budget.unacknowledged
    wait_until(lambda: broker.call(lambda: budget.waiting_count) > 0, "deliveries pause")
    held = unacknowledged_bytes(broker) // DELIVERY_BYTES
    assert 100 < held < 1000
    newcomer = broker.raw().open()
    consume(newcomer)
    newcomer.delivery()
    for _ in range(held):
        tag = first.delivery()[0].delivery_tag
    first.send(1, commands.Basic.Ack(tag, multiple=True))
    first.delivery()  # deliveries go on
    first.socket.close()
    newcomer.send(1, commands.Basic.Ack(0, multiple=True))
    newcomer.socket.close()
    wait_until(lambda: unacknowledged_bytes(broker) == 0, "everything is released")
    assert broker.call(lambda: budget.waiting_count) == 0


def test_a_get_waits_while_memory_has_no_room_for_one_more_and_acknowledgements_are_read(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker()
    broker.server.budget.unacknowledged.bytes_max = 10 * DELIVERY_BYTES
    client = broker.raw().open(channels=2)
    client.declare("q", durable=True)
    with_messages(broker, "q", 20)
    client.send(1, *[commands.Basic.Get(queue="q") for _ in range(20)])
    got = 0
    with contextlib.suppress(StopIteration):
        while got < 20:
            client.send(2, commands.Basic.Qos(prefetch_count=0))  # its answer says that channel 1 waits
            while True:
                number, value = client.receive()
                if number == 2:
                    assert isinstance(value, commands.Basic.QosOk)
                    client.send(1, commands.Basic.Ack(0, multiple=True))
                    break
                if isinstance(value, commands.Basic.GetOk):
                    got += 1
                    assert unacknowledged_bytes(broker) <= 10 * DELIVERY_BYTES
    assert got == 20


def test_gets_that_wait_for_acknowledgements_and_keep_them_from_being_read_are_refused(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker()
    broker.server.budget.unacknowledged.bytes_max = 10 * DELIVERY_BYTES
    client = broker.raw().open(channels=3)
    client.declare("q", durable=True)
    with_messages(broker, "q", 20)
    get = frame.marshal(commands.Basic.Get(queue="q"), 1), frame.marshal(commands.Basic.Get(queue="q"), 2)
    for each in get:  # neither of them alone has too many
        client.send_bytes(each * (REPLIES_HELD_MAX // 2 + 100))
    client.send(3, commands.Queue.Declare(queue="q", passive=True))
    closed, answer = set(), None
    while answer is None:
        number, value = client.receive()
        if isinstance(value, commands.Channel.Close):
            assert value.reply_code == 506
            closed.add(number)
        elif isinstance(value, commands.Queue.DeclareOk):
            answer = value
    assert closed == {1, 2}
    assert answer.message_count == 20, "nothing is lost"


# ---- Output


def output_bytes(broker: Broker) -> int:
    return broker.call(lambda: broker.server.budget.output.used_bytes)


def test_clients_that_do_not_read_have_the_share_of_output_together_and_get_everything_when_they_read(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(memory_bytes_max=16 * MIB)  # of which 2 MiB are for output
    clients = [broker.raw(receive_buffer=1 << 14).open() for _ in range(6)]
    for number, client in enumerate(clients):
        client.declare(f"q{number}", durable=True)
        with_messages(broker, f"q{number}", 100, 100_000)
        client.send(1, commands.Basic.Consume(queue=f"q{number}"))
    output = broker.server.budget.output
    wait_until(lambda: broker.call(lambda: output.waiting_count) > 0, "a client waits for memory")
    assert output_bytes(broker) <= 2 * MIB + len(clients) * 2 * FRAME
    for number, client in enumerate(clients):
        client.expect(commands.Basic.ConsumeOk)
        for _ in range(100):
            assert client.delivery()[1] == b"x" * 100_000
        assert broker.store.queue(f"q{number}").depth == 100
    wait_until(lambda: output_bytes(broker) == 0, "nothing is left")
    assert broker.call(lambda: output.waiting_count) == 0


def test_large_bodies_on_many_channels_of_a_client_that_does_not_read_take_a_few_pieces(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker()
    client = broker.raw(receive_buffer=1 << 14).open(channels=40)
    client.declare("q", durable=True)
    with_messages(broker, "q", 40, 4 * MIB)
    for channel in range(1, 41):
        client.send(channel, commands.Basic.Qos(prefetch_count=1))
        client.expect(commands.Basic.QosOk)
    for channel in range(1, 41):
        client.send(channel, commands.Basic.Consume(queue="q", consumer_tag=str(channel)))
    wait_until(lambda: broker.call(lambda: len(broker.server.budget.output._waiting)) == 0, "no one waits")
    wait_until(lambda: output_bytes(broker) > MIB // 2, "the client is behind")
    most = broker.server.limits.unsent_bytes_high + 2 * PIECE_BYTES
    sizes: dict[int, int] = {}
    done = 0
    while done < 40:
        channel, value = client.receive()
        assert output_bytes(broker) <= most + 40 * KIB
        if isinstance(value, header.ContentHeader):
            sizes[channel] = 0
        elif isinstance(value, body.ContentBody):
            sizes[channel] += len(value.value)
            done += sizes[channel] == 4 * MIB


def test_returned_bodies_that_wait_at_the_gate_are_counted_and_the_client_is_not_read(
    start_held: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, disk = start_held(unsent_bytes_max=2 * MIB)
    client = broker.raw().open(channels=2)
    client.declare("q", durable=True)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    disk.hold()
    client.publish("q", b"x")
    send_until_paused(broker, client, publish_bytes("nowhere", bytes(90_000), mandatory=True), Pause.REPLIES)
    [server_side] = broker.server.connections
    assert output_bytes(broker) < 4 * MIB
    disk.let_go()
    wait_until(lambda: not broker.call(lambda: bool(server_side.receiving.pauses & Pause.REPLIES)), "it is read again")
    client.socket.close()
    wait_until(lambda: message_bytes(broker.server) == 0, "all is given back")


# ---- Arriving contents


def begin(client: RawClient, size: int, sent: int, *, channel: int = 1, key: str = "q") -> None:
    client.send(channel, commands.Basic.Publish(routing_key=key), header.ContentHeader(0, size))
    client.send_bytes(raw_frame(3, channel, bytes(sent)))


def go_on(client: RawClient, size: int, sent: int, *, channel: int = 1) -> None:
    for at in range(sent, size, FRAME):
        client.send_bytes(raw_frame(3, channel, bytes(min(FRAME, size - at))))


def contents_bytes(broker: Broker) -> int:
    return broker.call(lambda: broker.server.budget.contents.used_bytes)


def paused_for_memory(broker: Broker) -> int:
    return broker.call(lambda: sum(bool(each.receiving.pauses & Pause.MEMORY) for each in broker.server.connections))


BODY = 240_000  # of three frames, and not large


def test_bodies_that_are_begun_and_not_ended_take_bounded_memory_and_others_publish(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(memory_bytes_max=8 * MIB)  # of which 1 MiB is for contents
    clients = [broker.raw().open() for _ in range(30)]
    clients[0].declare("q", durable=True)
    for client in clients:
        begin(client, BODY, FRAME)
    wait_until(lambda: paused_for_memory(broker) > 15, "most are not read")
    assert contents_bytes(broker) < 4 * MIB
    other = broker.raw().open()
    for _ in range(5):
        other.publish("q", bytes(90_000))
    assert other.declare("q", passive=True).message_count == 5
    assert broker.call(lambda: len(broker.server.connections)) == 31, "nobody was refused"


@pytest.mark.parametrize("durable", [True, False])
def test_bodies_that_wait_for_memory_all_come_to_their_end_in_any_order(
    start_broker: Callable[..., Broker], durable: bool
) -> None:
    broker = start_broker(memory_bytes_max=32 * MIB if not durable else 2 * MIB)
    clients = [broker.raw().open() for _ in range(30)]
    clients[0].declare("q", durable=durable)
    for client in clients:
        begin(client, BODY, FRAME)
    for client in reversed(clients):  # the oldest one last: the sockets have what is not read
        go_on(client, BODY, FRAME)
    other = broker.raw().open()
    wait_until(lambda: other.declare("q", passive=True).message_count == 30, "all of them")
    wait_until(lambda: contents_bytes(broker) == 0, "nothing is left")
    assert paused_for_memory(broker) == 0


def test_bodies_that_nobody_ends_stop_the_others_until_they_have_stood_still(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(memory_bytes_max=2 * MIB)
    clients = [broker.raw().open() for _ in range(12)]
    clients[0].declare("q", durable=True)
    now = 1000.0
    arriving = broker.server.arriving

    def look(at: float) -> None:
        nonlocal now
        now = at
        broker.call(arriving.look)

    broker.call(lambda: setattr(arriving, "clock", lambda: now))
    for client in clients:
        begin(client, BODY, FRAME)
    wait_until(lambda: paused_for_memory(broker) > 0, "some are not read")
    at = now
    for _ in range(len(clients)):  # whoever is read and stands still is closed, and then others are read
        look(at := at + 1)
        look(at := at + 60)
        if not broker.call(lambda: len(arriving._contents)):
            break
        wait_until(lambda: paused_for_memory(broker) == 0 or broker.call(lambda: arriving.share.waiting_count) > 0)
    assert broker.call(lambda: len(arriving._contents)) == 0
    assert broker.raw().open().declare("q", passive=True).message_count == 0


def test_large_bodies_go_to_the_log_early_when_memory_is_short_and_none_is_refused(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(memory_bytes_max=2 * MIB, inline_body_bytes_max=PIECE_BYTES)
    clients = [broker.raw().open() for _ in range(20)]
    clients[0].declare("q", durable=True)
    size = 2 * MIB
    for client in clients:
        begin(client, size, FRAME)
    assert contents_bytes(broker) < 2 * MIB
    for client in reversed(clients):
        go_on(client, size, FRAME)
    other = broker.raw().open()
    wait_until(lambda: other.declare("q", passive=True).message_count == 20, "all of them")
    wait_until(lambda: contents_bytes(broker) == 0, "nothing is left")


# ---- Clients


def test_channels_beyond_the_memory_for_clients_are_refused_and_closing_some_makes_room(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(memory_bytes_max=16 * 300 * CHANNEL_BYTES)
    client = broker.raw().open(channels=100)
    client.send(101, *[commands.Channel.Open()])
    client.expect(commands.Channel.OpenOk)
    other = broker.raw().open(channels=CLIENT_BYTES_FREE // CHANNEL_BYTES - 10)  # always allowed
    for number in range(102, 300):
        client.send(number, commands.Channel.Open())
        _, value = client.receive()
        if not isinstance(value, commands.Channel.OpenOk):
            break
    assert isinstance(value, commands.Connection.Close)
    assert value.reply_code == 506
    assert "memory for connections, channels and consumers is full" in value.reply_text
    client.socket.close()
    wait_until(lambda: broker.call(lambda: len(broker.server.connections)) == 1)
    for number in range(200, 280):
        other.open_channel(number)


def test_everything_that_clients_took_is_given_back_when_they_have_gone(broker: Broker) -> None:
    client = broker.raw().open(channels=3)
    client.declare("q", durable=True)
    for channel in (1, 2, 3):
        consume(client, channel=channel)
    client.send(2, commands.Basic.Cancel(client_tag(broker, 2)))
    client.expect(commands.Basic.CancelOk)
    client.send(3, commands.Channel.Close(200, "", 0, 0))
    client.expect(commands.Channel.CloseOk)
    client.socket.close()
    wait_until(lambda: broker.call(lambda: broker.server.budget.used_bytes) == 0, "all of it")


def client_tag(broker: Broker, channel: int) -> str:
    [connection] = broker.server.connections
    return broker.call(lambda: next(iter(connection.channels[channel].consuming.consumers)))


# ---- The option


def test_serve_sets_the_memory(tmp_path: Path) -> None:
    process = ServeProcess(tmp_path / "store", options=("--max-memory", "32M"))
    try:
        found = json.loads(run("stats", tmp_path / "store", "--json").stdout)["broker"]
        assert found["memory_bytes_max"] == 32 * MIB
        assert found["memory_shares"]["queues"] == {"bytes": 0, "bytes_max": 16 * MIB, "waiting": 0}
    finally:
        process.kill()


@pytest.mark.parametrize("value", ["0", "1M", "-1", "much"])
def test_serve_refuses_a_memory_that_is_too_small_in_one_line(tmp_path: Path, value: str) -> None:
    found = run("serve", tmp_path / "store", f"--max-memory={value}")
    assert found.returncode == 2
    assert "--max-memory" in found.stderr.splitlines()[-1]
    assert not (tmp_path / "store").exists()
