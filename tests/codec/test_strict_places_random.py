"""Random work with states of places: every replay agrees with a simple model, wherever chains are relocated."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.moving_log import BASE
from kit.place_work import Worker, found, lenient
from logstore.codec.records import RecordType
from logstore.codec.strict import StrictReplay


@settings(max_examples=150, deadline=None)
@given(chance=st.randoms(use_true_random=False), steps=st.integers(1, 60), often=st.sampled_from([0.0, 0.1, 0.5]))
def test_every_replay_agrees_with_the_model_wherever_chains_are_relocated(
    chance: random.Random, steps: int, often: float
) -> None:
    worker = Worker(chance)
    for _ in range(steps):
        worker.step()
        while worker.messages and chance.random() < often:
            worker.relocate(chance.choice(list(worker.messages)))
    replay = worker.log.replay
    assert worker.log.reasons == []
    assert found(replay.messages, worker.deleted, keys=False) == worker.told(keys=False)
    replay.finish()
    state = lenient(worker.log.records, BASE)
    worker.recover()
    assert found(replay.messages, worker.deleted, keys=False) == worker.told(keys=False)
    assert found(state.messages, worker.deleted, keys=True) == worker.told(keys=True)
    assert (worker.log.reasons, state.lost, state.doubtful) == ([], [], [])


@pytest.mark.parametrize("seed", range(20))
def test_replay_gives_the_same_states_from_every_base_above_which_all_live_messages_are_relocated(seed: int) -> None:
    worker = Worker(random.Random(seed), 4096)
    for _ in range(120):
        worker.step()
    base_lsn = worker.log.next_lsn
    worker.relocate_everything()
    for _ in range(120):
        worker.step()
    late = StrictReplay(base_lsn)
    for record in worker.log.records:
        if record.lsn >= base_lsn or record.type is RecordType.BATCH:
            late.apply(record)
    assert found(late.messages, worker.deleted, keys=False) == worker.told(keys=False)
    assert [*late.problems, *worker.log.replay.problems] == []
    state = lenient([record for record in worker.log.records if record.lsn >= base_lsn], base_lsn)
    worker.recover()
    assert found(state.messages, worker.deleted, keys=True) == worker.told(keys=True)
    assert (state.lost, state.doubtful) == ([], [])


def test_the_random_work_makes_every_operation_in_and_out_of_transactions() -> None:
    done: Counter[str] = Counter()
    for seed in range(20):
        worker = Worker(random.Random(seed))
        for _ in range(200):
            worker.step()
        done.update(worker.done)
    assert min(done.values()) >= 5
    for name in ("publish_placed", "note", "move"):
        assert done[name] > 50
        assert done[f"{name} in a transaction"] > 50
