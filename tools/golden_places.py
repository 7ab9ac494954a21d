"""Encodes the records with states of places, for make_golden.py, as golden_layout.py does the others."""

from __future__ import annotations

import struct
from typing import Any

from golden_layout import REASONS, Draft, Json, blank

KINDS = {"ENQUEUE": 1, "DEQUEUE": 2, "NOTE": 3}


def place_note(queue_id: int, note: bytes, tx_id: int = 0) -> Draft:
    raw = blank(64 + len(note))
    struct.pack_into("<Q", raw, 48, tx_id)
    struct.pack_into("<I", raw, 56, queue_id)
    struct.pack_into("<B", raw, 60, len(note))
    raw[64 : 64 + len(note)] = note
    return raw, {"tx_id": tx_id, "queue_id": queue_id, "note": note.hex()}


def move(
    from_queue_id: int,
    queue_id: int,
    state: Json,
    bits: int = 0,
    reason: str = "NOT_TOLD",
    tx_id: int = 0,
    order_index: int = 0,
) -> Draft:
    """`state` has a place's state under the names of the page; what it lacks is 0 or empty."""
    told = stated(state)
    note, header = bytes.fromhex(told["note"]), bytes.fromhex(told["header"])
    raw = blank(96 + len(note) + len(header))
    struct.pack_into("<Q", raw, 48, tx_id)
    struct.pack_into("<I", raw, 56, from_queue_id)
    struct.pack_into("<I", raw, 60, queue_id)
    struct.pack_into("<I", raw, 64, order_index)
    struct.pack_into("<I", raw, 68, told["delivery_count"])
    struct.pack_into("<Q", raw, 72, told["not_before_us"])
    struct.pack_into("<Q", raw, 80, told["expires_us"])
    struct.pack_into("<I", raw, 88, len(header))
    struct.pack_into("<B", raw, 92, len(note))
    struct.pack_into("<B", raw, 93, REASONS[reason])
    struct.pack_into("<H", raw, 94, bits)
    raw[96 : 96 + len(note)] = note
    raw[96 + len(note) : 96 + len(note) + len(header)] = header
    key = {"tx_id": tx_id, "from_queue_id": from_queue_id, "queue_id": queue_id, "order_index": order_index}
    return raw, key | told | {"reason": reason, "state_bits": bits}


def start_placed(
    queues: list[int], header: bytes, content: bytes, state: Json, tx_id: int = 0, order_index: int = 0
) -> Draft:
    told = stated(state)
    note = bytes.fromhex(told["note"])
    note_at = (96 + 4 * len(queues) + 7) // 8 * 8
    raw = blank(note_at + len(note) + len(header) + len(content))
    struct.pack_into("<Q", raw, 48, tx_id)
    struct.pack_into("<I", raw, 56, len(header))
    struct.pack_into("<I", raw, 60, len(content))
    struct.pack_into("<I", raw, 64, len(queues))
    struct.pack_into("<I", raw, 68, order_index)
    struct.pack_into("<Q", raw, 72, told["not_before_us"])
    struct.pack_into("<Q", raw, 80, told["expires_us"])
    struct.pack_into("<B", raw, 88, len(note))
    for i, queue_id in enumerate(queues):
        struct.pack_into("<I", raw, 96 + 4 * i, queue_id)
    body = note + header + content
    raw[note_at : note_at + len(body)] = body
    names = {"tx_id": tx_id, "queues": queues, "header": header.hex(), "content": content.hex()}
    names["order_index"] = order_index
    times = {name: told[name] for name in ("not_before_us", "expires_us", "note")}
    return raw, names | times


def relocated_placed(
    content_bytes: int, start_lsn: int, places: list[Json], pending: list[Json], part: int = 0
) -> Draft:
    """Rows of places and of pending work under the names of the page; what they lack is 0 or empty."""
    rows = [_row(place, "order_lsn", "enqueue_time_us", "order_index", place.get("order_index", 0)) for place in places]
    work = [_row(one, "tx_id", "lsn", "kind", KINDS[one["kind"]]) for one in pending]
    raw = blank(80)
    struct.pack_into("<Q", raw, 48, content_bytes)
    struct.pack_into("<Q", raw, 56, start_lsn)
    struct.pack_into("<I", raw, 64, part)
    struct.pack_into("<I", raw, 72, len(places))
    struct.pack_into("<I", raw, 76, len(pending))
    for row in rows + work:
        raw += row
    place_key = {"order_lsn": 0, "enqueue_time_us": 0, "queue_id": 0, "order_index": 0}
    work_key = {"tx_id": 0, "lsn": 0, "queue_id": 0, "kind": ""}
    return raw, {
        "content_bytes": content_bytes,
        "start_lsn": start_lsn,
        "part": part,
        "chunks": [],
        "places": [place_key | {"state_bits": 0} | stated(place) for place in places],
        "pending": [work_key | {"state_bits": 0, "order_index": 0} | stated(one) for one in pending],
    }


def _row(given: Json, first: str, second: str, fourth: str, fourth_value: int) -> bytearray:
    told = stated(given)
    note, header = bytes.fromhex(told["note"]), bytes.fromhex(told["header"])
    raw = blank(56 + len(note) + len(header))
    struct.pack_into("<QQII", raw, 0, given[first], given[second], given["queue_id"], fourth_value)
    struct.pack_into("<II", raw, 24, told["delivery_count"], len(header))
    struct.pack_into("<QQ", raw, 32, told["not_before_us"], told["expires_us"])
    struct.pack_into("<BB", raw, 48, len(note), given.get("state_bits", 0))
    if fourth == "kind":
        struct.pack_into("<I", raw, 52, given.get("order_index", 0))
    raw[56 : 56 + len(note)] = note
    raw[56 + len(note) : 56 + len(note) + len(header)] = header
    return raw


def stated(given: Json) -> Json:
    """The state with what it lacks."""
    none: dict[str, Any] = {"delivery_count": 0, "not_before_us": 0, "expires_us": 0, "note": "", "header": ""}
    return none | given


def place_states(rows: list[tuple[int, int, int, int, int]]) -> Draft:
    """Rows of id, not_before_us, expires_us, queue_id and delivery_count."""
    raw = blank(56 + 32 * len(rows))
    struct.pack_into("<I", raw, 48, len(rows))
    for i, (message_id, not_before_us, expires_us, queue_id, delivery_count) in enumerate(rows):
        at = 56 + 32 * i
        struct.pack_into("<QQQ", raw, at, message_id, not_before_us, expires_us)
        struct.pack_into("<II", raw, at + 24, queue_id, delivery_count)
    names = "id", "not_before_us", "expires_us", "queue_id", "delivery_count"
    return raw, {"rows": [dict(zip(names, row, strict=True)) for row in rows]}
