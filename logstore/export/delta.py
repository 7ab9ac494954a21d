"""An export as Delta Lake tables: the directories ``records`` and ``messages`` of the target, partitioned by day.

The tables' logs are ``_delta_log`` in these directories. A registration is one commit for each table, which makes the
files of the table those of the manifest: it adds new files, and removes those that were dropped or merged. The commit's
information and its ``txn`` action contain the LSN that the table reaches. If a run is interrupted between the manifest
and the log, the next run does this, and no file is registered twice.

The library ``deltalake`` reads and writes the logs. A commit has a number that no other one has: in a directory a file
is made under a name that must be free, on S3 the put has the condition ``If-None-Match: *``. The program that comes
second reads the table again and takes the next number. A hundred commits after a checkpoint follows the next one, and
then the removal of commits before it that are older than the table's ``delta.logRetentionDuration`` (30 days).

Invariant: in a directory, a commit is on disk before a file goes that the table named, and a checkpoint is before a
commit goes.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from logstore.core.extras import require
from logstore.core.regular_files import force_directory, open_regular
from logstore.export.iceberg import LAST_LSN, summary
from logstore.export.manifest import ExportError, FileInfo, Manifest, parsed_path
from logstore.export.object_stores import delta_storage
from logstore.export.places import LocalPlace, Place, RemotePlace

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["APPLICATION", "check", "is_registered", "register"]

APPLICATION: Final = "logstore"
"""The application of the ``txn`` action; its version is the LSN that the table reaches."""

_LOG: Final = "_delta_log"
_BEGUN: Final = (f"{_LOG}/{0:020}.json", f"{_LOG}/_last_checkpoint")  # a log has one, unless it was copied without
_DATASETS: Final = ("records", "messages")
_RETRIES: Final = 10
_CHECKPOINT_EVERY: Final = 100
_FORCED_S: Final = 120.0  # files of the log that are older were forced by the system, or by the run that made them


def check(place: Place) -> None:
    """Raises ``MissingExtra``, and ``OptionError`` if this place can have no Delta tables."""
    require("delta", "deltalake")
    _storage(place)


def is_registered(place: Place) -> bool:
    """Whether the export has Delta tables, which every run keeps up."""
    return any(_is_table(place, dataset) for dataset in _DATASETS)


def _is_table(place: Place, dataset: str) -> bool:
    begun = any(size is not None for size in place.sizes(*(f"{dataset}/{name}" for name in _BEGUN)))
    return begun or any(name.endswith((".json", ".parquet")) for name in _log_names(place, dataset))


def _log_names(place: Place, dataset: str) -> list[str]:
    if isinstance(place, RemotePlace):
        return place.below(f"{dataset}/{_LOG}")
    assert isinstance(place, LocalPlace)
    try:
        return os.listdir(place.path / dataset / _LOG)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _storage(place: Place) -> tuple[str, dict[str, str] | None]:
    if isinstance(place, RemotePlace):
        return delta_storage(place)
    assert isinstance(place, LocalPlace)
    return str(place.path.absolute()), None


def register(place: Place, manifest: Manifest) -> int:
    """Makes the files of the tables those of the export. Returns the number of new ones.

    Raises ``MissingExtra``, ``OptionError``, and ``ExportError`` if a table cannot be changed.
    """
    check(place)
    return sum(_register(place, dataset, manifest) for dataset in _DATASETS)


@contextmanager
def _explained(place: Place, dataset: str) -> Iterator[None]:
    delta = require("delta", "deltalake.exceptions")
    try:
        yield
    except (delta.DeltaError, OSError) as error:
        raise ExportError(
            f"the export is complete, but the Delta table {place}/{dataset} could not be changed "
            f"({place.line(error)}): correct that and run the export again, which registers the missing files"
        ) from error


def _register(place: Place, dataset: str, manifest: Manifest) -> int:
    taken = require("delta", "deltalake.exceptions").CommitFailedError
    files = manifest.of(dataset)
    with _explained(place, dataset):
        if not files and not _is_table(place, dataset):
            return 0
        for attempt in range(1, 1 + _RETRIES):
            table = _table(place, dataset, files, manifest)
            actions = table.get_add_actions(flatten=True)
            known = dict(zip(_column(actions, "path"), _column(actions, "num_records"), strict=True))
            wanted = {file.path.removeprefix(f"{dataset}/"): file for file in files}
            new = {path: file for path, file in wanted.items() if path not in known}
            gone = {path: rows for path, rows in known.items() if path not in wanted}
            if not new and not gone:
                return 0
            try:
                _commit(table, _actions(dataset, new, gone), manifest)
            except taken:  # another program has made the commit of this number meanwhile
                if attempt == _RETRIES:
                    raise
                continue
            _tidy(place, dataset, table.version() + 1)
            return len(new)
    raise AssertionError


def _tidy(place: Place, dataset: str, version: int) -> None:
    """Forces the commits up to this one to disk, and keeps the log short."""
    _force(place, dataset)
    if version < _last_checkpoint(place, dataset) + _CHECKPOINT_EVERY:
        return
    table = _opened(place, dataset)
    table.create_checkpoint()
    _force(place, dataset)
    if table.metadata().configuration.get("delta.enableExpiredLogCleanup") != "false":
        table.cleanup_metadata()


def _last_checkpoint(place: Place, dataset: str) -> int:
    """The version of the newest checkpoint by the log's hint; 0 if there is none."""
    try:
        raw, _ = place.read(f"{dataset}/{_BEGUN[1]}", 1 << 16)
        return int(json.loads(raw)["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0


def _force(place: Place, dataset: str) -> None:
    if not isinstance(place, LocalPlace):
        return
    log = place.path / dataset / _LOG
    new = [path for path in log.iterdir() if path.stat().st_mtime > time.time() - _FORCED_S]
    for path in new:
        fd = open_regular(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    force_directory(log)


def _column(actions: Any, name: str) -> list[Any]:
    return list(require("arrow", "pyarrow").table(actions)[name].to_pylist())


def _table(place: Place, dataset: str, files: list[FileInfo], manifest: Manifest) -> Any:
    """The table, made if it does not exist, with all columns of the newest file."""
    delta, arrow = require("delta", "deltalake"), require("arrow", "pyarrow")
    if not _is_table(place, dataset):
        address, options = _storage(place)
        day = arrow.field("day", arrow.date32(), nullable=False)
        return delta.DeltaTable.create(
            f"{address}/{dataset}",
            arrow.schema([*_columns(place, files[-1]), day]),
            partition_by=["day"],
            name=dataset,
            description=f"{dataset} of the store {manifest.store}",
            storage_options=options,
        )
    table = _opened(place, dataset)
    if files:
        known = {field.name for field in table.schema().fields}
        if missing := [field for field in _columns(place, files[-1]) if field.name not in known]:
            table.alter.add_columns(list(delta.Schema.from_arrow(arrow.schema(missing)).fields))
    return table


def _opened(place: Place, dataset: str) -> Any:
    address, options = _storage(place)
    return require("delta", "deltalake").DeltaTable(f"{address}/{dataset}", storage_options=options)


def _columns(place: Place, file: FileInfo) -> Any:
    with place.opened(file.path) as opened:
        return require("arrow", "pyarrow.parquet").read_schema(opened).remove_metadata()


def _commit(table: Any, actions: list[Any], manifest: Manifest) -> None:
    """Makes the next commit of the table. Raises ``CommitFailedError`` if there is one of its number."""
    transaction = require("delta", "deltalake.transaction")
    said = summary(manifest, manifest.last_lsn)
    reached = transaction.Transaction(APPLICATION, int(said[LAST_LSN]), time.time_ns() // 1_000_000)
    table.create_write_transaction(
        *(actions, "append", table.schema(), ["day"]),
        commit_properties=transaction.CommitProperties(said, max_commit_retries=0, app_transactions=[reached]),
        post_commithook_properties=transaction.PostCommitHookProperties(False, False),
    )


def _actions(dataset: str, new: dict[str, FileInfo], gone: dict[str, int]) -> list[Any]:
    transaction = require("delta", "deltalake.transaction")
    now_ms = time.time_ns() // 1_000_000
    merged_of = {path: _merged(dataset, file, gone) for path, file in new.items()}
    merged = {path for paths in merged_of.values() for path in paths}
    actions: list[Any] = []
    for path in gone:
        day = path.split("/")[0].removeprefix("day=")
        changes = path not in merged
        actions.append(transaction.RemoveAction(path, changes, now_ms, partition_values={"day": day}))
    for path, file in new.items():
        stats = json.dumps({"numRecords": file.rows})
        changes = not merged_of[path]
        actions.append(transaction.AddAction(path, file.bytes, {"day": file.day}, now_ms, changes, stats))
    return actions


def _merged(dataset: str, file: FileInfo, gone: dict[str, int]) -> list[str]:
    """The removed files whose rows this file has; none if it has any other row."""
    inside = []
    for path in gone:
        start, stop = parsed_path(f"{dataset}/{path}")
        if file.start_lsn <= start and stop <= file.stop_lsn:
            inside.append(path)
    return inside if sum(gone[path] for path in inside) == file.rows else []
