"""What this member has counted of the other members' copies, so that no copy comes back with less (R10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore._core import ffi, lib

if TYPE_CHECKING:
    from logstore.cluster.frames import Identity


class _Counted:
    """The count of one peer."""

    def __init__(self) -> None:
        self.identity = ffi.new("ls_identity *")
        self.rebuild = 0
        self.start = 0
        """Of the process that was heard last."""


class Counts:
    """The counts of one group. It belongs to the loop."""

    def __init__(self) -> None:
        self._all: dict[int, _Counted] = {}

    def _of(self, peer: int) -> _Counted:
        return self._all.setdefault(peer, _Counted())

    def rebuild_of(self, peer: int) -> int:
        """The rebuild number of this peer's copy."""
        return self._all[peer].rebuild if peer in self._all else 0

    def judge(self, peer: int, start: int, told: Identity, durable: tuple[int, int], led_term: int) -> str | None:
        """Why a peer's copy is refused; None: it is accepted.

        ``durable``: term and index that this member knows to be durable. ``led_term``: that it leads; 0: none.
        """
        counted = self._of(peer)
        new_run = counted.start != start
        given = ffi.new(
            "ls_identity_told *",
            [told.rebuild, told.tail_term, told.tail_index, told.vote_term_at_start, new_run],
        )
        text = lib.ls_identity_judge(counted.identity, given, *durable, led_term)
        if text != ffi.NULL:
            return str(ffi.string(text).decode())
        counted.start, counted.rebuild = start, told.rebuild
        return None

    def voted(self, peer: int, term: int) -> None:
        """The peer voted for this member in this term."""
        lib.ls_identity_voted(self._of(peer).identity, term)

    def acknowledged(self, peer: int, led_term: int, term: int, index: int) -> None:
        """The peer acknowledged to this leader that it has the entry of this term and index."""
        counted = self._of(peer)
        lib.ls_identity_acknowledged(counted.identity, counted.rebuild, led_term, term, index)

    def lower(self, term: int, index: int) -> None:
        """Lowers the counts to this end of the log: no peer is asked for more than that."""
        for counted in self._all.values():
            lib.ls_identity_lower(counted.identity, term, index)
