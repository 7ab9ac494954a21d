"""The C programs that measure the machine's limits: built when needed, and run between the stores."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from peers.base import Wrong

if TYPE_CHECKING:
    from slices import Mode, Span

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "benchmarks"


def compiled(name: str, others: tuple[str, ...] = ()) -> Path:
    """The program ``name``.c here, built if it is older than its sources."""
    sources = [ROOT / "benchmarks" / f"{name}.c", *(ROOT / other for other in others)]
    program = BUILD / name
    if program.exists() and program.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return program
    BUILD.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC") or next((cc for cc in ("cc", "gcc", "clang") if shutil.which(cc)), None)
    if compiler is None:
        raise SystemExit("benchmarks: a C compiler is needed: install gcc or clang, or name one with CC")
    flags = ["-std=c11", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", f"-I{ROOT / 'csrc'}"]
    subprocess.run([*compiler.split(), *flags, "-o", program, *sources], check=True)
    return program


class RawLoop:
    """pwrite and fdatasync in C: a process that waits for commands."""

    name = "C loop"

    def __init__(self, file: Path, file_bytes: int, kind: str) -> None:
        self.sync = {"zeros": "fdatasync into zeros, going round", "grow": "fdatasync into a growing file"}[kind]
        self.process = subprocess.Popen(
            [compiled("raw_loop"), file, str(file_bytes), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, size: int, group: int, span: Span, outcome: int = 0, logs: int = 1) -> dict[str, Any]:
        """``units``, ``seconds``, ``messages_per_s``."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{size} {group} {span.seconds} {span.max_bytes} {outcome} {logs}\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise Wrong(f"the C loop ended with status {self.process.wait()}")
        told: dict[str, Any] = json.loads(answer)
        return told

    def rate(self, size: int, mode: Mode, span: Span) -> float:
        """Messages a second."""
        return float(self.ask(size, mode.batch, span)["messages_per_s"])

    def close(self) -> None:
        """End it; it removes its files."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.process.wait(timeout=60) != 0:
            raise Wrong(f"the C loop ended with status {self.process.returncode}")
        assert self.process.stdout is not None
        self.process.stdout.close()
