"""The deliberate faults of csrc/mutants are in no build but their own; every one has its place and its killer."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.stores import ROOT
from logstore import _build_core, _core

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
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_core_as_it_is_built_contains_no_mutant() -> None:
    assert b"ls_mutant" not in Path(_core.__file__).read_bytes()


# With the faults built in, a name that there is not ends the process, and the others give the message back or lose it.
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


def test_the_faults_are_built_in_only_when_asked_for() -> None:
    assert _build_core.mutant_flags("") == _build_core.mutant_flags("0") == []
    assert _build_core.mutant_flags("1") == ["-DLOGSTORE_MUTANTS"]
    with pytest.raises(SystemExit, match="LOGSTORE_MUTANTS is 1 or 0"):
        _build_core.mutant_flags("ACK_BEFORE_SYNC")


def test_every_mutant_strikes_somewhere_in_the_core(tool: ModuleType) -> None:
    paths = [path for path in sorted((ROOT / "csrc").glob("*/**/*.[ch]")) if path.name != "mutants.h"]
    core = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert sorted(set(re.findall(r"\bMUTANT\((\w+)\)", core))) == sorted(mutant.name for mutant in tool.mutants())


def test_every_mutant_that_is_not_equivalent_has_a_killer(tool: ModuleType) -> None:
    killers = json.loads(tool.KILLERS.read_text(encoding="utf-8"))
    counted = [mutant.name for mutant in tool.mutants() if not mutant.equivalent]
    assert list(killers) == counted
    assert len(counted) >= 24
