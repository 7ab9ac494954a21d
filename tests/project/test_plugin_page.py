"""The tables, calls and settings in docs/plugin.md are those of the code; test_pages.py runs its Python."""

from __future__ import annotations

import configparser
import inspect
import re
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.stores import ROOT
from logstore.plugins import coilmq as plugin
from logstore.replay import Receiver

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

PAGE = (ROOT / "docs" / "plugin.md").read_text()
SURFACE = (ROOT / "tests" / "project" / "public_surface.txt").read_text()
# What a name before the dot stands for in the tables.
KINDS = {
    "logstore": "logstore",
    "store": "logstore.MessageStore",
    "queue": "logstore.Queue",
    "delivery": "logstore.Delivery",
    "message": "logstore.Message",
    "transaction": "logstore.Transaction",
    "receiver": "logstore.replay.Receiver",
}
BROKERS = ("Apache Qpid Broker-J", "ActiveMQ Classic", "ActiveMQ Artemis", "RabbitMQ")


def section(title: str) -> str:
    """The text below the heading, to the next one of its level or above."""
    level = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.MULTILINE)
    assert level is not None, title
    text = PAGE[level.end() :]
    end = re.search(rf"^#{{1,{len(level[1])}}} ", text, re.MULTILINE)
    return text if end is None else text[: end.start()]


def rows(text: str) -> list[list[str]]:
    """The cells of the tables' rows, without their heads."""
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    heads = {at - 1 for at, row in enumerate(cells) if set(row[0]) <= set("- |")}
    return [row for at, row in enumerate(cells) if at not in heads and at - 1 not in heads]


def calls(text: str) -> list[tuple[str, str, list[str]]]:
    """The calls of this package in a text: object, name, and the names of keyword arguments."""
    found = []
    for code in re.findall(r"`([^`]+)`", text):
        for kind, name, arguments in re.findall(r"\b([a-z]+)\.(\w+)(?:\(([^)]*)\)?)?", code):
            if kind in KINDS:
                found.append((kind, name, re.findall(r"(\w+)=", arguments)))
    return found


@pytest.mark.parametrize("title", [*BROKERS, "Which call for which event"])
def test_every_call_that_a_table_names_is_public_and_takes_the_arguments_that_it_names(title: str) -> None:
    named = [call for row in rows(section(title)) for call in calls(" ".join(row[1:]))]
    assert len(named) > 20
    for kind, name, arguments in named:
        found = re.search(rf"^{re.escape(KINDS[kind])}\.{name}(\(.*\))?(:.*)?$", SURFACE, re.MULTILINE)
        assert found is not None, f"{kind}.{name} is not public"
        taken = re.findall(r"(\w+)(?=[=,)])", found[1] or "")
        assert set(arguments) <= set(taken), f"{kind}.{name} takes {taken}"


@pytest.mark.parametrize("title", BROKERS)
def test_every_row_for_a_broker_has_a_call_or_says_plainly_that_there_is_none(title: str) -> None:
    for theirs, here in rows(section(title)):
        assert re.match(r"`\w", theirs), theirs
        assert calls(here) or here.startswith(("nothing: ", "not here: ", "`replay(store, receiver)`")), here


def test_the_table_of_callbacks_is_the_receivers_methods_in_their_order() -> None:
    table = re.findall(r"^\| \d \| `(\w+)\((.*?)\)` \|", PAGE, re.MULTILINE)
    methods = [(name, inspect.signature(method)) for name, method in inspect.getmembers(Receiver, inspect.isfunction)]
    public = {name: list(signature.parameters)[1:] for name, signature in methods if not name.startswith("_")}
    assert [name for name, _ in table] == [name for name in vars(Receiver) if name in public]
    assert {name: [word.strip() for word in words.split(",")] for name, words in table} == public


def test_every_error_of_the_tree_is_in_the_table_or_below_one_that_is() -> None:
    section = PAGE.split("## Errors", 1)[1].split("```python", 1)[0]
    named = {word for word in re.findall(r"`(\w+)`", section) if hasattr(logstore, word)}
    tree = {
        name: kind
        for name, kind in vars(logstore).items()
        if isinstance(kind, type) and issubclass(kind, logstore.StoreError)
    }
    missing = {
        name
        for name, kind in tree.items()
        if kind is not logstore.StoreError
        and not {parent.__name__ for parent in kind.__mro__} & (named - {"StoreError"})
    }
    assert missing == set()


def test_the_settings_for_coilmq_are_ones_that_the_plug_in_takes(tmp_path: Path) -> None:
    (text,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    assert "/var/lib/coilmq/store" in text
    settings = configparser.ConfigParser()
    settings.read_string(re.sub(r"^; (\S+ = )", r"\1", text, flags=re.MULTILINE))
    settings.set("coilmq", "qstore.logstore.data_dir", str(tmp_path / "store"))
    plugin.make_scheduler(settings)
    plugin.make_store(settings).close()


def test_every_option_of_open_that_the_page_names_for_coilmq_is_one_that_the_plug_in_knows() -> None:
    (listed,) = re.findall(r"as for logstore\.open: (.*?)\n; qstore", PAGE, re.DOTALL)
    assert set(re.findall(r"\w+", listed)) == {*plugin._NUMBERS, *plugin._TEXTS}
    assert set(re.findall(r"\w+", listed)) <= set(inspect.signature(logstore.open).parameters)


def test_neither_the_replay_nor_the_plug_ins_load_a_broker_before_its_first_use(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python(
        """
        import sys, logstore.plugins, logstore.replay
        print(sorted({"coilmq", "click", "sqlalchemy"} & set(sys.modules)))
        """
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
