"""Adds a host to a running cluster: this member makes it and leads it alone; then the other members join it.

All other members must answer, so that no two hosts get one name; two such commands at the same time, at two members,
could still do that: give them one after the other. The host is made in ``.new/HOST`` and renamed as a whole, so a
member that is killed meanwhile has the host, or nothing of it. The others hear of it by the next HELLO.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Final

from logstore.cluster.addresses import named
from logstore.cluster.directory import host_name
from logstore.cluster.founding import make_directory, make_host
from logstore.cluster.joining import Join, ask
from logstore.core.regular_files import as_store_error, force_directory
from logstore.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.cluster.member_loop import MemberLoop

NEW: Final = ".new"
VOTERS_WITHIN_S: Final = 10.0
"""How long the others may take to become voters before the caller is told that they are still on their way."""


class Adding:
    """The hosts that a member adds, one at a time. It belongs to the loop."""

    def __init__(self, member: MemberLoop) -> None:
        self._member = member
        self._turn = asyncio.Lock()

    async def add(self, name: str, segment_size: int | None, within_s: float) -> int:
        """Makes the host, and waits that long for the others: how many voters it has then.

        Raises ``OptionError`` for a name that is taken or impossible, ``StoreError`` if another member does not answer
        or the disk refuses; then there is no such host.
        """
        member = self._member
        host_name(name)
        async with self._turn:
            self._judge_here(name)
            for _, address in list(member.peers.values()):
                _, answer = await ask(member.transport, address, Join(member.reached_at, []))
                if name in (host for _, host in answer.hosts):
                    raise OptionError(f"the cluster has a host {name!r} already, on the member at {address}")
            self._judge_here(name)
            voter = (member.member, named(member.config.name, member.reached_at))
            await member.loop.run_in_executor(
                None, _make, member.directory, name, member.config.cluster, voter, segment_size
            )
            await member.take_host(member.directory / name)
        return await self._voters(name, within_s)

    def _judge_here(self, name: str) -> None:
        if (self._member.directory / name).exists():
            raise OptionError(f"this member has a host or a file {name!r} already")

    async def _voters(self, name: str, within_s: float) -> int:
        """How many there are, once no more are to come, or after so long."""
        member = self._member
        wanted = min(3, 1 + len(member.peers))

        def voters() -> int:
            return sum(each.voter for each in member.group(name).members())

        with member.told(name) as event:
            try:
                async with asyncio.timeout(within_s):
                    while voters() < wanted:
                        event.clear()
                        await event.wait()
            except TimeoutError:
                pass
        return voters()


def _make(directory: Path, name: str, cluster: bytes, voter: tuple[int, str], segment_size: int | None) -> None:
    """In a thread. What an interrupted call has left is removed before and after."""
    new = directory / NEW
    with as_store_error(f"no host can be made in {directory}"):
        shutil.rmtree(new, ignore_errors=True)
        try:
            make_directory(new / name)
            make_host(new / name, cluster, voter, segment_size=segment_size)
            os.rename(new / name, directory / name)
            force_directory(directory)
        finally:
            shutil.rmtree(new, ignore_errors=True)
