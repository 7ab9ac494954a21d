"""One host on a member: the order in which its thread is given what the engine answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from logstore.cluster import engine as engines
from logstore.cluster.engine import Answer, Frame
from logstore.cluster.frames import Carried
from logstore.cluster.group import Group
from logstore.cluster.jobs import Job, Take, Vote
from logstore.cluster.replica import Batch
from logstore.cluster.transport import Transport

if TYPE_CHECKING:
    from pathlib import Path


class Sent:
    """A member around a group: what it sends, and a clock whose timers are called by hand."""

    def __init__(self) -> None:
        self.member = 3
        self.frames: list[Frame] = []
        self.timers: list[tuple[Any, ...]] = []
        self.loop = SimpleNamespace(call_later=lambda _, *what: self.timers.append(what))

    def changed(self, _: Group) -> None: ...

    def now_ms(self) -> int:
        return 0

    def send(self, _peer: int, _group: Group, frame: Frame, _carried: object) -> bool:
        self.frames.append(frame)
        return True

    def time_passes(self) -> None:
        timers, self.timers = self.timers, []
        for call, *arguments in timers:
            call(*arguments)


def news(peer: int, durable: int) -> Frame:
    return Frame(1, peer, 3, 9, 3, durable, engines.APPEND, engines.NO_ANSWER, 0)


def test_what_is_durable_is_told_by_the_next_append_or_soon_by_a_frame_of_its_own(tmp_path: Path) -> None:
    around = Sent()
    group = Group(cast("Any", around), "host", tmp_path)
    group._recent[10] = Carried(Batch(3, 10, 3 << 40, (3 << 40) + 104, 3 << 40, 0, None, bytes(104)), engines.BATCH)
    append = Frame(1, 1, 3, 9, 3, 9, engines.APPEND, 0, 1)
    for frame in (news(1, 8), news(2, 8), append):
        group._send(frame)
    assert around.frames == [append]
    around.time_passes()
    around.time_passes()
    assert around.frames == [append, news(2, 8)]
    assert not around.timers
    group._send(news(1, 9))
    group._send(news(1, 10))  # the newer one counts, and waits as long
    around.time_passes()
    around.time_passes()
    assert around.frames[2:] == [news(1, 10)]
    group._send(news(1, 11))
    group._stop_reading()  # it leads no longer
    around.time_passes()
    assert around.frames[3:] == []
    group.thread.executor.shutdown()


def test_an_append_for_several_peers_is_made_into_frames_once() -> None:
    frame = Frame(1, 1, 3, 9, 3, 9, engines.APPEND, 0, 1)
    carried = [Carried(Batch(3, 10, 3 << 40, (3 << 40) + 104, 3 << 40, 0, None, bytes(104)), engines.BATCH)]
    transport = cast("Any", SimpleNamespace(_made=(None, None, [])))
    first = Transport._parts(transport, 1, frame, carried)
    assert Transport._parts(transport, 1, frame._replace(peer=2), carried) is first
    for other in (frame._replace(other=10), frame._replace(term=4)):
        assert Transport._parts(transport, 1, other, carried) is not first
    assert Transport._parts(transport, 2, frame, carried) != first  # another host's number


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
