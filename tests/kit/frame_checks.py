"""The checks on any bytes that a peer sends: shared by the property tests and by the fuzzer.

Any bytes, in any pieces, give frames, or a wait for more, or one `ConnectionException` with a code of the protocol.
Never another exception, and never more memory than one frame of the negotiated size.
"""

from __future__ import annotations

import itertools
import struct
from typing import Final

from pamqp import commands
from pamqp import header as pamqp_header

from logstore.broker import fields, frames
from logstore.broker.errors import ConnectionException
from logstore.broker.runs import PublishForm, Runs

FRAME_BYTES_MAX: Final = 4096
METHOD_INDEXES: Final = sorted(commands.INDEX_MAPPING)
_KINDS: Final = (frames.METHOD, frames.HEADER, frames.BODY, frames.HEARTBEAT)


def kept_bytes(reader: frames.FrameReader) -> int:
    """The bytes of an incomplete frame in the reader. The attribute is private, but its size is promised."""
    return len(reader._buffer)


def read_in_pieces(
    data: bytes, cuts: list[int], frame_bytes_max: int, runs: Runs | None = None
) -> tuple[list[frames.RawFrame], int | None]:
    """Feed the bytes in these pieces; the frames, and the code of the error. Runs are turned back into frames."""
    reader = frames.FrameReader(frame_bytes_max)
    reader.runs = runs
    received: list[frames.RawFrame] = []
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for start, end in itertools.pairwise(ends):
        for each in reader.feed(data[start:end]):
            received += [each] if isinstance(each, tuple) else each.raw_frames()
        assert kept_bytes(reader) <= frame_bytes_max, "more was kept than one frame may have"
    assert all(len(payload) + 8 <= frame_bytes_max for _, _, payload in received)
    return received, None if reader.error is None else reader.error.code


def runs_of(received: list[frames.RawFrame], frame_bytes_max: int) -> Runs:
    """Runs with the form of the first publish among the frames."""
    runs = Runs()
    for (kind, channel, method), (head_kind, _, head) in itertools.pairwise(received):
        if kind == frames.METHOD and method.startswith(frames.PUBLISH_START) and head_kind == frames.HEADER:
            properties = head[frames.CONTENT_HEADER_BYTES :]
            runs.form = PublishForm(channel, method, properties, frame_bytes_max - 8)
            break
    return runs


def check_reader(data: bytes, cuts: list[int], frame_bytes_max: int = FRAME_BYTES_MAX) -> list[frames.RawFrame]:
    """Neither the pieces nor runs matter, and the frames are those of the input, up to the first error."""
    whole, error = read_in_pieces(data, [], frame_bytes_max)
    assert read_in_pieces(data, cuts, frame_bytes_max) == (whole, error)
    assert read_in_pieces(data, cuts, frame_bytes_max, runs_of(whole, frame_bytes_max)) == (whole, error)
    assert error in (None, 501)
    again = b"".join(struct.pack(">BHI", kind, channel, len(load)) + load + b"\xce" for kind, channel, load in whole)
    assert data.startswith(again)
    return whole


def check_payload(kind: int, payload: bytes) -> None:
    """A frame's payload is decoded, or refused as the protocol says."""
    try:
        if kind == frames.METHOD:
            index = frames.method_index(payload)
            method = frames.decode_method(index, payload)
            assert method.index == index
        elif kind == frames.HEADER:
            check_properties(payload[12:])
    except ConnectionException as error:
        assert error.code in (502, 540)
        assert len(error.reply_text.encode()) <= 255


def check_properties(data: bytes) -> None:
    """Bytes that pass the check are a complete property list, so pamqp can read them, too."""
    try:
        fields.check_properties(data, 0)
    except fields.MalformedFields:
        return
    head = pamqp_header.ContentHeader()
    try:
        head.unmarshal(struct.pack(">HHQ", 60, 0, 0) + data)
    except (OverflowError, ValueError, OSError) as error:  # a well-formed number that is no date
        assert "year" in str(error) or "timestamp" in str(error) or "range" in str(error)


def check_bytes(data: bytes, cuts: list[int]) -> None:
    """Everything above."""
    for kind, _, payload in check_reader(data, cuts):
        check_payload(kind, payload)


def frames_of(data: bytes) -> bytes:
    """Frames from a short form, so that a fuzzer gets beyond the prefix: kind, method, length, payload."""
    parts = []
    at = 0
    while at + 3 <= len(data):
        kind, which, length = _KINDS[data[at] % 4], data[at + 1], data[at + 2]
        payload = data[at + 3 : at + 3 + length]
        if kind == frames.METHOD:
            payload = struct.pack(">I", METHOD_INDEXES[which % len(METHOD_INDEXES)]) + payload
        elif kind == frames.HEADER:
            payload = struct.pack(">HHQ", 60, 0, which) + payload
        parts.append(struct.pack(">BHI", kind, data[at] >> 4, len(payload)) + payload + b"\xce")
        at += 3 + length
    return b"".join(parts)


def check_told(data: bytes) -> None:
    """One input of the fuzzer: a byte for its kind, one for the pieces, and the bytes."""
    if len(data) < 2:
        return
    cuts = [data[1] * factor for factor in (1, 3, 7, 31)]
    check_bytes(frames_of(data[2:]) if data[0] & 1 else data[2:], cuts)
