"""The simulator of consensus: its last line, its determinism, and that its judge finds planted faults."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from kit.stores import ROOT
from kit.torture import part_of
from tools.mutant_table import make_copy

if TYPE_CHECKING:
    from pathlib import Path

LINE = re.compile(
    r"simulated: (?:real: )?seeds: (?P<seeds>\d+), "
    r"crashes: (?P<crashes>\d+), elections: (?P<elections>\d+), cuts: (?P<cuts>\d+), "
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


#: Faults planted in the core and the engine, the scenario that meets each, and what the judge over the real log says.
FOUND_REAL = {
    "COPY_APPLIES_WHAT_IS_FORCED": ("default", "CUT:|UPDATE:|LEADER COMPLETENESS:|STATE MACHINE SAFETY:"),
    "FLOOR_KEPT_AT_A_CUT": ("aimed", "RECOVERY:"),
    "GROUP_WITHOUT_A_MARK": ("aimed", "RECOVERY:"),
    "LEADER_RECYCLES_AT_ONCE": ("default", "RECOVERY:|UPDATE:"),
    "BUFFER_FREE_WHEN_ONE_IS_FORCED": ("default", "CLIENT:|LEADER COMPLETENESS:|STATE MACHINE SAFETY:|CUT:"),
    "UPDATE_SWITCHED_BEFORE_IT_IS_FORCED": ("default", "RECOVERY:"),
    "VOTE_KEPT_IN_MEMORY": ("default", "R2:"),
    "ENGINE_FRAMES_BEFORE_VOTE": ("default", "R2:"),
    "ENGINE_SENDS_WHAT_IS_NOT_WRITTEN": ("default", "does not keep"),
}


def built(directory: Path, variant: str, name: str) -> Path:
    """The program, which `make` builds; it needs libraft."""
    libraft = ROOT / "build/libraft"
    if not (libraft / "origin").is_file():
        pytest.skip("there is no libraft")
    program = f"build/c/{variant}/{name}"
    command = ["make", "-s", f"VARIANT={variant}", f"LIBRAFT={os.path.relpath(libraft, directory)}", program]
    with (ROOT / "build/simulators.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the workers of one test run start at the same time
        if directory != ROOT:
            make_copy(directory, ("Makefile", "csrc"))
        made = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return directory / program


@pytest.fixture(scope="module")
def program() -> Path:
    return built(ROOT, "proof", "consensus")


@pytest.fixture(scope="module")
def real() -> Path:
    """The program over the real log."""
    return built(ROOT, "proof", "consensus_real")


@pytest.fixture(scope="module")
def faulty() -> Path:
    """The same, of a copy of the sources with all planted faults, of which LOGSTORE_MUTANT chooses one."""
    return built(ROOT / "build/mutants", "mutants", "consensus_real")


@pytest.fixture(scope="module")
def elections(program: Path) -> tuple[int, str]:
    """Each way to lose a leader."""
    return simulate(program, "--seeds", 0, 8, "--elections")


def simulate(program: Path, *arguments: object, mutant: str = "") -> tuple[int, str]:
    environment = os.environ | {"LOGSTORE_MUTANT": mutant}
    ended = subprocess.run(
        [str(program), *map(str, arguments)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
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


def test_another_member_serves_in_time_after_each_way_to_lose_a_leader(elections: tuple[int, str]) -> None:
    status, text = elections
    found = {(each["load"], each["fault"]): each for each in TIMES.finditer(text)}
    assert (status, len(found)) == (0, 8), text
    assert all(int(each["count"]) >= 30 and int(each["none"]) == 0 for each in found.values()), text
    assert float(found["calm", "transfer"]["p99"]) < 0.2, text
    assert float(found["saturated", "kill"]["p99"]) < 1.5, text


def test_without_the_mark_a_full_load_makes_elections_longer(program: Path, elections: tuple[int, str]) -> None:
    texts = [elections[1], simulate(program, "--seeds", 0, 8, "--elections", "--without", "MARK")[1]]
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


@pytest.mark.parametrize("mutant", part_of(list(FOUND), 3))
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


# ---- over the real log -----------------------------------------------------------------------------------------------


def test_a_few_seeds_over_the_real_log_hold_every_rule(real: Path) -> None:
    status, text = simulate(real, "--seeds", 0, 24)
    said = counts(text)
    assert text.splitlines()[-1].startswith("simulated: real: ")
    assert (status, said["seeds"], said["assertions"], said["violations"]) == (0, 24, 0, 0), text
    assert min(said[name] for name in ("crashes", "elections", "cuts", "updates", "durable")) > 0


@pytest.mark.parametrize("scenario", ["churn", "members", "two", "slow-vote", "aimed"])
def test_each_scenario_over_the_real_log_holds_every_rule(real: Path, scenario: str) -> None:
    status, text = simulate(real, "--seeds", 1000, 12, "--scenario", scenario)
    assert (status, counts(text)["violations"]) == (0, 0), text


def test_a_seed_over_the_real_log_gives_the_same_run_each_time(real: Path) -> None:
    first, second = (simulate(real, "--seed", 11) for _ in range(2))
    assert first == second
    assert "leads term" in first[1]
    assert simulate(real, "--seeds", 3, 6, "--jobs", 1) == simulate(real, "--seeds", 3, 6, "--jobs", 3)


@pytest.mark.parametrize("mutant", part_of(list(FOUND_REAL), 3))
def test_the_judge_over_the_real_log_finds_a_fault_planted_in_the_core_or_the_engine(faulty: Path, mutant: str) -> None:
    scenario, rule = FOUND_REAL[mutant]
    arguments = ("--seeds", 0, 300, "--jobs", 1, "--first-violation", "--scenario", scenario)
    status, text = simulate(faulty, *arguments, mutant=mutant)
    assert status == 1, text
    assert re.search(rule, text), text


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_without_a_guard_tells_how_often_the_guard_was_missing_in_all_processes(faulty: Path, jobs: int) -> None:
    command = [str(faulty), "--seeds", "0", "2", "--jobs", str(jobs), "--without", "ENGINE_SENDS_WHAT_IS_NOT_WRITTEN"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = re.findall(r"^mutant ENGINE_SENDS_WHAT_IS_NOT_WRITTEN struck (\d+) times$", ended.stderr, re.MULTILINE)
    assert len(told) == 1, ended.stderr
    assert int(told[0]) > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--mutant", "ACK_EARLY"],
        ["--scenario", "identity"],
        ["--scenario", "slow-voter"],
        ["--elections"],
        ["--without", "MARK"],
    ],
)
def test_what_only_the_model_has_is_misuse_over_the_real_log(real: Path, arguments: list[str]) -> None:
    assert simulate(real, "--seeds", 0, 1, *arguments)[0] == 2
