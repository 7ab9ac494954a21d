"""The page of figures: the part between its marks is generated from a run's JSON, never written by hand."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING

from tables import every_table

if TYPE_CHECKING:
    from pathlib import Path

BEGIN = "<!-- figures: begin, written by benchmarks/run.py --report -->"
END = "<!-- figures: end -->"


def write_page(page: Path, results: Path) -> None:
    """Tables between the marks, pictures into ``img`` beside the page."""
    if not results.is_file():
        raise SystemExit(f"run.py: there is no {results}: run `make bench` first, or name a run with --results")
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"run.py: {page} has no place for figures: it needs the lines\n{BEGIN}\n{END}")
    told = json.loads(results.read_text(encoding="utf-8"))
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit(
            "run.py: matplotlib, which draws the page's pictures, is missing: pip install '/path/to/checkout[bench]'"
        )
    from plots import draw

    lines = ["", *_conditions(told["conditions"]), ""]
    for picture in draw(told, page.parent / "img"):
        lines += [f"![{picture.stem.replace('_', ' ')}](img/{picture.name})", ""]
    for table in every_table(told):
        lines += table.markdown()
    page.write_text(before + BEGIN + "\n".join(["", *lines]) + END + after, encoding="utf-8")


def _conditions(known: dict[str, object]) -> list[str]:
    lines = []
    for name, value in known.items():
        if name == "syncs":  # a table of its own
            continue
        told = "; ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else value
        lines.append(f"* {name.replace('_', ' ')}: {told if told not in ('', []) else 'nothing'}")
    return lines
