"""An export's files as Apache Iceberg tables: ``logstore.records`` and ``logstore.messages``, partitioned by day.

The files stay where they are; a table names them. The catalog is an SQLite file in a directory of its own, beside the
tables' metadata. Each snapshot says in its properties up to which LSN it goes: so a run that was interrupted between
the manifest and the catalog is caught up with by the next one, and nothing is registered twice.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logstore.core.extras import require
from logstore.export.files import BOUNDED
from logstore.export.manifest import ExportError, ExportMismatch, Manifest

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from logstore.export.manifest import FileInfo

__all__ = ["LAST_LSN", "NAMESPACE", "open_catalog", "register"]

NAMESPACE: Final = "logstore"
LAST_LSN: Final = "logstore.last-lsn"
"""In a snapshot's summary: everything below it is in the table."""

_STORE: Final = "logstore.store"
_TARGET: Final = "logstore.target"
_DAYS: Final = {"records": "time", "messages": "end_time"}


def open_catalog(directory: str | os.PathLike[str]) -> Any:
    """The pyiceberg catalog in this directory, made if it is not there. Raises ``MissingExtra``, ``ExportError``."""
    path = Path(directory).absolute()
    sql = require("iceberg", "pyiceberg.catalog.sql")
    require("iceberg", "sqlalchemy")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"the directory {path} for Iceberg cannot be made: {error.strerror}") from error
    return sql.SqlCatalog("logstore", uri=f"sqlite:///{path / 'catalog.sqlite'}", warehouse=path.as_uri())


def register(target: Path, manifest: Manifest, directory: Path) -> int:
    """Let the tables name all files of the export that they do not name yet; how many those were.

    Raises :class:`~logstore.export.manifest.ExportMismatch` for a catalog that has another export's tables.
    """
    with _explained(directory):
        catalog = open_catalog(directory)
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return sum(_register(catalog, dataset, target.absolute(), manifest) for dataset in _DAYS)


@contextmanager
def _explained(directory: Path) -> Iterator[None]:
    """What the database, pyiceberg or the system refuse, as an error that says what to do."""
    sql, iceberg = require("iceberg", "sqlalchemy.exc"), require("iceberg", "pyiceberg.exceptions")
    own = [one for one in vars(iceberg).values() if isinstance(one, type) and issubclass(one, Exception)]
    try:
        yield
    except (sql.SQLAlchemyError, OSError, *own) as error:
        what = str(error).partition("\n")[0]
        raise ExportError(
            f"the export is whole, but the Iceberg catalog in {directory} could not be changed ({what}): see to it and "
            "run this again, which registers what is missing"
        ) from error


def _register(catalog: Any, dataset: str, target: Path, manifest: Manifest) -> int:
    files = manifest.of(dataset)
    if not files:
        return 0
    table = _table(catalog, dataset, target, files[0], manifest)
    snapshot = table.current_snapshot()
    known = 0 if snapshot is None else int(snapshot.summary.additional_properties.get(LAST_LSN, 0))
    new = [str(target / file.path) for file in files if file.stop_lsn > known]
    if new:
        table.add_files(new, snapshot_properties={LAST_LSN: str(max(file.stop_lsn for file in files))})
    return len(new)


def _table(catalog: Any, dataset: str, target: Path, first: FileInfo, manifest: Manifest) -> Any:
    name = (NAMESPACE, dataset)
    told = {_STORE: str(manifest.store), _TARGET: str(target)}
    if catalog.table_exists(name):
        table = catalog.load_table(name)
        for key, value in told.items():
            if table.properties.get(key) != value:
                raise ExportMismatch(
                    f"the Iceberg table {NAMESPACE}.{dataset} is of another export ({table.properties.get(key)}): "
                    "choose another directory for it"
                )
        return table
    parquet, transforms = require("arrow", "pyarrow.parquet"), require("iceberg", "pyiceberg.transforms")
    made = parquet.read_schema(target / first.path)
    # Only of these do the files tell bounds, and of nothing else should they be looked for.
    told |= {"write.metadata.metrics.default": "none"}
    told |= {f"write.metadata.metrics.column.{name}": "full" for name in made.names if name in BOUNDED}
    table = catalog.create_table(name, schema=made, properties=told)
    with table.update_spec() as spec:
        spec.add_field(_DAYS[dataset], transforms.DayTransform(), "day")
    return table
