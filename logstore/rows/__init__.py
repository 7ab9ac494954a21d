"""The log as Arrow columns: the core's scanners of records and of ended messages, and the schemas of both.

:mod:`logstore.arrow` is its public face. It may import ``inspect`` and the packages below that. It imports pyarrow only
when rows are requested.
"""

from __future__ import annotations

from logstore.rows.messages import MessageScan

__all__ = ["MessageScan"]
