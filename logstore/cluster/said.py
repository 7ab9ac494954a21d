"""What this process has said of a host: a copy that it opens later has at least that (R10).

Other members look at the age of ``VOTE`` only when a process is new to them. So a process that opens a copy again,
after a failure, compares it itself: somebody may have put an older directory there meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from logstore.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.cluster.jobs import Found


@dataclass(slots=True)
class Said:
    """Of one host, since the process started. All zero: nothing was said."""

    uuid: bytes = b""
    rebuild: int = 0
    start_term: int = 0
    """The term that ``VOTE`` has at least."""
    vote: tuple[int, int] = (0, 0)
    """Term, and who has the vote in it; 0: nobody."""
    tail: tuple[int, int] = (0, 0)
    """Term and index that are forced. A cut and a switch lower it before they begin, whether they succeed or not."""

    def lower(self, term: int, index: int) -> None:
        """The log may end here from now on."""
        if index < self.tail[1]:
            self.tail = (term, index)

    def voted(self, term: int, voted_for: int) -> None:
        """``VOTE`` has this on the disk."""
        self.vote = (term, voted_for)
        self.start_term = max(self.start_term, term)

    def began(self, found: Found) -> None:
        """A copy takes part."""
        self.uuid, self.rebuild, self.start_term = found.uuid, found.rebuild, found.start_term
        self.vote, self.tail = (found.log.vote_term, found.log.voted_for), found.tail

    def check(self, host_dir: Path, found: Found) -> None:
        """Raises ``StoreError`` if the copy that was found has less than what was said."""
        why = self._why_not(found)
        if why:
            raise StoreError(
                f"{host_dir} is older than what this member has said since it started: {why}; put back the directory "
                f"that it had, or take a fresh copy with 'logstore cluster rebuild {host_dir.name}'"
            )

    def _why_not(self, found: Found) -> str:
        if self.uuid and found.uuid != self.uuid:
            return f"it has store {found.uuid.hex()}, and the host's is {self.uuid.hex()}"
        if found.rebuild != self.rebuild:  # after a rebuild nothing from before counts
            is_older = found.rebuild < self.rebuild
            return f"its copy is from before rebuild {self.rebuild}" if is_older else ""
        term, voted_for = self.vote
        if found.start_term < self.start_term or found.log.vote_term < term:
            return f"VOTE has term {found.start_term}, and had {max(self.start_term, term)}"
        if found.log.vote_term == term and voted_for not in (0, found.log.voted_for):
            return f"VOTE has a vote for member {found.log.voted_for} in term {term}, and had one for {voted_for}"
        if found.tail[0] < self.tail[0] or found.tail[1] < self.tail[1]:
            (term, index), (had_term, had_index) = found.tail, self.tail
            return (
                f"its log ends at index {index} of term {term}, and index {had_index} of term {had_term} "
                "was acknowledged"
            )
        return ""
