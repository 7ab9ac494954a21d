"""Plain connections only on the loopback; else TLS, in which each member shows its name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")

from kit.members import LISTEN, Node, append, batch, close, mesh, received, run
from logstore.cluster.addresses import Tls, named, parse_named
from logstore.cluster.certificates import Files, make_authority, make_certificate
from logstore.cluster.frames import Carried
from logstore.errors import OptionError, StoreError

__all__ = ["run"]


def test_plain_connections_are_for_the_loopback_only() -> None:
    async def test() -> None:
        node = Node(1)
        for address in ("0.0.0.0:0", "192.0.2.1:7000", "[::]:0", "member-2.example:7000"):
            with pytest.raises(OptionError, match="need TLS: give ca, cert and key"):
                await node.transport.start(address)
            with pytest.raises(OptionError, match="need TLS"):
                node.transport.set_peers({2: ("member-2", address)})
        for wrong in ("127.0.0.1", "::1:70", "127.0.0.1:x", ":7000", "127.0.0.1:70000"):
            with pytest.raises(OptionError, match="HOST:PORT"):
                node.transport.set_peers({2: ("member-2", wrong)})
        with pytest.raises(OptionError, match="name"):
            node.transport.set_peers({2: ("Member 2", LISTEN)})
        with pytest.raises(OptionError, match="no peer of its own"):
            node.transport.set_peers({1: ("member-1", LISTEN)})
        await node.listen()
        other = Node(2)
        with pytest.raises(StoreError, match="cannot be used"):
            await other.transport.start(node.address)
        await close(node, other)

    asyncio.run(test())


# ---- TLS -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tls]:
    pytest.importorskip("cryptography", reason="the extra cluster is not installed")
    where: Path = tmp_path_factory.mktemp("certificates")
    authority, stranger = make_authority(where), make_authority(where / "stranger")
    made: dict[str, Files] = {
        name: make_certificate(where, authority, name, ["127.0.0.1"]) for name in ("member-1", "member-2", "member-3")
    }
    found = {name: Tls(authority.cert, each.cert, each.key) for name, each in made.items()}
    foreign = make_certificate(where / "stranger", stranger, "member-2")
    found["foreign"] = Tls(authority.cert, foreign.cert, foreign.key)
    return found


def test_members_with_certificates_talk_and_send_updates(run: Any, files: dict[str, Tls]) -> None:
    async def test() -> None:
        one, two = Node(1, tls=files["member-1"]), Node(2, tls=files["member-2"])
        await mesh(one, two)
        assert one.links()[0].transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        frame, carried = append(1, *(Carried(batch(1 + i, 1 << 20), 1) for i in range(5)))
        assert one.transport.send(2, one.host, frame, carried)
        await two.told.until(lambda: len(received(two, 1)) == 1)
        assert two.told.batches_of[1, two.host] == [each.batch for each in carried]
        reader, writer = await one.transport.open_update(2)
        _, there, back = await two.told.updates.get()
        writer.write(bytes(1 << 20))
        assert await there.readexactly(1 << 20) == bytes(1 << 20)
        back.write(b"done")
        assert await reader.readexactly(4) == b"done"
        one.links()[0].transport.abort()  # as a killed process: TLS is not ended
        await two.told.event("lost", 1, True)
        await close(one, two)

    run(test())


@pytest.mark.parametrize("certificate", ["foreign", "member-3", "plain"])
def test_a_member_without_the_right_certificate_is_refused_with_a_reason(
    run: Any, files: dict[str, Tls], certificate: str
) -> None:
    """It dials, and it is dialled."""

    async def test() -> None:
        one, two = Node(1, tls=files["member-1"]), Node(2, tls=files.get(certificate))
        await one.listen()
        await two.listen()
        one.knows(two)
        two.knows(one)
        await one.told.event("refused", 2, "TLS")
        await two.told.event("refused", 1, "wrong name" if certificate == "member-3" else "no answer")
        if certificate == "member-3":
            await one.told.event("refused", 0, "wrong name")
        assert "certificate verify failed" in one.transport.why_not(2) or certificate == "plain"
        assert one.told.count("connected") + two.told.count("connected") == 0
        await close(one, two)

    run(test())


def test_files_that_cannot_be_used_are_named(files: dict[str, Tls], tmp_path: Path) -> None:
    good = files["member-1"]
    for wrong in (
        Tls(tmp_path / "no", good.cert, good.key),
        Tls(good.ca, tmp_path / "no", good.key),
        Tls(good.ca, good.cert, files["member-2"].key),
        Tls(good.key, good.cert, good.key),
    ):
        with pytest.raises(OptionError, match="cannot be used"):
            wrong.context(listens=True)


def test_a_configuration_has_a_members_name_and_address_as_one_text() -> None:
    assert named("m2", "[::1]:7002") == "m2@[::1]:7002"
    assert parse_named("m2@[::1]:7002") == ("m2", "[::1]:7002")
    for wrong in ("", "127.0.0.1:7000", "@127.0.0.1:7000", "m2@"):
        with pytest.raises(OptionError):
            parse_named(wrong)


def test_a_program_that_joins_needs_a_certificate_of_the_cluster_with_its_name(files: dict[str, Tls]) -> None:
    async def test() -> None:
        node = Node(1, tls=files["member-1"])
        await node.listen()
        newcomer = Node(3, tls=files["member-3"])
        hello, _, writer = await newcomer.transport.open_join(node.address)
        assert (hello.member, hello.name) == (1, "member-1")
        asked, _, answers = await node.told.joins.get()
        assert (asked.member, asked.name) == (3, "member-3")
        for each in (writer, answers):
            each.close()
        for wrong in (Node(3, tls=files["member-2"]), Node(2, tls=files["foreign"])):
            with pytest.raises(StoreError, match="no join from a member"):
                await wrong.transport.open_join(node.address)
            await close(wrong)
        await close(node, newcomer)

    asyncio.run(test())
