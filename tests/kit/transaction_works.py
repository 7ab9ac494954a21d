"""The operations of the transaction matrix, and the expected contents after each, written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import MessageStore, Transaction

QUEUES = ("a", "b", "c")
START = {"a": "x f k", "b": "y f l", "c": ""}
PLACES = {"x": "a", "y": "b", "f": "ab", "k": "a", "l": "b"}


class Bench:
    """A cell's queues and transaction, and what the work does to messages by name: their content is the name."""

    def __init__(self, store: MessageStore, cell: int, tx: Transaction | None = None) -> None:
        self.store, self.cell, self.tx = store, cell, tx
        self.ids: dict[str, int] = {
            message.content.decode(): message.id for name in QUEUES for message in store.messages(self.queue(name))
        }

    def queue(self, name: str) -> str:
        return f"{self.cell} {name}"

    def queues(self, names: Any) -> list[str]:
        return [self.queue(name) for name in names]

    def publish(self, name: str, *queues: str) -> None:
        content = name.encode()
        self.ids[name] = self.store.publish(
            self.queues(queues), content, header=b"of " + content, transaction=self.tx, wait=False
        )

    def publish_many(self, names: str, queue: str) -> None:
        contents = [name.encode() for name in names]
        headers = [b"of " + content for content in contents]
        made = self.store.publish_many(self.queue(queue), contents, headers=headers, transaction=self.tx)
        self.ids.update(zip(names, made, strict=True))

    def stage(self, name: str) -> None:
        self.ids[name] = self.store.stage(b"of " + name.encode(), name.encode())

    def enqueue(self, name: str, *queues: str) -> None:
        self.store.enqueue(self.ids[name], self.queues(queues), self.tx)

    def dequeue(self, name: str, queue: str) -> None:
        self.store.dequeue(self.ids[name], self.queue(queue), self.tx)

    def dequeue_many(self, names: str, queue: str) -> None:
        self.store.dequeue_many([self.ids[name] for name in names], self.queue(queue), self.tx)

    def move(self, name: str, source: str, target: str) -> None:
        self.dequeue(name, source)
        self.enqueue(name, target)

    def take_outside(self, name: str, *queues: str) -> None:
        """A plain dequeue, while the transaction has something else pending on the same message."""
        for queue in queues:
            self.store.dequeue(self.ids[name], self.queue(queue))


@dataclass(frozen=True)
class Work:
    """An operation, and the expected contents of the queues that it changes.

    ``!`` is locked; ``+`` is made by the commit, and so does not exist in a store that was opened before it.
    ``gone`` are the ended messages: while the outcome is pending, after a commit, after a rollback.
    """

    name: str
    do: Callable[[Bench], None]
    pending: dict[str, str]
    committed: dict[str, str]
    rolled_back: dict[str, str]
    gone: tuple[str, str, str] = ("", "", "")
    staged: str = ""  # alive after a rollback until the next open


def twice_on_two_queues(b: Bench) -> None:
    b.enqueue("x", "c")
    b.enqueue("x", "b")


def moves_of_two_messages(b: Bench) -> None:
    b.move("x", "a", "b")
    b.move("y", "b", "a")


def enqueues_of_two_messages(b: Bench) -> None:
    b.enqueue("x", "c")
    b.enqueue("y", "a")


def dequeues_of_two_messages(b: Bench) -> None:
    b.dequeue("k", "a")
    b.dequeue("l", "b")


def enqueue_of_a_staged_message(b: Bench) -> None:
    b.stage("s")
    b.enqueue("s", "c", "b")


def publish_and_dequeue(b: Bench) -> None:
    b.publish("n", "a", "c")
    b.dequeue("n", "a")
    b.dequeue("n", "c")


def enqueue_and_dequeue(b: Bench) -> None:
    b.enqueue("x", "c")
    b.dequeue("x", "c")


def dequeue_on_both_queues(b: Bench) -> None:
    b.dequeue("f", "a")
    b.dequeue("f", "b")


def there_and_back(b: Bench) -> None:
    b.move("x", "a", "c")
    b.move("x", "c", "a")


def enqueue_then_taken_outside(b: Bench) -> None:
    b.enqueue("f", "c")
    b.take_outside("f", "b", "a")


def dequeue_then_taken_outside(b: Bench) -> None:
    b.dequeue("f", "a")
    b.take_outside("f", "b")


def move_then_taken_outside(b: Bench) -> None:
    b.move("f", "a", "c")
    b.take_outside("f", "b")


WORKS = [
    Work("publish", lambda b: b.publish("n", "a"), {}, {"a": "x f k +n"}, {}, ("", "", "n")),
    Work(
        "publish to two queues", lambda b: b.publish("n", "a", "c"), {}, {"a": "x f k +n", "c": "+n"}, {}, ("", "", "n")
    ),
    Work("publish two", lambda b: b.publish_many("no", "b"), {}, {"b": "y f l +n +o"}, {}, ("", "", "no")),
    Work("enqueue", lambda b: b.enqueue("x", "c"), {}, {"c": "+x"}, {}),
    Work("enqueue on two queues", lambda b: b.enqueue("x", "c", "b"), {}, {"b": "y f l +x", "c": "+x"}, {}),
    Work("enqueue twice", twice_on_two_queues, {}, {"b": "y f l +x", "c": "+x"}, {}),
    Work("enqueue two", enqueues_of_two_messages, {}, {"a": "x f k +y", "c": "+x"}, {}),
    Work("enqueue staged", enqueue_of_a_staged_message, {}, {"b": "y f l +s", "c": "+s"}, {}, staged="s"),
    Work("dequeue", lambda b: b.dequeue("x", "a"), {"a": "x! f k"}, {"a": "f k"}, {}, ("", "x", "")),
    Work("dequeue of two places", lambda b: b.dequeue("f", "a"), {"a": "x f! k"}, {"a": "x k"}, {}),
    Work(
        "dequeue twice",
        dequeue_on_both_queues,
        {"a": "x f! k", "b": "y f! l"},
        {"a": "x k", "b": "y l"},
        {},
        ("", "f", ""),
    ),
    Work("dequeue many", lambda b: b.dequeue_many("kx", "a"), {"a": "x! f k!"}, {"a": "f"}, {}, ("", "kx", "")),
    Work(
        "dequeue two",
        dequeues_of_two_messages,
        {"a": "x f k!", "b": "y f l!"},
        {"a": "x f", "b": "y f"},
        {},
        ("", "kl", ""),
    ),
    Work("move", lambda b: b.move("x", "a", "c"), {"a": "x! f k"}, {"a": "f k", "c": "+x"}, {}),
    Work("move to the back", lambda b: b.move("x", "a", "a"), {"a": "x! f k"}, {"a": "f k +x"}, {}),
    Work("move there and back", there_and_back, {"a": "x! f k"}, {"a": "f k +x"}, {}),
    Work("move two", moves_of_two_messages, {"a": "x! f k", "b": "y! f l"}, {"a": "f k +y", "b": "f l +x"}, {}),
    Work("publish and dequeue", publish_and_dequeue, {}, {}, {}, ("", "n", "n")),
    Work("enqueue and dequeue", enqueue_and_dequeue, {}, {}, {}),
    Work(
        "enqueue, taken elsewhere meanwhile",
        enqueue_then_taken_outside,
        {"a": "x k", "b": "y l"},
        {"a": "x k", "b": "y l", "c": "+f"},
        {"a": "x k", "b": "y l"},
        ("", "", "f"),
    ),
    Work(
        "dequeue, taken elsewhere meanwhile",
        dequeue_then_taken_outside,
        {"a": "x f! k", "b": "y l"},
        {"a": "x k", "b": "y l"},
        {"b": "y l"},
        ("", "f", ""),
    ),
    Work(
        "move, taken elsewhere meanwhile",
        move_then_taken_outside,
        {"a": "x f! k", "b": "y l"},
        {"a": "x k", "b": "y l", "c": "+f"},
        {"b": "y l"},
    ),
]
