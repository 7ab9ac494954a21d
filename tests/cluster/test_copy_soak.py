"""Reign after reign of three copies: nothing durable is lost, and each copy has the same."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kit.copy_soak import Soak
from kit.torture import seconds_to_spend

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = seconds_to_spend(0)
REIGNS = 12


@pytest.mark.timeout(600 + 2 * SECONDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_three_copies_agree_after_many_reigns(tmp_path: Path, seed: int) -> None:
    soak = Soak(tmp_path, seed if SECONDS == 0 else int(time.time()) + seed)
    end = time.monotonic() + SECONDS

    def is_enough() -> bool:
        return soak.counts["reigns"] >= REIGNS and soak.counts["updates"] > 0 and time.monotonic() >= end

    soak.run(is_enough)
    soak.finish()
    assert soak.counts["unknown"] > 0
    assert soak.counts["reigns"] > REIGNS
    assert soak.counts["removed"] <= soak.counts["updates"]


def test_the_footer_of_a_segment_that_has_the_members_is_no_finding(tmp_path: Path) -> None:
    soak = Soak(tmp_path, 1)
    store = soak.lead()
    body = bytes(100_000)
    soak.model.certain = dict.fromkeys(store.publish_many("orders", [body] * 10), body)
    soak.reach_all()
    soak.cease()
    soak.finish()
