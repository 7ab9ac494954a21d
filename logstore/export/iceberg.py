"""An export's files as Apache Iceberg tables: ``logstore.records`` and ``logstore.messages``, partitioned by day.

The files stay in their places; a table refers to them. The catalog is an SQLite file in a directory of its own. With a
local target the tables' metadata is in this directory, too. With a target on S3 it is beside the data, in ``_iceberg``
of the target, so that whoever reaches the files also reaches the metadata.

One program at a time registers: it locks ``catalog.lock`` beside the catalog. Otherwise two would add the same files,
because pyiceberg repeats a commit that came too late without another look at the table.

Each snapshot's properties contain the LSN that it reaches. A registration makes the files of the table those of the
manifest, each once, in one snapshot, and so takes out files that were dropped or merged. If a run is interrupted
between the manifest and the catalog, the next run does this.

Old snapshots expire: those from before a snapshot that took out files, because they name files that are gone, and the
older half of more than :data:`SNAPSHOTS`. Then the lists and manifests go that commits of the table wrote and that no
snapshot names any more. No other file goes: a program that commits writes its files before the catalog names them, and
another table may be in the directory. A kill leaves files that nothing names.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logstore.core.extras import require
from logstore.core.regular_files import open_regular
from logstore.export.files import BOUNDED
from logstore.export.manifest import ExportError, ExportMismatch, Manifest
from logstore.export.object_stores import iceberg_properties, s3_address
from logstore.export.places import LocalPlace, Place, RemotePlace, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore.export.manifest import FileInfo

__all__ = ["LAST_LSN", "MISSING_LSN", "MISSING_TIME", "NAMESPACE", "check", "open_catalog", "register", "summary"]

NAMESPACE: Final = "logstore"
LAST_LSN: Final = "logstore.last-lsn"
"""In a snapshot's summary: everything below it is in the table."""

MISSING_LSN: Final = "logstore.missing-before-lsn"
"""In a snapshot's summary: the log had recycled everything below it before the first export. Absent if nothing was."""

MISSING_TIME: Final = "logstore.missing-before-time"
"""In a snapshot's summary: what is missing was logged before this time (ISO 8601, UTC)."""

SNAPSHOTS: Final = 100
"""The most snapshots of a table; of more, the older half expires."""

_KEPT: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # A reader opens every manifest; a run would add one for ever.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
}
_LIST: Final = re.compile(r"snap-\d+-\d+-([0-9a-f-]{36})\.avro")  # and the UUID of its commit
_MANIFEST: Final = re.compile(r"([0-9a-f-]{36})-m\d+\.avro")
_METADATA: Final = "_iceberg"
_STORE: Final = "logstore.store"
_TARGET: Final = "logstore.target"
_DAYS: Final = {"records": "time", "messages": "end_time"}


def open_catalog(directory: str | os.PathLike[str], target: object = None) -> Any:
    """The pyiceberg catalog in this directory, made if it does not exist.

    ``target``: the export of its tables if that is an address, for the endpoint, the region and the credentials.
    Raises ``MissingExtra``, ``OptionError``, ``ExportError``.
    """
    place = None if target is None else place_of(target)
    sql = require("iceberg", "pyiceberg.catalog.sql")
    require("iceberg", "sqlalchemy")
    given = iceberg_properties(place) if isinstance(place, RemotePlace) else {}
    path = _made(directory)
    return sql.SqlCatalog("logstore", uri=f"sqlite:///{path / 'catalog.sqlite'}", warehouse=path.as_uri(), **given)


def _made(directory: str | os.PathLike[str]) -> Path:
    path = Path(directory).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"the directory {path} for Iceberg cannot be made: {error.strerror}") from error
    return path


def check(place: Place) -> None:
    """Raises ``MissingExtra``, and ``OptionError`` if the files of this place can be in no Iceberg table."""
    require("iceberg", "pyiceberg.catalog.sql")
    if isinstance(place, RemotePlace):
        iceberg_properties(place)


def register(place: Place, manifest: Manifest, directory: Path) -> int:
    """Makes the files of the tables those of the export. Returns the number of new ones.

    Raises :class:`~logstore.export.manifest.ExportMismatch` if the catalog has the tables of another export.
    """
    path = _made(directory)
    with _explained(path, place), _alone(path):
        catalog = open_catalog(path, place)
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return sum(_register(catalog, dataset, place, manifest) for dataset in _DAYS)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Waits until no other program registers."""
    lock = open_regular(directory / "catalog.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _base(place: Place) -> str:
    """The path or address of the target, with which the paths of its files in the tables begin."""
    if isinstance(place, RemotePlace):
        return s3_address(place)
    assert isinstance(place, LocalPlace)
    return str(place.path.absolute())


@contextmanager
def _explained(directory: Path, place: Place) -> Iterator[None]:
    """Turns an error of the database, pyiceberg or the system into an ``ExportError`` that says what to do."""
    sql, iceberg = require("iceberg", "sqlalchemy.exc"), require("iceberg", "pyiceberg.exceptions")
    own = [one for one in vars(iceberg).values() if isinstance(one, type) and issubclass(one, Exception)]
    try:
        yield
    except (sql.SQLAlchemyError, OSError, *own) as error:
        raise ExportError(
            f"the export is complete, but the Iceberg catalog in {directory} could not be changed "
            f"({place.line(error)}): correct "
            "that and run the export again, which registers the missing files"
        ) from error


def _register(catalog: Any, dataset: str, place: Place, manifest: Manifest) -> int:
    files = manifest.of(dataset)
    if not files and not catalog.table_exists((NAMESPACE, dataset)):
        return 0
    table = _table(catalog, dataset, place, files, manifest)
    found = [(task.file.file_path.removeprefix("file://"), task.file) for task in table.scan().plan_files()]
    known = dict(found)
    once = {path for path, times in Counter(path for path, _ in found).items() if times == 1}
    wanted = [f"{_base(place)}/{file.path}" for file in files]
    new = [path for path in wanted if path not in once]
    gone = sorted((known.keys() - once) | (once - set(wanted)))
    if not new and not gone:
        return 0
    reached = max((file.stop_lsn for file in files), default=manifest.last_lsn)
    said = summary(manifest, reached)
    if any(table.properties.get(key) is None for key in _KEPT):
        with table.transaction() as change:
            change.set_properties(_KEPT | table.properties)
    if new:
        _widen(table, _columns(place, files[-1]))
    if gone:
        with table.transaction() as change:
            made = _data_files(table, new)
            with change.update_snapshot(snapshot_properties=said).overwrite() as snapshot:
                for path in gone:
                    snapshot.delete_data_file(known[path])
                for file in made:
                    snapshot.append_data_file(file)
    else:
        table.add_files(new, snapshot_properties=said)
    _expire(table, dataset, place)
    return len(new)


def _expire(table: Any, dataset: str, place: Place) -> None:
    """Expires old snapshots, and removes what only they named.

    Nothing else goes: another program writes the files of a commit before the catalog names them.
    """
    snapshots = sorted(table.snapshots(), key=lambda one: one.sequence_number)
    ends = [at for at, one in enumerate(snapshots) if one.summary is None or one.summary.operation.value != "append"]
    first = max(ends, default=0)
    if len(snapshots) - first > SNAPSHOTS:
        first = len(snapshots) - SNAPSHOTS // 2
    named = {ref.snapshot_id for ref in table.refs().values()}
    old = [one for one in snapshots[:first] if one.snapshot_id not in named]
    if not old:
        return
    gone = _named(table, old) | _merged(table, snapshots, dataset, place)
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in old]).commit()
    # A name has a UUID; other programs may write what is before it differently.
    kept = {_name(location) for location in _named(table, table.snapshots())}
    for location in sorted(each for each in gone if _name(each) not in kept):
        with suppress(FileNotFoundError):  # another run removes the same
            table.io.delete(location)


def _merged(table: Any, snapshots: list[Any], dataset: str, place: Place) -> set[str]:
    """All manifests that the commits of these snapshots wrote, also those that they merged at once into others."""
    fs = require("arrow", "pyarrow.fs")
    location = f"{table.location()}/metadata"
    system: Any = fs.LocalFileSystem()
    directory = location.removeprefix("file://")
    if isinstance(place, RemotePlace):
        system, root = place.system
        directory = f"{root}/{_METADATA}/{dataset}/metadata"
    commits = {found[1] for one in snapshots if (found := _LIST.fullmatch(_name(one.manifest_list)))}
    names = [info.base_name for info in system.get_file_info(fs.FileSelector(directory, allow_not_found=True))]
    return {f"{location}/{name}" for name in names if (found := _MANIFEST.fullmatch(name)) and found[1] in commits}


def _name(location: str) -> str:
    return location.rpartition("/")[2]


def _named(table: Any, snapshots: list[Any]) -> set[str]:
    """The files of metadata that these snapshots name."""
    lists = {snapshot.manifest_list for snapshot in snapshots}
    return lists | {one.manifest_path for snapshot in snapshots for one in snapshot.manifests(table.io)}


def _data_files(table: Any, paths: list[str]) -> list[Any]:
    files = require("iceberg", "pyiceberg.io.pyarrow")
    return list(files.parquet_files_to_data_files(table.io, table.metadata, iter(paths)))


def _columns(place: Place, file: FileInfo) -> Any:
    with place.opened(file.path) as opened:
        return require("arrow", "pyarrow.parquet").read_schema(opened)


def _widen(table: Any, made: Any) -> None:
    """Adds the columns that this schema has and the table, made by an earlier version of this package, has not."""
    with table.update_schema() as update:
        update.union_by_name(made)


def summary(manifest: Manifest, last_lsn: int) -> dict[str, str]:
    """The properties that a commit of a table has of the export."""
    missing = manifest.missing_before
    before = {} if missing is None else {MISSING_LSN: str(missing.lsn), MISSING_TIME: missing.time.isoformat()}
    return {LAST_LSN: str(last_lsn)} | before


def _table(catalog: Any, dataset: str, place: Place, files: list[FileInfo], manifest: Manifest) -> Any:
    name = (NAMESPACE, dataset)
    properties = {_STORE: str(manifest.store), _TARGET: _base(place)}
    if catalog.table_exists(name):
        table = catalog.load_table(name)
        for key, value in properties.items():
            if table.properties.get(key) != value:
                raise ExportMismatch(
                    f"the Iceberg table {NAMESPACE}.{dataset} belongs to another export ({table.properties.get(key)}): "
                    "choose another directory for it"
                )
        return table
    transforms = require("iceberg", "pyiceberg.transforms")
    made = _columns(place, files[0])
    # The files have bounds of these columns only.
    properties |= _KEPT | {"write.metadata.metrics.default": "none"}
    properties |= {f"write.metadata.metrics.column.{name}": "full" for name in made.names if name in BOUNDED}
    location = f"{_base(place)}/{_METADATA}/{dataset}" if isinstance(place, RemotePlace) else None
    table = catalog.create_table(name, schema=made, properties=properties, location=location)
    with table.update_spec() as spec:
        spec.add_field(_DAYS[dataset], transforms.DayTransform(), "day")
    return table
