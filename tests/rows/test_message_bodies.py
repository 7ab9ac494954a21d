"""A pass that is asked for bodies gives the first bytes of each message's content, the same however it is cut."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logstore
from kit.body_oracle import contents, with_bodies
from kit.placed_logs import make_placed_log
from kit.row_histories import make_history
from kit.row_oracle import message_rows
from kit.stores import SMALL_SEGMENT
from kit.torture import part_of, stride
from logstore import arrow
from logstore.errors import CorruptLog, OptionError
from logstore.holds import hold
from logstore.inspect import Reader
from logstore.rows import messages as message_scan
from logstore.rows.messages import MessageScan

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

if TYPE_CHECKING:
    from pathlib import Path

Rows = list[dict[str, Any]]
LIMITS = (100, 1 << 20)


@pytest.fixture(scope="module", params=[(0, 1), (1, 8)])
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    seed, weight = request.param
    path = tmp_path_factory.mktemp("history") / "store"
    make_history(path, seed, weight=weight)
    return path


def scan(path: Path, body: int | None, **options: Any) -> tuple[Rows, Any]:
    """The rows of ended messages, and the table of open ones."""
    options.setdefault("queue_names", arrow.queue_names(path))
    rows: Rows = []
    with MessageScan(path, body=body, **options) as found:
        for batch in found:
            assert batch.schema == found.schema
            batch.validate(full=True)
            rows += batch.to_pylist()
        left = found.open_rows()
    left.validate(full=True)
    return rows, left


def in_passes(path: Path, body: int, borders: list[int], **options: Any) -> tuple[Rows, Any]:
    """The rows of passes from border to border, each seeded with the open set of the one before."""
    rows: Rows = []
    start, left = None, None
    for border in [*borders, None]:
        more, left = scan(path, body, start_lsn=start, stop_lsn=border, seed=left, **options)
        rows += more
        start = border
    return rows, left


def open_rows(table: Any) -> Rows:
    return table.drop_columns(["state"]).to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped


def lsns_of(path: Path) -> list[int]:
    with Reader(path) as reader:
        return [record.lsn for record in reader.records()]


@pytest.mark.parametrize("limit", LIMITS)
def test_the_bodies_are_the_contents_of_the_records(history: Path, limit: int) -> None:
    closed, still_open = message_rows(history)
    of = contents(history, limit)
    for batch_rows in (1 << 16, 3):
        rows, left = scan(history, limit, batch_rows=batch_rows)
        assert rows == with_bodies(closed, of, limit)
        assert open_rows(left) == with_bodies(still_open, of, limit)
    assert sum(1 for row in rows if row["body"]) > 5


def test_the_open_messages_have_the_bodies_that_a_consumer_gets(tmp_path: Path) -> None:
    path = tmp_path / "store"
    make_history(path, 1, weight=8)
    _, left = scan(path, 1 << 20)
    bodies = {row["id"]: row["body"] for row in left.to_pylist()}
    compared = 0
    with logstore.open(path) as store:
        for name in ("one", "two", "three", "four"):
            for message in store.queue(name).browse(load=True):
                assert bodies[message.id] == message.content
                compared += 1
    assert compared > 20


def test_a_log_with_states_of_places_and_moves_gives_them(tmp_path: Path) -> None:
    for seed in (0, 1):
        path = tmp_path / str(seed)
        make_placed_log(path, seed, recycles=bool(seed))
        closed, still_open = message_rows(path)
        rows, left = scan(path, 50)
        assert rows == with_bodies(closed, contents(path, 50), 50)
        assert open_rows(left) == with_bodies(still_open, contents(path, 50), 50)


def test_a_log_that_is_read_in_passes_gives_the_bodies_of_one_pass(history: Path) -> None:
    lsns = lsns_of(history)
    chance = random.Random(5)
    for limit in LIMITS:
        rows, left = scan(history, limit)
        for count in (1, 5):
            found, found_left = in_passes(history, limit, sorted(chance.sample(lsns, count)))
            assert found == rows
            assert found_left.equals(left, check_metadata=True)


def test_every_border_of_a_log_can_be_where_a_pass_with_bodies_ends(tmp_path: Path) -> None:
    make_history(tmp_path / "store", 77, epochs=2, steps=12, weight=4)
    rows, left = scan(tmp_path / "store", 1000)
    for border in part_of(lsns_of(tmp_path / "store"), 8):
        found, found_left = in_passes(tmp_path / "store", 1000, [border])
        assert found == rows
        assert found_left.equals(left, check_metadata=True)


def test_a_pass_without_bodies_gives_all_else_the_same(history: Path) -> None:
    rows, left = scan(history, None)
    with_body, left_with_body = scan(history, 7)
    assert [{name: row[name] for name in row if name != "body"} for row in with_body] == rows
    assert left_with_body.drop_columns(["body"]).equals(left, check_metadata=False)


pieces = st.lists(st.integers(0, 5000), min_size=1, max_size=4)
acts = st.one_of(
    st.tuples(st.sampled_from(["publish", "chunks", "stage", "roll back", "commit"]), pieces),
    st.tuples(st.sampled_from(["append", "enqueue", "dequeue", "destroy"]), st.integers(0, 9)),
)


@given(acts=st.lists(acts, max_size=25), limit=st.integers(1, 12_000), cut=st.floats(0, 1))
@settings(max_examples=24 // stride(2), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_work_gives_the_bodies_of_its_messages(tmp_path: Path, acts: list[Any], limit: int, cut: float) -> None:
    path = tmp_path / "store"
    shutil.rmtree(path, ignore_errors=True)  # of the example before
    wanted = work(path, acts)
    rows, left = scan(path, limit)
    found = {row["id"]: row["body"] for row in rows + left.to_pylist()}
    assert found == {message: content[:limit] for message, content in wanted.items()}
    lsns = lsns_of(path)
    again, left_again = in_passes(path, limit, [lsns[int(cut * (len(lsns) - 1))]])
    assert again == rows
    assert left_again.equals(left, check_metadata=True)


def work(path: Path, acts: list[Any]) -> dict[int, bytes]:
    """Does this in a new store. Returns the contents of all its messages."""
    chance = random.Random(1)
    wanted: dict[int, bytes] = {}
    staged: list[int] = []
    queued: list[int] = []
    with logstore.open(path, durability="relaxed", segment_size=SMALL_SEGMENT) as store:
        store.declare_queue("q")
        for what, more in acts:
            parts = [chance.randbytes(size) for size in more] if isinstance(more, list) else []
            if what == "publish":
                queued.append(store.publish("q", b"".join(parts), wait=False))
                wanted[queued[-1]] = b"".join(parts)
            elif what == "chunks":
                queued.append(store.publish("q", parts, wait=False))
                wanted[queued[-1]] = b"".join(parts)
            elif what == "stage":
                staged.append(store.stage(b"h", parts[0], wait=False))
                wanted[staged[-1]] = parts[0]
            elif what in ("commit", "roll back"):
                transaction = store.begin()
                message = store.publish("q", b"".join(parts), transaction=transaction)
                wanted[message] = b"".join(parts)
                if what == "commit":
                    transaction.commit()
                    queued.append(message)
                else:
                    transaction.rollback()
            elif what == "append" and staged:
                content = chance.randbytes(more * 700)
                store.append_content(staged[0], content, wait=False)
                wanted[staged[0]] += content
            elif what == "enqueue" and staged:
                queued.append(staged.pop(0))
                store.enqueue(queued[-1], "q", wait=False)
            elif what == "dequeue" and queued:
                store.dequeue(queued.pop(more % len(queued)), "q", wait=False)
            elif what == "destroy" and staged:
                store.destroy(staged.pop(), wait=False)
    return wanted


def test_batches_are_limited_by_the_bytes_of_their_bodies(tmp_path: Path) -> None:
    path = tmp_path / "store"
    large = bytes(9 << 20)
    logstore.open(path).close()
    with hold(path, "witness", limit_bytes=1 << 40) as held:
        with logstore.open(path, durability="relaxed") as store:
            store.declare_queue("q")
            ids = [store.publish("q", [large, b"%d" % number]) for number in range(9)]
            for message in ids:
                store.dequeue(message, "q")
            still_open = [store.publish("q", large) for _ in range(9)]
        with MessageScan(path, queue_names={}, body=10 << 20, hold=held) as found:
            closed = [(batch.num_rows, batch.nbytes) for batch in found]
            opened = [(batch.num_rows, batch.nbytes) for batch in found.open_batches()]
    for batches in (closed, opened):
        assert sum(rows for rows, _ in batches) == len(ids) == len(still_open)
        assert len(batches) == 2
        assert max(size for _, size in batches) < 70 << 20


def test_the_bodies_of_a_seed_are_kept_in_a_file_that_ends_with_the_scan(history: Path, tmp_path: Path) -> None:
    border = lsns_of(history)[200]
    _, left = scan(history, 1000, stop_lsn=border)
    whole = scan(history, 1000, start_lsn=border, seed=left, spill_dir=tmp_path)
    batches = left.select(["id", "body"]).to_batches(max_chunksize=3)
    bare = left.drop_columns(["body"])
    again = scan(history, 1000, start_lsn=border, seed=bare, seed_bodies=batches, spill_dir=tmp_path)
    assert again[0] == whole[0]
    assert again[1].equals(whole[1], check_metadata=True)
    assert list(tmp_path.iterdir()) == []
    without = {row["id"] for row in scan(history, 1000, start_lsn=border, seed=bare)[0] if row["body"] is None}
    assert without <= set(left["id"].to_pylist())
    assert without


def test_options_of_bodies_that_cannot_be_are_refused(history: Path) -> None:
    border = lsns_of(history)[200]
    _, left = scan(history, 10, stop_lsn=border)
    for body in (0, message_scan.BODY_BYTES_MAX + 1, True):
        with pytest.raises(OptionError, match="body is a number from 1 to"):
            scan(history, body)
    foreign = pa.RecordBatch.from_pydict({"id": pa.array([1 << 40]), "body": pa.array([b"x"])})
    with pytest.raises(OptionError, match="the body of message 1099511627776 is that of no open message"):
        scan(history, 10, start_lsn=border, seed=left, seed_bodies=[foreign])


def test_content_that_is_damaged_when_it_is_read_is_an_error_that_says_where(tmp_path: Path) -> None:
    path, large = tmp_path / "store", b"x" * 100_000
    with logstore.open(path, durability="relaxed") as store:
        store.declare_queue("q")
        ids = [store.publish("q", large) for _ in range(3)]
        store.dequeue(ids[0], "q")
    with MessageScan(path, body=10, queue_names={}) as found:
        assert [row["body"] for batch in found for row in batch.to_pylist()] == [b"x" * 10]
        with Reader(path) as reader:
            segment = next(each for each in reader.segments() if each.first_lsn <= ids[2] < each.end_lsn)
        with (path / segment.name).open("r+b") as file:
            file.seek(ids[2] - segment.first_lsn + 50_000)
            file.write(b"y")
        with pytest.raises(CorruptLog, match="a record that another one refers to cannot be read"):
            found.open_rows()
