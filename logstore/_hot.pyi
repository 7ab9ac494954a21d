"""CPython's own calls for the hot paths: the bases of MessageStore, Queue and Transaction."""

import array
from collections.abc import Callable, Iterable

from logstore.errors import StoreError
from logstore.store.deliveries import Message
from logstore.store.queues import Queue
from logstore.store.transactions import Transaction

def bind(calls: int, failure: Callable[[int], StoreError], /) -> None: ...

class StoreCalls:
    def _attach(self, owner: object, address: int, queues: dict[int, Queue], relaxed: bool, /) -> None: ...
    def publish(
        self,
        queue: Queue | str | Iterable[Queue | str],
        content: object,
        *,
        header: object = b"",
        transaction: Transaction | None = None,
        wait: bool = True,
    ) -> int: ...
    def dequeue(
        self, message_id: int, queue: Queue | str, transaction: Transaction | None = None, *, wait: bool = True
    ) -> int: ...
    def header(self, message_id: int) -> bytes: ...
    def load_content(self, message_id: int, offset: int = 0, length: int | None = None) -> bytes: ...
    def _publish_items(
        self,
        queue_id: int,
        contents: tuple[object, ...],
        headers: tuple[object, ...] | None,
        start: int,
        transaction: Transaction | None,
        flags: int,
        ids: array.array[int],
        /,
    ) -> int: ...
    def _read_places(self, cursor: int, kind: type[Message], load: bool, views: bool, /) -> list[Message]: ...

class QueueCalls:
    @property
    def _id(self) -> int: ...
    def _attach(self, queue_id: int, /) -> None: ...

class TransactionCalls:
    def _attach(self, store: StoreCalls, owner: object, address: int, /) -> None: ...
    def _detach(self) -> None: ...
