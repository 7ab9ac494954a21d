"""Verifies a store: the checks of ``logstore verify`` and their findings. :class:`Verification` runs them.

It changes nothing. It may import ``salvage``, ``inspect``, ``catalog``, ``codec``, ``core`` and ``logstore.holds``.
"""

from __future__ import annotations

from logstore.verify.verification import Verification

__all__ = ["Verification"]
