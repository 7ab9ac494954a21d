"""Engines of one group in one process: elections, batches, changes of members, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections import deque

import pytest

from logstore import ClusterUnavailable, EngineRefused, OptionError, StoreClosed

try:
    from logstore.cluster import engine as consensus
    from logstore.cluster.engine import Answer, Engine, Entry, Frame, Log, Options
except ClusterUnavailable:
    pytest.skip("the source of libraft could not be had: the cluster is NOT tested", allow_module_level=True)

GROUP = 7
FIRST_MEMBERS = [(1, "one:1"), (2, "two:2"), (3, "three:3")]
CONFIGURATION = Entry(1, consensus.MEMBERS, consensus.bootstrap(FIRST_MEMBERS))
BEFORE = Entry(0, 0)  # at index 0
LOG = Log(vote_term=1, header_term=1, first_kept=1, entries=(CONFIGURATION,))


def options(member: int) -> Options:
    return Options(group=GROUP, member=member, seed=member)


class Node:
    """An engine with a log in a list, which is forced at once."""

    def __init__(self, group: Group, member: int, log: Log) -> None:
        self.group = group
        self.member = member
        self.engine = Engine(options(member), log, group.now)
        self.log = [BEFORE, *log.entries]
        self.flags = 0
        self.leads = False
        self.act(self.engine.answer, None)

    def act(self, answer: Answer, frame: Frame | None) -> None:
        """Does what the answer says."""
        self.flags |= answer.flags
        for sent in answer.frames:
            self.group.post(self, sent)
        if answer.flags & consensus.FOLLOW:
            self.leads = False
            del self.log[answer.last_index + 1 :]
        if answer.flags & consensus.CUT:
            del self.log[answer.cut_index :]
        if answer.flags & consensus.TAKE:
            assert frame is not None
            for index in range(answer.take_index, answer.take_index + answer.take_count):
                assert len(self.log) == index
                entry = frame.entries[index - frame.log_index - 1]
                self.log.append(entry)
                self.act(self.engine.forced(self.group.now, index, entry.term), None)
        if answer.flags & consensus.VOTE:
            self.act(self.engine.vote_forced(self.group.now, answer.vote_number), None)
        if answer.flags & consensus.LEAD:
            self.leads = True
            assert answer.first_index == len(self.log)
            self.submit(Entry(answer.term, consensus.FIRST))

    def submit(self, entry: Entry) -> int:
        """Its index."""
        answer = self.engine.submit(self.group.now, entry)
        self.log.append(entry)
        index = len(self.log) - 1
        self.act(answer, None)
        self.act(self.engine.forced(self.group.now, index, entry.term), None)
        return index

    def submit_batch(self) -> int:
        return self.submit(Entry(self.engine.answer.term, consensus.BATCH))


class Group:
    """Nodes whose frames arrive in order, and a clock."""

    def __init__(self) -> None:
        self.now = 1000
        self.frames: deque[tuple[int, Frame]] = deque()
        self.nodes: dict[int, Node] = {}

    def start(self, member: int, log: Log) -> Node:
        self.nodes[member] = Node(self, member, log)
        return self.nodes[member]

    def post(self, sender: Node, sent: Frame) -> None:
        entries = tuple(sender.log[sent.log_index + 1 : sent.log_index + 1 + sent.entry_count])
        self.frames.append((sent.peer, sent._replace(peer=sender.member, entries=entries)))

    def deliver(self) -> None:
        while self.frames:
            to, frame = self.frames.popleft()
            if to in self.nodes:
                (answer,) = self.nodes[to].engine.receive(self.now, [frame])
                self.nodes[to].act(answer, frame)

    def run(self, ms: int) -> None:
        by_engine = {id(node.engine): node for node in self.nodes.values()}
        for _ in range(ms):
            self.now += 1
            for due, answer in consensus.time_all([node.engine for node in self.nodes.values()], self.now):
                by_engine[id(due)].act(answer, None)
            self.deliver()

    def leader(self) -> Node:
        (found,) = (node for node in self.nodes.values() if node.leads)
        return found


@pytest.fixture
def group() -> Group:
    made = Group()
    for member, _ in FIRST_MEMBERS:
        made.start(member, LOG)
    made.run(1500)
    return made


def test_three_engines_elect_one_that_serves(group: Group) -> None:
    leader = group.leader()
    assert leader.flags & consensus.SERVE
    assert {node.engine.answer.leader for node in group.nodes.values()} == {leader.member}


def test_a_batch_is_durable_at_all_members(group: Group) -> None:
    index = group.leader().submit_batch()
    group.deliver()
    assert {node.engine.answer.durable_index for node in group.nodes.values()} == {index}


def test_a_transfer_makes_its_target_lead(group: Group) -> None:
    old = group.leader()
    target = next(member for member in group.nodes if member != old.member)
    old.act(old.engine.transfer(group.now, target), None)
    assert not old.engine.may_submit()
    group.run(20)
    assert group.leader().member == target


def test_a_member_is_removed_and_one_is_added_by_entries_of_the_log(group: Group) -> None:
    leader = group.leader()
    gone = next(member for member in group.nodes if member != leader.member)
    planned = leader.engine.plan(consensus.REMOVE, gone)
    leader.submit(Entry(leader.engine.answer.term, consensus.MEMBERS, planned))
    with pytest.raises(EngineRefused):
        leader.engine.plan(consensus.REMOVE, gone)  # one at a time
    group.deliver()
    assert [found.member for found in leader.engine.members()] == [
        member for member, _ in FIRST_MEMBERS if member != gone
    ]
    end = leader.engine.answer.durable_index
    answer, kept = leader.engine.snapshot(group.now, end, end)
    leader.act(answer, None)
    assert kept == end
    planned = leader.engine.plan(consensus.ADD, 4, "four:4")
    leader.submit(Entry(leader.engine.answer.term, consensus.MEMBERS, planned))
    group.deliver()
    assert leader.engine.members()[-1] == (4, 0, False)


def test_a_member_without_content_is_updated_by_a_copy(group: Group) -> None:
    leader = group.leader()
    end = leader.submit_batch()
    group.deliver()
    leader.act(leader.engine.snapshot(group.now, end, end)[0], None)
    planned = leader.engine.plan(consensus.ADD, 4, "four:4")
    new = group.start(4, Log())
    leader.submit(Entry(leader.engine.answer.term, consensus.MEMBERS, planned))
    for _ in range(2000):
        group.run(1)
        if new.flags & consensus.COPY:
            break
    with pytest.raises(OptionError):
        new.engine.updated(group.now, end, leader.log[end].term, 1, b"no configuration")
    answer = new.engine.updated(group.now, end, leader.log[end].term, 1, CONFIGURATION.configuration)
    assert answer.flags & consensus.SWITCH
    new.log = list(leader.log[: end + 1])
    new.act(answer, None)
    with pytest.raises(EngineRefused):
        new.engine.update_failed()
    new.act(new.engine.switched(group.now), None)
    group.run(1000)
    assert new.log == leader.log
    assert new.engine.answer.durable_index == leader.engine.answer.durable_index


def test_a_connection_reset_by_the_leader_counts_as_a_timeout(group: Group) -> None:
    old = group.leader()
    del group.nodes[old.member]
    for node in group.nodes.values():
        node.act(node.engine.lost(group.now, old.member), None)
    group.run(120)
    assert group.leader().member != old.member


def test_a_follower_may_not_submit_and_nothing_changes(group: Group) -> None:
    follower = next(node for node in group.nodes.values() if not node.leads)
    before = follower.engine.answer
    with pytest.raises(EngineRefused):
        follower.engine.submit(group.now, Entry(before.term, consensus.BATCH))
    assert follower.engine.answer[8:16] == before[8:16]


def test_a_frame_of_another_group_is_counted_and_ignored(group: Group) -> None:
    node = group.nodes[1]
    (answer,) = node.engine.receive(group.now, [Frame(GROUP + 1, 2, 99, 1, 1, 0, consensus.APPEND, 0, 0)])
    assert answer.flags == 0
    assert not answer.frames
    assert node.engine.stats()["refused"] == 1


@pytest.mark.parametrize(
    "frame",
    [
        Frame(GROUP, 2, -1, 1, 1, 0, consensus.APPEND, 0, 0),
        Frame(GROUP, 2, 1 << 64, 1, 1, 0, consensus.APPEND, 0, 0),
        Frame(GROUP, 2, 5, 1, 1, 0, consensus.APPEND, 0, 1),
        Frame(GROUP, 2, 5, 1, 1, 0, consensus.APPEND, 0, 65, (Entry(5, consensus.BATCH),) * 65),
        Frame(GROUP, 2, 5, 1, 1, 0, consensus.APPEND, 0, 1, (Entry(5, -1),)),
        Frame(GROUP, 2, 5, 1, 1, 0, consensus.APPEND, 0, 1, (Entry(5, consensus.MEMBERS, "text"),)),  # type: ignore[arg-type]
        Frame(GROUP, 2, 5, 1, 1, 0, "append", 0, 0),  # type: ignore[arg-type]
        None,
    ],
)
def test_a_frame_that_cannot_be_expressed_is_an_option_error(group: Group, frame: Frame) -> None:
    before = group.nodes[1].engine.stats()
    with pytest.raises(OptionError):
        group.nodes[1].engine.receive(group.now, [frame])
    assert group.nodes[1].engine.stats() == before


def test_impossible_options_logs_and_changes_are_option_errors(group: Group) -> None:
    with pytest.raises(OptionError):
        Engine(Options(group=GROUP, member=1, election_ms=0), LOG, 0)
    with pytest.raises(OptionError):
        Engine(Options(group=GROUP, member=-1), LOG, 0)
    with pytest.raises(OptionError):
        Engine(options(1), Log(first_kept=1, entries=(Entry(0, 9),)), 0)
    with pytest.raises(OptionError):
        group.leader().engine.plan(9, 1)
    with pytest.raises(OptionError):
        group.leader().engine.time(0.5)  # type: ignore[arg-type]
    with pytest.raises(OptionError):
        consensus.bootstrap([])
    with pytest.raises(OptionError):
        consensus.bootstrap([(1, "a"), (1, "a")])


def test_a_closed_engine_says_so(group: Group) -> None:
    engine = group.nodes[1].engine
    engine.close()
    engine.close()
    with pytest.raises(StoreClosed):
        engine.time(group.now)
    with pytest.raises(StoreClosed):
        consensus.time_all([engine], group.now)


def test_without_the_module_only_the_cluster_is_missing() -> None:
    says = """
import sys
sys.modules["logstore._consensus"] = None
import logstore
try:
    import logstore.cluster.engine
except logstore.ClusterUnavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("the cluster is not built")
    assert "LOGSTORE_RAFT_SOURCE" in done.stdout
