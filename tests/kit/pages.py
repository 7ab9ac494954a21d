"""The fenced code blocks of README.md and docs/*.md, and how each is run.

Python blocks of one page run in page order, in one namespace and one directory, as a reader would paste them. Console
blocks (`$ command`) run in tests/project/test_operations_page.py. Every other block is in `NOT_RUN`, with its reason.
"""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kit.stores import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PAGES: Final = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
OPERATIONS: Final = "docs/operations.md"
NEEDS_SPARK: Final = re.compile(r"\bspark\b")

# Page, beginning of the block, and why it is not run.
NOT_RUN: Final = (
    ("README.md", " publishers ──▶", "a picture"),
    ("docs/operations.md", "-- the oldest messages", "queries for `logstore sql`; test_sql_command.py runs them"),
    ("README.md", "make run ", "installs the package; test_commands.py compares the targets with the Makefile"),
    ("docs/architecture.md", " publish ──▶", "a picture"),
    ("docs/architecture.md", " acquire ──▶", "a picture"),
    ("docs/benchmarks.md", "make bench ", "takes ten minutes; test_commands.py compares the targets with the Makefile"),
    ("docs/broker.md", " DIR/ ", "a picture"),
    ("docs/broker.md", " clients of m1 ", "a picture"),
    ("docs/cluster.md", "m1$ logstore cluster init", "three machines; test_cluster_commands.py gives each command"),
    ("docs/cluster.md", "$ logstore cluster status", "three machines; test_cluster_commands.py gives each command"),
    ("docs/format.md", "", "pictures and listings of bytes; test_golden.py compares the listing"),
    ("docs/operations.md", "[Unit]", "a unit of systemd; test_operations_page.py runs its ExecStart"),
    ("docs/plugin.md", "  protocol, routing", "a picture"),
    ("docs/plugin.md", "[coilmq]", "a configuration; test_plugin_page.py gives it to the plug-in"),
    ("README.md", " client ──▶ broker of m1", "a picture"),
    ("README.md", "3 members run.", "the output of a command; tests/cluster/test_cluster_demo.py does what it says"),
    ("docs/replication.md", " REBUILD is written", "a picture"),
    ("docs/replication.md", " m4 runs for the first time", "a picture"),
    ("docs/replication.md", " publish ──▶", "a picture"),
    ("docs/replication.md", "DIR/cluster.toml ", "a picture"),
    ("docs/replication.md", " sender, beside its program", "a picture"),
    ("docs/replication.md", " leader:    CATALOG_CHANGE", "a picture"),
    ("docs/replication.md", "        the member's loop", "a picture"),
    ("docs/replication.md", " engine's answer", "a picture"),
    ("docs/replication.md", " receiver  ", "a picture"),
    ("docs/spark.md", "python -m logstore.spark_export DIR", "usage with brackets; test_spark_export.py runs the job"),
    ("docs/spark.md", "pip wheel", "builds a wheel and needs a cluster; test_elsewhere.py does the same"),
)


class Block(NamedTuple):
    """A fenced block."""

    page: str
    line: int  # of its first line of text
    language: str
    text: str
    said: str | None  # of a Python block: the output that the page shows below it

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def kind(self) -> str:
        """`python`, `spark`, `console`, or why it is not run; empty if nothing is known of it."""
        if self.language == "python":
            return "spark" if NEEDS_SPARK.search(self.text) else "python"
        if self.language == "" and self.text.startswith("$ ") and self.page == OPERATIONS:
            return "console"
        reasons = [reason for page, start, reason in NOT_RUN if page == self.page and self.text.startswith(start)]
        return reasons[0] if len(reasons) == 1 else ""


_FENCED: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$(?:\n\n```text\n(?P<said>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    text = (ROOT / page).read_text("utf-8")
    found = []
    for match in _FENCED.finditer(text):
        indent = match["indent"]
        lines = [line.removeprefix(indent) for line in match["text"].splitlines(keepends=True)]
        line = text.count("\n", 0, match.start("text")) + 1
        found.append(Block(page, line, match["language"], "".join(lines), match["said"]))
    return found


def python_blocks(page: str) -> list[Block]:
    """Those in Python, with and without Spark."""
    return [block for block in blocks(page) if block.language == "python"]


def run_blocks(
    chosen: Iterable[Block], names: dict[str, Any], *, changed: Callable[[str], str] = str, compare: bool = True
) -> list[str]:
    """Run Python blocks in one namespace; `changed` adapts the text to the machine. Returns what each printed.

    With `compare` each must print the output that the page shows.
    """
    printed = []
    for block in chosen:
        out = io.StringIO()
        code = "\n" * (block.line - 1) + changed(block.text)
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(code, block.page, "exec", dont_inherit=True), names)
        except Exception as error:
            error.add_note(f"in the block at {block.place}")
            raise
        if compare and block.said is not None:
            assert out.getvalue() == block.said, block.place
        printed.append(out.getvalue())
    return printed
