"""The load client's side of each queue system: the bytes of its requests, and what is confirmed in its answers.

A wire has one blocking connection. `publish` gives the bytes of so many publishes; `confirmed` counts the durable
answers in received data, and keeps the rest. `take_all` consumes a number of messages, each acknowledged, at most
`window` of them unacknowledged, and returns once every acknowledgement is durable. Wires check what comes: any other
answer, and any content but the one published, raises `WireError`. Requests are prepared where the protocol allows it,
and answers are counted, not decoded, so that the client costs as little as possible.
"""

from __future__ import annotations

import collections
import re
import socket
import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

import broker_wire
from broker_wire import READ_BYTES, WireError
from pamqp import commands

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE: Final = "load"
TIMEOUT_S: Final = 60.0


class Wire(Protocol):
    """One connection to one system."""

    socket: socket.socket

    def publish(self, count: int) -> bytes | memoryview: ...

    def confirmed(self, data: bytes) -> int: ...

    def take_all(self, count: int, window: int) -> None: ...

    def empty(self) -> None:
        """Makes the queue, or leaves no message of an earlier use on it."""

    def close(self) -> None: ...


def body_of(size: int) -> bytes:
    """The content of all messages: without line ends, for the protocols of lines."""
    return bytes(0x21 + (at * 7) % 90 for at in range(size))


class _Stream:
    """A blocking connection, for wires that read their answers in order."""

    def __init__(self, port: int, body_bytes: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.body = body_of(body_bytes)
        self._received = b""

    def _more(self) -> None:
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise WireError("the server hung up")
        self._received += data

    def _line(self) -> bytes:
        while (end := self._received.find(b"\r\n")) < 0:
            self._more()
        line, self._received = self._received[:end], self._received[end + 2 :]
        return line

    def _bytes(self, size: int) -> bytes:
        while len(self._received) < size:
            self._more()
        found, self._received = self._received[:size], self._received[size:]
        return found

    def _content(self, found: bytes) -> None:
        if found != self.body:
            raise WireError(f"a message came with other content: {found[:60]!r}")

    def close(self) -> None:
        self.socket.close()


class AmqpWire:
    """Persistent messages with publisher confirms on a durable queue; each delivery is acknowledged alone."""

    def __init__(self, port: int, body_bytes: int) -> None:
        self._link = broker_wire.Link("127.0.0.1", port, "guest", "guest", timeout_s=TIMEOUT_S)
        self.socket = self._link.socket
        self._messages = broker_wire.Messages(QUEUE, body_bytes, 1)
        self._rest = b""
        self._tag = 0
        self._sent = 0
        self._link.call(broker_wire.CHANNEL, commands.Confirm.Select(), commands.Confirm.SelectOk)

    def empty(self) -> None:
        self._link.declare(QUEUE, {})
        self._link.call(broker_wire.CHANNEL, commands.Queue.Purge(queue=QUEUE), commands.Queue.PurgeOk)
        self._sent = 0

    def publish(self, count: int) -> memoryview:
        encoded = self._messages.encoded(self._sent, count)
        self._sent += count
        return encoded

    def confirmed(self, data: bytes) -> int:
        data = self._rest + data
        before, size, whole = self._tag, broker_wire.ACK.size, len(data) // broker_wire.ACK.size
        for at in range(0, whole * size, size):
            kind, _, length, class_id, method_id, tag, multiple, _ = broker_wire.ACK.unpack_from(data, at)
            if kind != broker_wire.METHOD or class_id << 16 | method_id != broker_wire.ACK_INDEX or length != 13:
                raise WireError(f"instead of a confirm came {broker_wire.explain(data[at:])}")
            if tag <= self._tag or (tag != self._tag + 1 and not multiple):
                raise WireError(f"tag {tag} was confirmed after tag {self._tag}")
            self._tag = tag
        self._rest = data[whole * size :]
        return self._tag - before

    def take_all(self, count: int, window: int) -> None:
        call, channel = self._link.call, broker_wire.CHANNEL
        call(channel, commands.Basic.Qos(prefetch_count=window), commands.Basic.QosOk)
        self._link.send(
            broker_wire.pamqp_frame.marshal(commands.Basic.Consume(queue=QUEUE, consumer_tag=QUEUE), channel)
        )
        chunks: list[bytes] = []
        came, rest = 0, b""
        while came < count:
            data = rest + self._link.receive()
            at, before = 0, came
            while len(data) - at >= broker_wire.PREFIX.size:
                kind, _, length = broker_wire.PREFIX.unpack_from(data, at)
                if at + 8 + length > len(data):
                    break
                came += kind == broker_wire.BODY
                at += 8 + length
            chunks.append(data[:at])
            rest = data[at:]
            self.socket.sendall(broker_wire.acks(before + 1, came - before))
        call(channel, commands.Basic.Cancel(consumer_tag=QUEUE), commands.Basic.CancelOk)
        consume_ok = chunks[0].index(b"\xce") + 1
        chunks[0] = chunks[0][consume_ok:]
        broker_wire.check_deliveries(chunks, self._messages, count)

    def close(self) -> None:
        self._link.close()


class RedisWire(_Stream):
    """A stream with a consumer group: XADD; XREADGROUP, and XACK with XDEL for each message."""

    _XADD_REPLY: Final = re.compile(rb"\$\d+\r\n\d+-\d+\r\n")
    _GROUP: Final = "workers"

    def __init__(self, port: int, body_bytes: int) -> None:
        super().__init__(port, body_bytes)
        self._add = self._command("XADD", QUEUE, "*", "b", self.body)
        self._rest = b""

    @staticmethod
    def _command(*parts: str | bytes) -> bytes:
        encoded = [part.encode() if isinstance(part, str) else part for part in parts]
        return b"".join((b"*%d\r\n" % len(encoded), *[b"$%d\r\n%b\r\n" % (len(part), part) for part in encoded]))

    def _call(self, *parts: str | bytes) -> Any:
        self.socket.sendall(self._command(*parts))
        return self._answer()

    def _answer(self) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            return None if rest == b"-1" else self._bytes(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self._answer() for _ in range(int(rest))]
        if kind == b":":
            return int(rest)
        if kind != b"+":
            raise WireError(f"redis answered {line!r}")
        return rest

    def empty(self) -> None:
        self._call("DEL", QUEUE)
        self._call("XGROUP", "CREATE", QUEUE, self._GROUP, "0", "MKSTREAM")

    def publish(self, count: int) -> bytes:
        return self._add * count

    def confirmed(self, data: bytes) -> int:
        data = self._rest + data
        count = end = 0
        for found in self._XADD_REPLY.finditer(data):
            if found.start() != end:
                break
            count, end = count + 1, found.end()
        self._rest = data[end:]
        if self._rest[:1] not in (b"", b"$"):
            raise WireError(f"redis answered {self._rest[:80]!r}")
        return count

    def take_all(self, count: int, window: int) -> None:
        read = self._command("XREADGROUP", "GROUP", self._GROUP, "one", "COUNT", str(window), "STREAMS", QUEUE, ">")
        self.socket.sendall(read)
        while count:
            [[_, entries]] = self._answer()
            requests = []
            for name, (_, found) in entries:
                self._content(found)
                requests += [self._command("XACK", QUEUE, self._GROUP, name), self._command("XDEL", QUEUE, name)]
            count -= len(entries)
            if count:
                requests.append(read)
            self.socket.sendall(b"".join(requests))
            for _ in range(2 * len(entries)):
                if self._answer() != 1:
                    raise WireError("redis did not acknowledge a message")


class BeanstalkWire(_Stream):
    """put; reserve and delete. All are pipelined."""

    def __init__(self, port: int, body_bytes: int) -> None:
        super().__init__(port, body_bytes)
        self._put = b"put 0 0 600 %d\r\n%b\r\n" % (body_bytes, self.body)
        self._rest = b""

    def empty(self) -> None:
        while True:
            self.socket.sendall(b"reserve-with-timeout 0\r\n")
            line = self._line()
            if line == b"TIMED_OUT":
                return
            self.socket.sendall(b"delete %b\r\n" % self._reserved(line))
            self._line()

    def _reserved(self, line: bytes) -> bytes:
        word, name, size = line.split()
        if word != b"RESERVED":
            raise WireError(f"beanstalkd answered {line!r}")
        self._content(self._bytes(int(size) + 2)[:-2])
        return name

    def publish(self, count: int) -> bytes:
        return self._put * count

    def confirmed(self, data: bytes) -> int:
        lines = (self._rest + data).split(b"\r\n")
        self._rest = lines.pop()
        if any(not line.startswith(b"INSERTED ") for line in lines):
            raise WireError(f"beanstalkd answered {lines!r:.200}")
        return len(lines)

    def take_all(self, count: int, window: int) -> None:
        asked = min(window, count)
        deleted = 0
        self.socket.sendall(b"reserve\r\n" * asked)
        while deleted < count:
            line = self._line()
            if line == b"DELETED":
                deleted += 1
                continue
            requests = b"delete %b\r\n" % self._reserved(line)
            if asked < count:
                asked += 1
                requests += b"reserve\r\n"
            self.socket.sendall(requests)


class PostgresWire(_Stream):
    """A table: INSERT; DELETE of rows chosen by SELECT … FOR UPDATE SKIP LOCKED, and the commit acknowledges them.

    Statements that are sent at once are one transaction, as in the pipeline mode of its drivers. So a window of 100
    has one commit for 100 inserts, or for up to 100 deletes.
    """

    _TABLE: Final = f"CREATE TABLE IF NOT EXISTS {QUEUE} (id bigserial PRIMARY KEY, body bytea NOT NULL)"
    _INSERT: Final = f"INSERT INTO {QUEUE} (body) VALUES ($1)"
    _TAKE: Final = (
        f"DELETE FROM {QUEUE} WHERE id = ANY (ARRAY("
        f"SELECT id FROM {QUEUE} ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING body"
    )

    def __init__(self, port: int, body_bytes: int) -> None:
        super().__init__(port, body_bytes)
        parameters = b"user\0postgres\0database\0postgres\0\0"
        self.socket.sendall(struct.pack(">II", len(parameters) + 8, 196608) + parameters)
        self._until_ready()
        self._transactions: collections.deque[int] = collections.deque()  # inserts of each that is not committed
        value = struct.pack(">I", body_bytes) + self.body
        self._insert = self._bind(b"insert", value) + self._message(b"E", b"\0" + bytes(4))
        self._rest = b""

    @staticmethod
    def _message(kind: bytes, payload: bytes) -> bytes:
        return kind + struct.pack(">I", len(payload) + 4) + payload

    def _bind(self, statement: bytes, value: bytes) -> bytes:
        formats = struct.pack(">HH", 1, 1)  # of the parameters: one, binary
        results = struct.pack(">HH", 1, 1)
        return self._message(b"B", b"\0" + statement + b"\0" + formats + struct.pack(">H", 1) + value + results)

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        while True:
            kind, size = struct.unpack(">cI", self._bytes(5))
            payload = self._bytes(size - 4)
            if kind == b"E":
                raise WireError(f"PostgreSQL answered {payload!r}")
            yield kind, payload
            if kind == b"Z":
                return

    def _until_ready(self) -> None:
        for _ in self._messages():
            pass

    def _do(self, text: str) -> None:
        self.socket.sendall(self._message(b"Q", text.encode() + b"\0"))
        self._until_ready()

    def empty(self) -> None:
        self._do("SET client_min_messages TO error")
        self._do(self._TABLE)
        self._do(f"TRUNCATE {QUEUE}")
        self._do("DEALLOCATE ALL")
        for name, text in ((b"insert", self._INSERT), (b"take", self._TAKE)):
            self.socket.sendall(
                self._message(b"P", name + b"\0" + text.encode() + b"\0" + bytes(2)) + self._message(b"S", b"")
            )
            self._until_ready()

    def publish(self, count: int) -> bytes:
        self._transactions.append(count)
        return self._insert * count + self._message(b"S", b"")

    def confirmed(self, data: bytes) -> int:
        data = self._rest + data
        at = count = 0
        while len(data) - at >= 5:
            kind, size = struct.unpack_from(">cI", data, at)
            if at + 1 + size > len(data):
                break
            if kind == b"Z":
                count += self._transactions.popleft()
            elif kind == b"E":
                raise WireError(f"PostgreSQL answered {data[at:]!r:.300}")
            at += 1 + size
        self._rest = data[at:]
        return count

    def take_all(self, count: int, window: int) -> None:
        value = struct.pack(">IQ", 8, window)
        take = self._bind(b"take", value) + self._message(b"E", b"\0" + bytes(4)) + self._message(b"S", b"")
        while count:
            self.socket.sendall(take)
            for kind, payload in self._messages():
                if kind == b"D":
                    self._content(payload[6:])
                    count -= 1


class NatsWire(_Stream):
    """A JetStream stream with a work queue's retention: publishes with an acknowledgement; a pull consumer whose
    messages are each acknowledged, and each acknowledgement is answered."""

    _STREAM: Final = "LOAD"

    def __init__(self, port: int, body_bytes: int) -> None:
        super().__init__(port, body_bytes)
        self._line()  # INFO
        self.socket.sendall(
            b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nSUB in.* 1\r\nSUB go.* 2\r\n'
        )
        self._pub = b"PUB load.1 in.p %d\r\n%b\r\n" % (body_bytes, self.body)
        self._rest = b""

    def _call(self, subject: str, request: str) -> bytes:
        sent = request.encode()
        self.socket.sendall(b"PUB $JS.API.%b in.a %d\r\n%b\r\n" % (subject.encode(), len(sent), sent))
        return self._message()[1]

    def _message(self) -> tuple[list[bytes], bytes]:
        """The words of the next MSG, and its content."""
        while True:
            words = self._line().split()
            if words[0] == b"PING":
                self.socket.sendall(b"PONG\r\n")
            elif words[0] == b"HMSG":
                raise WireError(f"NATS answered {self._bytes(int(words[-1]) + 2)!r}")
            elif words[0] == b"MSG":
                return words, self._bytes(int(words[-1]) + 2)[:-2]
            else:
                raise WireError(f"NATS answered {words!r}")

    def empty(self) -> None:
        self._call(f"STREAM.DELETE.{self._STREAM}", "")
        made = self._call(
            f"STREAM.CREATE.{self._STREAM}",
            f'{{"name":"{self._STREAM}","subjects":["load.*"],"storage":"file","retention":"workqueue"}}',
        )
        made += self._call(
            f"CONSUMER.DURABLE.CREATE.{self._STREAM}.workers",
            f'{{"stream_name":"{self._STREAM}","config":{{"durable_name":"workers","ack_policy":"explicit",'
            '"max_ack_pending":1000}}',
        )
        if b'"error"' in made:
            raise WireError(f"NATS answered {made!r}")

    def publish(self, count: int) -> bytes:
        return self._pub * count

    def confirmed(self, data: bytes) -> int:
        data = self._rest + data
        if b"PING\r\n" in data:
            self.socket.sendall(b"PONG\r\n")
            data = data.replace(b"PING\r\n", b"")
        lines = data.split(b"\r\n")
        count = (len(lines) - 1) // 2
        self._rest = b"\r\n".join(lines[2 * count :])
        if any(b'"seq"' not in line for line in lines[1 : 2 * count : 2]):
            raise WireError(f"NATS answered {data[:300]!r}")
        return count

    def take_all(self, count: int, window: int) -> None:
        acked = asked = came = 0
        while acked < count:
            if asked == came and asked < count:
                batch = min(window, count - asked)
                request = b'{"batch":%d}' % batch
                subject = b"$JS.API.CONSUMER.MSG.NEXT.%b.workers" % self._STREAM.encode()
                self.socket.sendall(b"PUB %b go.m %d\r\n%b\r\n" % (subject, len(request), request))
                asked += batch
            words, content = self._message()
            if words[2] == b"2":
                self._content(content)
                came += 1
                self.socket.sendall(b"PUB %b in.k 4\r\n+ACK\r\n" % words[3])
            else:
                acked += 1


WIRES: Final[dict[str, type[Any]]] = {
    "logstore": AmqpWire,
    "before": AmqpWire,
    "redis": RedisWire,
    "beanstalkd": BeanstalkWire,
    "postgresql": PostgresWire,
    "nats": NatsWire,
}
