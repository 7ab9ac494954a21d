"""CPython's own calls for the hot paths: the bases of MessageStore, Queue and Transaction, and Delivery."""

import array
import asyncio
import contextvars
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Literal, Self, final, overload

from logstore.errors import StoreError
from logstore.store.deliveries import DeliveryToken, Message
from logstore.store.queues import Queue
from logstore.store.transactions import Transaction

def bind(calls: int, failure: Callable[[int], StoreError], /) -> None: ...
def mark_settled(batch: tuple[Delivery | tuple[int, int, int], ...], /) -> None: ...

@final
class Owner:
    def __new__(cls, kind: str, /) -> Self: ...
    @property
    def slot(self) -> int: ...
    def free(self) -> None: ...

class StoreCalls:
    _notify: Callable[[None], object] | None
    def _attach(self, owner: Owner, queues: dict[int, Queue], relaxed: bool, /) -> None: ...
    @overload
    def publish(
        self,
        queue: Queue | str | Iterable[Queue | str],
        content: object,
        *,
        header: object = b"",
        transaction: Transaction | None = None,
        wait: bool = True,
        acquire: Literal[False] = False,
        not_before: float | datetime | None = None,
        expires: float | datetime | None = None,
    ) -> int: ...
    @overload
    def publish(
        self,
        queue: Queue | str,
        content: object,
        *,
        header: object = b"",
        transaction: None = None,
        wait: Literal[True] = True,
        acquire: Literal[True],
        not_before: None = None,
        expires: float | datetime | None = None,
    ) -> Delivery: ...
    def dequeue(
        self, message_id: int, queue: Queue | str, transaction: Transaction | None = None, *, wait: bool = True
    ) -> int: ...
    def annotate(
        self,
        message_id: int,
        queue: Queue | str,
        note: object,
        transaction: Transaction | None = None,
        *,
        wait: bool = True,
    ) -> int: ...
    def header(self, message_id: int) -> bytes: ...
    def load_content(self, message_id: int, offset: int = 0, length: int | None = None) -> bytes: ...
    @property
    def next_lsn(self) -> int: ...
    @property
    def durable_lsn(self) -> int: ...
    @property
    def nearly_full(self) -> bool: ...
    @property
    def room_percent(self) -> int: ...
    def _publish_answered(
        self, queue: Queue, header: bytes, data: bytes, start: int, end: int, fd: int, socket: int, answer: bytes, /
    ) -> int: ...
    def _undurable(self, lsn: int, /) -> int: ...
    def _publish_items(
        self,
        queue_id: int,
        contents: tuple[object, ...],
        headers: tuple[object, ...] | None,
        transaction: Transaction | None,
        not_before_us: int,
        expires_us: int,
        flags: int,
        ids: array.array[int],
        /,
    ) -> None: ...
    def _publish_packed(
        self,
        queue_id: int,
        data: memoryview,
        sizes: array.array[int],
        transaction: Transaction | None,
        not_before_us: int,
        expires_us: int,
        flags: int,
        ids: array.array[int],
        /,
    ) -> None: ...
    def _publish_each(
        self,
        queue_id: int,
        contents: Iterator[object],
        headers: Iterator[object] | None,
        transaction: Transaction | None,
        not_before_us: int,
        expires_us: int,
        ids: array.array[int],
        /,
    ) -> int: ...
    def _release_dropped(self) -> None: ...
    def _released_queues(self) -> set[int]: ...
    def _read_places(
        self, cursor: Owner, queue_id: int, kind: type[Message], load: bool, views: bool, /
    ) -> list[Message]: ...

class QueueCalls:
    _is_deleted: bool
    @property
    def _id(self) -> int: ...
    def _attach(self, store: StoreCalls, queue_id: int, /) -> None: ...
    def acquire(
        self, n: int = 1, *, after: int | None = None, load: bool = False, timeout: float | None = None
    ) -> list[Delivery]: ...
    def _acquire_after(self, n: int, position: int, load: bool, /) -> list[Delivery]: ...
    def _acquire_expired(self, n: int, load: bool, /) -> list[Delivery]: ...
    def _acquire_ids(self, ids: array.array[int], load: bool, /) -> list[Delivery]: ...
    def _publish_acquired(self, header: object, content: object, staged: int, expires_us: int, /) -> Delivery: ...
    def accept(
        self, delivery: Delivery | DeliveryToken, *, transaction: Transaction | None = None, wait: bool = True
    ) -> None: ...
    def accept_many(
        self,
        deliveries: Iterable[Delivery | DeliveryToken],
        *,
        transaction: Transaction | None = None,
        wait: bool = True,
    ) -> None: ...
    def _accept_batch(
        self, batch: tuple[Delivery | tuple[int, int, int], ...], wait: bool, transaction: Transaction | None, /
    ) -> None: ...
    def release(
        self,
        delivery: Delivery | DeliveryToken,
        *,
        unseen: bool = False,
        to_back: bool = False,
        wait: bool = False,
        delay: float | timedelta | None = None,
    ) -> None: ...
    def move(
        self,
        delivery: Delivery | DeliveryToken,
        to: Queue | str,
        *,
        header: object = None,
        note: object = None,
        not_before: float | datetime | None = None,
        expires: float | datetime | None = None,
        transaction: Transaction | None = None,
        wait: bool = True,
    ) -> None: ...
    def _taker(self, n: int, inbox: Owner | None = None, number: int = 0, /) -> Taker: ...

@final
class Taker:
    def wait(self, until_ns: int, /) -> None: ...
    def take(self, load: bool, /) -> list[Delivery]: ...
    def give_back(self) -> None: ...

@final
class Delivery:
    _settled: bool
    @property
    def _detached(self) -> bool: ...
    @property
    def id(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def delivery_count(self) -> int: ...
    @property
    def redelivered(self) -> bool: ...
    @property
    def content(self) -> bytes: ...
    @property
    def header(self) -> bytes: ...
    @property
    def note(self) -> bytes: ...
    @property
    def position(self) -> int: ...
    @property
    def queue(self) -> Queue: ...
    @property
    def enqueued_at(self) -> datetime | None: ...
    @property
    def expires(self) -> datetime | None: ...
    @property
    def _loaded(self) -> tuple[bytes, bytes] | None: ...
    def detach(self) -> DeliveryToken: ...
    def unload(self) -> None: ...
    def accept(self, *, transaction: Transaction | None = None, wait: bool = True) -> None: ...
    def release(
        self,
        *,
        unseen: bool = False,
        to_back: bool = False,
        wait: bool = False,
        delay: float | timedelta | None = None,
    ) -> None: ...
    def reject(self, *, transaction: Transaction | None = None, wait: bool = True) -> None: ...

class TransactionCalls:
    def _attach(self, store: StoreCalls, owner: Owner, /) -> None: ...

class Waiters:
    failed: Callable[[], Exception] | None
    reported_lsn: int
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def waiting(self) -> int: ...
    def __init__(self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> None: ...
    def until(self, lsn: int, /) -> Waiter: ...
    def _wake(self, lsn: int, /) -> None: ...

@final
class Waiter:
    _asyncio_future_blocking: bool
    def __await__(self) -> Generator[Any, Any]: ...
    def get_loop(self) -> asyncio.AbstractEventLoop: ...
    def add_done_callback(self, resume: Callable[[Any], object], /, *, context: contextvars.Context) -> None: ...
    def cancel(self, msg: object = None) -> bool: ...
