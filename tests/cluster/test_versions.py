"""A replicated log has states of places (notes, counts, moves) once every member knows them, and not before."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pika
import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.amqp_trio import AmqpTrio
from kit.copy_group import CLUSTER
from kit.patience import wait_until
from kit.ports import free_ports
from kit.trio import HOST, Trio, wait_for_all
from logstore.broker.headers import decode_header
from logstore.cluster import frames, member_loop
from logstore.cluster.member import Member, MemberConfig
from logstore.errors import WrongState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logstore import MessageStore


class Programs(Trio):
    """Three members, some of which run a program that does not know states."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.old: set[int] = set()

    def me(self, real: Any, **given: Any) -> Any:
        return real(**given, versions=(1, 1) if given["member"] in self.old else frames.VERSIONS)


@pytest.fixture
def trio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    made = Programs(tmp_path)
    monkeypatch.setattr(member_loop, "Me", partial(made.me, member_loop.Me))
    yield made
    made.stop()


def annotates(store: MessageStore, message: int) -> bool:
    """Whether the store takes notes."""
    try:
        store.annotate(message, "orders", b"noted")
    except WrongState:
        return False
    return True


def test_members_that_all_know_states_write_them_and_the_next_leader_has_them(trio: Programs) -> None:
    trio.start()
    store, leader = trio.store(), trio.leader()
    store.declare_queue("dead")
    noted, moved = (store.publish("orders", b"content") for _ in range(2))
    wait_until(lambda: annotates(store, noted), "every member has said that it knows states")
    for _ in range(2):
        [delivery] = store.queue("orders").acquire_ids([moved])
        delivery.release()
    [delivery] = store.queue("orders").acquire_ids([moved])
    assert delivery.delivery_count == 3
    store.queue("orders").move(delivery, "dead", header=b"moved", note=b"why")
    target = next(member for member in trio.members if member != leader)
    trio.members[leader].transfer(HOST, target)
    wait_until(lambda: trio.members[target].standings()[HOST].state == "leads", "the target leads")
    store = trio.members[target].store(HOST)
    assert {message.id: message.note for message in store.messages("orders")}[noted] == b"noted"
    [found] = store.messages("dead")
    assert (found.id, found.header, found.note) == (moved, b"moved", b"why")


def test_a_leader_whose_log_has_states_writes_more_while_a_member_is_away(trio: Programs) -> None:
    trio.start()
    store, leader = trio.store(), trio.leader()
    message = store.publish("orders", b"content")
    wait_until(lambda: annotates(store, message), "every member has said that it knows states")
    away = next(member for member in trio.members if member != leader)
    trio.stop(away)
    trio.stop(leader)
    trio.start(leader)
    assert annotates(trio.store(), message)


def test_no_state_is_written_until_the_last_member_knows_it(trio: Programs) -> None:
    old = 3
    trio.old.add(old)
    trio.start(1, 2)
    store = trio.store()
    trio.start(old)
    message = store.publish("orders", b"content")
    newest = trio.members[trio.leader()].standings()[HOST].index
    wait_until(lambda: trio.members[old].standings()[HOST].durable_index >= newest, "it follows")
    with pytest.raises(WrongState, match="every member of the cluster runs a program that knows them"):
        store.annotate(message, "orders", b"noted")
    [delivery] = store.queue("orders").acquire_ids([message])
    delivery.release()  # its count is not written
    trio.old.clear()
    trio.stop(old)
    trio.start(old)
    wait_until(lambda: annotates(trio.store(), message), "the last member was updated")


def test_a_member_with_an_older_program_is_refused_once_the_log_has_states(
    trio: Programs, caplog: pytest.LogCaptureFixture
) -> None:
    trio.start()
    store, leader = trio.store(), trio.leader()
    message = store.publish("orders", b"content")
    wait_until(lambda: annotates(store, message), "every member has said that it knows states")
    old = next(member for member in trio.members if member != leader)
    trio.stop(old)
    trio.old.add(old)
    with caplog.at_level(logging.DEBUG):
        trio.start(old)
        wait_until(lambda: "start that member with the program of the others" in caplog.text, "it is refused")
    later = store.publish("orders", b"later")
    trio.stop(old)
    trio.old.clear()
    trio.start(old)
    newest = trio.members[trio.leader()].standings()[HOST].index
    wait_until(lambda: trio.members[old].standings()[HOST].durable_index >= newest, "it has caught up")
    assert later in {each.id for each in trio.store().messages("orders")}


@pytest.mark.parametrize("asks", ["the leader", "another member"])
def test_a_member_with_an_older_program_is_not_added_once_the_log_has_states(
    trio: Programs, tmp_path: Path, caplog: pytest.LogCaptureFixture, asks: str
) -> None:
    trio.start()
    store, leader = trio.store(), trio.leader()
    message = store.publish("orders", b"content")
    wait_until(lambda: annotates(store, message), "every member has said that it knows states")
    at = leader if asks == "the leader" else next(member for member in trio.members if member != leader)
    trio.old.add(4)
    directory = tmp_path / "m4"
    directory.mkdir()
    (port,) = free_ports(1)
    config = MemberConfig(cluster=CLUSTER, member=4, name="m4", listen=f"127.0.0.1:{port}", join=[trio.addresses[at]])
    with Member(directory, config) as four:
        wait_until(lambda: "start it with the program of the others" in caplog.text, "it says why")
        assert four.members(HOST) == []
    assert [seat.member for seat in trio.members[leader].members(HOST)] == [1, 2, 3]
    trio.old.clear()
    with Member(directory, config):
        wait_until(lambda: 4 in {seat.member for seat in trio.members[leader].members(HOST)}, "the newer one is added")


LARGE = bytes(range(256)) * (5 << 12)  # 5 MiB


@pytest.mark.parametrize("is_old", [True, False])
def test_a_large_message_with_a_time_to_live_is_stored_whether_or_not_every_member_knows_headers_of_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    old = 3

    def me(real: Any, **given: Any) -> Any:
        return real(**given, versions=(1, 1) if is_old and given["member"] == old else frames.VERSIONS)

    monkeypatch.setattr(member_loop, "Me", partial(me, member_loop.Me))
    amqp = AmqpTrio(tmp_path)
    try:
        amqp.start(1, 2)
        leader = amqp.serving()
        amqp.start(old)
        store = amqp.trio.store()
        message = store.publish("orders", b"content")
        wait_for_all(amqp.trio)
        if is_old:
            assert not annotates(store, message)
        else:
            wait_until(lambda: annotates(store, message), "every member has said that it knows states")
        channel = amqp.client(leader).channel()
        for queue, arguments in (("plain", {}), ("brief", {"x-message-ttl": 3_600_000})):
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, "amq.fanout")
        transactional = amqp.client(leader).channel()
        transactional.tx_select()
        channel.confirm_delivery()
        expiring = pika.BasicProperties(delivery_mode=2, expiration="7200000")
        for each in (channel, transactional):
            each.basic_publish("", "plain", LARGE, expiring)
            each.basic_publish("", "brief", LARGE)
            each.basic_publish("amq.fanout", "", LARGE, expiring)
        transactional.tx_commit()
        for queue in ("plain", "brief"):
            headers = [decode_header(bytes(each.header), b"") for each in store.messages(queue)]
            expected = [7_200_000 if queue == "plain" else None, 7_200_000]
            assert [each.expiration_ms for each in headers] == expected * 2
            assert [channel.basic_get(queue, auto_ack=True)[2] for _ in range(4)] == [LARGE] * 4
        wait_until(lambda: store.stats()["messages"] == store.queue("orders").depth, "nothing else is left")
    finally:
        amqp.close()
