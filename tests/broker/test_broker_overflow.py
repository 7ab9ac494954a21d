"""Queues in memory beyond their share of the memory: they go on in the log, in order, and end as before."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.amqp_client import RawClient
from kit.live_broker import open_store
from kit.patience import PATIENCE_S, wait_until
from kit.store_proxies import FullStore, NarrowLog, Proxy
from logstore.broker.errors import CONNECTION_FORCED, ConnectionException
from logstore.broker.overflow import decode_block, encode_block
from logstore.broker.statistics import broker_statistics
from logstore.errors import StoreError
from logstore.store.statistics import sampled_queues

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kit.live_broker import Broker

MEMORY = 40_000
COUNT = 300
BODIES = [b"%06d" % number + bytes(number % 400) for number in range(COUNT)]


def with_little_memory(broker: Broker, bytes_max: int = MEMORY) -> Broker:
    """Queues in memory have so much of the broker's memory."""
    broker.server.budget.queues.bytes_max = bytes_max
    return broker


def log_of(broker: Broker) -> Any:
    return broker.server.hosts["/"].vhost.overflow


def queue_of(broker: Broker, name: str = "q") -> Any:
    return broker.server.hosts["/"].vhost.queues[name]


def used_memory(broker: Broker) -> int:
    return broker.call(lambda: broker.server.budget.queues.used_bytes)


def staged(broker: Broker) -> int:
    return broker.call(lambda: log_of(broker).staged_count)


def wait_for_nothing(broker: Broker) -> None:
    """Until nothing is left in the log and in memory."""
    wait_until(lambda: staged(broker) == 0, "the end of the staged messages")
    assert broker.call(lambda: log_of(broker).held_bytes) == 0
    assert broker.store.stats()["messages"] == 0
    assert used_memory(broker) == 0


def publish_all(client: RawClient, bodies: list[bytes], key: str = "q", **options: Any) -> None:
    """Publish, and wait until the broker has everything."""
    for each in bodies:
        client.publish(key, each, **options)
    client.send(1, commands.Basic.Qos(prefetch_count=0))
    client.expect(commands.Basic.QosOk)


def get(client: RawClient, queue: str = "q", *, no_ack: bool = True) -> tuple[commands.Basic.GetOk, bytes] | None:
    client.send(1, commands.Basic.Get(queue=queue, no_ack=no_ack))
    _, answer = client.receive()
    return None if isinstance(answer, commands.Basic.GetEmpty) else (answer, client.content()[1])


def get_all(client: RawClient, queue: str = "q") -> list[bytes]:
    found = []
    while (each := get(client, queue)) is not None:
        found.append(each[1])
    return found


def confirming(broker: Broker) -> RawClient:
    client = broker.raw().open()
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    return client


@pytest.fixture
def broker(start_broker: Callable[..., Broker]) -> Broker:
    return with_little_memory(start_broker())


@pytest.fixture
def client(broker: Broker) -> RawClient:
    made = broker.raw().open(channels=2)
    made.declare("q")
    return made


def overflowed(broker: Broker, client: RawClient, **options: Any) -> None:
    """All bodies are on the queue, most of them in the log."""
    publish_all(client, BODIES, **options)
    queue = queue_of(broker)
    assert queue.ready_count == COUNT
    assert staged(broker) > 3
    assert used_memory(broker) <= MEMORY


def test_messages_beyond_the_share_come_out_in_order(broker: Broker, client: RawClient) -> None:
    overflowed(broker, client)
    assert get_all(client) == BODIES
    wait_for_nothing(broker)


def test_a_consumer_gets_messages_from_the_log_while_others_are_published(broker: Broker, client: RawClient) -> None:
    overflowed(broker, client)
    other = broker.raw().open()
    other.send(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    other.expect(commands.Basic.ConsumeOk)
    for at, expected in enumerate(BODIES * 3):
        if at < 2 * COUNT:
            client.publish("q", BODIES[at % COUNT])
        deliver, body = other.delivery()
        assert (body, deliver.redelivered) == (expected, False)
        if at % 7 == 6:
            other.send(1, commands.Basic.Ack(deliver.delivery_tag, multiple=True))
    other.send(1, commands.Basic.Ack(0, multiple=True))
    wait_until(lambda: broker.call(lambda: queue_of(broker).unacknowledged_count) == 0, "the acknowledgements")
    wait_for_nothing(broker)


def test_a_message_that_comes_back_is_before_those_in_the_log_and_marked(broker: Broker, client: RawClient) -> None:
    overflowed(broker, client)
    taken = [get(client, no_ack=False) for _ in range(COUNT // 2)]
    for each in taken[::2]:
        assert each is not None
        client.send(1, commands.Basic.Nack(each[0].delivery_tag, requeue=True))
    again = [get(client) for _ in taken[::2]]
    assert [each and (each[1], each[0].redelivered) for each in again] == [
        (each, True) for each in BODIES[: COUNT // 2 : 2]
    ]
    rest = get(client)
    assert rest is not None
    assert (rest[1], rest[0].redelivered) == (BODIES[COUNT // 2], False)
    client.send(1, commands.Channel.Close(200, "", 0, 0))
    client.expect(commands.Channel.CloseOk)
    client.open_channel(1)
    assert get_all(client) == [*BODIES[1 : COUNT // 2 : 2], *BODIES[COUNT // 2 + 1 :]]
    wait_for_nothing(broker)


def test_unacknowledged_messages_from_the_log_need_no_memory_for_their_bodies(
    start_broker: Callable[..., Broker],
) -> None:
    broker = with_little_memory(start_broker(), 4 << 20)
    client = broker.raw().open()
    client.declare("q")
    bodies = [bytes([number]) * 100_000 for number in range(200)]
    publish_all(client, bodies)
    client.send(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    client.expect(commands.Basic.ConsumeOk)
    assert [client.delivery()[1] for _ in bodies] == bodies
    assert used_memory(broker) <= 4 << 20
    client.send(1, commands.Basic.Cancel("c"), commands.Basic.Recover(requeue=True))
    client.expect(commands.Basic.CancelOk)
    client.expect(commands.Basic.RecoverOk)
    assert get_all(client) == bodies
    wait_for_nothing(broker)


ENDS: dict[str, Callable[[RawClient], None]] = {
    "purge": lambda client: client.send(1, commands.Queue.Purge(queue="q", nowait=True)),
    "delete": lambda client: client.send(1, commands.Queue.Delete(queue="q", nowait=True)),
    "the last consumer": lambda client: client.send(
        1, commands.Basic.Consume(queue="q", consumer_tag="c", nowait=True), commands.Basic.Cancel("c", nowait=True)
    ),
    "its connection": lambda client: client.socket.close(),
}
FLAGS: dict[str, dict[str, Any]] = {
    "the last consumer": {"auto_delete": True},
    "its connection": {"exclusive": True},
    "unused": {"arguments": {"x-expires": 1}},
    "expired": {"arguments": {"x-message-ttl": 1}},
}


@pytest.mark.parametrize("end", [*ENDS, "unused", "expired"])
@pytest.mark.parametrize("taken", [0, 100])
def test_whatever_ends_a_queue_leaves_nothing_of_it_in_the_log(broker: Broker, end: str, taken: int) -> None:
    client = broker.raw().open()
    arguments = FLAGS.get(end, {})
    if end in ("unused", "expired"):
        arguments = {"arguments": dict.fromkeys(arguments["arguments"], 3_600_000)}
    client.declare("q", **arguments)
    overflowed(broker, client)
    for _ in range(taken):
        get(client, no_ack=False)
    queue = queue_of(broker)
    if end in ENDS:
        ENDS[end](client)
    elif end == "unused":
        queue.used_at = -3600
        broker.call(lambda: broker.server.hosts["/"].vhost._delete_if_unused(queue))
    else:
        queue.ttl_ms = 1
        client.send(1, commands.Basic.Recover(requeue=True))
        client.expect(commands.Basic.RecoverOk)
        broker.call(queue._drop_overdue)
    wait_until(lambda: broker.call(lambda: queue.deleted or queue.ready_count == 0), "the end of the queue")
    if end == "purge":
        assert queue.unacknowledged_count == taken
        client.send(1, commands.Basic.Ack(0, multiple=True))
    wait_for_nothing(broker)


def test_messages_that_came_back_from_the_log_are_gone_with_their_queue(broker: Broker, client: RawClient) -> None:
    overflowed(broker, client)
    for _ in range(COUNT // 2):
        get(client, no_ack=False)
    client.send(1, commands.Basic.Recover(requeue=True), commands.Queue.Delete(queue="q"))
    client.expect(commands.Basic.RecoverOk)
    assert client.expect(commands.Queue.DeleteOk).message_count == COUNT
    wait_for_nothing(broker)


def test_a_purge_while_a_block_is_read_drops_that_block_too(on_store: Callable[..., tuple[Broker, Any]]) -> None:
    broker, store = on_store(SlowReads)
    with_little_memory(broker)
    client = broker.raw().open(channels=2)
    client.declare("q")
    overflowed(broker, client)
    client.send(2, commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True, nowait=True))
    wait_until(store.asked.is_set, "a read")
    client.send(1, commands.Queue.Purge(queue="q"), commands.Basic.Cancel("c"))
    client.publish("q", b"later")
    store.may_read.set()
    bodies = []
    while b"later" not in bodies:
        _, each = client.receive()
        if isinstance(each, commands.Basic.Deliver):
            bodies.append(client.content()[1])
    assert bodies == [*BODIES[: len(bodies) - 1], b"later"]
    assert len(bodies) < COUNT
    wait_for_nothing(broker)


class SlowReads(Proxy):
    """No content can be read before `may_read`."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.asked = threading.Event()
        self.may_read = threading.Event()

    def load_content(self, *args: Any) -> bytes:
        self.asked.set()
        assert self.may_read.wait(PATIENCE_S)
        return bytes(self._store.load_content(*args))


def test_a_get_waits_for_the_first_message_and_other_channels_do_not(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, store = on_store(SlowReads)
    with_little_memory(broker)
    client = broker.raw().open(channels=2)
    client.declare("q")
    overflowed(broker, client)
    queue = queue_of(broker)
    in_front = broker.call(lambda: len(queue._fresh))
    for _ in range(in_front):
        client.send(1, commands.Basic.Get(queue="q", no_ack=True))
        client.expect(commands.Basic.GetOk)
        client.content()
    client.send(1, commands.Basic.Get(queue="q", no_ack=True), commands.Basic.Qos())
    client.send(2, commands.Basic.Qos())
    assert client.receive()[0] == 2
    store.may_read.set()
    answer = client.expect(commands.Basic.GetOk)
    assert answer.message_count == COUNT - in_front - 1
    assert client.content()[1] == BODIES[in_front]
    client.expect(commands.Basic.QosOk)


def test_a_get_that_waits_is_answered_when_the_queue_is_purged_or_deleted(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, store = on_store(SlowReads)
    with_little_memory(broker)
    client = broker.raw().open(channels=2)
    client.declare("q")
    overflowed(broker, client)
    wait = broker.call(lambda: len(queue_of(broker)._fresh))
    for _ in range(wait):
        assert get(client) is not None
    client.send(1, commands.Basic.Get(queue="q"))
    wait_until(store.asked.is_set, "a read")
    client.send(2, commands.Queue.Delete(queue="q"))
    found = dict([client.receive(), client.receive()])
    assert isinstance(found[2], commands.Queue.DeleteOk)
    assert isinstance(found[1], commands.Channel.Close)
    assert found[1].reply_code == 404
    store.may_read.set()
    wait_for_nothing(broker)


def test_one_queue_that_nobody_reads_refuses_nobody_anything(start_broker: Callable[..., Broker]) -> None:
    broker = with_little_memory(start_broker(inline_body_bytes_max=1000), 1 << 20)
    filler, client = broker.raw().open(), broker.raw().open()
    filler.declare("unread")
    publish_all(filler, [bytes(900)] * 5000, "unread")
    client.declare("q")
    client.declare("d", durable=True)
    client.publish("q", b"a reply")
    assert get_all(client) == [b"a reply"]
    client.publish("q", bytes(700_000))
    assert get_all(client) == [bytes(700_000)]
    client.send(1, commands.Tx.Select())
    client.expect(commands.Tx.SelectOk)
    for queue in ("q", "d"):
        client.publish(queue, bytes(500))
        client.publish(queue, bytes(300_000))
    client.send(1, commands.Tx.Commit())
    client.expect(commands.Tx.CommitOk)
    assert get_all(client) == get_all(client, "d") == [bytes(500), bytes(300_000)]
    assert broker.call(lambda: queue_of(broker, "unread").ready_count) == 5000


def test_only_a_full_store_refuses_and_what_was_accepted_stays(on_store: Callable[..., tuple[Broker, Any]]) -> None:
    broker, store = on_store(FullStore, blocked_timeout_s=0.05)
    with_little_memory(broker)
    client = confirming(broker)
    client.declare("q")
    client.declare("too")
    for queue in ("q", "too"):
        client.send(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
        client.expect(commands.Queue.BindOk)
    accepted = []

    def publish(body: bytes) -> bool:
        client.publish("", body, exchange="amq.fanout")
        _, outcome = client.receive()
        if isinstance(outcome, commands.Basic.Ack):
            accepted.append(body)
        return isinstance(outcome, commands.Basic.Ack)

    for at, each in enumerate(BODIES):
        store.full = 100 <= at < 200
        publish(each)
    assert 200 <= len(accepted) < COUNT
    assert accepted[-100:] == BODIES[200:]
    assert get_all(client) == get_all(client, "too") == accepted
    wait_for_nothing(broker)


class FullAfterCommit(FullStore):
    """The first transaction is the last thing that it takes, if `fills_up`."""

    fills_up = False

    def begin(self, *args: Any) -> Any:
        self.full = self.fills_up
        return self._store.begin(*args)

    def publish(self, *args: Any, **options: Any) -> Any:
        return self._store.publish(*args, **options)


def test_a_transaction_that_is_durable_is_on_its_queues_though_the_store_is_full_then(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, store = on_store(FullAfterCommit, blocked_timeout_s=0.05)
    with_little_memory(broker)
    client = broker.raw().open()
    client.declare("q")
    client.declare("d", durable=True)
    overflowed(broker, client)
    client.send(1, commands.Tx.Select())
    client.expect(commands.Tx.SelectOk)
    more = [b"%d" % number + bytes(1000) for number in range(20)]
    for queue, each in [("d", b"durable"), *(("q", each) for each in more)]:
        client.publish(queue, each)
    store.fills_up = True
    client.send(1, commands.Tx.Commit())
    client.expect(commands.Tx.CommitOk)
    assert store.full
    assert queue_of(broker).ready_count == COUNT + 20
    client.publish("q", b"refused")
    client.send(1, commands.Tx.Commit())
    assert "full" in client.expect_channel_close(506)
    store.full = store.fills_up = False
    other = broker.raw().open()
    assert get_all(other) == [*BODIES, *more]
    assert get_all(other, "d") == [b"durable"]
    wait_for_nothing(broker)


class DamagedReads(Proxy):
    """Contents that begin in the given way cannot be read."""

    damaged: tuple[int, ...] = ()

    def load_content(self, message_id: int, *args: Any) -> bytes:
        if message_id in self.damaged:
            raise StoreError("the log is damaged there")
        return bytes(self._store.load_content(message_id, *args))


@pytest.mark.parametrize("how", ["get", "consume"])
def test_a_damaged_block_is_logged_and_counted_and_the_queue_goes_on(
    on_store: Callable[..., tuple[Broker, Any]], caplog: pytest.LogCaptureFixture, how: str
) -> None:
    broker, store = on_store(DamagedReads)
    with_little_memory(broker)
    client = broker.raw().open()
    client.declare("q")
    overflowed(broker, client)
    queue = queue_of(broker)
    blocks = broker.call(lambda: list(queue._back.blocks))
    store.damaged = (blocks[0].id, blocks[2].id)
    lost = {block.first + at for block in (blocks[0], blocks[2]) for at in range(block.count)}
    expected = [body for at, body in enumerate(BODIES) if at not in lost]
    if how == "get":
        assert get_all(client) == expected
    else:
        client.send(1, commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True, nowait=True))
        assert [client.delivery()[1] for _ in expected] == expected
    assert (queue.ready_count, queue.unacknowledged_count, queue.unreadable_count) == (0, 0, len(lost))
    found = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(found) == 2
    assert found[0].startswith(f"queue 'q': {blocks[0].count} messages in the log cannot be read and are lost")
    wait_for_nothing(broker)


def test_a_message_that_cannot_be_read_again_is_lost_alone(
    on_store: Callable[..., tuple[Broker, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    broker, store = on_store(DamagedReads)
    with_little_memory(broker)
    client = broker.raw().open()
    client.declare("q")
    overflowed(broker, client)
    queue = queue_of(broker)
    block = broker.call(lambda: queue._back.blocks[0])
    for _ in range(block.first):
        get(client)
    assert get(client, no_ack=False) is not None
    store.damaged = (block.id,)
    client.send(1, commands.Basic.Recover(requeue=True))
    client.expect(commands.Basic.RecoverOk)
    assert get_all(client) == BODIES[block.first + 1 :]
    assert (queue.ready_count, queue.unreadable_count) == (0, 1)
    assert "is lost" in caplog.text
    wait_for_nothing(broker)


def test_nothing_survives_a_stop(restart_broker: Callable[[], Broker]) -> None:
    broker = with_little_memory(restart_broker())
    client = broker.raw().open()
    client.declare("q")
    overflowed(broker, client)
    store = broker.store
    broker.stop()
    assert store.stats()["messages"] == 0
    assert broker.server.budget.used_bytes == 0
    again = restart_broker()
    assert again.store.stats()["messages"] == 0
    with pytest.raises(AssertionError, match="404"):
        again.raw().open().declare("q", passive=True)


def test_the_figures_of_the_broker_say_what_is_in_memory_and_in_the_log(broker: Broker, client: RawClient) -> None:
    overflowed(broker, client)
    found = broker_statistics(broker.server, broker.server.hosts["/"])
    (row,) = sampled_queues(found["queue_columns"], found["queue_rows"])
    assert (row["depth"], row["ready"], row["unacknowledged"], row["published"]) == (COUNT, COUNT, 0, COUNT)
    assert row["bytes"] == found["broker"]["memory_shares"]["queues"]["bytes"] == used_memory(broker)
    sizes = sum(len(each) for each in BODIES)
    assert sizes - MEMORY < found["broker"]["overflow_bytes"] < 2 * sizes


class OneBlock(NarrowLog):
    """Each staged message takes all the room that the log has, once `is_narrow`."""

    is_narrow = False

    def stage(self, *args: Any, **options: Any) -> Any:
        message_id = self._store.stage(*args, **options)
        if self.is_narrow:
            self.room_percent = 0
        return message_id

    def has_room(self) -> None:
        """As after a group commit."""
        self.room_percent = 100
        self.let_go()


def give_room(store: OneBlock, is_done: Callable[[], bool]) -> None:
    """Again and again, until the given is so."""

    def is_so() -> bool:
        if store.room_percent == 0:
            store.has_room()
        return is_done()

    wait_until(is_so, "all blocks are written")


def with_fanout(broker: Broker, queues: list[str]) -> RawClient:
    """A client, and queues in memory that are bound to a fanout."""
    client = broker.raw().open()
    for queue in queues:
        client.declare(queue)
        client.send(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
        client.expect(commands.Queue.BindOk)
    return client


@pytest.mark.parametrize("how", ["publish", "transaction"])
def test_blocks_wait_for_room_in_the_log_one_by_one_and_the_order_is_kept(
    on_store: Callable[..., tuple[Broker, Any]], tmp_path: Path, how: str
) -> None:
    broker, store = on_store(OneBlock)
    other = open_store(tmp_path / "other")
    broker.call_async(lambda: broker.server.open_host("other", other))
    broker.call(lambda: broker.server.users.change("guest", hosts=["/", "other"]))
    with_little_memory(broker)
    queues = ["a", "b", "c", "d"]
    client, neighbour = with_fanout(broker, queues), broker.raw().open(virtual_host="other")
    if how == "transaction":
        client.send(1, commands.Tx.Select())
        client.expect(commands.Tx.SelectOk)
    store.is_narrow = True
    for each in BODIES:
        client.publish("", each, exchange="amq.fanout")
    client.send(1, commands.Tx.Commit() if how == "transaction" else commands.Basic.Qos())
    wait_until(lambda: store.room_percent == 0, "the first block")
    count = staged(broker)
    neighbour.declare("n")
    neighbour.publish("n", b"meanwhile")
    assert get_all(neighbour, "n") == [b"meanwhile"]
    assert staged(broker) == count == 1  # the others wait
    answered = client.socket
    answered.setblocking(False)

    def has_answer() -> bool:
        try:
            client.buffer += answered.recv(1 << 16)
        except BlockingIOError:
            return False
        return True

    give_room(store, has_answer)
    answered.settimeout(PATIENCE_S)
    client.expect(commands.Tx.CommitOk if how == "transaction" else commands.Basic.QosOk)
    give_room(store, lambda: all(queue_of(broker, each).ready_count == COUNT for each in queues))
    assert staged(broker) > 8
    store.is_narrow = False
    store.has_room()
    for each in queues:
        assert get_all(client, each) == BODIES
    end = ConnectionException(CONNECTION_FORCED, "the test ends")
    broker.call_async(lambda: broker.server.close_host("other", end))
    other.close()


def test_a_block_has_what_was_put_into_it() -> None:
    headers = [b"", b"a", b"a", b"b" * 300]
    bodies = [b"x" * 70_000, b"", b"y", b"y"]
    content = encode_block(headers, bodies)
    assert decode_block(content) == (headers, bodies)
    for cut in (0, 3, 20, len(content) - 1):
        with pytest.raises(StoreError, match="a block of messages"):
            decode_block(content[:cut])
