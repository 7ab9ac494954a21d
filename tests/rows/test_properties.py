"""The AMQP properties of messages as columns: what pamqp encodes, the broker stores and the log keeps."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from logstore import arrow
from logstore.broker.headers import encode_header
from logstore.rows import properties as decoding

if TYPE_CHECKING:
    from pathlib import Path

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")
commands = pytest.importorskip("pamqp.commands", reason="pamqp is not installed")

ROUTING = b"\x06events\x0border.paid."
TIME = datetime(2026, 7, 1, 12, tzinfo=UTC)
FULL: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "delivery_mode": 2,
    "priority": 9,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "größe",
    "timestamp": TIME,
    "user_id": "u",
    "app_id": "a",
}
HEADERS = {
    "text": "z", "number": 1 << 40, "small": -3, "true": True, "none": None, "real": 0.5, "decimal": Decimal("1.25"),
    "time": TIME, "table": {"list": [1, "x", {"deep": False}]}, "bytes": bytearray(b"\xff"),
}  # fmt: skip


def stored(properties: Any, *, expiration_ms: int | None = None, published_ms: int = 1) -> bytes:
    return encode_header(ROUTING, properties.marshal(), published_ms, expiration_ms)


def decoded(*headers: bytes | None) -> list[tuple[Any, Any]]:
    array = pa.array(headers, pa.binary())
    columns = decoding.decoded_columns(decoding.DECODED, array)
    return list(zip(*(columns[name].to_pylist() for name in decoding.DECODED), strict=True))


def test_every_property_and_header_comes_back_as_it_was_published() -> None:
    full = commands.Basic.Properties(**FULL, message_type="t", headers=HEADERS)
    ((properties, headers), (bare, none)) = decoded(stored(full), stored(commands.Basic.Properties(), expiration_ms=5))
    assert properties == FULL | {"type": "t", "exchange": "events", "routing_key": "order.paid."}
    assert dict(headers) == {
        "text": "z", "number": str(1 << 40), "small": "-3", "true": "true", "none": None, "real": "0.5",
        "decimal": '1.25', "time": '2026-07-01T12:00:00+00:00',
        "table": '{"list": [1, "x", {"deep": false}]}', "bytes": '/w==',
    }  # fmt: skip
    assert {name: value for name, value in bare.items() if value is not None} == {
        "exchange": "events",
        "routing_key": "order.paid.",
    }
    assert none == []


def test_other_bytes_than_the_brokers_give_null() -> None:
    whole = stored(commands.Basic.Properties(**FULL, headers=HEADERS))
    others: list[bytes | None] = [
        None,
        b"",
        b"\x00head\xff",
        b"\x02" + whole[1:],
        b"\x01\x02" + whole[2:],
        whole + b"x",
    ]
    others += [whole[:size] for size in range(len(whole))]
    assert decoded(*others) == [(None, None)] * len(others)


def test_equal_properties_are_decoded_once_whenever_they_were_published(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    before = decoding._decoded
    monkeypatch.setattr(decoding, "_decoded", lambda header: seen.append(header) or before(header))
    one = commands.Basic.Properties(app_id="a", headers={"x": 1})
    array = pa.array([stored(one, published_ms=ms) for ms in range(1000)], pa.binary())
    assert decoding.decoded_columns(["properties"], array)["properties"][999]["app_id"].as_py() == "a"
    assert len(seen) == 1


def test_long_headers_are_not_kept_between_batches() -> None:
    """So that what is kept is bounded in bytes."""
    kept = decoding._decoded_once.cache_info().currsize
    long = stored(commands.Basic.Properties(app_id="a", headers={"x": "y" * 2000}))
    assert [properties["app_id"] for properties, _ in decoded(long, long)] == ["a", "a"]
    assert decoding._decoded_once.cache_info().currsize == kept
    decoded(stored(commands.Basic.Properties(app_id="kept", headers={"x": "y" * 100})))
    assert decoding._decoded_once.cache_info().currsize == kept + 1


def test_a_read_makes_them_only_where_they_are_named(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store") as store:
        queue = store.declare_queue("q")
        store.publish(queue, b"x", header=stored(commands.Basic.Properties(app_id="a", headers={"x": "1"})))
        store.publish(queue, b"x")
    assert {"properties", "headers"}.isdisjoint(arrow.read(tmp_path / "store").schema.names)
    with arrow.read(tmp_path / "store", columns=["headers", "type", "properties"]) as reader:
        assert reader.schema.names == ["headers", "type", "properties"]
        found = [row for row in reader.read_all().to_pylist() if row["type"] == "MESSAGE_START"]
    assert [row["headers"] for row in found] == [[("x", "1")], None]
    assert found[0]["properties"]["app_id"] == "a"
