"""An export as Delta Lake tables: the directories ``records`` and ``messages`` of the target, partitioned by day.

The tables' logs are ``_delta_log`` in these directories. A registration is one commit for each table, which makes the
files of the table those of the manifest: it adds new files, and removes those that were dropped or merged. The commit's
information and its ``txn`` action contain the LSN that the table reaches. If a run is interrupted between the manifest
and the log, the next run does this, and no file is registered twice.

The library ``deltalake`` makes a table and reads its log. It has no call that removes single files, so the commits are
written here, each under the next number, which a commit of another program cannot have then.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from logstore.core.extras import require
from logstore.core.regular_files import force_directory
from logstore.export.iceberg import LAST_LSN, summary
from logstore.export.manifest import ExportError, FileInfo, Manifest, parsed_path
from logstore.export.target import StagedFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["APPLICATION", "is_registered", "register"]

APPLICATION: Final = "logstore"
"""The application of the ``txn`` action; its version is the LSN that the table reaches."""

_LOG: Final = "_delta_log"
_STAGED: Final = ".logstore-commit"
_DATASETS: Final = ("records", "messages")
_RETRIES: Final = 10


def is_registered(target: Path) -> bool:
    """Whether the export has Delta tables, which every run keeps up."""
    return any((target / dataset / _LOG).is_dir() for dataset in _DATASETS)


def register(target: Path, manifest: Manifest) -> int:
    """Makes the files of the tables those of the export. Returns the number of new ones.

    Raises ``MissingExtra``, and ``ExportError`` if a table cannot be changed.
    """
    require("delta", "deltalake")
    return sum(_register(target.absolute() / dataset, dataset, manifest) for dataset in _DATASETS)


@contextmanager
def _explained(place: Path) -> Iterator[None]:
    delta = require("delta", "deltalake.exceptions")
    try:
        yield
    except (delta.DeltaError, OSError) as error:
        what = str(error).partition("\n")[0]
        raise ExportError(
            f"the export is complete, but the Delta table {place} could not be changed ({what}): correct that and run "
            "the export again, which registers the missing files"
        ) from error


def _register(place: Path, dataset: str, manifest: Manifest) -> int:
    files = manifest.of(dataset)
    if not files and not (place / _LOG).is_dir():
        return 0
    with _explained(place):
        for _ in range(_RETRIES):
            table = _table(place, dataset, files, manifest)
            actions = table.get_add_actions(flatten=True)
            known = dict(zip(_column(actions, "path"), _column(actions, "num_records"), strict=True))
            wanted = {file.path.removeprefix(f"{dataset}/"): file for file in files}
            new = {path: file for path, file in wanted.items() if path not in known}
            gone = {path: rows for path, rows in known.items() if path not in wanted}
            if not new and not gone:
                return 0
            content = _commit(dataset, new, gone, manifest)
            with suppress(FileExistsError):  # another program has made this commit meanwhile
                _put(place, table.version() + 1, content)
                return len(new)
    raise ExportError(f"other programs change the Delta table {place} all the time: run the export again")


def _column(actions: Any, name: str) -> list[Any]:
    return list(require("arrow", "pyarrow").table(actions)[name].to_pylist())


def _table(place: Path, dataset: str, files: list[FileInfo], manifest: Manifest) -> Any:
    """The table, made if it does not exist, with all columns of the newest file."""
    delta, arrow = require("delta", "deltalake"), require("arrow", "pyarrow")
    parquet = require("arrow", "pyarrow.parquet")
    if not (place / _LOG).is_dir():
        made = parquet.read_schema(place.parent / files[-1].path).remove_metadata()
        day = arrow.field("day", arrow.date32(), nullable=False)
        said = f"{dataset} of the store {manifest.store}"
        return delta.DeltaTable.create(
            str(place), arrow.schema([*made, day]), partition_by=["day"], name=dataset, description=said
        )
    table = delta.DeltaTable(str(place))
    if files:
        known = {field.name for field in table.schema().fields}
        newest = parquet.read_schema(place.parent / files[-1].path).remove_metadata()
        if missing := [field for field in newest if field.name not in known]:
            table.alter.add_columns(list(delta.Schema.from_arrow(arrow.schema(missing)).fields))
    return table


def _commit(dataset: str, new: dict[str, FileInfo], gone: dict[str, int], manifest: Manifest) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    said = summary(manifest, manifest.last_lsn)
    merged_of = {path: _merged(dataset, file, gone) for path, file in new.items()}
    merged = {path for paths in merged_of.values() for path in paths}
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {"mode": "Append"}} | said},
        {"txn": {"appId": APPLICATION, "version": int(said[LAST_LSN]), "lastUpdated": now_ms}},
    ]
    for path in gone:
        day = path.split("/")[0].removeprefix("day=")
        removed: dict[str, Any] = {"path": path, "deletionTimestamp": now_ms, "dataChange": path not in merged}
        actions.append({"remove": removed | {"partitionValues": {"day": day}}})
    for path, file in new.items():
        added: dict[str, Any] = {"path": path, "partitionValues": {"day": file.day}, "size": file.bytes}
        added |= {"modificationTime": now_ms, "dataChange": not merged_of[path]}
        actions.append({"add": added | {"stats": json.dumps({"numRecords": file.rows})}})
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


def _merged(dataset: str, file: FileInfo, gone: dict[str, int]) -> list[str]:
    """The removed files whose rows this file has; none if it has any other row."""
    inside = []
    for path in gone:
        start, stop = parsed_path(f"{dataset}/{path}")
        if file.start_lsn <= start and stop <= file.stop_lsn:
            inside.append(path)
    return inside if sum(gone[path] for path in inside) == file.rows else []


def _put(place: Path, version: int, content: bytes) -> None:
    """Makes the commit of this number, or raises ``FileExistsError`` if there is one."""
    log = place / _LOG
    staged = log / _STAGED
    staged.unlink(missing_ok=True)  # of a run that was killed; the target is locked
    file = StagedFile(staged)
    try:
        file.write(content)
        file.finish()
        os.link(staged, log / f"{version:020}.json")
    finally:
        file.abandon()
    force_directory(log)
