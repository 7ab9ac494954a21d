"""Reports on a log: queue depths, latencies, costs and what holds the tail, as figures and as one HTML page.

It reads a store or an export. It may import ``spark``, ``export``, :mod:`logstore.arrow`, ``store`` and below.
"""

from __future__ import annotations

from logstore.report.run import need_page, report, write_page

__all__ = ["need_page", "report", "write_page"]
