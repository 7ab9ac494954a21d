"""A durable performance run on one store: what it is to do, its workers, what they count, and the report.

It is a client of the public API. It may import :mod:`logstore` and whatever a user may.
"""

from __future__ import annotations

from logstore.bench.runner import Refused, refuse_foreign, run

__all__ = ["Refused", "refuse_foreign", "run"]
