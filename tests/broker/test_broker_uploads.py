"""Large bodies on their way into the store: in pieces, as they arrive, and each of them whole or not at all."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import body, commands, header

import logstore
from kit.amqp_client import RawClient, raw_frame
from kit.command import run
from kit.live_broker import message_bytes
from kit.patience import PATIENCE_S, wait_until
from kit.serve_process import ServeProcess
from kit.store_proxies import BrokenStore, FullStore, Proxy
from logstore.broker.limits import FRAME_OVERHEAD_BYTES, Limits
from logstore.broker.streams import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kit.live_broker import Broker

INLINE = 1000
FRAME = 131072 - FRAME_OVERHEAD_BYTES
LARGE = 5 * PIECE_BYTES + 3


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def confirming(broker: Broker, *, channels: int = 1) -> RawClient:
    client = broker.raw().open(channels=channels)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    return client


def begin(client: RawClient, queue: str, whole: bytes, upto: int, *, channel: int = 1, mandatory: bool = False) -> None:
    """Send the beginning of a message."""
    client.send(
        channel, commands.Basic.Publish(routing_key=queue, mandatory=mandatory), header.ContentHeader(0, len(whole))
    )
    go_on(client, whole, 0, upto, channel=channel)


def go_on(client: RawClient, whole: bytes, start: int, end: int, *, channel: int = 1) -> None:
    for at in range(start, end, FRAME):
        client.send(channel, body.ContentBody(whole[at : min(at + FRAME, end)]))


def wait_for_held(broker: Broker, size: int) -> None:
    """Until so many bytes of unfinished bodies are in the log."""
    wait_until(lambda: broker.call(lambda: uploads_of(broker).held_bytes) == size, f"{size} bytes of unfinished bodies")


def uploads_of(broker: Broker) -> Any:
    return broker.server.hosts["/"].uploads


def used_memory(broker: Broker) -> int:
    return broker.call(lambda: message_bytes(broker.server))


def arriving_bytes(broker: Broker) -> int:
    """In memory, without what waits behind them."""
    return broker.call(lambda: sum(each.holdings.arriving_bytes for each in broker.server.connections))


def messages_of(broker: Broker) -> int:
    """On queues, and on none."""
    return int(broker.store.stats()["messages"])


def wait_for_nothing(broker: Broker) -> None:
    wait_for_held(broker, 0)
    wait_until(lambda: messages_of(broker) == 0, "the end of the staged message")
    assert used_memory(broker) == 0


def get(client: RawClient, queue: str) -> bytes | None:
    client.send(1, commands.Basic.Get(queue=queue, no_ack=True))
    _, answer = client.receive()
    return None if isinstance(answer, commands.Basic.GetEmpty) else client.content()[1]


def bind_to_fanout(client: RawClient, queue: str, *, durable: bool) -> None:
    client.declare(queue, durable=durable)
    client.send(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
    client.expect(commands.Queue.BindOk)


@pytest.mark.parametrize(
    "size",
    [FRAME, FRAME + 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 3 * FRAME, LARGE],
)
@pytest.mark.parametrize("queues", ["d", "m", "dd", "dm", "ddd", "ddmm"])
def test_bodies_come_out_as_they_went_in_whatever_their_size_and_their_queues(
    start_broker: Callable[..., Broker], queues: str, size: int
) -> None:
    broker = start_broker(inline_body_bytes_max=INLINE)
    client = confirming(broker)
    names = [f"{kind}{number}" for number, kind in enumerate(queues)]
    for name in names:
        bind_to_fanout(client, name, durable=name[0] == "d")
    whole = content(size)
    client.publish("", whole, exchange="amq.fanout")
    assert client.expect(commands.Basic.Ack).delivery_tag == 1
    assert [get(client, name) for name in names] == [whole] * len(names)
    wait_for_nothing(broker)


def test_confirms_of_large_and_small_bodies_come_in_order(broker: Broker) -> None:
    client = confirming(broker)
    client.declare("q", durable=True)
    sizes = [10, 5 << 20, 20, 2 << 20, 30]
    for size in sizes:
        client.publish("q", content(size))
    last = 0
    while last < len(sizes):
        ack = client.expect(commands.Basic.Ack)
        assert ack.delivery_tag > last
        last = ack.delivery_tag
    assert [get(client, "q") for _ in sizes] == [content(size) for size in sizes]


@pytest.mark.parametrize("frame", [2, 4096, FRAME])
def test_only_a_piece_of_a_body_is_in_memory_whatever_its_frames(broker: Broker, frame: int) -> None:
    client = confirming(broker)
    client.declare("q", durable=True)
    size = 2 << 20
    whole, most = content(size), 0
    client.send(1, commands.Basic.Publish(routing_key="q"), header.ContentHeader(0, size))
    for part in range(0, size - PIECE_BYTES // 2, PIECE_BYTES // 2):
        client.send_bytes(
            b"".join(
                raw_frame(3, 1, whole[at : min(at + frame, part + PIECE_BYTES // 2)])
                for at in range(part, part + PIECE_BYTES // 2, frame)
            )
        )
        most = max(most, arriving_bytes(broker))
    end = size - PIECE_BYTES // 2
    wait_until(lambda: arriving_bytes(broker) + broker.call(lambda: uploads_of(broker).held_bytes) == end, "the rest")
    go_on(client, whole, end, size)
    client.expect(commands.Basic.Ack)
    assert most < 2 * PIECE_BYTES
    assert get(client, "q") == whole


@pytest.mark.parametrize("how", ["socket", "connection", "frame", "too long"])
def test_an_interrupted_body_leaves_nothing(broker: Broker, how: str) -> None:
    client = confirming(broker)
    client.declare("q", durable=True)
    whole = content(LARGE)
    begin(client, "q", whole, 2 * 2 * FRAME + FRAME)
    wait_until(lambda: messages_of(broker) == 1, "the staged message")
    if how == "socket":
        client.socket.close()
    elif how == "connection":
        client.send(0, commands.Connection.Close(200, "", 0, 0))
        client.expect(commands.Connection.CloseOk)
    elif how == "frame":
        client.send(1, commands.Queue.Declare(queue="q", passive=True))
        client.expect_connection_close(505)
    else:
        go_on(client, whole + whole, 5 * FRAME, LARGE + FRAME)
        client.expect_connection_close(501)
    wait_for_nothing(broker)
    other = broker.raw().open()
    assert get(other, "q") is None


def test_a_body_that_a_kill_interrupts_leaves_nothing(tmp_path: Path) -> None:
    process = ServeProcess(tmp_path / "store")
    try:
        client = RawClient(process.port).open(channels=2)
        client.declare("q", durable=True)
        begin(client, "q", content(8 << 20), 6 << 20)
        client.send(2, commands.Queue.Declare(queue="q", passive=True))
        client.expect(commands.Queue.DeclareOk)
    finally:
        process.kill()
    with logstore.open(tmp_path / "store") as store:
        assert store.recovery.staged_dropped == 1
        assert store.stats()["messages"] == 0
        assert store.queue("q").depth == 0


def test_a_store_that_fails_in_the_middle_of_a_body_closes_the_connection_with_541(
    on_store: Callable[..., tuple[Broker, Any]],
) -> None:
    broker, store = on_store(BrokenStore, inline_body_bytes_max=INLINE)
    client = confirming(broker)
    client.declare("q", durable=True)
    whole = content(LARGE)
    begin(client, "q", whole, 3 * FRAME)
    wait_until(lambda: messages_of(broker) == 1, "the staged message")
    store.broken = True
    go_on(client, whole, 3 * FRAME, LARGE)
    client.expect_connection_close(541)
    assert used_memory(broker) == 0


def test_a_broker_that_stops_does_not_wait_for_bodies_and_the_next_start_knows_nothing_of_them(
    tmp_path: Path, broker_class: type[Broker]
) -> None:
    store = logstore.open(tmp_path / "store", segment_size=1 << 20)
    broker = broker_class(store, Limits(unfinished_bytes_max=PIECE_BYTES, inline_body_bytes_max=INLINE))
    clients = [confirming(broker) for _ in range(2)]
    clients[0].declare("q", durable=True)
    for client in clients:
        begin(client, "q", content(LARGE), 6 * FRAME)
    wait_until(lambda: broker.call(lambda: uploads_of(broker).waiting_count) == 1, "the one that waits")
    stopped = asyncio.run_coroutine_threadsafe(broker.server.stop(), broker.loop)
    for client in clients:
        client.expect_connection_close(320)
    stopped.result(PATIENCE_S)
    broker.stop()
    store.close()
    with logstore.open(tmp_path / "store") as opened:
        assert opened.stats()["messages"] == 0
        assert opened.queue("q").depth == 0


@pytest.mark.parametrize("confirms", [True, False])
def test_a_store_that_is_full_in_the_middle_refuses_the_whole_body(
    on_store: Callable[..., tuple[Broker, Any]], confirms: bool
) -> None:
    broker, store = on_store(FullStore, inline_body_bytes_max=INLINE, blocked_timeout_s=0.05)
    client = confirming(broker) if confirms else broker.raw().open()
    client.declare("q", durable=True)
    whole = content(LARGE)
    begin(client, "q", whole, 3 * FRAME)
    wait_until(lambda: messages_of(broker) == 1, "the staged message")
    store.full = True
    go_on(client, whole, 3 * FRAME, LARGE)
    if confirms:
        assert client.expect(commands.Basic.Nack).delivery_tag == 1
        store.full = False
        client.publish("q", b"small")
        assert client.expect(commands.Basic.Ack).delivery_tag == 2
        assert get(client, "q") == b"small"
    else:
        assert "full" in client.expect_channel_close(506)
    wait_for_nothing(broker)


@pytest.mark.parametrize("left", ["one durable", "one in memory", "none"])
def test_a_queue_that_is_deleted_meanwhile_is_left_out(start_broker: Callable[..., Broker], left: str) -> None:
    broker = start_broker(inline_body_bytes_max=INLINE)
    client, other = confirming(broker), broker.raw().open()
    bind_to_fanout(other, "gone", durable=True)
    if left != "none":
        bind_to_fanout(other, "left", durable=left == "one durable")
    whole = content(LARGE)
    client.send(
        1,
        commands.Basic.Publish(exchange="amq.fanout", routing_key="", mandatory=True),
        header.ContentHeader(0, LARGE),
    )
    go_on(client, whole, 0, 3 * FRAME)
    wait_until(lambda: messages_of(broker) == 1, "the staged message")
    other.send(1, commands.Queue.Delete(queue="gone"))
    other.expect(commands.Queue.DeleteOk)
    go_on(client, whole, 3 * FRAME, LARGE)
    if left == "none":
        assert client.expect(commands.Basic.Return).reply_code == 312
        assert client.content()[1] == whole
    client.expect(commands.Basic.Ack)
    if left != "none":
        assert get(client, "left") == whole
    wait_for_nothing(broker)


def transactional(broker: Broker) -> RawClient:
    client = broker.raw().open()
    client.declare("q", durable=True)
    client.declare("m")
    client.send(1, commands.Tx.Select())
    client.expect(commands.Tx.SelectOk)
    return client


def test_a_transaction_has_all_its_bodies_or_none(broker: Broker) -> None:
    client = transactional(broker)
    bodies = [b"small", content(3 << 20), content(2 << 20, 2)]
    for outcome in (commands.Tx.Rollback, commands.Tx.Commit):
        for each in bodies:
            client.publish("q", each)
        wait_until(lambda: messages_of(broker) == 2, "the staged messages")
        assert used_memory(broker) < 2 << 20  # a piece, and frames that wait behind it
        assert broker.store.queue("q").depth == 0
        client.send(1, outcome())
        client.receive()
        wait_for_held(broker, 0)
    assert broker.store.queue("q").depth == 3
    assert [get(client, "q") for _ in bodies] == bodies
    client.send(1, commands.Tx.Commit())
    client.expect(commands.Tx.CommitOk)
    wait_for_nothing(broker)


def test_a_commit_puts_a_large_body_on_the_queues_that_are_left(broker: Broker) -> None:
    client, other = transactional(broker), broker.raw().open()
    whole = content(2 << 20)
    for name, durable in (("gone", True), ("left", True), ("too", True), ("memory", False)):
        bind_to_fanout(other, name, durable=durable)
    client.publish("", whole, exchange="amq.fanout")
    client.publish("gone", whole, mandatory=True)
    wait_until(lambda: messages_of(broker) == 2, "the staged messages")
    other.send(1, commands.Queue.Delete(queue="gone"))
    other.expect(commands.Queue.DeleteOk)
    client.send(1, commands.Tx.Commit())
    assert client.expect(commands.Basic.Return).reply_code == 312
    assert client.content()[1] == whole
    client.expect(commands.Tx.CommitOk)
    assert [get(other, name) for name in ("left", "too", "memory")] == [whole] * 3
    wait_for_nothing(broker)


def test_a_transaction_whose_channel_ends_leaves_nothing_of_its_large_bodies(broker: Broker) -> None:
    client = transactional(broker)
    client.publish("q", content(3 << 20))
    wait_until(lambda: messages_of(broker) == 1, "the staged message")
    client.send(1, commands.Channel.Close(200, "", 0, 0))
    client.expect(commands.Channel.CloseOk)
    wait_for_nothing(broker)


def test_transactions_with_too_much_of_large_bodies_are_rolled_back(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(unfinished_bytes_max=3 << 20)
    client = transactional(broker)
    client.publish("q", content(2 << 20))
    client.publish("q", content(2 << 20))
    assert "rolled back" in client.expect_channel_close(506)
    wait_for_nothing(broker)


def test_the_time_to_live_counts_from_the_end_of_the_publish(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(inline_body_bytes_max=INLINE)
    client = confirming(broker)
    for name in ("short", "long"):
        client.send(1, commands.Queue.Declare(queue=name, durable=True, arguments={"x-message-ttl": 3_600_000}))
        client.expect(commands.Queue.DeclareOk)
        client.send(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"))
        client.expect(commands.Queue.BindOk)
    client.send(1, commands.Basic.Publish(exchange="amq.fanout"), header.ContentHeader(0, LARGE))
    whole = content(LARGE)
    go_on(client, whole, 0, 3 * FRAME)
    wait_until(lambda: messages_of(broker) == 1, "the staged message")
    go_on(client, whole, 3 * FRAME, LARGE)
    client.expect(commands.Basic.Ack)
    found = [next(iter(broker.store.messages(name))) for name in ("short", "long")]
    staged = broker.store.header(found[0].id)
    for each in found:
        assert each.header[:2] == staged[:2]
        assert each.header[2:10] > staged[2:10]  # the time
        assert each.header[10:] == staged[10:]
    assert [get(client, name) for name in ("short", "long")] == [whole] * 2


class SlowStore(Proxy):
    """Appends nothing while `gate` is closed."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.gate = threading.Event()
        self.gate.set()
        self.appending = threading.Event()

    def append_content(self, *args: Any, **options: Any) -> Any:
        self.appending.set()
        assert self.gate.wait(PATIENCE_S)
        return self._store.append_content(*args, **options)


@pytest.mark.parametrize("ends", [False, True])
def test_other_channels_and_connections_go_on_while_a_piece_is_written(
    on_store: Callable[..., tuple[Broker, Any]], ends: bool
) -> None:
    broker, store = on_store(SlowStore, inline_body_bytes_max=INLINE)
    client, other = confirming(broker, channels=2), broker.raw().open()
    client.declare("q", durable=True)
    store.gate.clear()
    whole = content(LARGE)
    begin(client, "q", whole, 7 * FRAME)
    assert store.appending.wait(PATIENCE_S)
    for number, each in ((2, client), (1, other)):
        each.send(number, commands.Queue.Declare(queue="q", passive=True))
        each.expect(commands.Queue.DeclareOk)
    if ends:
        client.socket.close()
        broker.wait_for_connections(1)
        store.gate.set()
        wait_for_nothing(broker)
        return
    store.gate.set()
    go_on(client, whole, 7 * FRAME, LARGE)
    client.expect(commands.Basic.Ack)
    assert get(client, "q") == whole


def test_above_the_limit_only_the_oldest_body_goes_on_and_the_others_follow(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(unfinished_bytes_max=3 * PIECE_BYTES, inline_body_bytes_max=INLINE)
    clients = [confirming(broker) for _ in range(3)]
    clients[0].declare("q", durable=True)
    wholes = [content(LARGE, seed) for seed in range(3)]
    begin(clients[0], "q", wholes[0], 3 * FRAME)
    wait_until(lambda: messages_of(broker) == 1, "the first one")
    for client, whole in zip(clients[1:], wholes[1:], strict=True):
        begin(client, "q", whole, LARGE)
    wait_until(lambda: broker.call(lambda: uploads_of(broker).waiting_count) == 2, "those that wait")
    assert broker.call(lambda: uploads_of(broker).held_bytes) <= 3 * PIECE_BYTES
    go_on(clients[0], wholes[0], 3 * FRAME, LARGE)
    for client in clients:
        client.expect(commands.Basic.Ack)
    assert get(clients[0], "q") == wholes[0]
    assert {get(clients[0], "q"), get(clients[0], "q")} == set(wholes[1:])
    wait_for_held(broker, 0)


def test_a_body_that_would_wait_for_an_older_one_of_its_connection_is_refused(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(unfinished_bytes_max=3 * PIECE_BYTES, inline_body_bytes_max=INLINE)
    client = confirming(broker, channels=2)
    client.declare("q", durable=True)
    whole = content(LARGE)
    begin(client, "q", whole, 3 * FRAME)
    wait_until(lambda: messages_of(broker) == 1, "the first one")
    begin(client, "q", whole, LARGE, channel=2)
    assert "unfinished" in client.expect_channel_close(506)
    go_on(client, whole, 3 * FRAME, LARGE)
    client.expect(commands.Basic.Ack)
    assert get(client, "q") == whole
    wait_for_nothing(broker)


def test_a_body_that_stands_still_while_it_is_read_ends_its_connection_and_one_that_grows_does_not(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(inline_body_bytes_max=INLINE)
    still, growing = confirming(broker), confirming(broker)
    still.declare("q", durable=True)
    whole = content(LARGE)
    now = 1000.0

    def look(at: float) -> None:
        nonlocal now
        now = at
        broker.call(broker.server.arriving.look)

    broker.call(lambda: setattr(broker.server.arriving, "clock", lambda: now))
    for client in (still, growing):
        begin(client, "q", whole, 3 * FRAME)
    wait_until(lambda: messages_of(broker) == 2, "both")
    wait_for_held(broker, 2 * 3 * FRAME)
    look(1001)
    look(1060)
    go_on(growing, whole, 3 * FRAME, 6 * FRAME)
    wait_for_held(broker, 3 * 3 * FRAME)
    look(1061)
    assert "has not grown for 60 s" in still.expect_connection_close(506)
    go_on(growing, whole, 6 * FRAME, LARGE)
    growing.expect(commands.Basic.Ack)
    assert get(growing, "q") == whole
    wait_for_nothing(broker)


def test_serve_sets_the_longest_message(tmp_path: Path) -> None:
    process = ServeProcess(tmp_path / "store", options=("--max-body-bytes", "1K"))
    try:
        client = RawClient(process.port).open(channels=2)
        client.declare("q", durable=True)
        client.publish("q", bytes(1024))
        assert client.declare("q", durable=True).message_count == 1
        client.publish("q", bytes(1025))
        assert "size 1025 is larger than configured max size 1024" in client.expect_channel_close(311)
    finally:
        process.kill()


@pytest.mark.parametrize("value", ["0", "-1", "much"])
def test_serve_refuses_a_longest_message_that_is_none_in_one_line(tmp_path: Path, value: str) -> None:
    found = run("serve", tmp_path / "store", f"--max-body-bytes={value}")
    assert found.returncode == 2
    assert "--max-body-bytes" in found.stderr.splitlines()[-1]
    assert not (tmp_path / "store").exists()


def test_a_log_at_its_limit_refuses_a_large_body_and_has_room_again_without_it(
    tmp_path: Path, broker_class: type[Broker]
) -> None:
    store = logstore.open(tmp_path / "full", segment_size=1 << 20, max_log_bytes=8 << 20)
    broker = broker_class(store, Limits(blocked_timeout_s=0.05))
    try:
        client = confirming(broker)
        client.declare("q", durable=True)
        assert broker.call(lambda: uploads_of(broker).bytes_max) == 2 << 20
        whole, answers = content(3 << 20), []
        while not answers or isinstance(answers[-1], commands.Basic.Ack):
            client.publish("q", whole)
            answers.append(client.receive()[1])
        assert isinstance(answers[-1], commands.Basic.Nack)
        stored = len(answers) - 1
        wait_for_held(broker, 0)
        wait_until(lambda: messages_of(broker) == stored, "the end of the refused one")
        for _ in range(stored):
            assert get(client, "q") == whole
        wait_until(lambda: messages_of(broker) == 0, "an empty store")
        client.publish("q", whole)
        assert isinstance(client.receive()[1], commands.Basic.Ack)
        assert get(client, "q") == whole
    finally:
        broker.stop()
        store.close()
