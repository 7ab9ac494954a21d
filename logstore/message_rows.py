"""Messages as rows: :class:`MessageScan` gives one row for each message whose life has ended."""

from __future__ import annotations

from logstore.rows.messages import MessageScan

__all__ = ["MessageScan"]
