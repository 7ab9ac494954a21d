"""The open store: :class:`MessageStore`, its queues, transactions, completions and upkeep, over the C core.

Callers get these classes from :mod:`logstore` itself. The package may import ``backup``, ``inspect``, ``catalog`` and
the packages below those.
"""
