"""The worked example of docs/format.md, byte by byte, for make_golden.py."""

from __future__ import annotations

from golden_layout import PUBLISHED, UUID_TEXT, Segment, message_dequeue, message_start

HEADER_FIELDS = [(0, 8, "magic"), (8, 4, "format_version"), (12, 4, "header_bytes"), (16, 16, "uuid")]
HEADER_FIELDS += [(32, 8, "segment_size"), (40, 8, "first_lsn"), (48, 8, "epoch"), (56, 8, "prev_end_lsn")]
HEADER_FIELDS += [(64, 8, "created_us"), (72, 4016, "zero"), (4088, 8, "checksum")]
RECORD_FIELDS = [
    (0, 8, "checksum"),
    (8, 4, "header_check"),
    (12, 4, "length"),
    (16, 2, "type"),
    (18, 2, "flags"),
]
RECORD_FIELDS += [(20, 4, "spare"), (24, 8, "lsn"), (32, 8, "id"), (40, 8, "prev")]
BATCH_FIELDS = [(48, 8, "epoch"), (56, 4, "count"), (60, 4, "bytes"), (64, 8, "durable_lsn")]
BATCH_FIELDS += [(72, 8, "base_lsn"), (80, 8, "time_us"), (88, 8, "index"), (96, 8, "known_durable_lsn")]
START_FIELDS = [(48, 8, "tx_id"), (56, 4, "header_bytes"), (60, 4, "content_bytes"), (64, 4, "queue_count")]
START_FIELDS += [
    (68, 4, "order_index"),
    (72, 4, "queue id"),
    (76, 4, "queue id"),
    (80, 3, "header"),
    (83, 2, "content"),
]
START_FIELDS += [(85, 3, "padding")]
DEQUEUE_FIELDS = [(48, 8, "tx_id"), (56, 4, "queue_id"), (60, 2, "delivery_count"), (62, 2, "reason")]
AS_BYTES = "magic", "header", "content", "zero", "padding", "spare"
MEANINGS = {("type", 0x0301): "BATCH", ("type", 0x0101): "MESSAGE_START", ("type", 0x0104): "MESSAGE_DEQUEUE"}
MEANINGS |= {("flags", 8): "PUBLISHED", ("reason", 1): "accepted"}


def dump(raw: bytearray, start: int, fields: list[tuple[int, int, str]]) -> list[str]:
    lines = []
    for offset, size, name in fields:
        at = start + offset
        value = raw[at : at + size]
        shown = value if size <= 16 else value[:1]
        octets = " ".join(f"{byte:02x}" for byte in shown) + (" ..." if size > 16 else "")
        number = int.from_bytes(value, "little")
        if name == "uuid":
            note = UUID_TEXT
        elif name in AS_BYTES:
            note = value.decode() if any(value) else f"{size} bytes"
        elif name in ("checksum", "header_check") or name.endswith("lsn") or name in ("id", "prev"):
            note = f"{number:#x}" if number else "0"
        else:
            note = MEANINGS.get((name, number), str(number))
        lines.append(f"{at:5}  {octets:<47}  {name:<14} {note}".rstrip())
    return lines


def example() -> str:
    s = Segment(0x10000)
    s.begin(0x10000)
    message = s.add("MESSAGE_START", message_start([1, 2], b"k=v", b"hi"), None, flags=PUBLISHED)
    message_at = message - s.first_lsn
    dequeue = s.add("MESSAGE_DEQUEUE", message_dequeue(1, "ACCEPTED", 1), message)
    dequeue_at = dequeue - s.first_lsn
    end = s.end()
    lines = [f"segment header; segment seed {s.seed:#018x}", *dump(s.raw, 0, HEADER_FIELDS)]
    for title, at, body in (
        ("BATCH", 4096, BATCH_FIELDS),
        ("MESSAGE_START", message_at, START_FIELDS),
        ("MESSAGE_DEQUEUE", dequeue_at, DEQUEUE_FIELDS),
    ):
        lines += ["", f"{title} at LSN {s.first_lsn + at:#x}", *dump(s.raw, at, RECORD_FIELDS + body)]
    return "\n".join([*lines, "", f"end of the batch, offset {end - s.first_lsn}, LSN {end:#x}; zeros follow"])
