"""The clients of a chaos run over AMQP: four senders and four receivers, each with one member at a time, through pika.

    python tools/chaos_amqp.py JOURNALS RUN SEED DRIVER_PID PORT...

Commands and answers are JSON lines over its standard input and output. A client takes any member's port at random, and
another when its connection ends. Its journal (chaos_journal.py) says what it did:

========== ============================================ ================================================================
event      other members of the line                    written
========== ============================================ ================================================================
sent       sender, first, count, whole                  before the publish of these numbers; whole: in one transaction
confirmed  sender, numbers                              after their acks, or the commit-ok
unknown    sender, first, count, error                  when the connection ended before; the others of them
delivered  session, sender, number, redelivered         when a delivery came
settling   session, places, how                         before the acks or rejects of these pairs (sender, number)
settled    session                                      after the answer to a later synchronous call
released   session, places                              before they are given back
died       session, places                              before the connection is dropped without a word
========== ============================================ ================================================================

A number is sent once, so no content is on the queue twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import itertools
import json
import logging
import os
import random
import signal
import socket
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from chaos_journal import Journal  # noqa: E402 - found by the line above
from chaos_member import (  # noqa: E402
    ACQUIRED_MAX,
    DEPTH_MAX,
    DEPTH_MIN,
    PACE_S,
    QUEUE,
    RECEIVERS,
    REJECTED_MAX,
    SENDERS,
    SENT,
    content_of,
    end_with_parent,
    number_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from pika.channel import Channel

LOG = logging.getLogger("chaos")
HEARTBEAT_S = 2  # so that a client leaves a member that is stopped
OPEN_WITHIN_S = 10.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)

Place = tuple[int, int]
"""Sender and number."""


class Lost(Exception):
    """The connection or the channel has ended."""


class Session:
    """A connection with one channel."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self.loop.create_future()
        self.connection: AsyncioConnection
        self.channel: Channel
        self.deliveries: deque[tuple[int, Place]] = deque()  # tag and place, not settled
        self.came = asyncio.Event()
        self.refused = False  # a publish: basic.nack
        self._waiting: deque[int] = deque()  # tags that are not confirmed
        self._published = 0
        self._confirmed = asyncio.Event()

    async def open(self, port: int) -> None:
        """Connects. Raises ``Lost``."""
        opened: asyncio.Future[Any] = self.loop.create_future()
        given = pika.ConnectionParameters(
            "127.0.0.1", port, heartbeat=HEARTBEAT_S, socket_timeout=OPEN_WITHIN_S, stack_timeout=OPEN_WITHIN_S
        )
        self.connection = AsyncioConnection(
            given,
            on_open_callback=lambda _: opened.done() or opened.set_result(None),
            on_open_error_callback=lambda _, error: self._end(error),
            on_close_callback=lambda _, error: self._end(error),
            custom_ioloop=self.loop,
        )
        await self._until(opened)
        self.channel = await self.call(lambda callback: self.connection.channel(on_open_callback=callback))
        self.channel.add_on_close_callback(lambda _, error: self._end(error))

    def _end(self, error: BaseException | str) -> None:
        if not self.lost.done():
            self.lost.set_result(f"{type(error).__name__}: {error}")
        self.came.set()
        self._confirmed.set()

    async def _until(self, done: asyncio.Future[Any]) -> Any:
        await asyncio.wait({done, self.lost}, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            done.cancel()
            raise Lost(self.lost.result())
        return done.result()

    async def call(self, method: Callable[[Callable[[Any], None]], Any]) -> Any:
        """What a synchronous method answers. ``method`` is given the callback."""
        self.judge()
        answered: asyncio.Future[Any] = self.loop.create_future()
        try:
            method(lambda answer: answered.done() or answered.set_result(answer))
        except pika.exceptions.AMQPError as error:
            raise Lost(f"{type(error).__name__}: {error}") from error
        return await self._until(answered)

    def judge(self) -> None:
        """Raises ``Lost`` if it has ended."""
        if self.lost.done():
            raise Lost(self.lost.result())

    async def depth(self) -> int:
        """The messages of the queue that nobody has."""
        answer = await self.call(lambda done: self.channel.queue_declare(QUEUE, durable=True, callback=done))
        return int(answer.method.message_count)

    # ---- publishing ----

    async def confirm(self) -> None:
        """Each publish is to be confirmed."""
        await self.call(lambda done: self.channel.confirm_delivery(self._on_confirm, callback=done))

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        self.refused = self.refused or isinstance(method, pika.spec.Basic.Nack)
        if method.multiple:
            while self._waiting and self._waiting[0] <= method.delivery_tag:
                self._waiting.popleft()
        else:
            self._waiting.remove(method.delivery_tag)
        self._confirmed.set()

    def publish(self, content: bytes) -> None:
        """To the queue. Raises ``Lost``."""
        self.judge()
        try:
            self.channel.basic_publish("", QUEUE, content, PERSISTENT)
        except pika.exceptions.AMQPError as error:
            raise Lost(f"{type(error).__name__}: {error}") from error

    def publish_to_confirm(self, content: bytes) -> int:
        """The same with ``confirm``; its tag."""
        self.publish(content)
        self._published += 1
        self._waiting.append(self._published)
        return self._published

    def is_confirmed(self, tag: int) -> bool:
        """Whether a publish was."""
        return tag not in self._waiting

    async def until_confirmed(self) -> None:
        """Waits for all. Raises ``Lost``."""
        while self._waiting and not self.refused:
            self._confirmed.clear()
            self.judge()
            await self._confirmed.wait()

    # ---- the end ----

    async def close(self, *, drops: bool) -> None:
        """Ends it; ``drops``: without a word."""
        with contextlib.suppress(Exception):  # whatever state it is in
            if drops or self.lost.done():
                raise Lost
            self.connection.close()
            await asyncio.wait_for(asyncio.shield(self.lost), OPEN_WITHIN_S)
            return
        with contextlib.suppress(Exception):  # pika has no call for it
            self.connection._transport._sock.shutdown(socket.SHUT_RDWR)


class Clients:
    """All of them. Belongs to its loop."""

    def __init__(self, journals: Path, run: str, seed: int, ports: list[int]) -> None:
        self.journal = Journal(journals / f"{run}.jsonl")
        self.ports = ports
        self.sessions = itertools.count()
        self.works = asyncio.Event()
        self.stops = False
        self.busy = 0
        self.nobody_works = asyncio.Event()
        works: list[tuple[Callable[[int, random.Random], Coroutine[Any, Any, None]], int]] = []
        works += [(self.send, number) for number in range(SENDERS)]
        works += [(self.receive, number) for number in range(RECEIVERS)]
        self.next = [0] * SENDERS
        self.tasks = [
            asyncio.create_task(self._work(work, number, random.Random(f"{seed} amqp {at}")))
            for at, (work, number) in enumerate(works)
        ]

    async def _work(self, work: Any, number: int, chance: random.Random) -> None:
        try:
            while True:
                await self.works.wait()
                if self.stops:
                    return
                self.busy += 1
                self.nobody_works.clear()
                try:
                    await work(number, chance)
                except Lost as error:
                    LOG.info("client %d: %s", number, error)
                finally:
                    self.busy -= 1
                    if not self.busy:
                        self.nobody_works.set()
                await asyncio.sleep(PACE_S)
        except BaseException:
            LOG.exception("a client of the driver failed")
            os._exit(3)

    @contextlib.asynccontextmanager
    async def session(self, chance: random.Random) -> AsyncIterator[Session]:
        """A connection to any member, until it is lost or the work is done."""
        session = Session(next(self.sessions))
        drops = False
        try:
            await session.open(chance.choice(self.ports))
            yield session
        except Lost:
            drops = True
            raise
        finally:
            await session.close(drops=drops)

    # ---- senders ----

    async def send(self, sender: int, chance: random.Random) -> None:
        """Publishes until the connection is lost, or the work pauses."""
        whole = chance.random() < 0.4
        async with self.session(chance) as session:
            if whole:
                await session.call(lambda done: session.channel.tx_select(callback=done))
            else:
                await session.confirm()
            while self.works.is_set() and not session.refused:
                if await session.depth() > DEPTH_MAX:
                    await asyncio.sleep(PACE_S)
                    continue
                first = self.next[sender]
                self.next[sender] += SENT
                self.journal.write("sent", sender=sender, first=first, count=SENT, whole=whole)
                size = chance.choice((30, 100, 1000))
                contents = [content_of(sender, first + at, size) for at in range(SENT)]
                await (self._commit if whole else self._publish)(session, sender, first, contents)

    async def _commit(self, session: Session, sender: int, first: int, contents: list[bytes]) -> None:
        try:
            for content in contents:
                session.publish(content)
            await session.call(lambda done: session.channel.tx_commit(callback=done))
        except Lost as error:
            self.journal.write("unknown", sender=sender, first=first, count=len(contents), error=str(error))
            raise
        self.journal.write("confirmed", sender=sender, numbers=list(range(first, first + len(contents))))

    async def _publish(self, session: Session, sender: int, first: int, contents: list[bytes]) -> None:
        tags: list[int] = []
        error = "basic.nack"
        try:
            tags += [session.publish_to_confirm(content) for content in contents]
            await session.until_confirmed()
        except Lost as lost:
            error = str(lost)
            raise
        finally:
            numbers = [first + at for at, tag in enumerate(tags) if not session.refused and session.is_confirmed(tag)]
            if numbers:
                self.journal.write("confirmed", sender=sender, numbers=numbers)
            if len(numbers) < len(contents):
                missing = len(contents) - len(numbers)
                self.journal.write("unknown", sender=sender, first=first, count=missing, error=error)

    # ---- receivers ----

    async def receive(self, _: int, chance: random.Random) -> None:
        """Consumes and settles until the connection is lost, it drops it, or the work pauses."""
        commits = chance.random() < 0.4
        async with self.session(chance) as session:
            channel = session.channel
            if commits:
                await session.call(lambda done: channel.tx_select(callback=done))
            prefetch = chance.randrange(1, ACQUIRED_MAX)
            await session.call(lambda done: channel.basic_qos(prefetch_count=prefetch, callback=done))
            on_message = self._on_message(session)
            await session.call(lambda done: channel.basic_consume(QUEUE, on_message, callback=done))
            while self.works.is_set():
                if not session.deliveries or await session.depth() <= DEPTH_MIN:
                    session.came.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(session.came.wait(), PACE_S)
                    session.judge()
                    continue
                await self._settle(session, chance, commits=commits)
                if session.deliveries and chance.random() < 0.1:
                    places = [place for _, place in session.deliveries]
                    self.journal.write("died", session=session.number, places=places)
                    raise Lost("it drops the connection")

    def _on_message(self, session: Session) -> Callable[[Any, Any, Any, bytes], None]:
        def on_message(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            sender, number = number_of(body)
            self.journal.write(
                "delivered", session=session.number, sender=sender, number=number, redelivered=method.redelivered
            )
            session.deliveries.append((method.delivery_tag, (sender, number)))
            session.came.set()

        return on_message

    async def _settle(self, session: Session, chance: random.Random, *, commits: bool) -> None:
        """Accepts the first of what it has, perhaps after a few rejects; gives the others back, or keeps them."""
        channel = session.channel
        count = len(session.deliveries)
        middle = chance.randrange(count + 1) if chance.random() < 0.3 else count
        rejected = min(REJECTED_MAX, middle) if chance.random() < 0.2 else 0
        mine = [session.deliveries.popleft() for _ in range(middle)]
        try:
            for how, some in (("reject", mine[:rejected]), ("accept", mine[rejected:])):
                if not some:
                    continue
                places = [place for _, place in some]
                self.journal.write("settling", session=session.number, places=places, how=how)
                session.judge()
                if how == "reject":
                    for tag, _ in some:
                        channel.basic_reject(tag, requeue=False)
                elif chance.random() < 0.5:
                    channel.basic_ack(some[-1][0], multiple=True)  # all before are settled or given back
                else:
                    for tag, _ in some:
                        channel.basic_ack(tag)
                if commits:
                    await session.call(lambda done: channel.tx_commit(callback=done))
                else:
                    await session.depth()
                self.journal.write("settled", session=session.number)
            if middle < count and chance.random() < 0.7:
                back = [session.deliveries.popleft() for _ in range(count - middle)]
                self.journal.write("released", session=session.number, places=[place for _, place in back])
                session.judge()
                for tag, _ in back:
                    channel.basic_nack(tag, requeue=True)
                if commits:
                    await session.call(lambda done: channel.tx_commit(callback=done))
        except pika.exceptions.AMQPError as error:
            raise Lost(f"{type(error).__name__}: {error}") from error

    # ---- commands ----

    async def resume(self) -> None:
        """Lets the clients work."""
        self.works.set()

    async def pause(self) -> None:
        """Returns when no client has a connection."""
        self.works.clear()
        if self.busy:
            await self.nobody_works.wait()

    async def close(self) -> None:
        """Ends in order."""
        await self.pause()
        self.stops = True
        self.works.set()
        await asyncio.gather(*self.tasks)


async def serve(clients: Clients) -> None:
    """Commands, until the last."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps({"answer": "ready"}), flush=True)
    while line := await reader.readline():
        command = json.loads(line)
        await getattr(clients, command)()
        print(json.dumps({"answer": None}), flush=True)
        if command == "close":
            return


async def run(journals: Path, name: str, seed: int, ports: list[int]) -> None:
    """The clients and their commands."""
    await serve(Clients(journals, name, seed, ports))


def main() -> None:
    journals, name, seed, parent, *ports = sys.argv[1:]
    end_with_parent(int(parent))
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # it logs each connection that ends
    LOG.setLevel(logging.INFO)
    try:
        asyncio.run(run(Path(journals), name, int(seed), [int(port) for port in ports]))
    except BaseException:
        LOG.exception("a command of the driver failed")
        os._exit(3)


if __name__ == "__main__":
    main()
