"""tools/include_lint.py: the layers of csrc/ include downwards only, and a violation names both files."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kit.stores import ROOT
from tools.include_lint import LAYERS, problems

if TYPE_CHECKING:
    from pathlib import Path


def test_no_layer_includes_upwards_here() -> None:
    assert problems(ROOT / "csrc") == []


def test_every_folder_of_the_core_is_a_layer() -> None:
    folders = {path.name for path in (ROOT / "csrc").iterdir() if path.is_dir()}
    assert folders - {"include", "tests"} == set(LAYERS)


@pytest.mark.parametrize(
    ("file", "included", "said"),
    [
        ("log/append.c", "store/store.h", "log/ may include format os"),
        ("format/format.h", "os/vfs.h", "format/ may include no other folder"),
        ("replay/replay.c", "log/log.h", "replay/ may include table read format os"),
        ("inspect/inspect.c", "store/store.h", "inspect/ may include checkpoint replay table read format os"),
        ("store/serve.c", "log/parts.h", "only log/ may, others include log/log.h"),
        ("relocate/relocate.c", "log/space/parts.h", "only log/ may, others include log/log.h"),
        ("store/store.c", "../log/log.h", "name the file from csrc/ on"),
        ("store/store.c", "store.h", "name the file from csrc/ on"),
    ],
)
def test_a_forbidden_include_is_reported_with_both_files(tmp_path: Path, file: str, included: str, said: str) -> None:
    csrc = tmp_path / "csrc"
    shutil.copytree(ROOT / "csrc", csrc, ignore=shutil.ignore_patterns("tests"))
    planted = csrc / file
    planted.write_text(f'#include "{included}"\n' + planted.read_text(encoding="utf-8"), encoding="utf-8")
    (found,) = problems(csrc)
    assert f"{planted} includes " in found
    assert included.removeprefix("../") in found
    assert said in found
