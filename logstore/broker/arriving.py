"""The contents that are still arriving, over all connections and hosts, and the memory that they take.

A connection whose contents have more than its part of the share is not read (`Pause.MEMORY`) until bytes are given
back. The connection of the oldest unfinished content is read always, and so is that of the oldest large body of each
host, for which others wait in the log. So some content always goes on to its end, however many are begun, and memory
exceeds the share by one content.

Invariant: a content is here from the first of its frames that is not the last one until it is complete or dropped.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from logstore.broker.errors import RESOURCE_ERROR, ConnectionException

if TYPE_CHECKING:
    import asyncio

    from logstore.broker.channel import Channel
    from logstore.broker.connection import Connection
    from logstore.broker.contents import Content
    from logstore.broker.limits import Limits
    from logstore.broker.memory import Share

logger = logging.getLogger(__name__)

_LOOKS: Final = 4  # in `unfinished_stall_s`: a content that stands still is noticed at most a quarter of it later


class _Progress:
    """How far a content had come when it was last looked at."""

    __slots__ = ("channel", "missing", "since")

    def __init__(self, channel: Channel, missing: int, since: float) -> None:
        self.channel = channel
        self.missing = missing
        self.since = since


class Arriving:
    """The unfinished contents of one broker. Belongs to its event loop."""

    def __init__(self, share: Share, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        self.share = share
        self.clock = loop.time
        self._loop = loop
        self._stall_s = limits.unfinished_stall_s
        self._contents: dict[Content, _Progress] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """The broker ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def grow(self, content: Content, channel: Channel, size: int) -> bool:
        """Count bytes of an incomplete content that were received. False: its connection has more than its part."""
        if not content.reserved and content not in self._contents:
            self._contents[content] = _Progress(channel, content.missing, self.clock())
            if self._timer is None:
                self._look_later()
        content.reserved += size
        holdings, share = channel.connection.holdings, self.share
        holdings.arriving_bytes += size
        share.used_bytes += size
        return holdings.arriving_bytes <= share.bytes_max - share.used_bytes or self.may_read(channel.connection)

    def shrink(self, channel: Channel, size: int) -> None:
        """Bytes were written to the log, or dropped."""
        channel.connection.holdings.arriving_bytes -= size
        self.share.give_back(size)

    def over(self, content: Content, channel: Channel) -> None:
        """A content is complete or dropped."""
        if self._contents.pop(content, None) is not None:
            self.shrink(channel, content.reserved)
            content.reserved = 0
            self.share.wake()  # another one is the oldest

    def may_read(self, connection: Connection) -> bool:
        """Whether a connection may be read, as far as its contents are concerned."""
        if self.share.fits(connection.holdings.arriving_bytes):
            return True
        oldest = next(iter(self._contents.values()), None)
        return (
            oldest is None or oldest.channel.connection is connection or connection.host.uploads.has_oldest(connection)
        )

    # Contents that stand still.

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._stall_s / _LOOKS, self.look)

    def look(self) -> None:
        """Close the connection of each content that has not grown for `unfinished_stall_s`, although it was read."""
        self._timer = None
        now = self.clock()
        for content, progress in list(self._contents.items()):
            channel = progress.channel
            waits = channel.connection.receiving.is_paused or channel.held is not None
            if content.missing != progress.missing or waits:
                progress.missing, progress.since = content.missing, now
            elif now - progress.since >= self._stall_s:
                text = f"a message on channel {channel.number} has not grown for {self._stall_s:g} s"
                logger.warning("%s is closed: %s", channel.connection, text)
                channel.connection.fail(ConnectionException(RESOURCE_ERROR, text), 0)
        if self._contents:
            self._look_later()
