"""Replicated stores: one log with several copies. See docs/replication.md."""
