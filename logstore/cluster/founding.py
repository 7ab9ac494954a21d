"""Makes the first member of a cluster, with its first host: a new store, or a single store that becomes its first copy.

The steps, each complete on the disk before the next:

1. everything is checked, and nothing is changed if something is refused
2. ``cluster.toml``, with the member's id and the cluster's UUID
3. the host's directory, with a new store in ``copy-1``, or an existing one moved there by a rename
4. ``VOTE``
5. the log's first batch with an index: the configuration, whose one voter is this member

Whoever is killed in between repeats the command: it finds what is done and goes on. No byte of an existing store is
rewritten before step 5, which only appends.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import select
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import logstore
from logstore.cluster import config
from logstore.cluster.addresses import named
from logstore.cluster.directory import LOCK_NAME, VOTE_NAME, host_name, hosts, locked
from logstore.cluster.engine import bootstrap
from logstore.cluster.replica import Batch, Copy, create
from logstore.core.directory import lies_in, with_directory
from logstore.core.lock_holder import store_locked
from logstore.core.regular_files import force_directory, lock_regular
from logstore.errors import NotAStore, OptionError, StoreError
from logstore.inspect import Inspection, Reader, read_catalog
from logstore.inspect.refusals import check_single, refusals

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.cluster.config import MemberFile

RANDOM_MEMBER_MAX: Final = 1 << 52
_COPY: Final = "copy-1"
_MADE_FIRST: Final = frozenset({LOCK_NAME, config.FILE_NAME, "cluster.new"})
_OF_TLS: Final = (".pem", ".key")  # `cluster cert` may have put these files there
_POLL_MS: Final = 20


@dataclass(frozen=True, slots=True)
class Founded:
    """The result: the member and its host."""

    file: MemberFile
    host: str
    copy: Path
    was_complete: bool
    """Nothing was left to do: an earlier call had done everything."""


def new_identity() -> tuple[int, bytes]:
    """A random member id, and a random UUID for a cluster."""
    return secrets.randbelow(RANDOM_MEMBER_MAX) + 1, secrets.token_bytes(16)


def found(
    directory: Path,
    wanted: MemberFile,
    *,
    host: str = "main",
    store: Path | None = None,
    segment_size: int | None = None,
    is_id_given: bool = False,
) -> Founded:
    """Makes a member in ``directory``, or continues where an earlier call was killed.

    ``wanted`` has a new identity (:func:`new_identity`); an earlier call's is kept, but an id that was given
    (``is_id_given``) must be the same. ``store`` is a closed single store with its catalog beside its log, on the file
    system of ``directory``; it is moved. Raises ``OptionError``, ``StoreError``, and what an open of ``store`` raises.
    """
    host_name(host)
    directory = directory.absolute()
    if (tls := wanted.tls(directory)) is not None:
        tls.context(listens=True)
    copy = directory / host / _COPY
    judge_new(directory, host)
    moved = None if store is None else _to_be_moved(store, directory, copy)
    make_directory(directory)
    with locked(directory):
        file = same_configuration(directory, wanted, is_id_given=is_id_given)
        make_directory(copy.parent)
        if moved is not None:
            _move(moved, copy)
        me = (file.member, named(file.name, file.advertise))
        was_complete = make_host(copy.parent, file.cluster, me, segment_size=segment_size, has_store=moved is not None)
    return Founded(file, host, copy, was_complete)


def make_host(
    host_dir: Path, cluster: bytes, voter: tuple[int, str], *, segment_size: int | None, has_store: bool = False
) -> bool:
    """Makes a host whose only voter is this member: its id, and ``NAME@HOST:PORT``. Its directory is there.

    ``has_store``: a whole store is in ``copy-1``, and becomes the first copy. An earlier call that was killed is
    finished. Returns whether nothing was left to do.
    """
    if not (host_dir / VOTE_NAME).exists():
        if not has_store:
            logstore.open(host_dir / _COPY, segment_size=segment_size).close()
            force_directory(host_dir)
        create(host_dir, voter[0], cluster)
    with Copy.open(host_dir, catalog=True) as opened:
        replicated = opened.info().index != 0
        if not replicated:
            _begin(opened, voter)
    return replicated


# ---- checks, before anything is changed ------------------------------------------------------------------------------


def judge_new(directory: Path, host: str | None = None) -> None:
    """Raises ``OptionError`` if the directory has other files, or another host than the wanted one."""
    if not directory.exists():
        return
    others = [path.name for path in hosts(directory) if path.name != host]
    if others:
        raise OptionError(f"{directory} is a member's directory already, with the host {others[0]}")
    names = {entry.name for entry in os.scandir(directory)} - _MADE_FIRST
    strange = {name for name in names if not name.endswith(_OF_TLS)}
    if not (directory / config.FILE_NAME).exists() and strange:
        raise OptionError(
            f"{directory} has no {config.FILE_NAME} and is not empty (it holds {min(strange)!r}): choose an empty or "
            "absent directory"
        )


def _to_be_moved(store: Path, directory: Path, copy: Path) -> Path | None:
    """The store that is to be moved; None: an earlier call has moved it already."""
    if copy.exists():
        if store.exists() and not store.samefile(copy):
            raise OptionError(f"{copy} is there already, so {store} is not moved: choose another host or directory")
        return None
    found = store.resolve()
    if lies_in(directory, found):
        raise OptionError(f"{directory} lies in the store {store}: choose another directory")
    _judge_store(found)
    parent = next(path for path in (directory, *directory.parents) if path.exists())
    if found.parent.stat().st_dev != parent.stat().st_dev or found.stat().st_dev != parent.stat().st_dev:
        raise OptionError(
            f"{store} is on another file system than {directory}, and no byte of it is copied here: move it to that "
            "file system first, or choose a directory on its own"
        )
    return found


def _judge_store(store: Path) -> None:
    """Raises the error that an open would raise, with the store's name; the store is only read."""
    if not store.exists():
        raise NotAStore(f"there is no store {store}")
    try:
        _read_store(store)
    except StoreError as error:
        if str(store) not in error.message:
            error.message = f"{store}: {error.message}"
        error.message = with_directory(error.message, store)
        raise


def _read_store(store: Path) -> None:
    with Reader(store) as reader:
        info = reader.info
    if info.live:
        raise store_locked(store)
    check_single(info)
    for refusal in refusals(store):
        raise StoreError(refusal)
    with Inspection(store) as inspection:
        inspection.read()
        read_catalog(store, inspection.info)


# ---- steps -----------------------------------------------------------------------------------------------------------


def make_directory(path: Path) -> None:
    """Makes a directory and its missing parents, durably. Raises ``StoreError``."""
    try:
        missing = [one for one in (path, *path.parents) if not one.exists()]
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for one in missing:
            force_directory(one.parent)
    except OSError as error:
        raise StoreError(f"{path} cannot be made: {error.strerror}") from error


def same_configuration(directory: Path, wanted: MemberFile, *, is_id_given: bool) -> MemberFile:
    """The configuration: that of an earlier call, which must agree with this one, or a new one, which is written."""
    if not (directory / config.FILE_NAME).exists():
        config.write(directory, wanted)
        return wanted
    there = config.read(directory)
    same = replace(wanted, cluster=there.cluster, member=wanted.member if is_id_given else there.member)
    for key in config.KEYS:
        if getattr(same, key) != getattr(there, key):
            raise OptionError(
                f"{directory / config.FILE_NAME} says {key} = {getattr(there, key)!r}, and not {getattr(same, key)!r}: "
                "repeat the command as it was given at first, or choose another directory"
            )
    return there


def _move(store: Path, copy: Path) -> None:
    """Moves the store; its lock keeps others from opening it meanwhile."""
    try:
        lock = lock_regular(store / "LOCK", fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT)
    except BlockingIOError as error:
        raise store_locked(store) from error
    try:
        store.rename(copy)
        force_directory(copy.parent)
        force_directory(store.parent)
    except OSError as error:
        raise StoreError(f"{store} cannot be moved to {copy}: {error.strerror}") from error
    finally:
        os.close(lock)


def _begin(copy: Copy, voter: tuple[int, str]) -> None:
    """Replication begins, with this member as the only voter: it leads once, until its store serves."""
    term = max(copy.info().least_term, copy.member().term + 1)
    copy.vote(term, voter[0])
    leading = copy.lead(term, bootstrap([voter]))
    watched = select.poll()
    watched.register(leading.fileno(), select.POLLIN)
    last: Batch | None = None
    with ThreadPoolExecutor(1) as other:
        try:
            serving = other.submit(leading.serve)
            while not serving.done() or serving.result() is None:
                if serving.done():
                    serving = other.submit(leading.serve)
                if watched.poll(_POLL_MS):
                    os.read(leading.fileno(), 8)
                while (batch := leading.next()) is not None:
                    last = batch
                if last is not None and leading.forced >= last.index:
                    leading.majority_has(last.end_lsn)  # the index forced on this disk: there is no other disk
                    last = None
        except BaseException:
            leading.call_off()
            raise
    leading.cease()
