"""When a leader holds confirms back so that no member falls behind without end (R3).

A batch is durable once a majority has it, and a third voter may lag, or a standby that joins. This holds the confirm
of a durable batch back while a member that makes progress lacks too much. The log has a few buffers for batches that
are not confirmed, so its publishers wait, as they do for a slow majority.

* **Near.** A member may lack ``NEAR_BATCHES`` batches, and half of what is kept for members that lag.
* **Half the speed.** Beyond that, one batch is confirmed for each two that the member acknowledges, and one byte for
  each two. So the gap shrinks. Once the member is near, the leader goes at the member's speed.
* **Progress.** A member counts while its acknowledged index rises within ``PROGRESS_MS``. One that is dead, frozen, cut
  off, or whose disk hangs holds nothing back for longer. If its connection breaks, it holds nothing back at all.
* **Rounds.** A member acknowledges nothing while it gets an update by segments. If it took an update, was not near
  since, and needs another with no fewer batches, one batch is confirmed each ``ROUND_PACE_MS`` until it acknowledges
  again. A failed update ends that.

Nothing here decides what is durable: it only delays the reports to the leader's log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEAR_BATCHES: Final = 900
"""Below the 1000 that a change of members allows, by more than the batches that a leader has on their way."""
PROGRESS_MS: Final = 500
ROUND_PACE_MS: Final = 20
SHOWN_MS: Final = 1000
TOTALS_MAX: Final = 1 << 16


@dataclass(slots=True)
class _Begin:
    """The state in which the leader began to hold confirms back for a member."""

    confirmed: int
    acknowledged: int
    now_ms: int


@dataclass(slots=True)
class _Other:
    """The leader's knowledge of another member."""

    index: int = 0
    rose_ms: int = 0
    begin: _Begin | None = None
    offered: int = 0  # index at which the latest offered update ends; 0: none was offered since the member was near
    round: int = 0  # batches between the ends of the last two updates
    took: bool = False
    waits: bool = False


class Pacing:
    """The rule for one term of a leader. Times are in ms of the engine's clock."""

    def __init__(self, kept_bytes: int) -> None:
        """Waits for no member before that member has acknowledged a batch."""
        self.members: frozenset[int] = frozenset()
        """The others, standbys as well; the group keeps it."""
        self._near_bytes = kept_bytes // 2
        self._all: dict[int, _Other] = {}
        self._confirmed = 0
        self._first = 0  # the index of the first total
        self._totals: list[int] = []  # sizes of the batches, summed up to each
        self._held_by = 0
        self._held_ms = 0

    def begin(self) -> None:
        """A term begins, or ends."""
        self._all.clear()
        self._totals.clear()
        self._confirmed = self._held_by = 0

    # ---- what happens ----

    def written(self, index: int, size: int) -> None:
        """The leader has written the next batch, which has this many bytes."""
        if not self._totals:
            self._first = index
        self._totals.append((self._totals[-1] if self._totals else 0) + size)
        if len(self._totals) > 2 * TOTALS_MAX:
            del self._totals[:TOTALS_MAX]
            self._first += TOTALS_MAX

    def acknowledged(self, member: int, index: int, now_ms: int) -> None:
        """The member has forced everything up to this index."""
        other = self._all.setdefault(member, _Other())
        if index > other.index:
            other.index, other.rose_ms = index, now_ms
            if other.waits:
                other.waits, other.begin = False, None

    def lost(self, member: int) -> None:
        """The connection to the member is gone."""
        self._all.pop(member, None)

    def offered(self, member: int, index: int) -> None:
        """The member needs an update, which ends at this index."""
        other = self._all.setdefault(member, _Other())
        if other.offered == 0:
            other.offered, other.round, other.took = index, 0, False
        elif other.took and index > other.offered:
            length = index - other.offered
            other.waits, other.begin = 0 < other.round <= length, None
            other.offered, other.round, other.took = index, length, False

    def updated(self, member: int, *, took: bool) -> None:
        """An update of the member has ended."""
        other = self._all.get(member)
        if other is not None and took:
            other.took = True
        elif other is not None:
            other.offered, other.waits = 0, False

    # ---- decisions that follow from these events ----

    def confirms(self, index: int, now_ms: int) -> bool:
        """Whether the batch with this index, which is durable, may be confirmed now."""
        for member in self.members:
            other = self._all.get(member)
            if other is not None and not self._goes_on(other, index, now_ms):
                self._held_by, self._held_ms = member, now_ms
                return False
        self._confirmed = index
        return True

    def held_by(self, now_ms: int) -> int:
        """The member for which a confirm was held back within the last second; 0: no member."""
        return self._held_by if self._held_by and now_ms - self._held_ms < SHOWN_MS else 0

    def _goes_on(self, other: _Other, index: int, now_ms: int) -> bool:
        if other.waits:
            begin = other.begin = other.begin or _Begin(self._confirmed, other.index, now_ms)
            return index - begin.confirmed <= (now_ms - begin.now_ms) // ROUND_PACE_MS
        if other.index == 0:
            return True
        if index - other.index <= NEAR_BATCHES and self._bytes(other.index, index) <= self._near_bytes:
            other.begin, other.offered = None, 0
            return True
        if now_ms - other.rose_ms >= PROGRESS_MS:
            other.begin = None
            return True
        begin = other.begin = other.begin or _Begin(self._confirmed, other.index, now_ms)
        return 2 * (index - begin.confirmed) <= other.index - begin.acknowledged and (
            begin.acknowledged < self._first
            or 2 * self._bytes(begin.confirmed, index) <= self._bytes(begin.acknowledged, other.index)
        )

    def _bytes(self, above: int, index: int) -> int:
        """The bytes of the batches above ``above`` and up to ``index``, as far as they are remembered."""
        return self._total(index) - self._total(above)

    def _total(self, index: int) -> int:
        if index < self._first or not self._totals:
            return 0 if not self._totals else self._totals[0]
        return self._totals[min(index - self._first, len(self._totals) - 1)]
