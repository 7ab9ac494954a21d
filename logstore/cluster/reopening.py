"""Opens a host's copy again that has failed, without a new start of the member.

A disk error, or anything else that makes a copy unreliable, ends the host's group on this member (``Group.fail``). What
the copy has then is what a fresh open finds on the disk (R2), and it is not less than what this process has said of it
(``said.py``). The connections are renewed, so each peer judges what the copy is now.

An operator says when; a copy that only lacks room is tried again by itself.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logstore.errors import CatalogError, StoreClosed, StoreError, StoreFull

if TYPE_CHECKING:
    from logstore.cluster.group import Group
    from logstore.cluster.member_loop import MemberLoop

ROOM_AGAIN_MS: Final = (1000, 4000)
"""Between two tries of a copy that lacks room: an open reads the log."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reopened:
    """What was done."""

    was_open: bool
    """The copy had not failed: nothing was done."""
    problem: str
    """What keeps it from taking part nevertheless; empty: nothing is known."""


class Reopening:
    """The copies of a member that are being opened again. It belongs to the loop."""

    def __init__(self, member: MemberLoop) -> None:
        self._member = member
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tries: dict[str, tuple[int, int]] = {}  # of copies that lack room: the next one, and the pause before it

    def is_under_way(self, host: str) -> bool:
        """Whether a copy of this host is being opened again."""
        return host in self._tasks

    async def reopen(self, host: str) -> Reopened:
        """See :meth:`Member.reopen`."""
        member = self._member
        group = member.group(host)
        if host in self._tasks:
            raise StoreError(f"host {host} is being opened again already: look with 'logstore cluster status'")
        if member.rebuilding.is_under_way(host):
            raise StoreError(
                f"the copy of host {host} is being rebuilt, which opens it: look with 'logstore cluster status'"
            )
        standing = group.standing()
        if standing.state == "closed":
            raise StoreClosed(f"member {member.config.name} is closed")
        if standing.state != "failed":
            return Reopened(was_open=True, problem=standing.problem)
        logger.info("host %s: its copy is opened again; it had failed: %s", host, standing.problem)
        await asyncio.shield(self._begin(group))
        again = member.group(host)
        if again.problem is not None:
            raise again.problem.with_traceback(None)  # it is kept, and would gather the frames of each caller
        return Reopened(was_open=False, problem=again.standing().problem)

    def _begin(self, group: Group) -> asyncio.Task[None]:
        task = self._tasks[group.name] = self._member.loop.create_task(self._member.reopen(group))
        task.add_done_callback(lambda _: self._tasks.pop(group.name))
        return task

    def look(self, now_ms: int) -> None:
        """Called now and then: copies that could not be opened for lack of room are tried again."""
        for group in self._member.unopened():
            host = group.name
            if not _lacks_room(group.problem) or host in self._tasks or self._member.rebuilding.is_under_way(host):
                continue
            at_ms, pause_ms = self._tries.get(host, (0, 0))
            if now_ms >= at_ms:
                pause_ms = min(max(2 * pause_ms, ROOM_AGAIN_MS[0]), ROOM_AGAIN_MS[1])
                self._tries[host] = (now_ms + pause_ms, pause_ms)
                if at_ms:
                    self._begin(group)

    def is_open(self, group: Group) -> None:
        """Its copy has been opened."""
        self._tries.pop(group.name, None)

    async def stop(self) -> None:
        """What is being opened is open, or has failed, on return: so it is closed with the others."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def _lacks_room(problem: StoreError | None) -> bool:
    return isinstance(problem, StoreFull) or (isinstance(problem, CatalogError) and problem.is_full)
