"""The consensus engine under Python: three members in one process, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from logstore import errors
from logstore.codec.records import MEMBERS_CONFIG_MAX

pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from logstore.cluster import engine

GROUP = 7
ADDRESSES = {1: "one:1", 2: "two:2", 3: "three:3", 4: "four:4"}
FIRST_LOG = engine.Log(
    vote_term=1,
    first_kept=1,
    entries=(engine.Entry(1, engine.MEMBERS, engine.bootstrap([(i, ADDRESSES[i]) for i in (1, 2, 3)])),),
)


class Node:
    """An engine over a list of entries; its disk and VOTE are forced at once."""

    def __init__(self, group: Group, member: int, log: engine.Log, now_ms: int) -> None:
        self.group = group
        self.member = member
        self.log: dict[int, engine.Entry] = dict(enumerate(log.entries, log.first_kept))
        self.durable = 0
        self.serves = False
        self.wants: engine.Answer | None = None
        options = engine.Options(group=GROUP, member=member, seed=member * 7919, in_flight_max=40, behind_max=20)
        self.engine = engine.Engine(options, log, now_ms)
        self.act(self.engine.answer)

    def act(self, answer: engine.Answer, received: engine.Frame | None = None) -> None:
        now_ms = self.group.now_ms
        if answer.flags & engine.FOLLOW:
            self.serves = False
            if not answer.flags & engine.TAKE:
                self.cut(answer.last_index + 1)
        if answer.flags & engine.CUT:
            self.cut(answer.cut_index)
        if answer.flags & engine.TAKE:
            assert received is not None
            for index in range(answer.take_index, answer.take_index + answer.take_count):
                self.log[index] = received.entries[index - received.log_index - 1]
        for frame in answer.frames:
            entries = tuple(self.log[frame.log_index + 1 + i] for i in range(frame.entry_count))
            self.group.sent.append((frame.peer, frame._replace(peer=self.member, entries=entries)))
        if answer.flags & engine.DURABLE:
            assert self.durable < answer.durable_index <= max(self.log)
            self.durable = answer.durable_index
        if answer.flags & engine.SERVE:
            self.serves = True
        if answer.flags & engine.COPY:
            self.wants = answer
        if answer.flags & engine.VOTE:
            self.act(self.engine.vote_forced(now_ms, answer.vote_number))
        for index in range(answer.take_index, answer.take_index + answer.take_count):
            self.act(self.engine.forced(now_ms, index, self.log[index].term))
        if answer.flags & engine.LEAD:
            self.put(engine.Entry(answer.term, engine.FIRST))

    def cut(self, first: int) -> None:
        assert first > self.durable
        self.log = {index: entry for index, entry in self.log.items() if index < first}

    def put(self, entry: engine.Entry) -> None:
        index = self.engine.answer.last_index + 1
        self.log[index] = entry
        self.act(self.engine.submit(self.group.now_ms, entry))
        self.act(self.engine.forced(self.group.now_ms, index, entry.term))

    def batch(self) -> None:
        self.put(engine.Entry(self.engine.answer.term, engine.BATCH))

    def bring_copy(self) -> None:
        """The copy that was wanted is here, and switched in."""
        assert self.wants is not None
        of, self.wants = self.wants, None
        source = self.group.nodes[of.update_from].log
        newest = max(i for i, entry in source.items() if i <= of.update_index and entry.kind == engine.MEMBERS)
        members = source[newest].configuration
        answer = self.engine.updated(self.group.now_ms, of.update_index, of.update_index_term, newest, members)
        assert answer.flags & engine.SWITCH
        self.log = {index: entry for index, entry in source.items() if index <= of.update_index}
        self.act(answer)
        self.act(self.engine.switched(self.group.now_ms))


class Group:
    """Members whose frames arrive a millisecond after they were sent."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.sent: list[tuple[int, engine.Frame]] = []
        self.nodes = {}
        for member in (1, 2, 3):
            self.nodes[member] = Node(self, member, FIRST_LOG, self.now_ms)

    def run(self, ms: int) -> None:
        for _ in range(ms):
            self.now_ms += 1
            arrived, self.sent = self.sent, []
            for to, frame in arrived:
                if to in self.nodes:
                    (answer,) = self.nodes[to].engine.receive(self.now_ms, [frame])
                    self.nodes[to].act(answer, frame)
            by_engine = {node.engine: node for node in self.nodes.values()}
            for due, answer in engine.time_all(list(by_engine), self.now_ms):
                by_engine[due].act(answer)
            for node in self.nodes.values():
                if node.wants is not None:
                    node.bring_copy()

    def leader(self) -> Node:
        for _ in range(100):
            found = [node for node in self.nodes.values() if node.serves]
            if found:
                return max(found, key=lambda node: node.engine.answer.term)
            self.run(50)
        raise AssertionError("nobody was elected within five seconds of this group's time")

    def close(self) -> None:
        for node in self.nodes.values():
            node.engine.close()


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    made.close()


def test_three_members_elect_one_and_learn_what_is_durable(group: Group) -> None:
    leader = group.leader()
    for _ in range(50):
        leader.batch()
        group.run(3)
    group.run(20)
    for node in group.nodes.values():
        assert node.durable == max(leader.log)
        assert node.engine.answer.leader == leader.member
        assert node.log == leader.log
    assert leader.engine.stats()["refused"] == 0


def test_a_transfer_takes_no_batches_and_hands_over(group: Group) -> None:
    leader = group.leader()
    leader.batch()
    group.run(5)
    to = leader.member % 3 + 1
    leader.act(leader.engine.transfer(group.now_ms, to))
    assert not leader.engine.may_submit()
    with pytest.raises(errors.EngineRefused):
        leader.engine.submit(group.now_ms, engine.Entry(leader.engine.answer.term, engine.BATCH))
    group.run(100)
    assert group.leader().member == to
    assert not leader.serves


def test_a_member_joins_by_an_update_becomes_a_voter_and_leaves(group: Group) -> None:
    leader = group.leader()
    for _ in range(20):
        leader.batch()
        group.run(3)
    with pytest.raises(errors.EngineRefused):
        leader.engine.plan(engine.ADD, 4, ADDRESSES[4])  # before there is a snapshot
    answer, kept = leader.engine.snapshot(group.now_ms, leader.durable, leader.durable - 3)
    leader.act(answer)
    assert kept == leader.durable - 3
    group.nodes[4] = Node(group, 4, engine.Log(), group.now_ms)
    for what in (engine.ADD, engine.PROMOTE):
        planned = leader.engine.plan(what, 4, ADDRESSES[4])
        leader.put(engine.Entry(leader.engine.answer.term, engine.MEMBERS, planned))
        group.run(500)
        assert group.nodes[4].durable == leader.durable == max(leader.log)
    assert (4, leader.durable, True, ADDRESSES[4]) in leader.engine.members()
    planned = leader.engine.plan(engine.REMOVE, 4)
    leader.put(engine.Entry(leader.engine.answer.term, engine.MEMBERS, planned))
    group.run(50)
    assert [each.member for each in leader.engine.members()] == [1, 2, 3]


@pytest.mark.parametrize("is_told", [True, False])
def test_what_follows_an_update_is_kept_while_it_is_sent_however_long_that_takes(
    group: Group, monkeypatch: pytest.MonkeyPatch, *, is_told: bool
) -> None:
    leader = group.leader()
    for _ in range(5):
        leader.batch()
        group.run(3)
    answer, _ = leader.engine.snapshot(group.now_ms, leader.durable, leader.durable)
    leader.act(answer)
    newcomer = group.nodes[4] = Node(group, 4, engine.Log(), group.now_ms)
    with monkeypatch.context() as patch:
        patch.setattr(newcomer, "bring_copy", lambda: None)
        planned = leader.engine.plan(engine.ADD, 4, ADDRESSES[4])
        leader.put(engine.Entry(leader.engine.answer.term, engine.MEMBERS, planned))
        group.run(100)
        assert newcomer.wants is not None
        offered = newcomer.wants.update_index
        if is_told:
            leader.act(leader.engine.sends_update(group.now_ms, True))
        for _ in range(25):
            leader.batch()
            group.run(1000)
            answer, kept = leader.engine.snapshot(group.now_ms, leader.durable, leader.durable)
            leader.act(answer)
    assert (kept <= offered + 1) == is_told
    if is_told:
        leader.act(leader.engine.sends_update(group.now_ms, False))
        group.run(300)
        assert newcomer.durable == leader.durable
        assert newcomer.wants is None


def test_a_leader_that_ends_is_replaced_when_its_connections_break(group: Group) -> None:
    leader = group.leader()
    del group.nodes[leader.member]
    leader.engine.close()
    for node in group.nodes.values():
        node.act(node.engine.lost(group.now_ms, leader.member))
    began = group.now_ms
    assert group.leader() is not leader
    assert group.now_ms - began <= 250


def test_frames_that_are_impossible_are_counted_and_change_nothing(group: Group) -> None:
    leader = group.leader()
    before = leader.engine.answer
    other = engine.Frame(GROUP + 1, 2, before.term, 1, 1, 0, engine.APPEND, 0, 0)
    answers = leader.engine.receive(group.now_ms, [other, other._replace(group=GROUP, type=99)])
    assert len(answers) == 2
    assert leader.engine.stats()["refused"] == 2
    assert answers[-1].last_index == before.last_index


BAD_FRAME = engine.Frame(GROUP, 2, 1, 1, 1, 0, engine.APPEND, 0, 0)


@pytest.mark.parametrize(
    "frame",
    [
        BAD_FRAME._replace(peer=-1),
        BAD_FRAME._replace(term=1 << 64),
        BAD_FRAME._replace(entry_count=1),
        BAD_FRAME._replace(entry_count=65, entries=(engine.Entry(1, engine.BATCH),) * 65),
        BAD_FRAME._replace(entry_count=1, entries=(engine.Entry("one", engine.BATCH),)),
        BAD_FRAME._replace(entry_count=1, entries=(engine.Entry(1, engine.MEMBERS, 5),)),
        (1, 2),
        None,
    ],
)
def test_a_frame_that_cannot_be_expressed_is_an_option_error(group: Group, frame: object) -> None:
    with pytest.raises(errors.OptionError):
        group.nodes[1].engine.receive(group.now_ms, [frame])


def test_bad_arguments_are_option_errors(group: Group) -> None:
    made = group.leader().engine
    for call, *arguments in (
        (made.time, -1),
        (made.time, "now"),
        (made.forced, 1, 1 << 64, 1),
        (made.transfer, group.now_ms, None),
        (made.submit, group.now_ms, None),
        (made.submit, group.now_ms, engine.Entry(-1, engine.BATCH)),
        (made.updated, group.now_ms, 1, 1, 1, b"no configuration"),
        (made.plan, 9, 1),
        (made.plan, engine.REMOVE, 99),
        (made.plan, engine.ADD, 1, None),
        (engine.bootstrap, []),
        (engine.bootstrap, [(0, "zero:0")]),
        (engine.bootstrap, [(1, "one:1"), (2, "one:1")]),
        (engine.bootstrap, [(1, None)]),
        (engine.time_all, [made], "now"),
    ):
        with pytest.raises(errors.OptionError):
            call(*arguments)
    options = engine.Options(group=GROUP, member=1)
    for change in ({"member": 0}, {"heartbeat_ms": 0}, {"in_flight_max": 65}, {"seed": -1}, {"group": "seven"}):
        with pytest.raises(errors.OptionError):
            engine.Engine(replace(options, **change), engine.Log(), 0)
    with pytest.raises(errors.OptionError, match="contradicts itself"):
        engine.Engine(options, replace(FIRST_LOG, first_kept=2), 0)


def test_a_closed_engine_says_so_and_closes_again() -> None:
    with engine.Engine(engine.Options(group=GROUP, member=1), FIRST_LOG, 0) as made:
        assert made.members()[0][:3] == (1, 0, True)
    made.close()
    for call in (made.may_submit, made.stats, lambda: made.time(1), lambda: made.answer):
        with pytest.raises(errors.StoreClosed):
            call()
    with pytest.raises(errors.StoreClosed):
        engine.time_all([made], 1)


def test_a_configuration_is_as_long_as_the_log_takes() -> None:
    assert engine.CONFIGURATION_MAX == MEMBERS_CONFIG_MAX


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_package_and_its_copies_load_no_consensus() -> None:
    code = "import sys, logstore, logstore.cluster.replica, logstore.cluster.update"
    assert run(f"{code}; print('logstore._consensus' in sys.modules)") == "False\n"


def test_without_the_module_one_error_names_the_way_out() -> None:
    code = """
import sys
sys.modules["logstore._consensus"] = None
import logstore
try:
    import logstore.cluster.engine
except logstore.ClusterUnavailable as error:
    print(error)
"""
    assert "LOGSTORE_RAFT_SOURCE" in run(code)
