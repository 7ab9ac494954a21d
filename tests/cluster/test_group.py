"""One host on a member: the order in which its thread is given what the engine answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from logstore.cluster import engine as engines
from logstore.cluster.engine import Answer
from logstore.cluster.group import Group
from logstore.cluster.jobs import Job, Take, Vote
from logstore.cluster.replica import Batch

if TYPE_CHECKING:
    from pathlib import Path


def test_vote_has_a_term_before_the_copy_takes_a_batch_of_it(tmp_path: Path) -> None:
    given: list[Job] = []
    group = Group(cast("Any", SimpleNamespace(changed=lambda _: None, member=3)), "host", tmp_path)
    group.give = given.append  # type: ignore[method-assign]
    batch = Batch(3, 2, 3 << 40, (3 << 40) + 104, 3 << 40, 0, None, bytes(104))
    nothing: Any = [0, [], *[0] * (len(Answer._fields) - 2)]
    flags = engines.TAKE | engines.VOTE
    group._act(Answer._make(nothing)._replace(flags=flags, vote_term=3, take_index=2, take_count=1), [batch])
    assert [type(job) for job in given] == [Vote, Take]
    group.thread.executor.shutdown()
