"""What the commands of ``logstore`` share: options, texts and tables, the state of a store, and changes of it.

The package may import every other package except ``commands`` and ``cli``.
"""
