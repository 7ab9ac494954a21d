"""What every other package stands on: the boundary to the C core, argument checks, locks, threads, files.

Nothing here knows what a message, a queue or an export is. It may import :mod:`logstore.errors` and ``logstore._core``.
"""
