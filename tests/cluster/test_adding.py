"""A host is added to a running cluster, as a whole or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.patience import PATIENCE_S, wait_until
from kit.stores import SMALL_SEGMENT
from kit.trio import HOST, Trio
from logstore import errors
from logstore.cluster import adding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEW = "invoices"


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path)
    yield made
    made.stop()


def wait_until_connected(trio: Trio) -> None:
    trio.store()
    wait_until(lambda: not any(each.problem for each in trio.members[1].members(HOST)), "all are connected")


def add(trio: Trio, member: int, name: str = NEW) -> int:
    return trio.members[member].add_host(name, segment_size=SMALL_SEGMENT, within_s=PATIENCE_S)


def hosts(trio: Trio, member: int) -> list[str]:
    return sorted(path.name for path in trio.directories[member].iterdir() if path.is_dir())


def test_an_added_host_has_three_voters_and_survives_the_member_that_made_it(trio: Trio) -> None:
    trio.start()
    wait_until_connected(trio)
    assert add(trio, 2) == 3
    assert [hosts(trio, member) for member in trio.members] == [[NEW, HOST]] * 3
    store = trio.store(NEW)
    store.declare_queue("due")
    kept = store.publish("due", b"first")
    trio.stop(2)
    assert [message.id for message in trio.store(NEW).messages("due")] == [kept]
    assert trio.store(HOST).queue("orders").depth == 1  # the other host goes on


def test_an_added_host_is_there_after_all_have_started_again(trio: Trio) -> None:
    trio.start()
    wait_until_connected(trio)
    assert add(trio, 1) == 3
    trio.stop()
    trio.start()
    assert trio.store(NEW).queues() == []


def test_a_name_is_taken_once(trio: Trio) -> None:
    trio.start()
    wait_until_connected(trio)
    with pytest.raises(errors.OptionError, match="has a host or a file 'orders-host' already"):
        add(trio, 1, HOST)
    with pytest.raises(errors.OptionError, match="a host's name has letters"):
        add(trio, 1, "a/b")
    assert [hosts(trio, member) for member in trio.members] == [[HOST]] * 3


def test_no_host_is_added_while_a_member_does_not_answer(trio: Trio) -> None:
    trio.start()
    wait_until_connected(trio)
    trio.stop(3)
    with pytest.raises(errors.StoreError):
        add(trio, 1)
    assert hosts(trio, 1) == [HOST]
    trio.start(3)
    wait_until_connected(trio)
    assert add(trio, 1) == 3


def test_what_an_interrupted_call_left_is_no_host(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    trio.start()
    wait_until_connected(trio)

    def refuse(*_: Any, **_named: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(adding, "make_host", refuse)
        with pytest.raises(errors.StoreError, match="no host can be made"):
            add(trio, 1)
    assert hosts(trio, 1) == [HOST]
    trio.stop(1)
    with monkeypatch.context() as patched:  # as a kill before the rename leaves it
        patched.setattr(os, "rename", refuse)
        patched.setattr(adding.shutil, "rmtree", lambda *_args, **_named: None)
        with pytest.raises(errors.StoreError, match="no host can be made"):
            adding._make(
                trio.directories[1], NEW, trio.config(1).cluster, (1, f"m1@{trio.addresses[1]}"), SMALL_SEGMENT
            )
    assert hosts(trio, 1) == [adding.NEW, HOST]
    trio.start(1)
    wait_until_connected(trio)
    assert add(trio, 1) == 3
    assert hosts(trio, 1) == [NEW, HOST]
