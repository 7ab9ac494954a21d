"""Updates by whole segments in the soak of three copies: one follower at a time falls behind, and is brought back.

Its copy is removed, or it gets no batches until the leader has recycled what it needs next. The update goes on in small
steps between the leader's batches, also from one reign to the next. It is given up now and then: the receiver is closed
and opened again, or another sender begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore import errors
from logstore.catalog.copy import copy_catalog
from logstore.cluster.replica import Copy
from logstore.cluster.update import Source, Update
from logstore.holds import LogRecycled

if TYPE_CHECKING:
    from kit.copy_soak import Soak

PIECE = 64 << 10
IDLE = 0.7  # of the steps, in which nothing is done: so an update lasts
GIVEN_UP = 0.03  # of the others


class Behind:
    """A follower that only an update brings back. The soak's lock is held in each call."""

    def __init__(self, soak: Soak, number: int, *, removed: bool) -> None:
        self.soak = soak
        self.number = number
        self.source: Source | None = None
        self.update: Update | None = None
        self.end = (0, 0)  # the index and the term that the update ends with
        self.history: dict[int, int] = {}  # the terms of the batches up to there
        if removed:
            self.remove()

    @property
    def copy(self) -> Copy:
        return self.soak.copies[self.number]

    @property
    def is_empty(self) -> bool:
        return not self.soak.paths[self.number].exists()

    def remove(self) -> None:
        """What an update has so far goes with the copy."""
        self.give_up()
        self.copy.remove()
        self.soak.place_of(self.number)
        self.soak.terms[self.number] = {}
        self.soak.counts["removed"] += 1

    def give_up(self) -> None:
        """Another update begins anew; it finds what this one has left."""
        update, self.update = self.update, None
        if update is not None:
            update.close()
            self.soak.counts["given up"] += 1
        source, self.source = self.source, None
        if source is not None:
            source.close()

    def reopen(self) -> None:
        """The receiver is killed and starts again."""
        self.give_up()
        self.copy.close()
        self.soak.copies[self.number] = Copy.open(self.soak.members[self.number])

    def step(self) -> bool:
        """A part of the update; whether the copy is up to date again."""
        draw = self.soak.random.random() - IDLE
        if draw < 0 and not self.soak.is_last:
            return False
        if self.update is not None and draw < (1 - IDLE) * GIVEN_UP and not self.soak.is_last:
            self.reopen() if self.soak.random.random() < 0.5 else self.give_up()
        if self.update is None:
            self._begin()
            return False
        try:
            part = self.update.next()
            if part is None:
                self._finish()
                return True
            assert self.source is not None
            size = min(part.bytes, PIECE)
            self.update.write(part.first_lsn, part.offset, self.source.read(part.first_lsn, part.offset, size))
            self.soak.counts["bytes"] += size
        except LogRecycled:
            self.soak.counts["recycled"] += 1
            self.give_up()
        return False

    def _begin(self) -> None:
        soak = self.soak
        sender = soak.random.choice([number for number in range(len(soak.copies)) if number != self.number])
        source = Source.open(soak.paths[sender], "update")
        if source is None:
            soak.counts["waited for a sender"] += 1
            return
        try:
            manifest = source.manifest()
            behind = self.is_empty or manifest.segments[0].first_lsn > self.copy.info().end_lsn
            if behind or soak.is_last:
                if self.copy.member().term < manifest.term:
                    self.copy.vote(manifest.term, 0)
                self.update = Update(self.copy, manifest)
                self.source = source
                self.end = manifest.index, manifest.term
                its = soak.terms[sender]
                self.history = {index: term for index, term in its.items() if index <= manifest.index}
                assert self.history[manifest.index] == manifest.term
        except (LogRecycled, errors.BatchRefused):  # the latter: it has more than the sender knows to be durable
            soak.counts["refused"] += 1
        finally:
            if self.source is None:
                source.close()

    def _finish(self) -> None:
        assert self.update is not None
        soak, update = self.soak, self.update
        (update.path / "catalog.sqlite").unlink(missing_ok=True)  # of an update that was given up
        uuid = self.copy.member().uuid
        copy_catalog(soak.paths[soak.number], update.path, store_uuid=uuid, live=True)
        update.finish()
        update.close()
        self.update = None
        self.give_up()
        soak.place_of(self.number)
        info = self.copy.info()
        assert (info.index, info.term) == self.end == (info.applied_index, info.term)
        soak.terms[self.number] = self.history
        soak.counts["updates"] += 1
