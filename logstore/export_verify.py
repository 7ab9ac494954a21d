"""The check of an export against its manifest, under its former import path; :mod:`logstore.export` has it, too."""

from __future__ import annotations

from logstore.export.verification import VerifyReport, verify

__all__ = ["VerifyReport", "verify"]
