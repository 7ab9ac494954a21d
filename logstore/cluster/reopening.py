"""Opens a host's copy again that has failed, without a new start of the member.

A disk error, or anything else that makes a copy unreliable, ends the host's group on this member (``Group.fail``). What
the copy has then is what a fresh open finds on the disk (R2), and it is not less than what this process has said of it
(``said.py``). The connections are renewed, so each peer judges what the copy is now.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logstore.errors import StoreClosed, StoreError

if TYPE_CHECKING:
    from logstore.cluster.member_loop import MemberLoop

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
        task = self._tasks[host] = member.loop.create_task(member.reopen(group))
        task.add_done_callback(lambda _: self._tasks.pop(host))
        await asyncio.shield(task)
        again = member.group(host)
        if again.problem is not None:
            raise again.problem.with_traceback(None)  # it is kept, and would gather the frames of each caller
        return Reopened(was_open=False, problem=again.standing().problem)

    async def stop(self) -> None:
        """What is being opened is open, or has failed, on return: so it is closed with the others."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
