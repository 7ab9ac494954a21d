"""``logstore peek``: the first messages of a queue, of a closed store and beside a running writer."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import sys
from typing import TYPE_CHECKING, Any

import pika
import pytest

import logstore
from kit.command import fails, fine, run, spawn, told
from kit.crashed import snapshot
from kit.serve_process import ServeProcess
from kit.stores import SMALL_SEGMENT
from logstore.commands.peek import header_of, properties_of
from logstore.inspect import Inspection
from logstore.inspect.peek import peek
from logstore.terminal.previews import preview, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = dt.datetime(2026, 5, 17, 12, 0, 0, tzinfo=dt.UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Seven messages on "orders", of which a transaction without an outcome has dequeued the second."""
    made = tmp_path / "store"
    with logstore.open(made, segment_size=SMALL_SEGMENT) as store:
        orders = store.declare_queue("orders")
        store.declare_queue("empty")
        store.publish(orders, b"plain text\nof two lines", header=b"kind=a")
        second = store.publish(orders, "h\u00e9llo \u8a9e".encode())
        store.publish(orders, bytes(range(256)), header=b"\x00\xff")
        store.publish(orders, b"")
        store.publish(orders, ("\u8a9e" * 200).encode())
        staged = store.stage(b"staged", b"")
        for _ in range(4):
            store.append_content(staged, b"0123456789" * 5)
        store.enqueue(staged, orders)
        store.publish(orders, b"x" * 300_000)
        transaction = store.begin(logstore.Xid(1, b"t"))
        store.dequeue(second, orders, transaction)
        transaction.end()
        transaction.prepare()
    return made


def peeked(path: Path, queue: str = "orders", *options: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = told("peek", path, queue, "-n", 100, *options)["messages"]
    return found


def test_peek_shows_messages_in_order_with_time_size_header_and_body_and_changes_nothing(path: Path) -> None:
    before = snapshot(path)
    text, second, binary, empty, cut, staged, large = peeked(path)
    assert snapshot(path) == before
    assert (text["body_text"], text["body_bytes"], text["locked"]) == ("plain text\nof two lines", 23, False)
    assert base64.b64decode(text["header_base64"]) == b"kind=a"
    assert text["header"] is None  # no broker wrote it
    assert (second["body_text"], second["locked"]) == ("h\u00e9llo \u8a9e", True)
    assert (binary["body_text"], base64.b64decode(binary["body_base64"])) == (None, bytes(range(256)))
    assert (empty["body_text"], empty["body_bytes"]) == ("", 0)
    assert (cut["body_text"], cut["body_bytes"], cut["body_shown_bytes"]) == ("\u8a9e" * 85, 600, 256)
    assert (staged["body_text"], staged["body_bytes"]) == ("0123456789" * 20, 200)
    assert base64.b64decode(staged["header_base64"]) == b"staged"
    assert (large["body_bytes"], large["body_shown_bytes"]) == (300_000, 256)
    for one in (text, large):
        age = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(one["time"])
        assert dt.timedelta(0) <= age < dt.timedelta(hours=1)


def test_peek_for_people_is_one_line_a_body_and_says_what_it_cuts(path: Path) -> None:
    said = fine("peek", path, "orders", "-n", 7).splitlines()
    assert "  header: kind=a" in said
    assert "  body: plain text\\nof two lines" in said
    assert sum("locked by a transaction" in line for line in said) == 1
    assert "  header: hex 00 ff" in said
    assert f"  body: hex {bytes(range(64)).hex(' ')} … (the first 64 of 256 bytes)" in said
    assert "  body: empty" in said
    assert f"  body: {'x' * 256} … (the first 256 of 300000 bytes)" in said
    assert fine("peek", path, "orders").splitlines()[-1] == "6 more messages follow (-n)"
    assert fine("peek", path, "empty") == "queue 'empty' has no messages\n"


def test_peek_takes_the_number_of_messages_and_of_bytes(path: Path) -> None:
    assert len(told("peek", path, "orders")["messages"]) == 1
    assert len(told("peek", path, "orders", "-n", 3)["messages"]) == 3
    large = peeked(path, "orders", "--body", "1M")[-1]
    assert (large["body_shown_bytes"], large["body_text"]) == (300_000, "x" * 300_000)
    assert [one["body_shown_bytes"] for one in peeked(path, "orders", "--body", 0)] == [0] * 7
    assert [one["body_shown_bytes"] for one in peeked(path, "orders", "--body", 120)][4:6] == [120, 120]
    assert peeked(path, "1") == peeked(path, "orders")


def test_an_unknown_queue_is_an_error_that_names_those_with_near_names(path: Path) -> None:
    assert "there is no queue 'ordres'; there is 'orders';" in fails(run("peek", path, "ordres"), 1)
    assert "there is no queue 'zzz'; 'logstore queues " in fails(run("peek", path, "zzz"), 1)
    fails(run("peek", path, "9"), 1)
    fails(run("peek", path, ""), 1)


@pytest.mark.parametrize(
    "arguments",
    [[], ["orders", "-n", "0"], ["orders", "-n", "1001"], ["orders", "--body", "2M"], ["orders", "--body", "x"]],
)
def test_misuse_is_one_line_and_status_2(path: Path, arguments: list[str]) -> None:
    fails(run("peek", path, *arguments), 2)


def test_a_directory_without_a_store_is_one_line_and_status_3(tmp_path: Path) -> None:
    fails(run("peek", tmp_path, "orders"), 3)
    fails(run("peek", tmp_path / "none", "orders"), 3)


LONG = 100_000  # bytes of content that is in several records


def test_peek_equals_the_messages_of_the_open_store_also_after_relocation(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "s", segment_size=SMALL_SEGMENT) as store:
        kept, churn = store.declare_queue("kept"), store.declare_queue("churn")
        other = store.declare_queue("other")
        for number in range(12):
            store.publish([kept, other], bytes([number]) * (number * 50), header=b"h%d" % number)
            staged = store.stage(b"staged", b"")
            for part in range(4):
                store.append_content(staged, bytes([65 + part]) * 100)
            store.enqueue(staged, kept)
            store.publish(kept, bytes([97 + number]) * 200_000)
        for _ in range(60):
            store.publish_many(churn, [bytes(10_000)] * 20)
            for delivery in churn.acquire(20):
                delivery.accept(wait=False)
        store.force()
        store.compact()
        with Inspection(tmp_path / "s") as found:
            found.read()
            for queue in (kept, other):
                for size in (0, 150, 1 << 20):
                    wanted = list(store.messages(queue))
                    seen = peek(found, queue.id, 1000, size)
                    assert [(one.id, one.header, one.content_bytes, one.locked) for one in seen] == [
                        (one.id, one.header, one.size, one.locked) for one in wanted
                    ]
                    for one, whole in zip(seen, wanted, strict=True):
                        if whole.size < size and one.relocated and whole.size > LONG:  # maybe moved in parts
                            assert one.content == whole.content[: len(one.content)]
                            assert one.content
                        else:
                            assert one.content == whole.content[:size]
            assert sum(one.relocated for one in peek(found, kept.id, 1000, 0)) > 20
            assert sum(one.time_us > 0 for one in peek(found, kept.id, 1000, 0)) > 30


# ---- A broker


@contextlib.contextmanager
def connected(broker: ServeProcess) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    try:
        yield connection.channel()
    finally:
        connection.close()


@pytest.fixture
def served(path: Path) -> Iterator[ServeProcess]:
    process = ServeProcess(path)
    try:
        yield process
    finally:
        process.kill()


def test_peek_beside_a_broker_decodes_the_properties_of_its_messages(path: Path, served: ServeProcess) -> None:
    properties = pika.BasicProperties(
        content_type="application/json",
        delivery_mode=2,
        expiration="3600000",
        headers={"tries": 3, "nested": {"a": [1, "two"]}, "at": NOW},
        timestamp=int(NOW.timestamp()),
    )
    with connected(served) as channel:
        channel.confirm_delivery()
        channel.queue_declare("new", durable=True)
        channel.queue_bind("new", "amq.topic", "a.#")
        channel.basic_publish("amq.topic", "a.b", b'{"n": 1}', properties)
        channel.basic_publish("", "new", b"x", pika.BasicProperties(delivery_mode=2))
        first, second = peeked(path, "new")
        text = fine("peek", path, "new")
        assert channel.queue_declare("new", passive=True).method.message_count == 2
        fails(run("peek", path, "nex"), 1)
        channel.queue_declare("scratch")
        assert "in its memory" in fails(run("peek", path, "scratch"), 1)
    header = first["header"]
    assert (header["exchange"], header["routing_key"], header["expiration_ms"]) == ("amq.topic", "a.b", 3_600_000)
    assert header["properties"] == {
        "content_type": "application/json",
        "delivery_mode": 2,
        "expiration": "3600000",
        "headers": {"tries": 3, "nested": {"a": [1, "two"]}, "at": NOW.isoformat()},
        "timestamp": NOW.isoformat(),
    }
    assert first["body_text"] == '{"n": 1}'
    assert (second["header"]["exchange"], second["header"]["routing_key"]) == ("", "new")
    assert abs(
        dt.datetime.fromisoformat(header["published"]) - dt.datetime.fromisoformat(first["time"])
    ) < dt.timedelta(minutes=1)
    assert "  content_type: application/json" in text.splitlines()
    assert "  exchange 'amq.topic', key 'a.b'" in text.splitlines()


def test_peek_while_a_writer_consumes_and_relocates_never_shows_a_wrong_message(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "s", segment_size=SMALL_SEGMENT) as store:
        kept, churn = store.declare_queue("kept"), store.declare_queue("churn")
        ids = store.publish_many(kept, [b"%d" % number for number in range(20)])
        for _ in range(15):
            for _ in range(10):
                store.publish_many(churn, [bytes(20_000)] * 20)
                churn.accept_many(churn.acquire(20))
            assert [(one["id"], one["body_text"]) for one in peeked(tmp_path / "s", "kept")] == [
                (message, str(number)) for number, message in enumerate(ids)
            ]


@pytest.mark.parametrize("name", ["pamqp", "uvloop"])
def test_without_the_packages_of_the_broker_a_header_is_shown_as_it_is(path: Path, name: str) -> None:
    without = f"import sys; sys.modules[{name!r}] = None; from logstore.cli import main; main(sys.argv[1:])"
    result = spawn("peek", path, "orders", program=(sys.executable, "-c", without))
    assert (result.returncode, result.stderr) == (0, "")
    assert "  header: kind=a" in result.stdout.splitlines()


# ---- Decoding


def test_text_is_printable_utf_8_and_a_cut_may_hit_a_character() -> None:
    assert text_of("a\t\n語".encode()) == "a\t\n語"
    assert text_of("語".encode()[:2]) is None
    assert text_of("a語".encode()[:3], is_cut=True) == "a"
    assert text_of(b"\x1b[31m") is None
    assert text_of(b"\xff") is None


def test_a_preview_is_one_line_without_terminal_controls() -> None:
    assert preview(b"a\r\nb", 4) == "a\\r\\nb"
    assert preview(b"\x1b[31m", 5) == "hex 1b 5b 33 31 6d"
    assert preview(b"abc", 10) == "abc … (the first 3 of 10 bytes)"
    assert preview(b"", 0) == "empty"


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff", b"\x80\x00\x05ab", b"\x20\x00\x00\x00\x00\x04\x01aX\x00"])
def test_properties_that_cannot_be_decoded_are_none(data: bytes) -> None:
    assert properties_of(data) is None


@pytest.mark.parametrize("data", [b"", b"\x01", b"kind=a", b"\x02" * 40, b"\x01\x00" + bytes(8) + b"\x09abc"])
def test_a_header_that_no_broker_wrote_is_not_decoded(data: bytes) -> None:
    assert header_of(data) is None


def test_every_cut_of_a_header_is_decoded_or_refused() -> None:
    from logstore.broker.headers import encode_header

    whole = encode_header(b"\x03exc\x03key", b"\x80\x00\x0atext/plain", 1_700_000_000_000, 5000)
    found = header_of(whole)
    assert found is not None
    assert found["properties"] == {"content_type": "text/plain"}
    for end in range(len(whole)):
        header_of(whole[:end])
        header_of(whole[:end] + b"\xff" * 20)
