"""What a Python process of Spark says when something is wrong: one line, and which setting to change."""

from __future__ import annotations

import sys
import venv
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, StreamingQueryException

import logstore.spark
from logstore.core.extras import MissingExtra
from logstore.errors import OptionError
from logstore.spark.options import Options
from logstore.spark.schema import spark_schema
from logstore.spark.source import LogReader, LogSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TIMEOUT_S = 240  # of a busy machine


@pytest.fixture
def bare_python(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Python without the packages that logstore needs, which runs Spark's workers."""
    venv.create(tmp_path / "bare")
    program = str(tmp_path / "bare" / "bin" / "python")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", program)
    logstore.spark.register(spark)
    yield program
    monkeypatch.undo()
    logstore.spark.register(spark)


def test_workers_on_a_python_without_logstore_are_told_which_setting_chooses_another(
    spark: SparkSession, mixed: Path, bare_python: str
) -> None:
    for read in (logstore.spark.read, logstore.spark.read_stream):
        with pytest.raises(MissingExtra) as missing:
            read(spark, mixed, engine="python")
        assert f"the Python of Spark's workers, {bare_python}, cannot import logstore (No module" in str(missing.value)
        assert "set the variable PYSPARK_PYTHON" in str(missing.value)
        assert f"such as {sys.executable}" in str(missing.value)
    few = logstore.spark.read(spark, mixed, columns=["lsn"], engine="python")  # Spark asks a source with a schema later
    for query in (lambda: spark.read.format("logstore").load(str(mixed)), few.count):
        with pytest.raises(AnalysisException, match=r"cannot import logstore .*spark\.pyspark\.python") as refused:
            query()
        assert "Traceback" not in str(refused.value)


def test_an_executor_without_logstore_is_told_too(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = LogReader(spark_schema(["lsn"]), Options.read({"path": str(mixed)}))
    sent = cloudpickle.dumps(reader)  # type: ignore[no-untyped-call]  # Spark's copy has no types
    assert [part.value.start_lsn for part in cloudpickle.loads(sent).partitions()]
    monkeypatch.setitem(sys.modules, "logstore.spark.source", None)
    with pytest.raises(ModuleNotFoundError, match=r"cannot import logstore .* PYSPARK_PYTHON"):
        cloudpickle.loads(sent)


def test_a_mistyped_option_or_path_and_a_write_are_answered_without_a_traceback(
    spark: SparkSession, mixed: Path, tmp_path: Path, engine: str
) -> None:
    load = spark.read.format("logstore")
    few = logstore.spark.read(spark, mixed, columns=["lsn"])
    for call, says in (
        (
            lambda: load.option("colour", "red").load(str(mixed)),
            "OptionError: the source logstore has no option colour",
        ),
        (lambda: spark.read.format("logstore").load(str(tmp_path / "no")).count(), f"NotAStore: .*{tmp_path}/no"),
        (lambda: few.write.format("logstore").mode("append").save(str(mixed)), "does not write it: publish the rows"),
    ):
        with pytest.raises(AnalysisException, match=says) as refused:
            call()
        assert "Traceback" not in str(refused.value)
    stream = spark.readStream.format("logstore").option("start", "1000000000000").load(str(mixed))
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="OptionError: the option start is 1000000000000") as ended:
        query.awaitTermination(TIMEOUT_S)
    assert "Traceback" not in str(ended.value)
    with pytest.raises(OptionError, match="does not write it: publish the rows"):
        LogSource({"path": str(mixed)}).streamWriter(spark_schema(["lsn"]), overwrite=False)
