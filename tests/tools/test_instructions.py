"""The guard of tools/instructions.py: the core's paths cost no more instructions than the baseline allows."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

import pytest

from kit.stores import ROOT

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="module")
def guard() -> ModuleType:
    spec = importlib.util.spec_from_file_location("instructions", ROOT / "tools" / "instructions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses need it
    spec.loader.exec_module(module)
    return module


def compared(guard: ModuleType, planted: int) -> tuple[list[str], dict[str, float]]:
    """The guard's findings and the baseline; skipped with a message, or failed with CI set, if it cannot compare."""
    try:
        counts = guard.measure(guard.build(planted), changes_only=planted > 0)
        before = guard.section_of(guard.read_baseline(), counts.built_with)
    except guard.CannotCompareError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"instructions are NOT guarded: {error}")
    before = {name: count for name, count in before.items() if planted == 0 or name in counts.paths}
    return guard.judge(before, counts.paths)[0], before


def test_no_path_of_the_core_costs_two_percent_more_instructions_than_the_baseline(guard: ModuleType) -> None:
    wrong, _ = compared(guard, 0)
    assert wrong == []


def test_a_tenth_more_work_for_each_published_message_is_seen_to_fail(guard: ModuleType) -> None:
    before = guard.read_baseline()
    tenth = min((int(section["paths"]["publish_100"] / 10) for section in before.values()), default=100)
    wrong, _ = compared(guard, tenth)
    assert any(line.startswith("publish_100 costs") for line in wrong), wrong
    assert any(line.startswith("publish_many_100 costs") for line in wrong), wrong
    assert not any(line.startswith(("dequeue", "read_places", "load_content")) for line in wrong), wrong


def test_growth_beyond_the_allowance_is_wrong_and_within_it_is_not(guard: ModuleType) -> None:
    before = {"a": 100.0, "b": 100.0, "c": 100.0}
    wrong, gained = guard.judge(before, {"a": 102.0, "b": 102.1, "c": 90.0})
    assert [line.split()[0] for line in wrong] == ["b"]
    assert [line.split()[0] for line in gained] == ["c"]


def test_a_path_that_only_one_of_run_and_baseline_knows_is_wrong(guard: ModuleType) -> None:
    wrong, _ = guard.judge({"gone": 1.0}, {"new": 1.0})
    assert len(wrong) == 2


def test_another_compiler_is_not_compared_and_the_message_explains_how_to_make_a_baseline(guard: ModuleType) -> None:
    with pytest.raises(guard.CannotCompareError, match=r"nothing for cc 1.*make instructions-baseline"):
        guard.section_of({"gcc 12": {"paths": {}}}, "cc 1")


def test_callgrinds_file_is_read_by_name_and_by_number(guard: ModuleType) -> None:
    lines = ["fn=(1) main", "cfn=(2) measured_a", "calls=1 5", "7 100", "+1 3", "cfn=(2)", "calls=2 5", "9 20"]
    assert guard.inclusive(lines) == {"measured_a": 120}
