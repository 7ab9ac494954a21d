"""The manifest of an export and the errors of an export: the public names of :mod:`logstore.export.manifest`."""

from __future__ import annotations

from logstore.export.manifest import (
    ExportDamaged,
    ExportError,
    ExportGap,
    ExportLocked,
    ExportMismatch,
    ExportOptions,
    FileInfo,
    Intent,
    Manifest,
    Mark,
    Span,
)

__all__ = [
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
]
