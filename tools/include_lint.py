"""Checks that the layers of csrc/ include downwards only, that no file includes by a relative path, and that a layer's
private headers stay within it.

The table has the folders that each folder may include besides itself and include/logstore.h. A violation names both
files.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LAYERS = {
    "os": "",
    "format": "",
    "client": "format os",
    "log": "format os client",
    "read": "log format os",
    "table": "format os",
    "replay": "table read format os client",
    "relocate": "table read log format os client",
    "checkpoint": "replay table read log format os client",
    "inspect": "checkpoint replay table read format os client",
    "store": "inspect checkpoint relocate replay table read log format os client",
    "replica": "store checkpoint replay table read log format os client",
    "analysis": "table read format os",
    "consensus": "",
}
# By the folder that alone may include them: other layers do with a log what log/log.h has.
PRIVATE = {"consensus/engine_parts.h": "consensus", "log/parts.h": "log", "log/space/parts.h": "log"}
EVERYWHERE = {"logstore.h", "logstore_calls.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def problems(csrc: Path) -> list[str]:
    """One line for each include that the table does not allow."""
    found = []
    for path in sorted(csrc.rglob("*.[ch]")):
        layer = path.relative_to(csrc).parts[0]
        if layer in {"tests", "include"}:
            continue
        if layer not in LAYERS:
            found.append(f"{path}: the folder {layer}/ is not in the table of tools/include_lint.py")
            continue
        allowed = {layer, *LAYERS[layer].split()}
        for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if included in EVERYWHERE:
                continue
            target = csrc / included
            if included.startswith(".") or "/" not in included or not target.is_file():
                found.append(f"{path} includes {included}: name the file from csrc/ on, as in log/log.h")
            elif included.split("/")[0] not in allowed:
                found.append(f"{path} includes {target}: {layer}/ may include {LAYERS[layer] or 'no other folder'}")
            elif PRIVATE.get(included, layer) != layer:
                owner = PRIVATE[included]
                found.append(f"{path} includes {target}: only {owner}/ may, others include {owner}/{owner}.h")
    return found


def main() -> int:
    """Print the violations; 1 if there are any."""
    found = problems(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "csrc")
    for line in found:
        print(f"include_lint: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
