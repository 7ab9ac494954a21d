"""Builds ``logstore/spark/logstore-spark.jar``, the JVM connector for Spark: Java classes and the core's scanner.

    logstore/_build_jvm.py [--out JAR]

It needs ``javac`` with its C headers (a JDK), a C compiler and Spark's own jars (pyspark, or ``SPARK_HOME``), and no
build tool. Where one is missing a line says which, and no jar is made; with ``CI=true`` that is an error. The package
works without the jar.

The library has only what a scan needs: the files of the read path, of which the linker drops what nothing uses. It is
compiled for this machine; a jar with libraries of several machines is one into which each has put its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "logstore/spark/jvm"
IN_PACKAGE = Path("logstore/spark/logstore-spark.jar")
LIBRARY = "liblogstore_scanner.so"
JAVA_RELEASE = 17
REGISTERED = ("LogSource", "NamedLogSource")

# The read path of the core; the linker drops what a scan does not use.
CORE = (
    "analysis/columns.c",
    "analysis/lookback.c",
    "analysis/lookback_digest.c",
    "analysis/rows.c",
    "analysis/rows_put.c",
    "analysis/rows_read.c",
    "format/*.c",
    "os/*.c",
    "read/damage.c",
    "read/reader.c",
    "read/scan*.c",
    "read/verdict.c",
)
EXPORTS = "{ global: Java_*; local: *; };"
FLAGS = (
    *("-std=c11", "-O3", "-flto=auto", "-D_GNU_SOURCE", "-UNDEBUG", "-pthread", "-fPIC", "-shared"),
    *("-fvisibility=hidden", "-ffunction-sections", "-fdata-sections"),
    *("-Wall", "-Wextra", "-Wconversion", "-Werror", "-Wl,--gc-sections", "-Wl,-s", "-Wl,-z,defs"),
)


class Missing(Exception):
    """Something that the jar is built with is not here; the text says what."""


def spark_jars() -> Path:
    """The directory of Spark's jars."""
    home = os.environ.get("SPARK_HOME")
    if home:
        jars = Path(home, "jars")
    else:
        found = importlib.util.find_spec("pyspark")
        if found is None or found.origin is None:
            raise Missing("Spark's jars: install pyspark, or set SPARK_HOME")
        jars = Path(found.origin).parent / "jars"
    if not any(jars.glob("spark-catalyst_*.jar")):
        raise Missing(f"Spark's jars: {jars} has none")
    return jars


def spark_version(jars: Path) -> str:
    """The version in the name of one of these jars."""
    (name, *_) = sorted(path.name for path in jars.glob("spark-catalyst_*.jar"))
    return re.sub(r"^spark-catalyst_[\d.]+-|\.jar$", "", name)


def java_home() -> Path:
    """The home of a JDK with javac, jar and jni.h."""
    given = os.environ.get("JAVA_HOME")
    programs = [Path(given, "bin", "javac")] if given else []
    on_path = shutil.which("javac")
    if on_path is not None:
        programs.append(Path(on_path))
    for program in programs:
        home = program.resolve().parent.parent
        if program.exists() and (home / "include" / "jni.h").exists() and (home / "bin" / "jar").exists():
            return home
    raise Missing("a JDK: install one of version 17 or newer, such as openjdk-17-jdk-headless, or set JAVA_HOME to it")


def compiler() -> list[str]:
    """The C compiler."""
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = shlex.split(named)
    for name in (command[0], "cc", "gcc", "clang"):
        if shutil.which(name):
            return [name, *command[1:]] if name == command[0] else [name]
    raise Missing("a C compiler: install gcc or clang")


def run(*command: object) -> None:
    """Runs a tool; its output is shown only where it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"logstore: {command[0]} failed:\n{done.stdout}{done.stderr}")


def core_files() -> list[Path]:
    """The files of the core that the library is made of."""
    return sorted(path for pattern in CORE for path in (ROOT / "csrc").glob(pattern))


def source_files() -> list[str]:
    """The files that only the connector is made of, relative to the checkout."""
    return sorted(path.relative_to(ROOT).as_posix() for path in SOURCES.iterdir() if path.suffix in {".java", ".c"})


def build(jar: Path) -> None:
    """Makes the jar. Raises :class:`Missing`."""
    home, jars, cc = java_home(), spark_jars(), compiler()
    with tempfile.TemporaryDirectory(prefix="logstore-jvm-") as made:
        classes = Path(made) / "classes"
        native = classes / "logstore" / "native" / f"linux-{platform.machine()}"
        native.mkdir(parents=True)
        exports = Path(made) / "exports"
        exports.write_text(EXPORTS)
        includes = [home / "include", home / "include" / "linux"]
        run(
            *(*cc, *FLAGS, f"-Wl,--version-script={exports}", "-Icsrc/include", "-Icsrc"),
            *(flag for path in includes for flag in ("-isystem", path)),
            *(*core_files(), SOURCES / "scanner.c", "-o", native / LIBRARY),
        )
        java = sorted(SOURCES.glob("*.java"))
        # Spark's jars name others in their manifests that are not there.
        lint = ("-Xlint:all,-path,-classfile,-processing", "-Werror", "-proc:none")
        run(
            *(home / "bin" / "javac", "--release", JAVA_RELEASE, *lint, "-cp", f"{jars}/*", "-d", classes, *java),
        )
        (classes / "logstore" / "built-with.properties").write_text(f"spark={spark_version(jars)}\n")
        services = classes / "META-INF" / "services"
        services.mkdir(parents=True)
        (services / "org.apache.spark.sql.sources.DataSourceRegister").write_text(
            "".join(f"logstore.spark.{name}\n" for name in REGISTERED)
        )
        whole = Path(made) / "whole.jar"
        # Without a manifest and with one date the same sources give the same bytes. A wheel compresses the jar as a
        # whole, which is smaller than its files one by one.
        plain = ("--create", "--no-compress", "--no-manifest", "--date=2026-01-01T00:00:00Z")
        run(home / "bin" / "jar", *plain, "--file", whole, "-C", classes, ".")
        jar.parent.mkdir(parents=True, exist_ok=True)
        staged = jar.with_suffix(".now")
        shutil.copyfile(whole, staged)
        staged.replace(jar)


def make(jar: Path) -> None:
    """Makes the jar, or says in one line why not."""
    try:
        build(jar)
    except Missing as missing:
        jar.unlink(missing_ok=True)
        print(f"logstore: SKIPPED: the JVM connector for Spark is NOT built, it needs {missing}", file=sys.stderr)
        if os.environ.get("CI") == "true":
            raise SystemExit(1) from None


def main() -> None:
    """Makes the jar in the checkout, or where ``--out`` says."""
    parser = argparse.ArgumentParser(description="Builds the JVM connector for Spark.")
    parser.add_argument("--out", type=Path, default=ROOT / IN_PACKAGE, help="where the jar goes")
    make(parser.parse_args().out)


if __name__ == "__main__":
    main()
