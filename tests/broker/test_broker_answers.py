"""The confirm of a client that waits for it alone: the store sends it, in order with all else, and once."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.patience import PATIENCE_S, wait_until
from logstore.broker.wakeups import USUAL_AFTER

if TYPE_CHECKING:
    from kit.amqp_client import RawClient
    from kit.live_broker import Broker
    from logstore.broker.wakeups import WakeUps

pytestmark = pytest.mark.direct_only("the store sends no confirm of a client that another member relays")

QUEUE = "q"


def publisher(broker: Broker) -> RawClient:
    client = broker.raw().open()
    client.declare(QUEUE, durable=True)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    return client


def wakeups_of(broker: Broker) -> WakeUps:
    return broker.server.hosts["/"].wakeups


def confirmed(client: RawClient) -> int:
    client.publish(QUEUE, b"x")
    ack = client.expect(commands.Basic.Ack)
    assert not ack.multiple
    return int(ack.delivery_tag)


def left_with_the_store(broker: Broker, client: RawClient) -> int:
    """Publishes until the confirm of the last one was left with the store. Returns its tag."""
    tags: list[int] = []

    def is_left() -> bool:
        tags.append(confirmed(client))
        return broker.call(lambda: wakeups_of(broker)._answerer is not None)

    wait_until(is_left, "the store sends a confirm")
    assert tags == list(range(tags[0], tags[0] + len(tags)))
    return tags[-1]


def test_the_store_sends_the_confirm_of_a_client_that_waits_alone_and_the_loop_sleeps_on(broker: Broker) -> None:
    client = publisher(broker)
    tag = left_with_the_store(broker, client)
    assert confirmed(client) == tag + 1
    assert broker.call(lambda: all(not each.replies.count for each in broker.server.connections))


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (commands.Queue.Declare(queue=QUEUE, passive=True), commands.Queue.DeclareOk),
        (commands.Basic.Qos(0, 5), commands.Basic.QosOk),
        (commands.Queue.Purge(queue=QUEUE), commands.Queue.PurgeOk),
    ],
)
def test_a_reply_comes_after_the_confirm_of_the_publish_before_its_call(broker: Broker, call: Any, answer: Any) -> None:
    client = publisher(broker)
    tag = left_with_the_store(broker, client)
    for number in range(1, 3 * USUAL_AFTER):
        client.publish(QUEUE, b"x")
        client.send(1, call)
        assert client.expect(commands.Basic.Ack).delivery_tag == tag + number
        client.expect(answer)


@pytest.mark.parametrize("number", [0, 1])
def test_a_close_is_answered_after_the_last_confirm(broker: Broker, number: int) -> None:
    client = publisher(broker)
    tag = left_with_the_store(broker, client)
    client.publish(QUEUE, b"x")
    method = commands.Connection if number == 0 else commands.Channel
    client.send(number, method.Close(200, "", 0, 0))
    assert client.expect(commands.Basic.Ack).delivery_tag == tag + 1
    client.expect(method.CloseOk)


def test_clients_that_wait_at_the_same_time_all_get_each_confirm_once(broker: Broker) -> None:
    clients = [publisher(broker) for _ in range(3)]
    wrong: list[list[int]] = []

    def publish(client: RawClient) -> None:
        tags = [confirmed(client) for _ in range(3 * USUAL_AFTER)]
        if tags != list(range(1, len(tags) + 1)):
            wrong.append(tags)

    threads = [threading.Thread(target=publish, args=(client,)) for client in clients]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    counts = broker.store.queue(QUEUE).counts()
    assert counts.depth == 3 * 3 * USUAL_AFTER


def test_a_client_that_goes_while_the_store_has_its_confirm_takes_nothing_along(broker: Broker) -> None:
    client = publisher(broker)
    left_with_the_store(broker, client)
    client.publish(QUEUE, b"last")
    client.socket.close()
    wait_until(lambda: broker.call(lambda: not broker.server.connections), "it is gone")
    assert broker.call(lambda: wakeups_of(broker)._answerer) is None
    assert confirmed(publisher(broker)) == 1


class Interrupted:
    """The store sends a part of each answer, and signals the commit; or it sends all, and does not."""

    def __init__(self, wakeups: WakeUps, sent_bytes: int) -> None:
        self.wakeups, self.sent_bytes = wakeups, sent_bytes
        self.count = 0

    answering_fd = -1

    def answer(self, lsn: int, socket: int, data: bytes, _take_back: Any) -> bool:
        os.write(socket, data[: self.sent_bytes])
        self.count += 1
        if self.sent_bytes < len(data):
            self.wakeups.loop.call_soon(self.wakeups._committed, lsn)
        return True

    def answered(self) -> int:
        return self.sent_bytes


@pytest.mark.parametrize("sent_bytes", [0, 1, 20])
def test_the_rest_of_a_confirm_that_was_sent_in_part_comes_before_all_else(broker: Broker, sent_bytes: int) -> None:
    client = publisher(broker)
    wakeups = wakeups_of(broker)
    made = Interrupted(wakeups, sent_bytes)
    broker.call(lambda: setattr(wakeups, "_answers", made))
    tags: list[int] = []
    while made.count < 3:
        tags.append(confirmed(client))
    assert tags == list(range(1, len(tags) + 1))


class Waiter:
    """Waits for an LSN that is durable already."""

    def __init__(self) -> None:
        self.settled = threading.Event()

    def settle(self, _durable_lsn: int) -> bool:
        self.settled.set()
        return False


def test_what_begins_to_wait_after_a_commit_without_a_signal_goes_on(broker: Broker) -> None:
    client = publisher(broker)
    wakeups = wakeups_of(broker)
    broker.call(lambda: setattr(wakeups, "_answers", Interrupted(wakeups, 21)))
    waiter = Waiter()

    def begins_to_wait() -> bool:
        if wakeups._answerer is None:
            return False
        wakeups._listeners[0].close()  # no signal of a later commit helps
        wakeups.await_commit(waiter)
        return True

    wait_until(lambda: confirmed(client) > 0 and broker.call(begins_to_wait), "it waits after the store had a confirm")
    assert waiter.settled.wait(PATIENCE_S)


def test_a_reply_outside_of_a_turn_comes_after_a_confirm_that_was_taken_back_for_a_task(broker: Broker) -> None:
    """A task of the program awaits an LSN of the store on the broker's loop."""
    client = publisher(broker)
    wakeups = wakeups_of(broker)
    left_with_the_store(broker, client)
    connection = broker.call(lambda: next(iter(broker.server.connections)))
    leave = connection.leave_confirm
    interfered: list[int] = []

    def leave_and_interfere(channel: Any) -> None:
        leave(channel)
        if connection.answerer is not None:
            wakeups._answers.must_hear()
            broker.store.force()
            interfered.append(channel.publishing._next_tag - 1)
            channel.reply(commands.Basic.Cancel(str(interfered[-1])))

    broker.call(lambda: setattr(connection, "leave_confirm", leave_and_interfere))
    confirmed_tag = 0
    for _ in range(4 * USUAL_AFTER):
        broker.call(wakeups.recall)  # else its confirm takes the place of the last one, and no turn leaves it
        client.publish(QUEUE, b"x")
        _, frame = client.receive()
        while not isinstance(frame, commands.Basic.Ack):
            assert int(frame.consumer_tag) <= confirmed_tag
            _, frame = client.receive()
        confirmed_tag = frame.delivery_tag
    assert interfered


class LittleRoom:
    """The log has little room, until the publish waits for it."""

    def __init__(self, store: Any) -> None:
        self._store, self.room_percent = store, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_publish_on_a_channel_that_is_not_open_waits_for_room_behind_a_large_one(broker: Broker) -> None:
    client = publisher(broker)
    left_with_the_store(broker, client)
    client.send(1, commands.Channel.Close(200, "", 0, 0))
    client.expect(commands.Channel.CloseOk)

    def begin() -> None:
        (connection,) = broker.server.connections
        connection.published = True  # the end of a large publish, in a task
        connection.host.store = LittleRoom(broker.store)

    broker.call(begin)
    client.publish(QUEUE, b"x")
    (connection,) = broker.server.connections
    wait_until(lambda: broker.call(lambda: connection.receiving.pauses), "it waits")

    def end() -> None:
        connection.host.store = broker.store
        connection.receiving.settle(broker.store.durable_lsn)

    broker.call(end)
    client.expect_connection_close(504)
