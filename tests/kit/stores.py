"""Helpers for tests of a store besides the fixtures: a small segment size, and ways to read a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SMALL_SEGMENT = 512 * 1024  # the least that a user may choose


def contents(queue: Any) -> list[bytes]:
    """The messages of a queue, in order."""
    return [message.content for message in queue.browse()]


def segment_files(directory: Path) -> list[Path]:
    """The store's segments, spares included, by first LSN."""
    return sorted(directory.glob("*.seg"))
