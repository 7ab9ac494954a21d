"""The golden copy of a replicated log as a store with a catalog, for tests of the tools."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from kit.stores import ROOT
from logstore.catalog.catalog import Catalog
from logstore.codec.files import Meta

if TYPE_CHECKING:
    from pathlib import Path

GOLDEN = ROOT / "tests" / "golden" / "v1"
KNOWN_DURABLE_LSN, END_LSN = 5497558143376, 5497558143584  # of the newest batch, which no majority is known to have
MEMBERS_LSN = 2199023259752


def golden_copy(into: Path) -> Path:
    """Makes this directory a copy of the golden replicated store; its queues are q1 to q7. Returns it."""
    shutil.copytree(GOLDEN / "replicated", into, ignore=shutil.ignore_patterns("*.json"))
    shutil.copyfile(GOLDEN / "store" / "META", into / "META")
    catalog = Catalog.create(into, store_uuid=Meta.decode((into / "META").read_bytes()).uuid.bytes)
    for number in range(1, 8):
        catalog.declare_queue(f"q{number}")
    catalog.close()
    return into
