"""Runs the Python blocks of docs/spark.md."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

from kit.stores import ROOT

PAGE = (ROOT / "docs" / "spark.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def run_blocks(blocks: list[tuple[str, str]], names: dict[str, Any]) -> None:
    """Each block must print the output shown below it."""
    for code, said in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/spark.md", "exec"), names)
        assert printed.getvalue() == said, code
