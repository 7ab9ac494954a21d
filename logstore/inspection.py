"""Inspection of a store without opening it, under its former import path; :mod:`logstore.inspect` has it, too."""

from __future__ import annotations

from logstore.inspect.inspection import Inspection, OpenTransaction, Pace, QueueLife, Work

__all__ = ["Inspection", "OpenTransaction", "Pace", "QueueLife", "Work"]
