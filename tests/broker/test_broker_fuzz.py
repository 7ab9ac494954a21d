"""Any bytes in any pieces, to the frame reader alone and to a broker that serves other clients at the same time."""

from __future__ import annotations

import socket
import struct
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import commands
from pamqp import frame as pamqp_frame

from kit import frame_checks
from kit.amqp_client import RawClient, raw_frame
from logstore.broker import frames

if TYPE_CHECKING:
    from kit.live_broker import Broker

KEPT = Path(__file__).parents[2] / "csrc" / "tests" / "fuzz"

cuts = st.lists(st.integers(0, 5000), max_size=12)


def told_frames() -> list[bytes]:
    """A well-formed frame of every method that needs no argument of its own."""
    found = []
    for method in commands.INDEX_MAPPING.values():
        try:
            found.append(pamqp_frame.marshal(method(), 1))
        except (TypeError, ValueError, AttributeError):
            continue
    return found


well_formed = st.sampled_from(told_frames())
any_payload = st.builds(
    raw_frame, st.sampled_from([1, 2, 3, 8]), st.integers(0, 3), st.one_of(st.binary(max_size=80), st.just(b""))
)
any_arguments = st.builds(
    lambda channel, index, data: raw_frame(frames.METHOD, channel, struct.pack(">I", index) + data),
    st.integers(0, 3),
    st.sampled_from(frame_checks.METHOD_INDEXES),
    st.binary(max_size=60),
)


@st.composite
def damaged(draw: Any) -> bytes:
    """A well-formed frame with a few bits flipped."""
    data = bytearray(draw(well_formed))
    for at in draw(st.lists(st.integers(0, 8 * len(data) - 1), max_size=3)):
        data[at // 8] ^= 1 << at % 8
    return bytes(data)


any_stream = st.lists(st.one_of(well_formed, any_payload, any_arguments, damaged(), st.binary(max_size=40)), max_size=8)


@given(any_stream, cuts)
@settings(max_examples=300, deadline=None)
def test_any_bytes_in_any_pieces_give_frames_or_one_error_of_the_protocol(
    stream: list[bytes], places: list[int]
) -> None:
    frame_checks.check_bytes(b"".join(stream), places)


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_input_of_the_fuzzer_gives_frames_or_one_error_of_the_protocol(data: bytes) -> None:
    frame_checks.check_told(data)


@given(st.sampled_from([1, 2, 3, 8]), st.integers(0, 0xFFFFFFFF), st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_a_frame_that_never_ends_is_refused_or_kept_within_frame_max(kind: int, length: int, piece: int) -> None:
    reader = frames.FrameReader(frame_checks.FRAME_BYTES_MAX)
    tracemalloc.start()
    try:
        received = reader.feed(struct.pack(">BHI", kind, 1, length))
        for _ in range(200):
            received += reader.feed(bytes(piece))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert frame_checks.kept_bytes(reader) <= frame_checks.FRAME_BYTES_MAX
    assert reader.error is not None or received or length < frame_checks.FRAME_BYTES_MAX
    # What 200 small pieces make of lists and copies, whatever length was announced: 4 GiB among them.
    assert peak < 64 * frame_checks.FRAME_BYTES_MAX


@pytest.mark.parametrize("kind", ["seeds", "found"])
def test_every_stored_input_of_the_fuzzer_passes(kind: str) -> None:
    kept = sorted(path for path in (KEPT / kind / "frames").glob("*") if path.is_file())
    assert kept or kind == "found"
    for path in kept:
        frame_checks.check_told(path.read_bytes())


def read_to_the_end(client: RawClient) -> list[Any]:
    """Every frame that the broker still sends; each must be one that pamqp reads."""
    values: list[Any] = []
    try:
        while True:
            values.append(client.receive_any()[1])
    except (ConnectionError, OSError):
        return values


@given(any_stream, st.booleans())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_broker_answers_any_bytes_within_the_protocol_and_serves_on(
    broker: Broker, stream: list[bytes], logged_in: bool
) -> None:
    with RawClient(broker.port) as client:
        if logged_in:
            client.open()
        client.send_bytes(b"".join(stream))
        client.socket.shutdown(socket.SHUT_WR)
        values = read_to_the_end(client)
    closes = [each for each in values if isinstance(each, commands.Connection.Close)]
    assert len(closes) <= 1
    assert all(close.reply_code != 541 for close in closes), "the broker failed inside"
    assert broker.mishaps == []


def test_after_any_bytes_a_client_is_served_as_before(broker: Broker) -> None:
    for data in (b"\x00" * 100, b"AMQP", b"\x01\x00\x00\xff\xff\xff\xff", b"\xce" * 50):
        with RawClient(broker.port) as client:
            client.send_bytes(data)
    channel = broker.pika().channel()
    channel.queue_declare("served")
    channel.basic_publish("", "served", b"as ever")
    assert channel.basic_get("served", auto_ack=True)[2] == b"as ever"
