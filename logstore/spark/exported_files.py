"""The Parquet files of an export, read by Spark itself through Hadoop's file systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from logstore.core.extras import MissingExtra, require

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame
    from pyspark.sql.readwriter import DataFrameReader

    from logstore.export.places import Place

__all__ = ["parquet_files"]

_ABSENT = ("No FileSystem for scheme", "FileSystem not found")  # in the texts of Hadoop


def parquet_files(reader: DataFrameReader, place: Place, names: Iterable[str]) -> DataFrame:
    """These files of an export. Raises ``MissingExtra`` if Spark has no file system for their address."""
    try:
        return reader.parquet(*(f"{place.hadoop}/{name}" for name in names))
    except (PySparkException, require("spark", "py4j.protocol").Py4JJavaError) as error:
        if not any(said in str(error) for said in _ABSENT):
            raise
        kind = place.hadoop.partition(":")[0]
        raise MissingExtra(
            f"Spark cannot read {place.hadoop}: its session has no file system of Hadoop for {kind}. Give it that jar "
            "(for s3a, org.apache.hadoop:hadoop-aws of Spark's Hadoop version in spark.jars.packages) and the "
            "credentials (spark.hadoop.fs.s3a.…); logstore.arrow.read_table needs neither"
        ) from None
