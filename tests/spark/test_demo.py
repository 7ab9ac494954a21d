"""`make demo` with few messages: it loses none, writes a page, and leaves no process, also on Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from kit.spark_needed import require_spark
from kit.stores import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LASTS_S = 280
STEP_S = 0.05


def environment(tmp_path: Path, messages: int) -> dict[str, str]:
    """All that it makes is below tmp_path; so a process that it started is known by its arguments."""
    (tmp_path / "tmp").mkdir()
    return os.environ | {
        "DEMO_MESSAGES": str(messages),
        "DEMO_DIR": str(tmp_path / "out"),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


def processes_of(tmp_path: Path) -> list[str]:
    """Command lines that name the directory, of whatever runs."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                with open(f"/proc/{entry.name}/cmdline", "rb") as file:
                    line = file.read().replace(b"\0", b" ").decode("utf-8", "replace")
                with open(f"/proc/{entry.name}/environ", "rb") as file:
                    inherited = file.read().decode("utf-8", "replace")
            except OSError:
                continue  # it has gone
            if f"{tmp_path}/" in line or f"{tmp_path}/out" in inherited:
                found.append(line)
    return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    require_spark()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tools" / "demo.py")],
        env=environment(tmp_path, 2000),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def none_is_left(tmp_path: Path) -> bool:
    for _ in range(round(30 / STEP_S)):
        if not processes_of(tmp_path):
            return True
        time.sleep(STEP_S)
    return False


def test_the_demo_loses_nothing_and_leaves_a_page(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    said, _ = demo.communicate(timeout=LASTS_S)
    assert demo.returncode == 0, said
    assert re.search(r"2040 messages confirmed, 0 lost", said), said
    assert "kill -9" in said
    for word in ("What is in the log now", "Redeliveries: ", "Dead letters: ", "MB/s"):
        assert word in said, said
    lines = [line for line in said.splitlines() if not line.startswith("    /")]  # but paths
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert "…" not in said, "a table was cut"
    assert not re.search("warning|default log level", said, re.IGNORECASE), said
    consumed = re.findall(r"consumed .*?(\d+)/(\d+)", said)[-1]
    assert consumed[0] == consumed[1], "all that was to be consumed was"
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "everything that was exported" in page
    assert str(tmp_path / "out" / "report.html") in said
    assert (tmp_path / "out" / "live.html").is_file()
    assert (tmp_path / "out" / "export" / "_manifest.json").is_file()
    assert none_is_left(tmp_path), processes_of(tmp_path)
    assert [one for one in os.listdir(tmp_path / "tmp") if one.startswith("logstore-")] == []


def test_ctrl_c_ends_every_process_of_the_demo(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    assert demo.stdout is not None
    for line in demo.stdout:
        if "kill -9" in line:  # clients, and a broker that is down
            break
    os.kill(demo.pid, signal.SIGINT)
    said, _ = demo.communicate(timeout=LASTS_S)
    assert demo.returncode == 130, said
    assert "what was started is ended" in said
    assert "Traceback" not in said
    assert none_is_left(tmp_path), processes_of(tmp_path)
    assert [one for one in os.listdir(tmp_path / "tmp") if one.startswith("logstore-")] == []
