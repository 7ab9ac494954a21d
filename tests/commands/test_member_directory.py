"""The commands at the directories of a cluster's member: its host's stands for the copy in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.command import fails, fine, run
from kit.member_process import leads, made, running

if TYPE_CHECKING:
    from pathlib import Path

READING = (("info",), ("stats",), ("queues",), ("tail",), ("in-doubt",), ("verify",), ("holds",), ("sql", "SELECT 1"))


def test_commands_that_read_take_the_directory_of_a_host_for_the_copy_in_it(tmp_path: Path) -> None:
    directory = made(tmp_path / "m1")
    with running(directory):
        leads(directory)
        for command, *more in READING:
            fine(command, directory / "main", *more)
        live = json.loads(fine("stats", directory / "main", "--json"))
    assert (live["state"], live["store"]) == ("live", str(directory / "main" / "copy-1"))
    for command, *more in READING:
        said = [timeless(fine(command, place, *more)) for place in (directory / "main", directory / "main" / "copy-1")]
        assert said[0] == said[1]


def timeless(text: str) -> list[str]:
    """Its lines without the one that says when the command looked."""
    return [line for line in text.splitlines() if not line.startswith("time ")]


def test_a_command_that_would_open_the_copy_of_a_host_is_refused_as_at_the_copy_itself(tmp_path: Path) -> None:
    directory = made(tmp_path / "m1")
    for command in (("recover",), ("serve", "--port", "0"), ("compact",)):
        said = fails_at(directory / "main", *command)
        assert "copy-1" in said
        assert said == fails_at(directory / "main" / "copy-1", *command)
    assert {path.name for path in (directory / "main").iterdir()} == {"VOTE", "copy-1"}


def fails_at(place: Path, command: str, *more: str) -> str:
    return fails(run(command, place, *more), 3)


def test_the_directory_of_the_member_itself_is_refused_and_the_error_names_a_host(tmp_path: Path) -> None:
    directory = made(tmp_path / "m 1")
    for command in ("info", "stats", "queues", "tail", "in-doubt", "verify"):
        said = fails(run(command, directory), 3)
        assert f"name one of its hosts, such as {directory}/main" in said
        assert f"`logstore cluster status --dir '{directory}'`" in said
