"""The fault driver of members: nothing is lost under faults, and its judge finds what is planted in journals."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kit.killed import quick_directory, remove
from kit.real_disk import need
from kit.real_disk_mutants import mutant_package
from kit.stores import ROOT
from kit.torture import part_of

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

sys.path.insert(0, str(ROOT / "tools"))

import chaos_network  # found by the line above
from chaos_copies import differences
from chaos_disks import Disks
from chaos_faults import COUNTED, DISK_FAULTS, OF_PROXIES, POWER_CUTS, plan_of_round
from chaos_journal import Journal, Journals, Outstanding
from chaos_judge import RULES, TERM_SHIFT, Judge
from chaos_member import HOST, content_of, number_of

from logstore.cluster.addresses import parse
from logstore.cluster.founding import make_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Line = dict[str, Any]
TERM = 3
FIRST = TERM << TERM_SHIFT  # the id of number 0 of sender 0
COUNT = 10


@pytest.fixture
def directory() -> Iterator[Path]:
    made = quick_directory("logstore-chaos-test-")
    yield made
    remove(made)


def test_an_update_that_never_ended_is_not_the_copy_that_is_compared(tmp_path: Path) -> None:
    members = [tmp_path / f"member-{number}" for number in (1, 2)]
    host_dir = members[0] / HOST
    host_dir.mkdir(parents=True)
    make_host(host_dir, uuid.uuid4().bytes, (1, "one@127.0.0.1:1"), segment_size=None)
    shutil.copytree(members[0], members[1])
    (members[1] / HOST / "copy-2").mkdir()
    assert differences(members, durable_index=1 << 60) == []


# ---- runs ----


def chaos(place: Path, *arguments: object, mutant: str = "") -> tuple[subprocess.CompletedProcess[str], dict[str, int]]:
    """A run, and the counts of its line."""
    command = [sys.executable, ROOT / "tools" / "chaos.py", "--dir", place, *arguments]
    environment = {**os.environ, "LOGSTORE_MUTANT": mutant}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=800, check=False, env=environment
    )
    counts = re.findall(r"([a-z -]+): (\d+)", done.stdout.splitlines()[-1])
    return done, {name.strip(): int(count) for name, count in counts}


def said(done: subprocess.CompletedProcess[str], place: Path) -> str:
    """What the driver and its members said."""
    return "\n".join([done.stdout, done.stderr, *(path.read_text() for path in sorted(place.glob("*.stderr")))])


@pytest.mark.timeout(900)
def test_nothing_is_lost_while_members_are_killed_stopped_and_cut_off(directory: Path) -> None:
    place = directory / "run"
    done, found = chaos(place, "--rounds", 2, "--confirms", 2000)
    assert done.returncode == 0, said(done, place)
    assert done.stdout.startswith("seed ")
    assert found["rounds"] == 2
    assert found["confirmed"] >= 4000
    assert found["left"] > 0
    assert sum(found[name] for name in COUNTED.values()) > 0
    assert [found[rule] for rule in RULES] == [0] * len(RULES)
    judge_a_confirm_that_was_not(place)


def judge_a_confirm_that_was_not(place: Path) -> None:
    """The journals of a run, with a confirm more than there was: just that is lost."""
    lines = Journals(place / "journals").new_lines()
    confirmed = [line for line in lines if line["event"] == "confirmed"]
    queue = [(key, line["sender"], line["first"] + at) for line in confirmed for at, key in enumerate(line["ids"])]
    last = confirmed[-1]
    last["ids"].append(last["ids"][-1] + 1)
    judge = Judge()
    judge.take(lines)
    judge.stock(queue, TERM, int(lines[-1]["at_ns"]) + 1)
    assert judge.counts["lost"] == 1
    assert judge.counts["confirmed"] == len(queue) + 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_when_members_in_namespaces_are_cut_off(directory: Path) -> None:
    if lacking := chaos_network.missing():
        pytest.skip(f"SKIPPED LOUDLY: no network namespaces, without {lacking}")
    place = directory / "run"
    done, found = chaos(place, "--rounds", 3, "--seed", 21, "--network", "namespaces")
    assert done.returncode == 0, said(done, place)
    assert found["cuts"] > 0
    assert found["delays"] + found["half-closes"] == 0
    assert [found[rule] for rule in RULES] == [0] * len(RULES)


def test_namespaces_cut_one_way_and_send_again_what_was_lost() -> None:
    if lacking := chaos_network.missing():
        pytest.skip(f"SKIPPED LOUDLY: no network namespaces, without {lacking}")
    network = chaos_network.Namespaces([1, 2])
    try:
        (listen, _), (other, _) = network.addresses(1), network.addresses(2)
        assert listen != other
        with network.inside(1):
            server = socket.create_server(parse(listen))
        with network.inside(2):
            there = socket.create_connection(parse(listen), timeout=60)
        here, (peer, _) = server.accept()
        assert peer == parse(other)[0]
        network.hold([(2, 1)])
        there.sendall(b"lost, and sent again")
        here.sendall(b"the other way")
        assert there.recv(100) == b"the other way"  # whose acknowledgement is lost
        here.setblocking(False)
        with pytest.raises(BlockingIOError):
            here.recv(100)
        network.heal([(2, 1)], reset=False)
        here.setblocking(True)
        here.settimeout(60)
        assert here.recv(100) == b"lost, and sent again"
        for one in (server, there, here):
            one.close()
    finally:
        network.close()
    assert not Path(chaos_network.NAMESPACES, f"logstore-{os.getpid()}-1").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_when_power_cuts_take_what_was_not_forced(directory: Path) -> None:
    need("ext4")
    place = directory / "run"
    done, found = chaos(place, "--rounds", 6, "--seed", 3, "--file-system", "ext4")
    assert done.returncode == 0, said(done, place)
    assert min(found["power cuts"], found["full disks"] + found["failed syncs"]) >= 2
    assert found["unflushed writes"] > 0
    assert [found[rule] for rule in RULES] == [0] * len(RULES)


@pytest.mark.on_disk
@pytest.mark.timeout(300)
def test_a_disk_of_a_run_is_full_fails_a_flush_and_loses_what_was_not_flushed() -> None:
    need("ext4")
    disks = Disks([1], "ext4")
    try:
        written = disks.path(1) / "written"
        written.write_bytes(bytes(100_000))
        subprocess.run(["sync", written], check=True)
        disks.fill(1)
        assert disks.is_full(1)
        with pytest.raises(OSError, match="No space left"):
            (disks.path(1) / "more").write_bytes(bytes(100_000))
        disks.make_room(1)
        (disks.path(1) / "more").write_bytes(bytes(100_000))
        disks.cut_off([1], at_flush=False)
        disks.lose_power(1, random.Random(0))
        assert (disks.path(1) / "written").read_bytes() == bytes(100_000)
        assert not (disks.path(1) / "more").exists() or (disks.path(1) / "more").stat().st_size == 0
        syncing = subprocess.Popen(
            ["sh", "-c", f"while sync {disks.path(1)}/written; do echo >> {disks.path(1)}/written; done"]
        )
        assert disks.fail_flush(1)
        assert syncing.wait(60) == 0
        assert disks.has_failed(1)
        disks.lose_power(1, random.Random(0), forgetful=True)
        assert not disks.has_failed(1)
        assert (disks.path(1) / "written").read_bytes().startswith(bytes(100_000))
    finally:
        disks.end()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", part_of(["COPY_FORCES_ONE_OF_TWO", "NO_BATCH_SYNC"], 2))
def test_power_cuts_find_a_member_that_answers_before_it_has_forced(directory: Path, mutant: str) -> None:
    """At the leader, or at a follower. Its own copy, those of others, or the judge show it."""
    need("ext4")
    package = directory / "package"
    package.mkdir()
    arguments = ("--rounds", 8, "--seed", 1, "--file-system", "ext4", "--package", mutant_package(package))
    done, found = chaos(directory / "run", *arguments, mutant=mutant)
    assert done.returncode == 1, said(done, directory / "run")
    assert "VIOLATION: " in done.stderr
    assert found["power cuts"] > 0


@pytest.mark.parametrize(
    "wrong", [("--rounds", "0"), ("--members", "2"), ("--members", "6"), ("--confirms", "0"), ("--dir", str(ROOT))]
)
def test_wrong_arguments_are_refused(wrong: tuple[str, str]) -> None:
    command = [sys.executable, str(ROOT / "tools" / "chaos.py"), *wrong]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert wrong[0] in done.stderr


def plans(*, disks: bool, namespaces: bool = False) -> list[list[str]]:
    drawn = [
        plan_of_round(random.Random(f"7 {number}"), number, disks=disks, namespaces=namespaces) for number in range(300)
    ]
    return [[fault.kind for fault in plan] for plan in drawn]


def test_a_seed_draws_the_same_plans_and_they_have_every_fault() -> None:
    assert plans(disks=True) == plans(disks=True)
    assert set(itertools.chain(*plans(disks=True))) == set(COUNTED)
    assert set(itertools.chain(*plans(disks=False))) == set(COUNTED) - {*POWER_CUTS, *DISK_FAULTS}
    assert set(itertools.chain(*plans(disks=True, namespaces=True))) == set(COUNTED) - set(OF_PROXIES)


def test_a_fifth_of_the_rounds_with_disks_begins_with_a_power_cut() -> None:
    drawn = plans(disks=True)
    assert sum(plan[0].startswith("power cut") for plan in drawn) >= len(drawn) / 5


# ---- the judge, on journals made by hand ----


class Told:
    """Journals in the making: one leader, ten numbers of one sender, and the queue when all is done."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.clock = itertools.count(1)
        self.groups = itertools.count()
        self.queue: list[tuple[int, int, int]] = []

    def say(self, event: str, *, run: str = "m1-1", **members: Any) -> Line:
        self.lines.append({"event": event, "at_ns": next(self.clock), "run": run, **members})
        return self.lines[-1]

    def publish(self, first: int = 0, *, first_id: int = FIRST, run: str = "m1-1") -> None:
        self.say("sent", sender=0, first=first, count=COUNT, run=run)
        ids = [first_id + first + at for at in range(COUNT)]
        self.say("confirmed", sender=0, first=first, ids=ids, run=run)
        self.queue += [(key, 0, first + at) for at, key in enumerate(ids)]

    def acquire(self, numbers: list[int], *, run: str = "m1-1", term: int = TERM) -> int:
        group = next(self.groups)
        self.say("acquiring", group=group, term=term, count=len(numbers), run=run)
        ids = [FIRST + number for number in numbers]
        self.say("acquired", group=group, ids=ids, numbers=[[0, number] for number in numbers], run=run)
        return group

    def settle(self, group: int, count: int, *, returns: bool = True, run: str = "m1-1") -> None:
        what = {"group": group, "start": 0, "end": count, "how": "accept", "run": run}
        self.say("settling", **what)
        if returns:
            self.say("settled", **what)

    def judged(self, term: int = TERM) -> Judge:
        judge = Judge()
        judge.take(self.lines)
        judge.stock(self.queue, term, next(self.clock))
        return judge


def good() -> Told:
    """A round with one fault: ten confirmed, of which the first three are accepted."""
    told = Told()
    told.say("round", run="driver", number=0, planned=1, confirms=COUNT)
    told.say("leads", term=TERM)
    told.say("fault", run="driver", kind="stop", members=[2])
    told.publish()
    told.settle(told.acquire([0, 1, 2]), 3)
    told.queue = told.queue[3:]
    told.say("ended", run="driver", number=0)
    return told


def test_a_good_journal_is_good() -> None:
    judge = good().judged()
    assert judge.findings == []
    assert (judge.counts["confirmed"], judge.counts["settled"], judge.counts["left"]) == (COUNT, 3, COUNT - 3)


def a_message_is_missing(told: Told) -> None:
    del told.queue[-1]


def the_accept_of_a_missing_message_had_not_begun(told: Told) -> None:
    told.acquire([3, 4])
    del told.queue[:2]


def the_queue_has_another_order(told: Told) -> None:
    told.queue[-2:] = reversed(told.queue[-2:])


def receivers_get_another_order(told: Told) -> None:
    told.acquire([4])
    told.acquire([3])


def a_message_was_passed_over(told: Told) -> None:
    told.acquire([4])


def an_accepted_message_is_on_the_queue(told: Told) -> None:
    told.queue.insert(0, (FIRST, 0, 0))


def an_accepted_message_is_delivered_by_the_same_leader(told: Told) -> None:
    told.acquire([0])


def an_accepted_message_is_delivered_by_the_next_leader(told: Told) -> None:
    told.say("leads", term=TERM + 1, run="m2-1")
    told.acquire([0], run="m2-1", term=TERM + 1)


def a_deposed_leader_accepts_it_as_well(told: Told) -> None:
    told.say("leads", term=TERM + 1, run="m2-1")
    ours = told.acquire([3])
    theirs = told.acquire([3], run="m2-1", term=TERM + 1)
    told.settle(theirs, 1, run="m2-1")
    told.settle(ours, 1)
    del told.queue[0]


def two_lead_in_one_term(told: Told) -> None:
    told.say("leads", term=TERM, run="m2-1")


def another_run_confirms_in_its_term(told: Told) -> None:
    told.publish(COUNT, run="m2-1")


def an_id_is_confirmed_twice(told: Told) -> None:
    told.say("sent", sender=0, first=COUNT, count=1)
    told.say("confirmed", sender=0, first=COUNT, ids=[FIRST + 5])


def a_place_has_the_content_of_another(told: Told) -> None:
    told.queue[0] = (told.queue[0][0], 0, 9)


def a_delivery_has_the_content_of_another(told: Told) -> None:
    told.acquire([3])
    told.lines[-1]["numbers"] = [[0, 4]]


def a_content_is_damaged(told: Told) -> None:
    told.queue.append((FIRST + 99, *number_of(content_of(0, 5, 100)[:-1])))


def a_message_comes_from_nowhere(told: Told) -> None:
    told.queue.append((FIRST + 99, 0, COUNT))


def a_message_is_there_twice(told: Told) -> None:
    told.queue.append((FIRST + 99, 0, 9))


def a_transaction_is_there_in_part(told: Told) -> None:
    told.say("sent", sender=0, first=COUNT, count=COUNT, whole=True)
    told.say("unknown", sender=0, first=COUNT, count=COUNT, error="OutcomeUnknown")
    told.queue += [(FIRST + COUNT + at, 0, COUNT + at) for at in range(COUNT - 1)]


def a_message_of_a_transaction_was_there_when_it_was_sent_again(told: Told) -> None:
    told.say("sent", sender=0, first=COUNT, count=COUNT, whole=True)
    told.settle(told.acquire([COUNT]), 1)
    told.say("sent", sender=0, first=COUNT, count=COUNT, whole=True)
    told.publish(COUNT, first_id=FIRST + 100)


def a_round_ends_without_its_fault(told: Told) -> None:
    told.lines = [line for line in told.lines if line["event"] != "fault"]


def a_round_was_planned_without_a_fault(told: Told) -> None:
    told.lines[0]["planned"] = 0
    a_round_ends_without_its_fault(told)


def a_round_ends_with_too_few(told: Told) -> None:
    told.lines[0]["confirms"] = COUNT + 1


def nothing_is_confirmed_after_the_fault(told: Told) -> None:
    fault = next(line for line in told.lines if line["event"] == "fault")
    told.lines.remove(fault)
    told.lines.insert(-1, fault)


PLANTED: list[tuple[str, Callable[[Told], None]]] = [
    ("lost", a_message_is_missing),
    ("lost", the_accept_of_a_missing_message_had_not_begun),
    ("reordered", the_queue_has_another_order),
    ("reordered", receivers_get_another_order),
    ("reordered", a_message_was_passed_over),
    ("returned after accept", an_accepted_message_is_on_the_queue),
    ("returned after accept", an_accepted_message_is_delivered_by_the_same_leader),
    ("returned after accept", an_accepted_message_is_delivered_by_the_next_leader),
    ("accepted twice", a_deposed_leader_accepts_it_as_well),
    ("two leaders", two_lead_in_one_term),
    ("two leaders", another_run_confirms_in_its_term),
    ("two leaders", an_id_is_confirmed_twice),
    ("changed", a_place_has_the_content_of_another),
    ("changed", a_delivery_has_the_content_of_another),
    ("changed", a_content_is_damaged),
    ("changed", a_message_comes_from_nowhere),
    ("duplicated", a_message_is_there_twice),
    ("in part", a_transaction_is_there_in_part),
    ("in part", a_message_of_a_transaction_was_there_when_it_was_sent_again),
    ("without its fault", a_round_ends_without_its_fault),
    ("without its fault", a_round_was_planned_without_a_fault),
    ("too few confirms", a_round_ends_with_too_few),
    ("too few confirms", nothing_is_confirmed_after_the_fault),
]


@pytest.mark.parametrize(("rule", "planting"), PLANTED, ids=[planting.__name__ for _, planting in PLANTED])
def test_the_judge_finds_what_is_planted(rule: str, planting: Callable[[Told], None]) -> None:
    told = good()
    planting(told)
    judge = told.judged(TERM + 1)
    assert judge.counts[rule] >= 1, judge.findings
    assert judge.violations == len(judge.findings)


def test_every_rule_of_the_judge_has_something_planted() -> None:
    assert {rule for rule, _ in PLANTED} == set(RULES)


# ---- what is no violation ----


def test_a_settlement_without_an_answer_may_have_either_outcome() -> None:
    for is_there in (False, True):
        told = good()
        told.settle(told.acquire([3]), 1, returns=False)
        told.queue = told.queue if is_there else told.queue[1:]
        assert told.judged().findings == []


def test_what_was_gone_at_one_look_may_not_come_back() -> None:
    told = good()
    told.settle(told.acquire([3]), 1, returns=False)
    everything = list(told.queue)
    told.queue = told.queue[1:]
    judge = told.judged()
    assert judge.findings == []
    judge.stock(everything, TERM, next(told.clock))
    assert judge.counts["returned after accept"] == 1


def test_what_was_released_may_come_again_in_any_order() -> None:
    told = good()
    group = told.acquire([3, 4])
    told.say("released", group=group, start=0, end=2)
    told.acquire([5])
    told.acquire([3])
    assert told.judged().findings == []


def test_what_is_sent_again_after_an_unknown_outcome_may_be_there_twice_and_late() -> None:
    told = good()
    told.say("sent", sender=0, first=COUNT, count=1)
    told.say("unknown", sender=0, first=COUNT, count=1, error="OutcomeUnknown")
    told.publish(COUNT + 1)
    told.say("sent", sender=0, first=COUNT, count=1)
    told.say("confirmed", sender=0, first=COUNT, ids=[FIRST + 99])
    told.queue.append((FIRST + 99, 0, COUNT))
    told.queue.insert(COUNT - 3, (FIRST + COUNT, 0, COUNT))
    assert told.judged().findings == []


def test_a_transaction_without_an_answer_is_there_as_a_whole_or_not_at_all() -> None:
    for is_there, again in itertools.product((False, True), repeat=2):
        told = good()
        told.say("sent", sender=0, first=COUNT, count=COUNT, whole=True)
        told.say("unknown", sender=0, first=COUNT, count=COUNT, error="OutcomeUnknown")
        told.queue += [(FIRST + COUNT + at, 0, COUNT + at) for at in range(COUNT) if is_there]
        judge = told.judged()
        told.lines = []
        told.say("sent", sender=0, first=COUNT, count=COUNT, whole=True)
        if again:
            told.publish(COUNT, first_id=FIRST + 100)
        judge.take(told.lines)
        judge.stock(told.queue, TERM, next(told.clock))
        assert judge.findings == []


def test_a_deposed_leader_may_deliver_what_a_newer_one_settled_but_not_accept_it() -> None:
    told = good()
    told.say("leads", term=TERM + 1, run="m2-1")
    told.settle(told.acquire([3], run="m2-1", term=TERM + 1), 1, run="m2-1")
    told.acquire([3])
    del told.queue[0]
    judge = told.judged(TERM + 1)
    assert judge.findings == []
    assert judge.counts["deposed"] == 1


def test_a_killed_process_may_hide_as_many_as_it_asked_for() -> None:
    """It had acquired the passed-over message, and died before it wrote so."""
    told = good()
    told.say("acquiring", group=99, term=TERM, count=1)
    told.acquire([4])
    assert told.judged().findings == []
    told.queue = [place for place in told.queue if place[2] != 4]
    assert told.judged().counts["lost"] == 1


# ---- journals ----


def test_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    journal, journals = Journal(tmp_path / "m1-1.jsonl"), Journals(tmp_path)
    journal.write("leads", term=3)
    with (tmp_path / "m1-1.jsonl").open("ab") as file:
        file.write(b'{"event":"sent",')
        file.flush()
        assert [line["event"] for line in journals.new_lines()] == ["leads"]
        assert journals.new_lines() == []
        file.write(b'"at_ns":5,"sender":0,"first":0,"count":1}\n')
    (line,) = journals.new_lines()
    assert (line["event"], line["run"]) == ("sent", "m1-1")


def test_the_next_leader_sends_what_was_not_confirmed_again(tmp_path: Path) -> None:
    outstanding = Outstanding(tmp_path)
    first, second = Journal(tmp_path / "m1-1.jsonl"), Journal(tmp_path / "m2-1.jsonl")
    for at in (0, 50, 100):
        first.write("sent", sender=1, first=at, count=50)
    first.write("confirmed", sender=1, first=50, ids=[1])
    outstanding.refresh()
    assert outstanding.of(1) == ([0, 100], 150)
    second.write("sent", sender=1, first=0, count=50)
    second.write("confirmed", sender=1, first=0, ids=[2])
    outstanding.refresh()
    assert outstanding.of(1) == ([100], 150)
    assert outstanding.of(2) == ([], 0)


def test_every_byte_of_a_content_is_known() -> None:
    content = content_of(3, 12345, 1000)
    assert len(content) == 1000
    assert number_of(content) == [3, 12345]
    damaged = (content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(len(content)))
    assert all(number_of(one) != [3, 12345] for one in damaged)
    assert all(number_of(content[:size]) == [-1, -1] for size in range(len(content)))
