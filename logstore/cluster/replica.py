"""A member's copy of a replicated store: :class:`Copy` follows, :class:`LeadingStore` leads.

This is the core's ``ls_host_*`` and ``ls_replica_*`` in Python, without a network and without consensus: a program
moves the batches from the copy that leads to those that follow, says what a majority has forced, and decides which copy
leads in which term. A member's directory has the copy in ``copy-1`` and, beside it, ``VOTE``: what the member must not
forget. docs/replication.md explains what each step promises.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from logstore import errors
from logstore._core import ffi, lib
from logstore.core import arguments
from logstore.core.native import check, copied
from logstore.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from logstore._core import ls_host_ptr, ls_replica_ptr
    from logstore.catalog.catalog import Catalog
    from logstore.cluster.catalog_log import FollowedCatalog

HEADER_BYTES: Final = 4096
UUID_BYTES: Final = 16
ID_MAX: Final = (1 << 64) - 1
TERM_MAX: Final = (1 << 23) - 1


class Applied(NamedTuple):
    """What :meth:`Copy.apply` applied and found."""

    term: int
    """Of the batch."""
    has_changes: bool
    """The catalog may lack something."""
    room: Room


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that one group commit of the leader wrote, the same in every copy."""

    term: int
    index: int
    """Its number since replication began."""
    lsn: int
    end_lsn: int
    first_lsn: int
    """The first LSN of its segment."""
    known_durable_lsn: int
    """Everything below it was known to be on a majority's disks."""
    header: bytes | None
    """The header of its segment, if it is the segment's first batch."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """The data about a kept batch, without its bytes."""

    index: int
    term: int
    lsn: int
    end_lsn: int
    first_lsn: int
    """The first LSN of its segment."""
    kind: str
    """``batch``, ``first`` (the empty first batch of a term) or ``members`` (a configuration)."""


KINDS: Final = {lib.LS_ENTRY_BATCH: "batch", lib.LS_ENTRY_FIRST: "first", lib.LS_ENTRY_MEMBERS: "members"}


@dataclass(frozen=True, slots=True)
class CopyInfo:
    """The state of a copy. Numbers are 0 while the log is not replicated."""

    term: int
    index: int
    end_lsn: int
    """Everything below it is forced on this copy's disk."""
    applied_term: int
    applied_index: int
    applied_lsn: int
    """Everything below it is durable, and in this copy's table."""
    durable_lsn: int
    base_lsn: int
    least_term: int
    """The least term in which this copy may lead."""
    messages: int
    changes_from_lsn: int
    """The core gives the catalog's changes from here on; those below may stand in the log, too."""
    stats: dict[str, int]


class Room(NamedTuple):
    """The segment files that a copy has room for."""

    spares: int
    """Files beside those of its log."""
    first_lsn: int
    """Of the segment that it writes."""
    applied_lsn: int
    sys_errno: int
    """Of why it can make no more files; 0: it can."""


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """The contents of ``VOTE``."""

    member_id: int
    cluster: bytes
    """The cluster's UUID."""
    uuid: bytes
    """The store's UUID."""
    copy: int
    """The store is in the directory ``copy-N``."""
    term: int
    voted_for: int
    """The member that has this member's vote in the term; 0: none. If ``VOTE`` is older than the log, the vote counts
    as given to the member itself."""
    start_term: int
    """The term that ``VOTE`` had when the copy was opened."""
    rebuild: int
    """How often the copy was removed and made again."""
    floor_term: int
    floor_index: int
    """The log must reach this batch at an open."""
    tail_term: int
    tail_index: int
    """The newest batch with an index that is forced here; 0 if there is none, or while the copy leads."""


def create(
    host_dir: str | os.PathLike[str], member_id: int, cluster: bytes, *, copy: int = 1, uuid: bytes = bytes(UUID_BYTES)
) -> None:
    """Makes ``host_dir`` a member's directory: writes ``VOTE``, and the store in ``copy-N`` becomes the member's copy.

    No byte of the store changes. Without that directory the member has no copy yet, and ``uuid`` says of which store
    it is to have one. ``cluster`` is the cluster's UUID, 16 bytes; ``member_id`` is from 1 on and never used again. A
    ``VOTE`` that is detached is replaced. Raises ``OptionError`` if there is a ``VOTE`` that is not, or another copy;
    ``NotAStore``, ``StoreLocked``, and ``ReplicatedStore`` for a member's copy that has lost its ``VOTE``.
    """
    path = arguments.path("host_dir", host_dir)
    member = ffi.new("ls_member *")
    for name, given, into in (("cluster", cluster, member.cluster_uuid), ("uuid", uuid, member.uuid)):
        if len(given) != UUID_BYTES:
            raise errors.OptionError(f"{name} is a UUID: {UUID_BYTES} bytes")
        ffi.memmove(into, given, UUID_BYTES)
    member.member_id = arguments.integer("member_id", member_id, 1, ID_MAX)
    member.copy = arguments.integer("copy", copy, 1, ID_MAX)
    check(lib.ls_host_create(ffi.NULL, os.fsencode(path), member))


def detach(host_dir: str | os.PathLike[str], highest_term: int = 0) -> Path:
    """Ends replication in a member's directory that is not open; returns the directory of the resulting single store.

    :func:`logstore.open` opens it, with all that the copy has, also what no majority had. ``highest_term`` is the
    highest term that the program knows of. If it fails or is killed, the same call finishes; until then nothing opens
    the copy. A catalog that follows the log gets all changes that it lacks. Raises ``OptionError`` if the store is not
    replicated, and the errors of :meth:`Copy.open`.
    """
    path = arguments.path("host_dir", host_dir)
    highest = arguments.integer("highest_term", highest_term, 0, TERM_MAX)
    options, copy = _options(catalog=True), ffi.new("uint64_t *")
    _give_catalog_what_is_durable(path, options)
    code = lib.ls_host_detach(ffi.NULL, os.fsencode(path), options, highest, copy)
    place = path / f"copy-{copy[0]}"
    if code == lib.LS_WOULD_WAIT:
        from logstore.inspect.catalog_changes import take_undurable  # late: it needs SQL

        options.catalog_lsn = take_undurable(place)
        code = lib.ls_host_detach(ffi.NULL, os.fsencode(path), options, highest, copy)
    check(code)
    return place


def _give_catalog_what_is_durable(path: Path, options: Any) -> None:
    """Gives the catalog the durable changes first: a change that the log has lost is found before anything ends."""
    made = ffi.new("ls_host **")
    code = lib.ls_host_open(ffi.NULL, os.fsencode(path), options, made)
    if code == lib.LS_NOT_A_STORE:
        return  # a detach was interrupted, or the core reports the problem
    check(code)
    from logstore.catalog.changes import applied_lsn  # late: it needs SQL
    from logstore.inspect.catalog_changes import follows_its_log

    with Copy(path, options, made[0]) as copy:
        if lib.ls_host_replica(copy._member()) == ffi.NULL or copy.info().index == 0:
            return
        member = copy.member()
        place = path / f"copy-{member.copy}"
        if applied_lsn(place, member.uuid) is not None:
            copy._follow_catalog()
            copy.note_catalog()
            return
    follows_its_log(place, member.uuid)  # no other process has the log open, so this also reads what is not durable


def _options(max_write_buffers: int = 10, kept_bytes: int = 0, *, catalog: bool = False) -> Any:
    options = ffi.new("ls_options *")
    lib.ls_options_default(options)
    options.create = False
    # All segments are kept until the catalog says up to where it has the changes.
    options.catalog_lsn = 1 if catalog else 0
    options.max_write_buffers = arguments.integer("max_write_buffers", max_write_buffers, 2, 64)
    options.kept_bytes = arguments.integer("kept_bytes", kept_bytes, 0, arguments.LSN_MAX)
    return options


def _batch_of(found: Any) -> Batch:
    """Copies bytes that the core shows only until its next call."""
    header = None if found.header == ffi.NULL else bytes(ffi.buffer(found.header, HEADER_BYTES))
    data = bytes(ffi.buffer(found.bytes, found.end_lsn - found.lsn))
    return Batch(
        found.term, found.index, found.lsn, found.end_lsn, found.first_lsn, found.known_durable_lsn, header, data
    )


def configuration_of(batch: Batch) -> bytes:
    """The configuration in a batch of kind ``members``. Raises ``OptionError`` if it has none."""
    data = ffi.from_buffer("uint8_t[]", batch.data)
    numbers = batch.term, batch.index, batch.lsn, batch.end_lsn, batch.first_lsn, batch.known_durable_lsn
    given = ffi.new("ls_replica_batch *", [*numbers, ffi.NULL, data])
    config, size = ffi.new("uint8_t **"), ffi.new("size_t *")
    check(lib.ls_replica_members(given, config, size))
    return bytes(ffi.buffer(config[0], size[0]))


def _why_not(batch: Batch) -> str | None:
    """Why the core is not called at all: a buffer does not have the length that the core would read."""
    if len(batch.data) != batch.end_lsn - batch.lsn:
        return (
            f"batch {batch.index} of term {batch.term} at LSN {batch.lsn} has {len(batch.data)} bytes, "
            f"and not those up to LSN {batch.end_lsn}. Nothing was written"
        )
    if batch.header is not None and len(batch.header) != HEADER_BYTES:
        return f"a segment's header has {HEADER_BYTES} bytes, not {len(batch.header)}"
    return None


class Copy:
    """A member's copy, which follows or leads. One thread at a time may use it; a context manager."""

    def __init__(self, path: Path, options: Any, host: ls_host_ptr) -> None:
        """As :meth:`open` makes it."""
        self.path = path
        self._options = options
        self._host: ls_host_ptr | None = host
        self._leading: LeadingStore | None = None
        self._catalog: FollowedCatalog | None = None
        self._catalog_of = 0  # the copy whose catalog that is

    @classmethod
    def open(
        cls,
        host_dir: str | os.PathLike[str],
        *,
        max_write_buffers: int = 10,
        kept_bytes: int = 0,
        catalog: bool = False,
    ) -> Self:
        """Opens a member's directory: checks that its copy may take part, and forces the tail of its log again.

        With ``kept_bytes`` the copy gives its newest batches to other members, see :meth:`kept`. With ``catalog`` the
        store's catalog goes through the log: the store that leads writes each change there first, and each copy changes
        its own file when that is durable; the segments that it needs for that stay. Directories of copies
        that do not count are removed. Raises ``CatalogMismatch`` if the copy's catalog lacks changes that the log no
        longer has, ``NotAStore`` without ``VOTE``, or if replication
        has ended there; ``CorruptLog`` if ``VOTE`` is damaged, or if the log is older than what this member had
        acknowledged; ``StoreLocked`` and ``VersionError`` as :func:`logstore.open` does.
        """
        path = Path(arguments.path("host_dir", host_dir))
        options = _options(max_write_buffers, kept_bytes, catalog=catalog)
        made = ffi.new("ls_host **")
        check(lib.ls_host_open(ffi.NULL, os.fsencode(path), options, made))
        opened = cls(path, options, made[0])
        try:
            opened._follow_catalog()
        except BaseException:
            opened.close()
            raise
        return opened

    def _member(self) -> ls_host_ptr:
        if self._host is None:
            raise errors.StoreClosed("this copy is closed: open it again")
        return self._host

    def _usable(self) -> ls_replica_ptr:
        found = lib.ls_host_replica(self._member())
        if found == ffi.NULL:
            raise errors.StoreClosed("this copy does not follow: it leads, or the member has none yet")
        return found

    @property
    def is_there(self) -> bool:
        """False: the member has no copy yet, or has removed it; an update will bring one."""
        return self._leading is not None or lib.ls_host_replica(self._member()) != ffi.NULL

    def _leads(self) -> Any:
        return ffi.NULL if self._leading is None else self._leading.store

    @property
    def leading(self) -> LeadingStore | None:
        """The store that leads; None: the copy follows."""
        return self._leading

    def _has_catalog(self) -> bool:
        return bool(self._options.catalog_lsn)

    def _follow_catalog(self) -> None:
        """Applies to the copy's catalog all changes of the log that the copy, which follows, has applied."""
        if not self._has_catalog() or lib.ls_host_replica(self._member()) == ffi.NULL:
            return
        from logstore.cluster.catalog_log import FollowedCatalog  # imported late: a copy without a catalog needs no SQL

        member = self.member()
        if self._catalog is None or self._catalog_of != member.copy:
            self._leave_catalog()
            self._catalog = FollowedCatalog(self.path / f"copy-{member.copy}", member.uuid)
            self._catalog_of = member.copy
            info = self.info()
            self._catalog.begin(
                replicated=info.index != 0, changes_from_lsn=info.changes_from_lsn, end_lsn=info.end_lsn
            )
        self._apply_changes(self._catalog)

    def _apply_changes(self, catalog: FollowedCatalog) -> None:
        from logstore.cluster.catalog_log import changes_of

        had = catalog.applied_lsn
        catalog.apply(changes_of(self._member(), self._leads()))
        if catalog.applied_lsn != had:
            self.catalog_has(catalog.applied_lsn or 0)

    def _leave_catalog(self) -> None:
        left, self._catalog = self._catalog, None
        if left is not None:
            left.close()

    def note_catalog(self) -> None:
        """Lets the catalog's file say that it has every change up to the applied LSN. Call it now and then.

        So a start need not look for changes below, and the log need not keep what lies there. It waits for the disk. On
        a full disk it is tried in the blocks that the file has.
        """
        try:
            self._note_catalog()
        except errors.CatalogError as error:
            used = self._used_catalog()
            if not error.is_full or used is None:
                raise
            used.reuse_blocks()
            self._note_catalog()

    def _used_catalog(self) -> Catalog | None:
        if self._leading is None:
            return None if self._catalog is None else self._catalog.catalog
        store = self._leading._store
        return None if store is None else store._catalog

    def _note_catalog(self) -> None:
        if self._leading is not None:
            lsn = self._leading._note_catalog()
        elif self._catalog is not None:
            self._follow_catalog()
            self._catalog.advance(self.info().applied_lsn)
            lsn = self._catalog.applied_lsn
        else:
            return
        if lsn is not None:
            self.catalog_has(lsn)

    def member(self) -> MemberInfo:
        """What ``VOTE`` says."""
        found = ffi.new("ls_host_info *")
        lib.ls_host_describe(self._member(), found)
        values = vars(copied(found[0]))
        who = values.pop("member")
        return MemberInfo(who.member_id, who.cluster_uuid, who.uuid, who.copy, **values)

    def vote(self, term: int, member_id: int) -> None:
        """Writes the term, and the member that gets this member's vote in it (0: no member). It is forced on return.

        Raises ``BatchRefused`` if the term decreases, or has another vote; after ``OutcomeUnknown`` the copy can only
        be closed.
        """
        voted = arguments.integer("member_id", member_id, 0, ID_MAX)
        check(lib.ls_host_vote(self._member(), arguments.integer("term", term, 0, TERM_MAX), voted))

    def note_tail(self) -> None:
        """Lets ``VOTE`` note how far the log reaches, at most each half second. Call it now and then.

        An open of an older copy of the directory is refused by this. It waits for the disk.
        """
        check(lib.ls_host_note_tail(self._member(), self._leads()))

    def remove(self) -> None:
        """Removes the copy's directory. The member keeps its vote, and has no copy then."""
        self._leave_catalog()
        check(lib.ls_host_remove_copy(self._member()))

    def take(self, batch: Batch) -> None:
        """Takes the next batch: checks it as recovery would check it, writes it, and forces it before this returns.

        Raises ``BatchRefused`` if it does not follow from what the copy has, or if ``VOTE`` does not have its term yet;
        then nothing was written. After a failed write every call raises ``StorePoisoned``: close the copy and open it
        again.
        """
        self.take_many([batch])

    def take_many(self, batches: Sequence[Batch]) -> int:
        """Takes some of the next batches, at least one, and returns how many; with these a copy that lags catches up.

        Where three or more lie in one segment, up to 24 of them are written with one force, under a mark (section 8 of
        docs/format.md). Raises as :meth:`take` does for the first of them; one behind it that does not follow is left
        for the next call.
        """
        given: list[list[Any]] = []
        for batch in batches:
            refused = _why_not(batch)
            if refused is not None:
                if not given:
                    raise errors.BatchRefused(refused)
                break
            data = ffi.from_buffer("uint8_t[]", batch.data)
            header = ffi.NULL if batch.header is None else ffi.from_buffer("uint8_t[]", batch.header)
            numbers = batch.term, batch.index, batch.lsn, batch.end_lsn, batch.first_lsn, batch.known_durable_lsn
            given.append([*numbers, header, data])
        taken = ffi.new("size_t *")
        many = ffi.new("ls_replica_batch[]", given)
        check(lib.ls_replica_take_many(self._usable(), many, len(given), taken))
        return int(taken[0])

    def cut(self, index: int) -> None:
        """Abandons everything above this index. Raises ``BatchRefused`` if some of that is durable."""
        check(lib.ls_host_cut(self._member(), index))

    def durable(self, lsn: int) -> None:
        """A majority has everything below ``lsn``, the end of a batch: applies it.

        Raises ``BatchRefused`` if it lies beyond the end of this copy.
        """
        check(lib.ls_replica_durable(self._usable(), lsn))
        self._follow_catalog()

    def apply(self, index: int) -> Applied:
        """A majority has everything up to the kept batch of this index (0: nothing new): applies it.

        The catalog waits for :meth:`follow_catalog`. One call of the core, since each takes its turn for the
        interpreter. Raises as :meth:`durable` does, and ``BatchRefused`` if the batch is not kept.
        """
        done = ffi.new("ls_applied *")
        check(lib.ls_host_apply(self._member(), arguments.integer("index", index, 0, ID_MAX), done))
        found = done.room
        room = Room(found.spares, found.first_lsn, found.applied_lsn, found.sys_errno)
        catalog = self._catalog
        waits = catalog is None or catalog.is_behind or done.has_change != 0 or self._catalog_of != done.copy
        return Applied(done.term, waits, room)

    def follow_catalog(self) -> None:
        """Gives the catalog the changes that were applied."""
        self._follow_catalog()

    def catalog_has(self, lsn: int) -> None:
        """The copy's catalog has every change below ``lsn``: older segments need not stay for it. It never goes back.

        A copy that an update brought keeps all segments until this call. It counts while the copy leads, too.
        """
        lsn = arguments.integer("lsn", lsn, 0, arguments.LSN_MAX)
        lib.ls_host_catalog_has(self._member(), self._leads(), lsn)

    def kept(self) -> range:
        """The indexes of the batches that this copy can still give to other members.

        They are the newest. An open finds the last ``kept_bytes`` of them; those that come are added, as a leader by
        :meth:`LeadingStore.next`. They stay, with their segments, until :meth:`drop_kept`: a program calls it before
        the log needs the space.
        """
        first, last = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        lib.ls_host_kept(self._member(), first, last)
        return range(int(first[0]), int(last[0]) + 1)

    def drop_kept(self, index: int) -> None:
        """Drops the kept batches below this index, which other members do not need."""
        lib.ls_host_drop_kept(self._member(), self._leads(), arguments.integer("index", index, 0, ID_MAX))

    def entry(self, index: int) -> Entry:
        """The place and the kind of a kept batch. Raises ``BatchRefused`` if it is not kept."""
        found = ffi.new("ls_replica_entry *")
        check(lib.ls_host_entry(self._member(), arguments.integer("index", index, 0, ID_MAX), found))
        values = vars(copied(found[0]))
        return Entry(**values | {"kind": KINDS[values["kind"]]})

    def read(self, index: int) -> Batch:
        """The bytes of a kept batch, read from the log and verified.

        Raises ``BatchRefused`` if it is not kept, ``CorruptLog`` if the disk has spoilt it, and ``StoreError``.
        """
        found = ffi.new("ls_replica_batch *")
        check(lib.ls_host_read(self._member(), arguments.integer("index", index, 0, ID_MAX), found))
        return _batch_of(found)

    def members(self) -> tuple[int, bytes]:
        """The newest configuration that is known to be durable, and its batch's index; only while the copy follows.

        Raises ``OptionError`` if the log is not replicated yet.
        """
        index, config, size = ffi.new("uint64_t *"), ffi.new("uint8_t **"), ffi.new("size_t *")
        check(lib.ls_host_members(self._member(), index, config, size))
        return int(index[0]), bytes(ffi.buffer(config[0], size[0]))

    def checkpoint(self) -> bool:
        """Writes a checkpoint of the applied table; returns False if none can be taken at this moment."""
        taken = ffi.new("int *")
        check(lib.ls_replica_checkpoint(self._usable(), taken))
        return bool(taken[0])

    def begin_checkpoint(self) -> bool:
        """Begins a checkpoint of the applied table, which a thread of the copy writes while batches are taken.

        False: none can be taken at this moment, or one is being taken.
        """
        begun = ffi.new("int *")
        check(lib.ls_replica_checkpoint_begin(self._usable(), begun))
        return bool(begun[0])

    def checkpoint_ended(self) -> bool:
        """Whether no checkpoint is being taken any more.

        Raises ``StoreFull`` or ``StoreError``, once, if the one that was taken could not be written.
        """
        ended = ffi.new("int *")
        check(lib.ls_replica_checkpoint_ended(self._usable(), ended))
        return bool(ended[0])

    def info(self) -> CopyInfo:
        """The state of the copy."""
        found = ffi.new("ls_replica_info *")
        lib.ls_replica_describe(self._usable(), found)
        values = vars(copied(found[0]))
        return CopyInfo(**values | {"stats": vars(values["stats"])})

    def room(self) -> Room:
        """The number of segment files that this copy has room for.

        If spares are missing, a thread tries to make one, at most once a second.
        """
        found = ffi.new("ls_replica_room *")
        lib.ls_replica_room_here(self._usable(), found)
        return Room(found.spares, found.first_lsn, found.applied_lsn, found.sys_errno)

    def lead(self, term: int, config: bytes | None = None) -> LeadingStore:
        """Leads in this term, for which the member has voted since it was opened; the copy no longer follows.

        ``config`` is the configuration with which replication begins, for a log that is not replicated yet. The
        store serves once :meth:`LeadingStore.serve` says so. Raises ``BatchRefused`` without that vote, or if the copy
        has led in the term; ``OptionError`` for a term below ``least_term``; after any other failure the copy can only
        be closed.
        """
        made = ffi.new("ls_store **")
        given = ffi.NULL if config is None else ffi.from_buffer("uint8_t[]", config)
        size = 0 if config is None else len(config)
        check(lib.ls_host_lead(self._member(), term, given, size, made))
        number = self.member().copy
        self._leading = LeadingStore(self, self.path / f"copy-{number}", self._options, made[0])
        return self._leading

    def _hand_over_catalog(self) -> None:
        """Applies the last changes, all durable, and closes this catalog: the store that leads opens its own."""
        if self._catalog is not None:
            self._apply_changes(self._catalog)
            self._leave_catalog()

    def _ceased(self) -> None:
        """The store that led has been freed: the copy follows again."""
        self._leading = None
        check(lib.ls_host_follow(self._member()))
        self._follow_catalog()

    def close(self) -> None:
        """Closes the copy; a copy that leads first ceases to lead. What was taken stays on the disk."""
        leading, self._leading = self._leading, None
        if leading is not None:
            leading.stop()
        self._leave_catalog()
        closing, self._host = self._host, None
        if closing is not None:
            lib.ls_host_close(closing)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_host", None) is not None:
            self.close()


class LeadingStore:
    """The copy that leads: its batches are taken with :meth:`next`, and the store serves after :meth:`serve`."""

    def __init__(self, copy: Copy, path: Path, options: Any, made: Any) -> None:
        self.path = path
        """The store's directory, in the member's."""
        self.options = options
        self.store = made
        """The core's handle, until it ceases."""
        self._copy = copy
        self._store: _LedStore | None = None

    def next(self) -> Batch | None:
        """The next batch that was handed out, or None. It is not forced here yet; see :attr:`forced`."""
        found = ffi.new("ls_replica_batch *")
        code = lib.ls_replica_next(self.store, found)
        if code == lib.LS_END:
            return None
        check(code)
        return _batch_of(found)

    @property
    def forced(self) -> int:
        """The index up to which batches are forced on this member's disk."""
        return int(lib.ls_replica_forced(self.store))

    def fileno(self) -> int:
        """An eventfd that is signalled when a batch was handed out, and when one was forced here."""
        return int(lib.ls_replica_event_fd(self.store))

    def moved_by(self, thread_id: int) -> None:
        """The thread that takes the batches: a call of the store that waits raises ``OptionError`` there at once."""
        lib.ls_replica_moved_by(self.store, thread_id)

    def majority_has(self, lsn: int) -> None:
        """A majority has forced everything below ``lsn``. Raises ``BatchRefused`` beyond what :meth:`next` gave."""
        check(lib.ls_replica_majority_has(self.store, lsn))

    def probe_disk(self) -> None:
        """Hands out an empty batch if appends have waited since the call before for a file to be forced.

        On a disk that hangs it stays unforced, which :attr:`forced` shows. Does not wait; call it a few times a second.
        """
        check(lib.ls_replica_probe_disk(self.store))

    def remember(self, *, every: bool) -> bool:
        """Whether records with states of places are written: notes, moves, times, delivery counts (R12).

        ``every``: every member of the configuration knows them, so they are written from now on.
        """
        remembers = ffi.new("int *")
        check(lib.ls_replica_remember(self.store, every, remembers))
        return bool(remembers[0])

    def change_members(self, config: bytes) -> int:
        """Writes a new configuration, alone in its batch; returns the batch's index."""
        index = ffi.new("uint64_t *")
        check(lib.ls_replica_change_members(self.store, ffi.from_buffer("uint8_t[]", config), len(config), index))
        return int(index[0])

    def serve(self) -> MessageStore | None:
        """The store; None while the term's first batch is not durable.

        Another thread has to move the batches meanwhile.
        """
        if self._store is None and lib.ls_replica_leads(self.store):
            self._copy._hand_over_catalog()
            self._store = _LedStore(self)
        return self._store

    def _note_catalog(self) -> int | None:
        store = self._store
        if store is None or store._catalog is None or not self._copy._has_catalog():
            return None
        from logstore.cluster.catalog_log import note_applied

        try:
            return note_applied(store._catalog, self.store)
        except (errors.OutcomeUnknown, errors.StoreClosed):
            return None  # the copy ceases to lead: as a follower it finds out

    def call_off(self) -> None:
        """Makes calls that wait for a majority raise ``OutcomeUnknown`` at once; then call :meth:`cease`.

        Any thread may call it before that, also while another one is in :meth:`serve`, which then ends.
        """
        if self.store is not None:
            check(lib.ls_replica_cease(self.store))

    def cease(self) -> None:
        """Ceases to lead: calls that wait raise ``OutcomeUnknown``. Then the copy follows again."""
        if self.store is None:
            return
        self.stop()
        self._copy._ceased()

    def stop(self) -> None:
        """Ceases to lead, and the copy does not follow either."""
        if self.store is None:
            return
        check(lib.ls_replica_cease(self.store))
        if self._store is None:
            lib.ls_free(self.store)
        else:
            self._store.end()
        self.store = None


class _LedStore(MessageStore):
    """The store of a copy that leads already. It ends when the copy ceases to lead, and not before."""

    def __init__(self, leading: LeadingStore) -> None:
        self._led = leading
        self._slots: list[Any] = []  # the core's handle belongs to the owner of this object while the store lives
        try:
            super().__init__(leading.path, leading.options)
        except BaseException:
            for slot in self._slots:
                slot[0] = ffi.NULL  # the copy still leads, and frees the handle
            raise

    def _abandon(self) -> None:
        """Called when serving has failed or was cancelled."""
        if self._catalog is not None:
            self._catalog.close()
        self._closed = self._is_shut = True

    def close(self) -> None:
        """Does nothing: the log continues as long as the copy leads; a program that is done just drops the store."""

    def end(self) -> None:
        """Closes the store, as :meth:`MessageStore.close` does."""
        super().close()

    def _open_core(self, options: Any, made: Any) -> int:  # noqa: ARG002 - as in MessageStore
        self._slots.append(made)
        made[0] = self._led.store
        return 0

    def _open_catalog(self, connect: str | None, schema: str | None, timeout_s: float) -> Catalog:
        if not self._led._copy._has_catalog():
            return super()._open_catalog(connect, schema, timeout_s)
        from logstore.catalog.catalog import Catalog
        from logstore.cluster.catalog_log import LeaderLog

        return Catalog.open(self._path, store_uuid=self._led._copy.member().uuid, log=LeaderLog(self._c))

    def _serve(self, catalog: Catalog) -> None:
        super()._serve(catalog)
        done = ffi.new("size_t *")
        for block in self._earlier_transient:  # of earlier leaders; nobody else may end them
            check(lib.ls_queues_delete(self._c, block.start, block.stop - 1, 0, done))

    def _serve_core(self, queue_ids: list[int], next_queue_id: int) -> int:
        return int(lib.ls_replica_serve(self._c, queue_ids, len(queue_ids), next_queue_id))
