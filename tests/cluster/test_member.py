"""Three members, one replicated store: it survives the death of any one of them."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.copy_group import CLUSTER, Group
from kit.patience import PATIENCE_S, wait_until
from kit.trio import HOST, Trio, wait_for_all
from logstore import errors
from logstore.cluster import engine as engines
from logstore.cluster.jobs import Take, Vote, first_to_keep
from logstore.cluster.member import Member

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logstore.cluster.jobs import Job


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path)
    yield made
    made.stop()


def test_three_members_elect_a_leader_and_each_copy_has_what_was_published(trio: Trio) -> None:
    trio.start()
    store = trio.store()
    ids = [store.publish("orders", b"message %d" % number) for number in range(50)]
    store.declare_queue("invoices")
    store.publish("invoices", b"one")
    newest = trio.members[trio.leader()].standings()[HOST].index

    def all_have() -> bool:
        return all(member.standings()[HOST].durable_index >= newest for member in trio.members.values())

    wait_until(all_have, "all have it")
    assert [message.id for message in store.messages("orders")][1:] == ids


def test_the_death_of_the_leader_loses_no_message(trio: Trio) -> None:
    trio.start()
    ids: list[int] = []
    for _ in range(3):
        store = trio.store()
        ids += [store.publish("orders", b"x" * 500) for _ in range(20)]
        store.declare_queue(f"queue {len(ids)}")
        dead = trio.leader()
        trio.stop(dead)
        store = trio.store()
        assert [message.id for message in store.messages("orders")][1:] == ids
        assert store.queue(f"queue {len(ids)}").depth == 0
        trio.start(dead)


def test_without_a_majority_nothing_is_confirmed_and_nothing_lost(trio: Trio) -> None:
    trio.start()
    store = trio.store()
    kept = store.publish("orders", b"kept")
    leader = trio.leader()
    others = [member for member in trio.members if member != leader]
    trio.stop(*others)
    raised: list[BaseException] = []

    def publish() -> None:
        try:
            store.publish("orders", b"nobody has it")
        except errors.StoreError as error:
            raised.append(error)

    waiting = threading.Thread(target=publish)
    waiting.start()
    waiting.join()
    assert isinstance(raised[0], errors.OutcomeUnknown | errors.StorePoisoned | errors.StoreClosed)
    with pytest.raises(errors.NoMajority, match="has no leader"):
        trio.members[leader].store(HOST, within_s=0.1)
    trio.start(*others)
    assert kept in {message.id for message in trio.store().messages("orders")}


def test_a_member_that_does_not_lead_names_the_one_that_does(trio: Trio) -> None:
    trio.start()
    trio.store()
    leader = trio.leader()
    other = next(member for number, member in trio.members.items() if number != leader)
    wait_until(lambda: other.standings()[HOST].leader == leader, "it knows the leader")
    with pytest.raises(errors.NotLeader, match=f"m{leader} leads host") as found:
        other.store(HOST)
    assert found.value.member == leader
    with pytest.raises(errors.OptionError, match="no host called 'none'"):
        other.store("none")


def test_a_leader_hands_over_in_order(trio: Trio) -> None:
    trio.start()
    store = trio.store()
    message = store.publish("orders", b"before")
    leader = trio.leader()
    target = next(member for member in trio.members if member != leader)
    trio.members[leader].transfer(HOST, target)
    wait_until(lambda: trio.members[target].standings()[HOST].state == "leads", "the target leads")
    assert message in {each.id for each in trio.members[target].store(HOST).messages("orders")}
    with pytest.raises(errors.EngineRefused):
        trio.members[leader].transfer(HOST, target)


def test_all_members_stop_and_start_again_with_everything(trio: Trio) -> None:
    trio.start()
    store = trio.store()
    ids = [store.publish("orders", bytes(3000)) for _ in range(200)]
    store.declare_exchange("events")
    store.bind("events", "orders", "k")
    trio.stop()
    trio.start()
    store = trio.store()
    assert [message.id for message in store.messages("orders")][1:] == ids
    assert [binding.key for binding in store.bindings()] == ["k"]


def test_what_stays_for_others_counts_bytes_and_not_the_jump_between_terms(tmp_path: Path) -> None:
    group = Group(tmp_path)
    for leader in (0, 1, 2):
        store = group.lead(leader)
        for number in range(10):
            store.publish("orders", b"%d" % number)
        group.cease()
    copy = group.copy(0)
    kept = copy.kept()
    assert first_to_keep(copy, 1 << 20) == kept.start == 1
    newest = copy.entry(kept[-1])
    for last in (3, 15, len(kept) - 2):
        sizes = [copy.entry(index) for index in kept[last:]]
        held = first_to_keep(copy, sum(one.end_lsn - one.lsn for one in sizes))
        assert last - 2 <= held <= last + 3  # a segment's header lies between two batches
    assert first_to_keep(copy, 1) == newest.index
    group.close()


@pytest.mark.parametrize("where", ["in its thread", "on the loop"])
def test_a_host_that_fails_leaves_its_group_and_says_why(
    trio: Trio, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.start()
    store = trio.store()
    leader = trio.leader()
    follower = next(member for number, member in trio.members.items() if number != leader)
    (group,) = follower._running.groups.values()

    def fail(*_: object) -> int:
        raise errors.StoreError("the disk is gone")

    if where == "in its thread":
        assert group._copy is not None
        monkeypatch.setattr(group._copy, "take_many", fail)
    else:
        monkeypatch.setattr(group, "_count", fail)
    ids = [store.publish("orders", b"%d" % number) for number in range(20)]
    wait_until(lambda: follower.standings()[HOST].state == "failed", "it has left")
    assert "the disk is gone" in follower.standings()[HOST].problem
    with pytest.raises(errors.StoreError, match="has left its group on this member: the disk is gone"):
        follower.store(HOST)
    ids.append(store.publish("orders", b"the others go on"))
    assert [message.id for message in store.messages("orders")][1:] == ids


def test_a_new_term_is_forced_in_vote_before_its_first_batch_is_taken(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.start()
    trio.store()
    leader = trio.leader()
    follower = next(member for number, member in trio.members.items() if number != leader)
    (group,) = follower._running.groups.values()
    given: list[Job] = []

    async def hears_of_a_term_by_a_batch() -> None:
        assert group._copy is not None
        assert group.answer is not None
        batch = group._copy.read(group._copy.kept()[-1])
        flags = engines.TAKE | engines.VOTE
        with monkeypatch.context() as patch:
            patch.setattr(group, "give", given.append)
            group._act(group.answer._replace(flags=flags, frames=[], take_index=batch.index, take_count=1), [batch])

    asyncio.run_coroutine_threadsafe(hears_of_a_term_by_a_batch(), group.loop).result(PATIENCE_S)
    assert [type(job) for job in given] == [Vote, Take]


def test_a_call_of_the_store_that_may_wait_raises_at_once_on_the_members_own_loop(trio: Trio) -> None:
    trio.start()
    store = trio.store()
    leader = trio.members[trio.leader()]
    queue = store.queue("orders")
    (delivery,) = queue.acquire()
    refused = [
        lambda: store.publish("orders", b"x"),
        lambda: store.publish("orders", b"x", wait=False),  # it may wait for room
        lambda: store.publish_many("orders", [b"x", b"y"]),
        lambda: store.declare_queue("another"),
        store.force,
        delivery.accept,
        lambda: store.dequeue(delivery.id, "orders"),
        lambda: leader.store(HOST),
    ]

    async def calls() -> list[str]:
        found = []
        for call in refused:
            with pytest.raises(errors.StoreError) as raised:
                call()
            found.append(str(raised.value))
        return found

    texts = asyncio.run_coroutine_threadsafe(calls(), leader._running.loop).result(PATIENCE_S)
    assert all("would never end" in text and "make it in another thread" in text for text in texts)
    assert queue.depth == 1
    assert [one.name for one in store.queues()] == ["orders"]
    delivery.accept()
    store.declare_queue("another")
    assert store.publish("another", b"from another thread")


def test_a_directory_of_another_cluster_takes_no_part_and_is_named(trio: Trio, tmp_path: Path) -> None:
    trio.start()
    trio.store()
    trio.stop(3)
    other = dataclasses.replace(trio.config(3), cluster=bytes(16), join=[])
    with Member(trio.directories[3], other) as member:
        standing = member.standings()[HOST]
    assert standing.state == "failed"
    assert f"{trio.host_dir(3)} belongs to cluster {CLUSTER.hex()}, and this member to cluster" in standing.problem
    trio.start(3)
    wait_for_all(trio)


def test_a_member_of_another_cluster_is_refused(trio: Trio, tmp_path: Path) -> None:
    stranger = dataclasses.replace(trio.config(3), cluster=bytes(16))
    (tmp_path / "empty").mkdir()
    trio.start(1, 2)
    with Member(tmp_path / "empty", stranger) as member:
        with pytest.raises(errors.OptionError, match="it has none"):
            member.store(HOST)
        assert trio.store().queue("orders").depth == 1
