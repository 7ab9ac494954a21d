"""Reading the state of a store for the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import logstore
from logstore.holds import LogRecycled, list_holds
from logstore.terminal import state
from logstore.terminal.state import TRIES, UNHELD_TRIES, retried

if TYPE_CHECKING:
    from pathlib import Path


def overtaken(path: Path, times: int, held: list[int]) -> str:
    """Reads, but a writer was faster the first few times; ``held`` gets the number of holds at each try."""
    held.append(len(list_holds(path)))
    if len(held) <= times:
        raise LogRecycled("the writer was faster")
    return "read"


def test_a_reader_that_lost_the_race_against_the_writer_takes_a_hold_and_releases_it(tmp_path: Path) -> None:
    logstore.open(tmp_path / "store").close()
    held: list[int] = []
    assert retried(tmp_path / "store", lambda: overtaken(tmp_path / "store", UNHELD_TRIES, held)) == "read"
    assert held == [0] * UNHELD_TRIES + [1]
    assert list_holds(tmp_path / "store") == []


def test_a_reader_that_cannot_take_a_hold_tries_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> None:
        raise logstore.StoreError("read-only file system")

    monkeypatch.setattr(state, "hold", refused)
    logstore.open(tmp_path / "store").close()
    held: list[int] = []
    assert retried(tmp_path / "store", lambda: overtaken(tmp_path / "store", TRIES - 1, held)) == "read"
    assert held == [0] * TRIES
    with pytest.raises(LogRecycled):
        retried(tmp_path / "store", lambda: overtaken(tmp_path / "store", TRIES, []))
