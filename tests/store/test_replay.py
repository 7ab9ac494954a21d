"""Recovery as callbacks: everything once, in a fixed order, whatever the receiver does."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from logstore.replay import Receiver, Replayed, replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import MessageStore

METHODS = ("configuration", "exchange", "queue", "binding", "message", "in_doubt", "done")


class Recorder(Receiver):
    """Records every call in order."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def configuration(self, config: Any) -> None:
        self.told.append(("configuration", dict(config)))

    def exchange(self, exchange: Any) -> None:
        self.told.append(("exchange", exchange.name, exchange.type, exchange.alternate))

    def queue(self, queue: Any) -> None:
        self.told.append(("queue", queue.name, queue.arguments, queue.dead_letter))

    def binding(self, binding: Any) -> None:
        self.told.append(("binding", binding.exchange, binding.queue, binding.key))

    def message(self, queue: Any, message: Any) -> None:
        self.told.append(("message", queue.name, message.content, message.header, message.redelivered, message.locked))

    def in_doubt(self, transaction: Any) -> None:
        self.told.append(("in_doubt", transaction.xid))

    def done(self, replayed: Replayed) -> None:
        self.told.append(("done", replayed))


def filled(store: MessageStore) -> None:
    """A few objects of every kind, with prepared work on both queues."""
    store.config["zone"] = "eu"
    store.declare_exchange("z-unrouted", type="fanout")
    store.declare_exchange("m-middle", alternate="z-unrouted")
    store.declare_exchange("a-first", alternate="m-middle")
    store.declare_queue("z-dead")
    store.declare_queue("a-orders", arguments={"ttl": 5}, dead_letter="z-dead")
    store.bind("a-first", "a-orders", "k1")
    store.bind("a-first", "z-dead", "k2")
    both = store.stage(b"h", b"on both")
    store.publish("a-orders", b"one", header=b"1")
    store.enqueue(both, ["a-orders", "z-dead"])
    taken = store.publish("a-orders", b"taken in doubt")
    branch = store.begin(logstore.Xid(1, b"branch"))
    store.dequeue(taken, "a-orders", branch)
    store.publish("z-dead", b"sent in doubt", transaction=branch)
    branch.end()
    branch.prepare()


def everything(redelivered: bool) -> list[tuple[Any, ...]]:
    """``redelivered``: a consumer had the first message of ``a-orders``."""
    return [
        ("configuration", {"zone": "eu"}),
        ("exchange", "z-unrouted", "fanout", None),
        ("exchange", "m-middle", "direct", "z-unrouted"),
        ("exchange", "a-first", "direct", "m-middle"),
        ("queue", "z-dead", {}, None),
        ("queue", "a-orders", {"ttl": 5}, "z-dead"),
        ("binding", "a-first", "a-orders", "k1"),
        ("binding", "a-first", "z-dead", "k2"),
        ("message", "z-dead", b"on both", b"h", False, False),
        ("message", "a-orders", b"one", b"1", redelivered, False),
        ("message", "a-orders", b"on both", b"h", False, False),
        ("message", "a-orders", b"taken in doubt", b"", False, True),
        ("in_doubt", logstore.Xid(1, b"branch")),
        ("done", Replayed(exchanges=3, queues=2, bindings=2, messages=4, in_doubt=1)),
    ]


def test_everything_is_reported_once_in_the_fixed_order_after_a_restart(
    open_store: Callable[..., MessageStore],
) -> None:
    before = open_store()
    filled(before)
    before.queue("a-orders").acquire(1)[0].release()
    before.close()
    receiver = Recorder()
    replayed = replay(open_store(), receiver)
    assert receiver.told == everything(redelivered=True)
    assert receiver.told[-1] == ("done", replayed)


def test_messages_of_this_run_are_reported_as_not_redelivered(store: MessageStore) -> None:
    filled(store)
    receiver = Recorder()
    replay(store, receiver)
    assert receiver.told == everything(redelivered=False)


def test_a_second_replay_reports_the_same_and_removes_nothing(store: MessageStore) -> None:
    filled(store)
    first, second = Recorder(), Recorder()
    end = store.next_lsn
    replay(store, first)
    replay(store, second)
    assert first.told == second.told
    assert store.next_lsn == end
    assert [delivery.content for delivery in store.queue("a-orders").acquire(9)] == [b"one", b"on both"]


def test_an_empty_store_tells_its_configuration_and_that_it_is_done(store: MessageStore) -> None:
    receiver = Recorder()
    replay(store, receiver)
    assert receiver.told == [("configuration", {}), ("done", Replayed(0, 0, 0, 0, 0))]


@pytest.mark.parametrize("method", METHODS)
def test_a_receiver_may_have_any_one_of_the_methods_alone(store: MessageStore, method: str) -> None:
    filled(store)
    told: list[tuple[Any, ...]] = []
    receiver = type("Partial", (), {method: lambda self, *what: told.append(what)})()
    replayed = replay(store, receiver)
    assert len(told) == sum(kind == method for kind, *_ in everything(redelivered=False))
    assert replayed.messages == (4 if method == "message" else 0)
    assert replayed.queues == 2


@pytest.mark.parametrize("method", METHODS)
def test_an_exception_of_the_receiver_ends_the_replay_and_leaves_the_store_usable(
    store: MessageStore, method: str
) -> None:
    filled(store)

    class Failing(Recorder):
        pass

    def fail(self: Recorder, *_: object) -> None:
        raise LookupError(method)

    setattr(Failing, method, fail)
    receiver = Failing()
    with pytest.raises(LookupError, match=method):
        replay(store, receiver)
    kinds = [kind for kind, *_ in everything(redelivered=False)]
    assert [kind for kind, *_ in receiver.told] == kinds[: kinds.index(method)]
    again = Recorder()
    replay(store, again)
    assert again.told == everything(redelivered=False)


def test_a_message_that_is_dequeued_during_the_replay_does_not_disturb_the_rest(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    store.publish_many(queue, [b"%d" % number for number in range(600)])
    told: list[bytes] = []

    class Taking:
        def message(self, queue: Any, message: Any) -> None:
            told.append(message.content)
            store.dequeue(message.id, queue, wait=False)

    assert replay(store, Taking()).messages == 600
    assert told == [b"%d" % number for number in range(600)]
    assert queue.depth == 0


def test_a_transaction_in_doubt_may_get_its_outcome_inside_the_callback(store: MessageStore) -> None:
    filled(store)

    class Deciding:
        def in_doubt(self, transaction: Any) -> None:
            transaction.commit()

    assert replay(store, Deciding()).in_doubt == 1
    assert store.in_doubt() == []
    assert [message.content for message in store.messages("z-dead")] == [b"on both", b"sent in doubt"]


def test_memory_does_not_grow_with_the_number_of_messages(store: MessageStore) -> None:
    queue = store.declare_queue("q")
    store.publish_many(queue, [b"x"] * 60_000)
    count = 0

    class Counting:
        def message(self, queue: Any, message: Any) -> None:
            nonlocal count
            count += 1

    tracemalloc.start()
    try:
        replay(store, Counting())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 60_000
    assert peak < 1_000_000, f"{peak} bytes, which 60,000 messages held at once would be far above"


@pytest.mark.parametrize("receiver", [object(), None, type("Typo", (), {"messages": print})()])
def test_a_receiver_with_none_of_the_methods_is_refused_with_their_names(store: MessageStore, receiver: object) -> None:
    with pytest.raises(logstore.OptionError, match="configuration, exchange, queue, binding, message, in_doubt, done"):
        replay(store, receiver)


def test_an_attribute_in_the_place_of_a_method_is_refused(store: MessageStore) -> None:
    with pytest.raises(logstore.OptionError, match="the receiver's 'message' is 5"):
        replay(store, type("Wrong", (), {"message": 5})())


def test_a_closed_store_is_refused(store: MessageStore) -> None:
    store.close()
    with pytest.raises(logstore.StoreClosed):
        replay(store, Recorder())
