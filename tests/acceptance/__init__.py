"""Acceptance tests: the command as its own process, under real clients."""
