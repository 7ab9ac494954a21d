"""The one way to open a file of a store, or one beside it, from Python: under its name there may be anything.

No symbolic link is followed, only regular files are read, no open waits (as for a FIFO or a device), and no more is
read than was asked for, however large the file is. A refusal is an ``OSError`` that names the file and says what it is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

Name = str | os.PathLike[str]


def open_regular(name: Name, flags: int = os.O_RDONLY, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
    """A descriptor of the regular file of this name; ``flags`` and ``mode`` are those of ``os.open``."""
    try:
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode, dir_fd=dir_fd)
    except OSError as error:
        try:
            status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except OSError:
            raise error from None
        _refuse(status, name)
        raise
    try:
        with naming(name):
            status = os.fstat(file)
        _refuse(status, name)
    except BaseException:
        os.close(file)
        raise
    return file


def lock_regular(
    name: Name, how: int, flags: int = os.O_RDONLY, mode: int = 0o600, *, dir_fd: int | None = None
) -> int:
    """As :func:`open_regular`, with a lock on it, for which it does not wait (``BlockingIOError``)."""
    file = open_regular(name, flags, mode, dir_fd=dir_fd)
    try:
        with naming(name):
            fcntl.flock(file, how | fcntl.LOCK_NB)
    except BaseException:
        os.close(file)
        raise
    return file


def read_start(name: Name, size: int, *, dir_fd: int | None = None) -> tuple[bytes, int]:
    """The first ``size`` bytes of a regular file, or as many as it has, and how large it is (bytes)."""
    file = open_regular(name, dir_fd=dir_fd)
    try:
        with naming(name):
            there = os.fstat(file).st_size
            parts: list[bytes] = []
            done, wanted = 0, min(size, there)
            while done < wanted and (part := os.pread(file, min(wanted - done, 1 << 20), done)):
                parts.append(part)
                done += len(part)
        return b"".join(parts), there
    finally:
        os.close(file)


@contextmanager
def naming(name: Name) -> Iterator[None]:
    """An ``OSError`` of a call on a descriptor, which the system gives no name, names this file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(name)
        raise


def told(error: OSError) -> str:
    """What the system said, and of which file."""
    words = error.strerror or str(error)
    return words if error.filename is None else f"{words}: {os.fsdecode(error.filename)}"


@contextmanager
def typed(what: str) -> Iterator[None]:
    """What the system refuses, as a ``StoreError`` that says what cannot be done, why, and of which file."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what} ({told(error)}); see to the disk and the permissions") from error


def force_directory(path: Name) -> None:
    """A name that was made, renamed or removed in this directory stays so."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with naming(path):
            os.fsync(file)
    finally:
        os.close(file)


def check_regular(name: Name, *, write: bool = False) -> None:
    """What another library is to open by name: a regular file that may be read, and written if asked.

    Nothing is opened, so no lock that this process holds on the file is lost.
    """
    _refuse(os.lstat(name), name)
    wanted = os.R_OK | os.W_OK if write else os.R_OK
    if not os.access(name, wanted, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(name))


def _refuse(status: os.stat_result, name: Name) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(name))
