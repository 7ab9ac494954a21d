"""The base of every other package: the boundary to the C core, argument checks, locks, threads, files.

Nothing here knows what a message, a queue or an export is. This package imports :mod:`logstore.errors` and
``logstore._core`` only.
"""
