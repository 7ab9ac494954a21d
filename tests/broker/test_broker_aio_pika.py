"""aio-pika and kombu, unmodified, as their users use them: of a broker, and of a member that relays to the leader."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aio_pika
import kombu
import pytest

from kit.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["broker", "member"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "broker":
        yield request.getfixturevalue("broker").url
        return
    pytest.importorskip("msgspec", reason="the extra cluster is not installed")
    pytest.importorskip("logstore._consensus", reason="the cluster is not built")
    from kit.amqp_trio import AmqpTrio

    trio = AmqpTrio(tmp_path, hosts=("main",))
    trio.start()
    yield f"amqp://guest:guest@127.0.0.1:{trio.ports[trio.followers('main')[0]]}/"
    trio.close()


def test_aio_pika_publishes_and_consumes(url: str) -> None:
    async def talk() -> list[bytes]:
        connection = await aio_pika.connect_robust(url)
        async with connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.set_qos(prefetch_count=10)
            exchange = await channel.declare_exchange("events", aio_pika.ExchangeType.TOPIC, durable=True)
            queue = await channel.declare_queue("q", durable=True)
            await queue.bind(exchange, "a.*")
            await asyncio.gather(
                *(
                    exchange.publish(
                        aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT),
                        f"a.{number}",
                    )
                    for number in range(200)
                )
            )
            received = []
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        received.append(message.body)
                    if len(received) == 200:
                        break
            return received

    assert asyncio.run(talk()) == [b"%d" % number for number in range(200)]


def test_aio_pika_commits_and_rolls_back(url: str) -> None:
    async def talk() -> list[bytes]:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(publisher_confirms=False)
            queue = await channel.declare_queue("q", durable=True)
            publish = channel.default_exchange.publish
            with pytest.raises(RuntimeError, match="changed my mind"):
                async with channel.transaction():
                    await publish(aio_pika.Message(b"never"), "q")
                    raise RuntimeError("changed my mind")
            async with channel.transaction():
                for number in range(3):
                    await publish(aio_pika.Message(b"%d" % number), "q")
                assert await queue.get(fail=False) is None
            return [(await queue.get(no_ack=True)).body for _ in range(3)]

    assert asyncio.run(talk()) == [b"0", b"1", b"2"]


def test_aio_pika_sees_returns_and_channel_errors(url: str) -> None:
    async def talk() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(on_return_raises=True)
            with pytest.raises(aio_pika.exceptions.DeliveryError):
                await channel.default_exchange.publish(aio_pika.Message(b"x"), "nowhere", mandatory=True)
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                await channel.declare_queue("missing", passive=True)
            other = await connection.channel()
            with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed):
                await other.declare_queue("q", arguments={"x-max-length": 5})

    asyncio.run(talk())


def test_requests_and_replies_over_an_exclusive_queue_work(url: str) -> None:
    async def serve(channel: aio_pika.abc.AbstractChannel, requests: aio_pika.abc.AbstractQueue) -> None:
        async with requests.iterator() as messages:
            async for message in messages:
                async with message.process():
                    assert message.reply_to is not None
                    reply = aio_pika.Message(message.body * 2, correlation_id=message.correlation_id)
                    await channel.default_exchange.publish(reply, message.reply_to)

    async def talk() -> list[bytes]:
        server = await aio_pika.connect(url)
        client = await aio_pika.connect(url)
        async with server, client:
            channel = await server.channel()
            serving = asyncio.create_task(serve(channel, await channel.declare_queue("double")))
            asking = await client.channel()
            replies = await asking.declare_queue(exclusive=True)
            answers = []
            for number in range(10):
                request = aio_pika.Message(b"%d" % number, reply_to=replies.name, correlation_id=str(number))
                await asking.default_exchange.publish(request, "double")
                reply = None
                while reply is None:
                    reply = await replies.get(no_ack=True, fail=False)
                assert reply.correlation_id == str(number)
                answers.append(reply.body)
            serving.cancel()
            return answers

    assert asyncio.run(talk()) == [b"%d" % number * 2 for number in range(10)]


def test_kombu_publishes_and_consumes(url: str) -> None:
    with kombu.Connection(url) as connection:
        exchange = kombu.Exchange("tasks", "direct", durable=True)
        queue = kombu.Queue("work", exchange, routing_key="work", message_ttl=60.0, expires=60.0)
        received = []
        with connection.Producer() as producer:
            for number in range(20):
                producer.publish({"n": number}, exchange=exchange, routing_key="work", declare=[queue], retry=True)
        with connection.Consumer(queue, callbacks=[lambda body, message: (received.append(body["n"]), message.ack())]):
            while len(received) < 20:
                connection.drain_events(timeout=PATIENCE_S)
        assert received == list(range(20))


def test_kombus_simple_queue_works(url: str) -> None:
    with kombu.Connection(url) as connection:
        queue = connection.SimpleQueue("simple")
        queue.put("hello")
        message = queue.get(timeout=PATIENCE_S)
        assert message.payload == "hello"
        message.ack()
        assert queue.qsize() == 0
        queue.close()
