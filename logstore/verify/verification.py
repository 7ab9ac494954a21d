"""The checks of ``logstore verify`` and their findings.

The core reads the log once, at its own speed. With the replay that recovery uses it checks every checksum, batch and
footer, every chain and reference. A second reader in Python (witness.py) reads all of a small log and a sample of a
large one. It reads the whole log with ``thorough``, and to find every problem after the core has found one.

Invariants: nothing is changed, and the normal work of a running writer is never reported as a problem.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from logstore.codec.files import SEGMENT_HEADER_BYTES
from logstore.errors import CatalogError, CatalogUnavailable, CorruptLog, StoreError
from logstore.holds import Hold, hold
from logstore.inspect import Inspection, LogRecycled, QueueLife, Reader, ReaderInfo, read_catalog
from logstore.inspect.catalog import catalog_contradiction
from logstore.inspect.catalog_changes import COMES_FROM_THE_LOG
from logstore.inspect.place_states import state_differences
from logstore.inspect.refusals import refusals
from logstore.verify.affected import affected
from logstore.verify.findings import Findings, Found
from logstore.verify.side_files import check_side_files
from logstore.verify.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore.codec.strict import EndState, StrictReplay
    from logstore.core.reports import Recovery

SMALL_BYTES = 2 << 20  # the second reader reads all of a log up to this size


class Verification:
    """The verification of a store. :meth:`run` sets the attributes.

    The constructor raises the errors of Inspection, but a log too damaged to be opened is a finding, not an error.
    """

    def __init__(
        self, store_dir: Path, *, thorough: bool = False, rate: float | None = None, direct: bool = False
    ) -> None:
        self.store_dir = store_dir
        self.thorough = thorough
        self.findings = Findings()
        self.info: ReaderInfo | None = None
        self.recovery: Recovery | None = None  # None if the core could not read the log to its end
        self.queues: list[QueueLife] = []
        self.in_doubt = 0
        self.affected: dict[str, Any] | None = None  # the messages and queues that damage affects
        self.checkpoint_lsn: int | None = None  # of the checkpoint that was compared with the log
        self.torn_lsn: int | None = None
        self.copied = False  # not closed, and without the hint that a writer leaves: a backup, which has no torn write
        self.segments = self.footers = self.batches = self.records = self.bytes_read = self.compared = 0
        self._queue_id_max = 0
        self._log_bytes = 0  # from the base on, without the LSNs between two epochs
        self._rate = rate
        self._hold: Hold | None = None
        self._inspection: Inspection | None = None
        try:
            self._inspection = self._inspect(direct)
        except CorruptLog as error:
            self.findings.damage(error)
            return
        self.info = self._inspection.info
        self.findings.segment_size = self.info.segment_size
        segments = self._segments()
        self.segments = sum(end_lsn > first_lsn for first_lsn, end_lsn in segments)
        self._log_bytes = sum(max(end - max(first, self.info.base_lsn), 0) for first, end in segments)
        if self.info.state == "crashed":
            self.torn_lsn = max(self.info.end_lsn, segments[-1][0] + SEGMENT_HEADER_BYTES)
            self.copied = self.info.torn_bytes == 0 and self.info.index == 0 and not os.path.lexists(store_dir / "HINT")

    def _inspect(self, direct: bool) -> Inspection:
        """Opens the inspection. A reader with a rate limit takes a hold; without one it may have to start again."""
        made = Inspection(self.store_dir, checked=True, direct=direct)
        if made.info.live and self._rate is not None:
            with suppress(StoreError):
                self._hold = hold(self.store_dir, f"verify-{os.getpid()}")
            made.close()
            made = Inspection(self.store_dir, checked=True, direct=direct)  # again, now that the log is held
        return made

    def _segments(self) -> list[tuple[int, int]]:
        with suppress(CorruptLog), Reader(self.store_dir, undurable=True) as reader:
            return [(one.first_lsn, one.end_lsn) for one in reader.segments()]
        return [(0, 0)]

    @property
    def bytes_expected(self) -> int:
        """The approximate number of bytes to read."""
        return 0 if self.info is None else max(self.info.end_lsn - self.info.base_lsn, 0)

    def close(self) -> None:
        """Closes the log and releases the hold."""
        if self._inspection is not None:
            self._inspection.close()
        if self._hold is not None:
            self._hold.release()

    def run(self, show: Callable[[int], None], *, connect: str | None, schema: str | None) -> None:
        """Checks everything; calls ``show`` with the number of bytes read.

        Raises LogRecycled if a writer reused a segment first, ``VersionError``, and ``StoreError`` for read errors.
        """
        if self._inspection is None or self.info is None:
            check_side_files(self.store_dir, None, self.findings)
            self._find_affected(connect, schema)
            return
        with self._inspection as log:
            damage = self._read(log, show)
            if damage is None and os.path.lexists(self.store_dir / "CHECKPOINT"):
                self._check_checkpoint(log)
            small = self._log_bytes <= SMALL_BYTES
            if damage is not None or self.thorough or small:
                self._ask_the_witness(log, damage, show)
            else:
                self._sample(self.info)
        check_side_files(self.store_dir, self.info, self.findings)
        self._check_catalog(connect, schema)
        self._check_opening(connect, schema)
        self._find_affected(connect, schema)

    @property
    def damaged(self) -> bool:
        """Whether the log is damaged or contradicts itself, so that only a salvage or a backup helps."""
        return any(one.kind in ("damage", "chain") for one in self.findings.problems)

    def _find_affected(self, connect: str | None, schema: str | None) -> None:
        if self.damaged:
            self.affected = affected(self.store_dir, self.info, self.findings, connect=connect, schema=schema)

    # ---- The log

    def _read(self, log: Inspection, show: Callable[[int], None]) -> CorruptLog | None:
        """Reads the log with the core. Returns the first damage, if any; then the state is unknown."""
        try:
            log.read(self._advancing_hold(log.info, show), rate=self._rate)
        except CorruptLog as error:
            self.bytes_read = log.bytes_read
            return error
        self.bytes_read = log.bytes_read
        self.recovery = log.recovery
        self.queues = log.queues()
        self.in_doubt = sum(one.prepared for one in log.transactions())
        self.footers, self._queue_id_max = log.footers, log.queue_id_max
        self.batches, self.records = self.recovery.batches, self.recovery.records
        return None

    def _advancing_hold(self, info: ReaderInfo, show: Callable[[int], None]) -> Callable[[int], None]:
        """``show``, and in addition the hold is advanced behind the bytes that were read."""

        def read(done: int) -> None:
            show(done)
            held = None if self.thorough else self._hold  # the second reader needs the log from the base on
            if held is not None and info.base_lsn + done >= held.lsn + info.segment_size:
                held.advance(info.base_lsn + done)

        return read

    def _ask_the_witness(self, log: Inspection, damage: CorruptLog | None, show: Callable[[int], None]) -> None:
        before = self.findings.count
        witness = Witness(self.store_dir, self.findings)
        info = witness.read(show)
        self.compared = witness.compared
        assert witness.replay is not None
        if damage is not None:
            if self.findings.count == before:
                self.findings.damage(damage)
            self.batches, self.footers, self.records = witness.batches, witness.footers, witness.replay.records
            self._queue_id_max = witness.replay.queue_id_max
            self.queues = [QueueLife(one, True, 0, 0, 0, 0) for one in sorted(witness.replay.deleted_queues)]
        elif witness.end_state is not None and _of_one_moment(info, log.info):
            self._compare(log, witness.end_state)
            with suppress(LogRecycled):  # a writer has moved a note meanwhile
                self._compare_states(log, witness.replay)

    def _check_checkpoint(self, log: Inspection) -> None:
        """Checks that the checkpoint gives the same state as the log alone, if no writer has changed it meanwhile."""
        with Inspection(self.store_dir) as other:
            other.read()
            recovery = other.recovery
            if recovery.checkpoint_ignored:
                text = f"CHECKPOINT is not used: {recovery.checkpoint_ignored}; an open replays the whole log instead"
                if other.checkpoint_is_bad:
                    self.findings.add(Found("checkpoint", text))
                else:
                    self.findings.notes.append(text)
            elif recovery.checkpoint_used and _of_one_moment(other.info, log.info):
                self.checkpoint_lsn = recovery.checkpoint_lsn
                difference = other._differs_from(log)
                if difference is not None:
                    text = f"CHECKPOINT of LSN {recovery.checkpoint_lsn} gives another state than the log: {difference}"
                    self.findings.add(Found("checkpoint", f"{text}; remove it, and an open replays the log"))
            elif recovery.checkpoint_used:
                self.findings.notes.append(
                    "the writer has appended or ended meanwhile: its checkpoint was not compared with the log"
                )

    def _compare(self, log: Inspection, second: EndState) -> None:
        """Compares the states of the two replays."""
        recovery = log.recovery
        core = {one.id: (one.depth, one.locked, one.content_bytes) for one in log.queues() if one.depth > 0}
        counts = {key: (one.depth, one.locked, one.content_bytes) for key, one in second.queues.items()}
        for what, here, there in (
            ("messages", recovery.messages, second.messages),
            ("staged messages", log.staged, second.staged),
            ("queues (depth, locked, bytes)", core, counts),
            (
                "open transactions",
                sorted((one.id, one.state) for one in log.transactions()),
                sorted((one.id, one.state) for one in second.transactions),
            ),
        ):
            if here != there:
                self.findings.add(Found("replay", f"the core's replay gives {what} {here}, the second one {there}"))

    def _compare_states(self, log: Inspection, second: StrictReplay) -> None:
        """Compares the states of places: counts, times, notes and headers."""
        wanted = {
            (message_id, place.queue_id): place.state
            for message_id, message in second.messages.items()
            for place in message.places
            if place.state is not None and place.queue_id not in second.deleted_queues
        }
        for difference in state_differences(log, wanted):
            self.findings.add(Found("replay", f"the core's replay and the second one differ: {difference}"))

    def _sample(self, info: ReaderInfo) -> None:
        witness = Witness(self.store_dir, self.findings)
        with suppress(LogRecycled):  # the core has read all of it
            witness.sample(info)
        self.compared = witness.compared

    def _check_opening(self, connect: str | None, schema: str | None) -> None:
        """Adds the reasons for which a writer could not open the store, although its log is intact."""
        with suppress(CorruptLog):  # already a finding
            known = {one.text for one in self.findings.problems}
            for text in refusals(self.store_dir, connect=connect, schema=schema):
                if text not in known:
                    self.findings.add(Found("open", f"an open is refused: {text}"))

    # ---- The catalog

    def _check_catalog(self, connect: str | None, schema: str | None) -> None:
        assert self.info is not None
        try:
            catalog = read_catalog(self.store_dir, self.info, connect=connect, schema=schema)
        except CatalogUnavailable:
            raise
        except CatalogError as error:
            self.findings.add(Found("catalog", error.message))
            return
        deleted = {one.id for one in self.queues if one.deleted}
        contradiction = catalog_contradiction(self._queue_id_max, deleted, catalog)
        if contradiction is not None and self.info.index != 0:
            contradiction = f"{contradiction}: {COMES_FROM_THE_LOG}"
        if contradiction is not None:
            self.findings.add(Found("catalog", contradiction))


def _of_one_moment(one: ReaderInfo, other: ReaderInfo) -> bool:
    """Whether two readings of the log must give one state.

    While a writer lives, what it has begun belongs to the state; after its death the same log gives what an open would
    restore.
    """
    return all(getattr(one, name) == getattr(other, name) for name in ("end_lsn", "base_lsn", "epoch", "state"))
