"""The deliberate faults of tools/mutants.toml are in no source; every one has its place and a test that kills it."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.stores import ROOT
from logstore import _core
from tools.mutant_table import Change, TableError, applied, table

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from types import ModuleType


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses need it
    spec.loader.exec_module(module)
    return module


def test_the_core_as_it_is_built_contains_no_mutant() -> None:
    assert b"ls_mutant" not in Path(_core.__file__).read_bytes()


# In a build with the faults, an unknown name ends the process; of the others one returns the message and one loses it.
@pytest.mark.parametrize("name", ["NO_SUCH_MUTANT", "DEQUEUE_DROPPED_WITH_DEATH", "TAIL_BLOCK_FORGOTTEN"])
def test_a_mutants_name_in_the_environment_changes_nothing(
    name: str,
    store_dir: Path,
    run_python: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = """
        import sys, logstore
        with logstore.open(sys.argv[1]) as store:
            queue = store.declare_queue("q")
            gone, stays = store.publish(queue, b"gone"), store.publish(queue, b"stays")
            store.dequeue(gone, queue)
        with logstore.open(sys.argv[1]) as store:
            assert [(m.id, store.load_content(m.id)) for m in store.messages("q")] == [(stays, b"stays")]
        print("as ever")
    """
    monkeypatch.setenv("LOGSTORE_MUTANT", name)
    done = run_python(code, store_dir)
    assert (done.stdout, done.stderr) == ("as ever\n", "")


def test_no_file_of_the_core_names_a_mutant() -> None:
    core = [path for path in (ROOT / "csrc").rglob("*.[ch]") if path.relative_to(ROOT).parts[1] != "tests"]
    assert [path for path in core if "MUTANT" in path.read_text(encoding="utf-8").upper()] == []


def test_every_mutant_has_its_place_in_a_change_and_every_change_fits() -> None:
    mutants, changes = table()
    named = {name for change in changes for name in re.findall(r"\bMUTANT\((\w+)\)", change.faulty)}
    assert named == {mutant.name for mutant in mutants}
    for change in changes:
        assert "MUTANT" not in change.text
        assert (ROOT / change.file).read_text(encoding="utf-8").count(change.text) == 1, change


def test_a_change_whose_text_is_missing_or_there_twice_is_refused() -> None:
    change = Change("a.c", "b = 1;\n", "b = 2;\n")
    assert applied("a\nb = 1;\nc\n", [change]) == "a\nb = 2;\nc\n"
    with pytest.raises(TableError, match="a.c: 0 places, and not one, begin with: b = 1;"):
        applied("a\nb  = 1;\n", [change])
    with pytest.raises(TableError, match="a.c: 2 places"):
        applied("b = 1;\nb = 1;\n", [change])
    with pytest.raises(TableError, match="two changes meet"):
        applied("a\nb = 1;\n", [change, Change("a.c", "a\nb = 1;", "")])


def test_every_mutant_that_is_not_equivalent_has_a_killer(tool: ModuleType) -> None:
    killers = json.loads(tool.KILLERS.read_text(encoding="utf-8"))
    counted = [mutant.name for mutant in table()[0] if not mutant.equivalent]
    assert list(killers) == counted
    assert len(counted) >= 124
