"""The manifest of an export, and the intent of a run that is being committed.

Both are JSON with a checksum over their content. They contain nothing that differs between two exports of the same log:
no time, host or absolute path. Paths are relative to the target and must have a form that an export writes, so that a
manipulated manifest cannot refer to other files.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

from xxhash import xxh64_hexdigest

from logstore.codec.records import LSN_LIMIT
from logstore.core.counts import counted
from logstore.errors import StoreError, VersionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "INTENT",
    "LOCK",
    "MANIFEST",
    "MANIFEST_VERSION",
    "OPEN_FILE",
    "SCHEMA_VERSION",
    "STAGING",
    "UPLOAD",
    "ExportDamaged",
    "ExportError",
    "ExportGap",
    "ExportIncomplete",
    "ExportLocked",
    "ExportMismatch",
    "ExportOptions",
    "FileInfo",
    "Intent",
    "Dropped",
    "Manifest",
    "Mark",
    "Missing",
    "Span",
    "is_file_path",
    "is_open_path",
    "parsed_path",
    "schema_version_of",
    "staged_name",
]

MANIFEST: Final = "_manifest.json"
INTENT: Final = "_intent.json"
STAGING: Final = "_staging"
UPLOAD: Final = "_upload.json"
"""In a target that is not a local directory: the intent of the run whose files are being written."""

LOCK: Final = "_LOCK"
OPEN_FILE: Final = "open/open.parquet"
"""The whole open set of an export by an older program."""

MANIFEST_VERSION: Final = 4
"""The version of the documents. Version 2 has the open set in parts; in version 1 it was :data:`OPEN_FILE`. Version 3
names what retention has dropped, and its intents remove files of every dataset. Version 4 has files whose names end
with a token; a document without such a file is written as version 3."""

SCHEMA_VERSION: Final = 3
"""The version of the newest file's columns; a later version may have more. Version 2 has those of states of places,
version 3, of an export with bodies, those of messages."""

_FILE_PATH = re.compile(
    r"(records|messages)/day=[0-9]{4}-[0-9]{2}-[0-9]{2}/(records|messages)-([0-9a-f]{16})-([0-9a-f]{16})(-[0-9a-f]{16})?\.parquet"
)
_PART_PATH = re.compile(r"open/open-([0-9a-f]{16})(-[0-9a-f]{16})?\.parquet")
_HASH = re.compile(r"[0-9a-f]{16}")
_COMPRESSION = re.compile(r"none|snappy|lz4|zstd(:(1?[0-9]|2[0-2]))?")
COMPRESSIONS: Final = "none, snappy, lz4, zstd or zstd:1 to zstd:22"


class ExportError(StoreError):
    """The export failed, or its target is not as it must be. The earlier export is complete."""


class ExportLocked(ExportError):
    """Another export writes to this target. Wait until it has ended."""


class ExportMismatch(ExportError):
    """The target holds the export of another store. Choose another target."""


class ExportDamaged(ExportError):
    """The target does not have the files in its manifest. ``logstore export --verify`` lists all differences."""


class ExportGap(ExportError):
    """The store has recycled records that were not exported yet.

    They are lost from the log. ``allow_gap`` continues after them and notes the gap in the manifest.
    """

    def __init__(self, message: str, start_lsn: int = 0, stop_lsn: int = 0) -> None:
        super().__init__(message)
        self.start_lsn = start_lsn
        """The first lost LSN."""
        self.stop_lsn = stop_lsn
        """The first LSN after the lost range."""

    def __reduce__(self) -> tuple[object, ...]:
        return ExportGap, (self.message, self.start_lsn, self.stop_lsn)


class ExportIncomplete(ExportError):
    """The store had recycled a part of the log before the first export to this target, and all of it was required."""


@dataclass(frozen=True, slots=True)
class Missing:
    """What the log no longer held at the first export. How many messages that was is not recorded."""

    lsn: int
    """The first LSN that was still there."""
    time_us: int
    """When its segment was begun, in µs since 1970 UTC; everything that is missing was logged before."""

    @property
    def time(self) -> datetime:
        """``time_us`` in UTC."""
        return datetime.fromtimestamp(self.time_us / 1_000_000, UTC)

    def __str__(self) -> str:
        return f"everything below LSN {self.lsn}, logged before {self.time:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A range of the log."""

    start_lsn: int
    stop_lsn: int
    """The first LSN after the range."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A range of one dataset whose rows were exported, and dropped later because of their age."""

    dataset: str
    """``records`` or ``messages``."""
    start_lsn: int
    stop_lsn: int
    files: int
    rows: int
    last_day: str
    """The latest UTC day among them, as YYYY-MM-DD."""

    def __str__(self) -> str:
        return (
            f"{self.dataset} of LSN {self.start_lsn} to {self.stop_lsn}, of days up to {self.last_day} "
            f"({counted(self.rows, 'row')})"
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """An exported batch that identifies the log."""

    lsn: int
    xxh64: str
    """The XXH64 of its bytes, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options common to all files of an export."""

    body: int | None = None
    """Bytes of each record's content in the column ``body``; None if there is no such column."""
    compression: str = "zstd:1"

    def __post_init__(self) -> None:
        if _COMPRESSION.fullmatch(self.compression) is None:
            raise ValueError(f"{self.compression!r} is not a compression: use {COMPRESSIONS}")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One Parquet file of an export."""

    dataset: str
    """``records``, ``messages`` or ``open``."""
    path: str
    """The path relative to the target."""
    start_lsn: int
    stop_lsn: int
    """The file has all rows of its dataset with start_lsn ≤ LSN < stop_lsn. A part of the open set begins at the id
    start_lsn, and has the state at stop_lsn, where the run that wrote it ended."""
    rows: int
    bytes: int
    xxh64: str
    """The XXH64 of the file, in hexadecimal."""

    @property
    def staged(self) -> str:
        """Its name in the staging directory."""
        return staged_name(self.path)

    @property
    def has_token(self) -> bool:
        """Whether its name ends with a token."""
        found = (_PART_PATH if self.dataset == "open" else _FILE_PATH).fullmatch(self.path)
        return found is not None and found[found.re.groups] is not None

    def with_token(self, token: str) -> FileInfo:
        """The same file with this token (16 hexadecimal digits) at the end of its name, which no other file has."""
        return replace(self, path=f"{self.path.removesuffix('.parquet')}-{token}.parquet")

    @property
    def day(self) -> str:
        """The UTC day of a file of records or messages, as YYYY-MM-DD; days sort as texts."""
        return self.path.split("/")[1].removeprefix("day=")

    @property
    def first_id(self) -> int:
        """Of a part of the open set: its messages have this id or a later one."""
        return 0 if self.path == OPEN_FILE else self.start_lsn

    def check(self) -> None:
        """Raises ValueError if no export can have written such a file."""
        found = _FILE_PATH.fullmatch(self.path)
        if self.dataset == "open":
            part = _PART_PATH.fullmatch(self.path)
            if self.path != OPEN_FILE and (part is None or int(part[1], 16) != self.start_lsn):
                raise ValueError(f"{self.path!r} is not the path of this part of the open set")
        elif found is None or {found[1], found[2]} != {self.dataset}:
            raise ValueError(f"{self.path!r} is not the path of a file of {self.dataset!r}")
        elif (int(found[3], 16), int(found[4], 16)) != (self.start_lsn, self.stop_lsn):
            raise ValueError(f"{self.path!r} does not have the LSNs in its entry")
        if not 0 <= self.start_lsn <= self.stop_lsn < LSN_LIMIT or min(self.rows, self.bytes) < 0:
            raise ValueError(f"the numbers of {self.path!r} are impossible")
        if _HASH.fullmatch(self.xxh64) is None:
            raise ValueError(f"the hash of {self.path!r} is invalid")


def is_file_path(path: str) -> bool:
    """Whether an export can write a file with this relative path."""
    return is_open_path(path) or _FILE_PATH.fullmatch(path) is not None


def is_open_path(path: str) -> bool:
    """Whether a part of the open set can have this relative path."""
    return path == OPEN_FILE or _PART_PATH.fullmatch(path) is not None


def parsed_path(path: str) -> tuple[int, int]:
    """The LSNs in the path of a file of records or messages. Raises ``ExportDamaged`` for another path."""
    found = _FILE_PATH.fullmatch(path)
    if found is None:
        raise ExportDamaged(f"{path} is not the path of a file of an export, but a table names it: make a new target")
    return int(found[3], 16), int(found[4], 16)


def staged_name(path: str) -> str:
    """The name of a file in the staging directory, which no file pattern of a dataset matches."""
    return path.replace("/", "!") + ".staged"


def schema_version_of(body: int | None) -> int:
    """The version of the columns that an export with this option writes; older programs know those without bodies."""
    return SCHEMA_VERSION if body is not None else 2


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of an export: the log of one store from ``first_lsn`` to below ``last_lsn``, except the gaps."""

    store: UUID
    format_version: int
    """The format version of the log."""
    first_lsn: int
    last_lsn: int
    options: ExportOptions
    gaps: tuple[Span, ...] = ()
    """The ranges that the store had recycled before they were exported."""
    files: tuple[FileInfo, ...] = ()
    """The files of records and messages, in log order."""
    open: tuple[FileInfo, ...] = ()
    """The parts of the open set, by id: the messages that are open at ``last_lsn``. Every run writes the last one."""
    undecided: tuple[int, ...] = ()
    """The first ids of the parts with a message that is staged or has undecided work: later records change it without
    its id."""
    mark: Mark | None = None
    """None if the log had no batch that every later open keeps."""
    missing_before: Missing | None = None
    """What was recycled before the first run; None if the log was whole then, or an older logstore made it."""
    dropped: tuple[Dropped, ...] = ()
    """The ranges that retention has dropped, by dataset and LSN. No file left has a row in these ranges."""
    schema_version: int = field(default=SCHEMA_VERSION)

    def of(self, dataset: str) -> list[FileInfo]:
        """The files of one dataset in order."""
        if dataset == "open":
            return list(self.open)
        return [file for file in self.files if file.dataset == dataset]

    def with_run(
        self, stop_lsn: int, files: list[FileInfo], opened: list[FileInfo], gap: Span | None, mark: Mark | None = None
    ) -> Manifest:
        """The manifest after one more run, with files of this version. The old mark stays unless there is a new one.

        ``opened`` are all parts of the open set.
        """
        return replace(
            self,
            schema_version=schema_version_of(self.options.body),
            last_lsn=stop_lsn,
            files=self.files + _in_order(files),
            open=tuple(sorted(opened, key=lambda part: part.first_id)),
            mark=self.mark if mark is None else mark,
            gaps=self.gaps if gap is None else (*self.gaps, gap),
        )

    def paths(self) -> set[str]:
        """The paths of all its files."""
        return {file.path for file in (*self.files, *self.open)}

    def without(self, old: Iterable[FileInfo]) -> Manifest:
        """The manifest that names these files as dropped. Adjacent ones become one range."""
        paths = {file.path for file in old}
        dropped: list[Dropped] = []
        for dataset in ("records", "messages"):
            found: list[Dropped | FileInfo] = [
                *self.of(dataset),
                *(one for one in self.dropped if one.dataset == dataset),
            ]
            joins = False
            for one in sorted(found, key=lambda each: (each.start_lsn, each.stop_lsn)):
                if isinstance(one, FileInfo) and one.path not in paths:
                    joins = False
                    continue
                last = _as_dropped(one)
                if joins:
                    before = dropped.pop()
                    last = replace(
                        last,
                        start_lsn=before.start_lsn,
                        files=before.files + last.files,
                        rows=before.rows + last.rows,
                        last_day=max(before.last_day, last.last_day),
                    )
                dropped.append(last)
                joins = True
        return replace(self, files=tuple(file for file in self.files if file.path not in paths), dropped=tuple(dropped))

    def with_merged(self, merged: Mapping[FileInfo, Sequence[FileInfo]]) -> Manifest:
        """The manifest with each of these files in the place of the files that it was made of."""
        gone = {file.path for files in merged.values() for file in files}
        kept = [file for file in self.files if file.path not in gone]
        return replace(self, files=_in_order([*kept, *merged]))

    def encode(self) -> bytes:
        """The bytes of the file in the target."""
        return _encode("manifest", asdict(self) | {"store": str(self.store)}, (*self.files, *self.open))

    @classmethod
    def decode(cls, raw: bytes, where: object) -> Self:
        """Decodes the file. Raises :class:`ExportDamaged`, or ``VersionError`` if a later version wrote it."""
        content = _decode("manifest", raw, where)
        try:
            schema_version = _number(content["schema_version"])
            if schema_version > SCHEMA_VERSION:
                raise VersionError(f"{where}: its columns are of version {schema_version}; use a newer logstore")
            made = cls(
                store=UUID(content["store"]),
                format_version=_number(content["format_version"]),
                first_lsn=_number(content["first_lsn"]),
                last_lsn=_number(content["last_lsn"]),
                options=ExportOptions(**content["options"]),
                gaps=tuple(Span(**each) for each in content["gaps"]),
                files=tuple(_file(each) for each in content["files"]),
                open=_parts(content["open"]),
                undecided=tuple(_number(each) for each in content.get("undecided", ())),
                mark=None if content["mark"] is None else _mark(content["mark"]),
                missing_before=_missing(content.get("missing_before")),
                dropped=tuple(_dropped(each) for each in content.get("dropped", ())),
                schema_version=schema_version,
            )
            made.check()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ExportDamaged(f"{where} has contents that no export can have written ({error}): restore it") from None
        return made

    def check(self) -> None:
        """Raises ValueError if files overlap, have rows that were dropped, or lie outside the exported range."""
        for dataset in ("records", "messages"):
            at = self.first_lsn
            for file in self.of(dataset):
                if file.start_lsn < at or file.stop_lsn > self.last_lsn:
                    raise ValueError(f"{file.path} overlaps the file before it, or lies outside the exported range")
                at = file.stop_lsn
            spans = [(file.start_lsn, file.stop_lsn) for file in self.of(dataset)]
            spans += [(one.start_lsn, one.stop_lsn) for one in self.dropped if one.dataset == dataset]
            if any(one[1] > two[0] for one, two in pairwise(sorted(spans))):
                raise ValueError(f"a file of {dataset} lies in a range that was dropped")
        if not self.open or self.open[-1].stop_lsn != self.last_lsn:
            raise ValueError("the open set does not belong to the last LSN")
        if any(part.dataset != "open" or part.stop_lsn > self.last_lsn for part in self.open):
            raise ValueError("a part of the open set is something else")
        if any(one.first_id >= two.first_id for one, two in pairwise(self.open)):
            raise ValueError("the parts of the open set overlap")


@dataclass(frozen=True, slots=True)
class Intent:
    """What a commit writes and removes.

    In a local target, as :data:`INTENT`, it is a committed run: all its files are staged and forced to disk, and only
    have to be moved to their places. Elsewhere, as :data:`UPLOAD`, it is a run whose files may be there: the run is
    committed if and only if the manifest is the one that it names.
    """

    manifest_xxh64: str
    """The XXH64 of the manifest after this run."""
    files: tuple[FileInfo, ...]
    removed: tuple[str, ...] = ()
    """The paths of the files that the new manifest no longer names."""

    def encode(self) -> bytes:
        """The bytes of the file in the target."""
        return _encode("intent", asdict(self), self.files)

    @classmethod
    def decode(cls, raw: bytes, where: object) -> Self:
        """Decodes the file. Raises the errors of :meth:`Manifest.decode`."""
        content = _decode("intent", raw, where)
        try:
            files, removed = tuple(_file(each) for each in content["files"]), tuple(content.get("removed", ()))
            if not all(isinstance(path, str) and is_file_path(path) for path in removed):
                raise ValueError("a file to remove is no file of an export")
            return cls(str(content["manifest_xxh64"]), files, removed)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ExportDamaged(f"{where} has contents that no export can have written ({error}): restore it") from None


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LSN_LIMIT:
        raise ValueError(f"{value!r} is not a number from 0 to {LSN_LIMIT - 1}")
    return value


def _file(content: dict[str, Any]) -> FileInfo:
    for name in ("start_lsn", "stop_lsn", "rows", "bytes"):
        _number(content[name])
    made = FileInfo(**content)
    made.check()
    return made


def _parts(content: Any) -> tuple[FileInfo, ...]:
    """The parts of the open set; version 1 has one file."""
    return tuple(_file(each) for each in ([content] if isinstance(content, dict) else content or ()))


def _in_order(files: Iterable[FileInfo]) -> tuple[FileInfo, ...]:
    return tuple(sorted(files, key=lambda file: (file.start_lsn, file.dataset != "records")))


def _as_dropped(one: Dropped | FileInfo) -> Dropped:
    if isinstance(one, Dropped):
        return one
    return Dropped(one.dataset, one.start_lsn, one.stop_lsn, 1, one.rows, one.day)


def _dropped(content: dict[str, Any]) -> Dropped:
    for name in ("start_lsn", "stop_lsn", "files", "rows"):
        _number(content[name])
    made = Dropped(**content)
    if made.dataset not in ("records", "messages") or made.start_lsn > made.stop_lsn or not made.files:
        raise ValueError("a dropped range is impossible")
    date.fromisoformat(made.last_day)
    return made


def _mark(content: dict[str, Any]) -> Mark:
    made = Mark(**content)
    _number(made.lsn)
    if _HASH.fullmatch(made.xxh64) is None:
        raise ValueError("the hash of the mark is invalid")
    return made


def _missing(content: dict[str, Any] | None) -> Missing | None:
    return None if content is None else Missing(_number(content["lsn"]), _number(content["time_us"]))


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _encode(kind: str, content: dict[str, Any], files: Iterable[FileInfo] = ()) -> bytes:
    version = MANIFEST_VERSION if any(file.has_token for file in files) else MANIFEST_VERSION - 1
    document = {f"logstore_{kind}": version, "xxh64": xxh64_hexdigest(_canonical(content)), kind: content}
    return json.dumps(document, indent=1).encode() + b"\n"


def _decode(kind: str, raw: bytes, where: object) -> dict[str, Any]:
    try:
        document = json.loads(raw)
        version, checksum, content = document[f"logstore_{kind}"], document.get("xxh64"), document.get(kind)
        newer = isinstance(version, int) and version > MANIFEST_VERSION
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ExportDamaged(f"{where} is not the {kind} of an export, or is damaged: restore it") from None
    if newer:
        raise VersionError(f"{where} was written by a newer logstore (version {version}): use that version")
    if not isinstance(content, dict) or checksum != xxh64_hexdigest(_canonical(content)):
        raise ExportDamaged(f"{where} is damaged: its checksum is wrong; restore it, or export to a new target")
    return content
