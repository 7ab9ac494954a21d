"""One Spark session for all tests of this folder, with a fast start and little output, and logs with every kind of
record.

Without pyspark or Java these tests are skipped with a message; if CI is set they fail instead.
"""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any

import pytest

from kit.s3_server import ENVIRONMENT
from kit.spark_logs import mixed_log
from kit.spark_needed import require_connector, require_spark
from kit.spark_workers import quick_python
from kit.stores import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.warehouse.dir": "build/spark-warehouse",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # One JVM runs all of these tests: room for all code that it compiles, or it looks for code to throw away, and for
    # classes and young objects, or it collects garbage often.
    "spark.driver.defaultJavaOptions": "-XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=400m -Xmn300m",
    # Compiling code for a query takes longer than these few rows do; test_connector.py runs with such code.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# Of the workers: credentials of a server of S3 that a test begins, and of no other. Addresses lead to it, or nowhere.
WORKERS = ENVIRONMENT | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
ENGINES = ("python", "jvm")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Both sources in turn for a test of a session; another one reads with neither, and runs once."""
    if "engine" in metafunc.fixturenames:
        asks = {"spark", "engine"} & inspect.signature(metafunc.function).parameters.keys()
        metafunc.parametrize("engine", ENGINES if asks else ENGINES[:1], indirect=True)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, in UTC, with the source registered."""
    require_spark()
    import logstore.spark

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        for name, value in WORKERS.items():
            patch.setenv(name, value)
        warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
        made = logstore.spark.session(quick=True, log_level="FATAL", conf=SETTINGS | warehouse)
    made.sparkContext.pythonExec = quick_python(tmp_path_factory.mktemp("python"))
    logstore.spark.register(made)
    yield made
    made.stop()


@pytest.fixture
def engine(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Both sources in turn: each has the name ``logstore``, and is what ``read`` reads with."""
    import logstore.spark

    if request.param == "jvm":
        require_connector()
    logstore.spark.register(spark, engine=request.param)
    yield request.param
    spark.conf.unset("spark.logstore.engine")
    logstore.spark.register(spark)


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with every kind of record in its log; tests must not change it."""
    path = tmp_path_factory.mktemp("mixed") / "store"
    mixed_log(path)
    return path


@pytest.fixture(scope="session")
def mixed_rows(mixed: Path) -> list[dict[str, Any]]:
    """Its rows, computed in plain Python."""
    from kit.row_oracle import record_rows

    return record_rows(mixed)
