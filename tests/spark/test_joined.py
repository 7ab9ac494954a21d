"""An export and the log above it are one table: each row once, as the log alone would have it, while both move on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import logstore
import logstore.arrow
import logstore.spark
from kit.body_oracle import contents
from kit.exported import as_version_1, recycle
from kit.row_histories import SEGMENT, History
from kit.row_oracle import message_rows, record_rows
from kit.s3_server import s3_server
from kit.spark_logs import churn, everything, kept_whole, mixed_log, open_small
from kit.torture import part_of
from logstore.core.extras import MissingExtra
from logstore.errors import OptionError
from logstore.export import ExportDamaged, ExportGap, ExportMismatch, export, hold_for
from logstore.export.target import checked_manifest, read_manifest
from logstore.holds import list_holds
from logstore.inspect import Reader
from logstore.spark import joined

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from logstore.holds import Hold

pytestmark = pytest.mark.spark

Rows = list[dict[str, Any]]


def rows_of(frame: DataFrame, key: str = "lsn") -> Rows:
    return plain(frame.toArrow().sort_by([(key, "ascending"), ("id", "ascending")]).to_pylist())


def plain(rows: Rows) -> Rows:
    return [{name: list(value) if isinstance(value, list) else value for name, value in row.items()} for row in rows]


def nameless(rows: Rows) -> Rows:
    """The rows without the names of queues, which are those of the time of the export, and without states."""
    made = []
    for row in rows:
        kept = {name: value for name, value in row.items() if name not in ("queue", "state")}
        if "places" in kept:
            kept["places"] = nameless(kept["places"])
        made.append(kept)
    return made


def same(found: Rows, wanted: Rows) -> None:
    for one, other in zip(found, wanted, strict=False):
        assert one == other
    assert len(found) == len(wanted)


def alone(path: Path, hold: Hold | None = None) -> Rows:
    """The records as the log alone has them, computed in plain Python, without bodies."""
    columns = logstore.arrow.schema().names
    return [{name: row[name] for name in columns} for row in record_rows(path, hold=hold)]


@pytest.fixture(params=[pytest.param(joined.EAGER_BYTES, id="decoded-at-once"), pytest.param(0, id="read-by-tasks")])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Both ways of reading the log's side."""
    monkeypatch.setattr(joined, "EAGER_BYTES", request.param)
    return int(request.param)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store with every kind of record, and an export that ends in its middle."""
    place = tmp_path_factory.mktemp("joined")
    path, target = place / "store", place / "target"
    mixed_log(path)
    export(path, target)
    with open_small(path) as store:
        everything(store, b"third, ")
        for doubt in store.in_doubt()[:2]:
            doubt.commit()
    return path, target


# ---- Equality


def test_the_rows_are_those_of_the_log_alone(spark: SparkSession, half: tuple[Path, Path], way: int) -> None:
    path, target = half
    frame = logstore.spark.read(spark, path, export=target)
    log = logstore.spark.read(spark, path)
    assert frame.dtypes == log.dtypes
    same(rows_of(frame), plain(alone(path)))
    manifest = read_manifest(target)
    assert manifest is not None
    assert 0 < frame.where(f"lsn >= {manifest.last_lsn}").count() < frame.count()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in part_of([1, 2], 2))])
def test_records_messages_and_open_are_those_of_the_log_over_histories_that_recycle_it(
    spark: SparkSession, tmp_path: Path, seed: int, way: int
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    logstore.open(path, segment_size=SEGMENT).close()
    with kept_whole(path) as witness, hold_for(path, target, limit_bytes=1 << 40) as held:
        messages: list[int] = []
        for number in range(4):
            history = History(path, seed * 1000 + number, messages)
            history.settle_doubt()
            history.run(80, [1, 8, 4][seed])
            if number == 2:
                history.drop_queue()
            export(path, target, hold=held)  # in the middle, with open transactions and staged messages
            history.run(60, [1, 8, 4][seed])
            history.store.force()
            check_records(spark, path, target, witness)  # while the writer runs, which may move messages
            messages = history.messages
            history.store.compact()
            history.store.close()
        check_tables(spark, path, target, witness)


def check_tables(spark: SparkSession, path: Path, target: Path, witness: Hold) -> None:
    check_records(spark, path, target, witness)
    closed, still_open = message_rows(path, hold=witness)
    same(nameless(rows_of(logstore.spark.read(spark, path, "messages", export=target), "end_lsn")), nameless(closed))
    same(nameless(rows_of(logstore.spark.read(spark, path, "open", export=target), "id")), nameless(still_open))


def check_records(spark: SparkSession, path: Path, target: Path, witness: Hold) -> None:
    with Reader(path) as reader:
        durable_lsn = reader.last_lsn()
    found = rows_of(logstore.spark.read(spark, path, export=target))
    wanted = [row for row in plain(alone(path, witness)) if row["lsn"] <= max(found[-1]["lsn"], durable_lsn - 1)]
    for one, other in zip(found, wanted, strict=True):
        if one["type"] == "TX_DELETE" and one["outcome"] is None:
            other["outcome"] = None  # its outcome was exported by an earlier run, and is let go of
    same(nameless(found), nameless(wanted))


def test_rows_that_the_log_has_recycled_long_ago_are_part_of_the_table(
    spark: SparkSession, tmp_path: Path, way: int
) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    with kept_whole(path_of_store(path)) as witness, hold_for(path, target) as held:
        first = export(path, target, hold=held).records
        recycle(path, 4)
        export(path, target, hold=held)
        recycle(path, 2)
        wanted = plain(alone(path, witness))
        same(rows_of(logstore.spark.read(spark, path, export=target)), wanted)
        export(path, target, hold=held)
    more(path)
    with Reader(path) as reader:
        assert reader.info.base_lsn > wanted[0]["lsn"]
        assert reader.segments()[0].first_lsn > wanted[0]["lsn"]
    found = rows_of(logstore.spark.read(spark, path, export=target))
    same(found[: len(wanted)], wanted)
    assert first < len(wanted) < len(found)


def more(path: Path) -> None:
    """A few messages more, too few for the log to be recycled beyond the export."""
    with logstore.open(path) as store:
        store.dequeue_many(store.publish_many("orders", [b"more"] * 5), "orders")


def path_of_store(path: Path) -> Path:
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("orders")
        ids = list(store.publish_many(queue, [bytes(20_000)] * 60, headers=[b"head"] * 60))
        store.dequeue_many(ids[:30:2], queue)
    return path


def test_the_column_of_an_export_by_an_older_program_is_null(spark: SparkSession, tmp_path: Path) -> None:
    path, target = path_of_store(tmp_path / "store"), tmp_path / "target"
    export(path, target)
    as_version_1(target)
    with kept_whole(path) as witness:
        more(path)
        same(rows_of(logstore.spark.read(spark, path, export=target)), plain(alone(path, witness)))
        closed, _ = message_rows(path, hold=witness)
    ended = rows_of(logstore.spark.read(spark, path, "messages", export=target), "end_lsn")
    assert [row["id"] for row in ended] == [row["id"] for row in closed]


# ---- While both move on


def test_a_frame_keeps_its_rows_while_the_export_and_the_log_move_on(spark: SparkSession, tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    with open_small(path) as store, hold_for(path, target) as held:
        everything(store, b"first, ")
        store.force()
        export(path, target, hold=held)
        everything(store, b"second, ")
        store.force()
        keys = {"records": "lsn", "messages": "end_lsn", "open": "id"}
        frames = {name: logstore.spark.read(spark, path, name, export=target) for name in keys}
        before = {name: rows_of(frame, keys[name]) for name, frame in frames.items()}
        churn(store, 4)
        store.compact()
        export(path, target, hold=held)
        churn(store, 4)
        store.compact()
        after = {name: rows_of(frame, keys[name]) for name, frame in frames.items()}
        again = rows_of(logstore.spark.read(spark, path, export=target))
    assert after == before
    lsns = [row["lsn"] for row in again]
    assert len(set(lsns)) == len(lsns) > len(before["records"])


def test_a_held_table_keeps_a_long_log_from_being_recycled(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined, "EAGER_BYTES", 0)
    path, target = tmp_path / "store", tmp_path / "target"
    with open_small(path) as store:
        everything(store, b"first, ")
        store.force()
        last = export(path, target).last_lsn
        everything(store, b"second, ")
        store.force()
        with logstore.spark.held(spark, path, export=target) as frame:
            (held,) = list_holds(path)
            assert held.lsn <= last
            count = frame.count()
            churn(store, 6)
            store.compact()
            assert frame.count() == count
        assert list_holds(path) == []


def test_a_newer_manifest_is_taken_if_the_log_was_recycled_up_to_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = path_of_store(tmp_path / "store"), tmp_path / "target"
    export(path, target)
    calls: list[Any] = []

    def overtaken(place: Path) -> Any:
        found = checked_manifest(place)
        if not calls:  # the export runs, and the writer recycles, after the manifest was read
            for _ in range(2):
                with hold_for(path, target) as held:
                    recycle(path, 8)
                    export(path, target, hold=held)
        calls.append(found)
        return found

    monkeypatch.setattr("logstore.export.joined.checked_manifest", overtaken)
    frame = logstore.spark.read(spark, path, columns=["lsn"], export=target)
    assert len(calls) > 1
    (rows,) = (sum(file.rows for file in found.of("records")) for found in calls[-1:])
    assert frame.count() == frame.distinct().count() == rows


# ---- Options


def test_options_select_the_same_rows_on_both_sides(spark: SparkSession, half: tuple[Path, Path], way: int) -> None:
    path, target = half
    with Reader(path) as reader:
        base = reader.info.base_lsn
    manifest = read_manifest(target)
    assert manifest is not None
    last = manifest.last_lsn
    rows = alone(path)
    times = sorted({row["time"] for row in rows})
    ids = [row["id"] for row in rows if row["type"] == "MESSAGE_START"][::40]
    given: list[dict[str, Any]] = [
        {"start_lsn": base + 200_000, "stop_lsn": last + 50_000},
        {"start_lsn": last},
        {"stop_lsn": last},
        {"types": ["message_start", "TX_COMMIT"]},
        {"queues": ["audit"]},
        {"queue_ids": [rows[-2]["queue_id"] or 1]},
        {"ids": ids},
        {"start_time": times[len(times) // 3], "stop_time": times[-2]},
        {"startingTimestamp": times[len(times) // 3], "endingTimestamp": times[-2]},
        {"startingTimestamp": times[-1] + timedelta(seconds=1)},
    ]
    for options in given:
        found = logstore.spark.read(spark, path, export=target, columns=["lsn", "queue"], **options)
        wanted = logstore.spark.read(spark, path, columns=["lsn", "queue"], **options)
        assert sorted(found.collect()) == sorted(wanted.collect()), options


def test_columns_are_those_asked_for_in_their_order(spark: SparkSession, half: tuple[Path, Path], way: int) -> None:
    path, target = half
    columns = ["enqueue_time", "store", "Type", "properties", "headers", "lsn"]
    found = logstore.spark.read(spark, path, export=target, columns=columns)
    wanted = logstore.spark.read(spark, path, columns=columns)
    assert found.columns == wanted.columns
    assert sorted(found.collect(), key=lambda row: row["lsn"]) == sorted(wanted.collect(), key=lambda row: row["lsn"])
    ended = logstore.spark.read(spark, path, "messages", export=target, columns=["store", "id"])
    assert ended.columns == ["store", "id"]


def test_bodies_are_there_if_the_export_has_them(spark: SparkSession, tmp_path: Path, way: int) -> None:
    path, target = path_of_store(tmp_path / "store"), tmp_path / "target"
    export(path, target, body=64)
    with kept_whole(path) as witness:
        more(path)
        rows = record_rows(path, body=64, hold=witness)
    for size in (None, 10):
        found = logstore.spark.read(spark, path, export=target, columns=["lsn", "body"], body=size)
        assert sorted(found.collect()) == [
            (row["lsn"], None if row["body"] is None else bytearray(row["body"][:size])) for row in rows
        ]
    with pytest.raises(OptionError, match="bodies of at most 64 bytes: leave the column body out"):
        logstore.spark.read(spark, path, export=target, body=65)


def test_messages_have_their_bodies_if_the_export_has_them(spark: SparkSession, tmp_path: Path, way: int) -> None:
    path, target = path_of_store(tmp_path / "store"), tmp_path / "target"
    export(path, target, body=64)
    with kept_whole(path) as witness:
        more(path)
        of = contents(path, 64, hold=witness)
        tables = dict(zip(("messages", "open"), message_rows(path, hold=witness), strict=True))
    for table, rows in tables.items():
        for size in (None, 10):
            found = logstore.spark.read(spark, path, table, export=target, columns=["id", "body"], body=size)
            assert sorted(found.collect()) == sorted(
                (row["id"], bytearray(of[row["id"]][: size or 64])) for row in rows
            )
        assert "body" not in logstore.spark.read(spark, path, table, export=target).columns
        assert logstore.spark.read(spark, path, table, export=target, body=9).columns[-1] == "body"
        with pytest.raises(OptionError, match="bodies of at most 64 bytes: leave the column body out"):
            logstore.spark.read(spark, path, table, export=target, body=65)


# ---- Refusals


def test_what_cannot_be_joined_is_refused_with_what_to_do(
    spark: SparkSession, half: tuple[Path, Path], tmp_path: Path
) -> None:
    path, target = half
    other = path_of_store(tmp_path / "other")
    for kind, says, wrong in (
        (OptionError, "no export in .*: name the target", {"export": tmp_path / "none"}),
        (OptionError, "no export in", {"export": path}),
        (OptionError, "has no bodies: leave the column body out", {"export": target, "body": 5}),
        (OptionError, "as_of_lsn is for the log alone", {"export": target, "as_of_lsn": 5}),
        (OptionError, "has no option colour", {"export": target, "colour": 5}),
        (OptionError, "the log has no column nothing", {"export": target, "columns": ["nothing"]}),
        (OptionError, "there is no table 'queues'", {"export": target, "table": "queues"}),
        (OptionError, "name the target of an export in export", {"table": "messages"}),
        (OptionError, "messages has no column no", {"export": target, "table": "messages", "columns": ["no"]}),
        (OptionError, "are options of records", {"export": target, "table": "open", "types": "CLOSE"}),
        (OptionError, "leave out what begins or stops", {"export": target, "table": "open", "stop_lsn": 5}),
    ):
        with pytest.raises(kind, match=says):
            logstore.spark.read(spark, path, **wrong)
    with pytest.raises(ExportMismatch, match="holds the export of store"):
        logstore.spark.read(spark, other, export=target)


def test_a_log_that_has_left_its_export_behind_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path, target = path_of_store(tmp_path / "store"), tmp_path / "target"
    export(path, target)
    recycle(path, 12)
    with pytest.raises(ExportGap, match=r"LSN \d+ to \d+. Run `logstore export --allow-gap`") as refused:
        logstore.spark.read(spark, path, export=target)
    assert refused.value.start_lsn < refused.value.stop_lsn
    export(path, target, allow_gap=True)
    more(path)
    assert logstore.spark.read(spark, path, export=target).count() > 0


def test_a_file_that_is_gone_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path, target = path_of_store(tmp_path / "store"), tmp_path / "target"
    export(path, target)
    frame = logstore.spark.read(spark, path, export=target)
    (file,) = (target / "records").rglob("*.parquet")
    file.unlink()
    with pytest.raises(ExportDamaged, match=file.name):
        logstore.spark.read(spark, path, export=target)
    with pytest.raises(Exception, match=file.name):
        frame.count()


# ---- Places and stores


def test_directories_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "Ω [a] {b}* ?c d%41"
    place.mkdir()
    path, target = path_of_store(place / "store"), place / "target"
    export(path, target)
    with kept_whole(path) as witness:
        more(path)
        same(rows_of(logstore.spark.read(spark, path, export=target)), plain(alone(path, witness)))


def test_several_stores_are_one_table_with_a_directory_of_exports(spark: SparkSession, tmp_path: Path) -> None:
    root, paths = tmp_path / "fleet", [tmp_path / name for name in ("north", "south")]
    root.mkdir()
    for path in paths:
        path_of_store(path)
        export(path, root / f"store={path.name}")
    counts = {}
    for path in paths:
        with kept_whole(path) as witness, Reader(path) as reader:
            more(path)
            counts[str(reader.info.uuid)] = len(record_rows(path, hold=witness))
    for where in (root, [root / "store=south", root / "store=north"]):
        found = logstore.spark.read(spark, paths, export=where)
        assert {row["store"]: row["count"] for row in found.groupBy("store").count().collect()} == counts
    assert logstore.spark.read(spark, paths[0], export=root).count() == next(iter(counts.values()))
    ended = logstore.spark.read_exports(spark, root)
    assert {row["store"] for row in ended.select("store").distinct().collect()} == set(counts)
    third = path_of_store(tmp_path / "third")
    with pytest.raises(OptionError, match="none of the exports is of .*third"):
        logstore.spark.read(spark, [*paths, third], export=root)


@pytest.mark.slow
def test_a_thousand_queues_with_names_in_any_script(spark: SparkSession, tmp_path: Path, way: int) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    names = [f"{'заказы 注文 طلبات ออเดอร์ 🛒 commande’'[n % 30 :]}{n}" for n in range(1000)]
    with logstore.open(path, segment_size=SEGMENT) as store:
        queues = [store.declare_queue(name) for name in names]
        ids = [store.publish(queue, b"x", wait=False) for queue in queues]
        store.force()
        export(path, target)
        for message, queue in zip(ids[::2], queues[::2], strict=True):
            store.dequeue(message, queue, wait=False)
        store.force()
        found = rows_of(logstore.spark.read(spark, path, export=target))
        same(found, plain(alone(path)))
    assert {row["queue"] for row in found} >= set(names)


def test_a_session_without_the_file_system_of_an_address_is_told_by_name(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        churn(store, 3)
    with s3_server() as server:
        for target, kind in ((server.address(), "s3a"), ("memory://spark/kept", "memory")):
            export(path, target)
            for read in (
                lambda target=target: logstore.spark.read(spark, path, export=target),
                lambda target=target: logstore.spark.read_exports(spark, [target], "records"),
                lambda target=target: logstore.spark.read_exports(spark, target.rpartition("/")[0], "records"),
            ):
                with pytest.raises(MissingExtra, match=f"no file system of Hadoop for {kind}"):
                    read()
