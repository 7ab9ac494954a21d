"""The catalog of a store: queues, exchanges, bindings and configuration, in SQLite or in a PostgreSQL schema.

It reads no log; ``changes.py`` knows the rows of changes that a log has. It may import ``codec`` and ``core``.
"""
