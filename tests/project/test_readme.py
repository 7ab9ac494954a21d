"""The commands and code in the README work when pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(code: str, where: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=where, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def port(tmp_path: Path):
    """The port of a broker with a store that survives kill -9."""
    command = [sys.executable, "-m", "logstore", "serve", str(tmp_path / "data"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("listening on 127.0.0.1:"), line
            yield int(line.rsplit(":", 1)[1])
        finally:
            server.kill()


def test_the_pika_lines_print_the_message_they_published(port: int, tmp_path: Path) -> None:
    (code,) = [block for block in BLOCKS if "import pika" in block]
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    assert run(code.replace("@localhost/", f"@localhost:{port}/"), tmp_path) == "b'one coffee'\n"


def test_the_library_lines_print_the_result_of_the_transaction(tmp_path: Path) -> None:
    (code,) = [block for block in BLOCKS if "import logstore\n" in block]
    assert run(code, tmp_path) == "b'two'\n"


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
