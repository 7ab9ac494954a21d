"""Replaces a member's copy of a host by a fresh one from the others, while all run (R11).

```
 REBUILD in the host's directory ──▶ the others remove this member ──▶ copy-1 is put aside, if wanted
 ──▶ VOTE: next rebuild number, copy-2, no floor ──▶ copy-1 goes ──▶ the member joins anew ──▶ it is a voter again,
     if it was one ──▶ REBUILD goes
```

* The file ``REBUILD`` says that it was begun. A member that is killed goes on when it runs again, and the command may
  be repeated. Before VOTE has the next number the old copy stays what it is, and after that it never counts again.
* The others are asked as by a member that joins: so it does not matter whether this member's copy opens, and whether
  they take its frames. They refuse while they are no majority without it.
* Who was a voter becomes one again: the file has the number of voters from before, and the member asks for it until
  there are so many. Each leader makes voters of standbys by itself, but only up to an odd number.
* The connections are renewed when VOTE is forced, so that each peer learns the number before it counts anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from logstore._core import ffi, lib
from logstore.cluster import engine as engines
from logstore.cluster.directory import read_vote
from logstore.cluster.joining import Join, ask
from logstore.cluster.membership import CHANGE_WITHIN_S, Wanted
from logstore.core.native import check
from logstore.core.regular_files import force_directory
from logstore.errors import NoMajority, OptionError, StoreClosed, StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.cluster.group import Group
    from logstore.cluster.member_loop import MemberLoop

logger = logging.getLogger(__name__)

FILE_NAME: Final = "REBUILD"
AGAIN_S: Final = 1.0
COPY_WITHIN_S: Final = 300.0
"""How long a caller waits for the fresh copy unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of a rebuild."""

    kept: Path | None
    """The copy from before."""
    is_complete: bool
    """Whether the fresh copy is there and the member takes part; False: it is on its way."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The contents of the file ``REBUILD``."""

    rebuild: int
    """VOTE's number when it was begun."""
    keep: bool
    voters: int = 0
    """How many voters the group had, this member among them; 0: it was none, or nobody has said so yet."""


# ---- on the disk -----------------------------------------------------------------------------------------------------


def begun(host_dir: Path) -> Begun | None:
    """Whether a rebuild has begun in this directory. Raises ``StoreError`` if the file cannot be read."""
    path = host_dir / FILE_NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Begun(int(found["rebuild"]), bool(found["keep"]), int(found.get("voters", 0)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}): remove it, and repeat the command if the copy is to be rebuilt"
        ) from error


def begin(host_dir: Path, keep: bool, voters: int = 0) -> Begun:
    """Writes the file ``REBUILD``.

    Raises ``StoreError`` where VOTE cannot be read: then it is unknown what this member had said.
    """
    vote = read_vote(host_dir)
    if vote is None:
        raise StoreError(
            f"{host_dir}/VOTE cannot be read, so nobody knows how this member voted: remove it with 'logstore cluster "
            "remove', and join with another name and id"
        )
    with contextlib.suppress(StoreError):
        before = begun(host_dir)
        voters = voters if before is None else max(voters, before.voters)
    made = Begun(vote.rebuild, keep, voters)
    new = host_dir / f"{FILE_NAME}.new"
    try:
        with new.open("w", encoding="utf-8") as file:
            json.dump(asdict(made), file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(host_dir / FILE_NAME)
        force_directory(host_dir)
    except OSError as error:
        raise StoreError(f"{host_dir / FILE_NAME} cannot be written: {error.strerror}") from error
    return made


def end(host_dir: Path) -> None:
    """Removes the file ``REBUILD``."""
    try:
        (host_dir / FILE_NAME).unlink(missing_ok=True)
        force_directory(host_dir)
    except OSError as error:
        raise StoreError(f"{host_dir / FILE_NAME} cannot be removed: {error.strerror}") from error


def put_aside(host_dir: Path) -> Path | None:
    """Renames the copy that is in use, so that it is kept; returns its new path. None: there is none."""
    vote = read_vote(host_dir)
    if vote is None:
        raise StoreError(f"{host_dir}/VOTE cannot be read")
    copy, kept = host_dir / f"copy-{vote.copy}", host_dir / f"kept-{vote.copy}"
    try:
        if copy.exists():
            copy.rename(kept)
        force_directory(host_dir)
    except OSError as error:
        raise StoreError(f"{copy} cannot be put aside as {kept}: {error.strerror}") from error
    return kept if kept.exists() else None


def discard(host_dir: Path, term: int, counted: int) -> None:
    """Lets ``VOTE`` name the next copy, which an update will bring, and removes the previous one.

    The host is not open, and its group has removed this member, in ``term`` or before. ``counted`` is the highest
    rebuild number that another member knows.
    """
    copy = ffi.new("uint64_t *")
    check(lib.ls_host_discard(ffi.NULL, os.fsencode(host_dir), term, counted, copy))


# ---- on the member's loop --------------------------------------------------------------------------------------------


class Rebuilding:
    """The rebuilds of a member, at most one at a time for each host. It belongs to the loop."""

    def __init__(self, member: MemberLoop) -> None:
        self._member = member
        self._tasks: dict[str, asyncio.Task[Path | None]] = {}
        self._regaining: dict[str, asyncio.Task[None]] = {}  # the fresh copy's member is to be a voter again
        self._replacing: set[asyncio.Task[Path | None]] = set()  # copies are put aside, discarded, opened

    def go_on(self) -> None:
        """At a start: completes the rebuilds that an earlier run began."""
        for group in self._member.all_groups():
            try:
                found = begun(group.path)
                vote = read_vote(group.path)
                if found is not None and vote is not None and vote.rebuild > found.rebuild:
                    self._join(group.name, found.voters)  # the earlier run was killed after VOTE was forced
                elif found is not None:
                    logger.info("host %s: the rebuild of this member's copy goes on", group.name)
                    self._begin(group.name, self._until_done(group, found.keep))
            except StoreError as error:
                logger.error("host %s: its rebuild does not go on: %s", group.name, error)

    def _begin(self, host: str, work: asyncio._CoroutineLike[Path | None]) -> asyncio.Task[Path | None]:
        task = self._member.loop.create_task(work)
        self._tasks[host] = task

        def ended(done: asyncio.Task[Path | None]) -> None:
            del self._tasks[host]
            if not done.cancelled():
                done.exception()  # the caller gets the error, if there is a caller

        task.add_done_callback(ended)
        return task

    def is_under_way(self, host: str) -> bool:
        """Whether a copy of this host is to be discarded, or is being."""
        return host in self._tasks

    async def stop(self) -> None:
        """Stops waiting; the next run continues the rebuild. What is being replaced is open on return, or failed."""
        tasks = [*self._tasks.values(), *self._regaining.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._replacing, return_exceptions=True)

    async def rebuild(self, host: str, *, keep: bool, within_s: float, copy_within_s: float) -> Rebuilt:
        """Replaces the copy, and waits until the fresh copy takes part; see :meth:`Member.rebuild`."""
        group = self._member.group(host)
        task = self._tasks.get(host)
        if task is None:
            if self._member.reopening.is_under_way(host):
                raise StoreError(f"host {host} is being opened again: rebuild it when that has failed")
            if (regaining := self._regaining.pop(host, None)) is not None:
                regaining.cancel()
            begin(group.path, keep)
            task = self._begin(host, self._rebuild(group, keep, within_s))
        try:
            kept = await asyncio.wait_for(asyncio.shield(task), within_s + copy_within_s)
        except asyncio.CancelledError:
            raise StoreClosed("the member is closed; the rebuild goes on when it runs again") from None
        except TimeoutError:
            raise NoMajority(f"host {host}: its rebuild, which was begun before, goes on; {self._why(host)}") from None
        return Rebuilt(kept, await self._takes_part(host, copy_within_s))

    def _why(self, host: str) -> str:
        return self._member.group(host).waits_for or "look with 'logstore cluster status'"

    async def _rebuild(self, group: Group, keep: bool, within_s: float) -> Path | None:
        """Tries once: if the others do not remove this member, nothing has changed."""
        try:
            await self._note_voters(group, keep)
            term, counted = await self._leave(group, within_s)
        except StoreError:
            end(group.path)
            raise
        return await self._replace(group, keep, term, counted)

    async def _until_done(self, group: Group, keep: bool) -> Path | None:
        """Tries until it succeeds, because it is not known how far an earlier run came."""
        while True:
            try:
                await self._note_voters(group, keep)
                term, counted = await self._leave(group, CHANGE_WITHIN_S)
                return await self._replace(group, keep, term, counted)
            except StoreError as error:
                group.waits_for = f"its rebuild, which was begun before, waits: {error}"
                logger.warning("host %s: the rebuild of this member's copy waits: %s", group.name, error)
            await asyncio.sleep(AGAIN_S)

    async def _note_voters(self, group: Group, keep: bool) -> None:
        """Notes whether this member is a voter, as long as somebody knows it: its own copy may not open."""
        voters = [group.voters_with(self._member.member)]
        for address in self._member.addresses():
            with contextlib.suppress(StoreError, OSError):  # each is asked again to remove this member, and says why
                _, answer = await ask(self._member.transport, address, Join(self._member.reached_at, []))
                voters += [found for uuid, found in answer.voters if uuid == group.uuid]
        begin(group.path, keep, max(voters))

    async def _leave(self, group: Group, within_s: float) -> tuple[int, int]:
        """Has the others remove this member durably; returns their term, and their highest rebuild number.

        Raises ``NoMajority`` with the reason of each that was asked.
        """
        vote = read_vote(group.path)
        if vote is None:
            raise StoreError(f"{group.path}/VOTE cannot be read")
        uuid = vote.uuid.bytes
        reasons: list[str] = []
        found: list[tuple[int, int]] = []
        for address in self._member.addresses():
            try:
                join = Join(self._member.reached_at, [], [uuid], 0.0 if found else within_s)
                _, answer = await ask(self._member.transport, address, join)
            except (StoreError, OSError) as error:
                reasons.append(str(error))
                continue
            reasons += [answer.refused] if answer.refused else []
            found += [(term, counted) for one, term, counted in answer.left if one == uuid]
        if not found:
            nobody = 'no other member is known: name one in cluster.toml, as join = ["HOST:PORT"]'
            raise NoMajority(
                f"host {group.name}: this member's copy stays as it is, because the others have not removed it: "
                + ("; ".join(reasons) or nobody)
            )
        return max(term for term, _ in found), max(counted for _, counted in found)

    async def _replace(self, group: Group, keep: bool, term: int, counted: int) -> Path | None:
        """Closes the group, which has removed this member, replaces the copy, and joins.

        A task of its own, which is never cancelled: nobody else would close a copy that it has just opened.
        """
        logger.info("host %s: the group has removed this member, and its copy is discarded", group.name)
        task = self._member.loop.create_task(self._put_fresh(group, keep, term, counted))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)
        kept = await asyncio.shield(task)
        self._member.join_hosts()
        found = begun(group.path)
        self._join(group.name, 0 if found is None else found.voters)
        return kept

    async def _put_fresh(self, group: Group, keep: bool, term: int, counted: int) -> Path | None:
        loop = self._member.loop
        await group.close()
        kept = await loop.run_in_executor(None, put_aside, group.path) if keep else None
        await loop.run_in_executor(None, discard, group.path, term, counted)
        await self._member.reopen(group)
        return kept

    def _join(self, host: str, voters: int) -> None:
        """The member joins anew; the rebuild ends when it is what it was."""
        task = self._member.loop.create_task(self._regain(host, voters))
        self._regaining[host] = task

        def ended(done: asyncio.Task[None]) -> None:
            if self._regaining.get(host) is done:
                del self._regaining[host]
            if not done.cancelled() and (error := done.exception()) is not None:
                logger.error("host %s: the end of its rebuild has failed: %s", host, error)
            self._member.changed(self._member.group(host))

        task.add_done_callback(ended)

    async def _regain(self, host: str, voters: int) -> None:
        """Makes this member a voter again, unless standbys have made up for it meanwhile."""
        member = self._member
        with member.told(host) as event:
            while not self._has_copy(host):
                event.clear()
                await event.wait()
        while voters:
            try:
                await member.change(host, Wanted(engines.PROMOTE, member.member, voters=voters), CHANGE_WITHIN_S)
                break
            except OptionError as error:
                logger.warning("host %s: this member does not become a voter again: %s", host, error)
                break
            except NoMajority:
                await asyncio.sleep(AGAIN_S)
        end(member.group(host).path)

    def _has_copy(self, host: str) -> bool:
        """Whether the fresh copy is there, and the group has this member."""
        group = self._member.group(host)
        return group.copy_number > 0 and any(each.member == self._member.member for each in group.members())

    async def _takes_part(self, host: str, within_s: float) -> bool:
        """Whether the fresh copy has come in time, and the member is what it was: a voter, or a standby."""
        member = self._member

        def complete() -> bool:
            group = member.group(host)
            if group.standing().state == "closed":
                raise StoreClosed("the member is closed; its fresh copy comes when it runs again")
            return self._has_copy(host) and host not in self._regaining

        try:
            async with asyncio.timeout(within_s):
                with member.told(host) as event:
                    while not complete():
                        event.clear()
                        await event.wait()
        except TimeoutError:
            return False
        return True
