#!/usr/bin/env python3
"""Runs ``pip install`` for the Makefile, and says in plain lines what is under way.

    tools/install.py WHAT PIP_ARGUMENT ...

Needs only the standard library, because it runs before anything is installed. pip's own output goes to
``build/pip.log``. A failure is one line: what failed, and what to do. The exit status is pip's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "build" / "pip.log"

# Smaller packages are installed so quickly that no line about them is printed.
LARGE_MB = 10

_COLLECTING = re.compile(r"(Collecting|Processing|Requirement already satisfied:) ")
_DOWNLOADING = re.compile(r"\s*Downloading (\S+) \((\d+)(?:\.\d+)? MB\)")
_BUILDING = re.compile(r"\s*Building wheel for (\S+)")
_INSTALLING = re.compile(r"Installing collected packages: (.*)")
_NO_ANSWER = re.compile(r"WARNING: Retrying \(")
_UNREACHABLE = re.compile(r"WARNING: Retrying \(|connection error|Max retries exceeded|Could not fetch URL")
_MISSING = re.compile(r"ERROR: No matching distribution found for (\S+)")


class Progress:
    """What pip does, as lines for a person: :meth:`line` takes each line of pip's output."""

    def __init__(self) -> None:
        self._found = 0
        self._told_no_answer = False

    def line(self, text: str) -> str | None:
        """What to say now that pip has written this line; None: nothing."""
        if _COLLECTING.match(text):
            self._found += 1
            return f"{self._found} packages found so far" if self._found % 50 == 0 else None
        if found := _DOWNLOADING.match(text):
            return f"downloading {found[1]} ({found[2]} MB)" if int(found[2]) >= LARGE_MB else None
        if found := _BUILDING.match(text):
            return f"building {found[1]}"
        if found := _INSTALLING.match(text):
            count = found[1].count(",") + 1
            return f"installing {count} package{'s' * (count > 1)}"
        if _NO_ANSWER.match(text) and not self._told_no_answer:
            self._told_no_answer = True
            return "the package index does not answer; pip tries again"
        return None


def failure(output: str) -> str:
    """One line for a failed run of pip with this output: what failed, and what to do."""
    missing = _MISSING.findall(output)
    if _UNREACHABLE.search(output):
        what = f"{missing[0]} could not be downloaded" if missing else "packages could not be downloaded"
        return (
            f"{what}, because the package index cannot be reached: connect to a network and try again, or name a "
            f"directory of wheels with PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR (pip's output: {LOG.relative_to(ROOT)})"
        )
    errors = [text.removeprefix("ERROR: ") for text in output.splitlines() if text.startswith("ERROR: ")]
    last = errors[-1].rstrip(".") if errors else "pip failed"
    return f"{last} (pip's output: {LOG.relative_to(ROOT)})"


def say(text: str) -> None:
    print(f"logstore: {text}", flush=True)


def main(what: str, arguments: list[str]) -> int:
    """Installs; returns pip's exit status."""
    say(f"downloading and installing {what}")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-color"]
    command = [*pip, "install", "--no-compile", "--progress-bar", "off", "-c", str(ROOT / "constraints.txt")]
    progress = Progress()
    LOG.parent.mkdir(exist_ok=True)
    with (
        LOG.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as child,
    ):
        assert child.stdout is not None
        for text in child.stdout:
            log.write(text)
            if (said := progress.line(text)) is not None:
                say(said)
    if child.returncode != 0:
        print(f"logstore: {failure(LOG.read_text('utf-8'))}", file=sys.stderr)
    return child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
