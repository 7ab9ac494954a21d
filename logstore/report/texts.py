"""Numbers, sizes and spans of a report as texts."""

from __future__ import annotations

__all__ = ["age_text", "count_text", "depth_text", "others_text", "size_short", "span_text", "time_text", "whole"]


def whole(number: float) -> str:
    """A whole number with separated thousands."""
    return f"{number:,.0f}".replace(",", "\u202f")


def others_text(queues: int) -> str:
    """The name of what all queues without a name in a table or picture have in sum."""
    return "1 other queue" if queues == 1 else f"{whole(queues)} others together"


def size_short(size: float, _: object = None) -> str:
    """Bytes in a few characters."""
    sign, size = ("-", -size) if size < 0 else ("", size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{sign}{size:.4g} {unit}"
        size /= 1024
    return ""


def count_text(number: float, _: object = None) -> str:
    """A number in a few characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= 10 * size or (abs(number) >= size and number % (size / 10) == 0):
            return f"{number / size:.4g} {unit}"
    return f"{number:.6g}"


def span_text(us: float, _: object = None) -> str:
    """A span of time in its unit."""
    for unit, size in (("d", 86_400e6), ("h", 3600e6), ("min", 60e6), ("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"


def depth_text(depth: int | None) -> str:
    """A depth; a dash where it is not known."""
    return "–" if depth is None else whole(depth)


def time_text(iso: str | None) -> str:
    """A readable time in UTC."""
    return "not known" if iso is None else iso.replace("T", " ").replace("+00:00", "")[:23]


def age_text(seconds: float | None, at_least: bool = False) -> str:
    """An age; a dash where it is not known."""
    return "–" if seconds is None else span_text(seconds * 1e6) + (" or more" if at_least else "")
