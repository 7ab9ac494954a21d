"""How a member joins: it asks a member for the list of members, makes a directory for each host, and asks to be added.

What it has then is empty; the leader brings it up to date, and makes it a voter. A member that stops in the middle asks
again at its next start, for each host of which it has no copy. It remembers the other members in a file, for the time
when no configuration names them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import struct
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from logstore.cluster.addresses import parse_named
from logstore.cluster.directory import host_name
from logstore.cluster.frames import CONTROL_BYTES_MAX
from logstore.cluster.membership import CHANGE_WITHIN_S
from logstore.cluster.replica import UUID_BYTES
from logstore.errors import OptionError, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from logstore.cluster.transport import Transport

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

FILE_NAME: Final = "members.json"
_LENGTH: Final = struct.Struct("<I")


class Join(msgspec.Struct, frozen=True):
    """The message that a program sends after its HELLO if it wants to become a member."""

    address: str
    """Where others reach it."""
    hosts: list[bytes]
    """The hosts, by UUID, to which it wants to be added: it has a directory for them, and no copy."""
    leaves: list[bytes] = []
    """The hosts from which it wants to be removed, to discard its copy; done before it is added to others."""
    within_s: float = CHANGE_WITHIN_S
    """How long it waits for that."""


class Joined(msgspec.Struct, frozen=True):
    """The answer, sent when the request was granted."""

    members: list[tuple[int, str]]
    """Each other member's id, and ``NAME@HOST:PORT``."""
    hosts: list[tuple[bytes, str]]
    """UUID and name."""
    refused: str
    """Why it was not added, or removed; empty: it was."""
    left: list[tuple[bytes, int, int]] = []
    """The hosts of which it is no member, durably; of each the term, and the rebuild number that was counted of it."""
    voters: list[tuple[bytes, int]] = []
    """Of each host how many voters there were when it asked, the one that asks among them; 0: it was none."""


_WHAT: Final = "a message about joining"
_JOIN: Final = msgspec.msgpack.Decoder(Join)
_JOINED: Final = msgspec.msgpack.Decoder(Joined)


async def receive_join(reader: asyncio.StreamReader) -> Join:
    """Reads the request. Raises ``StoreError`` if it cannot be meant."""
    return await receive(reader, _JOIN, _WHAT)


async def receive(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[_T], what: str) -> _T:
    """Reads one message of a connection that is not for frames. Raises ``StoreError``, which says ``what`` it is."""
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if size > CONTROL_BYTES_MAX:
            raise StoreError(f"{what} has at most {CONTROL_BYTES_MAX} bytes, not {size}")
        return decoder.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, OSError) as error:
        raise StoreError(f"the connection ended in the middle of {what}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{what}: {error}") from error


async def send(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    """Sends one message, which :func:`receive` reads."""
    body = msgspec.msgpack.encode(message)
    writer.write(_LENGTH.pack(len(body)) + body)
    await writer.drain()


async def ask(transport: Transport, address: str, join: Join) -> tuple[bytes, Joined]:
    """Asks the member at an address; returns the cluster's UUID, and the answer with its name and address.

    Raises ``StoreError`` if it refuses or does not answer, ``OptionError`` for an address that needs TLS.
    """
    hello, reader, writer = await transport.open_join(address)
    try:
        await send(writer, join)
        answer = await receive(reader, _JOINED, _WHAT)
    except OSError as error:
        raise StoreError(f"the member at {address} has not answered: {error}") from error
    finally:
        writer.close()
    for uuid, name in answer.hosts:
        host_name(name)
        if len(uuid) != UUID_BYTES:
            raise StoreError(f"the member at {address} has a host {name!r} without a UUID")
    return hello.cluster, answer


# ---- the file of the other members -----------------------------------------------------------------------------------


def remember(directory: Path, members: Mapping[int, tuple[str, str]]) -> None:
    """Writes the list of the other members to a file. If it cannot, it says so, and the file stays as it was."""
    named = {str(member): f"{name}@{address}" for member, (name, address) in sorted(members.items())}
    text = json.dumps({"members": named}, indent=1)
    made = directory / f"{FILE_NAME}.new"
    try:
        with made.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        made.replace(directory / FILE_NAME)
    except OSError as error:
        logger.warning("%s cannot be written: %s", directory / FILE_NAME, error)


def remembered(directory: Path) -> dict[int, tuple[str, str]]:
    """The other members from the file; a missing or invalid file gives an empty list."""
    path = directory / FILE_NAME
    try:
        members = json.loads(path.read_text(encoding="utf-8"))["members"]
        return {int(member): parse_named(named) for member, named in members.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OptionError) as error:
        logger.warning("%s cannot be read, and names nobody: %s", path, error)
        return {}
