"""Runs of like frames: the reader that recognizes them means the same as the plain one, for any bytes."""

from __future__ import annotations

import itertools
import struct

from hypothesis import given
from hypothesis import strategies as st

from kit.amqp_client import raw_frame
from logstore.broker import frames
from logstore.broker.runs import RUN_MAX, AckRun, PublishForm, PublishRun, Runs

FRAME_BYTES_MAX = 4096
BODY_BYTES_MAX = 300
METHOD = frames.PUBLISH_START + b"\x00\x00\x00\x01q\x00"
PROPERTIES = b"\x10\x00\x02"

channels = st.integers(1, 2)
tags = st.integers(0, (1 << 64) - 1)


def publish(channel: int, body: bytes, method: bytes = METHOD, properties: bytes = PROPERTIES) -> bytes:
    head = struct.pack(">HHQ", 60, 0, len(body)) + properties
    return b"".join(
        raw_frame(kind, channel, payload)
        for kind, payload in ((frames.METHOD, method), (frames.HEADER, head), (frames.BODY, body))
    )


def ack(channel: int, tag: int, bits: int = 0) -> bytes:
    return raw_frame(frames.METHOD, channel, frames.ACK_START + struct.pack(">QB", tag, bits))


pieces = st.one_of(
    st.builds(publish, channels, st.binary(max_size=BODY_BYTES_MAX + 20)),
    st.builds(publish, channels, st.just(b"same length")),
    st.builds(publish, channels, st.just(b"x"), st.just(METHOD[:-1] + b"\x01")),
    st.builds(publish, channels, st.just(b"x"), st.just(METHOD), st.sampled_from([b"\x00\x00", b"\x10\x00\x01"])),
    st.builds(ack, channels, tags),
    st.builds(ack, channels, tags, st.integers(0, 3)),
    st.builds(raw_frame, st.sampled_from([1, 2, 3, 8]), channels, st.binary(max_size=30)),
)


def read(
    data: bytes, cuts: list[int], runs: Runs | None
) -> tuple[list[frames.RawFrame], tuple[int, str] | None, list[frames.Run]]:
    reader = frames.FrameReader(FRAME_BYTES_MAX)
    reader.runs = runs
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    received = [each for start, end in itertools.pairwise(ends) for each in reader.feed(data[start:end])]
    found = [each for each in received if not isinstance(each, tuple)]
    plain = [frame for each in received for frame in ([each] if isinstance(each, tuple) else each.raw_frames())]
    return plain, None if reader.error is None else (reader.error.code, str(reader.error)), found


def known_form() -> Runs:
    runs = Runs()
    runs.form = PublishForm(1, METHOD, PROPERTIES, BODY_BYTES_MAX)
    return runs


@given(
    st.lists(pieces, max_size=12).map(b"".join),
    st.binary(max_size=20),
    st.lists(st.tuples(st.integers(0, 8000), st.integers(0, 255)), max_size=2),
    st.lists(st.integers(0, 8000), max_size=8),
)
def test_runs_stand_for_the_frames_that_arrived_whatever_is_damaged_and_however_it_is_cut(
    data: bytes, garbage: bytes, damage: list[tuple[int, int]], cuts: list[int]
) -> None:
    damaged = bytearray(data + garbage)
    for at, value in damage:
        if damaged:
            damaged[at % len(damaged)] = value
    plain, error, _ = read(bytes(damaged), [], None)
    for places in ([], cuts):
        assert read(bytes(damaged), places, known_form())[:2] == (plain, error)


@given(
    st.lists(pieces, min_size=1, max_size=2).map(b"".join),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=1),
)
def test_a_lone_publish_is_recognized_just_where_the_bytes_are_a_run_of_one(
    data: bytes, damage: list[tuple[int, int]]
) -> None:
    damaged = bytearray(data)
    for at, value in damage:
        damaged[at % len(damaged)] = value
    form = PublishForm(1, METHOD, PROPERTIES, BODY_BYTES_MAX)
    for given_bytes in (publish(1, b"same length"), bytes(damaged), publish(1, b"y"), bytes(damaged)):
        bodies, end = form.take(given_bytes, 0)
        is_lone = len(bodies) == 1 and end == len(given_bytes)
        start, stop = form.only_body(given_bytes)
        assert (start, stop) == (0, 0) if not is_lone else [given_bytes[start:stop]] == bodies


def test_like_publishes_are_one_run_and_end_where_another_kind_begins() -> None:
    bodies = [b"one", b"two", b"three", b"x" * BODY_BYTES_MAX]
    data = b"".join(publish(1, body) for body in bodies) + ack(1, 7) + ack(1, 8) + publish(1, b"four")
    plain, _, runs = read(data, [], known_form())
    publishes, acks, last = runs
    assert isinstance(publishes, PublishRun)
    assert isinstance(acks, AckRun)
    assert isinstance(last, PublishRun)
    assert (publishes.channel, publishes.bodies, acks.channel, acks.tags, last.bodies) == (
        1,
        bodies,
        1,
        [7, 8],
        [b"four"],
    )
    assert len(plain) == 3 * len(bodies) + 2 + 3


def test_a_run_has_a_limited_number_of_publishes_and_no_body_above_the_limit() -> None:
    data = publish(1, b"x") * (RUN_MAX + 1) + publish(1, bytes(BODY_BYTES_MAX + 1)) + publish(1, b"")
    plain, _, runs = read(data, [], known_form())
    assert [len(run.bodies) for run in runs if isinstance(run, PublishRun)] == [RUN_MAX, 1]
    assert len(plain) == 3 * (RUN_MAX + 3)


def test_acknowledgements_of_several_messages_or_of_another_channel_end_a_run() -> None:
    data = ack(1, 1) + ack(1, 2) + ack(2, 1) + ack(1, 3, bits=1) + ack(1, 4) + ack(1, 5) + ack(1, 6)
    plain, _, runs = read(data, [], Runs())
    assert [(run.channel, run.tags) for run in runs if isinstance(run, AckRun)] == [(1, [1, 2]), (1, [4, 5, 6])]
    assert len(plain) == 7
    _, _, runs = read(ack(1, 7) * (RUN_MAX + 2), [], Runs())
    assert [len(run.tags) for run in runs if isinstance(run, AckRun)] == [RUN_MAX, 2]


def test_every_damaged_byte_and_every_cut_of_a_run_has_the_effect_that_it_has_on_plain_frames() -> None:
    data = publish(1, b"first") + publish(1, b"again") + publish(1, b"longer") + ack(1, 1) + ack(1, 2) + ack(1, 3)
    for at in range(len(data)):
        for value in {0, 1, 2, 0xCE, 0xFF, data[at] ^ 1}:
            damaged = data[:at] + bytes((value,)) + data[at + 1 :]
            assert read(damaged, [], known_form())[:2] == read(damaged, [], None)[:2], (at, value)
        assert read(data, [at], known_form())[:2] == read(data, [], None)[:2], at
