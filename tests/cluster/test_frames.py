"""The bytes between members: what is encoded comes back, and nothing damaged does."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("msgspec", reason="the extra cluster is not installed")

from kit.members import CLUSTER, OTHER_STORE, STORE, append, batch, engine_frame
from logstore.cluster import frames
from logstore.cluster.frames import BadFrame, Carried, Joiner, Message, Messages, Reader
from logstore.errors import OptionError

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
SOME_BATCHES = (Carried(batch(9, 104, header=True), 2), Carried(batch(10, 320), 1), Carried(batch(11, 208), 3, b"who"))


class Note(Message, frozen=True, tag=16):
    text: str
    count: int = 0


class Skippable(Message, frozen=True, tag=17):
    skippable: ClassVar[bool] = True
    text: str


MESSAGES = Messages([Note, Skippable])


def read(data: bytes, *, at_once: int | None = None) -> list[Any]:
    """All that the bytes of an open connection deliver."""
    reader, joiner, found = Reader(), Joiner(), []
    data = bytes(data)
    while data:
        room = reader.room()
        count = min(len(room), len(data), at_once or len(data))
        room[:count] = data[:count]
        reader.filled(count)
        data = data[count:]
        while (framed := reader.frame()) is not None:
            kind, frame = framed
            if kind == frames.CONTROL:
                found.append(MESSAGES.read(frame))
            elif kind == frames.RECORDS:
                found += frames.records_of(frame, 3)
            elif (message := joiner.take(frame, 3)) is not None:
                found.append(message)
    return found


def joined(parts: list[list[Any]]) -> bytes:
    return b"".join(bytes(buffer) for part in parts for buffer in part)


def sent_message(host: int, first: int, *carried: Carried) -> tuple[bytes, Any]:
    frame, _ = append(first, *carried)
    parts = frames.message_parts(host, frame, carried)
    data = joined(parts)
    assert len(data) == frames.message_bytes(carried)
    entries = tuple((each.batch.term, each.kind, each.configuration) for each in carried)
    fields = (frame[0], 3, *frame[2:9], entries)
    return data, (host, fields, [each.batch for each in carried], len(data))


KINDS = {
    "control": (bytes(MESSAGES.frame(Note("text", 7))), [Note("text", 7)]),
    "records": (
        bytes(frames.records_frame([frames.record(4, engine_frame()), frames.ack(77)])),
        [
            (4, (5, 3, 7, 0, 6, 0, frames.TYPE_LAST, 0, 0, ())),
            (0, (0, 3, 0, 77, 0, 0, frames.TYPE_ACK, 0, 0, ())),
        ],
    ),
    "ping": (bytes(frames.records_frame([])), []),
}
_message = sent_message(4, 9, *SOME_BATCHES)
KINDS["message"] = (_message[0], [_message[1]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [None, 1, 7])
def test_a_frame_comes_back_however_its_bytes_arrive(kind: str, at_once: int | None) -> None:
    data, wanted = KINDS[kind]
    assert read(data * 3, at_once=at_once) == wanted * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_with_any_bit_flipped_delivers_nothing(kind: str) -> None:
    """A longer length waits for bytes that the next frame has, and then fails."""
    data, _ = KINDS[kind]
    after = KINDS["records"][0] * (1 + frames.FRAME_BYTES_MAX // len(KINDS["records"][0]))
    refused = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        delivered: list[Any] = []
        try:
            delivered = read(flipped)
        except BadFrame as error:
            assert str(error)
            refused += 1
        assert delivered == [], bit
        if not 8 * 8 <= bit < 12 * 8:
            continue
        with pytest.raises(BadFrame):
            read(bytes(flipped) + after)
        refused += 1
    assert refused >= 8 * len(data) - 32


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_that_is_cut_delivers_nothing_and_with_another_behind_it_is_refused(kind: str) -> None:
    data, _ = KINDS[kind]
    for size in range(len(data)):
        assert read(data[:size]) == []
        if size:
            with pytest.raises(BadFrame):
                read(data[:size] + KINDS["message"][0] * (300 if size < frames.HEAD.size else 2))


@given(
    host=U32,
    term=U32,
    index_term=U32,
    group=U64,
    index=U64,
    other=U64,
    kind=st.integers(1, 6),
    flags=st.integers(0, 255),
)
def test_every_engine_frame_without_entries_comes_back(
    host: int, term: int, index_term: int, group: int, index: int, other: int, kind: int, flags: int
) -> None:
    frame: Any = (group, 99, term, index, index_term, other, kind, flags, 0, ())
    data = frames.records_frame([frames.record(host, frame)])
    assert read(data) == [(host, (group, 3, *frame[2:]))]


CARRIED = st.lists(
    st.tuples(st.integers(13, 5000), st.booleans(), st.integers(1, 3), st.binary(min_size=1, max_size=100)),
    min_size=1,
    max_size=5,
)


@given(first=st.integers(1, 1 << 40), host=U32, made=CARRIED)
@settings(max_examples=60)
def test_every_message_comes_back_in_parts_or_whole(first: int, host: int, made: list[Any]) -> None:
    carried = []
    for at, (words, header, kind, configuration) in enumerate(made):
        one = replace(batch(at, 8 * words, header=header), index=first + at)
        carried.append(Carried(one, kind, configuration if kind == frames.KIND_MEMBERS else b""))
    data, wanted = sent_message(host, first, *carried)
    assert read(data) == [wanted]


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_message_is_cut_exactly_where_a_frame_is_full(over: int) -> None:
    fixed = frames.APPEND.size + frames.BATCH.size
    one = batch(1, frames.PART_BYTES_MAX - fixed + over)
    data, wanted = sent_message(1, 1, Carried(one, 1))
    assert read(data) == [wanted]
    assert (len(data) > frames.FRAME_BYTES_MAX) == (over > 0)


def test_a_batch_of_the_largest_size_takes_parts_that_alternate_with_those_of_another_host() -> None:
    frame, carried = append(1, Carried(batch(1, frames.BATCH_BYTES_MAX, header=True), 1))
    ones, twos = (frames.message_parts(host, frame, carried) for host in (1, 2))
    assert len(ones) == 9
    assert max(sum(map(len, part)) for part in ones) == frames.FRAME_BYTES_MAX
    found = read(b"".join(joined([one]) + joined([two]) for one, two in zip(ones, twos, strict=True)))
    assert [message[0] for message in found] == [1, 2]
    assert [message[2] for message in found] == [[carried[0].batch]] * 2


def test_parts_out_of_order_repeated_or_of_another_message_are_refused() -> None:
    frame, carried = append(1, Carried(batch(1, 1 << 20), 1))
    parts = [joined([part]) for part in frames.message_parts(1, frame, carried)]
    later, _ = append(2, Carried(batch(2, 1 << 20), 1))
    others = [joined([part]) for part in frames.message_parts(1, later, (Carried(batch(2, 1 << 20), 1),))]
    for wrong in (parts[1:], [parts[0], parts[0]], [parts[0], parts[2]], [parts[0], others[1]], [parts[0], others[0]]):
        with pytest.raises(BadFrame):
            read(b"".join(wrong))


def test_incomplete_messages_are_limited_in_all() -> None:
    """So a peer cannot make this side set memory aside for more than may be unacknowledged."""
    carried = tuple(Carried(batch(1 + i, 2 << 20), 1) for i in range(7))
    frame, _ = append(1, *carried)
    begun = [joined(frames.message_parts(host, frame, carried)[:1]) for host in (1, 2)]
    read(begun[0])
    with pytest.raises(BadFrame, match="incomplete"):
        read(b"".join(begun))


def resealed(data: bytes, at: int, value: bytes) -> bytes:
    """A frame with other bytes and a checksum that is right: from a peer with a defect."""
    made = bytearray(data)
    made[at : at + len(value)] = value
    return bytes(frames._sealed(made))


def test_impossible_fields_under_a_right_checksum_are_refused_or_are_another_possible_value() -> None:
    """Each byte of the fixed parts gets every value: never a traceback, never bytes that were not sent."""
    data, _ = KINDS["message"]
    sent = {each.batch.data for each in SOME_BATCHES}
    fixed = frames.DATA.size + frames.APPEND.size + 3 * frames.BATCH.size
    refused = 0
    for at in range(8, fixed):
        for value in range(256):
            try:
                found = read(resealed(data, at, bytes([value])))
            except BadFrame:
                refused += 1
                continue
            assert {len(each.data) for message in found for each in message[2]} <= {len(each) for each in sent}
    assert refused > 10_000


@pytest.mark.parametrize("kind", ["control", "records"])
def test_damage_under_a_right_checksum_is_no_traceback(kind: str) -> None:
    data, _ = KINDS[kind]
    for at in range(8, len(data)):
        for value in range(256):
            try:
                read(resealed(data, at, bytes([value])))
            except BadFrame as error:
                assert str(error)


def test_an_unknown_control_message_is_skipped_only_if_it_says_so() -> None:
    old = Messages()
    for message, skipped in ((Skippable("later"), True), (Note("later"), False)):
        frame = memoryview(MESSAGES.frame(message))
        if skipped:
            assert old.read(frame) is None
        else:
            with pytest.raises(BadFrame, match="control message 16 is unknown"):
                old.read(frame)


def test_a_control_message_may_have_fields_that_are_not_known_here() -> None:
    class Later(Message, frozen=True, tag=16):
        text: str
        count: int
        place: str

    assert read(Messages([Later]).frame(Later("a", 1, "b"))) == [Note("a", 1)]


@pytest.mark.parametrize("wrong", ["too long", "not given", "taken number", "own number", "no number"])
def test_control_messages_that_cannot_be_sent_are_refused_before(wrong: str) -> None:
    class Twice(Message, frozen=True, tag=16):
        pass

    class Own(Message, frozen=True, tag=2):
        pass

    class Untagged(Message, frozen=True):
        pass

    attempts = {
        "too long": lambda: MESSAGES.frame(Note("x" * frames.CONTROL_BYTES_MAX)),
        "not given": lambda: MESSAGES.frame(Untagged()),
        "taken number": lambda: Messages([Note, Twice]),
        "own number": lambda: Messages([Own]),
        "no number": lambda: Messages([Untagged]),
    }
    with pytest.raises(OptionError):
        attempts[wrong]()


def hello(**changed: Any) -> frames.Hello:
    hosts = {STORE: frames.Identity(1, 7, 4112, 6, False), OTHER_STORE: frames.Identity(0, 0, 0, 0, True)}
    fields = {
        "cluster": CLUSTER,
        "member": 3,
        "name": "c",
        "program": "1",
        "versions": (1, 2),
        "start": 1 << 60,
        "connection": 4,
    }
    fields |= {"seen_start": 5, "seen_connection": 6, "purpose": "frames", "hosts": hosts}
    return frames.Hello(**fields | changed)


def greeted(data: bytes) -> tuple[int, int, frames.Hello] | None:
    reader = Reader()
    reader.room()[: len(data)] = data
    reader.filled(len(data))
    found = reader.preamble()
    return None if found is None else (*found[:2], frames.hello_of(found[2]))


def test_a_hello_comes_back_and_any_flipped_bit_is_refused_or_waits() -> None:
    data = frames.hello_bytes(hello())
    assert greeted(data) == (1, 2, hello())
    refused = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert greeted(bytes(flipped)) is None
        except BadFrame:
            refused += 1
    assert refused >= 8 * len(data) - 32  # a longer length waits
    for size in range(len(data)):
        assert greeted(data[:size]) is None


def test_a_hello_with_more_hosts_than_fit_is_refused_before_it_is_sent() -> None:
    hosts = {i.to_bytes(16, "big"): frames.Identity(1 << 40, 1 << 22, 1 << 40, 1 << 22, True) for i in range(1500)}
    frames.hello_bytes(hello(hosts=dict(list(hosts.items())[:1000])))
    with pytest.raises(OptionError, match="fewer hosts"):
        frames.hello_bytes(hello(hosts=hosts))


@pytest.mark.parametrize("wrong", [b"GET / HTTP/1.1\r\n", b"AMQP\0\0\x09\x01", b"\x16\x03\x01\x02\0"])
def test_another_protocol_is_refused_at_its_first_bytes(wrong: bytes) -> None:
    with pytest.raises(BadFrame, match="no member"):
        greeted(wrong)


@pytest.mark.parametrize(
    "carried",
    [
        (),
        (Carried(replace(batch(9), data=b"short"), 1),),
        (Carried(replace(batch(9), header=b"short"), 1),),
        (Carried(batch(8), 1),),
        (Carried(batch(9), 4),),
        (Carried(batch(9), 1, b"a configuration"),),
        (Carried(batch(9), 3),),
        (Carried(batch(9), 3, bytes(frames.CONFIGURATION_MAX + 1)),),
        (Carried(batch(9, frames.BATCH_BYTES_MAX + 8), 1),),
        (Carried(replace(batch(9), first_lsn=1 << 62), 1),),
        (Carried(replace(batch(9), term=1 << 33), 1),),
        tuple(Carried(batch(9 + i, 104), 1) for i in range(frames.ENTRIES_MAX + 1)),
        tuple(Carried(batch(9 + i, 2 << 20), 1) for i in range(8)),
    ],
)
def test_a_message_that_a_receiver_would_refuse_is_not_made(carried: tuple[Carried, ...]) -> None:
    frame, _ = append(9, *carried)
    with pytest.raises(OptionError):
        frames.message_parts(1, frame, carried)


def test_an_engine_frame_that_does_not_fit_a_record_is_refused() -> None:
    for frame in (engine_frame(7), engine_frame(0), engine_frame(1, count=1), engine_frame(term=1 << 32)):
        with pytest.raises(OptionError):
            frames.record(1, frame)


def test_the_engine_has_the_same_numbers() -> None:
    engine = pytest.importorskip("logstore.cluster.engine", reason="the cluster is not built", exc_type=ImportError)
    kinds = (engine.APPEND, engine.APPENDED, engine.ASK_VOTE, engine.VOTED, engine.UPDATE, engine.TIMEOUT_NOW)
    assert kinds == tuple(range(frames.TYPE_APPEND, frames.TYPE_LAST + 1))
    assert (engine.BATCH, engine.FIRST, engine.MEMBERS) == frames.KINDS
    assert (engine.ENTRIES_MAX, engine.CONFIGURATION_MAX) == (frames.ENTRIES_MAX, frames.CONFIGURATION_MAX)
    fields = read(KINDS["message"][0])[0][1]
    frame = engine.Frame._make(fields)
    assert (frame.entry_count, [engine.Entry._make(entry).kind for entry in frame.entries]) == (3, [2, 1, 3])


def test_frames_need_no_engine() -> None:
    script = "import sys, logstore.cluster.frames; print('logstore._consensus' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
