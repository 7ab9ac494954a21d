"""Finalizers may call the library while the garbage collector takes its objects apart: nothing freed is used.

``logstore._hot.Owner`` frees the core's objects: these tests make every public call while it does.
``make pytest-asan`` runs them with a core and an extension that notice every use of freed memory.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

import logstore
from kit import last_calls
from kit.stores import ROOT, SMALL_SEGMENT
from kit.torture import part_of
from logstore import _hot
from logstore._core import ffi
from logstore.core.native import owned
from logstore.holds import hold, list_holds
from logstore.inspect import Reader

ENDED_S = 600  # a process that hangs ends itself long before


def run_last_calls(place: Path, end: str, way: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kit.last_calls", str(place), end, way],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=ENDED_S,
        check=False,
    )


@pytest.mark.parametrize(("end", "way"), part_of(list(itertools.product(last_calls.ENDS, last_calls.WAYS)), 2, first=1))
def test_every_public_call_may_be_the_last_one_of_a_finalizer(tmp_path: Path, end: str, way: str) -> None:
    done = run_last_calls(tmp_path, end, way)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout)
    assert said["findings"] == []
    listed = {
        line.partition("logstore.")[2].partition("(")[0]
        for line in (ROOT / "tests/project/public_surface.txt").read_text("utf-8").splitlines()
        if line.startswith(("logstore.MessageStore.", "logstore.Queue.", "logstore.Delivery.", "logstore.Transaction."))
    }
    assert listed - set(said["called"]) == set()


class Dies:
    """Part of a cycle with what it uses; its finalizer uses that."""

    def __init__(self, use: Any) -> None:
        self.use, self.itself, self.found = use, self, []

    def __del__(self) -> None:
        SEEN.append(self.use())


SEEN: list[object] = []


def test_columns_stay_readable_for_a_finalizer_of_their_cycle(tmp_path: Path) -> None:
    arrow = pytest.importorskip("logstore.arrow")
    with logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT) as store:
        store.publish_many(store.declare_queue("q"), [b"%d" % number for number in range(100)])
    table = arrow.read(tmp_path / "store").read_all()
    expected = table.to_pydict()
    SEEN.clear()
    Dies(lambda table=table: table.to_pydict())
    del table
    gc.collect()
    assert [expected] == SEEN


def test_a_store_that_is_only_in_a_cycle_is_freed(tmp_path: Path) -> None:
    store = logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT)
    queue, transaction = store.declare_queue("q"), store.begin()
    store.publish(queue, b"")
    store.force()
    everything: list[Any] = [store, queue, transaction, queue.acquire(), iter(store.messages(queue))]
    next(everything[-1])
    everything.append(everything)
    store.close()
    left = [weakref.ref(each) for each in (store, queue, transaction)]
    del store, queue, transaction, everything
    gc.collect()
    assert [each() for each in left] == [None] * 3
    logstore.open(tmp_path / "store").close()


def test_a_cursor_keeps_the_memory_of_its_store(tmp_path: Path) -> None:
    store = logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT)
    queue = store.declare_queue("q")
    store.publish_many(queue, [b"x"] * 300)
    places = store.messages(queue)
    next(places)
    store.close()
    del store, queue
    gc.collect()
    with pytest.raises(logstore.StoreClosed):
        list(places)


def test_an_owner_frees_once_and_only_what_its_kind_makes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the core makes no elephant"):
        _hot.Owner("elephant")
    with pytest.raises(TypeError):
        _hot.Owner(kind="store")  # type: ignore[call-arg]
    logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT).close()
    reader = Reader(tmp_path / "store")
    owner = reader._owner
    owner.free()
    owner.free()
    empty, slot = owned("cursor")
    assert slot[0] == ffi.NULL
    empty.free()


def test_a_transaction_that_is_dropped_in_a_cycle_is_rolled_back_before_other_finalizers_use_it(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT) as store:
        queue = store.declare_queue("q")
        transaction = store.begin()
        store.publish(queue, b"", transaction=transaction)

        def commit(transaction: logstore.Transaction = transaction) -> object:
            try:
                return transaction.commit()
            except logstore.TransactionEnded:
                return transaction.state

        transaction.cycle = transaction  # type: ignore[attr-defined] # it is collected before the other
        SEEN.clear()
        Dies(commit)
        del transaction, commit
        gc.collect()
        assert SEEN in ([None], ["rolled_back"])  # by the order of their finalizers
        assert (queue.depth, store.stats()["transactions"]) == (int(SEEN == [None]), 0)


def test_a_forked_child_frees_nothing_of_its_parent(tmp_path: Path) -> None:
    store = logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT)
    queue = store.declare_queue("q")
    store.publish(queue, b"x")
    held = hold(tmp_path / "store", "export")
    transaction = store.begin()
    child = os.fork()
    if child == 0:
        del store, queue, held, transaction
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert [each.state for each in list_holds(tmp_path / "store")] == ["honoured"]
    held.release()
    transaction.rollback()
    assert queue.depth == 1
    store.close()
