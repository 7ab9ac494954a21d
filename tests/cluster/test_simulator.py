"""The simulator of consensus: its last line, its determinism, and that its judge finds planted faults."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from kit.stores import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LINE = re.compile(
    r"simulated: seeds: (?P<seeds>\d+), crashes: (?P<crashes>\d+), elections: (?P<elections>\d+), cuts: (?P<cuts>\d+), "
    r"updates: (?P<updates>\d+), frames: (?P<frames>\d+), assertions: (?P<assertions>\d+), "
    r"durable: (?P<durable>\d+), violations: (?P<violations>\d+)"
)

#: Planted faults, and the rules by which the judge finds them.
FOUND = {
    "SEND_EARLY": "R2:",
    "ACK_EARLY": "R2:|R10:",
    "FORGET_VOTE": "ELECTION SAFETY:",
    "TERM_LOST": "TERM LED TWICE:|ELECTION SAFETY:",
    "CUT_BEFORE_HDR": "R2:|FALSE ALARM:",
    "APPLY_UNDUR": "LEADER COMPLETENESS:|STATE MACHINE SAFETY:",
    "APPLY_RESTART": "LEADER COMPLETENESS:|STATE MACHINE SAFETY:|DURABLE CUT:",
    "OFFER": "OFFERED:",
    "TWO": "FALSE ALARM:",
    "LSN_TWICE": "LSN TWICE:",
    "STALE_CONF": "CONFIGURATION:|LIVENESS:",
    "OLDCOPY": "R2:",
    "LYING": "R2:",
    "KEEP_TABLE": "STATE:|STATE MACHINE SAFETY:|LEADER COMPLETENESS:",
    "PIECEMEAL": "FALSE ALARM:|R10:",
    "CUT_ZERO": "FALSE ALARM:|R2:|R10:",
    "RECYC_UNDUR": "FALSE ALARM:",
    "SELF_REMOVE": "LIVENESS:",
    "TELL_FORCED": "LEADER COMPLETENESS:|STATE MACHINE SAFETY:",
    "WIPE_VOTE": "R10:",
    "CATALOG_LOST": "CATALOG:",
    "NO_REWRITE": "FALSE ALARM:|R2:|R10:",
    "DELETE_FIRST": "FALSE ALARM:|R2:|R10:|DETACHED:",
    "DETACH_LOG_FIRST": "DETACHED:",
    "MARK_LATE": "FALSE ALARM:",
    "MARK_ISLANDS": "FALSE ALARM:",
}

TIMES = re.compile(
    r"elections: (?P<load>\w+) +(?P<fault>\w+) +count (?P<count>\d+), p50 (?P<p50>[\d.]+) s, p99 (?P<p99>[\d.]+) s, "
    r"none within 4\.5 s: (?P<none>\d+)"
)


@pytest.fixture(scope="module")
def program() -> Path:
    """The program, which `make` builds; it needs libraft."""
    if not (ROOT / "build/libraft/origin").is_file():
        pytest.skip("there is no libraft")
    made = subprocess.run(
        ["make", "-s", "VARIANT=proof", "build/c/proof/consensus"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return ROOT / "build/c/proof/consensus"


def simulate(program: Path, *arguments: object) -> tuple[int, str]:
    ended = subprocess.run([str(program), *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout


def counts(text: str) -> dict[str, int]:
    found = LINE.fullmatch(text.splitlines()[-1])
    assert found is not None, text
    return {name: int(value) for name, value in found.groupdict().items()}


def test_a_few_seeds_hold_every_rule(program: Path) -> None:
    status, text = simulate(program, "--seeds", 0, 16)
    said = counts(text)
    assert (status, said["seeds"], said["assertions"], said["violations"]) == (0, 16, 0, 0), text
    assert min(said[name] for name in ("crashes", "elections", "cuts", "updates", "durable")) > 0


@pytest.mark.parametrize("scenario", ["churn", "members", "two", "slow-vote", "aimed", "identity", "slow-voter"])
def test_each_scenario_holds_every_rule(program: Path, scenario: str) -> None:
    status, text = simulate(program, "--seeds", 1000, 6, "--scenario", scenario)
    assert (status, counts(text)["violations"]) == (0, 0), text


def test_another_member_serves_in_time_after_each_way_to_lose_a_leader(program: Path) -> None:
    status, text = simulate(program, "--seeds", 0, 8, "--elections")
    found = {(each["load"], each["fault"]): each for each in TIMES.finditer(text)}
    assert (status, len(found)) == (0, 8), text
    assert all(int(each["count"]) >= 30 and int(each["none"]) == 0 for each in found.values()), text
    assert float(found["calm", "transfer"]["p99"]) < 0.2, text
    assert float(found["saturated", "kill"]["p99"]) < 1.5, text


def test_without_the_mark_a_full_load_makes_elections_longer(program: Path) -> None:
    texts = [simulate(program, "--seeds", 0, 8, "--elections", *more)[1] for more in ((), ("--without", "MARK"))]
    took = [
        next(
            float(each["p50"])
            for each in TIMES.finditer(text)
            if (each["load"], each["fault"]) == ("saturated", "kill")
        )
        for text in texts
    ]
    assert took[0] + 0.15 < took[1], texts


def test_a_seed_gives_the_same_run_each_time(program: Path) -> None:
    first, second = (simulate(program, "--seed", 11) for _ in range(2))
    assert first == second
    assert "leads term" in first[1]


def test_seeds_give_the_same_counts_in_any_number_of_processes(program: Path) -> None:
    assert simulate(program, "--seeds", 3, 6, "--jobs", 1) == simulate(program, "--seeds", 3, 6, "--jobs", 3)


@pytest.mark.parametrize("mutant", FOUND)
def test_the_judge_finds_a_planted_fault_in_200_seeds(program: Path, mutant: str) -> None:
    status, text = simulate(program, "--seeds", 0, 200, "--first-violation", "--mutant", mutant)
    assert status == 1
    assert counts(text)["violations"] > 0
    assert re.search(FOUND[mutant], text), text


@pytest.mark.parametrize(
    ("mutant", "scenario", "rule"),
    [
        ("KEEP_ABOVE", "churn", "R2:|R10:|FALSE ALARM:"),
        ("NO_HELLO", "identity", "which had counted more"),
        ("NO_PACING", "slow-voter", "PACING:"),
        ("NO_ROUNDS", "slow-voter", "is updated again and again"),
    ],
)
def test_the_judge_finds_a_planted_fault_in_the_scenario_that_meets_it(
    program: Path, mutant: str, scenario: str, rule: str
) -> None:
    arguments = ("--seeds", 0, 600, "--first-violation", "--scenario", scenario)
    status, text = simulate(program, *arguments, "--mutant", mutant)
    assert status == 1
    assert re.search(rule, text), text


@pytest.mark.parametrize(
    "arguments",
    [
        ["--mutant", "NOTHING"],
        ["--without", "NOTHING"],
        ["--scenario", "calm"],
        ["--seeds", "1"],
        ["--seeds", "0", "0"],
        ["left"],
    ],
)
def test_a_misuse_ends_with_status_2(program: Path, arguments: list[str]) -> None:
    assert simulate(program, *arguments)[0] == 2
