"""Helpers of the tests: stores, processes, disks, servers and oracles. No tests are here."""
