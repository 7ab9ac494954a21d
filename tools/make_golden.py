#!/usr/bin/env python3
"""Write the golden files under tests/golden/v1/, with struct and xxhash at the offsets of docs/format.md.

This program must never use logstore/codec or the C core: it is the third implementation of docs/format.md, and every
later version must read the files. For each file there is a JSON file with what a reader decodes: bytes as hex, types
and flags by name. golden_layout.py has the layout.

    make_golden.py             writes the files
    make_golden.py --check     compares them with what would be written; status 1 if anything differs
    make_golden.py --example   prints the worked example of docs/format.md
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from golden_checkpoint import checkpoint_of_places
from golden_example import example
from golden_layout import (
    COPY,
    DELETES,
    INLINE,
    ORDERED,
    PART,
    PUBLISHED,
    SEGMENT,
    STAGED,
    TIME_US,
    Json,
    Segment,
    catalog_change,
    closed,
    empty,
    filler,
    footer,
    hint,
    hold,
    inline_copy,
    later_type,
    members,
    message_chunk,
    message_dequeue,
    message_enqueue,
    message_relocated,
    message_start,
    meta,
    ordered_copy,
    queue_delete,
    tx_relocated,
    xid,
)
from golden_places import move, place_note, place_states, relocated_placed, start_placed

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "v1"


def text(length: int) -> bytes:
    return bytes(97 + i % 26 for i in range(length))


# ---- The cases.


def messages() -> Segment:
    """Every message record, every flag except those of relocated copies, contents of zero, one and three chunks."""
    s = Segment(0x10000)
    s.begin(0x10000)
    first = s.add("MESSAGE_START", message_start([1], b"subject=a", b"hello"), None, flags=PUBLISHED)
    fan_out = s.add("MESSAGE_START", message_start([1, 2, 3], b"", b""), None, flags=PUBLISHED)
    staged = s.add("MESSAGE_START", message_start([], text(40), text(1000)), None)
    s.end()
    s.begin(0x10000)
    s.add("MESSAGE_CHUNK", message_chunk(1000, text(1500)), staged)
    s.add("MESSAGE_CHUNK", message_chunk(2500, b"end"), staged)
    s.add("MESSAGE_ENQUEUE", message_enqueue([1, 2]), staged)
    s.end()
    s.begin(0x10000)  # an empty batch
    s.end()
    s.begin(0x10000)
    s.add("MESSAGE_DEQUEUE", message_dequeue(1, "ACCEPTED", 1), first, flags=DELETES)
    s.add("MESSAGE_DEQUEUE", message_dequeue(1, "REJECTED", 65535), fan_out)
    s.add("MESSAGE_DEQUEUE", message_dequeue(2, "EXPIRED"), fan_out)
    s.add("MESSAGE_DEQUEUE", message_dequeue(3, "PURGED"), fan_out)
    s.add("MESSAGE_DELETE", empty(), fan_out)
    s.end()
    s.begin(0x10000)
    s.add("MESSAGE_DEQUEUE", message_dequeue(2, "DEAD_LETTERED", 3), staged)
    s.add("QUEUE_DELETE", queue_delete(1))
    s.add("MESSAGE_DELETE", empty(), staged)
    edge = s.add("MESSAGE_START", message_start([4, 2**32 - 2], b"", b"x"), None)
    s.add("MESSAGE_DEQUEUE", message_dequeue(4, "NOT_TOLD"), edge)
    s.add("MESSAGE_DEQUEUE", message_dequeue(2**32 - 2, "QUEUE_DELETED"), edge, flags=DELETES)
    dropped = s.add("MESSAGE_START", message_start([], b"never enqueued", b""), None)
    s.add("MESSAGE_DELETE", empty(), dropped)
    s.end()
    s.begin(0x10000)
    s.add("CLOSE", empty())
    s.end()
    return s


def transactions() -> Segment:
    """Local and distributed transactions with every outcome; xid parts of 0, 1, odd and the maximum number of bytes."""
    s = Segment(0x10000)
    s.begin(0x10000)
    local = s.add("TX_START", empty(), None)
    kept = s.add("MESSAGE_START", message_start([7], b"", b"kept", tx_id=local), None, flags=PUBLISHED)
    staged = s.add("MESSAGE_START", message_start([], b"", b"later"), None)
    s.add("MESSAGE_ENQUEUE", message_enqueue([7, 8, 9], tx_id=local, order_index=1), staged)
    s.add("TX_COMMIT", empty(), local)
    s.add("TX_DELETE", empty(), local)
    s.end()
    s.begin(0x10000)
    undone = s.add("TX_START", empty(), None)
    gone = s.add("MESSAGE_START", message_start([7, 8], b"", b"gone", tx_id=undone), None, flags=PUBLISHED)
    s.add("MESSAGE_DEQUEUE", message_dequeue(9, "ACCEPTED", 1, tx_id=undone), staged)
    s.add("TX_ROLLBACK", empty(), undone)
    s.add("MESSAGE_DELETE", empty(), gone)
    s.end()
    for name, message, queue_id, outcome in (
        ((-(2**63), b"g", b""), staged, 7, "TX_COMMIT"),
        ((0, b"\0\xff\0", b"\x01\x02\x03\x04\x05"), staged, 9, "TX_ROLLBACK"),
        ((2**63 - 1, bytes(range(64)), bytes(range(64, 128))), kept, 7, None),  # stays in doubt
    ):
        s.begin(0x10000)
        branch = s.add("DTX_START", xid(*name), None)
        s.add("MESSAGE_DEQUEUE", message_dequeue(queue_id, "ACCEPTED", tx_id=branch), message)
        s.add("TX_END", empty(), branch)
        s.add("TX_PREPARE", xid(*name), branch)
        if outcome is not None:
            s.add(outcome, empty(), branch)
            s.add("TX_DELETE", empty(), branch)
        s.end()
    s.begin(0x10000)
    one_phase = s.add("DTX_START", xid(1, b"", b""), None)
    s.add("MESSAGE_DEQUEUE", message_dequeue(8, "ACCEPTED", tx_id=one_phase), staged)
    s.add("TX_END", empty(), one_phase)
    s.add("TX_COMMIT", empty(), one_phase)
    s.end()
    return s


def relocation() -> Segment:
    """Relocated messages, in one record and in parts, a staged one, and relocated transactions."""
    s = Segment(0x50000, epoch=3, prev_end_lsn=0x4F3A8)
    local, ended, prepared = 0x31000, 0x31100, 0x31200  # transactions that began below the base
    s.begin(0x10000)
    whole = 0x11068
    start = s.add("MESSAGE_START", message_start([], b"h", text(100)), whole, prev=0x12340, flags=COPY)
    chunk_1 = s.add("MESSAGE_CHUNK", message_chunk(100, text(50)), whole, flags=COPY)
    chunk_2 = s.add("MESSAGE_CHUNK", message_chunk(150, text(7)), whole, flags=COPY)
    state = message_relocated(
        157,
        start,
        chunks=((chunk_1, 100, 50), (chunk_2, 150, 7)),
        places=((0x12340, TIME_US, 1, 0, 2), (0x13000, TIME_US + 9, 2, 5, 0)),
        pending=((local, 0x31080, 3, "ENQUEUE", 0), (prepared, 0x31280, 1, "DEQUEUE", 1)),
    )
    s.add("MESSAGE_RELOCATED", state, whole)
    s.end()
    s.begin(0x10000)
    parted = 0x21068
    start = s.add("MESSAGE_START", message_start([], b"", b"abc"), parted, prev=parted, flags=COPY | PUBLISHED)
    chunk = s.add("MESSAGE_CHUNK", message_chunk(3, b"defg"), parted, flags=COPY)
    s.add("MESSAGE_RELOCATED", message_relocated(7, start, 0, chunks=((chunk, 3, 4),)), parted, flags=PART)
    places = tuple((0x22000, TIME_US, queue_id, queue_id - 1, 0) for queue_id in (1, 2, 3))
    s.add("MESSAGE_RELOCATED", message_relocated(7, start, 1, places=places), parted, flags=PART)
    work = ((ended, 0x31180, 4, "ENQUEUE", 2**32 - 1),)
    s.add("MESSAGE_RELOCATED", message_relocated(7, start, 2, pending=work), parted)
    staged = 0x22100
    start = s.add("MESSAGE_START", message_start([], b"", b""), staged, prev=staged, flags=COPY)
    s.add("MESSAGE_RELOCATED", message_relocated(0, start), staged, flags=STAGED)
    s.end()
    s.begin(0x10000)
    s.add("TX_RELOCATED", tx_relocated("LOCAL", "ACTIVE", TIME_US, 0), local, prev=local)
    draft = tx_relocated("DISTRIBUTED", "ENDED", TIME_US + 1, 0, -1, b"abc", b"")
    s.add("TX_RELOCATED", draft, ended, prev=ended + 48)
    name = 2**32, bytes(range(64)), bytes(range(100, 164))
    draft = tx_relocated("DISTRIBUTED", "PREPARED", TIME_US + 2, TIME_US + 3, *name)
    s.add("TX_RELOCATED", draft, prepared, prev=prepared + 96)
    s.end()
    s.begin(0x50000)
    s.end()
    return s


def inline() -> Segment:
    """Copies with their whole state inline: with either order key, with and without gaps, and the records that may
    follow.
    """
    s = Segment(0x50000, epoch=3, prev_end_lsn=0x4F3A8)
    copy = COPY | INLINE
    s.begin(0x10000)
    old = 0x11068  # chains that began below the base that the last batch names, one every 0x1000
    s.add("MESSAGE_START", inline_copy([1], b"h", b"published", TIME_US), old, prev=old, flags=copy | PUBLISHED)
    old += 0x1000
    s.add("MESSAGE_START", inline_copy([1, 2**32 - 2], b"", text(100)), old, prev=old + 96, flags=copy)
    old += 0x1000
    s.add("MESSAGE_START", inline_copy([1, 2, 3], b"", b"", 2**64 - 1), old, prev=old, flags=copy | PUBLISHED)
    s.end()
    s.begin(0x10000)
    old += 0x1000
    s.add("MESSAGE_START", ordered_copy([2], text(7), b"1", old + 8), old, prev=old, flags=copy | ORDERED | PUBLISHED)
    old += 0x1000
    gaps = ordered_copy([1, 0, 0, 2, 3], b"", text(9), old + 0x100, 7)
    s.add("MESSAGE_START", gaps, old, prev=old + 0x100, flags=copy | ORDERED)
    old += 0x1000
    latest = ordered_copy([3], b"", b"", s.lsn - 8, 2**24 - 1)
    s.add("MESSAGE_START", latest, old, prev=old, flags=copy | ORDERED)
    s.end()
    s.begin(0x10000)
    begun = s.add("MESSAGE_START", message_start([1, 2], b"", b"begun here"), None, flags=PUBLISHED)
    s.add("MESSAGE_DEQUEUE", message_dequeue(1, "ACCEPTED", 1), begun)
    s.add("MESSAGE_START", inline_copy([2], b"", b"begun here", TIME_US), begun, flags=copy | PUBLISHED)
    s.add("MESSAGE_ENQUEUE", message_enqueue([4]), begun)
    again = s.add("MESSAGE_START", message_start([], b"", b"twice"), None)
    place = s.add("MESSAGE_ENQUEUE", message_enqueue([1, 2, 3]), again)
    s.add("MESSAGE_DEQUEUE", message_dequeue(2, "EXPIRED"), again)
    s.add("MESSAGE_START", ordered_copy([1, 0, 3], b"", b"twice", place), again, flags=copy | ORDERED)
    s.add("MESSAGE_DEQUEUE", message_dequeue(1, "PURGED"), again)
    s.add("MESSAGE_START", ordered_copy([3], b"", b"twice", place, 2), again, flags=copy | ORDERED)
    s.add("MESSAGE_DEQUEUE", message_dequeue(3, "ACCEPTED"), again, flags=DELETES)
    s.end()
    s.begin(0x50000)
    s.end()
    return s


def places() -> Segment:
    """Every record with states of places: times, counts, notes and headers, with and without a transaction."""
    s = Segment(0x50000, epoch=3, prev_end_lsn=0x4F3A8)
    hour = TIME_US + 3_600_000_000
    s.begin(0x10000)
    later = s.add("MESSAGE_START_PLACED", start_placed([1], b"h", b"later", {"not_before_us": hour}), None)
    state = {"not_before_us": 1, "expires_us": 2**63 - 1, "note": text(255).hex()}
    both = s.add("MESSAGE_START_PLACED", start_placed([1, 2, 3], b"", b"", state), None, flags=PUBLISHED)
    s.add("PLACE_STATES", place_states([(later, 0, hour, 1, 1), (both, 0, 0, 3, 2**32 - 1)]))
    s.add("MESSAGE_PLACE", place_note(1, b"seen by the billing job"), later)
    s.add("MESSAGE_PLACE", place_note(1, b""), later)
    s.end()
    s.begin(0x10000)
    dead = {"delivery_count": 7, "header": b"x-death: 1".hex(), "note": b"why".hex()}
    s.add("MESSAGE_MOVE", move(1, 4, dead, bits=1, reason="DEAD_LETTERED"), later)
    s.add("MESSAGE_MOVE", move(4, 4, {"delivery_count": 8}, bits=6), later)
    s.add("MESSAGE_MOVE", move(0, 5, {"expires_us": hour}, bits=1), later)
    local = s.add("TX_START", empty(), None)
    s.add("MESSAGE_MOVE", move(2, 6, {}, tx_id=local, order_index=0), both)
    s.add("MESSAGE_PLACE", place_note(3, b"in a transaction", local), both)
    s.add("MESSAGE_START_PLACED", start_placed([7], b"", b"t", {"note": b"n".hex()}, local, 1), None, flags=PUBLISHED)
    s.add("TX_COMMIT", empty(), local)
    s.end()
    s.begin(0x10000)
    moved, open_tx = 0x21068, 0x31000  # both began below the base
    start = s.add("MESSAGE_START", message_start([], b"", b"abc"), moved, prev=moved, flags=COPY | PUBLISHED)
    rows: list[Json] = [
        {"order_lsn": 0x22000, "enqueue_time_us": TIME_US, "queue_id": 1, "order_index": 3, "delivery_count": 4},
        {"order_lsn": 0x22000, "enqueue_time_us": TIME_US, "queue_id": 2, "note": text(5).hex(), "not_before_us": hour},
    ]
    s.add("MESSAGE_RELOCATED_PLACED", relocated_placed(3, start, rows, []), moved, flags=PART)
    own: Json = {"state_bits": 1, "header": text(70).hex(), "delivery_count": 2, "expires_us": hour}
    work: list[Json] = [
        {"tx_id": open_tx, "lsn": 0x31080, "queue_id": 3, "kind": "ENQUEUE", "order_index": 9} | own,
        {"tx_id": open_tx, "lsn": 0x31080, "queue_id": 1, "kind": "DEQUEUE"},
        {"tx_id": open_tx, "lsn": 0x31100, "queue_id": 2, "kind": "NOTE", "note": text(3).hex()},
    ]
    s.add("MESSAGE_RELOCATED_PLACED", relocated_placed(3, start, [], work, 1), moved)
    s.add("TX_RELOCATED", tx_relocated("LOCAL", "ACTIVE", TIME_US, 0), open_tx, prev=open_tx)
    s.end()
    s.begin(0x50000)
    s.end()
    return s


def padding() -> Segment:
    """Bodies that need 0 to 7 bytes of padding, short and long fillers, and a type to be skipped."""
    s = Segment(0x10000)
    s.begin(0x10000)
    for content_bytes in range(9):
        s.add("MESSAGE_START", message_start([5], b"", text(content_bytes)), None)
    for header_bytes in range(8):
        s.add("MESSAGE_START", message_start([5, 6], text(header_bytes), b""), None)
    s.end()
    s.begin(0x10000)
    staged = s.add("MESSAGE_START", message_start([], b"", b""), None)
    for content_bytes in range(8):
        s.add(
            "MESSAGE_CHUNK",
            message_chunk(content_bytes * (content_bytes - 1) // 2, text(content_bytes)),
            staged,
        )
    s.add("MESSAGE_ENQUEUE", message_enqueue([5]), staged)
    s.add("MESSAGE_ENQUEUE", message_enqueue([6, 7]), staged)
    s.end()
    s.begin(0x10000)
    for zero_bytes in (0, 8, 4096 - 48):
        s.add("FILLER", filler(zero_bytes))
    s.add("0x8001", later_type(b"a later version's record"))
    s.end()
    s.begin(0x10000)
    for gtrid_bytes in range(8):
        branch = s.add("DTX_START", xid(1, text(gtrid_bytes), b""), None)
        s.add("TX_ROLLBACK", empty(), branch)
    s.end()
    return s


def torn() -> Segment:
    """Two intact batches, and a third of which only the first sectors reached the disk."""
    s = Segment(0x10000)
    for _ in range(2):
        s.begin(0x10000)
        s.add("MESSAGE_START", message_start([1], b"", text(300)), None, flags=PUBLISHED)
        end = s.end()
    s.begin(0x10000)
    for _ in range(4):
        s.add("MESSAGE_START", message_start([1], b"", text(900)), None, flags=PUBLISHED)
    s.end()
    s.raw[4096 + 2048 :] = bytes(SEGMENT - 4096 - 2048)
    s.found["batches"].pop()
    s.found["stop_lsn"] = end
    return s


def recycled() -> Segment:
    """A file that held an older segment, whose batches continue exactly where the new ones end."""
    old, new = Segment(0x10000), Segment(0x40000, epoch=2, prev_end_lsn=0x11090)
    for s, batches in ((old, 4), (new, 1)):
        for _ in range(batches):
            s.begin(s.first_lsn)
            s.add("MESSAGE_START", message_start([1], b"", text(80)), None, flags=PUBLISHED)
            s.end()
    new.raw[new.at :] = old.raw[new.at :]
    return new


def store() -> dict[str, tuple[bytes, Json]]:
    """A whole store: a segment sealed by a footer, one cut by the next epoch, and an orderly close."""
    sealed = Segment(0x10000)
    sealed.begin(0x10000)
    first = sealed.add("MESSAGE_START", message_start([1], b"", b"one"), None, flags=PUBLISHED)
    sealed.end()
    sealed.begin(0x10000)
    second = sealed.add("MESSAGE_START", message_start([1, 2], b"", b"two"), None, flags=PUBLISHED)
    counts = [("MESSAGE_START", 2), ("BATCH", 2)]
    sealed.add("FOOTER", footer(second, sealed.lsn - 0x11000, 2, counts))
    sealed.cut(sealed.end())

    cut = Segment(0x20000, prev_end_lsn=sealed.lsn)
    cut.begin(0x10000)
    cut.add("MESSAGE_START", message_start([2], b"", b"three"), None, flags=PUBLISHED)
    end = cut.end()
    cut.begin(0x10000)
    cut.add("MESSAGE_START", message_start([2], b"", b"cut off, though it is whole"), None, flags=PUBLISHED)
    cut.end()
    cut.cut(end)

    # Beyond the end of the log + max_undurable_bytes (two segments), and a multiple of the segment size.
    last = Segment(0x50000, epoch=2, prev_end_lsn=end)
    last.begin(0x10000)
    last.add("MESSAGE_DEQUEUE", message_dequeue(1, "ACCEPTED", 2), first, prev=first, flags=DELETES)
    last.end()
    close_lsn = last.lsn
    last.begin(0x10000)
    last.add("CLOSE", empty())
    last.end()
    return {
        "store/META": meta(),
        "store/HINT": hint(2, last.lsn, 0x10000),
        "store/CLOSED": closed(2, close_lsn),
        "store/holds/reader.hold": hold(0x10000, 1 << 20),
        **{f"store/{s.first_lsn:016x}.seg": (bytes(s.raw), s.found) for s in (sealed, cut, last)},
    }


def replicated() -> tuple[Segment, ...]:
    """A copy of a replicated log: what came before replication, a term whose last batch another leader abandoned, and a
    term whose last batch no majority is known to have.
    """
    single = Segment(0x10000)
    single.begin(0x10000)
    single.add("MESSAGE_START", message_start([1], b"", b"before replication"), None, flags=PUBLISHED)
    end = single.end()
    single.cut(end)

    first = Segment(2 << 40, epoch=2, prev_end_lsn=end)
    first.begin(0x10000, 1, end)
    member = first.add("MEMBERS", members(1, b"a configuration of one member"), None)
    ends = [first.end()]
    first.begin(0x10000, 2, ends[0])
    row = "PUT", "QUEUE", 7, b'{"name":"orders"}'
    first.add("CATALOG_CHANGE", catalog_change(0, (row,)))
    first.add("MESSAGE_START", message_start([7], b"", b"of term 2"), None, flags=PUBLISHED)
    ends.append(first.end())
    first.begin(0x10000, 3, ends[1])
    rows = ("DELETE", "BINDING", 0, b'{"exchange":"amq.topic"}'), ("PUT", "EXCHANGE", 0, b'{"name":"events"}')
    first.add("CATALOG_CHANGE", catalog_change(0, rows), flags=PART)
    ends.append(first.end())
    first.begin(0x10000, 4, ends[1])
    first.add("CATALOG_CHANGE", catalog_change(1, (("PUT", "CONFIG", 0, b"{}"),)))
    ends.append(first.end())
    first.begin(0x10000, 5, ends[2])
    first.add("MESSAGE_START", message_start([7], b"", b"abandoned, for no majority has it"), None, flags=PUBLISHED)
    first.end()
    first.cut(ends[-1])

    second = Segment(5 << 40, epoch=5, prev_end_lsn=ends[-1])
    second.begin(0x10000, 5, ends[2])
    ends.append(second.end())
    second.begin(0x10000, 6, ends[-1])
    second.add("MEMBERS", members(1, b"a configuration of one member"), member, prev=member, flags=COPY)
    second.add("MESSAGE_START", message_start([7], b"", b"of term 5"), None, flags=PUBLISHED)
    ends.append(second.end())
    second.begin(0x10000, 7, ends[-1])
    second.add("MESSAGE_START", message_start([1], b"", b"not known durable"), None, flags=PUBLISHED)
    second.end()
    return single, first, second


# ---- Writing and checking.


def generate() -> dict[str, bytes]:
    """Every golden file: its path below tests/golden/v1 and its bytes."""
    made = store()
    for case in (messages, transactions, relocation, inline, places, padding, torn, recycled):
        segment = case()
        made[f"{case.__name__}/{segment.first_lsn:016x}.seg"] = bytes(segment.raw), segment.found
    made["places/CHECKPOINT"] = checkpoint_of_places(places())
    for segment in replicated():
        made[f"replicated/{segment.first_lsn:016x}.seg"] = bytes(segment.raw), segment.found
    files = {}
    for path, (raw, found) in made.items():
        files[path] = raw
        files[f"{path}.json"] = (json.dumps(found, indent=1) + "\n").encode()
    return files


def differences(files: dict[str, bytes], directory: Path) -> list[str]:
    """Files that differ, or that only the directory or only `files` has."""
    standing = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    found = [f"{path}: should not be there" for path in standing - files.keys()]
    for path, wanted in files.items():
        if path not in standing:
            found.append(f"{path}: is missing")
        elif (directory / path).read_bytes() != wanted:
            found.append(f"{path}: differs")
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the golden files of format version 1.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with the existing files; write nothing")
    what.add_argument("--example", action="store_true", help="print the worked example of docs/format.md")
    options = parser.parse_args()
    if options.example:
        print(example())
        return 0
    files = generate()
    if options.check:
        found = differences(files, GOLDEN)
        print("\n".join(found) if found else f"{len(files)} golden files are as made")
        return 1 if found else 0
    for path, raw in files.items():
        (GOLDEN / path).parent.mkdir(parents=True, exist_ok=True)
        (GOLDEN / path).write_bytes(raw)
    print(f"{len(files)} files, {sum(map(len, files.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
