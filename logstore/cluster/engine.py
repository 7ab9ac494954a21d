"""The consensus engine of one replicated store: events in, an answer out. ``csrc/consensus/engine.h`` is its contract.

It needs ``logstore._consensus``, which is built where the source of libraft can be had; without it the import of this
module raises :class:`~logstore.errors.ClusterUnavailable`. Nothing else in the package imports it.

Each event returns an :class:`Answer`, which stays valid. The program does what its flags say, in the order of the
flags. An event that raises was not carried out and may be repeated; time has passed all the same, so after an
``EngineRefused`` or a ``MemoryError`` (there was no memory) :attr:`Engine.answer` is to be acted on as after any event.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from logstore.errors import ClusterUnavailable, EngineRefused, OptionError, StoreClosed

try:
    from logstore._consensus import ffi, lib
except ImportError as error:
    raise ClusterUnavailable(
        "the cluster is not built, because the source of libraft could not be had when logstore was installed: name "
        "it with LOGSTORE_RAFT_SOURCE and install logstore again"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from logstore._consensus import engine_ptr

# The C structs, as this machine lays them out. Reading all fields at once costs a tenth of reading them one by one.
_FRAME: Final = struct.Struct("@6Q3I4xP")
_ENTRY: Final = struct.Struct("@Q2IP")
_ANSWER: Final = struct.Struct("@2IP15Q")

_NO_ENTRIES: Final = ((),)

for _made, _name in ((_FRAME, "frame"), (_ENTRY, "entry"), (_ANSWER, "answer")):
    if _made.size != ffi.sizeof(f"struct engine_{_name}"):
        raise ClusterUnavailable(f"struct engine_{_name} has {ffi.sizeof(f'struct engine_{_name}')} bytes here")

# Kinds of entries.
BATCH: Final = lib.ENGINE_BATCH
FIRST: Final = lib.ENGINE_FIRST
MEMBERS: Final = lib.ENGINE_MEMBERS

# Types of frames.
APPEND: Final = lib.ENGINE_APPEND
APPENDED: Final = lib.ENGINE_APPENDED
ASK_VOTE: Final = lib.ENGINE_ASK_VOTE
VOTED: Final = lib.ENGINE_VOTED
UPDATE: Final = lib.ENGINE_UPDATE
TIMEOUT_NOW: Final = lib.ENGINE_TIMEOUT_NOW

# Flags of frames.
PRE_VOTE: Final = lib.ENGINE_PRE_VOTE
BY_TRANSFER: Final = lib.ENGINE_BY_TRANSFER
GRANTED: Final = lib.ENGINE_GRANTED
NO_ANSWER: Final = lib.ENGINE_NO_ANSWER

# Flags of answers.
FOLLOW: Final = lib.ENGINE_FOLLOW
CUT: Final = lib.ENGINE_CUT
TAKE: Final = lib.ENGINE_TAKE
VOTE: Final = lib.ENGINE_VOTE
LEAD: Final = lib.ENGINE_LEAD
SERVE: Final = lib.ENGINE_SERVE
DURABLE: Final = lib.ENGINE_DURABLE
COPY: Final = lib.ENGINE_COPY
SWITCH: Final = lib.ENGINE_SWITCH
CONFLICT: Final = lib.ENGINE_CONFLICT
SNAPSHOT: Final = lib.ENGINE_SNAPSHOT

# Changes of members.
ADD: Final = lib.ENGINE_ADD
PROMOTE: Final = lib.ENGINE_PROMOTE
REMOVE: Final = lib.ENGINE_REMOVE

ENTRIES_MAX: Final = lib.ENGINE_ENTRIES_MAX
MEMBERS_MAX: Final = lib.ENGINE_MEMBERS_MAX
CONFIGURATION_MAX: Final = lib.ENGINE_CONFIGURATION_MAX


class Entry(NamedTuple):
    """A batch, as consensus sees it."""

    term: int
    kind: int
    """``BATCH``, ``FIRST`` or ``MEMBERS``."""
    configuration: bytes = b""
    """Of ``MEMBERS``."""


class Frame(NamedTuple):
    """A frame to a member or from one; engine.h says which fields count in which type."""

    group: int
    peer: int
    """To whom it goes, or from whom it came."""
    term: int
    log_index: int
    """``index`` in C; a tuple has a method of this name, and one ``count``."""
    index_term: int
    other: int
    type: int
    flags: int
    entry_count: int
    entries: Sequence[Entry] = ()
    """Of a received ``APPEND``, ``entry_count`` of them; empty in frames to send."""


class Answer(NamedTuple):
    """The effects of an event, and the engine's state after it."""

    flags: int
    """What the program does, from ``FOLLOW`` to ``SNAPSHOT``."""
    frames: list[Frame]
    """To be sent, in this order."""
    vote_term: int
    voted_for: int
    """0: nobody."""
    vote_number: int
    cut_index: int
    take_index: int
    take_count: int
    first_index: int
    update_from: int
    update_index: int
    update_index_term: int
    term: int
    leader: int
    """0: none is known, or it is changing."""
    last_index: int
    durable_index: int
    due_ms: int
    """When :meth:`Engine.time` is due, if nothing happens before."""


class Member(NamedTuple):
    """A member of the newest configuration."""

    member: int
    acknowledged: int
    """The index that it has, as the leader knows; 0 at a follower."""
    voter: bool
    address: str
    """As the configuration has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of an engine. Times are in milliseconds."""

    group: int
    member: int
    """This member's id."""
    election_ms: int = 500
    heartbeat_ms: int = 100
    transfer_ms: int = 300
    """A transfer without success takes another target after this time."""
    update_ms: int = 10_000
    """An update is offered again after this time."""
    in_flight_max: int = 10
    """Entries sent to a peer and not acknowledged."""
    behind_max: int = 1000
    """Entries that a voter may lack when members change."""
    seed: int = 1
    """Of the randomised election timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a member's log and ``VOTE`` contain at its start; all zeros: nothing.

    The fields are those of ``struct engine_log``.
    """

    vote_term: int = 0
    voted_for: int = 0
    header_term: int = 0
    known_durable: int = 0
    known_durable_term: int = 0
    members_index: int = 0
    members: bytes = b""
    first_kept: int = 0
    entries: Sequence[Entry] = ()


class Engine:
    """One engine. One thread at a time uses it; it is closed in the thread that made it."""

    __slots__ = (
        "_answer",
        "_answer_bytes",
        "_entries",
        "_entries_address",
        "_entries_bytes",
        "_frame",
        "_frame_bytes",
        "_pointer",
    )

    def __init__(self, options: Options, log: Log, now_ms: int) -> None:
        """Starts the engine; :attr:`answer` has the effects.

        ``OptionError``: an option is impossible, or the log contradicts itself.
        """
        self._pointer: engine_ptr | None = None
        made = ffi.new("engine **")
        fields = {name: getattr(options, name) for name in Options.__slots__}
        kept = {name: getattr(log, name) for name in Log.__slots__ if name not in {"members", "entries"}}
        try:
            entries, configurations = _entries_of(log.entries)
            members = ffi.from_buffer("uint8_t[]", log.members)
            given = {"members": members, "members_bytes": len(log.members)}
            given |= {"entries": entries, "count": len(log.entries)}
            code = lib.engine_open(
                ffi.new("struct engine_options *", fields), ffi.new("struct engine_log *", kept | given), now_ms, made
            )
        except (TypeError, OverflowError, struct.error) as error:
            raise OptionError(f"an option or the log of the engine: {error}") from None
        del configurations
        _judge(code, "the options are impossible, or the log contradicts itself")
        self._pointer = made[0]
        self._answer = lib.engine_answer(made[0])
        self._answer_bytes = ffi.buffer(self._answer, _ANSWER.size)
        self._frame = ffi.new("struct engine_frame *")
        self._frame_bytes = ffi.buffer(self._frame, _FRAME.size)
        self._entries = ffi.new("struct engine_entry[]", ENTRIES_MAX)
        self._entries_address = _address(self._entries)
        self._entries_bytes = ffi.buffer(self._entries, ENTRIES_MAX * _ENTRY.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees the engine. A second call does nothing."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            lib.engine_close(pointer)

    def __del__(self) -> None:
        self.close()

    @property
    def answer(self) -> Answer:
        """The answer to the latest event."""
        self._open()
        return self._answered()

    def time(self, now_ms: int) -> Answer:
        """Tells the engine the time; due when ``due_ms`` has come."""
        return self._event(lib.engine_time, now_ms)

    def receive(self, now_ms: int, frames: Iterable[Frame]) -> list[Answer]:
        """Passes frames of one or several connections, in the order of their arrival; returns one answer for each.

        A frame of another group or with impossible fields changes nothing and counts as refused in :meth:`stats`.
        ``OptionError``: a frame cannot be expressed at all; those before it were received.
        """
        answers = []
        for frame in frames:
            try:
                configurations = self._put(frame)
                lib.engine_receive(self._open(), now_ms, self._frame)
            except (TypeError, ValueError, IndexError, AttributeError, OverflowError, struct.error) as error:
                raise OptionError(f"a frame, or the time, given to the engine: {error}") from None
            del configurations
            answers.append(self._answered())
        return answers

    def lost(self, now_ms: int, member: int) -> Answer:
        """A connection to this member's process was refused or reset."""
        return self._event(lib.engine_lost, now_ms, member)

    def vote_forced(self, now_ms: int, number: int) -> Answer:
        """``VOTE`` with this number is forced, and so is each earlier one."""
        return self._event(lib.engine_vote_forced, now_ms, number)

    def forced(self, now_ms: int, index: int, term: int) -> Answer:
        """The entry and all entries before it are forced on this disk."""
        return self._event(lib.engine_forced, now_ms, index, term)

    def may_submit(self) -> bool:
        """Whether the leader takes a batch now."""
        return lib.engine_may_submit(self._open())

    def submit(self, now_ms: int, entry: Entry) -> Answer:
        """The log has stamped this batch with index ``last_index`` + 1. ``EngineRefused``: it may not submit."""
        try:
            made, configurations = _entries_of((entry,))
        except (TypeError, ValueError, OverflowError, struct.error) as error:
            raise OptionError(f"an entry given to the engine: {error}") from None
        answer = self._event(lib.engine_submit, now_ms, made)
        del configurations
        return answer

    def plan(self, what: int, member: int, address: str = "") -> bytes:
        """The configuration that this change (``ADD``, ``PROMOTE``, ``REMOVE``) makes, for an entry ``MEMBERS``.

        ``EngineRefused``: not now. ``OptionError``: no configuration comes of it, whatever the time.
        """
        into = ffi.new("uint8_t[]", CONFIGURATION_MAX)
        count = ffi.new("uint32_t *")
        try:
            named = ffi.new("char[]", address.encode())
            change = ffi.new("struct engine_change *", {"what": what, "member": member, "address": named})
        except (TypeError, OverflowError, AttributeError) as error:
            raise OptionError(f"a change of members: {error}") from None
        code = lib.engine_plan(self._open(), change, into, count)
        _judge(code, f"no configuration comes of change {what} of member {member}")
        return bytes(ffi.buffer(into, count[0]))

    def transfer(self, now_ms: int, member: int = 0) -> Answer:
        """Takes no more batches, and hands over to this voter, or to any; ``EngineRefused``: it cannot."""
        return self._event(lib.engine_transfer, now_ms, member)

    def snapshot(self, now_ms: int, snapshot: int, first_kept: int) -> tuple[Answer, int]:
        """Entries below ``first_kept`` are no longer kept; returns the index from which entries must be kept."""
        kept = ffi.new("uint64_t *")
        return self._event(lib.engine_snapshot, now_ms, snapshot, first_kept, kept), kept[0]

    def updated(self, now_ms: int, index: int, index_term: int, members_index: int, members: bytes) -> Answer:
        """The copy is complete and ends at ``index``; ``members`` is the newest configuration in it."""
        return self._event(lib.engine_updated, now_ms, index, index_term, members_index, members, len(members))

    def update_failed(self) -> None:
        """The copy that an update brought is discarded. ``EngineRefused``: it is being switched in."""
        _judge(lib.engine_update_failed(self._open()), "")

    def sends_update(self, now_ms: int, sends: bool) -> Answer:
        """Whether this member sends a copy to a peer now.

        Meanwhile no other peer is offered an update, and the batches that follow the copy are kept.
        """
        lib.engine_sends_update(self._open(), now_ms, sends)
        return self._answered()

    def switched(self, now_ms: int) -> Answer:
        """The member now uses the new copy."""
        return self._event(lib.engine_switched, now_ms)

    def members(self) -> list[Member]:
        """The newest configuration."""
        into = ffi.new("struct engine_member[]", MEMBERS_MAX)
        count = lib.engine_members(self._open(), into)
        return [
            Member(
                into[i].member,
                into[i].acknowledged,
                into[i].voter,
                ffi.string(into[i].address).decode(errors="replace"),
            )
            for i in range(count)
        ]

    def stats(self) -> dict[str, int]:
        """Counts of frames since the start, by the names of ``struct engine_stats``."""
        found = lib.engine_stats(self._open())
        return {name: getattr(found, name) for name, _ in ffi.typeof("struct engine_stats").fields}

    # ---- inside ----

    def _open(self) -> engine_ptr:
        if self._pointer is None:
            raise StoreClosed("the engine is closed")
        return self._pointer

    def _event(self, call: Any, *arguments: Any) -> Answer:
        try:
            code = call(self._open(), *arguments)
        except (TypeError, OverflowError) as error:
            raise OptionError(f"an argument of the engine: {error}") from None
        if code != 0:
            _judge(code, "an argument of the engine contradicts itself")
        return self._answered()

    def _answered(self) -> Answer:
        found = _ANSWER.unpack(self._answer_bytes)
        frames: list[Frame] = []
        if found[1]:
            sent = ffi.buffer(self._answer.frames, found[1] * _FRAME.size)
            frames = [tuple.__new__(Frame, fields[:9] + _NO_ENTRIES) for fields in _FRAME.iter_unpack(sent)]
        return tuple.__new__(Answer, (found[0], frames, *found[3:]))

    def _put(self, frame: Frame) -> list[object]:
        """Fills the C frame for a call; the returned objects must live until the call returns."""
        configurations: list[object] = []
        entries = frame[9]
        if not entries:
            _FRAME.pack_into(self._frame_bytes, 0, *frame[:9], 0)
            if frame.entry_count:
                raise ValueError(f"it has no entries, and its count is {frame.entry_count}")
            return configurations
        if len(entries) != frame.entry_count or frame.entry_count > ENTRIES_MAX:
            raise ValueError(
                f"it has {len(entries)} entries, and its count is {frame.entry_count}, at most {ENTRIES_MAX}"
            )
        _FRAME.pack_into(self._frame_bytes, 0, *frame[:9], self._entries_address)
        for i, entry in enumerate(entries):
            _put_entry(self._entries_bytes, i, entry, configurations)
        return configurations


def time_all(engines: Sequence[Engine], now_ms: int) -> list[tuple[Engine, Answer]]:
    """Gives the time to each engine that is due, in one call; returns these engines with their answers, in order."""
    given = ffi.new("engine *[]", [engine._open() for engine in engines])
    answered = ffi.new("engine *[]", len(engines))
    try:
        count = lib.engine_time_all(given, len(engines), now_ms, answered)
    except (TypeError, OverflowError) as error:
        raise OptionError(f"the time given to the engines: {error}") from None
    due = {answered[i] for i in range(count)}
    return [(engine, engine.answer) for engine in engines if engine._pointer in due]


def bootstrap(members: Sequence[tuple[int, str]]) -> bytes:
    """The first configuration of a group, in which these members, each with its address, are all voters."""
    into = ffi.new("uint8_t[]", CONFIGURATION_MAX)
    count = ffi.new("uint32_t *")
    try:
        ids = ffi.new("uint64_t[]", [member for member, _ in members])
        named = [ffi.new("char[]", address.encode()) for _, address in members]
        code = lib.engine_bootstrap(ids, ffi.new("char *[]", named), len(named), into, count)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise OptionError(f"the members of a group: {error}") from None
    _judge(code, "no configuration comes of these members")
    return bytes(ffi.buffer(into, count[0]))


def _address(of: Any) -> int:
    return int(ffi.cast("uintptr_t", of))


def _put_entry(into: Any, place: int, entry: Entry, configurations: list[object]) -> None:
    term, kind, configuration = entry
    at = 0
    if configuration:
        held = ffi.from_buffer("uint8_t[]", configuration)
        configurations.append(held)
        at = _address(held)
    _ENTRY.pack_into(into, place * _ENTRY.size, term, kind, len(configuration), at)


def _entries_of(entries: Sequence[Entry]) -> tuple[Any, list[object]]:
    made = ffi.new("struct engine_entry[]", max(1, len(entries)))
    held: list[object] = []
    into = ffi.buffer(made, max(1, len(entries)) * _ENTRY.size)
    for i, entry in enumerate(entries):
        _put_entry(into, i, entry, held)
    return made, held


def _judge(code: int, invalid: str) -> None:
    if code == lib.ENGINE_REFUSED:
        raise EngineRefused("the engine refuses this event now, and nothing changed")
    if code == lib.ENGINE_NO_MEMORY:
        raise MemoryError("the engine has no memory for this event, and nothing changed")
    if code != lib.ENGINE_OK:
        raise OptionError(invalid)
