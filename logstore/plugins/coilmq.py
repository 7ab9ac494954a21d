"""A queue store for CoilMQ, the STOMP broker: what a client has a RECEIPT for is there after ``kill -9``.

CoilMQ is told of it by its configuration, and needs both lines of the two factories::

    [coilmq]
    qstore.factory = logstore.plugins.coilmq.make_store
    scheduler.subscriber_priority_factory = logstore.plugins.coilmq.make_scheduler
    qstore.logstore.data_dir = /var/lib/coilmq/store

CoilMQ's store takes a message out when it hands it to a subscriber, and is not told when the subscriber acknowledges.
Here a message handed out is only acquired. It leaves the log, durably, at the moment when the broker lets go of the
frame: it keeps a frame for as long as it may have to give it back, and drops it when the ACK arrives, before it sends
the RECEIPT for that ACK. So a frame that was sent and not acknowledged comes back after a crash, in its old place.

What must never happen: that a frame is let go of by this module's own doing, or counts as let go of because the
interpreter ends or the store is closed.
"""

from __future__ import annotations

import configparser
import json
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from coilmq.config import config as coilmq_config
from coilmq.config import resolve_name
from coilmq.scheduler import SubscriberPriorityScheduler
from coilmq.store import QueueFrameIterator, QueueStore
from coilmq.subscription import Subscription
from coilmq.util.frames import Frame

import logstore
from logstore import errors

if TYPE_CHECKING:
    import os

__all__ = ["LogstoreQueue", "StoredFirst", "StoredFrame", "make_scheduler", "make_store"]

_SECTION: Final = "coilmq"
_PREFIX: Final = "qstore.logstore."
_SCHEDULER_FACTORY: Final = "scheduler.subscriber_priority_factory"
_INNER_FACTORY: Final = "scheduler.logstore.inner_factory"
_INNER_DEFAULT: Final = "coilmq.scheduler.FavorReliableSubscriberScheduler"
_NUMBERS: Final = ("segment_size", "initial_segments", "max_write_buffers", "max_undurable_bytes", "max_log_bytes")
_TEXTS: Final = ("durability", "connect", "catalog")

_OWNER_KEY: Final = "plugin"
_OWNER: Final = "coilmq"
_FORMAT: Final = 1

# What a delivery raises that has no place any more: there is nothing left to do.
_GONE: Final = (errors.NotEnqueued, errors.UnknownMessage, errors.UnknownQueue)

_log = logging.getLogger("logstore.coilmq")


def make_store(config: configparser.ConfigParser | None = None) -> LogstoreQueue:
    """What ``qstore.factory`` names: the store that CoilMQ's configuration describes.

    ``qstore.logstore.data_dir`` is required, an absolute path. ``segment_size``, ``initial_segments``,
    ``max_write_buffers``, ``max_undurable_bytes``, ``max_log_bytes`` (whole numbers, bytes but for the second and
    third), ``durability``, ``connect`` and ``catalog`` have the meaning they have for :func:`logstore.open`.

    Raises :class:`~logstore.errors.OptionError` for a setting that is missing, unknown or wrong, and if the scheduler
    of this module is not configured too, without which messages would pass by the store; and what ``logstore.open``
    raises.
    """
    settings = coilmq_config if config is None else config
    wanted = f"{__name__}.{make_scheduler.__name__}"
    scheduler = settings.get(_SECTION, _SCHEDULER_FACTORY, fallback="")
    if scheduler.replace(":", ".") != wanted:
        raise errors.OptionError(
            f"{_SCHEDULER_FACTORY} is {scheduler!r}: CoilMQ would hand messages to waiting subscribers without storing "
            f"them, and confirm them; set {_SCHEDULER_FACTORY} = {wanted} (and {_INNER_FACTORY} to the one you want)"
        )
    options = _options(settings)
    return LogstoreQueue(options.pop("data_dir"), **options)


def make_scheduler(config: configparser.ConfigParser | None = None) -> StoredFirst:
    """What ``scheduler.subscriber_priority_factory`` names.

    ``scheduler.logstore.inner_factory`` is the scheduler that chooses; CoilMQ's own default if it is not set. Raises
    :class:`~logstore.errors.OptionError` if there is no such factory.
    """
    settings = coilmq_config if config is None else config
    name = settings.get(_SECTION, _INNER_FACTORY, fallback=_INNER_DEFAULT)
    try:
        factory = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise errors.OptionError(f"{_INNER_FACTORY} = {name} cannot be imported ({problem}); correct it") from problem
    return StoredFirst(factory())


def _options(settings: configparser.ConfigParser) -> dict[str, Any]:
    try:
        items = settings.items(_SECTION)
    except configparser.Error as problem:
        raise errors.OptionError(f"the configuration cannot be read: {problem}; write %% for a % sign") from problem
    options: dict[str, Any] = {}
    for setting, value in items:
        if not setting.startswith(_PREFIX):
            continue
        name = setting.removeprefix(_PREFIX)
        if name in _NUMBERS:
            try:
                options[name] = int(value)
            except ValueError:
                raise errors.OptionError(f"{setting} = {value}: give a whole number") from None
        elif name == "data_dir" or name in _TEXTS:
            options[name] = value
        else:
            known = ", ".join(("data_dir", *_NUMBERS, *_TEXTS))
            raise errors.OptionError(f"{setting} is not known; after {_PREFIX} there can be: {known}")
    if not options.get("data_dir"):
        raise errors.OptionError(f"{_PREFIX}data_dir is not set; name the directory of the store")
    if not options["data_dir"].startswith("/"):
        raise errors.OptionError(
            f"{_PREFIX}data_dir = {options['data_dir']} is relative, and CoilMQ may run anywhere; give an absolute path"
        )
    return options


# ---- Frames ----------------------------------------------------------------------------------------------------


class StoredFrame(Frame):  # type: ignore[misc] # CoilMQ has no types
    """A frame that came out of the store and is still acquired there, until it is given back or let go of."""

    delivery: logstore.Delivery
    let_go: weakref.finalize[[str, logstore.Delivery], StoredFrame]
    destination: str


def encode(frame: Frame) -> tuple[bytes, bytes]:
    """A frame as header and content of a message: the body as it is; command and headers, in order, as JSON.

    CoilMQ itself puts strings and numbers into headers; anything else is kept as the text that it would send.
    """
    text = not isinstance(frame.body, (bytes, bytearray, memoryview))
    headers = [[str(name), value if type(value) in (str, int) else str(value)] for name, value in frame.headers.items()]
    header = json.dumps({"v": _FORMAT, "cmd": frame.cmd, "headers": headers, "text": text}, separators=(",", ":"))
    return header.encode("ascii"), frame.body.encode() if text else bytes(frame.body)


def decode(header: bytes, body: bytes) -> StoredFrame:
    """The frame that :func:`encode` made this of.

    Raises :class:`~logstore.errors.VersionError` for what a newer version wrote, and ``StoreError`` for a message that
    is no frame.
    """
    try:
        fields = json.loads(header)
        version = fields["v"]
        if version == _FORMAT:
            return StoredFrame(fields["cmd"], dict(fields["headers"]), body.decode() if fields["text"] else body)
    except (ValueError, TypeError, LookupError) as problem:
        raise errors.StoreError(
            f"a message in the store is no STOMP frame ({problem}); take it off its queue, or give CoilMQ a store of "
            "its own"
        ) from problem
    raise errors.VersionError(
        f"a frame was stored by a newer version (format {version}, and this one knows {_FORMAT}); run that version"
    )


# ---- The store -------------------------------------------------------------------------------------------------


class LogstoreQueue(QueueStore):  # type: ignore[misc] # CoilMQ has no types
    """CoilMQ's ``QueueStore`` over a logstore of its own; a destination is a queue. Usable from many threads.

    ``enqueue`` is durable when it returns. ``dequeue`` acquires; the frame's end is the message's end, durably. A frame
    that is given back, by ``requeue`` or ``enqueue``, is in its old place again.

    Takes the store directory and the options of :func:`logstore.open`. Raises what that raises, and
    :class:`~logstore.errors.OptionError` for a store that something else has filled.
    """

    def __init__(self, data_dir: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self._store = logstore.open(data_dir, **options)
        self._closed = threading.Event()
        self._handed_out: dict[str, set[int]] = {}
        try:
            self._claim()
        except BaseException:
            self._store.close()
            raise

    def _claim(self) -> None:
        """Makes sure that the queues are CoilMQ's, and forgets those that nobody needs: clients invent names."""
        queues = self._store.queues()
        if queues and self._store.config.get(_OWNER_KEY) != _OWNER:
            raise errors.OptionError(
                f"{self._store.path} holds queues of something else (such as {queues[0].name!r}); give CoilMQ a "
                "directory of its own"
            )
        self._store.config[_OWNER_KEY] = _OWNER
        for queue in queues:
            if queue.depth == 0:
                self._store.delete_queue(queue, wait=False)

    @property
    def store(self) -> logstore.MessageStore:
        """The store underneath, for statistics and care."""
        return self._store

    def enqueue(self, destination: str, frame: Frame) -> None:
        """Stores the frame at the end of the destination's queue; durable on return.

        A frame that was handed out and not let go of goes back to its old place instead. Raises ``StoreFull``,
        ``OptionError`` for a destination over 255 bytes or headers over a sixteenth of a segment, ``StorePoisoned``,
        ``OutcomeUnknown``, ``StoreClosed``: CoilMQ then answers with an ERROR frame and no RECEIPT.
        """
        if isinstance(frame, StoredFrame) and frame.destination == destination:
            self.requeue(destination, frame)
            return
        header, body = encode(frame)
        self._store.publish(self._declared(destination), body, header=header)

    def _declared(self, destination: str) -> logstore.Queue:
        try:
            return self._store.queue(destination)
        except errors.UnknownQueue:
            return self._store.declare_queue(destination)

    def dequeue(self, destination: str) -> StoredFrame | None:
        """The first frame that is not handed out, or None; the message stays in the log until the frame is let go of.

        Raises ``CorruptLog`` for a message that cannot be read, which keeps its place.
        """
        try:
            queue = self._store.queue(destination)
        except errors.UnknownQueue:
            return None
        for delivery in queue.acquire(1):
            try:
                frame = decode(delivery.header, delivery.content)
            except BaseException:
                delivery.release()
                raise
            self._handed_out.setdefault(destination, set()).add(delivery.id)
            frame.destination = destination
            frame.delivery = delivery
            frame.let_go = weakref.finalize(frame, self._settle, destination, delivery)
            frame.let_go.atexit = False  # a broker that ends has not had its acknowledgements
            return frame
        return None

    def requeue(self, destination: str, frame: Frame) -> None:
        """The frame goes back to its old place, and is the next to be handed out if nothing is before it.

        Harmless for one that was given back already, as CoilMQ does when a connection breaks. A frame that never came
        out of this store is enqueued.
        """
        if not isinstance(frame, StoredFrame):
            self.enqueue(destination, frame)
        elif frame.let_go.detach() is not None:
            self._handed_out[frame.destination].discard(frame.delivery.id)
            if not self._closed.is_set():
                frame.delivery.release()

    def _settle(self, destination: str, delivery: logstore.Delivery, *, wait: bool = True) -> None:
        """The broker has let go of the frame: the message is done with. It must not raise: nobody would hear it."""
        self._handed_out[destination].discard(delivery.id)
        if self._closed.is_set():
            return  # nothing was said about it while the store could hear it
        try:
            delivery.accept(wait=wait)
        except _GONE:
            return
        except errors.StoreError as problem:
            _log.error(
                "message %d of %s was acknowledged and will be delivered again after a restart: %s",
                delivery.id,
                destination,
                problem,
            )

    def sent(self, frame: StoredFrame) -> None:
        """The frame went to a subscriber that does not acknowledge: it is done with, durably with the next force."""
        if frame.let_go.detach() is not None:
            self._settle(frame.destination, frame.delivery, wait=False)

    def size(self, destination: str) -> int:
        """How many frames wait, those that are handed out not counted; 0 for a destination that is not known."""
        try:
            depth = self._store.queue(destination).depth
        except errors.UnknownQueue:
            return 0
        return max(0, depth - len(self._handed_out.get(destination, ())))

    def has_frames(self, destination: str) -> bool:
        """Whether ``dequeue`` would give one."""
        return self.size(destination) > 0

    def destinations(self) -> set[str]:
        """The destinations that have been sent to; those that are empty are forgotten at the next start."""
        return {queue.name for queue in self._store.queues()}

    def frames(self, destination: str) -> _Sending:
        """An iterator for subscribers that do not acknowledge: asking for the next frame says that one was sent."""
        return _Sending(self, destination)

    def close(self) -> None:
        """Closes the store. What is handed out and not let go of is there at the next start; a second call is harmless.

        Raises ``OutcomeUnknown`` if the last write failed.
        """
        self._closed.set()
        self._store.close()


class _Sending(QueueFrameIterator):  # type: ignore[misc] # CoilMQ has no types
    """Frames for a subscriber that does not acknowledge; one force for all that were sent, at the end."""

    store: LogstoreQueue
    destination: str

    def __init__(self, store: LogstoreQueue, destination: str) -> None:
        super().__init__(store, destination)
        self._last: StoredFrame | None = None
        self._any = False

    def __next__(self) -> StoredFrame:
        if self._last is not None:
            self.store.sent(self._last)
            self._any = True
        self._last = self.store.dequeue(self.destination)
        if self._last is None:
            if self._any:
                self._any = False
                self.store.store.force_unless_relaxed()
            raise StopIteration
        return self._last


# ---- No way past the store -------------------------------------------------------------------------------------


class StoredFirst(SubscriberPriorityScheduler):  # type: ignore[misc] # CoilMQ has no types
    """A scheduler that has a message stored before a waiting subscriber gets it.

    CoilMQ hands a message to a subscriber that is free without storing it, and confirms it. The only thing it asks
    before is the scheduler: this one leaves the choice to ``inner``, and answers with a stand-in for the chosen
    subscriber that stores the message and then has CoilMQ send the chosen one what is first in the queue.
    """

    def __init__(self, inner: SubscriberPriorityScheduler) -> None:
        self._inner = inner

    def choice(self, subscribers: Any, message: Frame) -> Subscription | None:
        """A stand-in for the subscriber that ``inner`` chooses; None if it chooses none."""
        chosen = self._inner.choice(subscribers, message)
        if chosen is None:
            return None
        return Subscription(connection=_ByWayOfTheStore(chosen), id=chosen.id)

    def close(self) -> None:
        """Closes the scheduler that chooses, if it can be closed."""
        if hasattr(self._inner, "close"):
            self._inner.close()


class _ByWayOfTheStore:
    """The connection of a stand-in: what CoilMQ sends over it is stored, then delivered in its turn."""

    reliable_subscriber = False  # CoilMQ is not to wait for the stand-in's ACK, but for that of the chosen one

    def __init__(self, chosen: Subscription) -> None:
        self._chosen = chosen

    def send_frame(self, frame: Frame) -> None:
        """Durable when it returns, and sent if that was possible. Raises as ``LogstoreQueue.enqueue`` does."""
        destination = frame.headers["destination"]
        frame.headers.pop("subscription", None)  # CoilMQ's addition, made anew at each delivery
        connection = self._chosen.connection
        manager = connection.server.queue_manager
        manager.store.enqueue(destination, frame)
        try:
            # Subscribing again changes nothing, and sends the subscriber what it can have now.
            manager.subscribe(connection, destination, id=self._chosen.id)
        except (OSError, errors.StoreError) as problem:
            # The subscriber's trouble, or the queue's front; the publisher's message is safe.
            _log.warning("%s could not be delivered from at once: %s", destination, problem)
