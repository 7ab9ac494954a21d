"""The store as CoilMQ uses it, without a broker: when a frame is dequeued, returned and released."""

from __future__ import annotations

import configparser
import errno
import gc
import json
from typing import TYPE_CHECKING, Any

import pytest
from coilmq.config import config as coilmq_defaults
from coilmq.queue import QueueManager
from coilmq.scheduler import RandomSubscriberScheduler
from coilmq.util.frames import Frame

import logstore
from kit.simulated import Disk
from kit.stores import SMALL_SEGMENT
from logstore.plugins import coilmq as plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEST = "/queue/orders"


@pytest.fixture
def open_queue(store_dir: Path) -> Iterator[Callable[..., plugin.LogstoreQueue]]:
    opened: list[plugin.LogstoreQueue] = []

    def open_one(**options: Any) -> plugin.LogstoreQueue:
        opened.append(plugin.LogstoreQueue(store_dir, segment_size=SMALL_SEGMENT, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def queue(open_queue: Callable[..., plugin.LogstoreQueue]) -> plugin.LogstoreQueue:
    return open_queue()


def frame(body: bytes | str = b"body", **headers: object) -> Frame:
    return Frame("MESSAGE", {"destination": DEST, "message-id": "m", **headers}, body)


def bodies(store: plugin.LogstoreQueue) -> list[bytes]:
    """The contents in the log, whether dequeued or not."""
    return [message.content for message in store.store.messages(DEST)]


def settings(**values: str) -> configparser.ConfigParser:
    """A configuration file with this package's scheduler and these settings; two underscores stand for a dot."""
    lines = {"scheduler__subscriber_priority_factory": "logstore.plugins.coilmq.make_scheduler", **values}
    made = configparser.ConfigParser()
    made.read_string("[coilmq]\n" + "".join(f"{name.replace('__', '.')} = {lines[name]}\n" for name in lines))
    return made


@pytest.mark.parametrize(
    "body",
    [b"", "", b"\0\xff\r\n\0", bytes(range(256)) * 4000, "text – \u4e2d", bytearray(b"mutable")],
    ids=["no bytes", "no text", "bytes of every kind", "a megabyte", "text", "a bytearray"],
)
def test_a_frame_comes_back_as_it_was(queue: plugin.LogstoreQueue, body: Any) -> None:
    headers = {"z": "1", "destination": DEST, "a": "\u00e9:\\n\ud800", "content-length": len(body), "": ""}
    queue.enqueue(DEST, Frame("MESSAGE", headers, body))
    got = queue.dequeue(DEST)
    assert got is not None
    assert (got.cmd, got.headers, got.body) == ("MESSAGE", headers, Frame("X", {}, body).body)
    assert list(got.headers) == list(headers)


def test_a_header_value_that_is_no_text_is_kept_as_what_coilmq_would_send(queue: plugin.LogstoreQueue) -> None:
    queue.enqueue(DEST, frame(flag=True, none=None, real=1.5))
    got = queue.dequeue(DEST)
    assert got is not None
    assert [got.headers[name] for name in ("flag", "none", "real")] == ["True", "None", "1.5"]


def test_a_dequeued_frame_stays_in_the_log_until_it_is_released(queue: plugin.LogstoreQueue) -> None:
    queue.enqueue(DEST, frame())
    held = queue.dequeue(DEST)
    assert (queue.size(DEST), queue.has_frames(DEST), queue.dequeue(DEST)) == (0, False, None)
    assert bodies(queue) == [b"body"]
    del held
    gc.collect()
    assert bodies(queue) == []
    assert queue.store.durable_lsn == queue.store.next_lsn


def test_a_returned_frame_is_the_next_one_again(queue: plugin.LogstoreQueue) -> None:
    for body in (b"1", b"2", b"3"):
        queue.enqueue(DEST, frame(body))
    first, second = queue.dequeue(DEST), queue.dequeue(DEST)
    queue.requeue(DEST, second)
    queue.requeue(DEST, first)
    assert queue.size(DEST) == 3
    del first, second
    gc.collect()
    assert [got.body for got in queue.frames(DEST)] == [b"1", b"2", b"3"]


def test_a_frame_returned_twice_is_dequeued_once(queue: plugin.LogstoreQueue) -> None:
    queue.enqueue(DEST, frame())
    stale = queue.dequeue(DEST)
    queue.requeue(DEST, stale)
    current = queue.dequeue(DEST)
    queue.requeue(DEST, stale)
    queue.enqueue(DEST, stale)
    assert (queue.size(DEST), queue.dequeue(DEST)) == (0, None)
    del stale
    gc.collect()
    assert current is not None
    assert bodies(queue) == [b"body"]


def test_a_frame_sent_on_to_another_destination_is_a_message_of_its_own_there(queue: plugin.LogstoreQueue) -> None:
    queue.enqueue(DEST, frame())
    held = queue.dequeue(DEST)
    queue.enqueue("/queue/other", held)
    assert (queue.size("/queue/other"), bodies(queue)) == (1, [b"body"])


def test_an_unknown_frame_is_stored_when_it_is_requeued(queue: plugin.LogstoreQueue) -> None:
    queue.requeue(DEST, frame(b"was never here"))
    assert bodies(queue) == [b"was never here"]


def test_unacknowledged_frames_at_the_close_wait_at_the_next_start(
    open_queue: Callable[..., plugin.LogstoreQueue],
) -> None:
    first = open_queue()
    first.enqueue(DEST, frame())
    held = first.dequeue(DEST)
    first.close()
    first.requeue(DEST, held)
    del held
    gc.collect()
    again = open_queue()
    assert again.size(DEST) == 1


def test_a_frame_released_after_the_close_waits_at_the_next_start(
    open_queue: Callable[..., plugin.LogstoreQueue],
) -> None:
    first = open_queue()
    first.enqueue(DEST, frame())
    held = first.dequeue(DEST)
    first.close()
    del held
    gc.collect()
    assert open_queue().size(DEST) == 1
    with pytest.raises(logstore.StoreClosed):
        first.has_frames(DEST)


def test_unacknowledged_frames_of_an_ended_process_wait_at_the_next_start(
    run_python: Callable[..., Any], store_dir: Path, open_queue: Callable[..., plugin.LogstoreQueue]
) -> None:
    done = run_python(
        """
        import sys
        from coilmq.util.frames import Frame
        from logstore.plugins.coilmq import LogstoreQueue
        queue = LogstoreQueue(sys.argv[1], segment_size=512 * 1024)
        queue.enqueue("/queue/orders", Frame("MESSAGE", {}, "body"))
        held = queue.dequeue("/queue/orders")
        """,
        store_dir,
    )
    assert done.returncode == 0, done.stderr
    assert open_queue().size(DEST) == 1


def test_an_interrupted_iteration_keeps_the_unsent_frames(queue: plugin.LogstoreQueue) -> None:
    for body in (b"sent", b"broken", b"waiting"):
        queue.enqueue(DEST, frame(body))
    for got in queue.frames(DEST):
        if got.body == b"broken":
            queue.requeue(DEST, got)
            break
    del got
    gc.collect()
    assert bodies(queue) == [b"broken", b"waiting"]
    assert queue.size(DEST) == 2


def test_destinations_are_those_that_were_sent_to_and_the_empty_ones_go_with_the_next_start(
    open_queue: Callable[..., plugin.LogstoreQueue],
) -> None:
    first = open_queue()
    assert (first.dequeue("/queue/never"), first.size("/queue/never")) == (None, 0)
    for destination in (DEST, "/queue/reply-1"):
        first.enqueue(destination, frame())
    first.dequeue("/queue/reply-1")
    gc.collect()
    assert first.destinations() == {DEST, "/queue/reply-1"}
    first.close()
    assert open_queue().destinations() == {DEST}


def test_a_store_of_something_else_is_refused_and_left_as_it_was(store_dir: Path) -> None:
    with logstore.open(store_dir, segment_size=SMALL_SEGMENT) as store:
        store.declare_queue("theirs")
    with pytest.raises(logstore.OptionError, match="'theirs'.*separate directory"):
        plugin.LogstoreQueue(store_dir)
    with logstore.open(store_dir) as store:
        assert [queue.name for queue in store.queues()] == ["theirs"]
        assert dict(store.config) == {}


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (b"", logstore.StoreError),
        (b"[1]", logstore.StoreError),
        (b'{"v":1,"cmd":"M","headers":[[]],"text":false}', logstore.StoreError),
        (b'{"v":1,"cmd":"M","headers":[],"text":true}', logstore.StoreError),
        (json.dumps({"v": 2}).encode(), logstore.VersionError),
    ],
    ids=["nothing", "not an object", "no pairs", "text that is none", "a newer version"],
)
def test_a_message_that_is_no_frame_is_refused_and_keeps_its_place(
    queue: plugin.LogstoreQueue, header: bytes, error: type[Exception]
) -> None:
    queue.enqueue(DEST, frame(b"first"))
    queue.dequeue(DEST)
    gc.collect()
    queue.store.publish(DEST, b"\xff", header=header)
    for _ in range(2):
        with pytest.raises(error):
            queue.dequeue(DEST)
    assert bodies(queue) == [b"\xff"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "data_dir is not set"),
        ({"qstore__logstore__data_dir": "relative/path"}, "give an absolute path"),
        ({"qstore__logstore__data_dir": "/x", "qstore__logstore__segment_size": "big"}, "segment_size = big: give a"),
        ({"qstore__logstore__data_dir": "/x", "qstore__logstore__color": "red"}, "color is not known.*segment_size"),
        ({"qstore__logstore__data_dir": "100%"}, "write %% for a % sign"),
        ({"scheduler__subscriber_priority_factory": "coilmq.scheduler.X"}, "coilmq.scheduler.X.*set scheduler"),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_write_instead(values: dict[str, str], said: str) -> None:
    with pytest.raises(logstore.OptionError, match=said):
        plugin.make_store(settings(**values))


def test_the_limit_of_the_log_is_stored_and_none_removes_it(store_dir: Path) -> None:
    place = {"qstore__logstore__data_dir": str(store_dir), "qstore__logstore__segment_size": str(SMALL_SEGMENT)}
    limits = []
    for limit in (
        {"qstore__logstore__max_log_bytes": "104857600"},
        {},
        {"qstore__logstore__max_log_bytes": "none"},
        {},
    ):
        made = plugin.make_store(settings(**place, **limit))
        limits.append(made.store.fullness().max_log_bytes)
        made.close()
    assert limits == [104857600, 104857600, None, None]


def test_the_settings_reach_the_store(store_dir: Path) -> None:
    made = plugin.make_store(
        settings(
            qstore__logstore__data_dir=str(store_dir),
            qstore__logstore__segment_size=str(2 * SMALL_SEGMENT),
            qstore__logstore__durability="relaxed",
        )
    )
    try:
        assert made.store.path == store_dir
        assert made.store.segment_size == 2 * SMALL_SEGMENT
        assert made.store.stats()["durability"] == "relaxed"
    finally:
        made.close()


def test_the_scheduler_that_chooses_is_coilmqs_default_or_the_one_that_is_named() -> None:
    default = coilmq_defaults.get("coilmq", "scheduler.subscriber_priority_factory")
    assert f"{type(plugin.make_scheduler(settings())._inner).__module__}.FavorReliableSubscriberScheduler" == default
    named = settings(scheduler__logstore__inner_factory="coilmq.scheduler.RandomSubscriberScheduler")
    assert isinstance(plugin.make_scheduler(named)._inner, RandomSubscriberScheduler)
    with pytest.raises(logstore.OptionError, match="cannot be imported"):
        plugin.make_scheduler(settings(scheduler__logstore__inner_factory="coilmq.scheduler.Nobody"))


# ---- With CoilMQ's queue manager ---------------------------------------------------------------------------------


class Connection:
    """A subscriber's connection, as CoilMQ's socket server makes it."""

    reliable_subscriber = True

    def __init__(self, store: plugin.LogstoreQueue) -> None:
        self.server = self
        self.queue_manager = QueueManager(store, plugin.make_scheduler(settings()))
        self.log: list[tuple[bytes, list[bytes]]] = []
        self.broken = False
        self._store = store

    def send_frame(self, sent: Frame) -> None:
        if self.broken:
            raise BrokenPipeError("gone")
        self.log.append((sent.body, bodies(self._store)))


def test_a_waiting_subscriber_gets_a_message_only_when_it_is_stored(queue: plugin.LogstoreQueue) -> None:
    consumer = Connection(queue)
    consumer.queue_manager.subscribe(consumer, DEST)
    consumer.queue_manager.send(frame(b"one"))
    assert consumer.log == [(b"one", [b"one"])]


def test_an_acknowledgement_dequeues_the_message_before_the_next_command(queue: plugin.LogstoreQueue) -> None:
    consumer = Connection(queue)
    manager = consumer.queue_manager
    manager.subscribe(consumer, DEST)
    kept_by_its_publisher = frame(b"one")
    manager.send(kept_by_its_publisher)
    manager.ack(consumer, Frame("ACK", {"message-id": "m"}))
    assert bodies(queue) == []
    assert queue.store.durable_lsn == queue.store.next_lsn


def test_the_backlog_goes_before_a_new_message_to_a_free_subscriber(queue: plugin.LogstoreQueue) -> None:
    queue.enqueue(DEST, frame(b"old"))
    consumer = Connection(queue)
    consumer.queue_manager._subscriptions.subscribe(consumer, DEST)
    consumer.queue_manager.send(frame(b"new"))
    assert [sent for sent, _ in consumer.log] == [b"old"]
    assert queue.size(DEST) == 1


def test_a_subscriber_whose_connection_broke_does_not_fail_the_publisher(queue: plugin.LogstoreQueue) -> None:
    consumer = Connection(queue)
    manager = consumer.queue_manager
    manager.subscribe(consumer, DEST)
    consumer.broken = True
    manager.send(frame(b"one"))
    assert (queue.size(DEST), bodies(queue)) == (1, [b"one"])
    manager.disconnect(consumer)
    assert (queue.size(DEST), bodies(queue)) == (1, [b"one"])


def test_an_aborted_acknowledgement_brings_the_message_back_once(queue: plugin.LogstoreQueue) -> None:
    consumer = Connection(queue)
    manager = consumer.queue_manager
    manager.subscribe(consumer, DEST)
    manager.send(frame(b"one"))
    manager.ack(consumer, Frame("ACK", {"message-id": "m"}), transaction="t")
    assert bodies(queue) == [b"one"]
    manager.resend_transaction_frames(consumer, "t")
    assert [sent for sent, _ in consumer.log] == [b"one", b"one"]
    manager.ack(consumer, Frame("ACK", {"message-id": "m"}))
    assert bodies(queue) == []


def test_an_acknowledgement_of_another_message_brings_the_right_one_again(queue: plugin.LogstoreQueue) -> None:
    consumer = Connection(queue)
    manager = consumer.queue_manager
    manager.subscribe(consumer, DEST)
    manager.send(frame(b"one"))
    manager.ack(consumer, Frame("ACK", {"message-id": "another"}))
    assert [sent for sent, _ in consumer.log] == [b"one", b"one"]
    assert bodies(queue) == [b"one"]


def test_an_acknowledged_message_that_the_store_cannot_remove_is_not_delivered_again_before_a_restart(
    store_dir: Path,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise logstore.StoreFull("no room")

    queue = plugin.LogstoreQueue(store_dir)
    queue.enqueue(DEST, frame(b"acknowledged"))
    held = queue.dequeue(DEST)
    queue.store.queue(DEST).accept = fails  # type: ignore[method-assign]
    del held
    gc.collect()
    assert queue.dequeue(DEST) is None
    queue.close()
    again = plugin.LogstoreQueue(store_dir)
    assert bodies(again) == [b"acknowledged"]


def test_on_a_failing_disk_a_send_is_refused_and_an_acknowledged_message_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    monkeypatch.setattr(logstore, "open", disk.open)
    queue = plugin.LogstoreQueue(store_dir)
    queue.enqueue(DEST, frame(b"acknowledged"))
    held = queue.dequeue(DEST)
    disk.fail(1, errno.EIO, forever=True)
    with pytest.raises(logstore.OutcomeUnknown):
        queue.enqueue(DEST, frame(b"refused"))
    with pytest.raises(logstore.StorePoisoned):
        queue.enqueue(DEST, frame(b"refused"))
    del held
    gc.collect()
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"of {DEST} was acknowledged and will be delivered again after a restart: " in said
    queue.close()

    after = disk.crash()
    monkeypatch.setattr(logstore, "open", after.open)
    again = plugin.LogstoreQueue(store_dir)
    assert bodies(again) == [b"acknowledged"]
    again.close()
    del queue, again
    disk.free()
    after.free()
