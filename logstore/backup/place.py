"""The temporary directory in which a backup is made, next to the target. Its name keeps others from opening it.

It is locked while the backup runs. The next backup to the same target removes directories that dead processes left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from typing import TYPE_CHECKING, Final

from logstore.core.regular_files import naming
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME_TRIES: Final = 100
_OWN: Final = re.compile(r"[0-9a-f]{16}\.seg|META|LOCK|CLOSED|HINT|holds|catalog\.sqlite(-\w+)?|\.catalog-\w+")


@contextlib.contextmanager
def building_place(target: Path) -> Iterator[Path]:
    """A new directory next to the target, removed at the end unless it was renamed. Removes abandoned ones first."""
    target = target.absolute()
    prefix = f".{target.name[:100]}.backup-"
    parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        is_locked = _lock(parent)
        if is_locked:
            _remove_abandoned(target.parent, prefix)
        made = _new_directory(target.parent, prefix)
        try:
            with _locked(made):
                if is_locked:
                    fcntl.flock(parent, fcntl.LOCK_UN)
                yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)
    finally:
        os.close(parent)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keeps the directory locked, so that no other backup takes it for an abandoned one."""
    own = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with naming(directory):
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(own)


def _lock(directory: int) -> bool:
    """Locks the parent, so that no other backup makes its directory meanwhile. False if another one takes too long."""
    for _ in range(NAME_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.01)
    return False


def _remove_abandoned(parent: Path, prefix: str) -> None:
    pattern = re.compile(re.escape(prefix) + "[0-9a-f]{8}")
    for entry in os.scandir(parent):
        if (
            not pattern.fullmatch(entry.name)
            or not entry.is_dir(follow_symlinks=False)
            or not _is_partial_backup(entry)
        ):
            continue
        with contextlib.suppress(OSError):
            left = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path)
            finally:
                os.close(left)


def _is_partial_backup(directory: os.DirEntry[str]) -> bool:
    """Whether it holds only files that a backup makes; a user may have given another directory such a name."""
    try:
        return all(_OWN.fullmatch(entry.name) for entry in os.scandir(directory.path))
    except OSError:
        return False


def _new_directory(parent: Path, prefix: str) -> Path:
    for _ in range(NAME_TRIES):
        made = parent / f"{prefix}{secrets.token_hex(4)}"
        with contextlib.suppress(FileExistsError):
            made.mkdir(mode=0o700)
            return made
    raise StoreError(f"no directory can be made next to the target in {parent}: all names are taken; try again")
