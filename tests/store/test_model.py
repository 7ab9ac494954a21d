"""Random histories of a store against a plain model, through closes, crashes and failing disks.

The machine is in store_machine.py, and with more rules in store_machine_waiting.py, store_machine_moving.py and
store_machine_timed.py.
Faults planted into the store (planted_faults.py) show
that it finds errors: it must find each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from kit.planted_faults import FAULTS
from kit.simulated import BY_SEED
from kit.store_machine_timed import TimedMachine
from logstore import errors

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(900)  # a search, on machines of any speed

STEPS = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class TestStoreMachine(TimedMachine.TestCase):  # type: ignore[name-defined, misc] # hypothesis makes TestCase at run time
    settings = STEPS


def test_the_machine_sees_segments_recycled() -> None:
    """With its tiny segments a history of this length recycles files; otherwise recycling would not be tested."""
    machine = TimedMachine()
    try:
        machine.first_queue()
        recycled = 0
        for number in range(90):
            machine.publish_many(0, [3000, 5000, 9000], 0, number % 2 == 0)
            machine.work_off(0, number % 3 == 0)
            if number % 30 == 29:
                recycled += machine.store.stats()["segments_recycled"]
                machine.crash(BY_SEED, number + 1, 1)
            machine.the_store_shows_what_was_done()
        assert recycled > 0
    finally:
        machine.teardown()


@pytest.mark.parametrize("fault", FAULTS)
def test_the_machine_finds_a_planted_fault(fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    """Very short searches with fixed seeds, because one that starts badly goes on so and would take minutes."""

    class Planted(TimedMachine):
        plant = staticmethod(fault)

    search = settings(
        STEPS,
        max_examples=3,
        phases=[Phase.generate],
        database=None,
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
    )
    for beginning in range(1, 101):
        try:
            run_state_machine_as_test(seed(beginning)(Planted), settings=search)
        except (AssertionError, pytest.fail.Exception, errors.StoreError):
            return
    pytest.fail("300 histories do not show it")
