"""What a copy keeps, reviewed now and then: the kept window, the floor of ``VOTE``, the catalog's note."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logstore.cluster.jobs import Drop, Keep, NoteCatalog, NoteTail, first_to_keep
from logstore.errors import EngineRefused

if TYPE_CHECKING:
    from logstore.cluster.group import Group

KEEP_EVERY_MS: Final = 1000
FLOOR_EVERY_MS: Final = 500
NOTE_CATALOG_EVERY_MS: Final = 10_000
NOTE_CATALOG_BATCHES: Final = 64
"""After this many batches the next look notes the LSN: segments above a note are kept, and a batch has up to a MiB."""


class Keeping:
    """What one group's copy keeps. It belongs to the loop."""

    def __init__(self, group: Group, kept_bytes: int) -> None:
        self._group = group
        self._kept_bytes = kept_bytes
        self._noted_tail = (0, 0)  # the tail that VOTE last noted
        # What was durable, and how much was to be kept, when the copy that follows was last looked at.
        self._looked = (0, 0)
        self._kept_ms = self._floor_ms = self._catalog_ms = self._catalog_index = 0

    def look(self, now_ms: int) -> bool:
        """Does the work that is due. Whether ``KEEP_EVERY_MS`` have passed."""
        group = self._group
        if now_ms - self._floor_ms >= FLOOR_EVERY_MS and group.tail != self._noted_tail:
            self._floor_ms, self._noted_tail = now_ms, group.tail
            group.give(NoteTail())
        if now_ms - self._kept_ms < KEEP_EVERY_MS:
            return False
        self._kept_ms = now_ms
        group.rooms.look()
        self._look_at_files(now_ms)
        return True

    def _look_at_files(self, now_ms: int) -> None:
        group = self._group
        # On a full disk, files that need not be kept are dropped before any append waits for space.
        is_short = group.rooms.is_short
        kept_bytes = 1 if is_short else self._kept_bytes
        durable = group.durable[1]
        if (
            is_short
            or now_ms - self._catalog_ms >= NOTE_CATALOG_EVERY_MS
            or durable - self._catalog_index >= NOTE_CATALOG_BATCHES
        ):
            self._catalog_ms, self._catalog_index = now_ms, durable
            group.give(NoteCatalog())
        if group.leading is not None and group.copy is not None:
            self.keep_from(first_to_keep(group.copy, kept_bytes))
        elif not group.term and (group.told, kept_bytes) != self._looked:
            self._looked = group.told, kept_bytes
            group.give(Keep(kept_bytes))

    def keep_from(self, index: int) -> None:
        """Drops the entries below this index, if the engine agrees."""
        group = self._group
        engine, copy = group.engine, group.copy
        snapshot = group.durable[1] if group.leading is not None else group.told
        if engine is None or copy is None or group.answer is None or snapshot < 2:
            return
        try:
            made, kept = engine.snapshot(group.now_ms(), snapshot, max(1, min(index, snapshot)))
        except EngineRefused:
            return
        group.act(made)
        if group.leading is not None:
            copy.drop_kept(kept)
        else:
            group.give(Drop(kept))
