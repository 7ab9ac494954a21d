"""Control messages over a pair of streams, for connections whose purpose is not ``frames``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.cluster import frames
from logstore.cluster.frames import BadFrame

if TYPE_CHECKING:
    import asyncio

    from logstore.cluster.frames import Message, Messages


async def read_control(reader: asyncio.StreamReader, messages: Messages, what: str) -> Message:
    """The next message. ``what``: the kind of exchange, for errors.

    Raises ``BadFrame``, and the errors of the stream.
    """
    while True:
        head = await reader.readexactly(frames.HEAD.size)
        _, length, kind, _, _ = frames.HEAD.unpack(head)
        if kind != frames.CONTROL or not frames.HEAD.size <= length <= frames.CONTROL_BYTES_MAX:
            raise BadFrame(f"a frame of type {kind} with {length} bytes came in {what}")
        frame = head + await reader.readexactly(length - len(head))
        if not frames.is_sealed(frame):
            raise BadFrame(f"the checksum of a frame with {length} bytes is wrong")
        message = messages.read(memoryview(frame))
        if message is not None:
            return message
