"""The duration of long tests: some seconds in the fast tier, LOGSTORE_TORTURE_S seconds if that is set."""

from __future__ import annotations

import os


def seconds_to_spend(otherwise: float) -> float:
    """LOGSTORE_TORTURE_S, or the given default."""
    return float(os.environ.get("LOGSTORE_TORTURE_S") or otherwise)


def tortured() -> bool:
    """Whether to run all cases instead of a sample."""
    return "LOGSTORE_TORTURE_S" in os.environ
