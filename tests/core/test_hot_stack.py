"""The calls of logstore._hot in a thread with a small stack: the need that docs/api.md states is enough."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kit.stores import ROOT
from logstore import _hot

if TYPE_CHECKING:
    from pathlib import Path

SIZES = (10, 1000, 9000, 300_000)

CALLS = {
    "publish": "store.publish('q', body); store.publish(queue, body, header=b'h', wait=False)",
    "publish in a transaction": "tx = store.begin(); store.publish(queue, body, transaction=tx); tx.rollback()",
    "publish_many": "store.publish_many(queue, [body] * 5, headers=[bytearray(b'h')] * 5)",
    "publish_many of a stream": "store.publish_many(queue, (bytearray(body) for _ in range(5)))",
    "publish_many with times": "store.publish_many(queue, [body] * 5, expires=32503680000)",
    "load_content": "store.load_content(key)",
    "header": "store.header(key)",
    "enqueued_at": "queue.acquire()[0].enqueued_at",
    "messages": "list(store.messages(queue, load=True)); list(store.messages(queue, views=True))",
    "next_lsn": "store._undurable(store.next_lsn); store.durable_lsn; store.room_percent; store.nearly_full",
    "publish answered": "store._publish_answered(queue, b'h', body, 0, min(9, len(body)), -1, -1, b'confirmed')",
    "dequeue": "store.dequeue(store.publish(queue, body, wait=False), queue)",
    "annotate": "store.annotate(key, queue, b'n' * 255); store.annotate(key, queue, b'', wait=False)",
    "acquire": "[each.release() for each in queue.acquire(300, load=True)]",
    "acquire and drop": "queue.acquire(300); queue.acquire()",
    "acquire after a position": "held = queue.acquire(); queue.acquire(300, after=held[0].position, load=True)",
    "expired": "queue._acquire_expired(300, True)",
    "move": "queue.move(queue.acquire()[0], queue, header=body, note=b'n' * 255, expires=32503680000, wait=False)",
    "move in a transaction": "tx = store.begin(); queue.move(queue.acquire()[0], queue, transaction=tx); tx.commit()",
    "release to the back": "[each.release(to_back=True, wait=bool(i)) for i, each in enumerate(queue.acquire(2))]",
    "release later": "held = queue.acquire()[0]; held.expires; held.release(delay=86400)",
    "acquire_ids": "queue.acquire_ids([key, key - 1], load=True)",
    "publish and acquire": "store.publish(queue, body, acquire=True); store.publish(queue, [body, b'x'], acquire=True)",
    "accept": "queue.accept(queue.acquire()[0])",
    "detach": "queue.release(queue.acquire()[0].detach())",
    "accept_many": "queue.accept_many(queue.acquire(3, load=True), wait=False)",
    "accept_many in a tx": "tx = store.begin(); queue.accept_many(queue.acquire(), transaction=tx); tx.commit()",
    "content": "(held,) = queue.acquire(); held.unload(); held.content; held.header; held.note; held.release()",
}
"""With ``store``, ``queue``, and a message ``key`` with the content ``body``."""

PROGRAM = """
import sys, threading
import logstore

def work(call, store, queue, body, key):
    exec(call, {"store": store, "queue": queue, "body": body, "key": key})

calls, sizes = eval(sys.argv[3]), eval(sys.argv[4])
with logstore.open(sys.argv[1]) as store:
    queue = store.declare_queue("q")
    for size in sizes:
        body = bytes(size)
        keys = store.publish_many(queue, [body] * (300 if size < 100_000 else 5))
        for call in calls:
            store.publish_many(queue, [body] * 3)
            work(call, store, queue, body, keys[-1])  # outside, so that modules are imported and code is compiled
            threading.stack_size(int(sys.argv[2]))
            thread = threading.Thread(target=work, args=(call, store, queue, body, keys[-1]))
            thread.start()
            threading.stack_size(0)
            thread.join()
        queue.purge()
print("done")
"""


def stated_bytes() -> int:
    found = re.search(r"a stack of (\d+) KiB", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize("name", CALLS)
def test_a_thread_with_the_stated_stack_may_make_the_call(tmp_path: Path, name: str) -> None:
    arguments = [str(tmp_path / "store"), str(stated_bytes()), repr([CALLS[name]]), repr(SIZES)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_every_public_call_of_the_extension_is_made_here() -> None:
    made = " ".join(CALLS.values())
    classes = (_hot.StoreCalls, _hot.QueueCalls, _hot.Delivery)
    public = {name for kind in classes for name in vars(kind) if not name.startswith("_")}
    plain = {"id", "position", "queue", "size", "delivery_count", "redelivered"}  # fields
    of_python = {"reject"}  # it calls the queue's method
    assert {name for name in public - plain - of_python if f".{name}" not in made} == set()
