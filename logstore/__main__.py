"""``python -m logstore`` and the command ``logstore``.

Imports the package only after a look at its files: the package index has another project called ``logstore``, which
installs into the same directory and overwrites files of this one. So this module uses the standard library alone.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import sys
from pathlib import Path
from typing import NoReturn

SITE = Path(__file__).resolve().parent.parent  # where both distributions would be installed

_CANNOT_RUN = 3
_FIRST = "logstore/__init__.py"  # both have it; uninstalling the other removes it
_AGAIN = "install logstore-engine again with 'pip install --force-reinstall --no-deps' from where it came"


def damage(site: Path = SITE) -> str | None:
    """How another distribution ``logstore`` has damaged the files of ``logstore-engine`` in this directory, and what
    to do, in one line; None if it has not. If all is well this only lists the directory.
    """
    theirs = sorted(site.glob("logstore-*.dist-info/RECORD"))
    if not theirs and (site / _FIRST).exists():
        return None
    ours = _hashes(*site.glob("logstore_engine-*.dist-info/RECORD"))
    replaced = [name for name in sorted({_FIRST, *_hashes(*theirs)} & set(ours)) if _hash(site / name) != ours[name]]
    if not replaced:
        return None
    if theirs:
        name = theirs[0].parent.name.removesuffix(".dist-info")
        what = f"the distribution {name} is another project, and has overwritten {replaced[0]} of logstore-engine"
        return f"{what}: run 'pip uninstall logstore', then {_AGAIN}"
    return f"{replaced[0]} of logstore-engine is missing: {_AGAIN}"


def _hashes(*records: Path) -> dict[str, str]:
    """The files that these lists of installed files name, with their hashes."""
    return {row[0]: row[1] for path in records for row in csv.reader(path.read_text("utf-8").splitlines()) if row[1]}


def _hash(path: Path) -> str:
    """As a list of installed files has it; empty if the file is missing."""
    try:
        made = hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return ""
    return f"sha256={base64.urlsafe_b64encode(made).rstrip(b'=').decode('ascii')}"


def main() -> NoReturn:
    """Run the command with the process's arguments and exit with its status; 3 if its files are damaged."""
    if (found := damage()) is not None:
        print(f"logstore: {found}", file=sys.stderr)
        sys.exit(_CANNOT_RUN)
    from logstore.cli import main as command

    command()


if __name__ == "__main__":
    main()
