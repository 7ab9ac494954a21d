"""The log in Spark: batch reads, streams, and the export as a distributed job.

``spark.read.format("logstore").load(DIR)`` works after a call of :func:`register`; :func:`read` does both.
``docs/spark.md`` has the columns, the options and examples.

Importing this module loads neither pyspark nor pyarrow. If they or Java are missing, the functions that need them raise
:class:`MissingExtra`, which names the extra to install.

The package may import ``export``, :mod:`logstore.arrow`, ``inspect`` and the packages below those.
"""

from __future__ import annotations

from logstore.core.extras import MissingExtra
from logstore.spark.analyses import (
    bytes_by_queue,
    dead_lettered,
    everything,
    in_doubt,
    latency,
    latency_histogram,
    latency_sketches,
    merge_latency,
    pinning,
    pinning_by_queue,
    places,
    queue_depth,
    redeliveries,
    settled,
    throughput,
)
from logstore.spark.export_job import export, stream_export
from logstore.spark.java import Java, find_java, session
from logstore.spark.reading import held, pushdown_is_sound, read, read_exports, read_stream, register

__all__ = [
    "Java",
    "MissingExtra",
    "export",
    "find_java",
    "held",
    "pushdown_is_sound",
    "read",
    "read_exports",
    "read_stream",
    "register",
    "session",
    "stream_export",
    # Analyses: functions from tables to tables.
    "bytes_by_queue",
    "dead_lettered",
    "everything",
    "in_doubt",
    "latency",
    "latency_histogram",
    "latency_sketches",
    "merge_latency",
    "pinning",
    "pinning_by_queue",
    "places",
    "queue_depth",
    "redeliveries",
    "settled",
    "throughput",
]
