"""A source distribution, and wheels that Pythons of the machine build from it, work outside the checkout.

With this Python and every second other one; the torture takes each.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.checkouts import checkout, need_an_index, quick_compiler
from kit.torture import part_of, tortured

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.on_disk, pytest.mark.timeout(900)]  # whole environments

WHEEL_BYTES_MAX = 2_000_000  # with debug information it has several times as many
PUBLISHED_AT_LEAST = 100

PUBLISHER = """
import logstore
with logstore.open("store") as store:
    orders = store.declare_queue("orders")
    while True:
        print(store.publish(orders, b"a" * 100), flush=True)
"""

READER = """
import sys, logstore
with logstore.open("store") as store:
    ids = {int(line) for line in sys.stdin}
    there = [each.content for each in store.declare_queue("orders").acquire(1 << 20)]
    assert len(there) >= len(ids) and set(there) == {b"a" * 100}, (len(there), len(ids))
    print(len(there))
"""


def version_of(python: Path) -> str | None:
    """CPython's version as wheels spell it, such as cp312; None if this is none, or cannot make environments."""
    says = "import ensurepip, sys, venv; print(sys.implementation.name, *sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", says], capture_output=True, text=True, check=False)
    except OSError:
        return None
    name, *version = done.stdout.split() or ["none"]
    return f"cp{''.join(version)}" if done.returncode == 0 and name == "cpython" else None


def candidates() -> Iterator[Path]:
    names = [f"python3.{minor}" for minor in range(11, 30)]
    yield Path(sys.executable)
    yield from (Path(found) for name in names if (found := shutil.which(name)))
    for root in (Path.home() / ".pyenv/versions", Path("/usr/bin"), Path("/usr/local/bin")):
        for name in names:
            yield from sorted(root.glob(f"*/bin/{name}" if root.name == "versions" else name))


@functools.cache
def pythons() -> dict[str, Path]:
    """One Python for each version from 3.11 on that this machine has, and that has its C headers."""
    found: dict[str, Path] = {}
    for python in candidates():
        version = version_of(python)
        if version is not None and version >= "cp311" and version not in found and has_headers(python):
            found[version] = python
    return found


def has_headers(python: Path) -> bool:
    where = "import sysconfig; print(sysconfig.get_path('include'))"
    done = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    return (Path(done.stdout.strip()) / "Python.h").exists()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("sdist")
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, where], cwd=checkout(where / "checkout"), stdout=subprocess.DEVNULL, check=True
    )
    (made,) = where.glob("*.tar.gz")
    return made


def check_wheel(wheel: Path, version: str) -> None:
    assert re.fullmatch(rf"logstore_engine-[\d.]+-{version}-{version}-linux_\w+\.whl", wheel.name)
    assert wheel.stat().st_size < WHEEL_BYTES_MAX
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        assert "logstore/_core.abi3.so" in names
        assert "logstore/_consensus.abi3.so" in names or os.environ.get("CI") != "true"
        assert "logstore/spark/logstore-spark.jar" in names or os.environ.get("CI") != "true"
        assert [name for name in names if name.endswith((".c", ".h", ".java"))] == []
        for name in names:
            if name.endswith(".so"):
                module = files.read(name)
                assert b".symtab" not in module, name
                assert b".debug_info" not in module, name


def test_this_machine_has_a_python_to_try() -> None:
    assert f"cp{sys.version_info[0]}{sys.version_info[1]}" in pythons()


@pytest.mark.parametrize("version", part_of(list(pythons()), 2))
def test_publish_kill_recover_verify_export_with_an_installed_wheel(
    sdist: Path, tmp_path: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    need_an_index(f"the wheel for {version} was NOT tried")
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    environment["PIP_NO_COMPILE"] = "1"  # most of what is installed is never imported
    if pythons()[version] != Path(sys.executable) and not tortured():  # one is built as it is published
        environment["CC"] = str(quick_compiler(tmp_path / "quick"))

    def run(*command: str | Path, text: str = "") -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    spark = importlib.util.find_spec("pyspark")  # no requirement of the build: it is named for the JVM connector
    if spark is not None and spark.origin is not None:
        environment["SPARK_HOME"] = str(Path(spark.origin).parent)
    run(pythons()[version], "-m", "venv", tmp_path / "venv")
    python, command = tmp_path / "venv/bin/python", tmp_path / "venv/bin/logstore"
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, sdist)
    (wheel,) = tmp_path.glob("*.whl")
    check_wheel(wheel, version)
    with capsys.disabled():
        print(f"\n{wheel.name}: {wheel.stat().st_size:,} bytes")
    run(python, "-m", "pip", "install", "-q", f"{wheel}[broker]")
    assert str(tmp_path / "venv") in run(python, "-c", "import logstore; print(logstore.__file__)")
    assert re.match(r"logstore 0\.1\.0, log format 1, core 0\.1\.0 \(", run(command, "--version"))

    with subprocess.Popen(
        [python, "-c", PUBLISHER], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        acknowledged = [child.stdout.readline() for _ in range(PUBLISHED_AT_LEAST)]
        child.send_signal(signal.SIGKILL)
        acknowledged += [line for line in child.stdout if line.endswith("\n")]
    assert child.returncode == -signal.SIGKILL

    assert json.loads(run(command, "recover", "store", "--json"))
    run(command, "verify", "store")
    assert int(run(python, "-c", READER, text="".join(acknowledged))) >= PUBLISHED_AT_LEAST

    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", "--only-binary", "pyarrow", f"{wheel}[arrow]"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "No matching distribution found for pyarrow" in installed.stderr:
        pytest.skip(f"pyarrow has no wheel for {version}: export was NOT tried with it; all else passed")
    assert installed.returncode == 0, installed.stderr
    run(command, "export", "store", "kept", "--body", "1M")
    assert list((tmp_path / "kept").rglob("*.parquet"))
