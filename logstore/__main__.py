"""``python -m logstore`` is the command ``logstore``."""

from __future__ import annotations

from logstore.cli import main

if __name__ == "__main__":
    main()
