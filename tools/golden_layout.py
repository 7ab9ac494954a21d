"""Encodes the format with struct and xxhash at the offsets of docs/format.md, for make_golden.py.

Like that program it must never use the logstore package or the C core. Besides the bytes every function returns what a
reader decodes from them, in the form of the JSON files: bytes as hex, types and flags by name.
"""

from __future__ import annotations

import struct
from typing import Any

from xxhash import xxh64_intdigest

UUID = bytes.fromhex("00112233445566778899aabbccddeeff")
UUID_TEXT = "00112233-4455-6677-8899-aabbccddeeff"
SEGMENT = 65536
TIME_US = 1_700_000_000_000_000

COPY, PART, DELETES, PUBLISHED, STAGED, INLINE, ORDERED = 1, 2, 4, 8, 16, 32, 64
FLAG_NAMES = {1: "COPY", 2: "PART", 4: "DELETES", 8: "PUBLISHED", 16: "STAGED", 32: "INLINE", 64: "ORDERED"}
TYPES = {
    "MESSAGE_START": 0x0101,
    "MESSAGE_CHUNK": 0x0102,
    "MESSAGE_ENQUEUE": 0x0103,
    "MESSAGE_DEQUEUE": 0x0104,
    "MESSAGE_DELETE": 0x0105,
    "MESSAGE_RELOCATED": 0x0106,
    "MESSAGE_PLACE": 0x0107,
    "MESSAGE_MOVE": 0x0108,
    "MESSAGE_START_PLACED": 0x0109,
    "MESSAGE_RELOCATED_PLACED": 0x010A,
    "DTX_START": 0x0201,
    "TX_START": 0x0202,
    "TX_END": 0x0203,
    "TX_PREPARE": 0x0204,
    "TX_COMMIT": 0x0205,
    "TX_ROLLBACK": 0x0206,
    "TX_DELETE": 0x0207,
    "TX_RELOCATED": 0x0208,
    "BATCH": 0x0301,
    "FILLER": 0x0302,
    "FOOTER": 0x0303,
    "QUEUE_DELETE": 0x0304,
    "CLOSE": 0x0305,
    "PLACE_STATES": 0x0306,
    "MEMBERS": 0x0401,
    "CATALOG_CHANGE": 0x0402,
    "0x8001": 0x8001,  # of a later version, which readers of this one skip
}
REASONS = {
    "NOT_TOLD": 0,
    "ACCEPTED": 1,
    "REJECTED": 2,
    "EXPIRED": 3,
    "PURGED": 4,
    "DEAD_LETTERED": 5,
    "QUEUE_DELETED": 6,
}

Json = dict[str, Any]
Draft = tuple[bytearray, Json]  # a record with a body, and what a reader decodes from the body


# ---- Bodies. A draft is the whole record from offset 0, so that offsets are those of docs/format.md.


def blank(end: int) -> bytearray:
    return bytearray((end + 7) // 8 * 8)


def empty() -> Draft:
    return blank(48), {}


def message_start(queues: list[int], header: bytes, content: bytes, tx_id: int = 0, order_index: int = 0) -> Draft:
    header_at = (72 + 4 * len(queues) + 7) // 8 * 8
    raw = blank(header_at + len(header) + len(content))
    struct.pack_into("<Q", raw, 48, tx_id)
    struct.pack_into("<I", raw, 56, len(header))
    struct.pack_into("<I", raw, 60, len(content))
    struct.pack_into("<I", raw, 64, len(queues))
    struct.pack_into("<I", raw, 68, order_index)
    for i, queue_id in enumerate(queues):
        struct.pack_into("<I", raw, 72 + 4 * i, queue_id)
    raw[header_at : header_at + len(header)] = header
    raw[header_at + len(header) : header_at + len(header) + len(content)] = content
    names = {"tx_id": tx_id, "queues": queues, "header": header.hex(), "content": content.hex()}
    return raw, names | {"order_index": order_index}


def inline_copy(queues: list[int], header: bytes, content: bytes, enqueue_time_us: int = 0) -> Draft:
    """A MESSAGE_START with COPY and INLINE."""
    raw, body = message_start(queues, header, content)
    struct.pack_into("<Q", raw, 48, enqueue_time_us)
    del body["tx_id"], body["order_index"]
    return raw, {"enqueue_time_us": enqueue_time_us} | body


def ordered_copy(queues: list[int], header: bytes, content: bytes, order_lsn: int, order_index: int = 0) -> Draft:
    """A MESSAGE_START with COPY, INLINE and ORDERED; queue 0 is a place that has ended."""
    raw, body = message_start(queues, header, content)
    struct.pack_into("<Q", raw, 48, order_lsn)
    struct.pack_into("<I", raw, 68, order_index)
    del body["tx_id"]
    return raw, {"order_lsn": order_lsn} | body | {"order_index": order_index}


def message_chunk(offset: int, content: bytes) -> Draft:
    raw = blank(64 + len(content))
    struct.pack_into("<Q", raw, 48, offset)
    struct.pack_into("<I", raw, 56, len(content))
    raw[64 : 64 + len(content)] = content
    return raw, {"offset": offset, "content": content.hex()}


def message_enqueue(queues: list[int], tx_id: int = 0, order_index: int = 0) -> Draft:
    raw = blank(64 + 4 * len(queues))
    struct.pack_into("<Q", raw, 48, tx_id)
    struct.pack_into("<I", raw, 56, len(queues))
    struct.pack_into("<I", raw, 60, order_index)
    for i, queue_id in enumerate(queues):
        struct.pack_into("<I", raw, 64 + 4 * i, queue_id)
    return raw, {"tx_id": tx_id, "queues": queues, "order_index": order_index}


def message_dequeue(queue_id: int, reason: str, delivery_count: int = 0, tx_id: int = 0) -> Draft:
    raw = blank(64)
    struct.pack_into("<Q", raw, 48, tx_id)
    struct.pack_into("<I", raw, 56, queue_id)
    struct.pack_into("<H", raw, 60, delivery_count)
    struct.pack_into("<H", raw, 62, REASONS[reason])
    return raw, {"tx_id": tx_id, "queue_id": queue_id, "delivery_count": delivery_count, "reason": reason}


def message_relocated(
    content_bytes: int,
    start_lsn: int,
    part: int = 0,
    chunks: tuple[tuple[int, int, int], ...] = (),
    places: tuple[tuple[int, int, int, int, int], ...] = (),
    pending: tuple[tuple[int, int, int, str, int], ...] = (),
) -> Draft:
    places_at = 80 + 24 * len(chunks)
    pending_at = places_at + 32 * len(places)
    raw = blank(pending_at + 32 * len(pending))
    struct.pack_into("<Q", raw, 48, content_bytes)
    struct.pack_into("<Q", raw, 56, start_lsn)
    struct.pack_into("<I", raw, 64, part)
    struct.pack_into("<I", raw, 68, len(chunks))
    struct.pack_into("<I", raw, 72, len(places))
    struct.pack_into("<I", raw, 76, len(pending))
    for i, (lsn, offset, chunk_bytes) in enumerate(chunks):
        struct.pack_into("<QQI", raw, 80 + 24 * i, lsn, offset, chunk_bytes)
    for i, (order_lsn, enqueue_time_us, queue_id, order_index, delivery_count) in enumerate(places):
        struct.pack_into("<QQ", raw, places_at + 32 * i, order_lsn, enqueue_time_us)
        struct.pack_into("<III", raw, places_at + 32 * i + 16, queue_id, order_index, delivery_count)
    for i, (tx_id, lsn, queue_id, kind, order_index) in enumerate(pending):
        code = {"ENQUEUE": 1, "DEQUEUE": 2}[kind]
        struct.pack_into("<QQ", raw, pending_at + 32 * i, tx_id, lsn)
        struct.pack_into("<III", raw, pending_at + 32 * i + 16, queue_id, code, order_index)
    place_names = "order_lsn", "enqueue_time_us", "queue_id", "order_index", "delivery_count"
    pending_names = "tx_id", "lsn", "queue_id", "kind", "order_index"
    return raw, {
        "content_bytes": content_bytes,
        "start_lsn": start_lsn,
        "part": part,
        "chunks": [dict(zip(("lsn", "offset", "content_bytes"), chunk, strict=True)) for chunk in chunks],
        "places": [dict(zip(place_names, place, strict=True)) for place in places],
        "pending": [dict(zip(pending_names, work, strict=True)) for work in pending],
    }


def xid(format_id: int, gtrid: bytes, bqual: bytes) -> Draft:
    raw = blank(64 + len(gtrid) + len(bqual))
    struct.pack_into("<q", raw, 48, format_id)
    struct.pack_into("<B", raw, 56, len(gtrid))
    struct.pack_into("<B", raw, 57, len(bqual))
    raw[64 : 64 + len(gtrid) + len(bqual)] = gtrid + bqual
    return raw, {"format_id": format_id, "gtrid": gtrid.hex(), "bqual": bqual.hex()}


def tx_relocated(
    kind: str,
    state: str,
    start_us: int,
    prepare_us: int,
    format_id: int = 0,
    gtrid: bytes = b"",
    bqual: bytes = b"",
) -> Draft:
    raw = blank(80 + len(gtrid) + len(bqual))
    struct.pack_into("<q", raw, 48, format_id)
    struct.pack_into("<B", raw, 56, len(gtrid))
    struct.pack_into("<B", raw, 57, len(bqual))
    struct.pack_into("<B", raw, 58, {"LOCAL": 1, "DISTRIBUTED": 2}[kind])
    struct.pack_into("<B", raw, 59, {"ACTIVE": 1, "ENDED": 2, "PREPARED": 3}[state])
    struct.pack_into("<Q", raw, 64, start_us)
    struct.pack_into("<Q", raw, 72, prepare_us)
    raw[80 : 80 + len(gtrid) + len(bqual)] = gtrid + bqual
    return raw, {
        "format_id": format_id,
        "gtrid": gtrid.hex(),
        "bqual": bqual.hex(),
        "kind": kind,
        "state": state,
        "start_time_us": start_us,
        "prepare_time_us": prepare_us,
    }


def filler(zero_bytes: int) -> Draft:
    return blank(48 + zero_bytes), {"bytes": zero_bytes}


def footer(last_lsn: int, log_bytes: int, batches: int, counts: list[tuple[str, int]]) -> Draft:
    raw = blank(72 + 8 * len(counts))
    struct.pack_into("<Q", raw, 48, last_lsn)
    struct.pack_into("<Q", raw, 56, log_bytes)
    struct.pack_into("<I", raw, 64, batches)
    struct.pack_into("<I", raw, 68, len(counts))
    for i, (name, count) in enumerate(counts):
        struct.pack_into("<II", raw, 72 + 8 * i, TYPES[name], count)
    rows = [{"type": TYPES[name], "count": count} for name, count in counts]
    return raw, {"last_lsn": last_lsn, "bytes": log_bytes, "batches": batches, "counts": rows}


def queue_delete(queue_id: int) -> Draft:
    raw = blank(56)
    struct.pack_into("<I", raw, 48, queue_id)
    return raw, {"queue_id": queue_id}


def members(index: int, config: bytes) -> Draft:
    raw = blank(64 + len(config))
    struct.pack_into("<Q", raw, 48, index)
    struct.pack_into("<I", raw, 56, len(config))
    raw[64 : 64 + len(config)] = config
    return raw, {"index": index, "config": config.hex()}


def catalog_change(part: int, rows: tuple[tuple[str, str, int, bytes], ...]) -> Draft:
    """Rows of action, object, queue id and data."""
    raw = blank(56 + sum(16 + (len(data) + 7) // 8 * 8 for *_, data in rows))
    struct.pack_into("<I", raw, 48, part)
    struct.pack_into("<I", raw, 52, len(rows))
    at = 56
    for action, of, queue_id, data in rows:
        struct.pack_into("<B", raw, at, {"PUT": 1, "DELETE": 2}[action])
        struct.pack_into("<B", raw, at + 1, {"QUEUE": 1, "EXCHANGE": 2, "BINDING": 3, "CONFIG": 4}[of])
        struct.pack_into("<I", raw, at + 4, queue_id)
        struct.pack_into("<I", raw, at + 8, len(data))
        raw[at + 16 : at + 16 + len(data)] = data
        at += 16 + (len(data) + 7) // 8 * 8
    names = "action", "object", "queue_id", "row"
    told = [dict(zip(names, (*row, data.hex()), strict=True)) for *row, data in rows]
    return raw, {"part": part, "rows": told}


def later_type(body: bytes) -> Draft:
    raw = blank(48 + len(body))
    raw[48 : 48 + len(body)] = body
    return raw, {"raw": raw[48:].hex()}


# ---- A segment, filled batch by batch.


class Segment:
    """One segment file; every record is sealed for its position."""

    def __init__(self, first_lsn: int, epoch: int = 1, prev_end_lsn: int = 0) -> None:
        self.first_lsn = first_lsn
        self.epoch = epoch
        self.seed = xxh64_intdigest(UUID + struct.pack("<QQ", first_lsn, epoch), 0)
        self.at = 4096
        self.batch_at = 0
        self.newest: dict[int, int] = {}  # chain -> LSN of its newest record
        self.raw = bytearray(SEGMENT)
        struct.pack_into("<8s", self.raw, 0, b"LOGSTORE")
        struct.pack_into("<I", self.raw, 8, 1)
        struct.pack_into("<I", self.raw, 12, 4096)
        struct.pack_into("<16s", self.raw, 16, UUID)
        struct.pack_into("<Q", self.raw, 32, SEGMENT)
        struct.pack_into("<Q", self.raw, 40, first_lsn)
        struct.pack_into("<Q", self.raw, 48, epoch)
        struct.pack_into("<Q", self.raw, 56, prev_end_lsn)
        struct.pack_into("<Q", self.raw, 64, TIME_US)
        struct.pack_into("<Q", self.raw, 4088, xxh64_intdigest(self.raw[0:4088], self.seed))
        self.found: Json = {
            "header": {
                "uuid": UUID_TEXT,
                "segment_size": SEGMENT,
                "first_lsn": first_lsn,
                "epoch": epoch,
                "prev_end_lsn": prev_end_lsn,
                "created_us": TIME_US,
            },
            "end": None,  # prev_end_lsn of the next segment
            "batches": [],
            "stop_lsn": 0,
            "stop": "not accepted",
        }

    @property
    def lsn(self) -> int:
        """The LSN of the next record."""
        return self.first_lsn + self.at

    def begin(self, base_lsn: int, index: int = 0, known_durable_lsn: int = 0) -> None:
        self.batch_at = self.at
        self.at += 104
        lsn = self.first_lsn + self.batch_at
        body = {
            "epoch": self.epoch,
            "durable_lsn": lsn,
            "base_lsn": base_lsn,
            "time_us": TIME_US + self.batch_at,
            "index": index,
            "known_durable_lsn": known_durable_lsn,
        }
        self.found["batches"].append({"batch": body, "records": []})

    def add(self, name: str, draft: Draft, chain: int | None = 0, prev: int | None = None, flags: int = 0) -> int:
        """Seal a record at the next LSN, which is returned. `chain` None starts a chain, 0 is housekeeping."""
        lsn = self.lsn
        chain = lsn if chain is None else chain
        if prev is None:
            prev = self.newest.get(chain, 0)
        if chain:
            self.newest[chain] = lsn
        entry = self.place(self.at, name, draft, chain, prev, flags)
        self.found["batches"][-1]["records"].append(entry)
        self.at += entry["length"]
        return lsn

    def end(self) -> int:
        """Seal the batch record; returns the LSN after the batch."""
        batch = self.found["batches"][-1]
        body = batch["batch"]
        raw = blank(104)
        struct.pack_into("<Q", raw, 48, body["epoch"])
        struct.pack_into("<I", raw, 56, len(batch["records"]))
        struct.pack_into("<I", raw, 60, self.at - self.batch_at)
        struct.pack_into("<Q", raw, 64, body["durable_lsn"])
        struct.pack_into("<Q", raw, 72, body["base_lsn"])
        struct.pack_into("<Q", raw, 80, body["time_us"])
        struct.pack_into("<Q", raw, 88, body["index"])
        struct.pack_into("<Q", raw, 96, body["known_durable_lsn"])
        body |= {"count": len(batch["records"]), "bytes": self.at - self.batch_at}
        batch["batch"] = self.place(self.batch_at, "BATCH", (raw, body), 0, 0, 0)
        self.found["stop_lsn"] = self.lsn
        return self.lsn

    def place(self, at: int, name: str, draft: Draft, chain: int, prev: int, flags: int) -> Json:
        raw, body = draft
        struct.pack_into("<I", raw, 12, len(raw))
        struct.pack_into("<H", raw, 16, TYPES[name])
        struct.pack_into("<H", raw, 18, flags)
        struct.pack_into("<Q", raw, 24, self.first_lsn + at)
        struct.pack_into("<Q", raw, 32, chain)
        struct.pack_into("<Q", raw, 40, prev)
        struct.pack_into("<I", raw, 8, xxh64_intdigest(raw[12:48], self.seed) & 0xFFFFFFFF)
        struct.pack_into("<Q", raw, 0, xxh64_intdigest(raw[8:], self.seed))
        self.raw[at : at + len(raw)] = raw
        return {
            "lsn": self.first_lsn + at,
            "type": name,
            "flags": [FLAG_NAMES[bit] for bit in FLAG_NAMES if flags & bit],
            "id": chain,
            "prev": prev,
            "length": len(raw),
            "body": body,
        }

    def cut(self, end_lsn: int) -> None:
        """Note that the log ends here, as the next segment's header says; bytes above are not part of it."""
        self.found["end"] = self.found["stop_lsn"] = end_lsn
        self.found["stop"] = "end"
        self.found["batches"] = [b for b in self.found["batches"] if b["batch"]["lsn"] < end_lsn]


# ---- The files other than segments.


def meta() -> tuple[bytes, Json]:
    raw = bytearray(4096)
    struct.pack_into("<8sII16s", raw, 0, b"LSTRMETA", 1, 4096, UUID)
    struct.pack_into("<Q", raw, 32, SEGMENT)
    struct.pack_into("<Q", raw, 40, 2 * SEGMENT)
    struct.pack_into("<Q", raw, 48, TIME_US)
    struct.pack_into("<Q", raw, 4088, xxh64_intdigest(raw[0:4088], 0))
    sizes = {"segment_size": SEGMENT, "max_undurable_bytes": 2 * SEGMENT}
    return bytes(raw), {"uuid": UUID_TEXT, **sizes, "created_us": TIME_US}


def hint(epoch: int, durable_lsn: int, base_lsn: int) -> tuple[bytes, Json]:
    raw = bytearray(64)
    struct.pack_into("<8sII16s", raw, 0, b"LSTRHINT", 1, 64, UUID)
    struct.pack_into("<Q", raw, 32, epoch)
    struct.pack_into("<Q", raw, 40, durable_lsn)
    struct.pack_into("<Q", raw, 48, base_lsn)
    struct.pack_into("<Q", raw, 56, xxh64_intdigest(raw[0:56], 0))
    return bytes(raw), {"uuid": UUID_TEXT, "epoch": epoch, "durable_lsn": durable_lsn, "base_lsn": base_lsn}


def closed(epoch: int, end_lsn: int) -> tuple[bytes, Json]:
    raw = bytearray(64)
    struct.pack_into("<8sII16s", raw, 0, b"LSTRCLSD", 1, 64, UUID)
    struct.pack_into("<Q", raw, 32, epoch)
    struct.pack_into("<Q", raw, 40, end_lsn)
    struct.pack_into("<Q", raw, 48, TIME_US)
    struct.pack_into("<Q", raw, 56, xxh64_intdigest(raw[0:56], 0))
    return bytes(raw), {"uuid": UUID_TEXT, "epoch": epoch, "end_lsn": end_lsn, "closed_us": TIME_US}


def hold(hold_lsn: int, limit_bytes: int) -> tuple[bytes, Json]:
    raw = bytearray(256)
    struct.pack_into("<8sII16s", raw, 0, b"LSTRHOLD", 1, 256, UUID)
    struct.pack_into("<Q", raw, 32, hold_lsn)
    struct.pack_into("<Q", raw, 40, limit_bytes)
    struct.pack_into("<Q", raw, 48, TIME_US + 3_600_000_000)
    struct.pack_into("<Q", raw, 56, TIME_US)
    struct.pack_into("<Q", raw, 248, xxh64_intdigest(raw[0:248], 0))
    times = {"expires_us": TIME_US + 3_600_000_000, "created_us": TIME_US}
    return bytes(raw), {"uuid": UUID_TEXT, "hold_lsn": hold_lsn, "limit_bytes": limit_bytes, **times}
