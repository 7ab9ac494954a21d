"""The code in README.md and docs/*.md runs as a reader pastes it: in order, from an empty directory, and once more.

tests/spark/test_pages_spark.py runs the blocks that need Spark, test_operations_page.py the commands of the operators.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from kit.pages import NOT_RUN, PAGES, Block, blocks, python_blocks, run_blocks
from kit.s3_server import s3_server
from kit.serve_process import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVERY_BLOCK = [block for page in PAGES for block in blocks(page)]
WITH_PYTHON = [page for page in PAGES if any(block.kind == "python" for block in blocks(page))]
ONCE_AND_TWICE = [1, pytest.param(2, marks=pytest.mark.slow)]
BROKER = "@localhost/"
S3 = '"s3://archive/'
NEEDED = {"docs/spark.md": ("duckdb", "polars"), "docs/analytics.md": ("duckdb", "pika", "moto", "flask")}
# What the page says in words that a block prints.
SAID = {
    "README.md": ["b'one coffee'\n", "b'two'\n"],
    "docs/api.md": ["[('tea', True)] 0\n", "b'coffee'\n", "True\n['nightly-export']\n"],
}


@pytest.mark.parametrize("block", EVERY_BLOCK, ids=lambda block: block.place)
def test_every_block_is_run_or_named_with_a_reason(block: Block) -> None:
    assert block.kind, f"{block.place} is not run by any test, and NOT_RUN has no reason for it"


@pytest.mark.parametrize(("page", "start", "reason"), NOT_RUN)
def test_every_reason_not_to_run_a_block_belongs_to_a_block(page: str, start: str, reason: str) -> None:
    matching = [block for block in blocks(page) if block.kind == reason and block.text.startswith(start)]
    assert matching, f"{page} has no block that begins with {start!r}: remove the entry"


def test_pages_show_the_output_of_each_block_or_of_none() -> None:
    for page in ("docs/analytics.md", "docs/plugin.md", "docs/spark.md"):
        assert all(block.said is not None for block in python_blocks(page)), page


def needed(page: str) -> None:
    for name in NEEDED.get(page, ()):
        try:
            __import__(name)
        except ModuleNotFoundError:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"SKIPPED LOUDLY: {name} is not installed; the examples of {page} were NOT run")


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """The variables of a program that pastes the blocks."""
    made: dict[str, Any] = {}
    yield made
    if "store" in made:
        made["store"].close()
    made.clear()
    gc.collect()


@pytest.mark.parametrize("times", ONCE_AND_TWICE)
@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_of_a_page_runs_in_order_and_a_second_time_in_the_same_directory(
    page: str, times: int, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(page)
    monkeypatch.chdir(tmp_path)
    chosen = [block for block in blocks(page) if block.kind == "python"]
    needs_broker = any(BROKER in block.text for block in chosen)
    with (
        serving(tmp_path / "data") if needs_broker else contextlib.nullcontext() as broker,
        s3_server() if any(S3 in block.text for block in chosen) else contextlib.nullcontext() as server,
    ):
        if server:
            server.address()  # makes the bucket
        for turn in range(times):
            names.clear()
            printed = run_blocks(
                chosen,
                names,
                changed=lambda text: text.replace(BROKER, f"@localhost:{broker.port}/") if broker else text,
                compare=turn == 0,  # a page shows what a new store prints
            )
            assert printed == SAID.get(page, printed)


def test_the_ten_lines_of_the_readme_are_few() -> None:
    for block in python_blocks("README.md"):
        assert len(re.findall(r"\S.*\n", block.text)) <= 12, block.place
