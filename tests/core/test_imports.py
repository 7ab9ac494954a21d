"""Late imports: a handler that needs a module which its thread is importing works, or is refused with ReentrantCall.

Each call is made in a fresh process. While it imports, a handler makes the same call.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from typing import TYPE_CHECKING

import pytest

from kit import late_imports
from kit.stores import ROOT
from logstore import ReentrantCall
from logstore.core.imports import late

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("call", late_imports.CALLS)
def test_a_handler_during_a_call_s_first_import_may_make_the_call(call: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kit.late_imports", str(tmp_path), call],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout)
    assert said["findings"] == []
    assert said["entered"] > 0, "the call imports nothing: it needs no line in kit/late_imports.py"


def test_a_module_is_imported_once_and_its_errors_are_those_of_an_import() -> None:
    assert late("logstore.inspect") is late("logstore.inspect") is sys.modules["logstore.inspect"]
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        late("logstore.no_such_module")


def test_a_module_that_this_thread_imports_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found: list[str] = []

    def again() -> None:
        with pytest.raises(ReentrantCall) as caught:
            late("half")
        found.append(caught.value.message)

    called_back = types.ModuleType("called_back")
    vars(called_back)["again"] = again
    monkeypatch.setitem(sys.modules, "called_back", called_back)
    (tmp_path / "half.py").write_text("import called_back\ncalled_back.again()\nwhole = 1\n")
    try:
        assert late("half").whole == 1
    finally:
        sys.modules.pop("half", None)
    assert len(found) == 1
    assert "the module half, which this thread is in the middle of importing" in found[0]
    assert "make the call later" in found[0]
