"""The ``logstore`` command: its output, its exit status, and the one line that it prints on an error."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

import logstore
from kit.command import COMMAND, fails, fine, run, spawn, told
from kit.crashed import CRASH, WORK, crash, snapshot
from kit.patience import PATIENCE_S
from logstore.codec.records import RecordType
from logstore.inspect import Reader
from logstore.terminal.options import LSN, SIZE
from logstore.terminal.output import one_line, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEGMENT = 512 << 10
COMMANDS = ("info", "queues", "dump", "chain", "verify", "recover")


def arguments_of(command: str, path: Path) -> list[str]:
    return [command, str(path), *(["12345"] if command == "chain" else [])]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments: queues 1 and 2, 61 messages, one of them on both; closed."""
    path = tmp_path_factory.mktemp("template") / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        orders = store.declare_queue("orders", arguments={"x": [1]})
        store.declare_queue("bad \x1b[31m", dead_letter="orders")
        store.publish_many(orders, [bytes([n]) * 20_000 for n in range(60)])
        store.publish([orders, store.queue("bad \x1b[31m")], b"both", header=b"h")
    return path


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "store"))


# ---- Output


def test_info_shows_the_kind_and_the_size_of_a_store(store: Path) -> None:
    said = told("info", store)
    assert said["state"] == "closed"
    assert (said["segment_size"], said["segments"], said["format_version"]) == (SEGMENT, 3, 1)
    assert (said["messages"], said["places"], said["queues"], said["transactions"]) == (61, 62, 2, 0)
    assert said["base_lsn"] == SEGMENT < said["durable_lsn"] == said["end_lsn"]
    assert said["log_bytes"] == SEGMENT * (said["segments"] + said["spares"])
    table = fine("info", store)
    assert said["uuid"] in table
    assert "closed cleanly" in table
    assert "524288 bytes (512 KiB)" in table


def test_queues_lists_queues_with_depths_and_without_terminal_controls(store: Path) -> None:
    queues = told("queues", store)["queues"]
    assert [(queue["id"], queue["name"], queue["depth"], queue["locked"]) for queue in queues] == [
        (1, "orders", 61, 0),
        (2, "bad \x1b[31m", 1, 0),
    ]
    assert (queues[0]["arguments"], queues[1]["dead_letter"]) == ({"x": [1]}, "orders")
    assert queues[0]["bytes"] == queues[0]["ready_bytes"] == 60 * 20_000 + 4
    table = fine("queues", store)
    assert "\x1b" not in table
    assert re.search(r"2 +bad \\x1b\[31m +1 +1 +0 +4 +orders", table)


def test_dump_prints_every_record_once_and_json_lines_are_the_same_records(store: Path) -> None:
    with Reader(store) as reader:
        lsns = [record.lsn for record in reader.records()]
    assert [int(line.split()[0]) for line in fine("dump", store).splitlines()] == lsns
    documents = [json.loads(line) for line in fine("dump", store, "--json").splitlines()]
    assert [document["lsn"] for document in documents] == lsns
    assert documents[-1]["type"] == "CLOSE"
    assert all(set(one) == {"lsn", "type", "flags", "id", "prev", "length", "body"} for one in documents)


def test_dump_takes_a_range_types_and_a_limit(store: Path) -> None:
    starts = [json.loads(line) for line in fine("dump", store, "--type", "message_start", "--json").splitlines()]
    assert len(starts) == 61
    low, high = starts[10]["lsn"], starts[20]["lsn"]
    some = fine("dump", store, "--from", low, "--to", hex(high), "--type", "MESSAGE_START", "--type", "FOOTER")
    assert [int(line.split()[0]) for line in some.splitlines()] == [one["lsn"] for one in starts[10:20]]
    assert len(fine("dump", store, "--limit", 7).splitlines()) == 7
    assert fine("dump", store, "--limit", 0) == ""


def test_contents_are_shown_only_on_request(store: Path) -> None:
    last = told("info", store)["end_lsn"] - 1000
    plain = json.loads(fine("dump", store, "--from", last, "--type", "MESSAGE_START", "--json"))
    body = plain["body"]
    assert (body["queues"], body["header_bytes"], body["content_bytes"]) == ([1, 2], 1, 4)
    assert not {"header", "content"} & body.keys()
    with_bodies = json.loads(fine("dump", store, "--from", last, "--type", "MESSAGE_START", "--json", "--bodies"))
    assert base64.b64decode(with_bodies["body"]["content"]) == b"both"
    assert "content=b'both'" in fine("dump", store, "--from", last, "--bodies")


def test_chain_prints_the_records_of_one_message_or_transaction_by_decimal_or_hex_id(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as opened:
        queue = opened.declare_queue("q")
        message_id = opened.publish(queue, b"x")
        with opened.transaction() as transaction:
            opened.dequeue(message_id, queue, transaction)
    said = told("chain", path, message_id)
    types = [record["type"] for record in said["records"]]
    assert (said["id"], types) == (message_id, ["MESSAGE_START", "MESSAGE_DEQUEUE", "MESSAGE_DELETE"])
    assert said["records"][1]["body"]["tx_id"] == transaction.id
    assert fine("chain", path, hex(message_id)).count("\n") == 7  # with meanings, and the present place
    types = [record["type"] for record in told("chain", path, transaction.id)["records"]]
    assert types == ["TX_START", "TX_COMMIT", "TX_DELETE"]
    assert str(message_id + 8) in fails(run("chain", path, message_id + 8), 1)


def test_verify_counts_the_records_read_and_compares_all_on_request(store: Path) -> None:
    said = told("verify", store)
    assert (said["ok"], said["state"], said["problems"], said["torn_lsn"]) == (True, "closed", [], None)
    assert (said["segments"], said["footers"], said["messages"], said["places"]) == (3, 2, 61, 62)
    thorough = told("verify", store, "--thorough")
    assert thorough["compared"] == thorough["records"] + thorough["batches"]
    assert "problems" in fine("verify", store)


def test_nothing_is_made_or_changed_by_the_commands_that_only_read(store: Path, tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    crash(crashed, "store.publish(store.declare_queue('q'), b'x')")
    for path in (store, crashed):
        before = snapshot(path)
        for command in COMMANDS[:-1]:
            run(*arguments_of(command, path))
        fine("recover", path, "--dry-run")
        assert snapshot(path) == before


@pytest.mark.parametrize("seed", [1, 2])
def test_recover_reports_the_same_as_its_dry_run(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "store"
    for turn in range(2):
        arguments = [sys.executable, "-c", CRASH.format(work=WORK), str(path), str(100 * seed + turn)]
        subprocess.run(arguments, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=PATIENCE_S)
    foretold = told("recover", path, "--dry-run")
    assert foretold["transactions_abandoned"] + foretold["transactions_in_doubt"] > 0
    report = told("recover", path)
    assert (foretold.pop("dry_run"), report["dry_run"]) == (True, False)
    del foretold["bytes_read"]
    assert {name: report[name] for name in foretold} == foretold
    assert told("info", path)["state"] == "closed"
    assert fine("recover", path).count("in doubt: transaction") == report["transactions_in_doubt"]


def test_a_second_recovery_does_not_repeat_what_the_first_has_dropped(tmp_path: Path) -> None:
    path = tmp_path / "store"
    crash(path, "store.declare_queue('q'); store.stage(b'', b'never', wait=True)")
    first = told("recover", path, "--dry-run")
    assert (first["staged_dropped"], first["staged_bytes"]) == (1, 5)
    assert "dropped: message" in fine("recover", path)
    for more in (("--dry-run",), ()):
        again = told("recover", path, *more)
        assert (again["staged"], again["staged_dropped"], again["staged_bytes"]) == ([], 0, 0)
    assert "dropped: message" not in fine("recover", path)


def test_recover_makes_no_store_where_there_is_none_and_opens_one_that_lost_its_lock_file(
    store: Path, tmp_path: Path
) -> None:
    fails(run("recover", tmp_path / "nothing"), 3)
    assert not (tmp_path / "nothing").exists()
    (store / "LOCK").unlink()
    assert told("recover", store)["messages"] == 61


# ---- Crashes


def test_a_crashed_store_is_fine_and_verify_says_that_it_crashed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    crash(path, "store.publish(store.declare_queue('q'), b'x')")
    assert "the store was not closed, but no write was torn: the log is whole up to LSN" in fine("verify", path)
    assert "not closed" in fine("info", path)
    assert told("info", path)["state"] == "crashed"


def test_a_torn_tail_is_reported_with_its_place_and_size_and_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "store"
    crash(path, "[store.publish(store.declare_queue('q'), b'x' * 5000) for _ in range(3)]")
    with Reader(path) as reader:
        last = list(reader.batches())[-1]
    with (path / f"{last.first_lsn:016x}.seg").open("r+b") as file:
        file.seek(last.lsn - last.first_lsn + 3000)
        file.write(b"not what was written")
    expected = f"{len(last.raw)} bytes of a torn tail at LSN {last.lsn} are set aside, nothing acknowledged is in it"
    assert expected in fine("verify", path)
    said = told("verify", path)
    assert (said["ok"], said["state"], said["torn_bytes"], said["torn_lsn"]) == (
        True,
        "crashed",
        len(last.raw),
        last.lsn,
    )
    assert told("recover", path, "--dry-run")["torn_bytes"] == len(last.raw)
    assert told("recover", path)["messages"] == 2


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_store_that_was_killed_in_the_middle_of_its_work_verifies(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "store"
    with writing(path, 4000):
        time.sleep(random.Random(seed).random() / 2)
    said = told("verify", path, "--thorough")
    assert (said["ok"], said["state"]) == (True, "crashed")
    foretold = told("recover", path, "--dry-run")
    assert told("recover", path)["messages"] == foretold["messages"]
    assert told("verify", path)["state"] == "closed"


# ---- While a writer runs

WRITER = """
import sys, logstore
size = int(sys.argv[2])
with logstore.open(sys.argv[1], segment_size=512 << 10) as store:
    queue = store.declare_queue("orders")
    kept = store.publish(queue, b"kept")
    print(kept, flush=True)
    while True:
        ids = store.publish_many(queue, [bytes(size)] * 40)
        store.dequeue(kept, queue, wait=False)
        kept = store.publish(queue, b"kept", wait=False)
        store.dequeue_many(ids, queue)
        print(store.base_lsn, flush=True)
"""


@contextlib.contextmanager
def writing(path: Path, size: int) -> Iterator[Callable[[], int]]:
    """A process that publishes and consumes until it is killed; yields a function that returns its base."""
    with (path.parent / "said").open("wb") as said:
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(size)], stdout=said)

    def base_lsn() -> int:
        assert process.poll() is None
        return int((path.parent / "said").read_text().split("\n")[-2] or 0)

    try:
        until = time.monotonic() + PATIENCE_S
        while (path.parent / "said").stat().st_size == 0 and time.monotonic() < until:
            time.sleep(0.01)
        yield base_lsn
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("size", [200, 30_000])
def test_every_reader_works_while_a_writer_reuses_its_segments(tmp_path: Path, size: int) -> None:
    path = tmp_path / "store"
    with writing(path, size) as base_lsn:
        files = {each.name for each in path.iterdir() if each.suffix != ".seg"}
        before = base_lsn()
        for _ in range(3):
            assert told("info", path)["state"] == "live"
            assert told("queues", path)["queues"][0]["depth"] in range(1, 43)
            assert told("verify", path)["ok"]
            assert "a writer has the store open: the log is sound up to LSN" in fine("verify", path, "--thorough")
            starts = fine("dump", path, "--json", "--type", "MESSAGE_START").splitlines()
            found = run("chain", path, json.loads(starts[-1])["id"])
            assert found.returncode == 0 or fails(found, 1)  # the process may have ended already
        assert base_lsn() > before  # the writer was not delayed
        left = {each.name for each in path.iterdir() if each.suffix != ".seg"}
        assert left | {"holds"} == files | {"holds"}
        assert logstore.holds.list_holds(path) == []


def test_commands_that_change_a_store_are_refused_while_a_writer_has_it_open(store: Path) -> None:
    with logstore.open(store):
        for command in (("recover",), ("recover", "--dry-run"), ("serve", "--port", "0")):
            assert "is open in this process already" in fails(run(command[0], store, *command[1:]), 3)
        assert told("info", store)["state"] == "live"


# ---- Bad input


def other_files(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("x")
    (path / "0000000000080000.seg").write_bytes(bytes(4096))


NO_STORE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": lambda path: path.mkdir(),
    "a file": lambda path: path.write_bytes(b"x"),
    "other files": other_files,
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", NO_STORE)
def test_a_directory_that_is_no_store_gives_one_line_and_status_3(tmp_path: Path, command: str, name: str) -> None:
    path = tmp_path / "store"
    NO_STORE[name](path)
    assert str(path) in fails(run(*arguments_of(command, path)), 3)
    assert run(*arguments_of(command, path)).stdout == ""


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.seg"))[:3]


@pytest.fixture(scope="session")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("another") / "store"
    with logstore.open(path, segment_size=SEGMENT) as opened:
        opened.publish_many(opened.declare_queue("q"), [bytes(20_000)] * 60)
    return path


def missing_segment(path: Path) -> None:
    segments(path)[1].unlink()


# The damage; the action; the statuses of info, queues, dump, chain, verify, recover.
DAMAGE: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "a newer version in META": (lambda path, _: patch(path / "META", 8, struct.pack("<I", 2)), "333333"),
    "a newer version in a segment": (lambda path, _: patch(segments(path)[1], 8, struct.pack("<I", 9)), "333333"),
    "a META of something else": (lambda path, _: (path / "META").write_bytes(b"hello\n" * 900), "333333"),
    "a flipped bit in META": (lambda path, _: patch(path / "META", 33, b"\xff"), "333313"),
    "no segment at all": (lambda path, _: [each.unlink() for each in path.glob("*.seg")], "333313"),
    "a segment too few": (lambda path, _: missing_segment(path), "333313"),
    "a truncated segment": (lambda path, _: os.truncate(segments(path)[1], 100_000), "333313"),
    "a truncated last segment": (lambda path, _: os.truncate(segments(path)[2], 60_000), "333313"),
    "flipped bits in a header": (lambda path, _: patch(segments(path)[1], 45, b"\xff"), "333313"),
    "flipped bits in a content": (lambda path, _: patch(segments(path)[0], 300_000, b"\xff\xfe"), "333313"),
    "another store's segment": (
        lambda path, another: shutil.copy(segments(another)[1], segments(path)[1]),
        "333313",
    ),
    "no catalog": (lambda path, _: (path / "catalog.sqlite").unlink(), "330113"),
    "another store's catalog": (
        lambda path, another: shutil.copy(another / "catalog.sqlite", path / "catalog.sqlite"),
        "330113",
    ),
    "a catalog that is none": (lambda path, _: (path / "catalog.sqlite").write_bytes(b"x" * 5000), "330113"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_has_its_status_in_every_command_and_one_line_that_names_the_store(
    store: Path, another: Path, name: str
) -> None:
    damage, statuses = DAMAGE[name]
    damage(store, another)
    before = snapshot(store)
    for command, status in zip(COMMANDS, statuses, strict=True):
        result = run(*arguments_of(command, store))
        if status == "0":
            assert (result.returncode, result.stderr) == (0, "")
        else:
            line = fails(result, int(status))
            assert str(store) in line
            assert line.count("logstore:") == 1
    assert {name: one for name, one in snapshot(store).items() if one != before.get(name)} == {}


def test_verify_reports_the_extent_of_the_damage(store: Path) -> None:
    wanted = []
    for index, segment in enumerate(segments(store)[:2]):
        with Reader(store) as reader:
            lsns = [batch.lsn for batch in reader.batches() if f"{batch.first_lsn:016x}.seg" == segment.name]
        lsn = lsns[len(lsns) // 2]
        wanted.append((segment.name, lsn % SEGMENT, lsn))
        if index == 0:
            first = segment, lsn % SEGMENT + 50
    patch(segments(store)[1], wanted[1][1] + 50, b"\xff\xff")
    patch(*first, b"\xff\xff")
    result = run("verify", store, "--json")
    line = fails(result, 1)
    said = json.loads(result.stdout)
    assert [(one["kind"], one["segment"], one["offset"], one["lsn"]) for one in said["problems"]] == [
        ("damage", *where) for where in wanted
    ]
    assert (said["ok"], said["problem_count"]) == (False, 2)
    for part in (f"segment {wanted[0][0]}", f"offset {wanted[0][1]}", f"LSN {wanted[0][2]}", "(and 1 more)"):
        assert part in line
    assert run("verify", store).stdout.count("damage: segment") == 2


@pytest.mark.parametrize("size", [4096, 9000, 60_000, SEGMENT - 1])
def test_a_file_that_was_cut_is_found_by_its_size_even_where_the_log_would_end_there(store: Path, size: int) -> None:
    last = segments(store)[2]
    os.truncate(last, size)
    assert last.name in fails(run("verify", store), 1)


def test_another_stores_segment_in_the_directory_is_not_part_of_the_log(store: Path, another: Path) -> None:
    shutil.copy(segments(another)[1], store / f"{100 * SEGMENT:016x}.seg")
    assert told("verify", store)["ok"]


def test_a_catalog_older_than_the_log_is_refused_and_found_by_verify(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT):
        pass
    shutil.copy(path / "catalog.sqlite", tmp_path / "older")
    with logstore.open(path) as opened:
        opened.publish(opened.declare_queue("q"), b"x")
    shutil.copy(tmp_path / "older", path / "catalog.sqlite")
    for command in ("info", "queues", "recover"):
        assert "older than the log" in fails(run(command, path), 3)
    assert "older than the log" in fails(run("verify", path), 1)
    with logstore.open(tmp_path / "deleted") as opened:
        opened.declare_queue("q")
        opened.publish("q", b"x")
    shutil.copy(tmp_path / "deleted" / "catalog.sqlite", tmp_path / "older")
    with logstore.open(tmp_path / "deleted") as opened:
        opened.delete_queue("q")
    shutil.copy(tmp_path / "older", tmp_path / "deleted" / "catalog.sqlite")
    assert "was deleted, but the catalog has it as 'q'" in fails(run("verify", tmp_path / "deleted"), 1)


AS_NOBODY = """
import sys, os
from logstore.cli import command, main
list(command.commands.values())
import logstore.catalog.catalog, logstore.broker, sqlalchemy, rich.table, rich.console
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
main(sys.argv[1:])
"""


def test_a_directory_that_may_not_be_read_is_one_line_and_status_3(template: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)  # lets others search for the store here
        path = Path(shutil.copytree(template, Path(place) / "store"))
        os.chmod(path, 0o700 if os.getuid() == 0 else 0)
        try:
            for command in (*COMMANDS, "serve"):
                result = spawn(*arguments_of(command, path), program=(sys.executable, "-c", AS_NOBODY))
                line = fails(result, 3)
                assert "Permission denied" in line
                assert str(path) in line
        finally:
            os.chmod(path, 0o700)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["info"], "Missing argument 'DIR'"),
        (["info", "--frobnicate", "x"], "--frobnicate"),
        (["dump", "x", "--from", "abc"], "'abc' is not an LSN"),
        (["dump", "x", "--from", "-1"], "'-1' is not an LSN"),
        (["dump", "x", "--to", "0x8000000000000000"], "is not an LSN"),
        (["dump", "x", "--type", "MESSAGE"], "'MESSAGE'"),
        (["chain", "x", "0y1"], "'0y1' is not an LSN"),
        (["serve", "x", "--port", "70000"], "70000"),
        (["serve", "x", "--segment-size", "12Q"], "'12Q' is not a size"),
        (["serve", "x", "--segment-size", "2G"], "--segment-size is "),
        (["serve", "x", "--max-write-buffers", "1"], "--max-write-buffers is "),
        (["serve", "x", "--initial-segments", "0"], "--initial-segments is "),
        (["serve", "x", "--max-log-bytes", "1M"], "--max-log-bytes is "),
        (["serve", "x", "--durability", "maybe"], "'maybe'"),
        (["serve", "x", "--catalog", "name"], "give connect too"),
        (["serve", "x", "--connect", "mysql://x"], "postgresql"),
    ],
)
def test_misuse_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in fails(run(*arguments), 2)


# ---- The terminal, pipes and signals


def test_help_and_version_are_there_as_a_module_and_as_a_command() -> None:
    installed = Path(sys.executable).with_name("logstore")
    for program in (COMMAND, (str(installed),)) if installed.exists() else (COMMAND,):
        status, said, complaint = spawn("--version", program=program)
        assert (status, complaint) == (0, "")
        version = re.escape(logstore.__version__)
        assert re.fullmatch(rf"logstore {version}, log format 1, core {version} \((gcc|clang) \d+\..*\)\n", said)
        assert spawn("--help", program=program).stdout.startswith("Usage: logstore")
    for command in (*COMMANDS, "serve"):
        assert re.match(rf"Usage: logstore {command} \[OPTIONS\] DIR", fine(command, "--help"))


def test_a_reader_that_hangs_up_ends_it_quietly(store: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "dump", str(store), "--bodies"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 128 + signal.SIGPIPE


def test_ctrl_c_ends_it_quietly_with_130_even_if_the_pipe_is_not_read(store: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "dump", str(store), "--bodies"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        time.sleep(0.3)  # it waits for room in the pipe
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr.read().strip() == b""


def test_an_output_that_is_full_is_one_line(store: Path) -> None:
    with Path("/dev/full").open("w") as full:
        assert "cannot be written: No space left" in fails(spawn("dump", store, stdout=full), 1)


def test_sizes_take_suffixes_and_ids_take_hex() -> None:
    sizes = {"0": 0, "65536": 65536, "64K": 65536, "64k": 65536, "16MiB": 16 << 20, "1g": 1 << 30, "2 TiB": 2 << 40}
    sizes |= {"64kB": 64_000, "3MB": 3_000_000, "12b": 12}
    for text, size in sizes.items():
        assert SIZE.convert(text, None, None) == size
    for text in ("", "K", "1.5M", "-1", "1KK", "0x10", "１"):
        with pytest.raises(click.UsageError):
            SIZE.convert(text, None, None)
    assert (LSN.convert("0x1F", None, None), LSN.convert("31", None, None)) == (31, 31)


def test_texts_from_a_store_or_a_path_cannot_control_the_terminal(tmp_path: Path) -> None:
    assert one_line("a\n b\x1b[2J\u202e") == "a b\\x1b[2J\\u202e"
    assert "\x1b" not in fails(run("info", tmp_path / "\x1b[31m"), 3)
    assert (size_text(100), size_text(1536)) == ("100 bytes", "1536 bytes (1.5 KiB)")


def test_every_type_of_record_can_be_dumped(store: Path) -> None:
    for kind in RecordType:
        assert run("dump", store, "--type", kind.name.lower()).returncode == 0


# ---- serve


@contextlib.contextmanager
def serving(path: Path, *options: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    pytest.importorskip("pamqp")
    pytest.importorskip("uvloop")
    with subprocess.Popen(
        [*COMMAND, "serve", str(path), "--port", "0", *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            found = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", process.stdout.readline())
            assert found
            yield process, int(found[1])
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_makes_the_store_and_a_signal_ends_it_cleanly(tmp_path: Path, number: int) -> None:
    path = tmp_path / "above" / "store"
    options = ("--segment-size", "1MiB", "--max-log-bytes", "64M", "--max-write-buffers", 4, "--initial-segments", 3)
    with serving(path, *options) as (process, port):
        with socket.create_connection(("127.0.0.1", port)):
            assert told("info", path)["state"] == "live"
        started = time.monotonic()
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
        assert time.monotonic() - started < 10
        assert process.stderr is not None
        assert all(" INFO logstore" in line for line in process.stderr.read().splitlines())
    said = told("info", path)
    assert (said["state"], said["segment_size"]) == ("closed", 1 << 20)
    assert said["segments"] + said["spares"] >= 3


def test_serve_says_in_one_line_that_the_port_is_taken_or_the_store(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as (process, port):
        assert f"127.0.0.1:{port} is already in use" in fails(spawn("serve", tmp_path / "two", "--port", port), 1)
        where = f"is open in process {process.pid} (logstore serve)"
        assert where in fails(spawn("serve", tmp_path / "one", "--port", 0), 3)


def test_another_segment_size_than_the_stores_is_a_warning_of_one_line(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store", segment_size=SEGMENT):
        pass
    with serving(tmp_path / "store", "--segment-size", "2M") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        lines = [line for line in process.stderr.read().splitlines() if " INFO logstore" not in line]
        assert len(lines) == 1
        assert re.fullmatch(r"logstore: .*524288 bytes; 2097152 is ignored", lines[0])


@pytest.mark.parametrize("name", ["pamqp", "uvloop"])
def test_serve_names_missing_packages(tmp_path: Path, name: str) -> None:
    without = f"import sys; sys.modules[{name!r}] = None; from logstore.cli import main; main(sys.argv[1:])"
    result = spawn("serve", tmp_path / "store", program=(sys.executable, "-c", without))
    assert f"needs {name}, which is not installed: pip install '/path/to/checkout[broker]'" in fails(result, 1)
    assert not (tmp_path / "store").exists()


def test_an_error_of_the_input_does_not_name_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    import click

    from logstore.cli import run

    @click.command()
    def broken() -> None:
        raise OSError(5, "Failed to open local file 'a.parquet'")

    assert run([], broken) == 3
    said = capsys.readouterr().err
    assert "a.parquet" in said
    assert "output" not in said
