"""An export's files as Apache Iceberg tables: ``logstore.records`` and ``logstore.messages``, partitioned by day.

The files stay in their places; a table refers to them. The catalog is an SQLite file in a separate directory, with the
tables' metadata. Each snapshot's properties contain the LSN that it reaches. A registration makes the files of the
table those of the manifest, in one snapshot, and so takes out files that were dropped or merged. If a run is
interrupted between the manifest and the catalog, the next run does this, and no file is registered twice.
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

__all__ = ["LAST_LSN", "MISSING_LSN", "MISSING_TIME", "NAMESPACE", "open_catalog", "register", "summary"]

NAMESPACE: Final = "logstore"
LAST_LSN: Final = "logstore.last-lsn"
"""In a snapshot's summary: everything below it is in the table."""

MISSING_LSN: Final = "logstore.missing-before-lsn"
"""In a snapshot's summary: the log had recycled everything below it before the first export. Absent if nothing was."""

MISSING_TIME: Final = "logstore.missing-before-time"
"""In a snapshot's summary: what is missing was logged before this time (ISO 8601, UTC)."""

_STORE: Final = "logstore.store"
_TARGET: Final = "logstore.target"
_DAYS: Final = {"records": "time", "messages": "end_time"}


def open_catalog(directory: str | os.PathLike[str]) -> Any:
    """The pyiceberg catalog in this directory, made if it does not exist. Raises ``MissingExtra``, ``ExportError``."""
    path = Path(directory).absolute()
    sql = require("iceberg", "pyiceberg.catalog.sql")
    require("iceberg", "sqlalchemy")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"the directory {path} for Iceberg cannot be made: {error.strerror}") from error
    return sql.SqlCatalog("logstore", uri=f"sqlite:///{path / 'catalog.sqlite'}", warehouse=path.as_uri())


def register(target: Path, manifest: Manifest, directory: Path) -> int:
    """Makes the files of the tables those of the export. Returns the number of new ones.

    Raises :class:`~logstore.export.manifest.ExportMismatch` if the catalog has the tables of another export.
    """
    with _explained(directory):
        catalog = open_catalog(directory)
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return sum(_register(catalog, dataset, target.absolute(), manifest) for dataset in _DAYS)


@contextmanager
def _explained(directory: Path) -> Iterator[None]:
    """Turns an error of the database, pyiceberg or the system into an ``ExportError`` that says what to do."""
    sql, iceberg = require("iceberg", "sqlalchemy.exc"), require("iceberg", "pyiceberg.exceptions")
    own = [one for one in vars(iceberg).values() if isinstance(one, type) and issubclass(one, Exception)]
    try:
        yield
    except (sql.SQLAlchemyError, OSError, *own) as error:
        what = str(error).partition("\n")[0]
        raise ExportError(
            f"the export is complete, but the Iceberg catalog in {directory} could not be changed ({what}): correct "
            "that and run the export again, which registers the missing files"
        ) from error


def _register(catalog: Any, dataset: str, target: Path, manifest: Manifest) -> int:
    files = manifest.of(dataset)
    if not files and not catalog.table_exists((NAMESPACE, dataset)):
        return 0
    table = _table(catalog, dataset, target, files, manifest)
    known = {task.file.file_path.removeprefix("file://"): task.file for task in table.scan().plan_files()}
    wanted = [str(target / file.path) for file in files]
    new, gone = [path for path in wanted if path not in known], sorted(known.keys() - set(wanted))
    reached = max((file.stop_lsn for file in files), default=manifest.last_lsn)
    said = summary(manifest, reached)
    if new:
        _widen(table, target / files[-1].path)
    if gone:
        with table.transaction() as change:
            made = _data_files(table, new)
            with change.update_snapshot(snapshot_properties=said).overwrite() as snapshot:
                for path in gone:
                    snapshot.delete_data_file(known[path])
                for file in made:
                    snapshot.append_data_file(file)
    elif new:
        table.add_files(new, snapshot_properties=said)
    return len(new)


def _data_files(table: Any, paths: list[str]) -> list[Any]:
    files = require("iceberg", "pyiceberg.io.pyarrow")
    return list(files.parquet_files_to_data_files(table.io, table.metadata, iter(paths)))


def _widen(table: Any, newest: Path) -> None:
    """Adds the columns that this file has and the table, made by an earlier version of this package, has not."""
    made = require("arrow", "pyarrow.parquet").read_schema(newest)
    with table.update_schema() as update:
        update.union_by_name(made)


def summary(manifest: Manifest, last_lsn: int) -> dict[str, str]:
    """The properties that a commit of a table has of the export."""
    missing = manifest.missing_before
    before = {} if missing is None else {MISSING_LSN: str(missing.lsn), MISSING_TIME: missing.time.isoformat()}
    return {LAST_LSN: str(last_lsn)} | before


def _table(catalog: Any, dataset: str, target: Path, files: list[FileInfo], manifest: Manifest) -> Any:
    name = (NAMESPACE, dataset)
    properties = {_STORE: str(manifest.store), _TARGET: str(target)}
    if catalog.table_exists(name):
        table = catalog.load_table(name)
        for key, value in properties.items():
            if table.properties.get(key) != value:
                raise ExportMismatch(
                    f"the Iceberg table {NAMESPACE}.{dataset} belongs to another export ({table.properties.get(key)}): "
                    "choose another directory for it"
                )
        return table
    parquet, transforms = require("arrow", "pyarrow.parquet"), require("iceberg", "pyiceberg.transforms")
    made = parquet.read_schema(target / files[0].path)
    # The files have bounds of these columns only.
    properties |= {"write.metadata.metrics.default": "none"}
    properties |= {f"write.metadata.metrics.column.{name}": "full" for name in made.names if name in BOUNDED}
    table = catalog.create_table(name, schema=made, properties=properties)
    with table.update_spec() as spec:
        spec.add_field(_DAYS[dataset], transforms.DayTransform(), "day")
    return table
