"""The tests' directories are in memory only where there is room, and never for a test that asks for a disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from kit import stores


@pytest.mark.on_disk
def test_a_test_that_asks_for_a_disk_is_not_in_memory(tmp_path: Path) -> None:
    assert tmp_path.is_relative_to(Path(tempfile.gettempdir()).resolve())


def test_another_test_is_where_the_run_has_chosen(tmp_path: Path) -> None:
    chosen = os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    assert tmp_path.is_relative_to(Path(chosen).resolve())


def test_without_room_nothing_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MEMORY_ROOM", 1 << 60)
    assert stores.memory_root() is None
