"""A benchmark's results and their output: figures, ratios against targets, conditions; as a table or JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

# ---- figures and ratios ----


@dataclass
class Figure:
    """One row: a rate for each slice or run."""

    name: str
    content_bytes: int
    unit: str  # messages/s or MB/s
    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


@dataclass
class Ratio:
    """Of two figures, sample by sample."""

    name: str
    content_bytes: int
    above: Figure
    below: Figure
    target: float | None

    @property
    def samples(self) -> list[float]:
        return [a / b for a, b in zip(self.above.samples, self.below.samples, strict=True)]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


# ---- conditions ----


def conditions(directory: Path) -> dict[str, Any]:
    """Conditions that influence the figures."""
    device, fstype, options = mount_of(directory)
    name = Path(device).name
    journal = read_or_unknown(Path("/sys/fs/ext4", name, "journal_task")) if fstype == "ext4" else "unknown"
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return {
        "kernel": platform.release(),
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "scheduling": "normal" if os.sched_getscheduler(0) == os.SCHED_OTHER else "real-time",
        "python": platform.python_version(),
        "file_system": fstype + {"unknown": "", "<none>": " without a journal"}.get(journal, " with a journal"),
        "mount_options": options,
        "device": device,
        "device_write_cache": read_or_unknown(Path("/sys/block", name, "queue", "write_cache")),
        "load_at_start": os.getloadavg()[0],
        "started": time.strftime("%Y-%m-%d"),
    }


def mount_of(directory: Path) -> tuple[str, str, str]:
    """Device, file system and mount options of the directory."""
    best = ("", "?", "?", "?")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, point, fstype, options = line.split()[:4]
        if directory.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, device, fstype, options)
    return best[1:]


def disk_writes(device: str) -> dict[str, int]:
    """The bytes that the device wrote and the flushes that it was given, for all processes; empty if unknown."""
    try:
        counted = Path("/sys/class/block", Path(device).name, "stat").read_text().split()
    except OSError:
        return {}
    return {"bytes": int(counted[6]) * 512, "flushes": int(counted[15])}


def read_or_unknown(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return "unknown"


# ---- output ----


def readable(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.2f}"


def spread(samples: Sequence[float]) -> str:
    return f"{readable(min(samples))}–{readable(max(samples))}"


def size_name(content_bytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if content_bytes >= unit and content_bytes % unit == 0:
            return f"{content_bytes // unit} {name}"
    return f"{content_bytes} B"


def tell(console: Console, known: dict[str, Any], figures: list[Figure], ratios: list[Ratio]) -> None:
    """Conditions, figures, ratios."""
    for name, value in known.items():
        console.print(f"[dim]{name.replace('_', ' ')}:[/dim] {value}", highlight=False)
    table = Table(title="Figures (median, min–max)")
    for heading in ("content", "what"):
        table.add_column(heading)
    for heading in ("median", "min–max", "unit", "content MB/s"):
        table.add_column(heading, justify="right")
    for f in figures:
        mb = f.median * f.content_bytes / 1e6 if f.unit == "messages/s" else f.median
        cells = [f.name, readable(f.median), spread(f.samples), f.unit, readable(mb)]
        table.add_row(size_name(f.content_bytes), *cells)
    console.print(table)
    table = Table(title="Ratios (median, min–max)")
    for heading in ("content", "what"):
        table.add_column(heading)
    for heading in ("median", "min–max", "target", ""):
        table.add_column(heading, justify="right")
    for r in ratios:
        verdict = "" if r.target is None else "met" if r.median >= r.target else "missed"
        target = "" if r.target is None else f"≥ {r.target}"
        cells = [f"{r.median:.2f}", f"{min(r.samples):.2f}–{max(r.samples):.2f}", target, verdict]
        table.add_row(size_name(r.content_bytes), r.name, *cells)
    console.print(table)


def as_json(known: dict[str, Any], figures: list[Figure], ratios: list[Ratio]) -> str:
    made = {
        "conditions": known,
        "figures": [asdict(f) | {"median": f.median} for f in figures],
        "ratios": [
            {"name": r.name, "content_bytes": r.content_bytes, "samples": r.samples, "median": r.median}
            | {"target": r.target, "met": None if r.target is None else r.median >= r.target}
            for r in ratios
        ],
    }
    return json.dumps(made, indent=2)
