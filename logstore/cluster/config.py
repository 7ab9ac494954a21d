"""``cluster.toml``, the configuration of a member: read with ``tomllib``, written with a comment above each key.

Nothing is guessed: an unknown key, a wrong type or an impossible value is an error that names the file and the key.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore.cluster.addresses import Tls, judge_plain, parse
from logstore.cluster.certificates import member_name
from logstore.cluster.directory import CONFIG_NAME
from logstore.core import arguments
from logstore.core.regular_files import force_directory
from logstore.errors import NotAStore, OptionError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logstore.cluster.member import MemberConfig

FILE_NAME: Final = CONFIG_NAME
MEMBER_MAX: Final = (1 << 53) - 1
"""The largest id that every reader of JSON gets exactly."""

_UUID: Final = re.compile("[0-9a-f]{32}")
_KINDS: Final = {str: "a text", int: "a number", list: "a list of texts"}
_REQUIRED: Final[dict[str, type]] = {"name": str, "member": int, "cluster": str, "listen": str}
_OPTIONAL: Final[dict[str, type]] = {"advertise": str, "join": list, "amqp": str, "ca": str, "cert": str, "key": str}
KEYS: Final = (*_REQUIRED, *_OPTIONAL)
_TLS: Final = ("ca", "cert", "key")
_UNSPECIFIED: Final = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFile:
    """The contents of ``cluster.toml``. Raises ``OptionError`` for what is impossible; the text begins with the key."""

    name: str
    member: int
    """The member's id: from 1 to ``MEMBER_MAX``, never given again."""
    cluster: bytes
    """The cluster's UUID, 16 bytes."""
    listen: str
    advertise: str = ""
    """The address that the other members use; as ``listen`` if it is not given."""
    join: tuple[str, ...] = ()
    """Addresses of members that were asked to take this one; none for the first."""
    amqp: str = ""
    """Where its broker listens for clients; empty: it has none. Any address may be used, also without TLS."""
    ca: str = ""
    """This and the next two: paths as in the file, relative to its directory; all or none."""
    cert: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if not self.advertise:
            object.__setattr__(self, "advertise", self.listen)
        with _named("name"):
            member_name(self.name)
        with _named("member"):
            arguments.integer("the id", self.member, 1, MEMBER_MAX)
        for key, address in self._addresses():
            with _named(key):
                host, port = parse(address)
                if port == 0:
                    raise OptionError(f"{address} needs a port from 1 on")
                if key != "listen" and host in _UNSPECIFIED:
                    raise OptionError(f"{address} is no address that another member could use")
        if self.amqp:
            with _named("amqp"):
                if parse(self.amqp)[1] == 0:
                    raise OptionError(f"{self.amqp} needs a port from 1 on")
        given = [key for key in _TLS if getattr(self, key)]
        if given and len(given) < len(_TLS):
            missing = next(key for key in _TLS if key not in given)
            raise OptionError(f"{missing}: it is missing, and {given[0]} is there: give ca, cert and key, or none")
        if not given:
            for key, address in self._addresses():
                with _named(key):
                    judge_plain([address])

    def _addresses(self) -> list[tuple[str, str]]:
        return [("listen", self.listen), ("advertise", self.advertise), *(("join", one) for one in self.join)]

    def tls(self, directory: Path) -> Tls | None:
        """The files for TLS; None if the configuration names none, because every address is one of the loopback."""
        return Tls(directory / self.ca, directory / self.cert, directory / self.key) if self.ca else None

    def config(self, directory: Path) -> MemberConfig:
        """The options with which a :class:`~logstore.cluster.member.Member` is started."""
        # Imported late, so that a file can be read without the extra `cluster`.
        from logstore.cluster.member import MemberConfig

        return MemberConfig(
            cluster=self.cluster,
            member=self.member,
            name=self.name,
            listen=self.listen,
            advertise=self.advertise,
            join=self.join,
            tls=self.tls(directory),
        )


@contextmanager
def _named(key: str) -> Iterator[None]:
    """Puts the key in front of the text of an ``OptionError``."""
    try:
        yield
    except OptionError as error:
        error.message = f"{key}: {error.message}"
        raise


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(directory: Path) -> MemberFile:
    """The configuration in a member's directory.

    Raises ``NotAStore`` if there is none, ``OptionError`` for one that cannot be meant, ``StoreError`` if the system
    refuses to read it.
    """
    path = directory / FILE_NAME
    try:
        text = path.read_bytes().decode()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotAStore(
            f"{directory} is no member's directory: it has no {FILE_NAME}. 'logstore cluster init' makes one; --dir "
            "names one that exists"
        ) from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{path} is not UTF-8: {error}") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return _read(text)
    except OptionError as error:
        error.message = f"{path}: {error.message}"
        raise


def _read(text: str) -> MemberFile:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"it is not TOML: {error}") from error
    others = [key for key in document if key != "cluster"]
    if others:
        raise OptionError(f"{others[0]}: only the table [cluster] is known")
    table = document.get("cluster")
    if not isinstance(table, dict):
        raise OptionError("cluster: the table [cluster] is missing")
    known = _REQUIRED | _OPTIONAL
    for key, value in table.items():
        if key not in known:
            raise OptionError(f"{key}: this key is unknown; known are {', '.join(KEYS)}")
        _check_type(key, value, known[key])
    missing = [key for key in _REQUIRED if key not in table]
    if missing:
        raise OptionError(f"{missing[0]}: this key is missing")
    if not _UUID.fullmatch(table["cluster"]):
        raise OptionError("cluster: a UUID is 32 digits from 0 to f")
    values: dict[str, Any] = dict(table)
    values["cluster"], values["join"] = bytes.fromhex(table["cluster"]), tuple(table.get("join", ()))
    return MemberFile(**values)


def _check_type(key: str, value: Any, kind: type) -> None:
    if type(value) is not kind or (isinstance(value, list) and any(type(one) is not str for one in value)):
        raise OptionError(f"{key}: {value!r} is not {_KINDS[kind]}")
    if kind is str and not value:
        raise OptionError(f"{key}: the text is empty; leave the key out if there is nothing to say")


# ---- writing ---------------------------------------------------------------------------------------------------------


def text_of(file: MemberFile) -> str:
    """The text of the file, which :func:`read` can read back."""
    parts = [
        "# A member of a logstore cluster. Restart the member after a change.",
        "[cluster]",
        "# The member's name, a host name in small letters; with TLS it is in the member's certificate.",
        f"name = {_quoted(file.name)}",
        "# The member's id and the cluster's UUID. Never change them, and never use an id again.",
        f"member = {file.member}",
        f"cluster = {_quoted(file.cluster.hex())}",
        "# Where it listens for the other members.",
        f"listen = {_quoted(file.listen)}",
        "# The address under which the others reach it.",
        f"advertise = {_quoted(file.advertise)}",
        "# Members that were asked to take this one; empty for the first member of a cluster.",
        f"join = [{', '.join(map(_quoted, file.join))}]",
        "# Where clients reach its AMQP broker. Without it the member has none.",
        f"{'' if file.amqp else '# '}amqp = {_quoted(file.amqp or '127.0.0.1:5672')}",
        "# TLS: the cluster's authority, this member's certificate and its key ('logstore cluster cert' makes them).",
        "# Relative to this file. Without them every address must be one of the loopback.",
    ]
    parts += [f"{'' if getattr(file, key) else '# '}{key} = {_quoted(getattr(file, key))}" for key in _TLS]
    return "".join(f"{part}\n" for part in parts)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def write(directory: Path, file: MemberFile) -> None:
    """Writes the whole file, forced and then renamed into place. Raises ``OptionError`` and ``StoreError``."""
    path = directory / FILE_NAME
    new = path.with_suffix(".new")
    try:
        data = text_of(file).encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"{path}: a path is not UTF-8") from error
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as made:
            made.write(data)
            made.flush()
            os.fsync(made.fileno())
        os.replace(new, path)
        force_directory(directory)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
