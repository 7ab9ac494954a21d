"""The catalog of a store: queues, exchanges, bindings and configuration, in SQLite or in a PostgreSQL schema.

It knows nothing about the log. It may import ``core``.
"""
