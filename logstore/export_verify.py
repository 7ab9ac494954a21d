"""Checking an export against its manifest: :func:`verify`."""

from __future__ import annotations

from logstore.export.verification import VerifyReport, verify

__all__ = ["VerifyReport", "verify"]
