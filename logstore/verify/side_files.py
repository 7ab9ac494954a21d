"""Checks of the files next to the log: META, CLOSED, HINT, holds. The second codec decodes each of them.

They are compared with the log. None of them can make the log wrong, and a writer makes HINT and holds again. But a
wrong checksum shows that the disk does not return the bytes that were written, which the operator should know.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from logstore.codec.files import Closed, Hint, Hold, Meta, Seen
from logstore.codec.records import InvalidRecord, NewerVersion
from logstore.core.counts import counted
from logstore.core.regular_files import read_start
from logstore.verify.findings import Findings, Found

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.codec.files import _Block
    from logstore.inspect import ReaderInfo

B = TypeVar("B", bound="_Block")
HARMLESS = "the next open writes a new one"


def check_side_files(store_dir: Path, info: ReaderInfo | None, findings: Findings) -> None:
    """Checks all side files. If ``info`` is None the log could not be read, and only checksums are checked."""
    meta = _decode(store_dir / "META", Meta, findings, "it holds the store's UUID and sizes: restore it from a backup")
    closed = _decode(store_dir / "CLOSED", Closed, findings, "without it, a missing end of the log is not detected")
    seen = _decode(store_dir / "SEEN", Seen, findings, "without it, every message counts as delivered before")
    live = info is not None and info.live
    hint = None if live else _decode(store_dir / "HINT", Hint, findings, HARMLESS)
    for name, one in (("CLOSED", closed), ("SEEN", seen), ("HINT", hint)):
        if meta is not None and one is not None and one.uuid != meta.uuid:
            findings.add(Found("file", f"{name} belongs to another store"))
    if info is not None and closed is not None and not live:
        _check_closed(info, closed, findings)
    if info is not None and hint is not None and hint.uuid == info.uuid and _is_missed(hint, info):
        findings.notes.append(
            f"HINT says that LSN {hint.durable_lsn} was durable, and the log ends at {info.end_lsn}: the last batches "
            "were not torn, but lost after the disk had confirmed them"
        )
    _check_holds(store_dir, info, findings)


def _is_missed(hint: Hint, info: ReaderInfo) -> bool:
    """Whether more was durable than can be read. A last segment that an open ignores is not missed."""
    return hint.durable_lsn > info.seen_lsn


def _check_closed(info: ReaderInfo, closed: Closed, findings: Findings) -> None:
    """Checks that CLOSE is where the file says, unless the log continues there; no CLOSE ends a replicated log."""
    if (
        info.index == 0
        and closed.uuid == info.uuid
        and info.end_lsn == closed.end_lsn
        and not info.clean
        and closed.epoch == info.epoch
    ):
        text = "the record of the last clean close (CLOSE) is missing or damaged; nothing else is"
        findings.segment_size = info.segment_size
        findings.note("damage", f"{text}: the next open will treat it as a crash", closed.end_lsn)


def _check_holds(store_dir: Path, info: ReaderInfo | None, findings: Findings) -> None:
    try:
        names = sorted(name for name in os.listdir(store_dir / "holds") if name.endswith(".hold"))
    except OSError:
        return
    for name in names:
        hold = _decode(store_dir / "holds" / name, Hold, findings, "it keeps nothing; its owner has to take another")
        if hold is not None and info is not None and hold.uuid != info.uuid:
            findings.notes.append(f"holds/{name} belongs to another store and keeps nothing")


def _decode(path: Path, kind: type[B], findings: Findings, remedy: str) -> B | None:
    """The decoded file; None if it is absent, was left empty by a power cut, or is a finding."""
    try:
        raw, size = read_start(path, kind.BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        findings.add(Found("file", f"{path.name} cannot be read: {error.strerror}"))
        return None
    if kind in (Hint, Hold) and not any(raw):
        return None  # it is not forced to disk, so a power cut may leave only zeros
    try:
        made = kind.decode(raw)
    except NewerVersion as error:
        findings.add(Found("file", f"{path.name} was written by a newer version: {error.reason}"))
        return None
    except InvalidRecord as error:
        if os.path.lexists(path):  # a hold may have gone meanwhile
            findings.add(Found("file", f"{path.name} is damaged ({error.reason}); {remedy}"))
        return None
    if size != kind.BYTES:
        findings.add(Found("file", f"{path.name} has {counted(size, 'byte')}, but should have {kind.BYTES}; {remedy}"))
    return made
