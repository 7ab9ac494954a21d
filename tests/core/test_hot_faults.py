"""Faults planted in logstore._hot, each a plausible mistake: with each of them the tests of the broken promise fail.

Each is built into a copy of the package, in which the named tests run. Without a fault they pass there.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kit.stores import ROOT
from kit.torture import part_of
from logstore import _core

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

HOT = "logstore/_hot"
FAILED = 1  # pytest's status if a test failed


class Fault(NamedTuple):
    """Replaces a text of a file, which occurs in it exactly once. ``tests`` notice that."""

    file: str
    text: str
    faulty: str
    tests: str


FAULTS = {
    "a view does not own the memory that it shows": Fault(
        "places.c",
        "PyMemoryView_FromObject(b->loaded)",
        "PyMemoryView_FromMemory(PyBytes_AS_STRING(b->loaded), PyBytes_GET_SIZE(b->loaded), PyBUF_READ)",
        "tests/store/test_messages_loaded.py",
    ),
    "a batch is settled although one of it was settled before": Fault(
        "consume.c",
        "d->queue == queue && !d->settled && !queue->deleted",
        "d->queue == queue && !queue->deleted",
        "tests/core/test_hot_queue.py tests/store/test_queue_batches.py tests/store/test_queues.py",
    ),
    "a batch that was refused keeps its marks": Fault(
        "consume.c",
        "    while (i-- > 0) {\n",
        "    while (i-- > PY_SSIZE_T_MAX) {\n",
        "tests/core/test_hot_queue.py tests/store/test_queue_batches.py",
    ),
    "a delivery keeps the mark of the one whose memory it takes": Fault(
        "delivery.c",
        "made->settled = made->detached = false;",
        "made->settled = spare && made->settled;",
        "tests/core/test_hot_queue.py",
    ),
    "a delivery that was settled releases when it is dropped": Fault(
        "delivery.c",
        "    if (self->settled) {\n        hot_recycle",
        "    if (false) {\n        hot_recycle",
        "tests/core/test_dropped_deliveries.py",
    ),
    "a place that comes back while the store's thread looks is not reported": Fault(
        "dropped.c",
        "    if (store->released != NULL) {\n        notify",
        "    if (false) {\n        notify",
        "tests/core/test_dropped_deliveries.py",
    ),
    "deliveries of a failed acquire release once more": Fault(
        "consume.c",
        "((struct delivery *)PyList_GET_ITEM(list, (Py_ssize_t)i))->settled = true;",
        "((struct delivery *)PyList_GET_ITEM(list, (Py_ssize_t)i))->settled = false;",
        "tests/core/test_dropped_deliveries.py",
    ),
    "a task whose own commit is done waits for the next one": Fault(
        "waiters.c",
        "self->waiting[self->first + count]->lsn <= end",
        "self->waiting[self->first + count]->lsn < end",
        "tests/store/test_completions.py",
    ),
    "an item of a stream is not flushed before the next is asked for": Fault(
        "publish_each.c",
        "(size_t)content->bytes, &e->times, tx, LS_TRY, id);",
        "(size_t)content->bytes, &e->times, tx, LS_TRY | LS_MORE, id);",
        "tests/store/test_publish_many.py",
    ),
    "room for ids is returned as ids": Fault(
        "publish_ids.c",
        "length > count && PySequence_DelSlice(",
        "length > count + 5000 && PySequence_DelSlice(",
        "tests/store/test_publish_many.py",
    ),
    "a move does not mark its delivery": Fault(
        "moving.c",
        "    d->settled = true;\n    int rc = make_move(",
        "    int rc = make_move(",
        "tests/core/test_hot_moving.py",
    ),
    "a transaction does not keep what it moves": Fault(
        "moving.c",
        "batch != NULL && hot_pend(state, m->transaction, batch, 1)",
        "batch != NULL",
        "tests/core/test_hot_moving.py",
    ),
    "a time is cut off, not rounded": Fault(
        "moving.c",
        "(rest > 0.5 || (rest == 0.5 && down % 2 == 1) ? 1 : 0)",
        "(rest > 1 ? 1 : 0)",
        "tests/core/test_hot_moving.py",
    ),
    "a transaction of another store is taken": Fault(
        "transaction.c",
        "return *handle != NULL && transaction->store == (const PyObject *)store;",
        "return *handle != NULL;",
        "tests/core/test_hot.py",
    ),
    "a handle of a deleted queue is taken": Fault(
        "store.c",
        "PyDict_GetItemWithError(store->queues, queue->key) != given",
        "PyDict_GetItemWithError(store->queues, queue->key) == Py_None",
        "tests/core/test_hot.py tests/store/test_queues.py",
    ),
}

CHOSEN = part_of(list(FAULTS), 5)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which a test's imports and helpers are found."""
    made = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__", "_hot*.so", "fuzz")
    for part in ("benchmarks", "csrc", "docs", "logstore", "tests", "tools"):
        shutil.copytree(ROOT / part, made / part, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "Makefile"):
        shutil.copy2(ROOT / name, made)
    return made


def build(copy: Path) -> None:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    sources = sorted(str(path) for path in (copy / HOT).glob("*.c"))
    flags = ["-std=c11", "-O1", "-g", "-D_GNU_SOURCE", "-fPIC", "-shared", "-UNDEBUG", "-Icsrc/include"]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    made = subprocess.run(
        [*compiler, *flags, f"-I{sysconfig.get_paths()['include']}", *sources, "-o", f"logstore/_hot{suffix}"],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr


def run(copy: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """In its own process, which a fault may kill or hang; freed memory is overwritten."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=60", *tests.split()]
    environment = os.environ | {"PYTHONMALLOC": "malloc_debug", "MALLOC_PERTURB_": "165", "PYTHONPATH": str(copy)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


def test_without_a_fault_the_tests_pass(copy: Path) -> None:
    build(copy)
    tests = dict.fromkeys(test for name in CHOSEN for test in FAULTS[name].tests.split())
    done = run(copy, " ".join(tests))
    assert done.returncode == 0, done.stdout
    assert str(copy) not in _core.__file__


@pytest.mark.parametrize("name", CHOSEN)
def test_a_fault_is_noticed(copy: Path, name: str) -> None:
    fault = FAULTS[name]
    path = copy / HOT / fault.file
    sound = path.read_text(encoding="utf-8")
    assert sound.count(fault.text) == 1
    path.write_text(sound.replace(fault.text, fault.faulty), encoding="utf-8")
    try:
        build(copy)
        done = run(copy, fault.tests)
    finally:
        path.write_text(sound, encoding="utf-8")
    assert done.returncode == FAILED or done.returncode < 0, done.stdout
