"""A queue store for CoilMQ, the STOMP broker: a frame with a RECEIPT survives ``kill -9``.

CoilMQ's configuration enables it; both factory lines are required::

    [coilmq]
    qstore.factory = logstore.plugins.coilmq.make_store
    scheduler.subscriber_priority_factory = logstore.plugins.coilmq.make_scheduler
    qstore.logstore.data_dir = /var/lib/coilmq/store

CoilMQ removes a message from its store when it sends it to a subscriber, and does not notify the store of the
acknowledgement. This store only acquires a message that is sent. It removes the message, durably, when the broker drops
its last reference to the frame: the broker keeps the frame as long as it may have to requeue it, and drops it when the
ACK arrives, before it sends the RECEIPT for the ACK. So an unacknowledged frame returns to its old place after a crash.

Invariant: only the broker drops the last reference to a frame. This module never does, and the end of the interpreter
or the close of the store does not count as a drop.
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
_LIMIT: Final = "max_log_bytes"  # stored with the store; none removes it
_TEXTS: Final = ("durability", "connect", "catalog")

_OWNER_KEY: Final = "plugin"
_OWNER: Final = "coilmq"
_FORMAT: Final = 1

# Errors of a delivery whose place is gone: the message is already off the queue.
_GONE: Final = (errors.NotEnqueued, errors.UnknownMessage, errors.UnknownQueue)

_log = logging.getLogger("logstore.coilmq")


def make_store(config: configparser.ConfigParser | None = None) -> LogstoreQueue:
    """The function for ``qstore.factory``: makes the store from CoilMQ's configuration.

    ``qstore.logstore.data_dir`` is required, an absolute path. ``segment_size``, ``initial_segments``,
    ``max_write_buffers``, ``max_undurable_bytes``, ``max_log_bytes`` (whole numbers; bytes except the second and
    third; ``max_log_bytes`` may also be ``none``), ``durability``, ``connect`` and ``catalog`` have the same meaning as
    for :func:`logstore.open`.

    Raises :class:`~logstore.errors.OptionError` for a missing, unknown or wrong setting, and if the scheduler of this
    module is not configured (without it, messages would bypass the store); and the errors of ``logstore.open``.
    """
    settings = coilmq_config if config is None else config
    wanted = f"{__name__}.{make_scheduler.__name__}"
    scheduler = settings.get(_SECTION, _SCHEDULER_FACTORY, fallback="")
    if scheduler.replace(":", ".") != wanted:
        raise errors.OptionError(
            f"{_SCHEDULER_FACTORY} is {scheduler!r}: CoilMQ would send messages to waiting subscribers and confirm "
            f"them without storing them; set {_SCHEDULER_FACTORY} = {wanted} (and {_INNER_FACTORY} to your scheduler)"
        )
    options = _options(settings)
    return LogstoreQueue(options.pop("data_dir"), **options)


def make_scheduler(config: configparser.ConfigParser | None = None) -> StoredFirst:
    """The function for ``scheduler.subscriber_priority_factory``.

    ``scheduler.logstore.inner_factory`` names the scheduler that chooses subscribers; default is CoilMQ's own. Raises
    :class:`~logstore.errors.OptionError` if that factory cannot be imported.
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
                options[name] = value if name == _LIMIT and value == "none" else int(value)
            except ValueError:
                allowed = "a whole number, or none" if name == _LIMIT else "a whole number"
                raise errors.OptionError(f"{setting} = {value}: give {allowed}") from None
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
    """A frame from the store. It stays acquired there until it is requeued or the broker drops it."""

    delivery: logstore.Delivery
    let_go: weakref.finalize[[str, logstore.Delivery], StoredFrame]
    destination: str


def encode(frame: Frame) -> tuple[bytes, bytes]:
    """Encodes a frame as header and content of a message: command and headers as JSON, in order; the body unchanged.

    CoilMQ puts strings and numbers into headers; any other value is stored as the text that CoilMQ would send.
    """
    text = not isinstance(frame.body, (bytes, bytearray, memoryview))
    headers = [[str(name), value if type(value) in (str, int) else str(value)] for name, value in frame.headers.items()]
    header = json.dumps({"v": _FORMAT, "cmd": frame.cmd, "headers": headers, "text": text}, separators=(",", ":"))
    return header.encode("ascii"), frame.body.encode() if text else bytes(frame.body)


def decode(header: bytes, body: bytes) -> StoredFrame:
    """Decodes a frame that :func:`encode` encoded.

    Raises :class:`~logstore.errors.VersionError` for a message of a newer version, and ``StoreError`` for a message
    that is not a frame.
    """
    try:
        fields = json.loads(header)
        version = fields["v"]
        if version == _FORMAT:
            return StoredFrame(fields["cmd"], dict(fields["headers"]), body.decode() if fields["text"] else body)
    except (ValueError, TypeError, LookupError) as problem:
        raise errors.StoreError(
            f"a message in the store is not a STOMP frame ({problem}); take it off its queue, or give CoilMQ a "
            "separate store"
        ) from problem
    raise errors.VersionError(
        f"a frame was stored by a newer version (format {version}, but this one knows {_FORMAT}); use that version"
    )


# ---- The store -------------------------------------------------------------------------------------------------


class LogstoreQueue(QueueStore):  # type: ignore[misc] # CoilMQ has no types
    """CoilMQ's ``QueueStore`` on a logstore. Each destination is a queue. Usable from many threads.

    ``enqueue`` is durable on return. ``dequeue`` acquires the message; when the broker drops the frame, the message is
    removed durably. ``requeue`` or ``enqueue`` return an acquired frame to its old place.

    Takes the store directory and the options of :func:`logstore.open`. Raises its errors, and
    :class:`~logstore.errors.OptionError` for a store with queues of another program.
    """

    def __init__(self, data_dir: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self._store = logstore.open(data_dir, **options)
        self._closed = threading.Event()
        self._handed_out: dict[str, set[int]] = {}
        self._unsettled: list[logstore.Delivery] = []  # acknowledged; kept so that the store does not offer them again
        try:
            self._claim()
        except BaseException:
            self._store.close()
            raise

    def _claim(self) -> None:
        """Checks that the queues belong to CoilMQ, and deletes empty ones, because clients choose names freely."""
        queues = self._store.queues()
        if queues and self._store.config.get(_OWNER_KEY) != _OWNER:
            raise errors.OptionError(
                f"{self._store.path} has queues of another program (such as {queues[0].name!r}); give CoilMQ a "
                "separate directory"
            )
        self._store.config[_OWNER_KEY] = _OWNER
        for queue in queues:
            if queue.depth == 0:
                self._store.delete_queue(queue, wait=False)

    @property
    def store(self) -> logstore.MessageStore:
        """The underlying store, for statistics and maintenance."""
        return self._store

    def enqueue(self, destination: str, frame: Frame) -> None:
        """Stores the frame at the end of the destination's queue; durable on return.

        A frame that is still acquired returns to its old place instead. Raises ``StoreFull``,
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
        """The first frame that is not acquired, or None. The message stays in the log until the broker drops the frame.

        Raises ``CorruptLog`` for a message that cannot be read; it keeps its place.
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
            frame.let_go.atexit = False  # frames alive at the exit of the broker are not acknowledged
            return frame
        return None

    def requeue(self, destination: str, frame: Frame) -> None:
        """Returns the frame to its old place.

        Does nothing if the frame was returned before; CoilMQ does that when a connection breaks. A frame that did not
        come from this store is enqueued.
        """
        if not isinstance(frame, StoredFrame):
            self.enqueue(destination, frame)
        elif frame.let_go.detach() is not None:
            self._handed_out[frame.destination].discard(frame.delivery.id)
            if not self._closed.is_set():
                frame.delivery.release()

    def _settle(self, destination: str, delivery: logstore.Delivery, *, wait: bool = True) -> None:
        """Removes the message: the broker has dropped the frame. Does not raise, because there is no caller."""
        self._handed_out[destination].discard(delivery.id)
        if self._closed.is_set():
            return  # the frame was not acknowledged before the store was closed
        try:
            delivery.accept(wait=wait)
        except _GONE:
            return
        except errors.StoreError as problem:
            self._unsettled.append(delivery)
            _log.error(
                "message %d of %s was acknowledged and will be delivered again after a restart: %s",
                delivery.id,
                destination,
                problem,
            )

    def sent(self, frame: StoredFrame) -> None:
        """Removes a frame that went to a subscriber without acknowledgements; durable with the next force."""
        if frame.let_go.detach() is not None:
            self._settle(frame.destination, frame.delivery, wait=False)

    def size(self, destination: str) -> int:
        """The number of waiting frames, without acquired ones; 0 for an unknown destination."""
        try:
            depth = self._store.queue(destination).depth
        except errors.UnknownQueue:
            return 0
        return max(0, depth - len(self._handed_out.get(destination, ())))

    def has_frames(self, destination: str) -> bool:
        """Whether ``dequeue`` would return a frame."""
        return self.size(destination) > 0

    def destinations(self) -> set[str]:
        """The destinations that frames were sent to. Empty ones are deleted at the next start."""
        return {queue.name for queue in self._store.queues()}

    def frames(self, destination: str) -> _Sending:
        """An iterator for subscribers without acknowledgements. Asking for the next frame means that one was sent."""
        return _Sending(self, destination)

    def close(self) -> None:
        """Closes the store. Acquired frames are there again at the next start. A second call does nothing.

        Raises ``OutcomeUnknown`` if the last write failed.
        """
        self._closed.set()
        self._store.close()


class _Sending(QueueFrameIterator):  # type: ignore[misc] # CoilMQ has no types
    """Frames for a subscriber without acknowledgements, with one force at the end for all that were sent."""

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


# ---- The scheduler ---------------------------------------------------------------------------------------------


class StoredFirst(SubscriberPriorityScheduler):  # type: ignore[misc] # CoilMQ has no types
    """A scheduler that makes CoilMQ store a message before a waiting subscriber gets it.

    CoilMQ sends a message to a free subscriber and confirms it without storing it, but first it asks the scheduler.
    This scheduler lets ``inner`` choose, and returns a stand-in for the chosen subscriber. The stand-in stores the
    message and then makes CoilMQ send the first message of the queue to the chosen subscriber.
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
        """Closes the inner scheduler, if it has a ``close``."""
        if hasattr(self._inner, "close"):
            self._inner.close()


class _ByWayOfTheStore:
    """The connection of a stand-in: a frame that CoilMQ sends over it is stored, then delivered in queue order."""

    reliable_subscriber = False  # CoilMQ must wait for the ACK of the chosen subscriber, not of the stand-in

    def __init__(self, chosen: Subscription) -> None:
        self._chosen = chosen

    def send_frame(self, frame: Frame) -> None:
        """Stores the frame durably, then delivers if possible. Raises the errors of ``LogstoreQueue.enqueue``."""
        destination = frame.headers["destination"]
        frame.headers.pop("subscription", None)  # CoilMQ adds it at each delivery
        connection = self._chosen.connection
        manager = connection.server.queue_manager
        manager.store.enqueue(destination, frame)
        try:
            # Subscribing again changes nothing, but makes CoilMQ send available messages.
            manager.subscribe(connection, destination, id=self._chosen.id)
        except (OSError, errors.StoreError) as problem:
            # The failure concerns the subscriber, or the first message of the queue; the new message is stored.
            _log.warning("the stored message of %s could not be delivered at once: %s", destination, problem)
