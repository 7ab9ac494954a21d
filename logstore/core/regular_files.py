"""The one way to open a store's file, or a file next to it, from Python. The name may lead to anything.

No symbolic link is followed, only regular files are read, no open blocks (as it would on a FIFO or a device), and at
most the requested number of bytes is read. A refusal is an ``OSError`` that names the file and says what kind it is.
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
    """Opens the regular file ``name`` and returns its descriptor; ``flags`` and ``mode`` are those of ``os.open``."""
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
    """Opens as :func:`open_regular` does, and locks the file. Raises ``BlockingIOError`` if that would wait."""
    file = open_regular(name, flags, mode, dir_fd=dir_fd)
    try:
        with naming(name):
            fcntl.flock(file, how | fcntl.LOCK_NB)
    except BaseException:
        os.close(file)
        raise
    return file


def read_start(name: Name, size: int, *, dir_fd: int | None = None) -> tuple[bytes, int]:
    """The first ``size`` bytes of a regular file, or all if it has fewer; and the size of the file in bytes."""
    file = open_regular(name, dir_fd=dir_fd)
    try:
        with naming(name):
            file_bytes = os.fstat(file).st_size
            parts: list[bytes] = []
            done, wanted = 0, min(size, file_bytes)
            while done < wanted and (part := os.pread(file, min(wanted - done, 1 << 20), done)):
                parts.append(part)
                done += len(part)
        return b"".join(parts), file_bytes
    finally:
        os.close(file)


@contextmanager
def naming(name: Name) -> Iterator[None]:
    """Adds the file's name to an ``OSError`` that has none, because the failed call took a descriptor."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(name)
        raise


def told(error: OSError) -> str:
    """The system's error text, followed by the file's name if the error has one."""
    words = error.strerror or str(error)
    return words if error.filename is None else f"{words}: {os.fsdecode(error.filename)}"


@contextmanager
def as_store_error(what: str) -> Iterator[None]:
    """Turns an ``OSError`` into a ``StoreError`` that says what failed (``what``), why, and on which file."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what} ({told(error)}); check the disk and the permissions") from error


def force_directory(path: Name) -> None:
    """Makes the creation, renaming and removal of files in this directory durable."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with naming(path):
            os.fsync(file)
    finally:
        os.close(file)


def check_regular(name: Name, *, write: bool = False) -> None:
    """Checks a file that another library opens by name: a regular file that may be read, and written if ``write``.

    The file is not opened, because closing it would drop this process's POSIX locks on it.
    """
    _refuse(os.lstat(name), name)
    wanted = os.R_OK | os.W_OK if write else os.R_OK
    if not os.access(name, wanted, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(name))


def _refuse(status: os.stat_result, name: Name) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(name))
