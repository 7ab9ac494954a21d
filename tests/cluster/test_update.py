"""A member that is behind beyond recycling gets another one's log by whole segments, and then goes on by batches."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kit.copy_group import Group, fill
from kit.patience import wait_until
from logstore import errors
from logstore.catalog.copy import copy_catalog
from logstore.cluster.update import Manifest, Source, Update
from logstore.holds import LogRecycled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


PIECE = 100_000


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    yield made
    made.close()


def opened(store_dir: Path) -> Source:
    found: list[Source] = []

    def try_once() -> bool:
        found.extend(filter(None, [Source.open(store_dir, "update")]))
        return bool(found)

    wait_until(try_once, "the sender can say where its log begins")
    return found[0]


def move(source: Source, update: Update) -> int:
    """Moves all that is asked for; its bytes."""
    moved = 0
    while (part := update.next()) is not None:
        data = source.read(part.first_lsn, part.offset, min(part.bytes, PIECE))
        update.write(part.first_lsn, part.offset, data)
        moved += len(data)
    return moved


def test_a_member_behind_beyond_recycling_is_updated_while_the_leader_publishes(group: Group) -> None:
    store = group.lead(0)
    group.reached = {0, 1}
    stay = fill(store, 300)
    behind = group.copy(2)
    with pytest.raises(errors.BatchRefused):
        behind.take(group.sent[-1])
    with opened(group.stores[0]) as source:
        manifest = source.manifest()
        assert manifest.segments[0].first_lsn > behind.info().end_lsn
        with Update(behind, manifest) as update:
            stay += fill(store, 40)
            assert move(source, update) == sum(one.bytes for one in manifest.segments)
            assert behind.member().copy == 1
            copy_catalog(group.stores[0], update.path, store_uuid=manifest.uuid, live=True)
            update.finish()
        assert (behind.member().copy, behind.info().index) == (2, manifest.index)
        assert [path.name for path in group.paths[2].glob("copy-*")] == ["copy-2"]
        source.keep(manifest.end_lsn)
        for batch in list(group.sent):
            if batch.index > manifest.index:
                behind.take(batch)
    group.reached = {0, 1, 2}
    stay.append(store.publish("orders", content=b"for all"))
    wait_until(lambda: behind.info().applied_lsn == group.sent[-1].end_lsn, "it has applied all")
    group.cease()
    store = group.lead(2)
    assert set(stay) <= {message.id for message in store.messages("orders")}


def test_a_sender_whose_own_copy_is_replaced_ends_as_recycled(group: Group) -> None:
    store = group.lead(0)
    fill(store, 40)
    member = group.copy(2)
    with opened(group.stores[2]) as sender, opened(group.stores[0]) as source:
        sent = sender.manifest()
        group.reached = {0, 1}
        fill(store, 10)
        with Update(member, source.manifest()) as update:
            move(source, update)
            copy_catalog(group.stores[0], update.path, store_uuid=sent.uuid, live=True)
            update.finish()
        with pytest.raises(LogRecycled, match="replaced"):
            sender.keep()
        with pytest.raises(LogRecycled):
            sender.read(sent.segments[0].first_lsn, 0, 8)


def test_an_update_that_is_not_whole_does_not_count(group: Group) -> None:
    store = group.lead(0)
    group.reached = {0, 1}
    fill(store, 100)
    behind = group.copy(2)
    before = behind.info()
    with opened(group.stores[1]) as source:
        manifest = source.manifest()
        with Update(behind, manifest) as update:
            part = update.next()
            assert part is not None
            update.write(part.first_lsn, 0, source.read(part.first_lsn, 0, PIECE))
            with pytest.raises(errors.BatchRefused, match="not whole"):
                update.finish()
            with pytest.raises(errors.BatchRefused, match="did not ask"):
                update.write(part.first_lsn, 0, b"12345678")
    assert behind.member().copy == 1
    assert behind.info() == before


def refused(group: Group, manifest: Manifest) -> None:
    with pytest.raises(errors.BatchRefused, match="Nothing was written"):
        Update(group.copy(2), manifest)


def test_a_manifest_that_lies_is_refused(group: Group) -> None:
    store = group.lead(0)
    fill(store, 40)
    with opened(group.stores[0]) as source:
        manifest = source.manifest()
    refused(group, dataclasses.replace(manifest, uuid=bytes(16)))
    refused(group, dataclasses.replace(manifest, segments=()))
    refused(group, dataclasses.replace(manifest, segments=manifest.segments[1:] + manifest.segments[:1]))
    refused(group, dataclasses.replace(manifest, end_lsn=manifest.end_lsn + 8))
    with pytest.raises(errors.OptionError, match="UUID"):
        Update(group.copy(2), dataclasses.replace(manifest, uuid=b"short"))
