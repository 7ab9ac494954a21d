"""The distribution is called logstore-engine, because logstore on the package index is a different project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from logstore.core.extras import MissingExtra, require

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("logstore", "docs", "tests", "tools", "benchmarks", "csrc", ".ci")
SUFFIXES = {".py", ".pyi", ".md", ".c", ".h", ".sh", ".html", ".txt", ".toml", ""}
# A requirement of the bare name, with extras or a version, or as an argument of pip.
STRANGER = (
    re.compile(r"(?<![\w/.-])logstore(\[[a-z,]+\]|==|>=|~=)"),
    re.compile(r"\bpip[\w.]*\s+(install|download|wheel)\b[^`\n]*?[\s'\"]logstore(?![\w/.*-])"),
)


def texts() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in SUFFIXES and path.name != ".git"]
    for place in PLACES:
        found += [path for path in (ROOT / place).rglob("*") if path.is_file() and path.suffix in SUFFIXES]
    return [path for path in found if path != Path(__file__)]


def test_no_text_would_install_the_strangers_package() -> None:
    found = texts()
    assert {"README.md", "pyproject.toml", "Makefile", "extras.py", "spark.md"} <= {path.name for path in found}
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in found
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if any(pattern.search(line) for pattern in STRANGER)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'logstore[arrow]'",
        "needs `logstore[report]`; without",
        "pip install --upgrade logstore",
        "with `pip install logstore` on the driver",
        "python -m pip install -U logstore",
        "logstore>=0.1",
    ],
)
def test_the_check_finds_every_way_to_name_the_strangers_package(line: str) -> None:
    assert any(pattern.search(line) for pattern in STRANGER)


def test_the_project_is_named_so_and_its_import_is_not() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "logstore-engine"
    assert project["scripts"] == {"logstore": "logstore.cli:main"}


def test_a_missing_library_names_an_install_of_the_checkout() -> None:
    with pytest.raises(MissingExtra, match=re.escape("pip install '/path/to/checkout[arrow]'")):
        require("arrow", "no_such_library")
