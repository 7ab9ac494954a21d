"""Three copies of one store in one process: what the leader publishes is durable when two of them have it."""

from __future__ import annotations

import gc
import math
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

import logstore
import logstore.backup
from kit.copy_group import CLUSTER, Group, fill
from kit.patience import wait_until
from logstore import errors
from logstore.cluster.replica import Batch, Copy, configuration_of, create, detach

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    yield made
    made.close()


def test_what_the_leader_publishes_is_in_every_copy(group: Group) -> None:
    store = group.lead(0)
    for number in range(100):
        store.publish("orders", content=f"message {number}".encode(), wait=number % 10 == 9)
    assert store.durable_lsn == store.next_lsn
    wait_until(lambda: all(group.copy(each).info().messages == 101 for each in (1, 2)), "both have applied all")
    group.cease()
    store = group.lead(2)
    assert [message.id for message in store.messages("orders")] == sorted(
        message.id for message in store.messages("orders")
    )
    assert len(list(store.messages("orders"))) == 101


def test_a_copy_that_ceases_to_lead_keeps_for_others_what_it_kept_while_it_led(group: Group) -> None:
    fill(group.lead(0), 300)
    copy = group.copy(0)
    assert copy.entry(copy.kept()[-1]).end_lsn - copy.entry(1).lsn > 4 << 20  # kept_bytes is 1 MiB
    group.cease()
    assert copy.kept() == range(1, group.sent[-1].index + 1)
    assert all(copy.read(batch.index).data == batch.data for batch in group.sent)
    group.lead(1)
    group.cease()
    copy.cut(group.sent[-1].index)
    assert copy.kept() == range(1, group.sent[-1].index + 1)
    copy.drop_kept(40)
    assert copy.kept().start == 40


def test_a_program_that_closes_the_store_ends_no_lead(group: Group) -> None:
    with group.lead(0) as store:
        store.publish("orders", b"one")
    store.close()
    store.publish("orders", b"two")
    group.cease()
    with pytest.raises(errors.StoreClosed):
        store.publish("orders", b"three")


def test_a_copy_that_lags_takes_many_batches_with_one_force(group: Group) -> None:
    store = group.lead(0)
    group.reached = {0, 1}
    begun = len(group.sent)
    for number in range(60):
        store.publish("orders", content=b"%d" % number)
    lagging = group.copy(2)
    term = group.copy(1).member().term
    assert lagging.member().term == term
    missing = [batch for batch in group.sent if batch.index > lagging.info().index]
    assert len(missing) >= len(group.sent) - begun
    forces, calls = lagging.info().stats["forces"], 0
    while missing:
        taken = lagging.take_many(missing)
        assert taken > 0
        missing, calls = missing[taken:], calls + 1
    assert lagging.info().stats["forces"] - forces <= 2 * calls + 4  # a mark and a group each, and a file for the marks
    assert calls < 40
    assert lagging.info().end_lsn == group.copy(1).info().end_lsn
    group.reached = {0, 1, 2}


def test_every_copy_gives_the_batches_that_were_handed_out(group: Group) -> None:
    store = group.lead(0)
    for number in range(20):
        store.publish("orders", content=b"%d" % number)
    group.cease()
    sent = {batch.index: batch for batch in group.sent}
    group.copies[0].close()
    group.copies[0] = Copy.open(group.paths[0], kept_bytes=1 << 20)
    for copy in group.copies:
        kept = copy.kept()
        assert kept[0] == 1
        assert all(copy.read(index) == sent[index] for index in kept if index in sent)
        assert copy.entry(1).kind == "members"
        assert copy.entry(kept[-1]).term == sent[kept[-1]].term
        assert copy.members() == (1, b"1,2,3")
        assert configuration_of(copy.read(1)) == b"1,2,3"
        with pytest.raises(errors.OptionError):
            configuration_of(copy.read(2))
        copy.drop_kept(5)
        assert copy.kept()[0] == 5
        with pytest.raises(errors.BatchRefused, match="batch 4 is not kept: batches 5 to"):
            copy.read(4)


def test_a_copy_that_follows_writes_a_checkpoint_while_it_is_used(group: Group) -> None:
    store = group.lead(0)
    for number in range(10):
        store.publish("orders", content=b"%d" % number)
    group.cease()
    copy = group.copy(1)
    assert copy.checkpoint_ended()
    assert copy.begin_checkpoint()
    assert not copy.begin_checkpoint()
    wait_until(copy.checkpoint_ended, "the checkpoint is written")
    assert copy.info().stats["checkpoints"] == 1
    assert (group.stores[1] / "CHECKPOINT").exists()


def test_a_copy_opens_as_no_ordinary_store(group: Group) -> None:
    group.lead(0).publish("orders", b"one")
    group.close()
    with pytest.raises(errors.ReplicatedStore, match="logstore cluster detach"):
        logstore.open(group.stores[1])


def test_a_detached_copy_is_a_single_store_and_may_be_replicated_again(group: Group) -> None:
    store = group.lead(0)
    ids = [store.publish("orders", content=f"message {number}".encode()) for number in range(20)]
    group.close()
    last = group.sent[-1]
    assert detach(group.paths[1], highest_term=last.term + 5) == group.stores[1]
    with pytest.raises(errors.NotAStore, match="is detached"):
        Copy.open(group.paths[1])
    with logstore.open(group.stores[1]) as single:
        assert set(ids) < {message.id for message in single.messages("orders")}
        ids.append(single.publish("orders", content=b"after"))
        assert ids[-1] >> 40 > last.term + 65_536
    assert detach(group.paths[1]) == group.stores[1]  # it was done
    for number in (0, 2):  # a new group of three, from the single store
        shutil.rmtree(group.paths[number])
        group.paths[number].mkdir()
        shutil.copytree(group.stores[1], group.stores[number])
    for number, path in enumerate(group.paths):
        create(path, number + 11, CLUSTER)
    group.copies = [Copy.open(path) for path in group.paths]
    assert [copy.member().rebuild for copy in group.copies] == [0, 1, 0]
    group.copies[1].close()
    with pytest.raises(errors.OptionError, match="VOTE already"):
        create(group.paths[1], 12, CLUSTER)
    group.copies[1] = Copy.open(group.paths[1])
    term = max(copy.info().least_term for copy in group.copies)
    for copy in group.copies:
        copy.vote(term, 13)
    leading = group.copies[2].lead(term, b"11,12,13")
    batch = leading.next()
    assert batch is not None
    assert batch.index == last.index + 1  # the indexes go on
    leading.cease()


def test_a_member_opens_nothing_without_its_vote(group: Group) -> None:
    group.lead(0).publish("orders", b"one")
    group.close()
    (group.paths[1] / "VOTE").rename(group.paths[1] / "VOTE.lost")
    with pytest.raises(errors.NotAStore, match=r"no VOTE.*refuses to start"):
        Copy.open(group.paths[1])
    with pytest.raises(errors.ReplicatedStore, match="VOTE is never made anew"):
        create(group.paths[1], 2, CLUSTER)
    (group.paths[1] / "VOTE.lost").rename(group.paths[1] / "VOTE")
    group.copies[1] = Copy.open(group.paths[1])
    assert group.copies[1].member().term == group.sent[-1].term


def test_an_older_directory_of_a_copy_is_refused(group: Group, tmp_path: Path) -> None:
    store = group.lead(0)
    store.publish("orders", b"one")
    shutil.copytree(group.stores[1], tmp_path / "older")
    store.publish("orders", b"two")
    group.close()
    shutil.rmtree(group.stores[1])
    (tmp_path / "older").rename(group.stores[1])
    with pytest.raises(errors.CorruptLog, match="this member had forced index"):
        Copy.open(group.paths[1])


def test_a_copy_leads_once_in_a_term_for_which_its_member_voted(group: Group) -> None:
    copy = group.copy(0)
    term = copy.info().least_term
    with pytest.raises(errors.BatchRefused, match="vote for the member itself"):
        copy.lead(term, b"1")
    copy.vote(term, 2)
    with pytest.raises(errors.BatchRefused, match="vote for 1 in term"):
        copy.vote(term, 1)
    with pytest.raises(errors.BatchRefused, match="vote for the member itself"):
        copy.lead(term, b"1")
    copy.vote(term + 1, 1)
    leading = copy.lead(term + 1, b"1")
    with pytest.raises(errors.StoreClosed, match="it leads"):
        copy.info()
    copy.note_tail()
    assert copy.member().floor_index == leading.forced == 1
    leading.cease()
    with pytest.raises(errors.BatchRefused, match="vote for the member itself"):
        copy.lead(term + 1)
    assert copy.member().voted_for == 1
    copy.close()
    with pytest.raises(errors.StoreClosed, match="open it again"):
        copy.member()


def test_a_batch_of_a_term_that_vote_does_not_have_is_refused(group: Group) -> None:
    leader, follower = group.copy(0), group.copy(1)
    term = leader.info().least_term
    leader.vote(term, 1)
    leading = leader.lead(term, b"1,2,3")
    batch = leading.next()
    assert batch is not None
    with pytest.raises(errors.BatchRefused, match="VOTE does not have its term"):
        follower.take(batch)
    follower.vote(term, 1)
    follower.take(batch)
    leading.cease()


def test_a_backup_of_a_copy_is_a_single_store_with_what_is_known_to_be_durable(group: Group, tmp_path: Path) -> None:
    store = group.lead(0)
    queue = store.queue("orders")
    for number in range(200):  # so that the base moves, and segments below it go
        store.publish("orders", content=bytes(20_000), wait=number % 20 == 19)
        if number % 20 == 19:
            for delivery in queue.acquire(20):
                delivery.accept(wait=False)
    kept = [store.publish("orders", content=f"kept {number}".encode()) for number in range(5)]
    assert len(list(group.stores[0].glob("*.seg"))) < 12
    live = logstore.backup.back_up(group.stores[0], tmp_path / "of a leader")
    beside = logstore.backup.back_up(group.stores[1], tmp_path / "of a follower")
    assert beside.lsn <= live.lsn == store.durable_lsn
    group.reached = {0}  # nobody has the last one
    undurable = store.publish("orders", b"nobody has it", wait=False)
    leading = group.leading
    assert leading is not None
    wait_until(
        lambda: group.sent[-1].end_lsn > undurable and leading.forced >= group.sent[-1].index, "it is in the log"
    )
    group.close()
    alone = logstore.backup.back_up(group.stores[0], tmp_path / "of a stopped member")
    for report in (live, beside, alone):
        assert report.segments == len(list(report.target.glob("*.seg")))
        names = {path.name for path in report.target.iterdir() if path.suffix != ".seg"}
        assert names <= {"META", "LOCK", "CLOSED", "catalog.sqlite"}
        with logstore.open(report.target) as single:
            found = {message.id for message in single.messages("orders")}
            assert undurable not in found
            has = [each for each in kept if each in found]
            assert has == (kept[: len(has)] if report is beside else kept)  # a follower knows it a little later
            assert single.publish("orders", b"goes on") >> 40 > group.sent[-1].term + 65_535
    group.copies = [Copy.open(path) for path in group.paths]  # the copies are as before
    group.close()
    with pytest.raises(errors.ReplicatedStore):
        logstore.open(group.stores[0])


def test_a_removed_copy_leaves_its_members_vote(group: Group) -> None:
    group.lead(0).publish("orders", b"one")
    group.cease()
    copy = group.copy(2)
    term = copy.member().term
    copy.remove()
    assert not group.stores[2].exists()
    copy.close()
    group.copies[2] = copy = Copy.open(group.paths[2])
    member = copy.member()
    assert (member.term, member.voted_for, member.rebuild, member.copy) == (term, 1, 1, 2)
    with pytest.raises(errors.StoreClosed, match="has none yet"):
        copy.info()


def test_a_call_that_waits_when_its_leader_ceases_has_an_unknown_outcome(group: Group) -> None:
    store = group.lead(0)
    group.reached = {0}  # nobody else: nothing becomes durable any more
    problems: list[BaseException] = []

    def publish() -> None:
        try:
            store.publish("orders", content=b"nobody has it")
        except errors.StoreError as problem:
            problems.append(problem)

    before = store.next_lsn
    waiting = threading.Thread(target=publish)
    waiting.start()
    wait_until(lambda: store.next_lsn > before and not store.durable_lsn > before, "the message is in the log")
    group.cease()
    waiting.join()
    assert [type(problem) for problem in problems] == [errors.OutcomeUnknown]
    assert "no longer leads" in str(problems[0])


def test_consumers_that_wait_when_their_leader_ceases_have_an_unknown_outcome_at_once(group: Group) -> None:
    store = group.lead(0)
    queue = store.queue("orders")
    held = queue.acquire(1000)
    problems: list[BaseException] = []

    def take() -> None:
        try:
            queue.acquire(1, timeout=math.inf)
        except errors.StoreError as problem:
            problems.append(problem)

    waiting = [threading.Thread(target=take, daemon=True) for _ in range(8)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: store.stats()["waiting"] == 8, "eight consumers that wait")
    group.cease()
    for thread in waiting:
        thread.join()
    assert [type(problem) for problem in problems] == [errors.OutcomeUnknown] * 8
    assert "no longer leads" in str(problems[0])
    del held


def test_a_batch_that_does_not_follow_is_refused_with_both_places(group: Group) -> None:
    store = group.lead(0)
    store.publish("orders", content=b"one")
    group.cease()
    last = group.sent[-1]
    copy = group.copy(1)
    before = copy.info()
    with pytest.raises(errors.BatchRefused, match=rf"batch {last.index} of term {last.term}.*Nothing was written"):
        copy.take(last)
    with pytest.raises(errors.BatchRefused, match="is durable"):
        copy.cut(1)
    spoiled = Batch(
        last.term, last.index + 1, last.end_lsn, last.end_lsn + len(last.data), last.first_lsn, 0, None, last.data
    )
    with pytest.raises(errors.BatchRefused):
        copy.take(spoiled)
    assert copy.info() == before


def test_a_leader_that_cannot_serve_ceases_and_follows_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(tmp_path, copies=1)
    copy = group.copy(0)
    copy.vote(max(copy.info().least_term, copy.member().term + 1), 1)
    leading = copy.lead(copy.member().term, group.config)
    while (batch := leading.next()) is not None:
        leading.majority_has(batch.end_lsn)

    def fails(*_: object) -> None:
        raise errors.CatalogUnavailable("the catalog cannot be opened")

    with monkeypatch.context() as patched:
        patched.setattr("logstore.cluster.replica._LedStore._open_catalog", fails)
        raised = []
        for _ in range(2):
            with pytest.raises(errors.CatalogUnavailable) as caught:
                leading.serve()
            raised.append(caught)  # with its frames, and so what the failed store had
    leading.cease()
    raised.clear()
    gc.collect()
    assert copy.info().index > 0
    group.close()
