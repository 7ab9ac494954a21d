"""The manifest and the errors of an export, under their former import path; :mod:`logstore.export` has them, too."""

from __future__ import annotations

from logstore.export.manifest import (
    ExportDamaged,
    ExportError,
    ExportGap,
    ExportIncomplete,
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
    "ExportIncomplete",
    "ExportLocked",
    "ExportMismatch",
    "ExportOptions",
    "FileInfo",
    "Intent",
    "Manifest",
    "Mark",
    "Span",
]
