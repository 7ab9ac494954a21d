"""Encodes a checkpoint of the golden log with states of places, for make_golden.py.

Its contents follow from the records of that log: their LSNs, and where notes and headers lie in them. Only the
growth of messages, for which any number makes a valid checkpoint, is the one that the core counts.
"""

from __future__ import annotations

import struct

from golden_layout import TIME_US, UUID, UUID_TEXT, Json, Segment
from xxhash import xxh64_intdigest

SALT = 0x5A17
FLAGS = {1: "STAGED", 2: "PUBLISHED", 4: "LOOSE", 8: "WIDE"}
PUBLISHED, LOOSE, WIDE = 2, 4, 8

Own = tuple[int, int, int, int]  # LSN and length of the record, where the bytes begin in it, and their number


def local_transaction(id_: int, start_lsn: int, last_lsn: int) -> tuple[bytes, list[object]]:
    raw = bytearray(192)
    struct.pack_into("<BBB", raw, 0, 2, 1, 1)
    struct.pack_into("<QQQQ", raw, 8, id_, start_lsn, last_lsn, TIME_US)
    return bytes(raw), [False, 1, id_, start_lsn, last_lsn, TIME_US, 0, 0, "", ""]


class Message:
    """The rows of one message, and what a reader decodes of them."""

    def __init__(self, kind: str, flags: int, id_: int, record_bytes: int, content_bytes: int, **told: int) -> None:
        self.flags = flags
        self.kind = kind
        self.rows: list[bytes] = []
        self.states: list[bytes] = []
        self.found: Json = {
            "kind": kind,
            "flags": [FLAGS[bit] for bit in FLAGS if flags & bit],
            "id": id_,
            "record_bytes": record_bytes,
            "content_bytes": content_bytes,
            "start_lsn": told.get("start_lsn", id_),
            "last_lsn": told["last_lsn"],
            "content_total": content_bytes,
            "state_bytes": 0,
            "growth": {"rows": told.get("growth", 0), "work_state": 0, "work_rows": 0},
        } | {name: [] for name in ("chunks", "parts", "places", "operations", "states")}

    def part(self, lsn: int, record_bytes: int) -> None:
        self.rows.append(struct.pack("<QII", lsn, record_bytes, 0))
        self.found["parts"].append([lsn, record_bytes])

    def place(self, order_lsn: int, order_index: int, queue_id: int) -> None:
        self.rows.append(struct.pack("<QII", order_lsn, order_index, queue_id))
        self.found["places"].append([order_lsn, order_index, queue_id])

    def operation(self, tx_id: int, lsn: int, queue_id: int, order_index: int, kind: int) -> None:
        self.rows.append(struct.pack("<QQIIII", tx_id, lsn, queue_id, order_index, kind, 0))
        self.found["operations"].append([tx_id, lsn, queue_id, order_index, kind])

    def state(
        self,
        of: int,
        *,
        times: tuple[int, int] = (0, 0),
        count: int = 0,
        note: Own | None = None,
        header: Own | None = None,
        operation: bool = False,
    ) -> None:
        bits = 1 * operation + 2 * (note is not None) + 4 * (header is not None)
        self.states.append(struct.pack("<BBHIQQII", 7, bits, 0, of, *times, count, 0))
        self.states += [struct.pack("<QIIII", *own, 0) for own in (note, header) if own is not None]
        own_bytes = [None if own is None else list(own) for own in (note, header)]
        self.found["states"].append([operation, of, *times, count, *own_bytes])

    def raw(self) -> bytes:
        m = self.found
        if self.kind == "SINGLE":
            ((order_lsn, order_index, queue_id),) = m["places"]
            head = struct.pack("<BBHIQII", 4, self.flags, 0, queue_id, m["id"], m["record_bytes"], m["content_bytes"])
            growth = m["growth"]["rows"]
            head += struct.pack("<QQQII", m["start_lsn"], m["last_lsn"], order_lsn, order_index, growth)
            return head + b"".join(self.states)
        counts = [len(m[name]) for name in ("chunks", "parts", "operations")]
        head = struct.pack(
            "<BBHIQII", 5, self.flags, 0, len(m["places"]), m["id"], m["record_bytes"], m["content_bytes"]
        )
        head += struct.pack("<QQQ", m["start_lsn"], m["last_lsn"], m["content_total"])
        head += struct.pack("<IIIIIIII", *counts, m["state_bytes"], m["growth"]["rows"], 0, 0, 0)
        return head + b"".join(self.rows + self.states)


def checkpoint_of_places(log: Segment) -> tuple[bytes, Json]:
    """Of the log of make_golden.places(), up to the end of the batch with relocated states."""
    batches = log.found["batches"]
    first, second, third = ([(one["lsn"], one["length"]) for one in batch["records"]] for batch in batches[:3])
    batch, end = batches[2]["batch"], batches[3]["batch"]["lsn"]
    (later, later_bytes), (both, both_bytes) = first[0], first[1]
    (dead, dead_bytes), _, (staged, staged_bytes), _, _, noted, (third_start, third_bytes), commit = second
    (copy, copy_bytes), part_0, part_1, (reopened, _) = third
    hour = TIME_US + 3_600_000_000

    messages = [Message("CHAIN", LOOSE | WIDE, later, later_bytes, 5, last_lsn=staged, growth=73)]
    messages[0].place(second[1][0], 0, 4)
    messages[0].place(staged, 0, 5)
    messages[0].state(4, count=8, note=(dead, dead_bytes, 96, 3), header=(dead, dead_bytes, 99, 10))
    messages[0].state(5, times=(0, hour), header=(staged, staged_bytes, 96, 0))
    messages.append(Message("CHAIN", PUBLISHED | LOOSE | WIDE, both, both_bytes, 0, last_lsn=noted[0], growth=744))
    messages[1].place(both, 0, 1)
    messages[1].place(both, 0, 3)
    messages[1].place(commit[0], 0, 6)
    messages[1].state(1, times=(1, 2**63 - 1), note=(both, both_bytes, 112, 255))
    messages[1].state(3, count=2**32 - 1, note=(noted[0], noted[1], 64, 16))
    flags = PUBLISHED | LOOSE | WIDE
    messages.append(Message("SINGLE", flags, third_start, third_bytes, 1, last_lsn=third_start, growth=65))
    messages[2].place(commit[0], 1, 7)
    messages[2].state(7, note=(third_start, third_bytes, 104, 1))
    moved, open_tx = 0x21068, 0x31000
    messages.append(Message("CHAIN", PUBLISHED, moved, copy_bytes, 3, start_lsn=copy, last_lsn=part_1[0]))
    messages[3].part(*part_0)
    messages[3].part(*part_1)
    messages[3].place(0x22000, 3, 1)
    messages[3].place(0x22000, 0, 2)
    messages[3].operation(open_tx, 0x31080, 3, 9, 1)
    messages[3].operation(open_tx, 0x31080, 1, 0, 2)
    messages[3].operation(open_tx, 0x31100, 2, 0, 3)
    messages[3].state(1, count=4)
    messages[3].state(2, times=(hour, 0), note=(part_0[0], part_0[1], 192, 5))
    messages[3].state(0, note=(part_1[0], part_1[1], 318, 3), operation=True)
    messages[3].state(2, times=(0, hour), count=2, header=(part_1[0], part_1[1], 136, 70), operation=True)

    transaction, transaction_found = local_transaction(open_tx, reopened, reopened)
    rows = transaction + b"".join(message.raw() for message in messages)
    counts = {"messages": 4, "places": 8, "operations": 3, "transactions": 1, "deletions": 0}
    header: Json = {
        "epoch": 3,
        "lsn": end,
        "batch_lsn": batch["lsn"],
        "batch_checksum": struct.unpack_from("<Q", log.raw, batch["lsn"] - log.first_lsn)[0],
        "base_lsn": batch["body"]["base_lsn"],
        "file_bytes": 4096 + 16 + len(rows),
        "salt": SALT,
        "created_us": TIME_US,
    } | counts
    raw = bytearray(4096)
    struct.pack_into("<8sII16s", raw, 0, b"LSTRCKPT", 1, 4096, UUID)
    struct.pack_into("<13Q", raw, 32, *header.values())
    struct.pack_into("<Q", raw, 4088, xxh64_intdigest(raw[0:4088], 0))
    block = struct.pack("<II", 0, 16 + len(rows)) + rows
    seed = xxh64_intdigest(struct.pack("<16sQQQQ", UUID, end, 3, SALT, 0), 0)
    raw += struct.pack("<Q", xxh64_intdigest(block, seed)) + block
    return bytes(raw), {
        "header": {"uuid": UUID_TEXT} | header,
        "deletions": [],
        "transactions": [transaction_found],
        "messages": [message.found for message in messages],
    }
