"""Failing system calls: one of the calls that Python code makes for the files of one directory.

Every function of ``os``, ``fcntl`` and ``io`` that the package and the standard library use for files is replaced by
one that counts and raises once. csrc/tests/proof/sweeps.c does this for the core's calls.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ERRORS: Final = (errno.EIO, errno.ESTALE, errno.EDQUOT, errno.EROFS, errno.ENODEV)

# What the first argument is: a name, or a descriptor (or either).
OF_OS: Final = (
    "open", "stat", "lstat", "fstat", "statvfs", "fstatvfs", "listdir", "scandir", "readlink",
    "read", "pread", "preadv", "write", "pwrite", "fsync", "fdatasync", "ftruncate", "posix_fallocate",
    "rename", "replace", "link", "symlink", "unlink", "remove", "rmdir", "mkdir", "chmod", "utime",
)  # fmt: skip
OTHERS: Final = ((fcntl, "flock"), (fcntl, "lockf"), (io, "open"), (builtins, "open"))


class FailingCalls:
    """Counts the calls for files in ``place``; the call with this number fails with this error."""

    def __init__(self, place: Path, number: int = 0, code: int = 0) -> None:
        self._place, self._number, self.code = os.fspath(place), number, code
        self._real = {
            (module, name): getattr(module, name) for module, name in (*((os, one) for one in OF_OS), *OTHERS)
        }
        self.count = 0
        self.failed = ""
        """The call that failed and its file: ``fsync /place/file``."""

    def __enter__(self) -> Self:
        for (module, name), function in self._real.items():
            setattr(module, name, self._wrapped(name, function))
        return self

    def __exit__(self, *_: object) -> None:
        for (module, name), function in self._real.items():
            setattr(module, name, function)

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            about = self._about(given[0] if given else None, options.get("dir_fd"))
            if about is not None:
                self.count += 1
                if self.count == self._number:
                    self.failed = f"{name} {about}"
                    raise self._error(given[0] if given else None)
            return function(*given, **options)

        return call

    def _error(self, of: Any) -> OSError:
        """An error as the system raises it: with the file name if the call had one."""
        words = os.strerror(self.code)
        return OSError(self.code, words) if isinstance(of, int) else OSError(self.code, words, os.fspath(of))

    def _about(self, of: Any, directory: int | None) -> str | None:
        if isinstance(of, os.DirEntry):
            of = of.path
        if hasattr(of, "fileno"):
            of = of.fileno()
        if isinstance(of, int):
            name = self._of_descriptor(of)
        elif isinstance(of, str | bytes | os.PathLike):
            name = os.fsdecode(of)
            if directory is not None and not name.startswith("/"):
                name = f"{self._of_descriptor(directory)}/{name}"
        else:
            return None
        return name if name == self._place or name.startswith(f"{self._place}/") else None

    def _of_descriptor(self, number: int) -> str:
        try:
            return str(self._real[os, "readlink"](f"/proc/self/fd/{number}"))
        except OSError:
            return ""
