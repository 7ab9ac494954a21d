"""Members of a group come and go, one at a time, through its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.copy_group import CLUSTER
from kit.patience import wait_until
from kit.ports import free_ports
from kit.trio import HOST, Trio
from logstore import errors
from logstore.cluster import engine as engines
from logstore.cluster.joining import remember, remembered
from logstore.cluster.member import Member, MemberConfig
from logstore.cluster.membership import Wanted, is_due, is_made

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path)
    yield made
    made.stop()


def ids(trio: Trio, member: int) -> list[int]:
    return [seat.member for seat in trio.members[member].members(HOST)]


def seat(member: int, voter: bool, acknowledged: int = 9) -> engines.Member:
    return engines.Member(member, acknowledged, voter, f"m{member}@127.0.0.1:{7000 + member}")


def test_each_member_knows_the_others_by_the_configuration_alone(trio: Trio) -> None:
    trio.start()
    trio.store()
    for member in trio.members.values():
        seats = member.members(HOST)
        assert [(each.member, each.name, each.address) for each in seats] == [
            (number, f"m{number}", address) for number, address in trio.addresses.items()
        ]
        assert all(each.voter for each in seats)
    wait_until(lambda: not any(each.problem for each in trio.members[1].members(HOST)), "all are connected")


def test_a_member_is_removed_through_any_other_and_the_rest_goes_on(trio: Trio) -> None:
    trio.start()
    store = trio.store()
    leader = trio.leader()
    asked, leaves = (member for member in trio.members if member != leader)
    trio.members[asked].remove(HOST, leaves)
    wait_until(lambda: ids(trio, asked) == sorted((leader, asked)), "the one that asked knows")
    assert ids(trio, leader) == sorted((leader, asked))
    trio.members[asked].remove(HOST, leaves)  # it is out already
    kept = store.publish("orders", b"two are enough")
    trio.stop(leaves)
    wait_until(lambda: trio.members[asked].standings()[HOST].durable_index >= 3, "it has it")
    assert kept in {message.id for message in store.messages("orders")}


def test_a_member_that_leads_hands_over_and_is_removed(trio: Trio) -> None:
    trio.start()
    store = trio.store()
    kept = store.publish("orders", b"before")
    leaves = trio.leader()
    trio.members[leaves].remove(HOST, leaves)
    rest = [member for member in trio.members if member != leaves]
    wait_until(lambda: all(ids(trio, member) == rest for member in rest), "the others know")
    trio.stop(leaves)
    assert kept in {message.id for message in trio.store().messages("orders")}


def test_the_only_voter_stays(trio: Trio) -> None:
    trio.start()
    trio.store()
    for number in (3, 2):
        leader = trio.leader()
        leaves = next(member for member in (number, 1, 2, 3) if member != leader and member in ids(trio, leader))
        trio.members[leader].remove(HOST, leaves)
    leader = trio.leader()
    assert ids(trio, leader) == [leader]
    with pytest.raises(errors.OptionError, match="the only voter"):
        trio.members[leader].remove(HOST, leader)
    assert trio.store().publish("orders", b"alone")


def test_a_change_without_a_leader_is_not_made_and_says_why(trio: Trio) -> None:
    trio.start(1)
    with pytest.raises(errors.NoMajority, match="no leader is known"):
        trio.members[1].remove(HOST, 2, within_s=0.3)
    assert ids(trio, 1) == [1, 2, 3]


def test_a_leader_that_closes_hands_over_before(trio: Trio) -> None:
    trio.start()
    store = trio.store()
    kept = store.publish("orders", b"before")
    leader = trio.leader()
    rest = [member for member in trio.members if member != leader]
    wait_until(
        lambda: not any(each.problem for each in trio.members[leader].members(HOST)), "the leader is connected to all"
    )
    terms = {member: trio.members[member].standings()[HOST].term for member in rest}
    trio.stop(leader)
    standings = [trio.members[member].standings()[HOST] for member in rest]
    assert any(each.leader in rest and each.term > terms[member] for member, each in zip(rest, standings, strict=True))
    assert kept in {message.id for message in trio.store().messages("orders")}


def test_one_and_two_voters_grow_to_three_and_then_by_two() -> None:
    def voters(count: int) -> list[engines.Member]:
        return [seat(member, voter=True) for member in range(1, count + 1)]

    assert is_due(voters(1)) == 0
    assert is_due([*voters(1), seat(8, voter=False)]) == 8
    assert is_due([*voters(2), seat(8, voter=False)]) == 8
    assert is_due([*voters(2), seat(7, voter=False, acknowledged=0), seat(8, voter=False)]) == 8
    assert is_due([*voters(3), seat(8, voter=False)]) == 0
    assert is_due([*voters(3), seat(8, voter=False), seat(9, voter=False)]) == 8
    assert is_due([*voters(4), seat(9, voter=False)]) == 9
    assert is_due([*voters(5), seat(8, voter=False), seat(9, voter=False)]) == 0


def test_ids_names_and_addresses_are_used_once() -> None:
    members = [seat(1, voter=True), seat(2, voter=False)]

    def add(member: int, text: str) -> bool:
        return is_made(members, Wanted(engines.ADD, member, text))

    assert not add(3, "m3@127.0.0.1:7003")
    assert add(2, "m2@127.0.0.1:7002")
    for member, text in (
        (2, "m3@127.0.0.1:7003"),
        (2, "m2@127.0.0.1:7003"),
        (3, "m2@127.0.0.1:7003"),
        (3, "m3@127.0.0.1:7002"),
    ):
        with pytest.raises(errors.OptionError, match="member 2 is m2 at 127.0.0.1:7002"):
            add(member, text)
    assert is_made(members, Wanted(engines.REMOVE, 3))
    assert not is_made(members, Wanted(engines.REMOVE, 2))
    assert is_made(members, Wanted(engines.PROMOTE, 1))
    assert not is_made(members, Wanted(engines.PROMOTE, 2))


def test_the_file_of_members_is_read_as_it_was_written_and_else_names_nobody(tmp_path: Path) -> None:
    assert remembered(tmp_path) == {}
    members = {7: ("m7", "127.0.0.1:7007"), 9: ("m9", "[::1]:7009")}
    remember(tmp_path, members)
    assert remembered(tmp_path) == members
    path = tmp_path / "members.json"
    whole = path.read_bytes()
    for wrong in (whole[:-9], b"", b"[]", b'{"members": {"x": "m@h:1"}}', b'{"members": {"1": "m"}}', b"\xff\xfe"):
        path.write_bytes(wrong)
        assert remembered(tmp_path) == {}


def test_a_host_whose_copy_cannot_be_opened_is_left_out_and_the_member_lives_on(trio: Trio) -> None:
    trio.start(1, 2)
    kept = trio.store().publish("orders", b"kept")
    vote = trio.host_dir(3) / "VOTE"
    whole = vote.read_bytes()
    vote.write_bytes(bytes(len(whole)))
    trio.start(3)
    standing = trio.members[3].standings()[HOST]
    assert standing.state == "failed"
    assert "VOTE" in standing.problem
    with pytest.raises(errors.StoreError, match="has left its group on this member"):
        trio.members[3].store(HOST)
    trio.stop(3)
    vote.write_bytes(whole)
    trio.start(3)
    wait_until(lambda: trio.members[3].standings()[HOST].leader, "it takes part")
    assert kept in {message.id for message in trio.store().messages("orders")}


def joining(trio: Trio, tmp_path: Path, number: int, at: int) -> Member:
    """A new member, which knows the address of one."""
    directory = tmp_path / f"m{number}"
    directory.mkdir(exist_ok=True)
    (port,) = free_ports(1)
    config = MemberConfig(
        cluster=CLUSTER, member=number, name=f"m{number}", listen=f"127.0.0.1:{port}", join=[trio.addresses[at]]
    )
    trio.members[number] = Member(directory, config)
    return trio.members[number]


def is_voter(member: Member, number: int) -> bool:
    return any(seat.member == number and seat.voter for seat in member.members(HOST))


def test_a_member_that_knows_one_address_joins_and_takes_the_place_of_another(trio: Trio, tmp_path: Path) -> None:
    trio.start()
    store = trio.store()
    published = [store.publish("orders", b"%d" % number) for number in range(300)]
    leader = trio.leader()
    leaves, stays = (member for member in trio.members if member != leader)
    trio.members[leader].remove(HOST, leaves)
    trio.stop(leaves)
    four = joining(trio, tmp_path, 4, stays)
    wait_until(lambda: is_voter(trio.members[leader], 4), "the new one is a voter")
    published.append(store.publish("orders", b"after"))
    newest = trio.members[leader].standings()[HOST].durable_index
    wait_until(lambda: four.standings()[HOST].durable_index >= newest, "it has all")
    trio.stop(leader)
    store = trio.store()  # of the two that are left
    assert [message.id for message in store.messages("orders")][1:] == published
    assert store.publish("orders", b"two of three")


def test_a_group_grows_from_one_member_to_three(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    try:
        trio.start()
        trio.store()
        for _ in range(2):
            leader = trio.leader()
            leaves = next(member for member in list(trio.members) if member != leader)
            trio.members[leader].remove(HOST, leaves)
            trio.stop(leaves)
        (first,) = trio.members
        published = [trio.store().publish("orders", b"%d" % number) for number in range(20)]
        for number in (7, 8):
            joining(trio, tmp_path, number, first)
            wait_until(lambda number=number: is_voter(trio.members[first], number), "it is a voter")
        trio.stop(first)
        assert [message.id for message in trio.store().messages("orders")][1:] == published
    finally:
        trio.stop()


def test_a_member_with_a_name_that_is_taken_does_not_join(
    trio: Trio, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trio.start()
    trio.store()
    directory = tmp_path / "another m2"
    directory.mkdir()
    (port,) = free_ports(1)
    config = MemberConfig(cluster=CLUSTER, member=9, name="m2", listen=f"127.0.0.1:{port}", join=[trio.addresses[1]])
    with Member(directory, config) as nine:
        wait_until(lambda: "ids, names and addresses are used once" in caplog.text, "it says why")
        assert nine.members(HOST) == []
    assert ids(trio, 1) == [1, 2, 3]
