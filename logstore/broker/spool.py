"""Uncommitted publishes of a transaction that its part of memory does not hold: they wait in the log, in blocks.

A block is a staged message, which is on no queue and which the next open drops. The commit reads the blocks one after
the other and publishes their messages within its transaction of the store; then they are destroyed, as after a
rollback. Its content is the publishes in their order:

    route       4 bytes, the number in the block's list of routes
    flags       1 byte, those of basic.publish
    expires     1 byte, 1 if there is an expiration
    expiration  4 bytes, milliseconds
    sizes       2 + 4 + 8 bytes, of what follows
    routing     exchange and routing key, two short strings
    properties  flags and list as the publisher sent them
    body

Integers are big-endian. Invariant: a block has no large body, as that is in the log already (`uploads`).
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.broker.contents import Content
from logstore.broker.headers import header_bytes
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from logstore import MessageStore
    from logstore.broker.channel import Channel
    from logstore.broker.exchanges import Route

logger = logging.getLogger(__name__)

SPOOL_BYTES: Final = 256 * 1024  # of memory, that publishes have when they are written as a block
BLOCK_BYTES: Final = 1024  # of memory for a block that is written; measured, rounded up
_ENTRY: Final = struct.Struct(">IBBIHIQ")


class Publish(NamedTuple):
    """A complete message, and its route at the time of its publish."""

    route: Route
    content: Content
    expiration_ms: int | None


class Total:
    """The number and size of a block's messages for one route."""

    __slots__ = ("count", "expires", "route", "size")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.count = 0
        self.size = 0  # bytes of headers and bodies
        self.expires = False

    def add(self, publish: Publish) -> None:
        """Add one publish."""
        content = publish.content
        self.count += 1
        self.size += header_bytes(content.routing, content.properties or b"", publish.expiration_ms) + content.body_size
        self.expires = self.expires or publish.expiration_ms is not None


class Block:
    """Publishes that are in the log."""

    __slots__ = ("id", "size", "totals")

    def __init__(self, message_id: int, size: int, totals: Sequence[Total]) -> None:
        self.id = message_id
        self.size = size  # bytes in the log
        self.totals = totals


def write(channel: Channel, publishes: Iterable[Publish]) -> Block:
    """Write publishes to the log. Raises `StoreError`, or a 506 channel exception if there are too many there."""
    totals: dict[Route, Total] = {}
    numbers: dict[Route, int] = {}
    parts: list[bytes | bytearray] = []
    for publish in publishes:
        route, content = publish.route, publish.content
        body, properties = content.body, content.properties or b""
        number = numbers.setdefault(route, len(numbers))
        totals.setdefault(route, Total(route)).add(publish)
        expires, expiration_ms = publish.expiration_ms is not None, publish.expiration_ms or 0
        sizes = len(content.routing), len(properties), len(body)
        parts += (_ENTRY.pack(number, content.flags, expires, expiration_ms, *sizes), content.routing, properties, body)
    data = b"".join(parts)
    uploads = channel.connection.host.uploads
    uploads.keep_block(len(data))
    try:
        message_id = channel.store.stage(b"", data)
    except StoreError:
        uploads.forget_block(len(data))
        raise
    channel.connection.published = True
    return Block(message_id, len(data), list(totals.values()))


def read(store: MessageStore, block: Block) -> Iterator[Publish]:
    """The publishes of a block. Raises `StoreError` if it cannot be read."""
    data = store.load_content(block.id)
    at = 0
    while at < len(data):
        number, flags, expires, expiration_ms, routing, properties, body = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        content = Content(data[at : at + routing], flags)
        at += routing
        content.properties = data[at : at + properties]
        at += properties
        content.pieces = [data[at : at + body]]
        content.body_size = body
        at += body
        yield Publish(block.totals[number].route, content, expiration_ms if expires else None)


def destroy(channel: Channel, blocks: Sequence[Block]) -> None:
    """Remove blocks from the log, in another thread."""
    if not blocks:
        return
    uploads, store, loop = channel.connection.host.uploads, channel.store, channel.wakeups.loop
    for block in blocks:
        uploads.forget_block(block.size)

    def destroy_all() -> None:
        for block in blocks:
            try:
                store.destroy(block.id, wait=False)
            except StoreError as error:
                logger.debug("message %d stays until the next open: %s", block.id, error)

    async def in_thread() -> None:
        await loop.run_in_executor(None, destroy_all)

    channel.vhost.changes.keep(loop.create_task(in_thread()))
