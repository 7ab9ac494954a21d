"""Counting for a report with Arrow and numpy alone, batch by batch: memory is bounded by queues and intervals."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

from logstore.report.counts import OLDEST, WRITTEN, Counts, Deliveries, Doubt, Held, Latency, QueueBytes, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logstore.report.counts import Grid

__all__ = ["NONE", "RECORD_COLUMNS", "count", "groups", "ints", "one_of", "parents_of", "time_range"]

# Columns for the bytes written, and for transactions without an outcome.
RECORD_COLUMNS: Final = (
    *("lsn", "type", "id", "time", "queue_id", "queue_ids", "tx_id", "outcome", "effect_lsn", "effect_time", "xid"),
    *("record_bytes", "content_bytes", "relocated", "from_queue_id"),
)
FIRST_COLUMNS: Final = ("lsn", "time", "type", "queue_id")
_STARTS: Final = ("MESSAGE_START", "MESSAGE_START_PLACED")
_PUBLISHING: Final = frozenset({*_STARTS, "MESSAGE_ENQUEUE", "MESSAGE_MOVE"})
_OPERATIONS: Final = _PUBLISHING | {"MESSAGE_DEQUEUE", "MESSAGE_PLACE"}
_OUTCOMES: Final = frozenset({"TX_COMMIT", "TX_ROLLBACK"})
_UNDECIDED: Final = frozenset({"open", "prepared"})
_TAKEN: Final = frozenset({"accepted", "rejected"})
NONE: Final = -1  # replaces null in arrays of ids and times, which are never negative in a log


def time_range(
    batches: Iterable[Any], gap_stop_lsn: int | None
) -> tuple[tuple[int, int] | None, dict[int, int], int | None]:
    """The first and the last time in record batches with FIRST_COLUMNS, in µs (None if there are no rows).

    Also returns the LSN at which each deleted queue was deleted, by queue, and the first time behind the gap (if there
    is a gap and a record behind it).
    """
    import pyarrow.compute as pc

    first: int | None = None
    last = 0
    resumed: int | None = None
    deletions: dict[int, int] = {}
    for batch in batches:
        if batch.num_rows:
            found = pc.min_max(batch.column("time").cast("int64")).as_py()
            first = found["min"] if first is None else min(first, found["min"])
            last = max(last, found["max"])
            if resumed is None and gap_stop_lsn is not None:
                behind = batch.filter(pc.greater_equal(batch.column("lsn"), gap_stop_lsn))
                resumed = pc.min(behind.column("time").cast("int64")).as_py()
            gone = one_of(batch.column("type"), ("QUEUE_DELETE",))
            if gone.any():
                rows = zip(ints(batch.column("queue_id"))[gone], ints(batch.column("lsn"))[gone], strict=True)
                deletions |= {int(queue_id): int(lsn) for queue_id, lsn in rows}
    return (None if first is None else (first, last)), deletions, resumed


def count(
    records: Iterable[Any],
    messages: Iterable[Any],
    open_rows: Any,
    grid: Grid,
    scope: Scope,
    deletions: dict[int, int],
    gap_stop_lsn: int | None,
) -> Counts:
    """Counts record batches with RECORD_COLUMNS, batches of ended messages, and the table of open ones.

    ``deletions`` has the LSNs at which queues were deleted: operations after that LSN neither make nor end a place.
    ``gap_stop_lsn``: where the last gap of an export ends; a transaction without a record behind it ended in the gap.
    ``open_rows`` is called after the last batch of messages, because only then the open ones are known.
    """
    counts = Counts(grid, scope)
    flows = _Flows(grid, scope, deletions)
    _Written(counts, grid, scope, flows, gap_stop_lsn or 0).count(records)
    tally = _Messages(counts, grid, scope, flows)
    for batch in messages:
        tally.closed(batch)
    for batch in open_rows().to_batches():
        tally.open(batch)
    tally.finish()
    flows.finish(counts)
    return counts


def ints(column: Any) -> Any:
    """A numpy array of int64, with NONE for null and times in µs."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = column.cast(pa.int64()) if column.type != pa.int64() else column
    return pc.fill_null(numbers, NONE).to_numpy(zero_copy_only=False)


def _flags(column: Any) -> Any:
    import pyarrow.compute as pc

    return pc.fill_null(column, False).to_numpy(zero_copy_only=False)


def one_of(column: Any, texts: Iterable[str]) -> Any:
    """True where a text column, dictionary-encoded or not, has one of these values; false for null."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(sorted(texts), pa.string())
    if not pa.types.is_dictionary(column.type):
        return _flags(pc.is_in(column, value_set=wanted))
    found = _flags(pc.is_in(column.dictionary.cast(pa.string()), value_set=wanted))
    codes = ints(column.indices)
    return np.append(found, False)[codes]


class _Flows:
    """Places that were added and removed, by queue and interval."""

    def __init__(self, grid: Grid, scope: Scope, deletions: dict[int, int]) -> None:
        self._grid, self._scope, self._deletions = grid, scope, deletions
        self._sums: dict[int, dict[int, Any]] = {}
        self._later: dict[int, int] = {}
        self.waiting: dict[int, int] = {}

    def add(self, sign: int, queue_ids: Any, times: Any, lsns: Any = None) -> None:
        """Counts places that were added (1) or removed (-1); with LSNs, only those before the queue's deletion."""
        import numpy as np

        grid, wanted = self._grid, self._scope.queues
        for queue_id, rows in groups(queue_ids):
            if queue_id == NONE or (wanted is not None and queue_id not in wanted):
                continue
            mine = times[rows]
            if lsns is not None and queue_id in self._deletions:
                mine = mine[lsns[rows] < self._deletions[queue_id]]
            if queue_id not in self._sums:
                self._sums[queue_id] = {one: np.zeros(grid.buckets, np.int64) for one in (1, -1)}
            start, stop = grid.within(self._scope)
            inside = mine[(mine >= start) & (mine < stop)]
            _sum_at(self._sums[queue_id][sign], (inside - grid.start_us) // grid.step_us, None)
            later = sign * int(np.count_nonzero(mine >= stop))
            self._later[queue_id] = self._later.get(queue_id, 0) + later

    def finish(self, counts: Counts) -> None:
        """Writes the result into the counts."""
        for queue_id, sums in self._sums.items():
            counts.came[queue_id] = [int(one) for one in sums[1]]
            counts.went[queue_id] = [int(one) for one in sums[-1]]
        counts.anchor(self.waiting, self._later)


class _Written:
    """The bytes written in each interval, and the transactions without an outcome."""

    def __init__(self, counts: Counts, grid: Grid, scope: Scope, flows: _Flows, known_lsn: int) -> None:
        import numpy as np

        self._counts, self._grid, self._scope, self._flows = counts, grid, scope, flows
        self._known_lsn = known_lsn
        self._sums = {name: np.zeros(grid.buckets, np.int64) for name in WRITTEN}
        self._waiting: dict[int, dict[str, Any]] = {}
        self._decided: set[int] = set()

    def count(self, records: Iterable[Any]) -> None:
        """Counts all records."""
        for batch in records:
            if batch.num_rows:
                self._add(batch)
                self._operations(batch)
                self._undecided(batch)
        self._counts.written = {name: [int(one) for one in sums] for name, sums in self._sums.items()}
        self._counts.doubts = [
            Doubt(tx_id, one["xid"], one["prepared_us"] or one["first_us"], one["operations"], tuple(sorted(one["on"])))
            for tx_id, one in sorted(self._waiting.items())
            if one["prepared"] and tx_id not in self._decided and one["last_lsn"] >= self._known_lsn
        ]

    def _add(self, batch: Any) -> None:
        import numpy as np

        times = ints(batch.column("time"))
        inside = _within(times, self._scope) & (times >= self._grid.start_us) & (times < self._grid.stop_us)
        at = (times - self._grid.start_us) // self._grid.step_us
        copy = _flags(batch.column("relocated"))
        length, content = ints(batch.column("record_bytes")), np.maximum(ints(batch.column("content_bytes")), 0)
        kinds = {name: one_of(batch.column("type"), (name,)) for name in ("TX_COMMIT", "TX_ROLLBACK")}
        starts = one_of(batch.column("type"), _STARTS)
        wanted: dict[str, tuple[Any, Any]] = {
            "records": (inside, None),
            "record_bytes": (inside, length),
            "copied_bytes": (inside & copy, length),
            "messages": (inside & starts & ~copy, None),
            "content_bytes": (inside & ~copy, content),
            "commits": (inside & kinds["TX_COMMIT"], None),
            "rollbacks": (inside & kinds["TX_ROLLBACK"], None),
        }
        for name, (where, values) in wanted.items():
            _sum_at(self._sums[name], at[where], None if values is None else values[where])

    def _operations(self, batch: Any) -> None:
        """Counts the operations that took effect according to their own rows."""
        done = ~_flags(batch.column("relocated")) & (ints(batch.column("effect_lsn")) != NONE)
        for sign, types in ((1, _PUBLISHING), (-1, ("MESSAGE_DEQUEUE",))):
            chosen = batch.filter(_mask(done & one_of(batch.column("type"), types)))
            if chosen.num_rows:
                lists = chosen.column("queue_ids")
                rows = parents_of(lists)
                times, lsns = (ints(chosen.column(name))[rows] for name in ("effect_time", "effect_lsn"))
                self._flows.add(sign, ints(lists.flatten()), times, lsns)
        leaves = done & (ints(batch.column("from_queue_id")) != NONE)
        if leaves.any():
            moves = batch.filter(_mask(leaves))
            left, times, lsns = (ints(moves.column(name)) for name in ("from_queue_id", "effect_time", "effect_lsn"))
            self._flows.add(-1, left, times, lsns)

    def _undecided(self, batch: Any) -> None:
        """Notes transactions without an outcome, and later outcomes of such."""
        waits = one_of(batch.column("outcome"), _UNDECIDED) & (ints(batch.column("tx_id")) != NONE)
        for row in batch.filter(_mask(waits)).to_pylist() if waits.any() else ():
            one = self._waiting.setdefault(
                row["tx_id"],
                {"xid": None, "prepared_us": None, "first_us": None, "operations": 0, "on": set(), "prepared": False}
                | {"work": []},
            )
            one["last_lsn"] = row["lsn"]
            us = _us(row["time"])
            one["first_us"] = us if one["first_us"] is None else min(one["first_us"], us)
            one["xid"] = row["xid"] or one["xid"]
            one["prepared"] |= row["type"] == "TX_PREPARE" or row["outcome"] == "prepared"
            if row["type"] == "TX_PREPARE":
                one["prepared_us"] = us
            if row["type"] in _OPERATIONS:
                one["operations"] += 1
                one["on"] |= {row["queue_id"], row["from_queue_id"]} - {None}
                if row["from_queue_id"] is not None:
                    one["work"].append((-1, [row["from_queue_id"]]))
                if not row["relocated"] and row["type"] != "MESSAGE_PLACE":
                    one["work"].append((1 if row["type"] in _PUBLISHING else -1, row["queue_ids"] or []))
        if self._waiting:
            self._decide(batch)

    def _decide(self, batch: Any) -> None:
        """Applies outcomes to transactions that earlier parts of the log left undecided."""
        import numpy as np

        ends = one_of(batch.column("type"), _OUTCOMES)
        ends &= np.isin(ints(batch.column("id")), list(self._waiting))
        for row in batch.filter(_mask(ends)).to_pylist() if ends.any() else ():
            self._decided.add(row["id"])
            work = self._waiting[row["id"]].pop("work", [])
            for sign, queue_ids in work if row["type"] == "TX_COMMIT" else ():
                ids = np.array(queue_ids, np.int64)
                self._flows.add(sign, ids, np.full(len(ids), _us(row["time"])), np.full(len(ids), row["lsn"]))


def _us(time: Any) -> int:
    from logstore.report.counts import micros

    return micros(time)


def _mask(flags: Any) -> Any:
    import pyarrow as pa

    return pa.array(flags)


def _within(times: Any, scope: Scope) -> Any:
    """True where a time is known and in the requested range."""
    inside = times != NONE
    if scope.start_us is not None:
        inside = inside & (times >= scope.start_us)
    if scope.stop_us is not None:
        inside = inside & (times < scope.stop_us)
    return inside


def _sum_at(sums: Any, at: Any, values: Any) -> None:
    """Adds 1, or the values, exactly."""
    import numpy as np

    np.add.at(sums, at, 1 if values is None else values)


class _Messages:
    """Counts messages, ended and open, and every place that they had."""

    def __init__(self, counts: Counts, grid: Grid, scope: Scope, flows: _Flows) -> None:
        self._counts, self._grid, self._scope, self._flows = counts, grid, scope, flows
        self._oldest: list[tuple[tuple[int, int], Held]] = []

    def finish(self) -> None:
        """Writes the result into the counts."""
        self._counts.oldest = [held for _, held in heapq.nsmallest(OLDEST, self._oldest)]

    def closed(self, batch: Any) -> None:
        """Counts a batch of ended messages."""
        self._rows(batch)
        ended = _within(ints(batch.column("end_time")), self._scope) & self._on(ints(batch.column("queue_id")))
        for outcome, number in _value_counts(batch.column("outcome").filter(_mask(ended))):
            self._counts.outcomes[outcome] = self._counts.outcomes.get(outcome, 0) + number

    def open(self, batch: Any) -> None:
        """Counts a batch of live messages."""
        import numpy as np

        self._rows(batch)
        counts, places = self._counts, batch.column("places")
        flat, parents = places.flatten(), parents_of(places)
        here = self._on(ints(flat.field("queue_id")))
        on_these = self._on(ints(batch.column("queue_id")))
        on_these[parents[here]] = True
        waits = here & (ints(flat.field("dequeue_lsn")) == NONE)
        waiting = np.bincount(parents[waits], minlength=batch.num_rows)[on_these]
        for queue_id, rows in groups(ints(flat.field("queue_id"))[waits]):
            self._flows.waiting[queue_id] = self._flows.waiting.get(queue_id, 0) + len(rows)
        chosen = batch.filter(_mask(on_these))
        counts.open_messages += chosen.num_rows
        counts.open_places += int(waiting.sum())
        content, pending, staged = (ints(chosen.column(name)) for name in ("content_bytes", "pending", "staged"))
        counts.open_bytes += int(content.sum())
        counts.open_pending += int(np.count_nonzero(pending))
        counts.open_staged += int(np.count_nonzero(staged))
        ids = ints(chosen.column("id"))
        enqueued, started = ints(chosen.column("enqueue_time")), ints(chosen.column("start_time"))
        since = np.where(enqueued != NONE, enqueued, started)
        moved = ints(chosen.column("copy_count")) > 0
        for at in np.lexsort((ids, since))[:OLDEST]:
            held = Held(
                id=int(ids[at]),
                queue_id=self._waits_on(chosen.column("places")[int(at)].as_py()),
                since_us=None if since[at] == NONE else int(since[at]),
                content_bytes=int(content[at]),
                places=int(waiting[at]),
                pending=int(pending[at]),
                staged=bool(staged[at]),
                moved=bool(moved[at]),
            )
            self._oldest.append((held.order, held))
        self._oldest = heapq.nsmallest(OLDEST, self._oldest)

    def _waits_on(self, places: list[dict[str, Any]]) -> int | None:
        """The first requested queue on which it waits."""
        wanted = self._scope.queues
        waits = (one["queue_id"] for one in places if one["dequeue_lsn"] is None)
        return next((one for one in waits if wanted is None or one in wanted), None)

    def _on(self, queue_ids: Any) -> Any:
        """True where a queue is requested."""
        import numpy as np

        if self._scope.queues is None:
            return np.ones(len(queue_ids), bool)
        return np.isin(queue_ids, sorted(self._scope.queues))

    def _rows(self, batch: Any) -> None:
        """Counts the figures that ended and open messages share."""
        if not batch.num_rows:
            return
        self._bytes(batch)
        flat = batch.column("places").flatten()
        if len(flat):
            queues = ints(flat.field("queue_id"))
            chosen = self._on(queues) & (queues != NONE)
            flat, queues = flat.filter(_mask(chosen)), queues[chosen]
            for queue_id, rows in groups(queues):
                self._places(queue_id, flat.take(rows))

    def _bytes(self, batch: Any) -> None:
        began = ints(batch.column("start_time"))
        began = _where_known(began, ints(batch.column("enqueue_time")))
        queues = ints(batch.column("queue_id"))
        everything = self._scope.start_us is None and self._scope.stop_us is None
        chosen = self._on(queues) & (_within(began, self._scope) | everything)
        names = ("place_count", "content_bytes", "record_bytes", "copied_bytes")
        columns = [ints(batch.column(name)) for name in names]
        for queue_id, rows in groups(queues):
            kept = rows[chosen[rows]]
            if len(kept):
                key = None if queue_id == NONE else queue_id
                one = self._counts.bytes.setdefault(key, QueueBytes())
                one.add(len(kept), *(int(column[kept].sum()) for column in columns))

    def _places(self, queue_id: int, flat: Any) -> None:
        """Counts the places of one queue."""
        import numpy as np

        came, went = ints(flat.field("enqueue_time")), ints(flat.field("dequeue_time"))
        ended = ints(flat.field("dequeue_lsn")) != NONE
        dropped = went[one_of(flat.field("reason"), ("queue_deleted",))]  # one record ended all of these
        self._flows.add(-1, np.full(len(dropped), queue_id), dropped)
        settled = ended & _within(went, self._scope)
        if settled.any():
            self._deliveries(queue_id, flat.filter(_mask(settled)), went[settled])
            reasons = flat.field("reason")
            taken = settled & (came != NONE) & (one_of(reasons, _TAKEN) | ~_flags(reasons.is_valid()))
            self._latency(queue_id, np.maximum(went[taken] - came[taken], 0))

    def _deliveries(self, queue_id: int, flat: Any, times: Any) -> None:
        import numpy as np

        one = self._counts.deliveries.setdefault(queue_id, Deliveries())
        told = ints(flat.field("delivery_count"))
        told = told[told != NONE]
        one.settled += len(flat)
        one.told += len(told)
        one.redelivered += int(np.count_nonzero(told > 1))
        one.deliveries += int(told.sum())
        one.most = max(one.most, int(told.max(initial=0)))
        dead = times[one_of(flat.field("reason"), ("dead_lettered",))]
        if len(dead):
            one.dead += len(dead)
            one.last_dead_us = max(int(dead.max()), one.last_dead_us or 0)

    def _latency(self, queue_id: int, waited: Any) -> None:
        import numpy as np

        if not len(waited):
            return
        bits = np.frexp(waited.astype(np.float64))[1]  # exact below 2**53 µs, which is 285 years
        shift = np.maximum(bits - 7, 0)
        steps, numbers = np.unique(shift * 64 + (waited >> shift), return_counts=True)
        found = {int(step): int(number) for step, number in zip(steps, numbers, strict=True)}
        latency = self._counts.latency.setdefault(queue_id, Latency())
        latency.add(found, int(waited.sum()), int(waited.min()), int(waited.max()))


def parents_of(places: Any) -> Any:
    """The row of each flattened element."""
    import pyarrow.compute as pc

    return pc.list_parent_indices(places).to_numpy(zero_copy_only=False)


def _where_known(first: Any, second: Any) -> Any:
    import numpy as np

    return np.where(first != NONE, first, second)


def _value_counts(column: Any) -> Iterator[tuple[str, int]]:
    for one in column.value_counts().to_pylist():
        if one["values"] is not None:
            yield one["values"], one["counts"]


def groups(keys: Any) -> Iterator[tuple[int, Any]]:
    """Yields each key with the rows that have it."""
    import numpy as np

    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    found, first = np.unique(keys[order], return_index=True)
    for key, rows in zip(found, np.split(order, first[1:]), strict=True):
        yield int(key), rows
