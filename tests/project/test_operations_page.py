"""The commands of docs/operations.md do what the page says, beside a running broker and with no writer."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import logstore
from kit.command import COMMAND, Result, run, spawn, told
from kit.pages import OPERATIONS, blocks
from kit.serve_process import ServeProcess, serving
from kit.stores import ROOT, SMALL_SEGMENT
from logstore.cli import command as program
from logstore.report.answers import KINDS
from logstore.terminal.replication import REPLICATION

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (ROOT / OPERATIONS).read_text("utf-8")
CONSOLE = {
    block.text.split("\n")[0].removeprefix("$ "): block for block in blocks(OPERATIONS) if block.kind == "console"
}
INTERRUPTED = 130  # by Ctrl-C, as shells count
XID = logstore.Xid(1, b"order-17", b"db1")


class Expected(NamedTuple):
    """The exit status of a command of the page."""

    command: str
    beside: int  # a running broker
    alone: int


# In an order in which each finds what it needs.
COMMANDS = [
    Expected("logstore --version", 0, 0),
    Expected("logstore help exit-status", 0, 0),
    Expected("logstore completion fish > ~/.config/fish/completions/logstore.fish", 0, 0),
    Expected("logstore info DIR", 0, 0),
    Expected("logstore queues DIR", 0, 0),
    Expected("logstore tail DIR", 0, 0),
    Expected("logstore holds DIR", 0, 0),
    Expected("logstore dump DIR --follow --queue orders", INTERRUPTED, INTERRUPTED),
    Expected("logstore chain DIR ID", 0, 0),
    Expected("logstore verify DIR", 0, 0),
    Expected("logstore in-doubt DIR", 0, 0),
    Expected("logstore stats DIR", 0, 0),
    Expected("logstore stats DIR --watch", 0, 0),
    Expected("logstore connections DIR", 0, 1),
    Expected("logstore peek DIR QUEUE", 0, 0),
    Expected("logstore peek DIR QUEUE -n 5", 0, 0),
    Expected("logstore recover DIR --dry-run", 3, 0),
    Expected("logstore recover DIR --dry-run --json", 3, 0),
    Expected("logstore backup DIR TARGET", 0, 0),
    Expected("logstore serve TARGET", 0, 0),
    Expected("logstore salvage COPY NEW", 0, 0),
    Expected("logstore export DIR TARGET", 0, 0),
    Expected("logstore export DIR TARGET --every 3600", INTERRUPTED, INTERRUPTED),
    Expected("logstore export /var/lib/logstore /srv/export", 0, 0),
    Expected("logstore export --verify TARGET", 0, 0),
    Expected("logstore report DIR", 0, 0),
    Expected("logstore report TARGET", 0, 0),
    Expected("logstore report TARGET -o /var/www/log.html", 0, 0),
    Expected("logstore sql DIR QUERY", 0, 0),
    Expected("logstore salvage DIR --dry-run", 3, 0),
    Expected("logstore salvage DIR NEW", 3, 0),
    Expected("logstore salvage DIR NEW --report lost.json", 3, 0),
    Expected("logstore verify NEW", 3, 0),
    Expected("logstore repair-catalog DIR --dry-run", 3, 0),
    Expected("logstore repair-catalog DIR", 3, 0),
    Expected("logstore compact DIR --dry-run", 0, 0),
    Expected("logstore compact DIR", 0, 0),
    Expected("logstore checkpoint DIR", 0, 0),
    Expected("logstore purge DIR QUEUE --dry-run", 0, 0),
    Expected("logstore purge DIR QUEUE", 0, 0),
    Expected("logstore in-doubt DIR commit XID", 0, 0),
    Expected("logstore in-doubt DIR rollback XID", 1, 1),  # a second outcome
    Expected("logstore serve DIR --port N", 3, 0),
    Expected("logstore serve DIR --max-log-bytes SIZE", 3, 0),
    Expected("logstore serve DIR --scrub 10M", 3, 0),
    Expected("logstore vhost DIR set / --max-log-bytes SIZE", 0, 0),
    Expected("logstore vhost DIR reopen NAME", 1, 1),  # there is no such host
    Expected("logstore bench SOMEWHERE/ELSE", 0, 0),
]
BARE = re.compile(r"logstore [a-z-]+")  # names of commands


def commands_of_the_page() -> set[str]:
    """Every command with arguments; of a synopsis the part before its options."""
    quoted = re.findall(r"`(logstore [^`]+)`", PAGE) + re.findall(r" \* (logstore [^`]+)`", PAGE)
    shown = [first for first in CONSOLE if first.startswith("logstore ")]
    found = {re.sub(r" \[.*", "", command) for command in quoted + shown}
    return {command for command in found if not BARE.fullmatch(command) or command == "logstore --version"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fill() -> int:
    """Make or extend the store DIR: messages, and a prepared transaction. Returns the id of a message on orders."""
    # An earlier turn recycled what the old target of the export lacks, and that is refused.
    for name in ("BACKUP", "NEW", "COPY", "EXPORT"):
        shutil.rmtree(name, ignore_errors=True)
    with logstore.open("DIR", segment_size=SMALL_SEGMENT) as store:
        orders = store.declare_queue("orders")
        audit = store.declare_queue("audit")
        ids = store.publish_many(orders, [b"an order"] * 40)
        branch = store.begin(XID)
        store.publish(audit, b"an entry", transaction=branch)
        store.dequeue(ids[0], orders, transaction=branch)
        branch.end()
        branch.prepare()
    return int(ids[1])


def words(command: str, message_id: int) -> list[str]:
    """The command with real names for its placeholders."""
    target = "BACKUP" if command.startswith(("logstore backup", "logstore serve")) else "EXPORT"
    real = {
        "TARGET": target, "QUEUE": "orders", "QUERY": "FROM open", "ID": str(message_id), "XID": str(XID), "N": "0",
        "SIZE": "1G",
        "SOMEWHERE/ELSE": "ELSE", "/var/www/log.html": "log.html", "/var/lib/logstore": "DIR", "/srv/export": "EXPORT",
    }  # fmt: skip
    made = [real.get(word, word) for word in command.partition(" > ")[0].split()[1:]]
    if made[0] == "bench":
        made += ["--messages", "200"]
    if made[0] == "serve" and "--port" not in made:
        made += ["--port", "0"]
    return made


def until_output(arguments: list[str]) -> int:
    """The exit status of a command that runs until it is stopped."""
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    return process.returncode


def status(command: str, message_id: int, expected: int) -> tuple[int, str]:
    """Run the command; its status, and what it said of an error."""
    arguments = words(command, message_id)
    if arguments[0] == "salvage" and "COPY" in arguments:
        shutil.copytree("BACKUP", "COPY")
    if "NEW" in arguments and arguments[0] == "salvage":
        shutil.rmtree("NEW", ignore_errors=True)
    if "--follow" in arguments or "--watch" in arguments or "--every" in arguments:
        return until_output(arguments), ""
    if arguments[0] == "serve":
        if expected:
            refused = spawn(*arguments)
            return refused.returncode, refused.stderr
        return ServeProcess(Path(arguments[1]), options=arguments[2:]).stop(), ""
    result: Result = run(*arguments)
    return result.returncode, result.stderr


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("writer", ["a broker", "nobody"])
def test_every_command_of_the_page_ends_with_the_status_that_the_page_promises(
    place: Path, writer: str, times: int
) -> None:
    assert {each.command for each in COMMANDS} == commands_of_the_page()
    for _ in range(times):
        message_id = fill()
        broker = ServeProcess(place / "DIR") if writer == "a broker" else None
        try:
            for command, beside, alone in COMMANDS:
                expected = alone if broker is None else beside
                found, said = status(command, message_id, expected)
                assert found == expected, (command, found, said)
                if expected == 3 and "NEW" not in command:
                    assert broker is not None
                    assert f"is open in process {broker.pid} (logstore serve)" in said, (command, said)
        finally:
            if broker is not None:
                broker.kill()


def test_every_option_of_the_page_is_one_of_its_commands() -> None:
    helps = [run(*name, "--help").stdout for name in ([], *([one] for one in program.commands))]
    helps += [run("in-doubt", "DIR", "--help").stdout]
    known = {option for text in helps for option in re.findall(r"--[a-z][a-z-]+", text)}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= known


def test_every_command_but_three_takes_json_and_of_cluster_status_does() -> None:
    before = {"cluster": ("status",), **dict.fromkeys(("in-doubt", "user", "vhost"), ("DIR", "list"))}
    for name in program.commands:
        text = run(name, *before.get(name, ()), "--help").stdout
        assert ("--json" in text) == (name not in ("serve", "help", "completion")), name


def test_every_name_with_an_underscore_is_a_counter_a_field_or_an_option(place: Path) -> None:
    fill()
    with logstore.open("DIR", scrub_rate=1 << 20) as store:
        known = {*store.stats(), "catalog_timeout", "prepared_timeout", *inspect.signature(logstore.open).parameters}
    for command in ("recover", "salvage"):
        known |= set(told(command, "DIR", "--dry-run"))
    # Rows of lists in the reports, and names of files of an export.
    known |= {"unsent_bytes", "waits_for", "blocked_s", "connected_s", "silent_s"}
    known |= {"queues_probable", "missing_before", "read_time", "open_refused", "_staging", "_manifest"}
    known |= {"_delta_log", "read_table", "read_exports"}  # of a directory of Delta Lake, and functions
    known |= {column["name"] for column in told("sql", "DIR", "FROM transactions")["columns"]}
    known |= {*told("report", "DIR"), *KINDS}
    known |= set(REPLICATION)  # of a copy of a replicated store
    assert set(re.findall(r"`(_?[a-z]+(?:_[a-z]+)+)`", PAGE)) <= known


# ---- What the console blocks show


def shape(line: str) -> list[str]:
    """The words of a line, without numbers, units, and the plural of the noun behind a number."""
    numberless = re.sub(r"\d[\d.,]* ([a-z]+)", lambda found: found[1].removesuffix("s"), line)
    return re.sub(r"\b[KMG]iB\b", "", re.sub(r"\d[\d.,]*", "", numberless)).split()


@pytest.fixture
def beside(place: Path) -> Iterator[ServeProcess]:
    fill()
    with serving(place / "DIR") as broker:
        yield broker


def test_the_blocks_show_the_lines_that_the_commands_print(beside: ServeProcess) -> None:
    for first, block in CONSOLE.items():
        arguments = words(re.sub(r" \[.*", "", first), 0)
        if arguments[0] not in ("backup", "tail", "in-doubt", "export"):
            continue
        shown = [line for line in block.text.splitlines()[1:] if line.strip() and not line.startswith("      ")]
        printed = run(*arguments).stdout.splitlines()
        wanted = {"backup": 1, "export": 1, "tail": 2, "in-doubt": 1}[arguments[0]]
        for line, real in zip(shown[:wanted], printed, strict=False):
            assert shape(line.replace("TARGET", arguments[-1])) == shape(real), first
        if arguments[0] == "tail":
            heads = [line.split() for line in shown if line.startswith("holder")]
            assert heads[0] in [line.split() for line in printed]


def test_the_control_socket_answers_the_line_of_the_page(beside: ServeProcess) -> None:
    (block,) = [block for first, block in CONSOLE.items() if first.startswith("printf")]
    asked, answer = block.text.splitlines()
    (line,) = re.findall(r"printf '(.*?)\\n'", asked)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("DIR/control.sock")
        client.sendall(line.encode() + b"\n")
        found = json.loads(client.makefile().readline())
    shown = json.loads(answer)
    assert found["result"].pop("pid") == beside.pid
    shown["result"].pop("pid")
    assert found == shown


def test_the_lock_and_the_port_lead_to_the_broker(beside: ServeProcess) -> None:
    for tool, command, found in (
        ("fuser", ["fuser", "DIR/LOCK"], str(beside.pid)),
        ("ss", ["ss", "-ltnp"], f":{beside.port} "),
    ):
        if shutil.which(tool) is None:
            continue  # the page names it for operators; the package does not need it
        assert found in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_unit_of_systemd_starts_an_export_that_sigterm_ends(beside: ServeProcess) -> None:
    (unit,) = [block.text for block in blocks(OPERATIONS) if block.text.startswith("[Unit]")]
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    program, *arguments = shlex.split(line)
    assert Path(program).name == "logstore"
    real = {"/var/lib/logstore": "DIR", "/srv/export": "EXPORT"}
    process = subprocess.Popen([*COMMAND, *(real.get(word, word) for word in arguments)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM  # which systemd takes for a clean end
    for again in (("--verify", "EXPORT"), ("DIR", "EXPORT", "--body", "1M")):
        assert run("export", *again).returncode == 0


# ---- What commands say

# Texts whose parts are put together when they are said, and a part that the code has.
PUT_TOGETHER = {
    "a broker that does not answer": " that does not answer",
    "is open in process 4711 (logstore serve)": "is open in {where}",
    "is open in another process or handle": "another process or handle",
    "a row of bindings refers to nothing": "refers to nothing",
    "it is a FIFO, not a regular file": "not a regular file",
    "is over its limit": "over its limit",
    "since the hold … is expired": "since the hold",
    "the disk of the target is full": "the disk of the target",
    "queue id 1 is in use, the next one is 1": "is in use, the next one is",
    "thread NAME has ended before its time": "has ended before its time",
    "no transaction XID is in doubt": "is in doubt: it has its outcome",
    "it is unknown whether … was done": "it is unknown whether",
    "`_manifest.json` is missing": "is missing",
}
NOT_SAID = {"committed"}  # a word of the coordinator's log


def code() -> str:
    """All sources, with adjacent pieces of text joined."""
    paths = [*(ROOT / "logstore").rglob("*.py"), *(ROOT / "csrc").rglob("*.c")]
    return re.sub(r'"\s*\n\s*[fr]?"', "", "\n".join(path.read_text("utf-8") for path in paths))


def test_every_text_in_quotes_is_one_that_the_code_says() -> None:
    everything = code()
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    for quote in set(re.findall(r'"([^"\n{]{4,})"', re.sub(r"\n +", " ", prose))) - NOT_SAID:
        assert PUT_TOGETHER.get(quote, quote) in everything, quote
    assert set(PUT_TOGETHER) <= set(re.findall(r'"([^"\n{]{4,})"', re.sub(r"\n +", " ", prose)))


def test_the_error_of_damage_names_the_commands_that_help(place: Path) -> None:
    fill()
    segment = min(Path("DIR").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    at = data.index(b"an order")
    data[at : at + 4] = b"rot!"
    segment.write_bytes(data)
    Path("DIR/CHECKPOINT").unlink(missing_ok=True)
    refused = spawn("serve", "DIR", "--port", "0")
    assert refused.returncode == 3
    assert "'logstore verify DIR'" in refused.stderr
    assert "'logstore salvage DIR NEW'" in refused.stderr
    assert run("verify", "DIR").returncode == 1
    assert run("salvage", "DIR", "NEW").returncode == 1
    assert run("verify", "NEW").returncode == 0
    assert os.path.isdir("NEW")
