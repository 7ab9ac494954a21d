"""The scan of messages as rows, under its former import path; :mod:`logstore.rows` has it, too."""

from __future__ import annotations

from logstore.rows.messages import MessageScan

__all__ = ["MessageScan"]
