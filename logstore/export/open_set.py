"""The open set of an export: the messages that are open at its end, in parts by id.

A part has the open messages with first_id ≤ id < the next part's first_id. Its file is ``open/open-FIRST.parquet``, so
the pattern ``open/*.parquet`` is the whole set. A run replaces the parts of the messages that its range of the log
changes, and the last part, which gets the new messages and carries the state of the pass as a whole; it neither reads
nor writes the others.

Invariant: an id lies in one part, and every id that the range changes lies in a part that :func:`changed_parts` gives.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from logstore.codec.placed import PlaceStates
from logstore.codec.records import RecordType
from logstore.core.extras import require
from logstore.export.manifest import ExportDamaged, Span
from logstore.export.places import LocalPlace
from logstore.inspect import Reader
from logstore.rows.messages import REST_KEY
from logstore.rows.records import Where, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from logstore.export.manifest import FileInfo, Manifest
    from logstore.export.target import Target
    from logstore.holds import Hold

__all__ = [
    "PART_BODIES",
    "PART_ROWS",
    "bodies_in",
    "changed_parts",
    "check_parts",
    "group_starts",
    "has_undecided",
    "read_bodies",
    "read_seed",
    "split_rows",
]

PART_ROWS: Final = 1 << 15
"""The largest number of messages in a part: what a run with one new message reads and writes."""

PART_BODIES: Final = 64 << 20
"""The most bytes of bodies in a part, unless a single body is longer: a part is made in memory."""

_BODY_ROWS: Final = 1 << 10  # read at once of a part's bodies

_STATES_MAX: Final = 1000  # more PLACE_STATES than these are not decoded: they count as a change of every part

# All records that change messages, except those of transactions: a part with undecided work always counts as changed.
_CHANGING: Final = (
    *(each.name for each in RecordType if each.name.startswith("MESSAGE_")),
    "QUEUE_DELETE",
    "PLACE_STATES",
)


def changed_parts(source: Path, manifest: Manifest, span: Span, hold: Hold | None, keep_lsn: int | None) -> list[int]:
    """The numbers of the parts with messages that this range of the log may change, and of the last part; ascending.

    Raises the errors of reading the log.
    """
    parts, undecided = manifest.open, set(manifest.undecided)
    every = set(range(len(parts)))
    last = len(parts) - 1
    found = {last} | {number for number in every if parts[number].first_id in undecided}
    if found != every:
        for ids in _changed_ids(source, parts[last].first_id, span, hold, keep_lsn):
            if ids is None:
                found = every
            else:
                found |= {part_of(parts, message) for message in ids}
            if found == every:
                break
    return sorted(found | _neighbours(parts, found))


def part_of(parts: Sequence[FileInfo], message_id: int) -> int:
    """The number of the part in which a message with this id is, or is put."""
    return max(0, bisect_right(parts, message_id, key=lambda part: part.first_id) - 1)


def _changed_ids(
    source: Path, below: int, span: Span, hold: Hold | None, keep_lsn: int | None
) -> Iterator[set[int] | None]:
    """The ids below this one that the range changes; None if it may change every message."""
    compute = require("arrow", "pyarrow.compute")
    states: list[int] = []
    with read(
        source,
        start_lsn=span.start_lsn,
        stop_lsn=span.stop_lsn,
        columns=["lsn", "type", "id"],
        where=Where(types=_CHANGING),
        hold=hold,
        keep_lsn=None if hold is not None else keep_lsn,
        queue_names={},
    ) as batches:
        for batch in batches:
            if compute.any(compute.equal(batch["type"], "QUEUE_DELETE")).as_py():
                yield None
            of_states = compute.equal(batch["type"], "PLACE_STATES")
            states += batch["lsn"].filter(of_states).to_pylist()
            if len(states) > _STATES_MAX:
                yield None
            older = compute.and_not(compute.less(batch["id"], below), of_states)
            yield set(batch["id"].filter(older).unique().to_pylist()) - {None}
    if states:
        yield _ids_of_states(source, states, hold, keep_lsn)


def _ids_of_states(source: Path, lsns: Sequence[int], hold: Hold | None, keep_lsn: int | None) -> set[int]:
    """The messages whose places these PLACE_STATES change."""
    ids: set[int] = set()
    keep = None if hold is not None else keep_lsn
    with Reader(source, from_lsn=lsns[0], hold=hold, keep_lsn=keep) as reader:
        for record in reader.records(only=RecordType.PLACE_STATES):
            if record.lsn > lsns[-1]:
                break
            if isinstance(record.body, PlaceStates):
                ids |= {row.id for row in record.body.rows}
            if record.lsn == lsns[-1]:
                break
    return ids


def _neighbours(parts: Sequence[FileInfo], changed: set[int]) -> set[int]:
    """Parts that a changed part with few rows takes in, so that parts do not stay small for ever."""
    found = set()
    for number in changed:
        part = parts[number]
        if part.rows >= PART_ROWS // 4 or part.bytes >= PART_BODIES // 4:
            continue
        for other in (number - 1, number + 1):
            fits = 0 <= other < len(parts) and part.bytes + parts[other].bytes <= PART_BODIES
            if fits and part.rows + parts[other].rows <= PART_ROWS:
                found.add(other)
                break
    return found


def has_undecided(path: Path) -> bool:
    """Whether a message of this part, which was just written, is staged or has undecided work, by the file's bounds."""
    with path.open("rb") as file:  # as pyarrow does not take every path
        metadata = require("arrow", "pyarrow.parquet").read_metadata(file)
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        columns = [row_group.column(at) for at in range(row_group.num_columns)]
        for column in columns:
            if column.path_in_schema in ("pending", "staged") and (column.statistics is None or column.statistics.max):
                return True
    return False


def check_parts(target: Target, parts: Sequence[FileInfo], changed: Sequence[int]) -> list[Path]:
    """Checks the hashes of the parts that a run continues, and that the others are there with their sizes.

    Returns local files with the former. Raises ``ExportDamaged``.
    """
    seeds = []
    for number, part in enumerate(parts):
        try:
            if number in changed:
                seeds.append(target.part(part))
                sound = LocalPlace(seeds[-1].parent).hash(seeds[-1].name) == (part.bytes, part.xxh64)
            else:
                sound = target.place.size(part.path) == part.bytes
        except FileNotFoundError:
            sound = False
        if not sound:
            raise _damaged(f"{target.place}/{part.path}")
    return seeds


def _damaged(path: str) -> ExportDamaged:
    return ExportDamaged(
        f"{path} is missing or damaged, but the export cannot continue without it: restore it, or export to a new "
        "target"
    )


def group_starts(parts: Sequence[FileInfo], changed: Sequence[int]) -> tuple[int, ...]:
    """The first id of each sequence of changed parts without an unchanged one between them."""
    return tuple(parts[number].first_id for number in changed if number == 0 or number - 1 not in changed)


def read_seed(paths: Sequence[str]) -> pa.Table | None:
    """The states of these parts, for the pass that continues them; None if there are none."""
    arrow, parquet = require("arrow", "pyarrow"), require("arrow", "pyarrow.parquet")
    if not paths:
        return None
    tables = []
    for path in paths:
        with open(path, "rb") as file:
            tables.append(parquet.read_table(file, columns=["id", "state"]))
    rest = (tables[-1].schema.metadata or {}).get(REST_KEY, b"")
    plain = [table.replace_schema_metadata(None) for table in tables]
    return arrow.concat_tables(plain).replace_schema_metadata({REST_KEY: rest})


def read_bodies(paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The bodies of these parts, as ``id`` and ``body``; none of parts that an earlier version wrote without them."""
    parquet = require("arrow", "pyarrow.parquet")
    for path in paths:
        with open(path, "rb") as file, parquet.ParquetFile(file) as part:
            yield from bodies_in(part)


def bodies_in(part: Any) -> Iterator[pa.RecordBatch]:
    """The same of one part, a ``ParquetFile``."""
    if "body" in part.schema_arrow.names:
        yield from part.iter_batches(_BODY_ROWS, columns=["id", "body"])


def split_rows(
    batches: Iterable[pa.RecordBatch], made: pa.Schema, starts: Sequence[int]
) -> Iterator[tuple[int, pa.Table]]:
    """The rows, which are in the order of their ids, as parts of this schema with their first ids.

    ``starts`` are those of :func:`group_starts`. A sequence without rows gives no part, except the last one.
    """
    split = _Split(made)
    rows = iter(batches)
    left: list[pa.RecordBatch] = []
    for start, stop in pairwise([*starts, None]):
        split.start = start
        while (batch := left.pop() if left else next(rows, None)) is not None:
            own = batch.num_rows if stop is None else _first_at_or_above(batch["id"], stop)
            yield from split.take(batch.slice(0, own))
            if own < batch.num_rows:
                left.append(batch.slice(own))
                break
        if split.rows or stop is None:
            yield split.part()


class _Split:
    """The part that is being made."""

    def __init__(self, made: pa.Schema) -> None:
        self._schema = made
        self._batches: list[pa.RecordBatch] = []
        self.rows = 0
        self._bytes = 0
        self.start: int | None = None
        """The least first id of the next part; None: that of its first message."""

    def take(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Table]]:
        """Adds rows; gives the parts that are full with them."""
        while batch.num_rows:
            fits = min(batch.num_rows, PART_ROWS - self.rows)
            if fits and "body" in batch.schema.names:
                fits = self._fitting(batch["body"].slice(0, fits))
            if fits:
                self._batches.append(batch.slice(0, fits))
                self.rows += fits
                batch = batch.slice(fits)
            if batch.num_rows:
                yield self.part()

    def _fitting(self, bodies: pa.Array) -> int:
        """The number of first rows that fit into the part, and at least one into an empty part."""
        compute = require("arrow", "pyarrow.compute")
        ends = compute.cumulative_sum(compute.fill_null(compute.binary_length(bodies), 0).cast("int64"))
        fits = compute.sum(compute.less_equal(ends, PART_BODIES - self._bytes)).as_py()
        fits = int(fits) if self.rows else max(1, int(fits))
        self._bytes += ends[fits - 1].as_py() if fits else 0
        return fits

    def part(self) -> tuple[int, pa.Table]:
        """The part, which ends here, and its first id."""
        table = require("arrow", "pyarrow").Table.from_batches(self._batches, schema=self._schema)
        firsts = [*([] if self.start is None else [self.start]), *table["id"].slice(0, 1).to_pylist()]
        self._batches, self.rows, self._bytes, self.start = [], 0, 0, None
        return min(firsts), table


def _first_at_or_above(ids: Any, start: int) -> int:
    compute = require("arrow", "pyarrow.compute")
    return int(compute.sum(compute.less(ids, start)).as_py() or 0)
