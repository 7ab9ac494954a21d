"""What stands beside the log: META, CLOSED, HINT, holds. Each is decoded by the second codec and held against the log.

None of them can make the log wrong, and a writer makes HINT and holds anew. But a checksum that fails says that the
disk does not give back what it was given, and that is worth knowing wherever it shows.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from logstore.codec.files import Closed, Hint, Hold, Meta
from logstore.codec.records import InvalidRecord, NewerVersion
from logstore.commands.findings import Findings, Found
from logstore.core.regular_files import read_start

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.codec.files import _Block
    from logstore.inspect import ReaderInfo

B = TypeVar("B", bound="_Block")
HARMLESS = "the next open writes it anew"


def check_side_files(store_dir: Path, info: ReaderInfo | None, findings: Findings) -> None:
    """``info`` is None where the log could not be read: then only checksums are looked at."""
    meta = _decode(store_dir / "META", Meta, findings, "it holds the store's UUID and sizes: restore it from a backup")
    closed = _decode(store_dir / "CLOSED", Closed, findings, "without it, a log that lost its end is not missed")
    live = info is not None and info.live
    hint = None if live else _decode(store_dir / "HINT", Hint, findings, HARMLESS)
    for name, one in (("CLOSED", closed), ("HINT", hint)):
        if meta is not None and one is not None and one.uuid != meta.uuid:
            findings.add(Found("file", f"{name} is another store's"))
    if info is not None and closed is not None and not live:
        _check_closed(info, closed, findings)
    if info is not None and hint is not None and hint.uuid == info.uuid and _is_missed(hint, info):
        findings.notes.append(
            f"HINT says that LSN {hint.durable_lsn} was durable, and the log ends at {info.end_lsn}: the last batches "
            "are no torn write, but were lost after the disk had confirmed them"
        )
    _check_holds(store_dir, info, findings)


def _is_missed(hint: Hint, info: ReaderInfo) -> bool:
    """More was durable than can be read. What stands in a last segment that an open leaves out is not missed."""
    return hint.durable_lsn > info.seen_lsn


def _check_closed(info: ReaderInfo, closed: Closed, findings: Findings) -> None:
    """CLOSE stands where the file says, unless the log went on from there."""
    if closed.uuid == info.uuid and info.end_lsn == closed.end_lsn and not info.clean and closed.epoch == info.epoch:
        text = "the record of the last orderly close (CLOSE) is missing or damaged; nothing else is"
        findings.segment_size = info.segment_size
        findings.note("damage", f"{text}: the next open takes it for a crash", closed.end_lsn)


def _check_holds(store_dir: Path, info: ReaderInfo | None, findings: Findings) -> None:
    try:
        names = sorted(name for name in os.listdir(store_dir / "holds") if name.endswith(".hold"))
    except OSError:
        return
    for name in names:
        hold = _decode(store_dir / "holds" / name, Hold, findings, "it keeps nothing; its owner has to take another")
        if hold is not None and info is not None and hold.uuid != info.uuid:
            findings.notes.append(f"holds/{name} is another store's and keeps nothing")


def _decode(path: Path, kind: type[B], findings: Findings, remedy: str) -> B | None:
    """What the file says; None if it is not there, was left empty by a power cut, or is a finding."""
    try:
        raw, size = read_start(path, kind.BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        findings.add(Found("file", f"{path.name} cannot be read: {error.strerror}"))
        return None
    if kind in (Hint, Hold) and not any(raw):
        return None  # it is not forced: a power cut may leave it so
    try:
        made = kind.decode(raw)
    except NewerVersion as error:
        findings.add(Found("file", f"{path.name} is of a newer version: {error.reason}"))
        return None
    except InvalidRecord as error:
        if os.path.lexists(path):  # a hold may have gone meanwhile
            findings.add(Found("file", f"{path.name} is damaged ({error.reason}); {remedy}"))
        return None
    if size != kind.BYTES:
        findings.add(Found("file", f"{path.name} has {size} bytes, and should have {kind.BYTES}; {remedy}"))
    return made
