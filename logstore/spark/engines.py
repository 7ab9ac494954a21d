"""The two sources for Spark: one in Python, one in the JVM, with the same options, columns, rows and offsets.

The JVM connector is a jar, ``logstore-spark.jar`` beside this module. It is built where a JDK and Spark's jars are
there; without it the Python source does everything. :func:`~logstore.spark.session` gives the jar to the sessions that
it makes; otherwise name it in ``spark.jars``.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logstore.core import arguments
from logstore.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ENGINES", "JVM_FORMAT", "PYTHON_FORMAT", "chosen", "connector_jar", "give_name", "prepared"]

ENGINES: Final = ("jvm", "python")
JVM_FORMAT: Final = "logstore-jvm"
PYTHON_FORMAT: Final = "logstore-python"
NAMED: Final = "spark.logstore.engine"
"""The session's setting of the engine that has the format ``logstore``."""
PYTHON_OF_PLANNER: Final = "spark.logstore.python"
_SOURCE: Final = "logstore.spark.LogSource"
_JAR: Final = Path(__file__).with_name("logstore-spark.jar")

logger = logging.getLogger("logstore.spark")
_said: set[str] = set()


def connector_jar() -> Path | None:
    """The jar of the JVM connector; None if this installation has none."""
    return _JAR if _JAR.is_file() else None


def chosen(spark: SparkSession, engine: str | None, *, pushdown: bool | None = None) -> str:
    """The source for a frame: ``engine``, else that of :func:`give_name`, else ``jvm`` where the session has it.

    Without ``engine``, ``pushdown`` chooses the Python source, which alone has it.

    Raises ``OptionError`` for another engine, and for ``jvm`` where it cannot read this.
    """
    if engine is not None:
        arguments.choice("engine", engine, *ENGINES)
    if engine == "jvm" and pushdown is not None:
        raise OptionError(
            "the JVM connector always pushes conditions; pushdown is a choice of the Python source: leave it out, or "
            "read with engine='python'"
        )
    if engine == "python" or pushdown is not None or (engine is None and spark.conf.get(NAMED, None) == "python"):
        return "python"
    why = _problem(spark)
    if engine is None:
        if why:  # the jar is there, and does not work
            _say_once(f"{why}; meanwhile the Python source is used")
        return "jvm" if why == "" else "python"
    if why is None:
        raise OptionError(
            "this session has no JVM connector: "
            + (
                f"name {_JAR} in its setting spark.jars, or make the session with logstore.spark.session()"
                if connector_jar()
                else "this installation was made without a JDK; build its jar with 'make jar'"
            )
        )
    if why:
        raise OptionError(why)
    return "jvm"


def give_name(spark: SparkSession, engine: str) -> None:
    """Lets this engine have the format ``logstore`` in this session, and be the one that is read with."""
    spark.conf.set(NAMED, engine)
    if engine == "jvm":
        prepared(spark)


def prepared(spark: SparkSession) -> None:
    """Names this Python to the connector, which plans its queries with it; a server of Spark Connect has its own."""
    if not _is_remote(spark) and spark.conf.get(PYTHON_OF_PLANNER, None) is None:
        spark.conf.set(PYTHON_OF_PLANNER, sys.executable)


def _problem(spark: SparkSession) -> str | None:
    """Why the connector does not work in this session; empty if it does, None if the session does not have it."""
    try:
        jvm: Any = spark._jvm
        loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
        found = jvm.java.lang.Class.forName(_SOURCE, True, loader)
    except Exception:  # noqa: BLE001 - no such class; a session of Spark Connect has no JVM to ask
        return "" if _is_remote(spark) and _remote_has_it(spark) else None
    return str(found.newInstance().problem() or "").partition(": ")[2]


def _is_remote(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _remote_has_it(spark: SparkSession) -> bool:
    """Whether the server of a session of Spark Connect has the connector: it then refuses the lack of a path."""
    from pyspark.errors import PySparkException

    try:
        spark.read.format(JVM_FORMAT).load().schema  # noqa: B018 - asks the server
    except PySparkException as refused:
        return "OptionError" in str(refused)
    return True


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        logger.warning("%s", text)
