"""The log as Arrow columns: the core's scanners of records and of closed messages, and the schemas of both.

:mod:`logstore.arrow` is its public face. It may import ``inspect`` and what lies below that, and imports pyarrow only
when rows are asked for.
"""

from __future__ import annotations

from logstore.rows.messages import MessageScan

__all__ = ["MessageScan"]
