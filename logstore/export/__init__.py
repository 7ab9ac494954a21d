"""Exports the log to Parquet files, run after run, with a manifest that says which files count.

It may import ``rows``, ``inspect`` and what lies below those.
"""

from __future__ import annotations

from logstore.export.run import ExportReport, Run, export, held_for, hold_for, plan_export

__all__ = ["ExportReport", "Run", "export", "held_for", "hold_for", "plan_export"]
