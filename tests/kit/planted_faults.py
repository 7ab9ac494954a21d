"""Faults planted into a store, each of which the model's state machine must find.

A fault replaces functions of the core, or a method of the package, through the monkeypatch that it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import logstore.store.message_store
import logstore.store.publishing
import logstore.store.queues
import logstore.store.transactions
from logstore import Deaths, Queue
from logstore._core import lib
from logstore._hot import StoreCalls
from logstore.store.message_store import MessageStore
from logstore.store.store_events import StoreEvents

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


STORE_MODULES = (
    logstore.store.message_store,
    logstore.store.publishing,
    logstore.store.queues,
    logstore.store.transactions,
)


class Faulty:
    """The core, except for the functions that a fault replaces."""

    def __init__(self, **replaced: Any) -> None:
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)


def planted(patches: pytest.MonkeyPatch, **replaced: Any) -> None:
    faulty = Faulty(**replaced)
    for name in (
        "annotate",
        "dequeue",
        "header",
        "load_content",
        "publish",
    ):  # else logstore._hot would call the core itself
        patches.setattr(MessageStore, name, getattr(MessageStore, f"_{name}_slow"))
    for module in STORE_MODULES:
        patches.setattr(module, "lib", faulty)
        for name, function in replaced.items():  # what the module has looked up once, too
            if hasattr(module, name.removeprefix("ls")):
                patches.setattr(module, name.removeprefix("ls"), function)


def a_dequeue_is_dropped_now_and_then(patches: pytest.MonkeyPatch) -> None:
    calls = 0

    def is_dropped() -> bool:
        nonlocal calls
        calls += 1
        return calls % 3 == 0

    planted(
        patches,
        ls_dequeue=lambda *arguments: 0 if is_dropped() else lib.ls_dequeue(*arguments),
    )


def a_force_does_nothing_and_says_that_all_is_durable(patches: pytest.MonkeyPatch) -> None:
    def publish(*arguments: Any) -> int:
        *others, flags, made = arguments
        return int(lib.ls_publish_timed(*others, flags & ~lib.LS_WAIT, made))

    planted(
        patches,
        ls_publish_timed=publish,
        ls_force=lambda *_: 0,
        ls_durable_lsn=lambda store: max(lib.ls_durable_lsn(store), lib.ls_next_lsn(store)),
    )


def a_commit_does_not_wait_but_says_that_it_is_durable(patches: pytest.MonkeyPatch) -> None:
    claimed: list[int] = [0]

    def commit(handle: Any, flags: int) -> int:
        code = int(lib.ls_commit(handle, 0))
        claimed[0] |= flags & lib.LS_WAIT
        return code

    planted(
        patches,
        ls_commit=commit,
        ls_durable_lsn=lambda store: lib.ls_next_lsn(store) if claimed[0] else lib.ls_durable_lsn(store),
    )


def publish_many_swaps_two(patches: pytest.MonkeyPatch) -> None:
    def publish_items(store: Any, queue: int, contents: Any, *others: Any) -> None:
        swapped = (*contents[:-2], *reversed(contents[-2:]))
        StoreCalls._publish_items(store, queue, swapped, *others)

    patches.setattr(MessageStore, "_publish_items", publish_items, raising=False)


def acquire_ignores_what_was_released(patches: pytest.MonkeyPatch) -> None:
    def release(self: Any, delivery: Any, **_: bool) -> None:
        self._check_acquired(delivery)
        delivery._settled = True  # and stays acquired

    patches.setattr(logstore.store.queues.Queue, "release", release)


def a_rollback_forgets_to_bring_back_what_consumers_passed(patches: pytest.MonkeyPatch) -> None:
    real = logstore.store.queues.Queue.acquire

    def acquire(self: Any, n: int = 1, **how: Any) -> Any:
        seen = getattr(self, "_furthest", -1)
        taken = real(self, n, **how)
        if how.get("after") is not None:
            return taken
        self._furthest = max([seen, *(each.position for each in taken)])
        return [each for each in taken if each.position > seen or each.delivery_count > 1]

    patches.setattr(logstore.store.queues.Queue, "acquire", acquire)


def a_prepare_does_not_wait_but_says_that_it_is_durable(patches: pytest.MonkeyPatch) -> None:
    claimed: list[int] = [0]

    def prepare(handle: Any, flags: int) -> int:
        code = int(lib.ls_prepare(handle, 0))
        claimed[0] |= flags & lib.LS_WAIT if code == 0 else 0
        return code

    planted(
        patches,
        ls_prepare=prepare,
        ls_durable_lsn=lambda store: lib.ls_next_lsn(store) if claimed[0] else lib.ls_durable_lsn(store),
    )


def an_open_rolls_back_what_is_in_doubt(patches: pytest.MonkeyPatch) -> None:
    real = logstore.MessageStore._serve

    def serve(self: Any, catalog: Any) -> None:
        real(self, catalog)
        for transaction in self.in_doubt():
            transaction.rollback()

    patches.setattr(logstore.MessageStore, "_serve", serve)


def an_append_is_lost_in_a_staged_message(patches: pytest.MonkeyPatch) -> None:
    def append(store: Any, key: int, content: Any, size: int, flags: int) -> int:
        return 0 if size >= 5000 else int(lib.ls_append_content(store, key, content, size, flags))

    planted(patches, ls_append_content=append)


def of_several_deaths_only_the_first_is_told(patches: pytest.MonkeyPatch) -> None:
    real = StoreEvents._deaths

    def deaths(self: Any, into: Any) -> Any:
        count, found = real(self, into)
        return count, Deaths(found.ids[:1], found.missed)

    patches.setattr(StoreEvents, "_deaths", deaths)


def who_waits_is_not_given_what_it_got(patches: pytest.MonkeyPatch) -> None:
    real = Queue._wait_as

    class Forgetful:
        def __init__(self, taker: Any) -> None:
            self.wait, self.give_back = taker.wait, taker.give_back

        def take(self, load: bool) -> list[Any]:
            return []

    patches.setattr(Queue, "_wait_as", lambda self, *how: Forgetful(real(self, *how)))


def a_batch_of_deletions_forgets_the_last(patches: pytest.MonkeyPatch) -> None:
    real = MessageStore.delete_queues

    def delete_queues(self: Any, queues: Any, *, wait: bool = True) -> None:
        real(self, list(queues)[:-1], wait=wait)

    patches.setattr(MessageStore, "delete_queues", delete_queues)


def times_of_large_messages_are_lost(patches: pytest.MonkeyPatch) -> None:
    def enqueue(store: Any, key: int, queues: Any, count: int, _: Any, *others: Any) -> int:
        return int(lib.ls_enqueue(store, key, queues, count, *others))

    planted(patches, ls_enqueue_timed=enqueue)


def a_delayed_release_is_a_plain_one(patches: pytest.MonkeyPatch) -> None:
    patches.setattr(
        Queue, "_delay", lambda self, delivery, *_: setattr(delivery, "_settled", False) or delivery.release()
    )


def what_has_expired_is_given_from_the_back(patches: pytest.MonkeyPatch) -> None:
    real = Queue.expired

    def expired(self: Any, n: int = 1) -> Any:
        held = real(self, 10**6)
        kept = held[-n:]
        for each in held[:-n]:
            each.release(unseen=True)
        return kept

    patches.setattr(Queue, "expired", expired)


FAULTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    a_dequeue_is_dropped_now_and_then,
    a_force_does_nothing_and_says_that_all_is_durable,
    a_commit_does_not_wait_but_says_that_it_is_durable,
    publish_many_swaps_two,
    acquire_ignores_what_was_released,
    a_rollback_forgets_to_bring_back_what_consumers_passed,
    an_append_is_lost_in_a_staged_message,
    a_prepare_does_not_wait_but_says_that_it_is_durable,
    an_open_rolls_back_what_is_in_doubt,
    of_several_deaths_only_the_first_is_told,
    who_waits_is_not_given_what_it_got,
    a_batch_of_deletions_forgets_the_last,
    times_of_large_messages_are_lost,
    a_delayed_release_is_a_plain_one,
    what_has_expired_is_given_from_the_back,
]
