"""tools/install.py turns pip's output into plain lines."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from kit.stores import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TOOL = ROOT / "tools" / "install.py"


def installed(tmp_path: Path, pip: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the tool with a module in pip's place that does this."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "install.py").write_bytes(TOOL.read_bytes())
    (tmp_path / "pip.py").write_text(pip)
    return subprocess.run(
        [sys.executable, tmp_path / "tools" / "install.py", "the tools", *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_says_what_is_under_way(tmp_path: Path) -> None:
    output = """Collecting click>=8.1
  Downloading click-8.5.1-py3-none-any.whl (126 kB)
Collecting pyspark
  Downloading pyspark-4.2.0.tar.gz (434.2 MB)
  Downloading small-1.0-py3-none-any.whl (9.9 MB)
  Building wheel for pyspark (pyproject.toml): started
Installing collected packages: click, small, pyspark
Successfully installed click-8.5.1"""
    done = installed(tmp_path, f"print({output!r})")
    assert done.stdout.splitlines() == [
        "logstore: downloading and installing the tools",
        "logstore: downloading pyspark-4.2.0.tar.gz (434 MB)",
        "logstore: building pyspark",
        "logstore: installing 3 packages",
    ]
    assert (done.stderr, done.returncode) == ("", 0)
    assert (tmp_path / "build" / "pip.log").read_text() == output + "\n"


def test_it_says_how_many_packages_were_found_every_fifty(tmp_path: Path) -> None:
    done = installed(tmp_path, "for n in range(120): print('Collecting', n)")
    assert done.stdout.splitlines()[1:] == [
        "logstore: 50 packages found so far",
        "logstore: 100 packages found so far",
    ]


def test_each_line_is_said_before_pip_writes_its_next(tmp_path: Path) -> None:
    waits = (
        "import pathlib, sys; print('Installing collected packages: a', flush=True); sys.stdin.read(1); print('more')"
    )
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "install.py").write_bytes(TOOL.read_bytes())
    (tmp_path / "pip.py").write_text(waits)
    with subprocess.Popen(
        [sys.executable, tmp_path / "tools" / "install.py", "the tools"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "logstore: downloading and installing the tools\n"
        assert child.stdout.readline() == "logstore: installing 1 package\n"
        child.stdin.close()
    assert child.returncode == 0


def test_without_an_index_it_says_in_one_line_what_failed_and_what_to_do(tmp_path: Path) -> None:
    """The real pip: ``--target`` lets it look for a package that is installed here."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "install.py").write_bytes(TOOL.read_bytes())
    (tmp_path / "constraints.txt").touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_RETRIES": "1"}
    done = subprocess.run(
        [sys.executable, tmp_path / "tools" / "install.py", "the tools", "--target", tmp_path / "target", "click"],
        env=environment | nowhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "logstore: downloading and installing the tools",
        "logstore: the package index does not answer; pip tries again",
    ]
    assert done.stderr == (
        "logstore: click could not be downloaded, because the package index cannot be reached: connect to a network "
        "and try again, or name a directory of wheels with PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR "
        "(pip's output: build/pip.log)\n"
    )
    assert done.returncode == 1


def test_another_failure_is_pips_last_error_in_one_line(tmp_path: Path) -> None:
    pip = "import sys; print('ERROR: first'); print('  trace'); print('ERROR: No space left.'); sys.exit(1)"
    done = installed(tmp_path, pip)
    assert done.stderr == "logstore: No space left (pip's output: build/pip.log)\n"
    assert done.returncode == 1
