"""Bounds of a salvage's losses: how many messages may have been lost, in all and on each queue.

What lay in an unreadable range is not known. Three things bound it: the bytes of the range with the least length of a
record, the number of records that the batch gives, and the footer's counts of the segment. Records that other records
name are of chains that the replay knows, which are counted one by one.

Invariant: ``least`` counts only what readable records prove; ``most`` counts everything that they do not exclude. Every
lost message that the replay does not know had at least one record in an unreadable range that can put a message on a
queue: a start, an enqueue, a move or a relocated state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from logstore.codec.records import RECORD_HEADER_BYTES, RecordType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logstore.codec.scan import Gap
    from logstore.salvage.lenient import LenientReplay
    from logstore.salvage.log import Log
    from logstore.salvage.state import State

# The records that can put a message on a queue.
CARRIERS = frozenset(
    {
        RecordType.MESSAGE_START,
        RecordType.MESSAGE_ENQUEUE,
        RecordType.MESSAGE_RELOCATED,
        RecordType.MESSAGE_MOVE,
        RecordType.MESSAGE_START_PLACED,
        RecordType.MESSAGE_RELOCATED_PLACED,
    }
)
CARRIER_BYTES_MIN = 72  # a start without content, or an enqueue on one queue


class Extent(NamedTuple):
    """A number that may not be known exactly."""

    least: int
    most: int | None  # None: nothing bounds it

    def as_json(self) -> dict[str, int | None]:
        """``{"least": n, "most": m}``, where m may be None."""
        return {"least": self.least, "most": self.most}


class Counted(NamedTuple):
    """A batch with several gaps, whose record can be read."""

    lsn: int
    end_lsn: int
    missing: int  # records in all its gaps together


@dataclass(slots=True)
class Sealed:
    """What the footer of a segment tells about the records before it."""

    first_lsn: int
    footer_lsn: int
    carriers_missing: int  # records of the types in CARRIERS that the footer counts, and that could not be recognised


@dataclass(slots=True)
class Losses:
    """The bounds of the lost messages, in all and by queue."""

    messages: Extent
    _certain: Counter[int] = field(default_factory=Counter)  # by queue, of listed messages
    _possible: Counter[int] = field(default_factory=Counter)  # by queue, of listed messages whose queues are known
    _anywhere: int | None = 0  # places that may have been on any queue

    @property
    def queues(self) -> set[int]:
        """The queues that listed messages name."""
        return self._certain.keys() | self._possible.keys()

    def on(self, queue_id: int) -> Extent:
        """The number of messages that were on this queue and are not on it in the new store."""
        most = None if self._anywhere is None else self._anywhere + self._possible[queue_id]
        return Extent(self._certain[queue_id], most)


def losses(log: Log, state: State) -> Losses:
    """The bounds of everything that the log has lost."""
    messages_hidden, places_hidden = _hidden(log)
    certain = sum(one.certain and not one.kept for one in state.lost)
    listed = sum(not one.kept for one in state.lost)
    if not log.base_known:
        found = Losses(Extent(certain, None), _anywhere=None)
    else:
        unlisted = messages_hidden + state.dropped_in_doubt
        elsewhere = sum(one.elsewhere for one in state.lost)
        elsewhere += sum(bool(message.lost) for message in state.messages.values())
        anywhere = places_hidden + state.dropped_in_doubt + elsewhere
        found = Losses(Extent(certain, listed + unlisted), _anywhere=anywhere)
    for one in state.lost:
        if one.certain and one.placed:
            found._certain.update(one.queues)
        if not one.elsewhere:
            found._possible.update(one.queues)
    return found


class _Part(NamedTuple):
    """A gap, or the gaps of one batch together."""

    lsn: int
    end_lsn: int
    starts: int  # start records of messages in it that other records name
    messages: int  # the most messages that it can hide
    places: int  # the most places of one queue that it can hide


def _hidden(log: Log) -> tuple[int, int]:
    """How many messages, and how many places of one queue, the unreadable ranges can have held that nothing names."""
    messages = places = 0
    by_segment: dict[int, list[_Part]] = {}  # by footer
    footers = sorted(log.sealed, key=lambda one: one.first_lsn)
    firsts = [one.first_lsn for one in footers]
    for part in _parts(log):
        at = bisect_right(firsts, part.lsn) - 1
        if at >= 0 and part.end_lsn <= footers[at].footer_lsn:
            by_segment.setdefault(at, []).append(part)
        else:
            messages, places = messages + part.messages, places + part.places
    for at, parts in by_segment.items():
        left = max(footers[at].carriers_missing - sum(part.starts for part in parts), 0)
        messages += min(sum(part.messages for part in parts), left)
        places += min(sum(part.places for part in parts), left)
    return messages, places


def _parts(log: Log) -> list[_Part]:
    """The gaps that can have held records, those of one counted batch as one part."""
    gaps = sorted((gap for gap in log.gaps if gap.records != 0), key=lambda gap: gap.lsn)
    starts, others = _named(log.replay, gaps)
    batches = sorted(log.counted)
    lsns = [batch.lsn for batch in batches]
    alone: list[_Part] = []
    together: dict[int, list[tuple[_Part, int]]] = {}  # by batch, with the number of other named records
    for i, gap in enumerate(gaps):
        part = _Part(gap.lsn, gap.end_lsn, starts[i], _room(gap, starts[i], others[i]), _room(gap, starts[i], 0))
        at = bisect_right(lsns, gap.lsn) - 1
        if at >= 0 and gap.end_lsn <= batches[at].end_lsn:
            together.setdefault(at, []).append((part, others[i]))
        else:
            alone.append(part)
    for at, rows in together.items():
        named = sum(part.starts for part, _ in rows)
        left = max(batches[at].missing - named, 0)
        messages = min(sum(part.messages for part, _ in rows), max(left - sum(other for _, other in rows), 0))
        places = min(sum(part.places for part, _ in rows), left)
        alone.append(_Part(rows[0][0].lsn, rows[-1][0].end_lsn, named, messages, places))
    return alone


def _room(gap: Gap, starts: int, others: int) -> int:
    """The records of CARRIERS for which a gap has room in addition to the named ones."""
    room = (gap.bytes - CARRIER_BYTES_MIN * starts - RECORD_HEADER_BYTES * others) // CARRIER_BYTES_MIN
    if gap.records is not None:
        room = min(room, gap.records - starts - others)
    return max(room, 0)


def _named(replay: LenientReplay, gaps: list[Gap]) -> tuple[Counter[int], Counter[int]]:
    """By the index of the gap: the start records of messages in it that other records name, and other named records."""
    if not gaps:
        return Counter(), Counter()
    starts = _inside(gaps, chain(replay.messages, replay.unread_starts))
    named = _inside(gaps, chain(replay.missing, replay.transactions, replay.ended))
    return Counter(starts.values()), Counter(at for lsn, at in named.items() if lsn not in starts)


def _inside(gaps: list[Gap], lsns: Iterable[int]) -> dict[int, int]:
    firsts = [gap.lsn for gap in gaps]
    found: dict[int, int] = {}
    for lsn in lsns:
        at = bisect_right(firsts, lsn) - 1
        if at >= 0 and lsn < gaps[at].end_lsn:
            found[lsn] = at
    return found
