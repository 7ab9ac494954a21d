"""The duration of long tests: some seconds in the fast tier, LOGSTORE_TORTURE_S seconds if that is set."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


def seconds_to_spend(otherwise: float) -> float:
    """LOGSTORE_TORTURE_S, or the given default."""
    return float(os.environ.get("LOGSTORE_TORTURE_S") or otherwise)


def tortured() -> bool:
    """Whether to run all cases instead of a sample."""
    return "LOGSTORE_TORTURE_S" in os.environ


def stride(every: int) -> int:
    """1 where LOGSTORE_TORTURE_S is set, otherwise ``every``: between the steps of a loop over very many of them."""
    return 1 if tortured() else every


def part_of(cases: Sequence[T], every: int, *, first: int = 0) -> Sequence[T]:
    """All cases where LOGSTORE_TORTURE_S is set, otherwise one in ``every``: the same ones in each run."""
    return cases if tortured() else cases[first % every :: every]
