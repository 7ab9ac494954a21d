"""docs/recovery.md prints the table of csrc/read/verdict.c, row by row, in the words of verdict.h."""

from __future__ import annotations

import re

from kit.stores import ROOT

HEADER = (ROOT / "csrc/read/verdict.h").read_text()
ROWS = (ROOT / "csrc/read/verdict.c").read_text()
PAGE = (ROOT / "docs/recovery.md").read_text()
TABLE_HEAD = "| what stands there | if all of | and none of | verdict |\n| --- | --- | --- | --- |\n"


def _words(enum: str) -> dict[str, str]:
    """The text of the comment next to each constant."""
    (body,) = re.findall(rf"^enum {enum} \{{\n(.*?)^\}};", HEADER, re.DOTALL | re.MULTILINE)
    return dict(re.findall(r"^    (\w+)[^/\n]*/\* (.*) \*/$", body, re.MULTILINE))


FOUND, FACTS, VERDICTS = _words("found"), _words("fact"), _words("verdict")


def _facts(names: str) -> str:
    return "" if names == "0" else ", ".join(FACTS[name] for name in names.split(" | "))


def _reason(name: str) -> str:
    (text,) = re.findall(rf'\[{name}\] = "(.*)"', ROWS)
    return f', "{text}"' if text else ""


def table_of_the_code() -> list[str]:
    """The rows of verdict.c as lines of Markdown."""
    rows = re.findall(r"^    \{(FOUND_\w+), ([^,]+), ([^,]+), (VERDICT_\w+), (\w+)\},$", ROWS, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^    \{", ROWS, re.MULTILINE))
    lines = []
    for found, required, excluded, verdict, reason in rows:
        cells = [FOUND[found], _facts(required), _facts(excluded), VERDICTS[verdict] + _reason(reason)]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
    return lines


def test_the_page_prints_the_rows_of_the_code() -> None:
    section = PAGE.split(TABLE_HEAD)[1]
    printed = section.split("\n\n")[0].splitlines()
    assert printed == table_of_the_code(), "\n".join(["the page should print:", *table_of_the_code()])


def test_the_page_explains_each_fact() -> None:
    assert re.findall(r"^\* \*\*(.*?)\*\*: ", PAGE.split("## Why the tail is rewritten")[0], re.MULTILINE) == list(
        FACTS.values()
    )


def test_every_find_is_in_the_table_and_every_fact_decides_some_row() -> None:
    assert {found for found in FOUND if not re.search(rf"\{{{found},", ROWS)} == set()
    assert {fact for fact in FACTS if not re.search(rf"\b{fact}\b", ROWS)} == set()
