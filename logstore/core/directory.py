"""The store's directory before there is a store in it."""

from __future__ import annotations

import os
from pathlib import Path

from logstore import errors


def lies_in(path: Path, directory: Path) -> bool:
    """Whether it is the directory or in it, wherever symbolic links lead; one that leads to itself leads nowhere."""
    own, goal = (Path(os.path.realpath(one)) for one in (directory, path))
    return own in (goal, *goal.parents)


def make_parents(path: Path) -> None:
    """Make the directories above it. Raises ``StoreError`` for what the system refuses."""
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise errors.StoreError(
            f"the directory above {path} cannot be made: {problem.strerror}; make it, or choose another place"
        ) from problem


def refuse_other_things(path: Path) -> None:
    """A store is made in an empty directory only; above all not over segments whose META was lost."""
    try:
        names = {entry.name for entry in os.scandir(path)}
    except OSError:
        return  # the core says what is wrong with it, or makes it
    if not names & {"META", "META.new"} and names - {"LOCK", "META.part", "lost+found"}:
        raise errors.NotAStore(
            f"{path} has no META file, so it is no store, and it is not empty ({min(names - {'LOCK'})!r}), so none is "
            "made in it; check the path, or choose an empty or absent directory"
        )
