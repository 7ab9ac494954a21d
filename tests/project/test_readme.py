"""The README names targets that exist, links lead somewhere, and an import is light; test_pages.py runs the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def run(code: str, where: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=where, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("run", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def anchors(page: str) -> set[str]:
    """The headings of a page in the form of link targets."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE):
        found.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return found


def test_every_document_and_heading_that_is_linked_exists() -> None:
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text("utf-8")):
            if "://" in link:
                continue
            place, _, heading = link.partition("#")
            target = document.parent / place if place else document
            assert target.exists(), f"{document.name} links to {link}"
            assert not heading or heading in anchors(target.read_text("utf-8")), f"{document.name} links to {link}"


def test_an_import_stays_light() -> None:
    heavy = "{'sqlalchemy', 'pyarrow', 'pamqp', 'rich', 'pyspark'}"
    assert run(f"import sys, logstore; print(sorted({heavy} & set(sys.modules)))", ROOT) == "[]\n"
