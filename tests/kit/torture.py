"""How long a test may go on: seconds where the fast tier runs, more where LOGSTORE_TORTURE_S says so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


def seconds_to_spend(otherwise: float) -> float:
    """What LOGSTORE_TORTURE_S gives each test that can use more, or what it takes without."""
    return float(os.environ.get("LOGSTORE_TORTURE_S") or otherwise)


def tortured() -> bool:
    """Whether all cases are wanted, and not a sample."""
    return "LOGSTORE_TORTURE_S" in os.environ


def part_of(cases: Sequence[T], every: int, *, first: int = 0) -> Sequence[T]:
    """All cases where LOGSTORE_TORTURE_S is set, otherwise one in ``every``: the same ones in each run."""
    return cases if tortured() else cases[first % every :: every]
