"""The values that Python takes from the core: copies with their own memory, never views of memory that may be freed.

The commands run in processes whose allocator overwrites freed memory, so that reading it shows.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.command import spawn, told
from kit.crashed import crash
from logstore._core import ffi, lib
from logstore.core import native as _native

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT = 512 << 10
PREPARED = 10_000
OVERWRITTEN = os.environ | {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "85"}
COMMANDS = """
import json, sys
from logstore.cli import run
for command in json.loads(sys.argv[1]):
    assert run([*command, "--json"]) == 0, command
"""
IN_DOUBT = (("info",), ("queues",), ("in-doubt", "list"), ("recover", "--dry-run"))
ALL = (
    *IN_DOUBT,
    ("tail",),
    ("holds",),
    ("verify", "--thorough"),
    ("checkpoint", "--dry-run"),
    ("compact", "--dry-run"),
)


def arguments_of(command: tuple[str, ...], path: Path) -> list[str]:
    return ["in-doubt", str(path), "list"] if command == ("in-doubt", "list") else [*command, str(path)]


def overwritten(path: Path, commands: tuple[tuple[str, ...], ...]) -> list[dict[str, Any]]:
    """The output of the commands on the store, run one after the other in a process that overwrites freed memory."""
    arguments = json.dumps([arguments_of(command, path) for command in commands])
    done = spawn(arguments, program=(sys.executable, "-c", COMMANDS), env=OVERWRITTEN)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of the commands on ten thousand prepared transactions, each with one message."""
    path = tmp_path_factory.mktemp("doubtful") / "store"
    with logstore.open(path, segment_size=SEGMENT, max_prepared=PREPARED) as store:
        queue = store.declare_queue("in")
        for number in range(PREPARED):
            transaction = store.begin(logstore.Xid(1, b"order-%d" % number, b"db"))
            store.publish(queue, b"x", transaction=transaction)
            transaction.end()
            transaction.prepare(wait=False)
    return dict(zip([command[0] for command in IN_DOUBT], overwritten(path, IN_DOUBT), strict=True))


def test_info_and_queues_count_ten_thousand_prepared_transactions(doubtful: dict[str, Any]) -> None:
    assert doubtful["info"]["in_doubt"] == PREPARED
    assert [queue["name"] for queue in doubtful["queues"]["queues"]] == ["in"]


def test_in_doubt_lists_ten_thousand_prepared_transactions_with_their_work(doubtful: dict[str, Any]) -> None:
    rows = doubtful["in-doubt"]["in_doubt"]
    assert {row["readable"] for row in rows} == {f"1:order-{number}:db" for number in range(PREPARED)}
    assert {row["operations"] for row in rows} == {1}
    queue = {"id": 1, "name": "in", "enqueues": 1, "dequeues": 0, "transient": False}
    assert all(row["queues"] == [queue] for row in rows)


def test_a_dry_recovery_names_ten_thousand_prepared_transactions(doubtful: dict[str, Any]) -> None:
    assert {row["xid"] for row in doubtful["recover"]["in_doubt"]} == {
        str(logstore.Xid(1, b"order-%d" % number, b"db")) for number in range(PREPARED)
    }


BUSY = """
store.declare_queue("out")
queue = store.declare_queue("in")
first = store.publish(queue, b"1")
prepared = store.begin(logstore.Xid(7, b"g", b"b"))
store.dequeue(first, queue, prepared)
prepared.end()
prepared.prepare()
unfinished = store.begin()
store.publish(queue, b"2", transaction=unfinished)
store.stage(b"", b"never enqueued")
"""
HOLD = """
import sys
from logstore.holds import hold
with hold(sys.argv[1], "export-1") as held:
    print(*{held.name for _ in range(20)})
"""


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    """A store after a crash, with a prepared and an unfinished transaction and a staged message."""
    crash(tmp_path / "store", BUSY)
    return tmp_path / "store"


def test_every_command_says_the_same_where_freed_memory_is_overwritten(busy: Path) -> None:
    for command, said in zip(ALL, overwritten(busy, ALL), strict=True):
        assert untimed(said) == untimed(told(*arguments_of(command, busy))), command


def untimed(document: Any) -> Any:
    """The document without values that depend on the clock."""
    if isinstance(told, dict):
        return {
            name: untimed(one) for name, one in told.items() if not name.endswith(("_us", "_s", "_time", "seconds"))
        }
    return [untimed(one) for one in told] if isinstance(told, list) else told


def test_a_hold_knows_its_name_where_freed_memory_is_overwritten(busy: Path) -> None:
    assert spawn(busy, program=(sys.executable, "-c", HOLD), env=OVERWRITTEN) == (0, "export-1\n", "")


def test_a_copy_of_a_struct_outlives_it() -> None:
    made = ffi.new("ls_open_tx *", {"id": 7, "xid": {"gtrid_bytes": 2, "data": b"gb"}})
    taken = _native.copied(made[0])
    del made
    assert (taken.id, taken.xid.gtrid_bytes, taken.xid.data) == (7, 2, b"gb" + bytes(126))
    hold, holder = ffi.new("ls_hold_info *", {"name": b"export"}), ffi.new("ls_holder *")
    assert _native.copied(hold[0]).name == b"export"
    assert [item.kind for item in _native.copied(holder[0]).items] == [0] * 16


def test_the_target_of_a_pointer_is_not_copied() -> None:
    batch = ffi.new("ls_batch *")
    with pytest.raises(TypeError, match="cannot be copied"):
        _native.copied(batch[0])


@pytest.mark.parametrize("there", [0, 1, 64, 65, 1000])
def test_every_row_is_listed_though_there_are_more_than_first_thought(there: int) -> None:
    asked = []

    def read(rows: Any, room: int, count: Any) -> int:
        asked.append(room)
        count[0] = there
        for number in range(min(room, there)):
            rows[number].id = number
        return 0

    assert [row.id for row in _native.listed("ls_queue_info", read)] == list(range(there))
    assert asked == ([64] if there <= 64 else [64, there])


def test_a_list_that_cannot_be_read_raises_its_code() -> None:
    with pytest.raises(logstore.StoreError):
        _native.listed("ls_queue_info", lambda *_: lib.LS_CLOSED)


def test_a_buffer_and_its_size_are_of_one_export(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        import _testbuffer  # type: ignore[import-not-found, unused-ignore] # CPython's own tests have it
    except ImportError:
        pytest.skip("SKIPPED LOUDLY: this Python has no _testbuffer")
    changing = _testbuffer.ndarray([1] * 100, shape=[100], flags=_testbuffer.ND_VAREXPORT)

    def viewed_and_changed(data: object) -> memoryview:
        view = memoryview(data)  # type: ignore[arg-type] # a buffer
        changing.push([1], shape=[1])  # the next export is shorter
        return view

    monkeypatch.setattr(_native, "memoryview", viewed_and_changed, raising=False)
    data, size = _native.as_buffer(changing)
    assert size == len(data) == 100
