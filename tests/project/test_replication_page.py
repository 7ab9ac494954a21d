"""The page about replication names the test of each failure."""

from __future__ import annotations

import re

from kit.stores import ROOT

PAGE = (ROOT / "docs" / "replication.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
FAILURES_MIN = 12


def rows() -> list[str]:
    """Of the table of failures, without its head."""
    _, _, section = PAGE.partition("## When something fails\n")
    table = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return table[2:]


def test_every_failure_of_the_page_names_tests_that_exist() -> None:
    assert len(rows()) >= FAILURES_MIN
    missing = []
    for row in rows():
        found = NAMED.findall(row.split("|")[3])
        assert found, row
        for file, name in found:
            (path,) = (ROOT / "tests").rglob(file)
            if f"\ndef {name}(" not in path.read_text(encoding="utf-8"):
                missing.append(f"{file}::{name}")
    assert missing == []


def test_every_file_of_tests_that_the_page_names_exists() -> None:
    named = set(re.findall(r"\btest_\w+\.(?:py|c)\b", PAGE))
    assert [file for file in sorted(named) if not list(ROOT.glob(f"**/tests/**/{file}"))] == []
