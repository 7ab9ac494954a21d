"""Copies a whole store to another directory, with or without a running writer.

It may import ``inspect`` and the packages below that; :mod:`logstore.store` calls it for ``store.backup()``.
"""

from __future__ import annotations

from logstore.backup.copying import BackupPlan, BackupReport, back_up, plan_backup

__all__ = ["BackupPlan", "BackupReport", "back_up", "plan_backup"]
