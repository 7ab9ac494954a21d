"""A durable performance run on one store: its plan, its workers, their counters, and the report.

It is a client of the public API. It may import :mod:`logstore` and everything that a user may import.
"""

from __future__ import annotations

from logstore.bench.runner import Refused, refuse_foreign, run

__all__ = ["Refused", "refuse_foreign", "run"]
