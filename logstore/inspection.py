"""The state that a store's log comes to, without opening the store: :class:`Inspection`."""

from __future__ import annotations

from logstore.inspect.inspection import Inspection, OpenTransaction, Pace, QueueLife, Work

__all__ = ["Inspection", "OpenTransaction", "Pace", "QueueLife", "Work"]
