"""What an export says of itself: the manifest, and the intent of a run that is being put into place.

Both are JSON with a checksum over what they say, and hold nothing that differs between two exports of the same log:
no clock, host or path. Paths in them are relative to the target and have one of the forms that an export writes, so
that a manifest from elsewhere leads nowhere else.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self
from uuid import UUID

from xxhash import xxh64_hexdigest

from logstore.codec.records import LSN_LIMIT
from logstore.errors import StoreError, VersionError

__all__ = [
    "INTENT",
    "LOCK",
    "MANIFEST",
    "MANIFEST_VERSION",
    "OPEN_FILE",
    "SCHEMA_VERSION",
    "STAGING",
    "ExportDamaged",
    "ExportError",
    "ExportGap",
    "ExportLocked",
    "ExportMismatch",
    "ExportOptions",
    "FileInfo",
    "Intent",
    "Manifest",
    "Mark",
    "Span",
    "is_file_path",
    "staged_name",
]

MANIFEST: Final = "_manifest.json"
INTENT: Final = "_intent.json"
STAGING: Final = "_staging"
LOCK: Final = "_LOCK"
OPEN_FILE: Final = "open/open.parquet"
MANIFEST_VERSION: Final = 1
SCHEMA_VERSION: Final = 1
"""Of the columns; a later one may have more."""

_FILE_PATH = re.compile(
    r"(records|messages)/day=[0-9]{4}-[0-9]{2}-[0-9]{2}/(records|messages)-([0-9a-f]{16})-([0-9a-f]{16})\.parquet"
)
_HASH = re.compile(r"[0-9a-f]{16}")
_COMPRESSION = re.compile(r"none|snappy|lz4|zstd(:(1?[0-9]|2[0-2]))?")
COMPRESSIONS: Final = "none, snappy, lz4, zstd or zstd:1 to zstd:22"


class ExportError(StoreError):
    """The export, or the directory that it goes to, is not as it must be. What was exported before is whole."""


class ExportLocked(ExportError):
    """Another export writes to this target. Wait until it has ended."""


class ExportMismatch(ExportError):
    """The target holds the export of another store. Choose another target."""


class ExportDamaged(ExportError):
    """The target does not hold what its manifest says. ``logstore export --verify`` tells all that differs."""


class ExportGap(ExportError):
    """The store has let go of records that were not exported yet.

    They are gone from the log for good. ``allow_gap`` goes on behind them and notes in the manifest what is missing.
    """

    def __init__(self, message: str, start_lsn: int = 0, stop_lsn: int = 0) -> None:
        super().__init__(message)
        self.start_lsn = start_lsn
        """The first LSN that is lost."""
        self.stop_lsn = stop_lsn
        """The first LSN that is not."""

    def __reduce__(self) -> tuple[object, ...]:
        return ExportGap, (self.message, self.start_lsn, self.stop_lsn)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A range of the log."""

    start_lsn: int
    stop_lsn: int
    """The first LSN that is not in it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A batch that was exported, by which the log is known again."""

    lsn: int
    xxh64: str
    """Of its bytes, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What all files of an export have in common."""

    body: int | None = None
    """Bytes of content kept of each record; None: there is no such column."""
    compression: str = "zstd:1"

    def __post_init__(self) -> None:
        if _COMPRESSION.fullmatch(self.compression) is None:
            raise ValueError(f"{self.compression!r} is no compression: it is {COMPRESSIONS}")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One Parquet file of an export."""

    dataset: str
    """``records``, ``messages`` or ``open``."""
    path: str
    """Within the target."""
    start_lsn: int
    stop_lsn: int
    """It has all rows of its dataset with start_lsn ≤ LSN < stop_lsn; the open set: the moment of this LSN."""
    rows: int
    bytes: int
    xxh64: str
    """Of the file, in hexadecimal."""

    @property
    def staged(self) -> str:
        """Its name while it is not in its place."""
        return staged_name(self.path)

    def check(self) -> None:
        """Raise ValueError if no export can have written such a file."""
        found = _FILE_PATH.fullmatch(self.path)
        if self.dataset == "open":
            if self.path != OPEN_FILE:
                raise ValueError(f"{self.path!r} is no path of the open set")
        elif found is None or {found[1], found[2]} != {self.dataset}:
            raise ValueError(f"{self.path!r} is no path of a file of {self.dataset!r}")
        elif (int(found[3], 16), int(found[4], 16)) != (self.start_lsn, self.stop_lsn):
            raise ValueError(f"{self.path!r} has not the LSNs that it is said to have")
        if not 0 <= self.start_lsn <= self.stop_lsn < LSN_LIMIT or min(self.rows, self.bytes) < 0:
            raise ValueError(f"the numbers of {self.path!r} are impossible")
        if _HASH.fullmatch(self.xxh64) is None:
            raise ValueError(f"the hash of {self.path!r} is none")


def is_file_path(path: str) -> bool:
    """Whether an export writes files of this name, within its target."""
    return path == OPEN_FILE or _FILE_PATH.fullmatch(path) is not None


def staged_name(path: str) -> str:
    """Where a file of the export waits for its place, in the staging directory: under no name that a pattern finds."""
    return path.replace("/", "!") + ".staged"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an export holds: everything of one store from ``first_lsn`` to before ``last_lsn``, but for the gaps."""

    store: UUID
    format_version: int
    """Of the log."""
    first_lsn: int
    last_lsn: int
    options: ExportOptions
    gaps: tuple[Span, ...] = ()
    """What the store had let go of before it was exported."""
    files: tuple[FileInfo, ...] = ()
    """Of records and messages, in the order of the log."""
    open: FileInfo | None = None
    """The messages that are open at ``last_lsn``."""
    mark: Mark | None = None
    """None if the log had no batch that is there for good."""
    schema_version: int = field(default=SCHEMA_VERSION)

    def of(self, dataset: str) -> list[FileInfo]:
        """The files of one dataset in order."""
        if dataset == "open":
            return [] if self.open is None else [self.open]
        return [file for file in self.files if file.dataset == dataset]

    def with_run(
        self, stop_lsn: int, files: list[FileInfo], opened: FileInfo, gap: Span | None, mark: Mark | None = None
    ) -> Manifest:
        """What it says after one more run; the mark of before stays unless there is a new one."""
        return replace(
            self,
            last_lsn=stop_lsn,
            files=self.files + tuple(sorted(files, key=lambda file: (file.start_lsn, file.dataset != "records"))),
            open=opened,
            mark=self.mark if mark is None else mark,
            gaps=self.gaps if gap is None else (*self.gaps, gap),
        )

    def encode(self) -> bytes:
        """As it stands in the target."""
        return _encode("manifest", asdict(self) | {"store": str(self.store)})

    @classmethod
    def decode(cls, raw: bytes, where: object) -> Self:
        """Raises :class:`ExportDamaged`, or ``VersionError`` for what a later version wrote."""
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
                open=None if content["open"] is None else _file(content["open"]),
                mark=None if content["mark"] is None else _mark(content["mark"]),
                schema_version=schema_version,
            )
            made.check()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ExportDamaged(f"{where} says what no export can have written ({error}): restore it") from None
        return made

    def check(self) -> None:
        """Raise ValueError if it contradicts itself: files that overlap, or lie outside of what was exported."""
        for dataset in ("records", "messages"):
            at = self.first_lsn
            for file in self.of(dataset):
                if file.start_lsn < at or file.stop_lsn > self.last_lsn:
                    raise ValueError(f"{file.path} overlaps what comes before it, or lies outside")
                at = file.stop_lsn
        if self.open is None or self.open.stop_lsn != self.last_lsn:
            raise ValueError("the open set is not that of the last LSN")


@dataclass(frozen=True, slots=True)
class Intent:
    """A run whose files are all staged and forced: from here on it is only put into place."""

    manifest_xxh64: str
    """Of the manifest that says so when it is done."""
    files: tuple[FileInfo, ...]

    def encode(self) -> bytes:
        """As it stands in the target."""
        return _encode("intent", asdict(self))

    @classmethod
    def decode(cls, raw: bytes, where: object) -> Self:
        """Raises as :meth:`Manifest.decode` does."""
        content = _decode("intent", raw, where)
        try:
            return cls(str(content["manifest_xxh64"]), tuple(_file(each) for each in content["files"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ExportDamaged(f"{where} says what no export can have written ({error}): restore it") from None


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LSN_LIMIT:
        raise ValueError(f"{value!r} is no number from 0 to {LSN_LIMIT - 1}")
    return value


def _file(content: dict[str, Any]) -> FileInfo:
    for name in ("start_lsn", "stop_lsn", "rows", "bytes"):
        _number(content[name])
    made = FileInfo(**content)
    made.check()
    return made


def _mark(content: dict[str, Any]) -> Mark:
    made = Mark(**content)
    _number(made.lsn)
    if _HASH.fullmatch(made.xxh64) is None:
        raise ValueError("the hash of the mark is none")
    return made


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _encode(kind: str, content: dict[str, Any]) -> bytes:
    document = {f"logstore_{kind}": MANIFEST_VERSION, "xxh64": xxh64_hexdigest(_canonical(content)), kind: content}
    return json.dumps(document, indent=1).encode() + b"\n"


def _decode(kind: str, raw: bytes, where: object) -> dict[str, Any]:
    try:
        document = json.loads(raw)
        version, told, content = document[f"logstore_{kind}"], document.get("xxh64"), document.get(kind)
        newer = isinstance(version, int) and version > MANIFEST_VERSION
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ExportDamaged(f"{where} is no {kind} of an export, or is damaged: restore it") from None
    if newer:
        raise VersionError(f"{where} was written by a newer logstore (version {version}): use that one")
    if not isinstance(content, dict) or told != xxh64_hexdigest(_canonical(content)):
        raise ExportDamaged(f"{where} is damaged: its checksum is wrong; restore it, or export to a new target")
    return content
