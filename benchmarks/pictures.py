"""Writes a matplotlib figure as a small SVG: no metadata, two decimals, one line for each axis or curve."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_GONE = re.compile(r"<!--.*?-->|<metadata>.*?</metadata>|<\?xml.*?\?>|<!DOCTYPE.*?>", re.DOTALL)
_FONTS = re.compile(r"'DejaVu Sans', [^;\"]*sans-serif")
_LONG = re.compile(r"(?<![#\w.])(-?\d+\.\d{2})\d+")


def save(figure: Any, path: Path) -> None:
    """Equal figures give equal bytes."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(small(drawn.getvalue()), encoding="utf-8")


def small(svg: str) -> str:
    """The same picture: a point is 1/72 inch, so two decimals are more than a screen shows."""
    svg = _FONTS.sub("'DejaVu Sans', sans-serif", _LONG.sub(r"\1", _GONE.sub("", svg)))
    svg = re.sub(r"\s+", " ", svg).replace("> <", "><").strip()
    return re.sub(r'(<g id="(?:axes|matplotlib|line2d|PathCollection|LineCollection|legend)_)', r"\n\1", svg) + "\n"
