"""Exports the log to Parquet files, run after run, with a manifest that lists the valid files.

It may import ``rows``, ``inspect`` and the packages below those.
"""

from __future__ import annotations

from logstore.export.manifest import (
    Dropped,
    ExportDamaged,
    ExportError,
    ExportGap,
    ExportIncomplete,
    ExportLocked,
    ExportMismatch,
    Missing,
)
from logstore.export.run import ExportReport, Run, export, held_for, hold_for, plan_export
from logstore.export.upkeep import Upkeep
from logstore.export.verification import VerifyReport, verify

__all__ = [
    "Dropped",
    "ExportDamaged",
    "ExportError",
    "ExportGap",
    "ExportIncomplete",
    "ExportLocked",
    "ExportMismatch",
    "ExportReport",
    "Missing",
    "Run",
    "Upkeep",
    "VerifyReport",
    "export",
    "held_for",
    "hold_for",
    "plan_export",
    "verify",
]
