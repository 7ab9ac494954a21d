"""Help without a network: the commands in groups, topics, and completion in shells."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import logstore
from kit.command import COMMAND, fails, fine, on_terminal, run
from logstore import commands
from logstore.cli import GROUPS, command
from logstore.commands.completion import SHELLS
from logstore.terminal.topics import TOPICS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with logstore.open(tmp_path / "store") as store:
        for name in ("orders", "orders.late", "audit", "two words", "a$b", "line\nbreak"):
            store.declare_queue(name)
    return tmp_path / "store"


# ---- Help


def test_every_command_is_in_one_group_of_the_help() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(command.commands)


def test_each_command_has_a_file_of_its_own_and_the_folder_has_no_other() -> None:
    files = {path.stem for path in Path(commands.__file__).parent.glob("*.py")}
    assert files - {"__init__"} == {name.replace("-", "_") for name in command.commands}
    for name, one in command.commands.items():
        assert one.callback is not None
        assert one.callback.__module__ == f"logstore.commands.{name.replace('-', '_')}"


def test_the_bare_command_shows_the_help() -> None:
    assert fine() == fine("--help") == fine("help")
    for title in GROUPS:
        assert f"\n{title}:\n" in fine()


def test_each_command_has_one_line_with_its_whole_summary_at_80_columns() -> None:
    shown = on_terminal(80)
    assert max(map(len, shown)) <= 80
    for name, one in command.commands.items():
        assert f"  {name:14}  {one.get_short_help_str(1000)}" in shown
    assert not any("..." in line for line in shown if not line.startswith("Usage"))


def test_help_of_a_command_is_what_its_option_shows() -> None:
    for name in command.commands:
        if name != "in-doubt":  # its option needs DIR first
            assert fine("help", name) == fine(name, "--help")
    assert fine("help", "in-doubt").startswith("Usage: logstore in-doubt ")


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_fits_80_columns_and_names_only_commands_and_options_that_exist(topic: str) -> None:
    text = fine("help", topic)
    assert max(map(len, text.splitlines())) <= 80
    known = {option for one in command.commands.values() for made in one.params for option in made.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", text)) <= known
    for name in re.findall(r"\blogstore ([a-z-]+) DIR", text):
        assert name in command.commands
    assert topic in fine()


def test_an_unknown_topic_is_misuse_and_the_error_names_one_like_it() -> None:
    assert "there is 'salvage'; 'logstore help' lists them" in fails(run("help", "salvag"), 2)
    assert "there is no command or topic 'qqq'" in fails(run("help", "qqq"), 2)


def test_the_export_in_spark_names_itself_as_it_is_called() -> None:
    said = subprocess.run([sys.executable, "-m", "logstore.spark_export"], capture_output=True, text=True, check=False)
    assert said.stderr.endswith("(see 'python -m logstore.spark_export --help')\n")
    assert said.returncode == 2


# ---- Completion


def completed(*words: object) -> list[str]:
    """What bash is offered for the last of these words."""
    line = shlex.join(map(str, words[:-1])) + f" {words[-1]}"
    asks = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_LOGSTORE_COMPLETE": "bash_complete"}
    done = subprocess.run(COMMAND, env={**os.environ, **asks}, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [one.partition(",")[2] for one in done.stdout.splitlines() if one]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_printed_and_the_shell_takes_it(shell: str) -> None:
    script = fine("completion", shell)
    assert f"_LOGSTORE_COMPLETE={shell}_complete" in script
    if shutil.which(shell) is not None:  # bash always; the others where they are installed
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_another_shell_is_misuse() -> None:
    assert "'tcsh'" in fails(run("completion", "tcsh"), 2)


def test_commands_options_verbs_and_topics_are_completed(path: Path) -> None:
    assert completed("logstore", "re") == ["recover", "repair-catalog", "report"]
    assert "--dry-run" in completed("logstore", "purge", "--")
    assert completed("logstore", "in-doubt", path, "") == ["commit", "list", "rollback"]
    assert completed("logstore", "completion", "") == list(SHELLS)
    assert completed("logstore", "help", "per") == ["permissions"]


@pytest.mark.parametrize("name", ["peek", "purge"])
def test_queues_of_the_store_are_completed_unless_a_shell_would_take_the_name_apart(path: Path, name: str) -> None:
    assert completed("logstore", name, path, "or") == ["orders", "orders.late"]
    assert completed("logstore", name, path, "") == ["audit", "orders", "orders.late"]


def test_completion_says_nothing_of_a_directory_that_is_no_store(tmp_path: Path) -> None:
    assert completed("logstore", "peek", tmp_path / "none", "") == []
    (tmp_path / "empty").mkdir()
    assert completed("logstore", "purge", tmp_path / "empty", "") == []


def test_bash_completes_a_queue_with_the_printed_script(path: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "logstore"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    script = (
        f"{fine('completion', 'bash')}\nCOMP_WORDS=(logstore peek {path} or)\nCOMP_CWORD=3\n"
        '_logstore_completion logstore\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    searched = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(["bash"], input=script, env=searched, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["orders", "orders.late"]
