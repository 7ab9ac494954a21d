"""Rows of files of an export, and those of every schema version in the columns of this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from logstore.core.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

__all__ = ["BATCH_ROWS", "batches_of", "of_this_version"]

BATCH_ROWS: Final = 1 << 15


def batches_of(
    file: Any, *, columns: list[str] | None = None, groups: Iterable[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a ``ParquetFile``, or of these row groups, each group by itself.

    The bytes of a row group are limited when it is written; pyarrow would put rows of many groups into one batch.
    """
    for group in range(file.num_row_groups) if groups is None else groups:
        yield from file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns)


def of_this_version(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The rows with this schema. A column that their file lacks is null."""
    arrow = require("arrow", "pyarrow")
    have = set(batch.schema.names)
    arrays = [
        _as(batch.column(field.name), field.type) if field.name in have else arrow.nulls(batch.num_rows, field.type)
        for field in wanted
    ]
    return arrow.RecordBatch.from_arrays(arrays, schema=wanted)


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in this type; the structs of an older file's ``places`` get their missing fields, which are null."""
    arrow = require("arrow", "pyarrow")
    if not arrow.types.is_list(kind) or not arrow.types.is_struct(kind.value_type):
        return array.cast(kind)
    places = array.values
    fields = [kind.value_type.field(number) for number in range(kind.value_type.num_fields)]
    have = {places.type.field(number).name for number in range(places.type.num_fields)}
    arrays = [
        places.field(one.name).cast(one.type) if one.name in have else arrow.nulls(len(places), one.type)
        for one in fields
    ]
    return arrow.ListArray.from_arrays(
        array.offsets, arrow.StructArray.from_arrays(arrays, fields=fields), type=kind, mask=None
    )
