"""Runs of like frames in received bytes: publishes that differ only in their bodies, and acknowledgements.

A busy connection mostly sends these two. Their frames are compared with bytes known beforehand, without an object for
each. A run means the same as its frames one by one, and can be turned back into them.
"""

from __future__ import annotations

import operator
import re
import struct
from typing import Final

from pamqp import commands

from logstore.broker import frames
from logstore.broker.limits import FRAME_OVERHEAD_BYTES

RUN_MAX: Final = 512  # publishes or acknowledgements

_BASIC: Final = commands.Basic.frame_id
_PREFIX: Final = struct.Struct(">BHI")  # type, channel, size
_HEAD: Final = struct.Struct(">BBHIHH")  # end octet of the method; type, channel, size; class, weight
_BODY: Final = struct.Struct(">BBH")  # end octet of the header; type, channel
_BODY_BYTES: Final = struct.Struct(">Q")
_FRAME_BYTES: Final = struct.Struct(">I")
_END: Final = frames.END_OCTET[0]

_ACK_START: Final = re.escape(_FRAME_BYTES.pack(frames.ACK_BYTES) + frames.ACK_START)
_ACK_REST: Final = _ACK_START + rb".{8}\x00" + re.escape(frames.END_OCTET)  # tag; without the bit that says multiple
_acks: Final = re.compile(rb"(?s:\x01(..)" + _ACK_REST + rb"(?:\x01\1" + _ACK_REST + rb"){1,%d})" % (RUN_MAX - 1)).match
_ACK_FRAME_BYTES: Final = frames.ACK_BYTES + FRAME_OVERHEAD_BYTES
_ACK_SAME_BYTES: Final = _ACK_FRAME_BYTES - 10  # before the tag
_ack_tags: Final = struct.Struct(">11xQ2x").iter_unpack
_first: Final = operator.itemgetter(0)
_ACK_ARGUMENTS: Final = struct.Struct(">QB")


class PublishForm:
    """The bytes that successive publishes of a channel have in common: all but the body and its length."""

    __slots__ = ("_before", "_body_bytes", "_body_bytes_max", "_rest", "_start", "channel", "method", "properties")

    def __init__(self, channel: int, method: bytes, properties: bytes, body_bytes_max: int) -> None:
        self.channel = channel
        self.method = method  # payload of the method frame
        self.properties = properties
        self._body_bytes_max = body_bytes_max  # also of one frame
        method_frame = _PREFIX.pack(frames.METHOD, channel, len(method)) + method
        self._start = method_frame + _HEAD.pack(
            _END, frames.HEADER, channel, frames.CONTENT_HEADER_BYTES + len(properties), _BASIC, 0
        )
        self._rest = properties + _BODY.pack(_END, frames.BODY, channel)
        self._body_bytes = 0  # of the last body
        self._before = b""  # everything before it

    def take(self, data: bytes, at: int) -> tuple[list[bytes], int]:
        """The bodies of the complete publishes from ``at`` on, and the position after them."""
        bodies: list[bytes] = []
        before, body_bytes = self._before, self._body_bytes
        while len(bodies) < RUN_MAX:
            if not before or not data.startswith(before, at):
                if not self._meet(data, at):
                    break
                before, body_bytes = self._before, self._body_bytes
            start = at + len(before)
            end = start + body_bytes
            if end >= len(data) or data[end] != _END:
                break
            bodies.append(data[start:end])
            at = end + 1
            if at == len(data):
                break
        return bodies, at

    def only_body(self, data: bytes) -> tuple[int, int]:
        """Where the body begins and ends if the bytes are one publish and nothing else; (0, 0) if not."""
        before = self._before
        if not data.startswith(before) or not before:
            if not self._meet(data, 0):
                return 0, 0
            before = self._before
        start, end = len(before), len(data) - 1
        return (start, end) if end - start == self._body_bytes and data[end] == _END else (0, 0)

    def _meet(self, data: bytes, at: int) -> bool:
        """Whether the bytes before the body have this form; then they are kept for the next publish."""
        size_at = at + len(self._start)
        if len(data) - size_at < _BODY_BYTES.size or not data.startswith(self._start, at):
            return False
        (size,) = _BODY_BYTES.unpack_from(data, size_at)
        if not 0 < size <= self._body_bytes_max:
            return False
        before = b"".join((self._start, _BODY_BYTES.pack(size), self._rest, _FRAME_BYTES.pack(size)))
        if not data.startswith(before, at):
            return False
        self._before, self._body_bytes = before, size
        return True


class PublishRun:
    """Successive publishes of one form."""

    __slots__ = ("bodies", "form")

    def __init__(self, form: PublishForm, bodies: list[bytes]) -> None:
        self.form = form
        self.bodies = bodies

    @property
    def channel(self) -> int:
        """The number of the channel."""
        return self.form.channel

    @property
    def count(self) -> int:
        """How many publishes."""
        return len(self.bodies)

    def raw_frames(self) -> list[frames.RawFrame]:
        """The frames that it stands for."""
        form, number = self.form, self.form.channel
        start = struct.pack(">HH", _BASIC, 0)
        return [
            each
            for body in self.bodies
            for each in (
                (frames.METHOD, number, form.method),
                (frames.HEADER, number, start + _BODY_BYTES.pack(len(body)) + form.properties),
                (frames.BODY, number, body),
            )
        ]


class AckRun:
    """Successive acknowledgements on one channel, of one message each."""

    __slots__ = ("channel", "tags")

    def __init__(self, channel: int, tags: list[int]) -> None:
        self.channel = channel
        self.tags = tags

    @property
    def count(self) -> int:
        """How many acknowledgements."""
        return len(self.tags)

    def raw_frames(self) -> list[frames.RawFrame]:
        """The frames that it stands for."""
        pack = _ACK_ARGUMENTS.pack
        return [(frames.METHOD, self.channel, frames.ACK_START + pack(tag, 0)) for tag in self.tags]


class Runs:
    """Recognizes the runs of one connection."""

    __slots__ = ("form",)

    def __init__(self) -> None:
        self.form: PublishForm | None = None  # of the last publish that was collected

    def take_alike(self, data: bytes, at: int) -> tuple[PublishRun, int] | None:
        """The publishes of the last form that begin at ``at``, and the position after them. None if there are none."""
        form = self.form
        if form is not None:
            bodies, end = form.take(data, at)
            if bodies:
                return PublishRun(form, bodies), end
        return None

    def take(self, data: bytes, at: int, channel: int, size: int) -> tuple[frames.Run, int] | None:
        """The run that begins with the method frame at ``at``, and the position after it. None if there is none."""
        form = self.form
        if form is not None and channel == form.channel and size == len(form.method):
            alike = self.take_alike(data, at)
            if alike is not None:
                return alike
        if size == frames.ACK_BYTES and data.startswith(data[at : at + _ACK_SAME_BYTES], at + _ACK_FRAME_BYTES):
            acks = _acks(data, at)
            if acks is not None:
                return AckRun(channel, list(map(_first, _ack_tags(acks[0])))), acks.end()
        return None
