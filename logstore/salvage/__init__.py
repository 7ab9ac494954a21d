"""Salvages a damaged store: copies what can be read into a new store and lists what is lost. Repairs a catalog.

It may import ``store`` (which opens and checks the new one), ``inspect``, ``catalog``, ``codec`` and ``core``.
"""

from __future__ import annotations

from logstore.salvage.report import Salvaged
from logstore.salvage.run import FOUND_QUEUE, salvage

__all__ = ["FOUND_QUEUE", "Salvaged", "salvage"]
