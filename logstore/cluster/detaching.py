"""Ends replication in a member's directory, and first reports what is not known to be durable there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from logstore.cluster import config
from logstore.cluster.directory import VOTE_NAME, hosts, locked, read_vote
from logstore.cluster.engine import Engine, Options
from logstore.cluster.group import KEPT_BYTES
from logstore.cluster.jobs import found_in
from logstore.cluster.replica import Copy
from logstore.cluster.replica import detach as detach_copy
from logstore.errors import NoMajority, OptionError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Detached:
    """The single store that a copy has become."""

    store: Path
    index: int
    """Of the last batch; 0: an earlier call was interrupted, and this one finished it."""
    unknown_from: int
    """From this index on nothing was known to be durable, so other copies may lack it; 0: all was known."""


def detach(directory: Path, host: str, *, accept_loss: bool = False) -> Detached:
    """Makes the host's copy a single store. The member never takes part with it again.

    Without ``accept_loss`` only if all of it is known to be durable. Raises ``StoreLocked`` while the member runs,
    ``NoMajority`` if something is not known to be durable, ``OptionError`` for an unknown host; then nothing has
    changed. And what :meth:`Copy.open` raises.
    """
    config.read(directory)
    host_dir = directory.absolute() / host
    if not (host_dir / VOTE_NAME).exists():
        names = ", ".join(path.name for path in hosts(directory)) or "none"
        raise OptionError(f"{directory} has no host called {host!r}: it has {names}")
    with locked(directory):
        vote = read_vote(host_dir)
        if vote is not None and vote.detached:
            return Detached(detach_copy(host_dir), 0, 0)
        index, unknown_from = _known(host_dir)
        if unknown_from and not accept_loss:
            raise NoMajority(
                f"host {host} of this member has a log up to index {index}, and from index {unknown_from} on it is not "
                "known whether a majority has it; the other members may also have more than this copy. Nothing was "
                "changed. --accept-loss makes a single store of what is here"
            )
        return Detached(detach_copy(host_dir), index, unknown_from)


def _known(host_dir: Path) -> tuple[int, int]:
    """The index of the copy's last batch, and the first index that is not known to be durable; 0: all are durable."""
    with Copy.open(host_dir, kept_bytes=KEPT_BYTES, catalog=True) as copy:
        found = found_in(copy)
        member = copy.member().member_id
    index, durable = found.tail[1], found.durable[1]
    with Engine(Options(group=1, member=member), found.log, 0) as engine:
        voters = [one.member for one in engine.members() if one.voter]
    is_alone = voters == [member]  # what this disk has is durable
    return index, 0 if is_alone or durable >= index else durable + 1
