"""A relay passes whole frames to the client."""

from __future__ import annotations

import random

import pytest
from pamqp import commands

from kit.amqp_client import raw_frame
from logstore.broker import frames
from logstore.broker.errors import ConnectionException
from logstore.broker.relay import WholeFrames

FRAME_BYTES_MAX = 4096


def pieces(data: bytes, rng: random.Random, longest: int) -> list[bytes]:
    found = []
    while data:
        size = rng.randint(1, longest)
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.mark.parametrize("longest", [1, 3, 12, 100, 5000, 100_000])
def test_only_whole_frames_pass_in_order_however_the_bytes_come(longest: int) -> None:
    rng = random.Random(longest)
    sent = [
        raw_frame(rng.choice((1, 2, 3)), rng.randrange(4), rng.randbytes(rng.choice((0, 1, 12, 700, 4088))))
        for _ in range(100)
    ]
    ends = {0}
    for each in sent:
        ends.add(max(ends) + len(each))
    stream = b"".join(sent)
    cut = WholeFrames(FRAME_BYTES_MAX)
    passed, taken = b"", 0
    for piece in pieces(stream, rng, longest):
        passed += b"".join(cut.feed(piece))
        taken += len(piece)
        assert len(passed) == max(end for end in ends if end <= taken)
    assert passed == stream


def test_a_frame_that_is_longer_than_negotiated_ends_the_relay() -> None:
    cut = WholeFrames(FRAME_BYTES_MAX)
    with pytest.raises(ConnectionException) as caught:
        cut.feed(raw_frame(3, 1, bytes(10_000))[:100])
    assert caught.value.code == 501


@pytest.mark.parametrize("longest", [1, 5, 13, 1000])
def test_it_is_known_whether_the_stream_ended_with_the_end_of_the_connection(longest: int) -> None:
    close = frames.method(0, commands.Connection.Close(320, "forced", 0, 0))
    for last, has_ended in (
        (close, True),
        (frames.CLOSE_OK_FRAME, True),
        (frames.HEARTBEAT_FRAME, False),
        (frames.method(1, commands.Channel.CloseOk()), False),
        (raw_frame(3, 1, close), False),
    ):
        cut = WholeFrames(FRAME_BYTES_MAX)
        for piece in pieces(raw_frame(3, 1, b"x" * 20) + last, random.Random(longest), longest):
            cut.feed(piece)
        assert cut.has_ended is has_ended
