"""The frame reader, the checks of arguments and properties, and the encoders."""

from __future__ import annotations

import datetime as dt
import itertools
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, encode
from pamqp import frame as pamqp_frame
from pamqp import header as pamqp_header

from kit.amqp_client import raw_frame
from logstore.broker import fields, frames
from logstore.broker.errors import ConnectionException
from logstore.broker.headers import NO_PROPERTIES, MessageHeader, decode_header, encode_header

FRAME_BYTES_MAX = 4096

raw_frames = st.tuples(
    st.sampled_from([frames.METHOD, frames.HEADER, frames.BODY, frames.HEARTBEAT]),
    st.integers(0, 65535),
    st.binary(max_size=200),
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]


@given(st.lists(raw_frames, max_size=8), st.lists(st.integers(0, 5000), max_size=12))
def test_frames_come_out_as_they_went_in_however_the_bytes_were_cut(
    sent: list[frames.RawFrame], places: list[int]
) -> None:
    data = b"".join(raw_frame(*each) for each in sent)
    reader = frames.FrameReader(FRAME_BYTES_MAX)
    received = [each for piece in cut(data, places) for each in reader.feed(piece)]
    assert received == sent
    assert reader.error is None


@given(st.lists(raw_frames, max_size=3), st.binary(max_size=300), st.lists(st.integers(0, 1000), max_size=8))
def test_any_bytes_give_frames_or_an_error_whatever_the_pieces(
    sent: list[frames.RawFrame], garbage: bytes, places: list[int]
) -> None:
    data = b"".join(raw_frame(*each) for each in sent) + garbage
    whole, pieces = frames.FrameReader(FRAME_BYTES_MAX), frames.FrameReader(FRAME_BYTES_MAX)
    received = whole.feed(data)
    assert received[: len(sent)] == sent
    assert [each for piece in cut(data, places) for each in pieces.feed(piece)] == received
    assert (whole.error is None) == (pieces.error is None)
    assert whole.error is None or whole.error.code == 501


def test_a_frame_of_exactly_frame_max_is_read_and_one_byte_more_is_refused_before_it_arrives() -> None:
    reader = frames.FrameReader(FRAME_BYTES_MAX)
    fits = raw_frame(frames.BODY, 1, bytes(FRAME_BYTES_MAX - 8))
    assert len(fits) == FRAME_BYTES_MAX
    assert len(reader.feed(fits)) == 1
    assert reader.feed(struct.pack(">BHI", frames.BODY, 1, FRAME_BYTES_MAX - 7)) == []
    assert reader.error is not None
    assert reader.error.code == 501


def test_one_byte_at_a_time_costs_no_more_than_the_bytes() -> None:
    reader = frames.FrameReader(1 << 20)
    data = raw_frame(frames.BODY, 1, bytes(100_000))
    received = [each for at in range(len(data)) for each in reader.feed(data[at : at + 1])]
    assert received == [(frames.BODY, 1, bytes(100_000))]


# Arguments.

values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.floats(width=32),
        st.text(max_size=20),
        st.none(),
        st.builds(bytearray, st.binary(max_size=20)),
        st.datetimes(min_value=dt.datetime(1971, 1, 1)),  # noqa: DTZ001
        st.integers(-1000, 1000).map(lambda number: Decimal(number) / 10),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=10), inner, max_size=4)),
    max_leaves=12,
)
tables = st.dictionaries(st.text(max_size=20), values, max_size=6)


@given(tables)
def test_every_table_that_pamqp_writes_passes_the_check(table: dict[str, Any]) -> None:
    fields.check_arguments(("table",), encode.field_table(table), 0)


@given(tables, st.data())
def test_a_table_cut_short_or_with_bytes_behind_it_is_refused(table: dict[str, Any], data: Any) -> None:
    encoded = encode.field_table(table)
    cut_at = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(fields.MalformedFields):
        fields.check_arguments(("table",), encoded[:cut_at], 0)
    with pytest.raises(fields.MalformedFields):
        fields.check_arguments(("table",), encoded + b"\x00", 0)


@given(st.sampled_from(sorted(commands.INDEX_MAPPING)), st.binary(max_size=120))
def test_any_arguments_of_any_method_decode_or_are_a_connection_exception(index: int, data: bytes) -> None:
    try:
        method = frames.decode_method(index, struct.pack(">I", index) + data)
    except ConnectionException as error:
        outcome = error.code
    else:
        outcome = method.index
    assert outcome in (502, index)


def test_deeply_nested_tables_are_refused_without_a_recursion_error() -> None:
    table = b""
    for _ in range(5000):
        table = b"\x01kF" + struct.pack(">I", len(table)) + table
    with pytest.raises(fields.MalformedFields, match="nested"):
        fields.check_arguments(("table",), struct.pack(">I", len(table)) + table, 0)


def test_tables_with_too_many_fields_are_refused() -> None:
    table = b"\x00V" * 50_000
    with pytest.raises(fields.MalformedFields, match="fields"):
        fields.check_arguments(("table",), struct.pack(">I", len(table)) + table, 0)


def test_an_unknown_method_is_a_connection_exception() -> None:
    with pytest.raises(ConnectionException) as caught:
        frames.decode_method(0x00630001, b"\x00\x63\x00\x01")
    assert caught.value.code == 540


# Properties and message headers.

short_texts = st.text(max_size=40)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "content_type": short_texts,
            "headers": tables,
            "delivery_mode": st.sampled_from([1, 2]),
            "priority": st.integers(0, 255),
            "correlation_id": short_texts,
            "reply_to": short_texts,
            "expiration": st.integers(0, 1 << 40).map(str),
            "message_id": short_texts,
            "user_id": st.text(min_size=1, max_size=40),
            "app_id": short_texts,
        },
    )
)
def test_properties_pass_the_check_and_the_wanted_ones_are_found(given_properties: dict[str, Any]) -> None:
    encoded = commands.Basic.Properties(**given_properties).marshal()
    found = fields.check_properties(encoded, 0)
    assert found.expiration == given_properties.get("expiration")
    assert found.user_id == given_properties.get("user_id")


@given(st.binary(max_size=80))
def test_any_bytes_as_properties_are_decoded_or_refused(data: bytes) -> None:
    try:
        fields.check_properties(data, 0)
    except fields.MalformedFields:
        return
    head = pamqp_header.ContentHeader()
    try:
        head.unmarshal(struct.pack(">HHQ", 60, 0, 0) + data)
    except (OverflowError, ValueError, OSError) as error:
        assert "year" in str(error) or "timestamp" in str(error) or "range" in str(error)


short_strings = st.binary(max_size=255).map(lambda data: bytes((len(data),)) + data)


@given(
    st.tuples(short_strings, short_strings).map(b"".join),
    st.binary(min_size=2, max_size=60),
    st.integers(0, (1 << 64) - 1),
    st.none() | st.integers(0, (1 << 32) - 1),
)
def test_a_message_header_comes_back_as_it_was(
    routing: bytes, properties: bytes, published_ms: int, expiration_ms: int | None
) -> None:
    data = encode_header(routing, properties, published_ms, expiration_ms)
    assert decode_header(data, b"\x00\x01q") == MessageHeader(routing, properties, published_ms, expiration_ms)


@given(st.binary(max_size=60))
def test_a_message_header_of_any_bytes_never_fails(data: bytes) -> None:
    decoded = decode_header(data, b"\x00\x01q")
    if not data.startswith(b"\x01"):
        assert decoded == MessageHeader(b"\x00\x01q", NO_PROPERTIES, None, None)


# Encoders.


@given(st.integers(1, 65535), st.integers(1, (1 << 63) - 1), st.booleans())
def test_a_confirm_is_what_pamqp_makes(channel: int, tag: int, multiple: bool) -> None:
    assert frames.basic_ack(channel, tag, multiple=multiple) == frames.method(
        channel, commands.Basic.Ack(tag, multiple=multiple)
    )


@given(
    st.binary(min_size=1, max_size=3000),
    st.text(max_size=60),
    st.integers(0, (1 << 63) - 1),
    st.booleans(),
    st.binary(max_size=40),
    st.integers(1, 65535),
)
def test_a_delivery_from_a_template_equals_one_encoded_completely(
    content: bytes, consumer_tag: str, tag: int, redelivered: bool, key: bytes, channel: int
) -> None:
    properties = commands.Basic.Properties(content_type="text/plain").marshal()
    routing = b"\x02ex" + bytes((len(key),)) + key
    prefix = frames.deliver_prefix(consumer_tag)
    before, after = frames.delivery_template(channel, prefix, routing, properties, len(content))
    made = before + frames.pack_tag(tag, redelivered) + after + content + frames.END_OCTET
    method = frames.basic_deliver(channel, prefix, tag, redelivered, routing)
    assert made == b"".join(frames.with_content(channel, method, properties, content, 4096))


@given(
    st.binary(max_size=30_000),
    st.integers(4096, 20_000),
    st.text(max_size=60),
    st.integers(0, (1 << 63) - 1),
    st.booleans(),
)
def test_a_delivery_is_what_pamqp_reads_and_no_frame_exceeds_frame_max(
    content: bytes, frame_max: int, tag: str, delivery_tag: int, redelivered: bool
) -> None:
    properties = commands.Basic.Properties(content_type="text/plain").marshal()
    method = frames.basic_deliver(7, frames.deliver_prefix(tag), delivery_tag, redelivered, b"\x02ex\x03key")
    data = b"".join(frames.with_content(7, method, properties, content, frame_max))
    body = b""
    kinds = []
    while data:
        consumed, number, value = pamqp_frame.unmarshal(data)
        assert consumed <= frame_max
        assert number == 7
        kinds.append(type(value).__name__)
        if isinstance(value, commands.Basic.Deliver):
            assert value.consumer_tag == tag
            assert value.delivery_tag == delivery_tag
            assert value.redelivered is redelivered
            assert (value.exchange, value.routing_key) == ("ex", "key")
        elif isinstance(value, pamqp_header.ContentHeader):
            assert value.body_size == len(content)
            assert value.properties.content_type == "text/plain"
        else:
            body += value.value  # type: ignore[union-attr]
        data = data[consumed:]
    assert kinds[:2] == ["Deliver", "ContentHeader"]
    assert body == content
