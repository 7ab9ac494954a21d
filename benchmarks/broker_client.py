"""The load client for any AMQP 0-9-1 server, a process of its own: one JSON object in as argument, one out.

`rates`: each connection publishes to its own queue for some time: persistent messages with publisher confirms, at most
`window` unconfirmed (0: no limit). Then the same number of connections consume them with `window` as prefetch, and
acknowledge every message alone. A publish counts when its confirm has arrived. Consuming ends when each connection has
the answer to the `basic.cancel` after its last acknowledgement. Confirms and contents are checked after the clock has
stopped. A message that is on a queue at the end was acknowledged, but came back when its consumer disconnected:
`came_back` is their number.

With `timed` each publish is timed until its confirm, too. With `steps` a line goes out before and after each of the two
works, and the work goes on when a line has come in: so the caller can look at the servers meanwhile.

`latency`: messages are due at a fixed rate, and each is timed from the moment it is due until its confirm. So a pause
of the server counts for every message that was due in that time.
"""

from __future__ import annotations

import array
import json
import os
import select
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

import broker_wire as wire
from pamqp import commands

if TYPE_CHECKING:
    from collections.abc import Sequence

TAG: Final = "load"
LEAVE_S: Final = 0.2  # between the last answer and the end of the connection, so that the server finishes its work
STALL_S: Final = 60.0  # without any data from the server
EMPTY_S: Final = 5.0  # for acknowledgements to arrive where messages are counted
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Order:
    """The fields of the argument."""

    what: str
    ports: list[int]  # of the connections, in turn
    connections: int
    window: int
    body_bytes: int
    seconds: float
    bytes_max: int = 256 << 20  # of bodies, all connections together
    rate: float = 0.0
    ack_multiple: bool = False
    arguments: dict[str, Any] | None = None
    server_pids: tuple[int, ...] = ()
    host: str = "127.0.0.1"
    user: str = "guest"
    password: str = "guest"
    keep: bool = False  # leave the messages where they are
    timed: bool = False
    steps: bool = False
    vhosts: tuple[str, ...] = ("/",)  # of the connections, in turn
    owners: tuple[int, ...] = ()  # ports where their queues are declared, in turn; as `ports` if there are none

    def link(self, number: int = 0, ports: Sequence[int] = ()) -> wire.Link:
        """That of this connection."""
        ports = ports or self.ports
        vhost = self.vhosts[number % len(self.vhosts)]
        return wire.Link(self.host, ports[number % len(ports)], self.user, self.password, vhost)

    def queues(self) -> list[str]:
        return [f"load-{os.getpid()}-{number}" for number in range(self.connections)]


class Clock:
    """Wall time, and the processor time of this process and of the server's."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        self._pids = pids
        self._server_s = self._server()
        self._client_s = time.process_time()
        self._start = time.perf_counter()

    def _server(self) -> float:
        ticks = 0
        for pid in self._pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks * _TICK_S

    def stop(self, messages: int) -> dict[str, float]:
        seconds = time.perf_counter() - self._start
        client_s = time.process_time() - self._client_s
        return {
            "messages": messages,
            "seconds": seconds,
            "rate": messages / seconds,
            "client_cpu_s": client_s,
            "server_cpu_s": self._server() - self._server_s,
        }


class Publisher:
    """Publishes on one link and counts the confirms."""

    def __init__(self, link: wire.Link, queue: str, order: Order, seed: int) -> None:
        self.link = link
        self.queue = queue
        self.messages = wire.Messages(queue, order.body_bytes, seed)
        self.window = order.window
        self.limit = max(1, order.bytes_max // order.connections // order.body_bytes)
        self.sent = 0
        self.confirmed = 0
        self._lowest = 1  # every tag below it is confirmed
        self._ahead: set[int] = set()  # tags above it that are
        self._rest = b""
        # By message: when it was due, or sent.
        self.due: array.array[float] | None = array.array("d") if order.timed or order.what == "latency" else None
        self.latencies_us: list[int] = []

    def push(self) -> None:
        """Sends as much as window and socket allow."""
        while not self.link.is_full and self.sent < self.limit:
            count = min(self.messages.block_messages, self.limit - self.sent)
            if self.window:
                count = min(count, self.window - (self.sent - self.confirmed))
                if count <= 0:
                    return
            if self.due is not None:
                self.due.extend([time.perf_counter()] * count)
            self.send(count)

    def send(self, count: int) -> None:
        """Sends this many at once, at most a block."""
        self.link.send(self.messages.encoded(self.sent, count))
        self.sent += count

    def take(self) -> None:
        """Reads confirms."""
        data = self._rest + self.link.receive()
        now = time.perf_counter()
        at, size = 0, len(data)
        while size - at >= wire.ACK.size:
            kind, _, length, class_id, method_id, tag, multiple, end = wire.ACK.unpack_from(data, at)
            if kind != wire.METHOD or class_id << 16 | method_id != wire.ACK_INDEX or length != 13 or end != 0xCE:
                raise wire.WireError(f"instead of a confirm came {wire.explain(data[at:])}")
            self._confirm(tag, multiple, now)
            at += wire.ACK.size
        self._rest = data[at:]

    def _confirm(self, tag: int, multiple: int, now: float) -> None:
        if tag > self.sent:
            raise wire.WireError(f"tag {tag} was confirmed, but only {self.sent} messages were sent")
        if not multiple:
            if tag < self._lowest or tag in self._ahead:
                raise wire.WireError(f"tag {tag} was confirmed twice")
            tags: Any = (tag,)
        else:
            if tag < self._lowest:
                raise wire.WireError(f"all up to tag {tag} were confirmed twice")
            tags = range(self._lowest, tag + 1)
            if self._ahead:
                tags = [each for each in tags if each not in self._ahead]
        self.confirmed += len(tags)
        if self.due is not None:
            self.latencies_us += [round((now - self.due[each - 1]) * 1e6) for each in tags]
        if not multiple and tag != self._lowest:
            self._ahead.add(tag)
            return
        self._lowest = tag + 1
        if self._ahead:
            self._ahead = {each for each in self._ahead if each > tag}
            while self._lowest in self._ahead:
                self._ahead.remove(self._lowest)
                self._lowest += 1


class Consumer:
    """Consumes a known number of messages on one link, acknowledging each."""

    def __init__(self, link: wire.Link, publisher: Publisher, order: Order) -> None:
        self.link = link
        self.queue = publisher.queue
        self.messages = publisher.messages
        self.wanted = publisher.confirmed
        self.ack_multiple = order.ack_multiple
        self.came = 0
        self.acked = 0
        self.done = False
        self.chunks: list[memoryview] = []
        self._asked = False
        self._rest = b""

    def start(self) -> None:
        consume = commands.Basic.Consume(queue=self.queue, consumer_tag=TAG)
        self.link.send(wire.pamqp_frame.marshal(consume, wire.CHANNEL))

    def push(self) -> None:
        """Acknowledges the messages received; after the last one sends a call to get an answer."""
        if self.link.is_full:
            return
        if self.came > self.acked:
            if self.ack_multiple:
                self.link.send(wire.ack_up_to(self.came))
            else:
                self.link.send(wire.acks(self.acked + 1, self.came - self.acked))
            self.acked = self.came
        if self.acked == self.wanted and not self._asked and not self.link.is_full:
            self._asked = True
            self.link.send(wire.pamqp_frame.marshal(commands.Basic.Cancel(consumer_tag=TAG), wire.CHANNEL))

    def take(self) -> None:
        """Counts the messages received, and keeps them."""
        data = self._rest + self.link.receive()
        unpack = wire.PREFIX.unpack_from
        at, size = 0, len(data)
        while size - at >= wire.PREFIX.size:
            kind, _, length = unpack(data, at)
            end = at + 8 + length
            if end > size:
                break
            if kind == wire.BODY:
                self.came += 1
            elif kind == wire.METHOD:
                self._method(data, at)
            at = end
        self.chunks.append(memoryview(data)[:at])
        self._rest = data[at:]

    def _method(self, data: bytes, at: int) -> None:
        index = int.from_bytes(data[at + 7 : at + 11], "big")
        if index == wire.DELIVER_INDEX:
            return
        if index == wire.CANCEL_OK_INDEX:
            self.done = True
        elif index != wire.CONSUME_OK_INDEX:
            raise wire.WireError(f"instead of a delivery came {wire.explain(data[at:])}")


def turn(workers: list[Any], timeout_s: float) -> bool:
    """Waits for sockets and lets each worker read; False if nothing happened."""
    links = {worker.link: worker for worker in workers}
    full = [link for link in links if link.is_full]
    readable, writable, _ = select.select(links, full, (), timeout_s)
    for link in writable:
        link.send_rest()
    for link in readable:
        links[link].take()
    return bool(readable or writable)


def until(workers: list[Any], done: Any) -> None:
    """Runs all workers until they are done. Raises `WireError` if the server makes no progress."""
    while not done():
        if not turn(workers, STALL_S):
            raise wire.WireError(f"no news from the server for {STALL_S:g} s")
        for worker in workers:
            worker.push()


def rates(order: Order) -> dict[str, Any]:
    """Publish with confirms, then consume with acknowledgements."""
    publishers = open_publishers(order)
    for publisher in publishers:
        publisher.link.socket.setblocking(False)
    step(order, "publish begins")
    clock = Clock(order.server_pids)
    end = time.perf_counter() + order.seconds
    for publisher in publishers:
        publisher.push()
    while time.perf_counter() < end and any(each.sent < each.limit for each in publishers):
        turn(publishers, max(0.0, end - time.perf_counter()))
        if time.perf_counter() < end:
            for publisher in publishers:
                publisher.push()
    for publisher in publishers:
        publisher.limit = publisher.sent
    until(publishers, lambda: all(each.confirmed == each.sent and not each.link.is_full for each in publishers))
    published = clock.stop(sum(each.confirmed for each in publishers))
    step(order, "publish ends")
    close(publishers)
    consumed = None if order.keep else consume(order, publishers)
    came_back = clean_up(order, publishers)
    if order.timed:
        published |= {"latencies_us": [each for publisher in publishers for each in publisher.latencies_us]}
    return {"publish": published, "consume": consumed, "came_back": came_back}


def step(order: Order, what: str) -> None:
    if order.steps:
        print(json.dumps(what), flush=True)
        sys.stdin.readline()


def open_publishers(order: Order) -> list[Publisher]:
    publishers = []
    for number, queue in enumerate(order.queues()):
        if order.owners:
            owner = order.link(number, order.owners)
            owner.declare(queue, order.arguments or {})
            owner.close()
        link = order.link(number)
        if link.declare(queue, order.arguments or {}):
            raise wire.WireError(f"queue {queue} was not empty")
        link.call(wire.CHANNEL, commands.Confirm.Select(), commands.Confirm.SelectOk)
        publishers.append(Publisher(link, queue, order, number))
    return publishers


def close(workers: list[Any]) -> None:
    for worker in workers:
        worker.link.socket.setblocking(True)
        worker.link.close()


def consume(order: Order, publishers: list[Publisher]) -> dict[str, Any]:
    consumers = []
    for number, publisher in enumerate(publishers):
        link = order.link(number)
        link.call(wire.CHANNEL, commands.Basic.Qos(prefetch_count=order.window), commands.Basic.QosOk)
        link.socket.setblocking(False)
        consumers.append(Consumer(link, publisher, order))
    step(order, "consume begins")
    clock = Clock(order.server_pids)
    for consumer in consumers:
        consumer.start()
    until(consumers, lambda: all(each.done for each in consumers))
    consumed = clock.stop(sum(each.came for each in consumers))
    step(order, "consume ends")
    time.sleep(LEAVE_S)
    close(consumers)
    for consumer in consumers:
        wire.check_deliveries(consumer.chunks, consumer.messages, consumer.wanted)
    return consumed


def clean_up(order: Order, publishers: list[Publisher]) -> int:
    """Deletes the queues; the number of surplus messages on them. Raises `WireError` if there were too few."""
    surplus = 0
    for number, publisher in enumerate(publishers):
        link = order.link(number)
        wanted = publisher.confirmed if order.keep else 0
        end = time.monotonic() + EMPTY_S
        while (ready := link.ready(publisher.queue)) != wanted and time.monotonic() < end:
            time.sleep(0.02)
        if ready < wanted:
            raise wire.WireError(f"{ready} messages are on {publisher.queue}, but {wanted} were confirmed")
        surplus += ready - wanted
        link.call(wire.CHANNEL, commands.Queue.Delete(queue=publisher.queue), commands.Queue.DeleteOk)
        link.close()
    return surplus


def latency(order: Order) -> dict[str, Any]:
    """Publish at a fixed rate over all connections in turn; every message's time from when it was due."""
    publishers = open_publishers(order)
    for publisher in publishers:
        publisher.link.socket.setblocking(False)
    total = max(1, int(order.rate * order.seconds))
    clock = Clock(order.server_pids)
    start = time.perf_counter()
    made = 0
    while made < total:
        now = time.perf_counter()
        while made < total and start + made / order.rate <= now:
            publisher = publishers[made % len(publishers)]
            assert publisher.due is not None
            publisher.due.append(start + made / order.rate)
            made += 1
        send_due(publishers)
        turn(publishers, max(0.0, start + made / order.rate - time.perf_counter()))
    end = time.perf_counter() + STALL_S
    while any(each.confirmed < total_of(each) for each in publishers):
        if time.perf_counter() > end:
            raise wire.WireError("confirms are missing")
        send_due(publishers)
        turn(publishers, 1.0)
    told = clock.stop(total)
    close(publishers)
    order.keep = True
    if clean_up(order, publishers):
        raise wire.WireError("there are more messages than were published")
    return told | {"latencies_us": [each for publisher in publishers for each in publisher.latencies_us]}


def total_of(publisher: Publisher) -> int:
    return len(publisher.due or ())


def send_due(publishers: list[Publisher]) -> None:
    for publisher in publishers:
        while publisher.sent < total_of(publisher) and not publisher.link.is_full:
            publisher.send(min(total_of(publisher) - publisher.sent, publisher.messages.block_messages))


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    order.server_pids = tuple(order.server_pids)
    try:
        told = {"rates": rates, "latency": latency}[order.what](order)
    except (wire.WireError, OSError) as error:
        told = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
