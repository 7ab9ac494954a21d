"""The columns of the source as Spark types, and the columns of a reader's own ``.schema(...)``.

Spark prunes no columns of a Python source, but a schema from the user reaches it: only those columns are read. Arrow's
types and Spark's must agree exactly, nullability included, because Spark reads the batches without a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from logstore.errors import OptionError
from logstore.rows.properties import DECODED

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

__all__ = ["STORE", "checked_columns", "spark_schema", "target_schema"]

STORE: Final = "store"
"""The UUID of the store of a row; present if several stores are read, or on request."""


def spark_schema(columns: Sequence[str] | None = None, *, body: bool = False, store: bool = False) -> StructType:
    """The source's schema: these columns in their order; by default all but ``body`` and those made from ``header``.

    Raises ``OptionError`` for an unknown name.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    known = _known(StructField(STORE, StringType(), False))
    if columns is None:
        columns = [
            name for name in known if (name != STORE or store) and (name != "body" or body) and name not in DECODED
        ]
    for name in columns:
        if name.lower() not in known:
            raise _unknown(name, known)
    return StructType([known[name.lower()] for name in columns])


def checked_columns(asked: StructType) -> list[str]:
    """The log's names of the requested columns, in that order; case does not matter, as in SQL.

    Raises ``OptionError`` for a column that the log does not have, or has in another type.
    """
    from pyspark.sql.types import StringType, StructField

    known = _known(StructField(STORE, StringType(), False))
    names = [field.name.lower() for field in asked.fields]
    for field in asked.fields:
        ours = known.get(field.name.lower())
        if ours is None:
            raise _unknown(field.name, known)
        if _nullable(field.dataType) != _nullable(ours.dataType):
            raise OptionError(
                f"the schema asks for {field.name} {field.dataType.simpleString()}, and it is "
                f"{ours.dataType.simpleString()}: use that type in the schema, and cast in the query"
            )
        if ours.nullable and not field.nullable:
            raise OptionError(f"the schema asks for {field.name} NOT NULL, and it is null where a record has none")
    if len(set(names)) < len(names):
        raise OptionError(f"the schema names a column twice: {', '.join(names)}")
    return names


def target_schema(asked: StructType) -> pa.Schema:
    """The exact schema that Spark requires of each batch."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(asked, timezone="UTC")


def _known(store: Any) -> dict[str, Any]:
    from pyspark.sql.pandas.types import from_arrow_schema

    import logstore.arrow

    columns = [*logstore.arrow.COLUMNS, *DECODED]
    fields = from_arrow_schema(logstore.arrow.schema(columns, strings="plain"), prefer_timestamp_ntz=False).fields
    return {field.name: field for field in (store, *fields)}


def _unknown(name: str, known: dict[str, Any]) -> OptionError:
    return OptionError(f"the log has no column {name}; it has {', '.join(known)}")


def _nullable(kind: DataType) -> DataType:
    """A type with all its elements nullable, because Spark's nullability of elements may differ."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType), True) for field in kind.fields])
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return ArrayType(_nullable(kind.elementType), True) if isinstance(kind, ArrayType) else kind
