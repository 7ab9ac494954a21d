"""Stores in which one file is replaced by an unusual object, and the result of every command on them.

Each case runs in a process of its own that obeys permissions even as root, has a time limit, and may use little memory
and write only small files; so a command that hangs, or reads without end, is reported by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import os
import resource
import shutil
import signal
import socket
import stat
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

# What commands import when they run is imported once, before the cases are forked.
import pandas as pd  # noqa: F401
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import sqlalchemy  # noqa: F401

import logstore
import logstore.backup
import logstore.export
import logstore.report.arrow
import logstore.report.figures
import logstore.salvage
from logstore import cli
from logstore.store.control import SOCKET_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

SEGMENT = 512 << 10
ALARM_S = 20
MEMORY_BYTES = 1 << 30  # more than a process needs after its imports
FILE_BYTES = 64 << 20  # no file that a command writes is larger
SPARSE_BYTES = 1 << 40

COMMANDS: dict[str, tuple[str, ...]] = {
    "info": ("info", "{store}"),
    "queues": ("queues", "{store}"),
    "dump": ("dump", "{store}", "--limit", "3"),
    "tail": ("tail", "{store}"),
    "holds": ("holds", "{store}"),
    "in-doubt list": ("in-doubt", "{store}", "list"),
    "report": ("report", "{store}", "--json"),
    "verify": ("verify", "{store}"),
    "recover --dry-run": ("recover", "{store}", "--dry-run"),
    "export": ("export", "{store}", "{case}/export"),
    "backup": ("backup", "{store}", "{case}/backup"),
    "salvage": ("salvage", "{store}", "{case}/salvaged"),
}

WRITING: dict[str, tuple[str, ...]] = {
    "export": ("export", "{store}", "{case}/{target}"),
    "export --verify": ("export", "--verify", "{case}/{target}"),
    "backup": ("backup", "{store}", "{case}/{target}"),
    "salvage": ("salvage", "{store}", "{case}/{target}"),
    "salvage --report": ("salvage", "{store}", "--dry-run", "--report", "{case}/{target}"),
    "report": ("report", "{store}", "-o", "{case}/{target}"),
}


class Said(NamedTuple):
    """How a command ended."""

    status: int
    line: str


# ---- The store


def make_store(directory: Path) -> None:
    """A store closed in order, with several segments, a spare, a checkpoint and every other file of a store."""
    with logstore.open(directory, segment_size=SEGMENT) as store:
        queue = store.declare_queue("q")
        for _ in range(12):
            store.publish(queue, bytes(100_000))
        store.checkpoint()
        store.publish(queue, b"after the checkpoint")


def names_of(directory: Path) -> dict[str, str]:
    """Each file that a store may have, by what it is."""
    segments = sorted(path.name for path in directory.glob("*.seg"))
    used = [name for name in segments if (directory / name).read_bytes()[:8] != bytes(8)]
    spare = [name for name in segments if name not in used]
    return {
        "META": "META",
        "META.new": "META.new",
        "LOCK": "LOCK",
        "HINT": "HINT",
        "CLOSED": "CLOSED",
        "SEEN": "SEEN",
        "CHECKPOINT": "CHECKPOINT",
        "CHECKPOINT.new": "CHECKPOINT.new",
        "middle segment": used[1],
        "last segment": used[-1],
        "spare": spare[0],
        "catalog": "catalog.sqlite",
        "catalog -wal": "catalog.sqlite-wal",
        "catalog -shm": "catalog.sqlite-shm",
        "catalog -journal": "catalog.sqlite-journal",
        "holds": "holds",
        "a hold": "holds/some.hold",
        "control socket": SOCKET_NAME,
    }


# ---- Odd things


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _fifo(path: Path) -> None:
    _remove(path)
    os.mkfifo(path, 0o666)


def _socket(path: Path) -> None:
    _remove(path)
    at = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{at}/{path.name}")
    os.close(at)


def _directory(path: Path) -> None:
    _remove(path)
    path.mkdir()


def _symlink(path: Path) -> None:
    kept = path.with_name(f"kept-{path.name}")
    if path.exists():
        path.rename(kept)
    else:
        kept.write_bytes(b"")
    path.symlink_to(kept.name)


def _dangling(path: Path) -> None:
    _remove(path)
    path.symlink_to("nothing-there")


def _loop(path: Path) -> None:
    _remove(path)
    path.symlink_to(path.name)


def _device(path: Path) -> None:
    _remove(path)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # as /dev/zero, which never ends
    os.chmod(path, 0o666)


def _read_only(path: Path) -> None:
    path.touch()
    path.chmod(0o500 if path.is_dir() else 0o400)


def _unreadable(path: Path) -> None:
    path.touch()
    path.chmod(0)


def _empty(path: Path) -> None:
    _remove(path)
    path.touch()


def _sparse(path: Path) -> None:
    if path.is_dir():
        _remove(path)
    with path.open("ab") as file:
        file.truncate(SPARSE_BYTES)


ODD: dict[str, Callable[[Path], None]] = {
    "a FIFO": _fifo,
    "a socket": _socket,
    "a directory": _directory,
    "a symlink": _symlink,
    "a dangling symlink": _dangling,
    "a symlink to itself": _loop,
    "a device": _device,
    "read-only": _read_only,
    "unreadable": _unreadable,
    "empty": _empty,
    "huge": _sparse,
}


def make_case(template: Path, case: Path, name: str, odd: str) -> None:
    """A copy of the store, in which ``name`` is odd."""
    store = case / "store"
    shutil.copytree(template, store)
    ODD[odd](store / name)


TARGETS = {
    "a FIFO": "target",
    "a socket": "target",
    "a symlink to itself": "target",
    "a dangling symlink": "target",
    "a device": "target",
    "empty": "target",
    "in a file": "file/target",
    "in a symlink to itself": "loop/target",
    "in a directory that may not be written": "closed/target",
    "in a directory that may not be entered": "shut/target",
    "of too long a name": "x" * 300,
}


def make_target(template: Path, case: Path, odd: str) -> None:
    """A copy of the store, and ``TARGETS[odd]`` as it says beside it."""
    shutil.copytree(template, case / "store")
    (case / "file").touch()
    _loop(case / "loop")
    (case / "closed").mkdir(0o500)
    (case / "shut").mkdir(0)
    if odd in ODD:
        ODD[odd](case / "target")


# ---- Results


def drop_capabilities() -> None:
    """Drop root's capabilities, so that the modes of files apply to it."""
    if os.geteuid() != 0:
        return
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    none = (ctypes.c_uint32 * 6)()
    capset = {"x86_64": 126, "aarch64": 91}[os.uname().machine]
    if ctypes.CDLL(None, use_errno=True).syscall(capset, header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def look(case: Path, ends: Connection, commands: dict[str, tuple[str, ...]]) -> None:
    """Sends the name of each command before it runs, and its result after; the last one is an open by the library."""
    signal.alarm(ALARM_S)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (taken + MEMORY_BYTES, taken + MEMORY_BYTES))
    pa.set_memory_pool(pa.system_memory_pool())  # the others reserve more than they use
    drop_capabilities()
    os.chdir(case)
    logging.disable()
    for name, arguments in commands.items():
        ends.send(name)
        signal.alarm(ALARM_S)
        ends.send(_run([one.format(store=case / "store", case=case) for one in arguments]))
    ends.send("open")
    signal.alarm(ALARM_S)
    ends.send(_open(case / "store"))
    signal.alarm(0)


def _run(arguments: list[str]) -> Said:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            status = cli.run(arguments)
        except BaseException:  # noqa: BLE001 - it is what must not come
            return Said(-1, traceback.format_exc())
    return Said(status, err.getvalue())


def _open(directory: Path) -> Said:
    try:
        with warnings.catch_warnings(), logstore.open(directory, create=False) as store:
            warnings.simplefilter("ignore")
            list(store.messages(store.queue("q")))
    except logstore.StoreError as error:
        return Said(3, f"logstore: {error.message}\n")
    except BaseException:  # noqa: BLE001 - it is what must not come
        return Said(-1, traceback.format_exc())
    return Said(0, "")
