"""The directory of a store: checks before a store is created in it, and its name in texts that name commands."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from shlex import quote

from logstore import errors

_COMMAND = re.compile(r"('logstore [a-z-]+) DIR\b")


def with_directory(text: str, directory: Path) -> str:
    """The text, with the directory in place of ``DIR`` in the commands that it names."""
    return _COMMAND.sub(lambda found: f"{found[1]} {quote(str(directory))}", text)


def lies_in(path: Path, directory: Path) -> bool:
    """Whether ``path`` is ``directory`` or lies below it, after all symbolic links are resolved."""
    real_directory, real_path = (Path(os.path.realpath(each)) for each in (directory, path))
    return real_directory in (real_path, *real_path.parents)


def make_parents(path: Path) -> list[Path]:
    """Makes the missing parent directories of ``path``. Raises ``StoreError`` if the system refuses.

    Returns those that were missing, the innermost first.
    """
    parent = path.absolute().parent
    try:
        missing = [one for one in (parent, *parent.parents) if not one.exists()]
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise errors.StoreError(
            f"the directory above {path} cannot be made: {problem.strerror}; make it, or choose another place"
        ) from problem
    return missing


def remove_parents(made: list[Path]) -> None:
    """Removes the directories that :func:`make_parents` has made, unless something is in them by now."""
    with suppress(OSError):
        for one in made:
            one.rmdir()


def refuse_other_things(path: Path) -> None:
    """Raises ``NotAStore`` for a directory that holds other files and no META.

    A store is created in an empty directory only. Above all it is not created over segments whose META was lost.
    """
    try:
        names = {entry.name for entry in os.scandir(path)}
    except OSError:
        return  # the core reports the problem, or makes the directory
    if not names & {"META", "META.new"} and names - {"LOCK", "META.part", "lost+found"}:
        raise errors.NotAStore(
            f"{path} is no store (it has no META file), and no store is made in it because it is not empty (it holds "
            f"{min(names - {'LOCK'})!r}); check the path, or choose an empty or absent directory"
        )
