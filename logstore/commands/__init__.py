"""The commands of ``logstore``, one file each; cli.py collects them.

A command prints only its result on stdout. An error is one line on stderr, which cli.py writes. No command implements a
rule of the store: the library does. What commands share is in ``terminal``; no command imports another.

The package may import every other package except ``cli``.
"""
