"""Unusual requests for rows: without columns, without reading them, of a log that has grown since."""

from __future__ import annotations

import array
import gc
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from logstore import arrow
from logstore._core import lib
from logstore.errors import OptionError
from logstore.inspect import LogRecycled

if TYPE_CHECKING:
    from pathlib import Path

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with logstore.open(tmp_path / "store", segment_size=1 << 19) as store:
        store.declare_queue("one")
        yield store


def rows_of(store: Any, **options: Any) -> list[dict[str, Any]]:
    return arrow.read(store.path, strings="plain", **options).read_all().to_pylist()


def test_rows_are_counted_without_any_column(store: Any) -> None:
    for _ in range(9):
        store.publish("one", b"x")
    batches = list(arrow.read(store.path, columns=[], batch_rows=4))
    assert sum(batch.num_rows for batch in batches) == len(rows_of(store)) > 9
    assert all(batch.num_columns == 0 for batch in batches)


def test_a_stream_may_be_dropped_unread_or_half_read(store: Any) -> None:
    message = store.publish("one", b"x")
    store.dequeue(message, "one")
    for read in range(3):
        stream = arrow.read(store.path, batch_rows=1)
        kept = [stream.read_next_batch() for _ in range(read)]
        del stream
        gc.collect()
        assert [batch.num_rows for batch in kept] == [1] * read


def test_invalid_names_are_refused_and_nothing_is_left_behind(store: Any) -> None:
    store.publish("one", b"x")
    names: Any = {1: 5}
    with pytest.raises((TypeError, pa.ArrowException)):
        arrow.read(store.path, queue_names=names)
    gc.collect()
    assert rows_of(store, columns=["lsn"])


def test_as_of_the_first_lsn_no_transaction_has_an_outcome(store: Any) -> None:
    with store.transaction() as tx:
        store.publish("one", b"x", transaction=tx)
    assert {row["outcome"] for row in rows_of(store, as_of_lsn=0)} == {None, "open"}
    assert "committed" in {row["outcome"] for row in rows_of(store)}


def test_housekeeping_records_belong_to_no_chain(store: Any) -> None:
    store.publish("one", b"x")
    assert rows_of(store, where=arrow.Where(ids=[0])) == []


def open_set(path: Path) -> tuple[int, Any]:
    from logstore.rows.messages import MessageScan

    with MessageScan(path, queue_names={}) as scan:
        assert list(scan) == []
        return scan.stop_lsn, scan.open_rows()


def test_an_open_set_can_be_read_repeatedly(store: Any) -> None:
    from logstore.rows.messages import MessageScan

    for _ in range(5):
        store.publish("one", b"x")
    with MessageScan(store.path, queue_names={}, batch_rows=2) as scan:
        assert list(scan) == []
        assert scan.open_rows() == scan.open_rows()
        assert scan.open_rows().num_rows == 5


def test_a_pass_that_continues_in_a_recycled_part_raises(store: Any) -> None:
    from logstore.rows.messages import MessageScan

    message = store.publish("one", b"x")
    stop_lsn, seed = open_set(store.path)
    store.dequeue(message, "one")
    for _ in range(60):
        store.dequeue(store.publish("one", bytes(30000), wait=False), "one", wait=False)
    store.compact()
    store.force()
    assert rows_of(store, columns=["lsn"])[0]["lsn"] > stop_lsn  # the log has grown
    with pytest.raises(LogRecycled), MessageScan(store.path, start_lsn=stop_lsn, seed=seed, queue_names={}) as scan:
        list(scan)


def test_an_open_set_of_other_types_is_refused(store: Any) -> None:
    from logstore.rows.messages import MessageScan

    stop_lsn, _ = open_set(store.path)
    for seed in (pa.table({"id": ["1"], "state": [b"x"]}), pa.table({"id": [1], "state": ["x"]})):
        with pytest.raises(OptionError):
            MessageScan(store.path, start_lsn=stop_lsn, seed=seed, queue_names={})


@pytest.mark.parametrize("offsets", [[0, 1 << 20], [0, -1], [-64, 0], [8, 2], [0, 1 << 20, 9], [0, -9, 9]])
def test_an_open_set_whose_offsets_point_outside_its_states_is_refused(store: Any, offsets: list[int]) -> None:
    from logstore.rows.messages import MessageScan

    stop_lsn, whole = open_set(store.path)
    memory = array.array("i", [0] * len(offsets))
    rows = len(offsets) - 1
    states = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(memory), pa.py_buffer(bytes(100))])
    seed = pa.table({"id": range(1, rows + 1), "state": states}).replace_schema_metadata(whole.schema.metadata)
    memory[:] = array.array("i", offsets)  # a table is checked when it is made
    with pytest.raises(OptionError, match="offset"):
        MessageScan(store.path, start_lsn=stop_lsn, seed=seed, queue_names={})


def test_an_open_set_that_changes_while_it_is_read_counts_as_it_was_checked(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logstore.rows import messages

    for number in range(20):
        store.publish("one", b"%d" % number)
    stop_lsn, whole = open_set(store.path)
    assert whole.num_rows > 0
    whole = whole.combine_chunks()
    ids, states = whole["id"].chunk(0), whole["state"].chunk(0)
    memory = [bytearray(buffer) for buffer in (ids.buffers()[1], *states.buffers()[1:])]
    shared = [pa.py_buffer(each) for each in memory]
    seed = pa.table(
        {
            "id": pa.Array.from_buffers(pa.int64(), len(ids), [None, shared[0]], offset=ids.offset),
            "state": pa.Array.from_buffers(pa.binary(), len(states), [None, *shared[1:]], offset=states.offset),
        }
    ).replace_schema_metadata(whole.schema.metadata)

    class Changing:
        """The core, and another thread that changes the table just before the core reads it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def ls_message_rows_seed_all(self, *given: Any) -> int:
            for each in memory:
                each[:] = b"\xff" * len(each)
            return lib.ls_message_rows_seed_all(*given)

    monkeypatch.setattr(messages, "lib", Changing())
    with messages.MessageScan(store.path, start_lsn=stop_lsn, seed=seed, queue_names={}) as scan:
        assert list(scan) == []
        assert scan.open_rows()["id"].to_pylist() == whole["id"].to_pylist()
