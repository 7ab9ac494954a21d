"""The commands of ``logstore``, one file each; cli.py puts them together.

A command prints what was asked for on stdout and nothing else there; what went wrong is one line on stderr,
which cli.py writes. None of them keeps a rule of the store: those are the library's.

The package may import everything but ``cli``.
"""
