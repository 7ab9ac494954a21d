"""Skips or fails a test where Spark or Java is missing."""

from __future__ import annotations

import os

import pytest


def require_spark() -> None:
    """Skips, or fails in CI, without what Spark needs."""
    from logstore.core.extras import MissingExtra
    from logstore.spark.java import find_java, need_pyspark

    try:
        need_pyspark()
        find_java()
    except MissingExtra as missing:
        why = f"SPARK IS NOT TESTED: {missing.message}"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)


def require_connector() -> None:
    """Skips, or fails in CI, without the jar of the JVM connector."""
    from logstore.spark.engines import connector_jar

    if connector_jar() is None:
        why = "THE JVM CONNECTOR IS NOT TESTED: its jar is not built, see 'make jar'"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
