"""How long a test may go on: seconds where the fast tier runs, more where LOGSTORE_TORTURE_S says so."""

from __future__ import annotations

import os


def seconds_to_spend(otherwise: float) -> float:
    """What LOGSTORE_TORTURE_S gives each test that can use more, or what it takes without."""
    return float(os.environ.get("LOGSTORE_TORTURE_S") or otherwise)


def tortured() -> bool:
    """Whether all cases are wanted, and not a sample."""
    return "LOGSTORE_TORTURE_S" in os.environ
