"""The disk format in pure Python: records, segments and side files, and a replay of what the records mean.

Everything here is written from docs/format.md alone, so that the C core can be checked against it. It imports no other
part of logstore. :mod:`logstore.inspect` has its classes.
"""
