"""Waiting for an event, however busy the machine is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PATIENCE_S: Final = 120
"""An event that has not come by then does not come. A test that passes never waits for that long."""


def wait_until(happened: Callable[[], T], what: str = "the event") -> T:
    """Wait until ``happened`` returns a true value, and return it."""
    end = time.monotonic() + PATIENCE_S
    while not (found := happened()):
        assert time.monotonic() < end, f"{what} did not come within {PATIENCE_S} s"
        time.sleep(0.005)
    return found
