"""The export as a Spark job to S3: its files have the bytes of the local export, whatever ends a run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import logstore.export
import logstore.spark
from kit.patience import wait_until
from kit.row_oracle import record_rows
from kit.s3_server import S3Server, refusing_server, s3_server
from kit.spark_logs import everything, open_small
from logstore.export import export, verify
from logstore.export.manifest import MANIFEST, STAGING, UPLOAD, ExportError
from logstore.export.places import RemotePlace, place_of
from logstore.export.target import read_manifest
from logstore.holds import list_holds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FILE_BYTES = 1 << 20
TIMEOUT_S = 240  # of a busy machine
_TOKEN = re.compile(r"-[0-9a-f]{16}(?=\.parquet$)")


@pytest.fixture(scope="module")
def s3(spark: SparkSession) -> Iterator[S3Server]:
    """The server, which is in the environment of the driver, and not in that of the workers, which are older."""
    with s3_server() as server:
        yield server


@pytest.fixture
def target(s3: S3Server) -> str:
    """An address that leads to the server also without an environment."""
    host = s3.endpoint.partition("://")[2]
    return f"{s3.address()}?endpoint_override={host}&scheme=http&region=us-east-1"


def contents(target: str) -> dict[str, bytes]:
    """The files of the datasets by the names that a local target gives them."""
    place = place_of(target)
    return {_TOKEN.sub("", name): place.read(name, size + 1)[0] for name, size in place.files().items()}


def local_contents(target: Path) -> dict[str, bytes]:
    found = {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*.parquet")}
    assert found
    return found


def left(target: str) -> list[str]:
    place = place_of(target)
    assert isinstance(place, RemotePlace)
    manifest = read_manifest(place)
    named = set() if manifest is None else {MANIFEST, *manifest.paths()}
    return sorted(place.every().keys() - named)


def test_the_job_to_s3_writes_the_bytes_of_the_local_export_and_may_alternate_with_it(
    spark: SparkSession, target: str, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    with open_small(tmp_path / "store") as store:
        everything(store, b"1 ")
        path = store.path
    for number, job in enumerate((False, True)):
        with open_small(path) as store:
            everything(store, b"run %d " % number)
        if job:
            found = logstore.spark.export(spark, path, target, file_bytes=FILE_BYTES)
        else:
            found = export(path, target, file_bytes=FILE_BYTES)
        wanted = export(path, local, file_bytes=FILE_BYTES)
        assert (found.files, found.records, found.messages, found.open, found.last_lsn) == (
            *(wanted.files, wanted.records, wanted.messages, wanted.open),
            wanted.last_lsn,
        )
        assert contents(target) == local_contents(local)
        assert left(target) == []
    assert verify(target).problems == ()


@pytest.mark.parametrize(
    ("call", "start"),
    [
        pytest.param("take", "", marks=pytest.mark.slow),
        ("take", "messages"),
        pytest.param("put", MANIFEST, marks=pytest.mark.slow),
        pytest.param("remove", STAGING, marks=pytest.mark.slow),
    ],
)
def test_a_job_that_ends_anywhere_is_completed_by_the_next_run_with_every_row_once(
    spark: SparkSession,
    target: str,
    mixed: Path,
    tmp_path: Path,
    call: str,
    start: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = getattr(RemotePlace, call)

    def dying(place: RemotePlace, name: str, to: Any = "", *rest: Any) -> Any:
        if (to if call == "take" else name).startswith(start):
            raise KeyboardInterrupt  # nothing clears up after it, as after a kill
        return real(place, name, *([] if call == "remove" else [to]), *rest)

    with monkeypatch.context() as patch:
        patch.setattr(RemotePlace, call, dying)
        with pytest.raises(KeyboardInterrupt):
            logstore.spark.export(spark, mixed, target, file_bytes=FILE_BYTES)
    found = left(target)
    assert any(name.startswith(f"{STAGING}/") for name in found)
    assert (UPLOAD in found) is (call != "remove")
    late = f"{STAGING}/late/records.staged"  # of a task that did not know of its driver's end
    staged = tmp_path / "staged"
    staged.write_bytes(b"late")
    place = place_of(target)
    assert isinstance(place, RemotePlace)
    place.put(late, staged)
    export(mixed, target, file_bytes=FILE_BYTES)
    export(mixed, tmp_path / "local", file_bytes=FILE_BYTES)
    assert contents(target) == local_contents(tmp_path / "local")
    assert left(target) == []
    assert verify(target).problems == ()


def test_a_task_that_cannot_write_there_ends_the_job_with_its_reason_in_one_line(
    spark: SparkSession, s3: S3Server, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The driver finds the server by its environment, and the workers find one by theirs that refuses everything.
    target = f"{s3.address()}?region=us-east-1"
    with refusing_server() as elsewhere:
        for name, value in elsewhere.items():
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
        with pytest.raises(ExportError) as caught:
            logstore.spark.export(spark, mixed, target)
    said = caught.value.message
    assert said.startswith(f"a task of the export to {target.partition('?')[0]} failed: ")
    assert "ACCESS_DENIED" in said
    assert "the credentials" in said
    assert "\n" not in said
    assert "Traceback" not in said
    assert left(target) == []


@pytest.mark.slow
def test_a_stream_exports_to_s3_and_its_next_start_goes_on(spark: SparkSession, target: str, tmp_path: Path) -> None:
    def follow() -> None:
        query = logstore.spark.stream_export(
            spark, store.path, target, tmp_path / "checkpoint", trigger={"availableNow": True}
        )
        assert query.awaitTermination(TIMEOUT_S)

    with open_small(tmp_path / "live") as store:
        for number in range(2):
            everything(store, b"run %d " % number)
            follow()
        wait_until(lambda: not any(one.alive for one in list_holds(store.path)), "what the queries held is let go of")
        manifest = read_manifest(target)
        assert manifest is not None
        assert verify(target).records == len(record_rows(store.path, stop_lsn=manifest.last_lsn))
