"""The table of mutants, tools/mutants.toml, and a copy of the sources with all of them applied."""

from __future__ import annotations

import functools
import itertools
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools/mutants.toml"
RUNTIME = ROOT / "csrc/tests/mutants"


class TableError(Exception):
    """An entry of the table does not fit the sources."""


@dataclass(frozen=True)
class Mutant:
    """One fault: its name, the promise that it breaks, and a description."""

    name: str
    breaks: str
    fault: str
    equivalent: str
    """Why no test can kill it; empty if one must."""


@dataclass(frozen=True)
class Change:
    """Replaces a text of a file by a faulty text. The text occurs in the file exactly once."""

    file: str
    text: str
    faulty: str


@functools.cache
def table() -> tuple[list[Mutant], list[Change]]:
    """All mutants and all changes, in the table's order."""
    read = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    found = [Mutant(each["name"], each["breaks"], each["fault"], each.get("equivalent", "")) for each in read["mutant"]]
    return found, [Change(**each) for each in read["change"]]


def mutants() -> list[Mutant]:
    """All mutants, in the table's order."""
    return table()[0]


def applied(text: str, changes: list[Change]) -> str:
    """The file's text with its changes made. Raises :class:`TableError` if one does not fit exactly once."""
    places = []
    for change in changes:
        if text.count(change.text) != 1:
            shown = change.text.strip().splitlines()[0]
            raise TableError(f"{change.file}: {text.count(change.text)} places, and not one, begin with: {shown}")
        at = text.index(change.text)
        places.append((at, at + len(change.text), change.faulty))
    places.sort()
    for (_, end, _), (begin, _, _) in itertools.pairwise(places):
        if begin < end:
            raise TableError(f"{changes[0].file}: two changes meet at: {text[begin:end].strip()}")
    for begin, end, faulty in reversed(places):
        text = text[:begin] + faulty + text[end:]
    return text


def make_copy(into: Path, parts: tuple[str, ...]) -> None:
    """Copies these parts of the checkout with all mutants applied. Files that are already equal stay untouched, so that
    only changed ones are compiled again. Raises ``SystemExit`` if an entry of the table does not fit.
    """
    changes: dict[str, list[Change]] = {}
    for change in table()[1]:
        changes.setdefault(change.file, []).append(change)
    wanted: dict[Path, bytes] = {}
    for part in parts:
        for path in [ROOT / part] if (ROOT / part).is_file() else sorted((ROOT / part).rglob("*")):
            if path.is_file() and path.suffix not in {".so", ".pyc"} and "fuzz" not in path.parts:
                wanted[path.relative_to(ROOT)] = path.read_bytes()
    try:
        for file, its in changes.items():
            faulty = applied(wanted[Path(file)].decode(), its)
            wanted[Path(file)] = f'#include "mutants/mutants.h"\n#line 1\n{faulty}'.encode()
    except TableError as problem:
        raise SystemExit(f"mutants: {problem}") from None
    names = " \\\n    ".join(f"X({mutant.name})" for mutant in mutants())
    wanted[Path("csrc/mutants/names.h")] = f"#define MUTANTS(X) \\\n    {names}\n".encode()
    for path in RUNTIME.iterdir():
        wanted[Path("csrc/mutants") / path.name] = path.read_bytes()
    for path in [path for path in (into / "csrc").rglob("*") if path.is_file()]:
        if path.relative_to(into) not in wanted:
            path.unlink()
    for name, content in wanted.items():
        target = into / name
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            shutil.copymode(ROOT / name, target) if (ROOT / name).exists() else None
