"""Every public callable, given a wrong value, either accepts it or raises an error that names the argument.

The public callables are found by inspection (public_surface.py), so that a new one is tested without being listed; the
values are in wrong_values.py. The calls run in a separate process, because a wrong value might end it.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from difflib import unified_diff
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.public_listing import LISTING, listing
from kit.public_surface import NEEDS_A_JVM, modules, surface
from kit.stores import ROOT
from logstore import cli

if TYPE_CHECKING:
    from pathlib import Path

LIGHT = [name for name in modules() if name not in NEEDS_A_JVM]


def driven(place: Path, *names: str) -> dict[str, list[str]]:
    """Whether each callable of these modules was called, and the errors that were found."""
    process = subprocess.run(
        [sys.executable, "-m", "kit.public_surface", place, *names],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    )
    if process.returncode != 0:
        last = place / "now"
        called = last.read_text("utf-8").strip() if last.exists() else "no call"
        pytest.fail(f"the process ended with {process.returncode} in {called}: {process.stderr[-2000:]}")
    found: dict[str, list[str]] = json.loads(process.stdout)
    return found


def test_every_public_call_answers_a_wrong_value_with_an_error_that_names_it_and_changes_nothing(
    tmp_path: Path,
) -> None:
    found = driven(tmp_path, *LIGHT)
    assert found["findings"] == []
    public = {name for module in LIGHT for name, _ in surface(module)}
    assert set(found["called"]) == public
    assert {"open", "MessageStore.publish", "Queue.accept_many", "Delivery.reject", "Transaction.commit"} <= public
    assert {"read", "hold", "Reader", "MessageScan", "Inspection", "salvage", "back_up", "export"} <= public


def test_every_method_and_property_of_a_public_class_is_on_the_page_of_the_library() -> None:
    words = set(re.findall(r"\w+", (ROOT / "docs" / "api.md").read_text("utf-8")))
    public = [getattr(logstore, name) for name in logstore.__all__]
    classes = [each for each in public if inspect.isclass(each) and not issubclass(each, Exception)]
    named = {
        f"{each.__name__}.{name}"
        for each in classes
        for base in each.__mro__
        if base.__module__.startswith("logstore")
        for name, found in vars(base).items()
        if not name.startswith("_") and (inspect.isroutine(found) or isinstance(found, property | classmethod))
    }
    assert {name for name in named if name.partition(".")[2] not in words} == set()
    assert len(named) > 80


def test_the_driver_finds_an_error_of_another_type_one_that_names_nothing_and_one_that_changed_something() -> None:
    from kit.public_surface import names
    from logstore.errors import OptionError, UnknownQueue

    assert names(TypeError("a message id is an int, not None"), "message_id")
    assert not names(TypeError("an int is wanted, not None"), "message_id")
    assert not names(OptionError("it is too large"), "limit")
    assert names(UnknownQueue("there is no such queue; declare it first"), "queue")


def changes(was: str, now: str) -> str:
    return "\n".join(unified_diff(was.splitlines(), now.splitlines(), "the listing", "the package", n=0, lineterm=""))


def test_names_signatures_commands_options_and_exit_statuses_are_the_ones_that_the_listing_has() -> None:
    changed = changes(LISTING.read_text("utf-8"), listing())
    assert not changed, f"{changed}\nif that is meant: cd tests && PYTHONPATH=.. python -m kit.public_listing"


def test_the_listing_notices_a_changed_default_option_and_exit_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tail = cli.command.commands["tail"]
    monkeypatch.setattr(tail, "params", [each for each in tail.params if each.name != "watch"])
    monkeypatch.setattr(cli, "CANNOT_OPEN", 4)
    monkeypatch.setitem(logstore.open.__kwdefaults__, "create", False)
    changed = changes(LISTING.read_text("utf-8"), listing())
    assert "-logstore tail --watch: " in changed
    assert "+NotAStore: exit status 4" in changed
    assert "+logstore.open(store_dir, *, create=False, " in changed
