"""Which virtual hosts a broker has, apart from `/`: rows in the catalog of the store of `/`.

One entry per host, `broker.vhost.DIRECTORY`: a JSON object with `name` and `state`. The rows alone decide; a directory
without a row is no host. So every step of a change can be the last one before a crash:

    add      make the store; then the row, `present`
    remove   the row becomes `removing`; then the users' permissions and the directory go; then the row

A store without a row is taken over by the next `add` of its name, with what is in it: so a store that was made before a
crash is used, and a host can be moved. A row that is `removing` is finished by the next change or start.

Invariant: nothing here is deleted unless its row says `removing`.
"""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import logstore
from logstore.broker.users import Users
from logstore.core.counts import counted
from logstore.core.host_directory import HOSTS, ROOT, host_directory
from logstore.core.regular_files import as_store_error, force_directory
from logstore.errors import OptionError, StoreError
from logstore.store.limit import LIMIT_SEGMENTS_MIN, checked_limit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from logstore import MessageStore
    from logstore.store.fullness import Fullness

logger = logging.getLogger(__name__)

NAME_BYTES_MAX: Final = 255  # a short string of AMQP
PRESENT: Final = "present"
REMOVING: Final = "removing"
OPTIONS: Final = ("segment_size", "max_log_bytes")  # of `logstore.open`, for the store of one new host
_PREFIX: Final = "broker.vhost."


@dataclass(frozen=True, slots=True)
class HostRow:
    """One row of the catalog."""

    name: str
    directory: str
    state: str


def host_rows(config: Mapping[str, str]) -> list[HostRow]:
    """The rows by name. One that cannot be read is left out, and logged."""
    rows = []
    for key, value in config.items():
        if key.startswith(_PREFIX):
            try:
                row = json.loads(value)
                name, state = str(row["name"]), str(row["state"])
            except (ValueError, KeyError, TypeError):
                logger.warning("the catalog's entry %r is not a virtual host: ignored", key)
                continue
            if _PREFIX + host_directory(name) == key:
                rows.append(HostRow(name, key.removeprefix(_PREFIX), state))
    return sorted(rows, key=lambda row: row.name)


def check_host_name(name: str) -> str:
    """The name if a host may have it. Raises `OptionError` otherwise."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise OptionError("the name of a virtual host is text in UTF-8") from None
    if not 1 <= size <= NAME_BYTES_MAX:
        raise OptionError(f"the name of a virtual host has 1 to {NAME_BYTES_MAX} bytes in UTF-8, not {size}")
    if name == "/":
        raise OptionError("the virtual host '/' is the store in DIR itself: it is always there")
    return name


def held_by(store: MessageStore) -> dict[str, int]:
    """What would be lost with a store: messages on its queues, and transactions in doubt."""
    return {"messages": sum(queue.depth for queue in store.queues()), "in_doubt": len(store.in_doubt())}


def change_limit(name: str, store: MessageStore, limit: int | str) -> dict[str, Any]:
    """Change the limit of the log of a host, also of `/`; `none` removes it. Refused below what the log has on disk."""
    wanted, found = checked_limit(limit), store.fullness()
    if LIMIT_SEGMENTS_MIN * found.segment_size <= wanted < found.log_bytes:
        return {"refused": below_text(name, wanted, found)}
    store.set_max_log_bytes(wanted or "none")
    return {"directory": str(store.path), "max_log_bytes": wanted or None}


class HostList:
    """The hosts beside the store of `/`, which is open. Every method may wait for the disk."""

    def __init__(self, root: MessageStore) -> None:
        self._root = root

    def rows(self) -> list[HostRow]:
        """All rows, by name."""
        return host_rows(self._root.config)

    def row(self, name: str) -> HostRow | None:
        """The row of a host that is present; None if there is none."""
        return next((row for row in self.rows() if row.name == name and row.state == PRESENT), None)

    def path(self, name: str) -> Path:
        """The directory of a host's store."""
        path: Path = self._root.path / HOSTS / host_directory(name)
        return path

    def open(self, name: str, options: Mapping[str, Any]) -> MessageStore:
        """Open the store of a host that is present. Raises the errors of `logstore.open`; it makes no store."""
        return logstore.open(self.path(name), create=False, **options)

    def make(self, name: str, options: Mapping[str, Any]) -> MessageStore:
        """Make the store of a new host, or open the one that is there, and add the row."""
        hosts = self._root.path / HOSTS
        with as_store_error(f"no virtual host can be made in {hosts}"):
            with suppress(FileExistsError):
                hosts.mkdir(mode=0o700)
            force_directory(self._root.path)
            store = logstore.open(hosts / host_directory(name), **options)
            try:
                force_directory(hosts)
                self._write(name, PRESENT)
            except BaseException:
                store.close()
                raise
        return store

    def begin_removal(self, name: str) -> None:
        """Mark the host as removed; from now on it is gone even if a later step fails. Its store may still be open."""
        self._write(name, REMOVING)

    def finish_removals(self) -> None:
        """Delete what is left of hosts whose removal has begun. Their stores are not open."""
        for row in self.rows():
            if row.state == REMOVING:
                Users(self._root.config).forget_host(row.name)
                path = self.path(row.name)
                with as_store_error(f"{path} cannot be removed"):
                    if path.is_symlink():
                        # An operator has put the store elsewhere, perhaps next to other files, which must stay.
                        path.unlink()
                    elif path.exists():
                        shutil.rmtree(path)
                    if path.parent.exists():
                        force_directory(path.parent)
                del self._root.config[_PREFIX + row.directory]

    def _write(self, name: str, state: str) -> None:
        self._root.config[_PREFIX + host_directory(name)] = json.dumps({"name": name, "state": state})


# ---- Why a command is refused


def exists_text(name: str) -> str:
    """The error for a host that cannot be added."""
    return f"the virtual host {name!r} exists already"


def missing_text(name: str) -> str:
    """The error for a host that does not exist."""
    return f"there is no virtual host {name!r}: 'logstore vhost DIR list' shows them"


def down_text(name: str, error: Exception) -> str:
    """For a host that cannot be opened again."""
    why = error.message if isinstance(error, StoreError) else str(error)
    return f"the virtual host {name!r} cannot be opened and stays down: {why}"


def below_text(name: str, wanted: int, found: Fullness) -> str:
    """For a limit that is less than what the log has."""
    directory = "DIR" if name == ROOT else f"DIR/{HOSTS}/{host_directory(name)}"
    return (
        f"the log of the virtual host {name!r} has {counted(found.log_bytes, 'byte')} on disk, {found.live_bytes} of "
        f"them live, so its limit cannot be {wanted}: consume messages, and 'logstore compact {directory}' makes it "
        "smaller"
    )


def unopened_text(name: str) -> str:
    """For a change of a host that the broker could not open."""
    return f"the virtual host {name!r} is down: 'logstore vhost DIR reopen' opens it, or says why it cannot"


def unserved_text(name: str) -> str:
    """For a host that is to be opened again where no broker runs."""
    return f"no broker serves the virtual host {name!r}: 'logstore serve DIR' opens every host when it starts"


def held_text(name: str, held: Mapping[str, int]) -> str:
    """The error for a host that is not removed because it still has messages."""
    parts = [counted(held["messages"], "message")] if held["messages"] else []
    if held["in_doubt"]:
        parts.append(counted(held["in_doubt"], "transaction") + " in doubt")
    return f"the virtual host {name!r} has {' and '.join(parts)}: repeat with --yes to delete them"


def unknown_text(name: str, why: str) -> str:
    """The error for a host whose messages cannot be counted."""
    return f"the messages of the virtual host {name!r} are unknown, because {why}: repeat with --yes to delete them"
