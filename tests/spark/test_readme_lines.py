"""The README's ten lines of analysis run as printed, on the store that its ten lines of the library make."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

pytestmark = pytest.mark.spark


def test_the_lines_of_analysis_show_records_by_queue_and_latency(spark: object, tmp_path: Path) -> None:
    (library,) = [block for block in BLOCKS if "import logstore\n" in block]
    (analysis,) = [block for block in BLOCKS if "logstore.spark" in block]
    assert len([line for line in analysis.splitlines() if line.strip()]) <= 10
    for code in (library, analysis):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "MESSAGE_START" in done.stdout
    assert "orders" in done.stdout
    assert (tmp_path / "kept" / "messages").is_dir()
