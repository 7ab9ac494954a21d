"""Salvage: copies everything readable of a damaged store into a new one, and lists what is lost.

    report = logstore.salvage.salvage("damaged", "rescued")

It must never write in the damaged directory, drop a readable message silently, or report success before the core has
opened the new store and every byte was compared.

Invariant: the new store has its own UUID, because the damaged one still exists, and neither its files nor a catalog on
a server may be taken for those of the new store. Message ids, queue ids, contents, headers, the order on every queue,
the states of places and transactions in doubt are unchanged. The new store appears under its name complete or not at
all.
"""

from __future__ import annotations

import array
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from logstore.catalog.transient import TransientIds
from logstore.codec.records import (
    InvalidRecord,
    Record,
    decode_record,
    segment_seed,
)
from logstore.core import arguments
from logstore.core.counts import counted
from logstore.core.directory import lies_in
from logstore.core.imports import late
from logstore.core.regular_files import force_directory, told
from logstore.errors import CorruptLog, OptionError, StoreError
from logstore.inspect import Inspection
from logstore.inspect.place_states import state_differences
from logstore.salvage.catalog import Names, read_names, write_names
from logstore.salvage.log import read_log
from logstore.salvage.report import Salvaged
from logstore.salvage.source import Source
from logstore.salvage.write import (
    Digest,
    LogWriter,
    first_lsn_beyond,
    write_message,
    write_transaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.codec.state import Message, PlaceState
    from logstore.salvage.state import State

COMPARED_BYTES = 1 << 20  # of one content, per step
_SHOWN: Final = 10  # ids in a note
FOUND_QUEUE = "lost-and-found"  # for messages with unknown queues

__all__ = ["FOUND_QUEUE", "Salvaged", "salvage"]


def salvage(
    store_dir: str | os.PathLike[str],
    target: str | os.PathLike[str] | None,
    *,
    connect: str | None = None,
    catalog: str | None = None,
    show: Callable[[str, int, int], None] = lambda *_: None,
) -> Salvaged:
    """Copies everything readable of the store in ``store_dir`` into a new store ``target``, and reports what is lost.

    Without a ``target`` nothing is written; the report says what would be. ``connect`` and ``catalog`` name the server
    that has the damaged store's catalog; the new store's catalog is in its directory. ``show`` is called with the
    present step, the amount done and the total, in bytes or messages.

    Raises ``OptionError`` for a target that exists and is not an empty directory, ``NotAStore`` if nothing identifies
    the store, ``StoreLocked`` while a writer runs, ``VersionError``, ``CatalogUnavailable``, ``StoreFull``, or
    ``StoreError`` if the system refuses. After any error there is no new store and the old one is unchanged.
    """
    path = arguments.path("store_dir", store_dir)
    goal = arguments.optional(arguments.path, "target", target)
    arguments.catalog(connect, catalog, called="catalog")
    arguments.function("show", show)
    place = None if goal is None else _checked_target(path, goal)
    with Source(path) as source:
        log = read_log(source, lambda done, total: show("reading", done, total))
        names = read_names(path, source.uuid, connect=connect, schema=catalog)
        dropped = names.forget(log.replay.deleted_queues)
        state = log.replay.finish(names.is_gone)
        report = Salvaged._of(source, log, state, names, dropped)
        transient = TransientIds.of(names.config)
        if ended := sorted(queue_id for queue_id in state.queues_gone if queue_id in transient):
            listed = ", ".join(map(str, ended[:_SHOWN])) + (", …" if ended[_SHOWN:] else "")
            report.notes.append(f"not copied: messages on {counted(len(ended), 'transient queue')} ({listed})")
        found_queue = _complete(names, state, report)
        if place is not None:
            _write(source, state, names, place, report, found_queue, log.end_lsn, show)
    return report


def _checked_target(path: Path, target: Path) -> Path:
    place, source = target.absolute(), path.absolute()
    if lies_in(place, source):
        raise OptionError(f"the new store cannot be {target}, in the damaged one: nothing is written there")
    try:
        status = place.lstat()
        usable = stat.S_ISDIR(status.st_mode) and not os.listdir(place)
    except FileNotFoundError:
        return place
    except OSError as error:
        raise OptionError(f"the target {target} cannot be looked at ({told(error)}); choose another place") from error
    if not usable:
        raise OptionError(
            f"the target {target} is there and not an empty directory; choose another one for the new store"
        )
    return place


def _complete(names: Names, state: State, report: Salvaged) -> int:
    """Gives every required queue a row; returns the id of the queue for found messages, or 0 if there are none."""
    needed = {place.queue_id for message in state.messages.values() for place in message.places}
    needed |= {work.queue_id for message in state.messages.values() for work in message.pending or ()}
    names.next_queue_id = max(names.next_queue_id, state.queue_id_max + 1)
    names.complete(needed)
    found_queue = names.add(FOUND_QUEUE) if state.found else 0
    report._name_queues(names, found_queue)
    return found_queue


# ---- Writing


def _write(
    source: Source,
    state: State,
    names: Names,
    place: Path,
    report: Salvaged,
    found_queue: int,
    end_lsn: int,
    show: Callable[[str, int, int], None],
) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".salvage", dir=place.parent))
    except OSError as error:
        raise StoreError(f"no directory can be made beside {place} ({told(error)}); choose another place") from error
    try:
        _write_into(made, source, state, names, report, found_queue, end_lsn, show)
        force_directory(made)
        os.rename(made, place)  # replaces an empty directory of that name
        force_directory(place.parent)
    except OSError as error:
        raise StoreError(f"the new store {place} cannot be put into place ({told(error)})") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    report.target = str(place)


def _write_into(
    made: Path,
    source: Source,
    state: State,
    names: Names,
    report: Salvaged,
    found_queue: int,
    end_lsn: int,
    show: Callable[[str, int, int], None],
) -> None:
    uuid = uuid4()
    first_lsn = first_lsn_beyond(end_lsn, source.gap_bytes, source.segment_size)
    contents = Contents(source)
    for message_id, message in state.found.items():
        message.places = (message.as_found(message_id, found_queue),)
    everything = state.messages if not state.found else state.messages | state.found
    ids = sorted(everything, key=lambda one: everything[one].start_lsn)  # so that the old log is read in order
    digests = array.array("Q")
    writer = LogWriter(made, uuid, source.segment_size, first_lsn)
    try:
        for transaction in state.transactions.values():
            write_transaction(writer, transaction)
        for done, message_id in enumerate(ids):
            digests.append(write_message(writer, message_id, everything[message_id], contents.read))
            if done % 1024 == 0:
                show("writing", done, len(ids))
        writer.close(source.max_undurable_bytes)
    finally:
        writer.abandon()
    write_names(made, uuid, names)
    report.uuid = str(uuid)
    report.bytes_written = writer.bytes_written
    _prove(made, state, everything, ids, digests, show)


class Contents:
    """Records of the old log, read and verified a second time; at most one is in memory."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._files = {one.first_lsn: one for one in source.files}
        self._seeds = {one.first_lsn: segment_seed(source.uuid, one.first_lsn, one.epoch) for one in source.files}

    def read(self, lsn: int) -> Record:
        """The record at this LSN, which was valid when the log was read."""
        first_lsn = lsn - lsn % self._source.segment_size
        file, offset = self._files[first_lsn], lsn - first_lsn
        try:
            head = self._source.read(file, offset, 4096)
            length = int.from_bytes(head[12:16], "little")
            raw = head if length <= len(head) else self._source.read(file, offset, length)
            return decode_record(raw, 0, self._seeds[first_lsn], lsn)
        except (InvalidRecord, OSError) as error:
            raise CorruptLog(
                f"a record could be read before, and now cannot ({error}): the disk is failing while it is read. "
                "Copy the directory to another disk, and salvage the copy",
                segment=file.name,
                offset=offset,
                lsn=lsn,
            ) from error


def _prove(
    made: Path,
    state: State,
    everything: dict[int, Message],
    ids: list[int],
    digests: array.array[int],
    show: Callable[[str, int, int], None],
) -> None:
    """Opens the new store with the core and compares every queue, content, header, state and transaction in it."""
    late("logstore")
    import logstore

    places: dict[int, list[tuple[int, int, int]]] = {}
    states: dict[tuple[int, int], PlaceState] = {}
    for message_id, message in everything.items():
        for place in message.places:
            places.setdefault(place.queue_id, []).append((place.order_lsn, place.order_index, message_id))
            if place.state is not None:
                states[message_id, place.queue_id] = place.state
    with logstore.open(made, create=False, max_prepared=65_536) as store:
        for queue in store.queues():
            wanted = [message_id for *_, message_id in sorted(places.pop(queue.id, []))]
            shown = [message.id for message in store.messages(queue)]
            _agree(shown == wanted, f"queue {queue.name!r} holds other messages, or in another order")
        _agree(not places, "queues are missing")
        for done, message_id in enumerate(ids):
            digest = Digest(store.header(message_id))
            for offset in range(0, everything[message_id].content_bytes or 0, COMPARED_BYTES):
                digest.add(store.load_content(message_id, offset, COMPARED_BYTES))
            _agree(digest.value() == digests[done], f"message {message_id} differs")
            if done % 1024 == 0:
                show("comparing", done, len(ids))
        in_doubt = {one.id for one in store.in_doubt()}
        _agree(in_doubt == set(state.transactions), "other transactions are in doubt")
    with Inspection(made) as written:
        written.read()
        for difference in state_differences(written, states):
            _agree(False, difference)


def _agree(same: bool, what: str) -> None:
    if not same:
        raise AssertionError(f"the new store is not what was written: {what}")
