"""From the first byte to an open connection, with every possible error in between."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pamqp import body, commands, encode, header

from kit.amqp_client import PROTOCOL_HEADER, RawClient, raw_frame
from kit.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.live_broker import Broker


@pytest.mark.parametrize(
    "first", [b"AMQP\x00\x01\x00\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01"]
)
def test_a_wrong_protocol_header_is_answered_with_the_right_one_and_a_close(broker: Broker, first: bytes) -> None:
    with broker.raw() as client:
        client.send_bytes(first)
        assert client.socket.recv(100) == PROTOCOL_HEADER
        client.expect_end()


def test_the_protocol_header_may_come_byte_by_byte(broker: Broker) -> None:
    with broker.raw() as client:
        for at in range(8):
            client.send_bytes(PROTOCOL_HEADER[at : at + 1])
            time.sleep(0.002)
        start = client.expect(commands.Connection.Start)
        assert "PLAIN" in start.mechanisms.split()
        assert start.server_properties["capabilities"]["publisher_confirms"] is True


def test_a_wrong_password_is_403_and_an_unknown_user_too(broker: Broker) -> None:
    for name, password in (("guest", "wrong"), ("nobody", "guest"), ("", "")):
        with broker.raw() as client:
            client.start(name, password)
            assert "ACCESS_REFUSED" in client.expect_connection_close(403)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        broker.pika(credentials=pika.PlainCredentials("guest", "wrong"))


def test_amqplain_logs_in_too(broker: Broker) -> None:
    with broker.raw() as client:
        client.send_bytes(PROTOCOL_HEADER)
        client.expect(commands.Connection.Start)
        table = encode.field_table({"LOGIN": "guest", "PASSWORD": "guest"})[4:].decode()
        client.send(0, commands.Connection.StartOk({}, "AMQPLAIN", table, "en_US"))
        client.expect(commands.Connection.Tune)


@pytest.mark.parametrize(
    ("mechanism", "response", "code"),
    [("PLAIN", "nonsense", 502), ("AMQPLAIN", "nonsense", 502), ("AMQPLAIN", "", 502), ("EXTERNAL", "", 403)],
)
def test_an_invalid_login_is_a_connection_exception(broker: Broker, mechanism: str, response: str, code: int) -> None:
    with broker.raw() as client:
        client.send_bytes(PROTOCOL_HEADER)
        client.expect(commands.Connection.Start)
        client.send(0, commands.Connection.StartOk({}, mechanism, response, "en_US"))
        client.expect_connection_close(code)


def test_steps_out_of_order_are_503(broker: Broker) -> None:
    for value in (commands.Connection.Open(), commands.Connection.TuneOk(), commands.Connection.CloseOk()):
        with broker.raw() as client:
            client.send_bytes(PROTOCOL_HEADER)
            client.expect(commands.Connection.Start)
            client.send(0, value)
            client.expect_connection_close(503)
    with broker.raw() as client:
        client.start()
        client.expect(commands.Connection.Tune)
        client.send(0, commands.Connection.Open())
        client.expect_connection_close(503)


def test_no_channel_works_before_the_connection_is_open(broker: Broker) -> None:
    with broker.raw() as client:
        client.start()
        client.expect(commands.Connection.Tune)
        client.send(1, commands.Channel.Open())
        client.expect_connection_close(504)


def test_another_vhost_is_530(broker: Broker) -> None:
    with broker.raw() as client:
        client.start()
        client.expect(commands.Connection.Tune)
        client.send(0, commands.Connection.TuneOk(0, 0, 0), commands.Connection.Open("elsewhere"))
        assert "elsewhere" in client.expect_connection_close(530)


@pytest.mark.parametrize(("channel_max", "frame_max"), [(4000, 0), (0, 1 << 20), (0, 1000)])
def test_a_client_may_not_tune_beyond_what_was_offered(broker: Broker, channel_max: int, frame_max: int) -> None:
    with broker.raw() as client:
        client.start()
        tune = client.expect(commands.Connection.Tune)
        assert (tune.channel_max, tune.frame_max) == (2047, 131072)
        client.send(0, commands.Connection.TuneOk(channel_max, frame_max, 0))
        client.expect_connection_close(530)


def test_a_stalled_handshake_is_disconnected(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(handshake_s=0.3)
    with broker.raw() as client:
        client.send_bytes(PROTOCOL_HEADER)
        client.expect(commands.Connection.Start)
        client.expect_end()


def test_a_large_frame_before_the_login_is_501(broker: Broker) -> None:
    with broker.raw() as client:
        client.send_bytes(PROTOCOL_HEADER)
        client.expect(commands.Connection.Start)
        client.send_bytes(struct.pack(">BHI", 1, 0, 100_000))
        client.expect_connection_close(501)


def test_connections_beyond_the_limit_are_530_until_one_is_closed(
    start_broker: Callable[..., Broker],
) -> None:
    broker = start_broker(connections_max=2)
    first, _second = broker.raw().open(), broker.raw().open()
    third = broker.raw()
    third.start()
    third.expect(commands.Connection.Tune)
    third.send(0, commands.Connection.TuneOk(0, 0, 0), commands.Connection.Open())
    assert "limit" in third.expect_connection_close(530)
    first.send(0, commands.Connection.Close(200, "bye", 0, 0))
    first.expect(commands.Connection.CloseOk)
    first.expect_end()
    broker.raw().open()


def test_a_close_is_answered_at_any_time(broker: Broker) -> None:
    with broker.raw() as client:
        client.send_bytes(PROTOCOL_HEADER)
        client.expect(commands.Connection.Start)
        client.send(0, commands.Connection.Close(200, "changed my mind", 0, 0))
        client.expect(commands.Connection.CloseOk)
        client.expect_end()


# What a client may get wrong once it is connected.


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (raw_frame(9, 1, b""), 501),
        (raw_frame(8, 1, b""), 501),
        (raw_frame(8, 0, b"x"), 501),
        (raw_frame(1, 1, b"\x00\x3c\x00\x28\x00\x00")[:-1] + b"\x00", 501),
        (struct.pack(">BHI", 3, 1, 131072), 501),
        (raw_frame(1, 1, b"\x00"), 502),
        (raw_frame(1, 1, b"\x00\x63\x00\x63"), 540),
        (raw_frame(1, 1, b"\x00\x3c\x00\x0a\x00"), 502),
        (raw_frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x05ab"), 502),
        (raw_frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x01\xff\x00\x00"), 502),
        (raw_frame(1, 0, b"\x00\x3c\x00\x0a" + bytes(7)), 503),
        (raw_frame(1, 1, b"\x00\x0a\x00\x33"), 503),
        (raw_frame(1, 0, b"\x00\x0a\x00\x33"), 503),
        (raw_frame(1, 1, b"\x00\x3c\x00\x3d"), 540),
        (raw_frame(1, 1, b"\x00\x3c\x00\x0b"), 503),
        (raw_frame(1, 1, b"\x00\x14\x00\x0a\x00"), 504),
        (raw_frame(1, 9, b"\x00\x3c\x00\x0a" + bytes(7)), 504),
        (raw_frame(3, 9, b"x"), 504),
        (raw_frame(3, 0, b"x"), 505),
        (raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 0)), 505),
        (raw_frame(3, 1, b"x"), 505),
    ],
)
def test_a_broken_frame_ends_only_its_connection_with_its_code(broker: Broker, data: bytes, code: int) -> None:
    other = broker.raw().open()
    with broker.raw().open() as client:
        client.send_bytes(data)
        client.expect_connection_close(code)
    other.declare("still-here")


def publish_method() -> bytes:
    return raw_frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x01q\x00")


@pytest.mark.parametrize(
    ("then", "code"),
    [
        (raw_frame(3, 1, b"x"), 505),
        (publish_method(), 505),
        (raw_frame(1, 1, b"\x00\x3c\x00\x0a" + bytes(7)), 505),
        (raw_frame(2, 1, b"\x00\x3c"), 502),
        (raw_frame(2, 1, struct.pack(">HHQH", 50, 0, 1, 0)), 505),
        (raw_frame(2, 1, struct.pack(">HHQH", 60, 1, 1, 0)), 505),
        (raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 1)), 502),
        (raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 0x8000)), 502),
        (raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 0x2000) + b"\x00\x00\x00\x09ab"), 502),
        (raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 0)) * 2, 505),
        (raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 0)) + raw_frame(3, 1, b"xy"), 501),
        (raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 0)) + publish_method(), 505),
    ],
)
def test_content_frames_in_a_wrong_order_or_shape_end_the_connection(broker: Broker, then: bytes, code: int) -> None:
    with broker.raw().open() as client:
        client.send_bytes(publish_method() + then)
        client.expect_connection_close(code)


def test_contents_of_two_channels_may_be_interleaved(broker: Broker) -> None:
    with broker.raw().open(channels=2) as client:
        client.declare("q")
        for number in (1, 2):
            client.send(number, commands.Basic.Publish(routing_key="q"))
        for number in (1, 2):
            client.send(number, header.ContentHeader(0, 4))
        for piece in (b"ab", b"cd"):
            for number in (2, 1):
                client.send(number, body.ContentBody(piece))
        for number in (1, 2):
            client.send(number, commands.Basic.Get(queue="q", no_ack=True))
            client.expect(commands.Basic.GetOk)
            assert client.content()[1] == b"abcd"


def test_random_bytes_after_login_never_leave_a_hanging_connection(broker: Broker) -> None:
    import random

    noise = random.Random(5)
    for _ in range(40):
        with broker.raw().open() as client:
            kind = noise.choice([1, 1, 1, 2, 3, 8])
            index = noise.choice(sorted(commands.INDEX_MAPPING))
            payload = struct.pack(">I", index) + noise.randbytes(noise.randrange(40))
            client.send_bytes(raw_frame(kind, noise.choice([0, 1, 2]), payload))
            client.send(0, commands.Connection.Close(200, "", 0, 0))
            seen: list[Any] = []
            try:
                while True:
                    seen.append(client.receive_any()[1])
                    if isinstance(seen[-1], commands.Connection.Close):
                        client.send(0, commands.Connection.CloseOk())
            except (ConnectionError, ConnectionResetError):
                pass
            assert any(isinstance(value, commands.Connection.Close | commands.Connection.CloseOk) for value in seen), (
                index,
                payload,
                seen,
            )
    broker.raw().open().declare("still-here")


def test_channel_numbers_beyond_channel_max_are_530(broker: Broker) -> None:
    with broker.raw().open(channels=1, channel_max=3) as client:
        client.send(4, commands.Channel.Open())
        client.expect_connection_close(530)


def test_a_closed_channel_number_can_be_opened_again(broker: Broker) -> None:
    with broker.raw().open() as client:
        for _ in range(3):
            client.send(1, commands.Channel.Close(200, "", 0, 0))
            client.expect(commands.Channel.CloseOk)
            client.open_channel(1)
        client.declare("q")


def test_after_a_channel_exception_everything_but_close_ok_is_ignored(broker: Broker) -> None:
    with broker.raw().open(channels=2) as client:
        client.send(1, commands.Queue.Declare(queue="missing", passive=True))
        assert "no queue 'missing' in vhost '/'" in client.expect_channel_close(404)
        client.publish("q", b"ignored")
        client.send(1, commands.Queue.Declare(queue="ignored"))
        client.send(1, commands.Channel.CloseOk())
        client.send(2, commands.Queue.Declare(queue="ignored", passive=True))
        client.expect_channel_close(404)
        client.open_channel(1)
        client.declare("q")


def test_both_sides_may_close_a_channel_at_once(broker: Broker) -> None:
    with broker.raw().open() as client:
        client.send(
            1,
            commands.Queue.Declare(queue="missing", passive=True),
            commands.Channel.Close(200, "", 0, 0),
        )
        client.expect_channel_close(404)
        client.expect(commands.Channel.CloseOk)
        client.send(1, commands.Channel.CloseOk())
        client.open_channel(1)


def test_many_clients_connect_and_disconnect_without_a_leak(broker: Broker) -> None:
    for _ in range(30):
        connection = broker.pika()
        connection.channel().queue_declare("", exclusive=True)
        connection.close()
    for _ in range(30):
        client = RawClient(broker.port)
        client.open()
        client.socket.close()
    wait_until(lambda: broker.call(lambda: not broker.server.connections), "the end of the connections")
    assert broker.call(lambda: list(broker.server.hosts["/"].vhost.queues)) == []
