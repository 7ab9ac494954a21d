"""The commands on a copy of a replicated store, and that a single store's output has nothing of replication."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import logstore
from kit.command import fails, fine, run
from kit.record_cases import sealed
from kit.replicated import END_LSN, KNOWN_DURABLE_LSN, MEMBERS_LSN, golden_copy
from kit.stores import SMALL_SEGMENT
from logstore.codec.files import Closed, SegmentHeader
from logstore.codec.replication import ReplicationRules
from logstore.inspect import Inspection, inspection
from logstore.terminal.replication import REPLICATION

if TYPE_CHECKING:
    from pathlib import Path

UNDURABLE = END_LSN - KNOWN_DURABLE_LSN
LINE = (
    f"replicated: term 5, index 7, forced to LSN {END_LSN}, known durable to LSN {KNOWN_DURABLE_LSN} "
    f"({UNDURABLE} bytes may still be cut)"
)
TOLD = {
    "term": 5,
    "index": 7,
    "forced_lsn": END_LSN,
    "known_durable_lsn": KNOWN_DURABLE_LSN,
    "undurable_bytes": UNDURABLE,
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return golden_copy(tmp_path / "store")


@pytest.fixture
def single(tmp_path: Path) -> Path:
    with logstore.open(tmp_path / "single", segment_size=SMALL_SEGMENT) as store:
        store.publish(store.declare_queue("q"), b"x")
    return tmp_path / "single"


@pytest.mark.parametrize("command", ["info", "verify"])
def test_info_and_verify_say_where_a_copy_stands_and_how_much_may_still_be_cut(copy: Path, command: str) -> None:
    lines = fine(command, copy).splitlines()
    assert LINE in lines
    assert any(line.startswith("state ") and line.endswith("its member recovers it") for line in lines)
    document = json.loads(fine(command, copy, "--json"))
    assert {name: document[name] for name in REPLICATION} == TOLD


@pytest.mark.parametrize("command", ["info", "verify"])
def test_info_and_verify_of_a_single_store_say_nothing_of_replication(single: Path, command: str) -> None:
    assert "replicated" not in fine(command, single)
    assert not set(REPLICATION) & json.loads(fine(command, single, "--json")).keys()


def test_what_may_be_cut_is_counted_without_the_lsns_between_two_terms(copy: Path) -> None:
    (copy / f"{5 << 40:016x}.seg").rename(copy / "aside")
    before = json.loads(fine("info", copy, "--json"))
    assert (before["index"], before["undurable_bytes"]) == (5, before["forced_lsn"] - before["known_durable_lsn"])
    assert before["undurable_bytes"] > 0
    (copy / "aside").rename(copy / f"{5 << 40:016x}.seg")
    raw = bytearray((copy / f"{5 << 40:016x}.seg").read_bytes())
    raw[4096 + 104 :] = bytes(len(raw) - 4096 - 104)  # only the first batch of term 5 was written
    (copy / f"{5 << 40:016x}.seg").write_bytes(raw)
    told = json.loads(fine("info", copy, "--json"))
    last = json.loads(fine("dump", copy, "--type", "BATCH", "--json").splitlines()[-1])
    assert last["lsn"] + last["body"]["bytes"] == told["known_durable_lsn"] < 3 << 40
    assert (told["index"], told["undurable_bytes"]) == (5, 184 + 104)  # the last batch of term 2, and that one


def test_verify_checks_what_is_undurable_and_its_second_reader_all_of_it(copy: Path) -> None:
    document = json.loads(fine("verify", copy, "--json"))
    assert (document["end_lsn"], document["batches"], document["compared"]) == (END_LSN, 8, 17)
    assert (document["copied"], document["problem_count"]) == (False, 0)


def test_verify_finds_a_flipped_bit_in_what_is_known_durable(copy: Path) -> None:
    file = copy / f"{2 << 40:016x}.seg"
    raw = bytearray(file.read_bytes())
    raw[MEMBERS_LSN - (2 << 40) + 70] ^= 1
    file.write_bytes(raw)
    assert "damage:" in run("verify", copy).stdout


@pytest.mark.parametrize(
    ("offset", "value", "core", "second"),
    [
        (88, 9, "a batch's index does not follow", "its index 9 does not follow index 6"),
        (96, 65536, "a batch knows less to be durable", "it knows everything below 65536 to be durable"),
    ],
    ids=["index", "known durable"],
)
def test_verify_names_a_forged_batch_by_either_reader(
    copy: Path, offset: int, value: int, core: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = copy / f"{5 << 40:016x}.seg"
    raw = bytearray(file.read_bytes())
    header = SegmentHeader.decode(bytes(raw))
    at = KNOWN_DURABLE_LSN - header.first_lsn
    record = raw[at : at + 104]
    struct.pack_into("<Q", record, offset, value)
    raw[at : at + 104] = sealed(record, header.seed)
    file.write_bytes(raw)
    found = run("verify", copy)
    assert (found.returncode, second in found.stdout) == (1, True)
    monkeypatch.setattr(ReplicationRules, "judge", lambda *_: iter(()))
    found = run("verify", copy)
    assert (found.returncode, core in found.stdout) == (1, True)


def test_no_close_is_missed_in_a_replicated_log(copy: Path) -> None:
    uuid = UUID(json.loads(fine("info", copy, "--json"))["uuid"])
    (copy / "CLOSED").write_bytes(Closed(uuid, 5, END_LSN, 0).encode())
    assert json.loads(fine("verify", copy, "--json"))["problem_count"] == 0


def test_a_limited_rate_counts_bytes_and_not_the_lsns_between_two_terms(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[int] = []
    monkeypatch.setattr(inspection.Pace, "spend", lambda _, size: spent.append(size))
    monkeypatch.setattr(inspection, "STEP_BYTES_MIN", 1)
    with Inspection(copy, checked=True) as found:
        found.read(rate=1)
    assert 0 < sum(spent) <= sum(path.stat().st_size for path in copy.glob("*.seg"))


def lines(*arguments: Any) -> dict[str, str]:
    """The lines of ``dump`` by the record's LSN and type."""
    found = (line.split(maxsplit=2) for line in fine("dump", *arguments).splitlines())
    return {f"{lsn} {kind}": rest for lsn, kind, rest in found}


def test_dump_shows_members_and_changes_of_the_catalog_in_words(copy: Path) -> None:
    found = lines(copy)
    assert found[f"{MEMBERS_LSN} MEMBERS"] == f"id={MEMBERS_LSN} prev=0 length=96 index=1 config_bytes=29"
    changes = [rest for key, rest in found.items() if key.endswith("CATALOG_CHANGE")]
    assert changes == [
        'length=96 part=0 rows=[put queue 7 {"name":"orders"}]',
        'length=136 PART part=0 rows=[delete binding {"exchange":"amq.topic"},put exchange {"name":"events"}]',
        "length=80 part=1 rows=[put config {}]",
    ]
    assert "config=b'a configuration of one member'" in fine("dump", copy, "--type", "MEMBERS", "--bodies")
    only = lines(copy, "--queue", "q7", "--type", "CATALOG_CHANGE")
    assert list(only.values()) == changes[:1]


def test_dump_gives_the_rows_of_a_change_as_text_in_json(copy: Path) -> None:
    first = json.loads(fine("dump", copy, "--type", "CATALOG_CHANGE", "--json").splitlines()[0])
    row = {"action": "PUT", "object": "QUEUE", "queue_id": 7, "row": '{"name":"orders"}'}
    assert first["body"] == {"part": 0, "rows": [row]}


def test_a_batch_shows_its_index_only_if_it_has_one(copy: Path, single: Path) -> None:
    batches = [rest for key, rest in lines(copy).items() if key.endswith("BATCH")]
    assert ["index=" in one for one in batches] == [False] + [True] * 6
    assert batches[-1].endswith(f" index=6 known_durable_lsn={KNOWN_DURABLE_LSN - 296}")
    assert "index=" not in "".join(rest for key, rest in lines(single).items() if key.endswith("BATCH"))
    document = json.loads(fine("dump", single, "--type", "BATCH", "--json").splitlines()[0])
    assert (document["body"]["index"], document["body"]["known_durable_lsn"]) == (0, 0)


def test_chain_shows_the_members_and_where_their_newest_copy_is(copy: Path) -> None:
    *records, now = fine("chain", copy, MEMBERS_LSN).splitlines()
    assert [one.split(": ", 1)[1] for one in records[1::2]] == [
        "the members of the log since index 1, 29 bytes of configuration",
        "relocated: the members of the log since index 1, 29 bytes of configuration",
    ]
    document = json.loads(fine("chain", copy, MEMBERS_LSN, "--json"))
    lsn = document["records"][-1]["lsn"]
    assert document["now"] == {"state": "members", "lsn": lsn, "moved": True}
    assert now == f"now: the members of the log, relocated to LSN {lsn}"


@pytest.mark.parametrize("command", ["checkpoint", "compact", "purge", "recover"])
def test_a_command_that_opens_a_copy_is_refused_and_its_dry_run_says_the_same(copy: Path, command: str) -> None:
    arguments = (command, copy, *(["q7"] if command == "purge" else []))
    with pytest.raises(logstore.ReplicatedStore) as refused:
        logstore.open(copy)
    assert "`logstore cluster detach`" in str(refused.value)
    for options in ((), ("--dry-run",)):
        assert fails(run(*arguments, *options), 3) == f"logstore: {copy}: {refused.value}\n"
