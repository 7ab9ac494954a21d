"""``logstore in-doubt`` and ``logstore purge`` on a store that is closed, or that another program has open."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.command import fails, fine, on_terminal, run, spawn, told
from kit.crashed import crash, snapshot
from kit.in_doubt_cases import FILL, MOVE, SEGMENT, on_queues, prepare, rows
from kit.stores import contents
from logstore.codec.records import XidBody
from logstore.commands.in_doubt import readable
from logstore.inspect import Reader
from logstore.terminal.output import age_text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two messages on "in", nothing on "out"; MOVE would move the first to "out", FILL adds two to both."""
    made = tmp_path / "store"
    with logstore.open(made, segment_size=SEGMENT) as store:
        prepare(store)
    return made


def by_name(document: dict[str, Any]) -> list[tuple[str, int, int]]:
    """The number of enqueues and dequeues of each queue."""
    return [(row["name"], row["enqueues"], row["dequeues"]) for row in document["queues"]]


# ---- list


def test_list_shows_the_operations_and_the_age_of_each_transaction(path: Path) -> None:
    before = time.time()
    first, second = rows(path)
    assert (first["xid"], first["readable"], first["state"]) == (str(MOVE), "1:order-17:db1", "prepared")
    assert (second["xid"], second["readable"]) == (str(FILL), "-7:ff00:")
    assert logstore.Xid.parse(second["xid"]) == FILL
    assert first["operations"] == 2
    assert first["queues"] == [
        {"id": 1, "name": "in", "enqueues": 0, "dequeues": 1, "transient": False},
        {"id": 2, "name": "out", "enqueues": 1, "dequeues": 0, "transient": False},
    ]
    assert by_name(second) == [("in", 2, 0), ("out", 2, 0)]
    assert first["id"] < second["id"]
    assert first["prepared_us"] / 1e6 <= before
    assert first["age_s"] >= before - first["prepared_us"] / 1e6 - 0.001


def test_list_for_people_is_a_table_with_the_parsable_and_the_readable_name(path: Path) -> None:
    table = fine("in-doubt", path, "list")
    for text in (str(MOVE), "1:order-17:db1", "in -1, out +1", "in +2, out +2"):
        assert text in table


def test_list_of_a_store_without_any_is_empty_and_fine(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store", segment_size=SEGMENT) as store:
        store.begin(MOVE)  # not prepared: rolled back by the close
    assert rows(tmp_path / "store") == []
    fine("in-doubt", tmp_path / "store", "list")


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_an_outcome_takes_the_readable_name_that_the_listing_shows(path: Path, outcome: str) -> None:
    shown = fine("in-doubt", path, outcome, "1:order-17:db1", "--dry-run")
    assert shown == fine("in-doubt", path, outcome, MOVE, "--dry-run")
    assert str(MOVE) in fine("in-doubt", path, outcome, "1:order-17:db1")
    assert [row["xid"] for row in rows(path)] == [str(FILL)]
    for name in ("1:order-17:db1", "1:zz:"):
        assert f"no transaction {name} is in doubt" in fails(run("in-doubt", path, outcome, name), 1)


def test_a_readable_name_of_hexadecimal_digits_is_taken_unless_an_xid_is_written_so(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        for gtrid in (b"ab", b"cd", b"\xcd"):
            branch = store.begin(logstore.Xid(1, gtrid))
            store.publish(store.declare_queue("q"), b"", transaction=branch)
            branch.end()
            branch.prepare()
    assert str(logstore.Xid(1, b"ab")) in fine("in-doubt", path, "commit", "1:ab:")
    assert "xid 1:cd:" in fine("in-doubt", path, "commit", "1:cd:")
    assert [row["readable"] for row in rows(path)] == ["1:cd:"]


def test_an_outcome_without_any_transaction_in_doubt_says_that_there_is_none(tmp_path: Path) -> None:
    logstore.open(tmp_path / "store", segment_size=SEGMENT).close()
    for xid in (str(MOVE), "1:order-17:db1"):
        for more in ((), ("--dry-run",)):
            said = fails(run("in-doubt", tmp_path / "store", "commit", xid, *more), 1)
            assert f"no transaction is in doubt in this store, so {xid} is not" in said


def test_in_doubt_without_a_verb_lists(path: Path) -> None:
    listed = told("in-doubt", path, "list")["in_doubt"]
    assert [row["xid"] for row in told("in-doubt", path)["in_doubt"]] == [row["xid"] for row in listed]
    assert fine("in-doubt", path).splitlines()[0] == fine("in-doubt", path, "list").splitlines()[0]
    fails(run("in-doubt"), 2)
    fails(run("in-doubt", path, "comit", MOVE), 2)


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_an_xid_is_never_folded_or_cut_on_a_terminal(columns: int, tmp_path: Path) -> None:
    long = logstore.Xid(123456, bytes(range(48, 112)), b"branch" * 10)
    with logstore.open(tmp_path / "store", segment_size=SEGMENT) as store:
        queue = store.declare_queue("a-queue-with-a-name-of-some-length")
        for xid in (MOVE, long):
            transaction = store.begin(xid)
            store.publish(queue, b"x", transaction=transaction)
            transaction.end()
            transaction.prepare()
        lines = on_terminal(columns, "in-doubt", tmp_path / "store")
        assert [sum(str(xid) in line for line in lines) for xid in (MOVE, long)] == [1, 1]
        lines = on_terminal(columns, "tail", tmp_path / "store")  # both messages and both transactions hold the base
        assert [sum(str(xid) in line for line in lines) for xid in (MOVE, long)] == [2, 2]


@pytest.mark.parametrize("arguments", [[], ["list"], ["commit", MOVE, "--dry-run"], ["rollback", FILL, "--dry-run"]])
def test_listing_and_dry_runs_change_nothing_at_all(path: Path, arguments: list[object]) -> None:
    before = snapshot(path)
    fine("in-doubt", path, *arguments)
    assert snapshot(path) == before


def test_list_works_while_another_process_has_the_store_open(path: Path) -> None:
    with logstore.open(path) as store:
        assert [row["xid"] for row in rows(path)] == [str(MOVE), str(FILL)]
        next(each for each in store.in_doubt() if each.xid == MOVE).commit()
        assert [row["xid"] for row in rows(path)] == [str(FILL)]


def test_list_after_a_crash_shows_the_transactions_that_recovery_will_find(tmp_path: Path) -> None:
    work = (
        "store.declare_queue('q')\n"
        "for state in ('active', 'ended', 'prepared'):\n"
        "    tx = store.begin(logstore.Xid(1, state.encode()))\n"
        "    store.publish('q', b'x', transaction=tx)\n"
        "    if state != 'active': tx.end()\n"
        "    if state == 'prepared': tx.prepare()\n"
    )
    crash(tmp_path / "store", work)
    assert [row["readable"] for row in rows(tmp_path / "store")] == ["1:prepared:"]


def test_a_queue_deleted_meanwhile_has_no_name_and_does_not_stop_the_outcome(path: Path) -> None:
    """After the next open it is not listed at all, because work on it has no effect with any outcome."""
    with logstore.open(path) as store:
        store.delete_queue("out")
        assert rows(path)[0]["queues"][1] == {"id": 2, "name": None, "enqueues": 1, "dequeues": 0, "transient": False}
        assert "(deleted queue) +1" in fine("in-doubt", path, "list")
    assert by_name(rows(path)[0]) == [("in", 0, 1)]
    fine("in-doubt", path, "commit", MOVE)
    with logstore.open(path) as store:
        assert contents(store.queue("in")) == [b"2"]


# ---- commit and rollback


def test_commit_makes_the_transaction_happen_for_good(path: Path) -> None:
    said = told("in-doubt", path, "commit", MOVE)
    assert (said["outcome"], said["xid"], said["operations"]) == ("commit", str(MOVE), 2)
    assert (said["through"], said["dry_run"]) == ("store", False)
    assert on_queues(path) == ([b"2"], [b"1"], 1)
    assert fine("in-doubt", path, "commit", FILL).startswith("committed: 4 operations")
    assert on_queues(path) == ([b"2", b"3", b"4"], [b"1", b"3", b"4"], 0)


def test_a_rollback_undoes_everything(path: Path) -> None:
    assert told("in-doubt", path, "rollback", MOVE)["outcome"] == "rollback"
    assert on_queues(path) == ([b"1", b"2"], [], 1)
    assert fine("in-doubt", path, "rollback", FILL).startswith("rolled back: 4 operations")
    assert on_queues(path) == ([b"1", b"2"], [], 0)


def test_a_dry_run_says_what_would_happen(path: Path) -> None:
    said = told("in-doubt", path, "commit", MOVE, "--dry-run")
    assert (said["dry_run"], said["through"], said["operations"]) == (True, "store", 2)
    assert by_name(said) == [("in", 0, 1), ("out", 1, 0)]
    text = fine("in-doubt", path, "commit", MOVE, "--dry-run")
    assert "would be committed: 2 operations" in text
    assert "1 would go" in text
    assert "1 would appear" in text
    text = fine("in-doubt", path, "rollback", MOVE, "--dry-run")
    assert "1 would be unlocked" in text
    assert "1 would be forgotten" in text


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--json"]])
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_an_unknown_xid_is_one_line_and_status_1(path: Path, outcome: str, options: list[str]) -> None:
    line = fails(run("in-doubt", path, outcome, "1:ab:", *options), 1)
    assert "no transaction 1:ab: is in doubt" in line
    assert str(path) in line
    assert len(rows(path)) == 2


def test_the_same_outcome_twice_is_an_unknown_xid_the_second_time(path: Path) -> None:
    fine("in-doubt", path, "commit", FILL)
    fails(run("in-doubt", path, "commit", FILL), 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--dry-run"],
        ["forget", MOVE],
        ["commit"],
        ["commit", "abc"],
        ["commit", f"1:{'ab' * 65}:"],
        ["commit", MOVE, FILL],
        ["commit", "--force", MOVE],
        ["rollback", MOVE, "--dryrun"],
        ["list", "extra"],
    ],
)
def test_misuse_is_one_line_and_status_2(path: Path, arguments: list[object]) -> None:
    fails(run("in-doubt", path, *arguments), 2)
    assert len(rows(path)) == 2


@pytest.mark.parametrize("arguments", [["list"], ["commit", MOVE], ["commit", MOVE, "--dry-run"]])
def test_a_directory_that_is_no_store_gives_status_3_and_no_store_is_created(
    tmp_path: Path, arguments: list[object]
) -> None:
    assert str(tmp_path / "none") in fails(run("in-doubt", tmp_path / "none", *arguments), 3)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--json"]])
@pytest.mark.parametrize("command", [["in-doubt", "commit", str(MOVE)], ["in-doubt", "rollback", str(FILL)], ["purge"]])
def test_changing_a_store_that_a_program_has_open_is_one_line_and_status_3(
    path: Path, command: list[str], options: list[str]
) -> None:
    name, *rest = command
    with logstore.open(path) as store:
        line = fails(run(name, path, *(rest or ["in"]), *options), 3)
        assert "is open in this process already" in line
        assert "no broker listens" in line
        assert len(store.in_doubt()) == 2
        assert store.queue("in").depth == 2


def test_the_commands_are_programs_too(path: Path) -> None:
    for arguments, status in ((["list"], 0), (["commit", FILL], 0), (["commit", FILL], 1), (["commit", "x"], 2)):
        result = spawn("in-doubt", path, *arguments)
        assert result.returncode == status, result.stderr
    with Reader(path) as reader:
        assert reader.info.clean


# ---- purge


def test_purge_drops_waiting_messages_and_keeps_locked_ones(path: Path) -> None:
    before = snapshot(path)
    assert told("purge", path, "in", "--dry-run") == {
        "store": str(path),
        "queue": "in",
        "dry_run": True,
        "through": "store",
        "messages": 1,
        "unacknowledged": 0,
        "locked": 1,
        "unreadable": 0,
    }
    assert "would be purged: 1 message of in" in fine("purge", path, "in", "--dry-run")
    assert snapshot(path) == before
    assert fine("purge", path, "in") == "purged: 1 message of in; left: 1 locked by a transaction\n"
    assert told("purge", path, "in")["messages"] == 0
    fine("in-doubt", path, "rollback", MOVE)
    assert on_queues(path) == ([b"1"], [], 1)


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_purging_an_unknown_queue_is_one_line_and_status_1(path: Path, options: list[str]) -> None:
    assert "no queue 'nope'" in fails(run("purge", path, "nope", *options), 1)


def test_purge_wants_a_queue(path: Path) -> None:
    fails(run("purge", path), 2)


# ---- Texts


@pytest.mark.parametrize(
    ("gtrid", "bqual", "text"),
    [
        (b"order-17", b"", "1:order-17:"),
        (b"\x00\x01", b"db", "1:0001:db"),
        (b"a\x1b[31m", b"\xc3\xbc", "1:611b5b33316d:c3bc"),
        (b"", b"", "1::"),
    ],
)
def test_a_readable_xid_shows_text_as_text_and_the_rest_in_hex(gtrid: bytes, bqual: bytes, text: str) -> None:
    assert readable(XidBody(1, gtrid, bqual)) == text


def test_an_age_is_shown_in_its_two_largest_units() -> None:
    told_ages = {-3: "0 s", 0.9: "0 s", 59: "59 s", 61: "1 min 1 s", 7200: "2 h 0 min", 90_061: "1 d 1 h"}
    for seconds, text in told_ages.items():
        assert age_text(seconds) == text
