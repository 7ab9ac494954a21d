"""What waits in the log on no queue, blocks of queues in memory and of transactions: kills, damage, failed disks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

import logstore
from kit.amqp_client import RawClient
from kit.command import fine
from kit.faulty_disks import FaultyDisk
from kit.patience import wait_until
from kit.serve_process import ServeProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kit.live_broker import Broker

MIB = 1 << 20
BODY = 1000
MANY = 10_000  # of which the memory of queues, 8 MiB, holds the half
OPTIONS = ("--max-memory", "16M", "--segment-size", "1M")


def body_of(number: int) -> bytes:
    """A body that is like no other in each place."""
    return b"%08d" % number * (BODY // 8)


def publish_many(client: RawClient, queue: str, numbers: range, channel: int = 1) -> None:
    for number in numbers:
        client.publish(queue, body_of(number), channel=channel)


def settled(client: RawClient, channel: int = 1) -> None:
    """The broker has handled what was sent."""
    client.send(channel, commands.Basic.Qos(prefetch_count=0))
    client.expect(commands.Basic.QosOk)


def get_all(client: RawClient, queue: str) -> list[bytes]:
    found = []
    while True:
        client.send(1, commands.Basic.Get(queue=queue, no_ack=True))
        _, answer = client.receive()
        if isinstance(answer, commands.Basic.GetEmpty):
            return found
        found.append(client.content()[1])


def confirmed(client: RawClient, queue: str, numbers: range) -> None:
    """On a channel with confirms."""
    publish_many(client, queue, numbers)
    tag = 0
    while tag < numbers.stop:
        tag = client.expect(commands.Basic.Ack).delivery_tag


def selecting(client: RawClient, channel: int = 1) -> None:
    client.send(channel, commands.Tx.Select())
    client.expect(commands.Tx.SelectOk)


# ---- a process that is killed, or whose disk fails -------------------------------------------------------------------


class Served:
    """A process with blocks of both kinds in its log, between durable messages."""

    def __init__(self, store: Path, environment: dict[str, str] | None = None) -> None:
        self.store = store
        self.process = ServeProcess(store, options=OPTIONS, environment=environment)
        self.durable = RawClient(self.process.port).open()
        self.durable.declare("d", durable=True)
        self.durable.send(1, commands.Confirm.Select())
        self.durable.expect(commands.Confirm.SelectOk)
        self.filler = RawClient(self.process.port).open(channels=2)
        self.filler.declare("m")
        selecting(self.filler, 2)

    def fill(self) -> None:
        for at in range(4):
            confirmed(self.durable, "d", range(at * 100, at * 100 + 100))
            publish_many(self.filler, "m", range(at * MANY // 4, (at + 1) * MANY // 4))
            publish_many(self.filler, "d", range(1000), channel=2)
        settled(self.filler, 1)
        settled(self.filler, 2)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def start(environment: dict[str, str] | None = None) -> Served:
        made.append(Served(tmp_path / "store", environment))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()


def goes_beyond(store: logstore.MessageStore, lsn: int) -> None:
    """The tail of the log moves past this LSN under traffic."""
    queue = store.declare_queue("traffic")
    for _ in range(200):
        if store.base_lsn > lsn:
            return
        for message in store.publish_many(queue, [bytes(100_000)] * 10):
            store.dequeue(message, queue)
    raise AssertionError("the tail stays behind what was staged")


@pytest.mark.parametrize("moment", ["full", "filling", "emptying", "committing"])
def test_a_kill_leaves_nothing_of_blocks_and_all_durable_messages(serve: Callable[..., Served], moment: str) -> None:
    served = serve()
    served.fill()
    if moment == "filling":
        publish_many(served.filler, "m", range(MANY))
    elif moment == "emptying":
        served.filler.send(1, commands.Basic.Consume(queue="m", consumer_tag="c", no_ack=True, nowait=True))
        for number in range(MANY * 2 // 3):
            assert served.filler.delivery()[1] == body_of(number)
    elif moment == "committing":
        served.filler.send(2, commands.Tx.Commit())
    served.process.kill()
    fine("verify", served.store)
    with logstore.open(served.store) as store:
        found = [bytes(each.content) for each in store.messages("d", load=True)]
        durable = [body_of(number) for number in range(400)]
        committed = [body_of(number) for number in range(1000)] * 4
        assert found == durable or (moment == "committing" and found == durable + committed)
        assert store.stats()["messages"] == len(found)
        assert store.recovery.staged_dropped > 10
        assert [queue.name for queue in store.queues()] == ["d"]
        goes_beyond(store, store.next_lsn)
    fine("verify", served.store)


def end_of(client: RawClient) -> commands.Connection.Close:
    """It publishes to the queue in memory until the broker closes the connection."""
    while True:
        publish_many(client, "m", range(1000))
        client.send(1, commands.Basic.Qos(prefetch_count=0))
        _, answer = client.receive()
        if isinstance(answer, commands.Connection.Close):
            return answer
        assert isinstance(answer, commands.Basic.QosOk | commands.Basic.Ack)


def test_a_disk_that_fails_under_blocks_ends_the_connections_and_loses_nothing_durable(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    disk = FaultyDisk(tmp_path)
    served = serve(disk.environment)
    served.fill()
    disk.fail()
    assert end_of(served.filler).reply_code == end_of(served.durable).reply_code == 541
    served.process.kill()
    assert "Traceback" not in served.process.errors.read_text()
    disk.work()
    with logstore.open(served.store) as store:
        found = [bytes(each.content) for each in store.messages("d", load=True)]
        assert found == [body_of(number) for number in range(400)]
        assert store.stats()["messages"] == 400


@pytest.mark.parametrize("how", ["publish", "transaction"])
def test_neighbours_are_answered_while_blocks_wait_for_a_disk_that_hangs(
    serve: Callable[..., Served], tmp_path: Path, how: str
) -> None:
    disk = FaultyDisk(tmp_path)
    served = serve(disk.environment)
    client, other, count = served.filler, served.durable, 1000
    for number in range(40):
        client.declare(f"m{number}")
        client.send(1, commands.Queue.Bind(queue=f"m{number}", exchange="amq.fanout"))
        client.expect(commands.Queue.BindOk)
    channel = 2 if how == "transaction" else 1
    disk.hang()
    for number in range(count):  # 40 MB in blocks; the log takes 2 MiB while it hangs
        client.publish("", body_of(number), exchange="amq.fanout", channel=channel)
    client.send(channel, commands.Tx.Commit() if how == "transaction" else commands.Basic.Qos())
    other.publish("d", b"behind it")
    for _ in range(20):  # each is answered by the loop that writes the blocks
        newcomer = RawClient(served.process.port)
        newcomer.start()
        newcomer.expect(commands.Connection.Tune)
        newcomer.socket.close()
    disk.work()
    client.expect(commands.Tx.CommitOk if how == "transaction" else commands.Basic.QosOk)
    other.expect(commands.Basic.Ack)
    for number in (0, 39):
        assert get_all(other, f"m{number}") == [body_of(number) for number in range(count)]


# ---- damage below a running broker -----------------------------------------------------------------------------------


def flip(broker: Broker, wanted: bytes, offset: int, count: int = 1) -> None:
    """Damage the log, `offset` bytes behind the first occurrence of these bytes."""
    broker.store.force()
    for path in sorted(broker.store.path.glob("*.seg")):
        at = path.read_bytes().find(wanted)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + offset)
                was = file.read(count)
                file.seek(at + offset)
                file.write(bytes(each ^ 0xFF for each in was))
            return
    raise AssertionError("the log has no such bytes")


def queue_of(broker: Broker, name: str = "m") -> Any:
    return broker.server.hosts["/"].vhost.queues[name]


def with_blocks(broker: Broker, count: int = 3000) -> tuple[RawClient, Any]:
    """A client, and the second block of its queue."""
    broker.server.budget.queues.bytes_max = 256 << 10
    client = broker.raw().open()
    client.declare("m")
    publish_many(client, "m", range(count))
    settled(client)
    return client, broker.call(lambda: queue_of(broker)._back.blocks[1])


PLACES = {
    "its record's head": -30,
    "its first size": 4,
    "its first byte": 0,
    "the middle": 50 * BODY,
    "a byte of a body": BODY + 3,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_damaged_block_costs_its_messages_and_no_other_is_wrong(
    broker: Broker, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    client, block = with_blocks(broker)
    content = broker.store.load_content(block.id)
    if place.startswith("its"):
        flip(broker, content[:64], PLACES[place])
    else:
        flip(broker, body_of(block.first), PLACES[place])
    lost = range(block.first, block.first + block.count)
    assert get_all(client, "m") == [body_of(number) for number in range(3000) if number not in lost]
    assert (queue_of(broker).ready_count, queue_of(broker).unreadable_count) == (0, block.count)
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert line.startswith(f"queue 'm': {block.count} messages in the log cannot be read and are lost")
    wait_until(lambda: broker.store.stats()["messages"] == 0, "the end of the blocks")
    neighbour = broker.raw().open()
    neighbour.declare("n")
    neighbour.publish("n", b"goes on")
    assert get_all(neighbour, "n") == [b"goes on"]


def test_a_message_that_comes_back_and_is_damaged_meanwhile_is_never_delivered_with_wrong_bytes(broker: Broker) -> None:
    client, block = with_blocks(broker)
    for number in range(block.first + 3):
        client.send(1, commands.Basic.Get(queue="m", no_ack=number < block.first))
        client.expect(commands.Basic.GetOk)
        assert client.content()[1] == body_of(number)
    flip(broker, body_of(block.first + 1), 100)
    client.send(1, commands.Basic.Recover(requeue=True))
    client.expect(commands.Basic.RecoverOk)
    found = get_all(client, "m")
    whole = {body_of(number): number for number in range(block.first, 3000)}
    numbers = [whole[each] for each in found]
    assert numbers == sorted(numbers)
    assert block.first + 1 not in numbers
    assert numbers[-(3000 - block.first - 3) :] == list(range(block.first + 3, 3000))
    assert queue_of(broker).unreadable_count == 3000 - block.first - len(numbers)


@pytest.mark.parametrize("queues", [("d",), ("m",), ("m", "d")])
def test_a_transaction_with_a_damaged_block_is_refused_and_has_no_effect(
    start_broker: Callable[..., Broker], queues: tuple[str, ...]
) -> None:
    broker = start_broker(memory_bytes_max=16 * MIB)
    client, other = broker.raw().open(), broker.raw().open()
    client.declare("d", durable=True)
    client.declare("m")
    selecting(client)
    for number in range(3000):
        client.publish(queues[number % len(queues)], body_of(number))
    settled(client)
    wait_until(lambda: broker.store.stats()["messages"] > 3, "blocks in the log")
    flip(broker, body_of(1500), 100)
    client.send(1, commands.Tx.Commit())
    client.expect_channel_close(506)
    wait_until(lambda: broker.store.stats()["messages"] == 0, "the end of the blocks")
    assert get_all(other, "d") == get_all(other, "m") == []
    client.send(1, commands.Channel.CloseOk())
    client.open_channel(1)
    client.publish("d", b"goes on")
    assert get_all(client, "d") == [b"goes on"]
    assert broker.call(lambda: broker.server.budget.transactions.used_bytes) == 0
