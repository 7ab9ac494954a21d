"""A member's directory: its lock, its hosts, and their state while no member runs.

```
DIR/cluster.toml      the configuration (config.py)
DIR/LOCK              locked while a member runs, or a command changes the directory
DIR/member.sock       answers commands while the member runs (running.py)
DIR/catalog.sqlite    the users of its broker (brokering.py)
DIR/HOST/VOTE         a replicated store: the member's term, vote and identity
DIR/HOST/copy-N/      and its copy
```
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from logstore.catalog.backends import FILE_NAME as CATALOG
from logstore.codec.files import BLOCK_BYTES, Vote
from logstore.codec.records import InvalidRecord
from logstore.core.lock_holder import store_locked
from logstore.core.regular_files import lock_regular, read_start
from logstore.errors import OptionError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG_NAME: Final = "cluster.toml"
VOTE_NAME: Final = "VOTE"
LOCK_NAME: Final = "LOCK"
SOCKET_NAME: Final = "member.sock"
_HOST: Final = re.compile("[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def host_name(name: str) -> str:
    """Checks a host's name, which is that of its directory. Raises ``OptionError``."""
    if not _HOST.fullmatch(name) or name in (LOCK_NAME, SOCKET_NAME) or name.startswith((CONFIG_NAME, CATALOG)):
        raise OptionError(
            f"a host's name has letters, digits, '-', '_' and '.', does not begin with '-' or '.', and is none of a "
            f"member's files: not {name!r}"
        )
    return name


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds the directory's lock; a running member holds the same lock.

    Raises ``StoreLocked``, which names the process.
    """
    try:
        file = lock_regular(directory / LOCK_NAME, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT)
    except BlockingIOError as error:
        advice = "a member runs there, or a command changes it"
        raise store_locked(directory, advice, "the member's directory") from error
    except OSError as error:
        raise StoreError(f"{directory / LOCK_NAME} cannot be locked: {error.strerror or error}") from error
    try:
        yield
    finally:
        os.close(file)


def hosts(directory: Path) -> list[Path]:
    """The directories of a member's hosts by name, including hosts whose replication has ended."""
    return sorted(path for path in directory.iterdir() if (path / VOTE_NAME).exists())


def read_vote(host_dir: Path) -> Vote | None:
    """The contents of ``VOTE``, read without a lock; None: the file is missing or damaged.

    While its member runs, a slot may be torn; the other one is valid then.
    """
    try:
        raw, _ = read_start(host_dir / VOTE_NAME, 2 * BLOCK_BYTES)
    except OSError:
        return None
    found = []
    for at in (0, BLOCK_BYTES):
        try:
            found.append(Vote.decode(raw[at : at + BLOCK_BYTES]))
        except InvalidRecord:
            continue
    return max(found, key=lambda one: one.sequence, default=None)


def copy_number(host_dir: Path) -> int:
    """N of ``copy-N``, where the member's copy is, as ``VOTE`` has it; 0: ``VOTE`` cannot be read.

    Until a new member's first update has ended there is no such directory. A directory with a higher number belongs to
    an update that has not ended, or never will.
    """
    vote = read_vote(host_dir)
    return 0 if vote is None else vote.copy


def takes_part(host_dir: Path) -> bool:
    """Whether the directory is a member's host whose replication has not ended.

    A damaged ``VOTE`` counts: its open says so.
    """
    if not (host_dir / VOTE_NAME).exists():
        return False
    vote = read_vote(host_dir)
    return vote is None or not vote.detached
