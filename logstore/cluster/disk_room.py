"""Room on the disks of a group: a leader's log grows only while every voter's disk can follow.

A copy keeps spare segments. When its disk has no room for another one, it tells the leader each second, and after each
batch, how many it has left, and the leader's log behaves as if its own disk had no more (``csrc/log/space/others.c``):
growth is refused, and the log can be drained. A member that is not connected bounds nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from logstore._core import ffi, lib
from logstore.cluster.frames import Message
from logstore.cluster.jobs import AskRoom
from logstore.cluster.replica import Room
from logstore.core.native import check

if TYPE_CHECKING:
    from logstore.cluster.group import Around, Group


class HasRoom(Message, frozen=True, tag=18):
    """The message in which a member reports the room of its copy.

    It goes to the leader while the disk is full, and once after.
    """

    skippable: ClassVar[bool] = True

    host: bytes
    spares: int
    first_lsn: int
    applied_lsn: int
    sys_errno: int
    """0: it can make more files."""


class Rooms:
    """The room of this member's copy, and at the leader also the room of the other copies. It belongs to the loop."""

    def __init__(self, group: Group, around: Around) -> None:
        self._group = group
        self._around = around
        self._here = Room(0, 0, 0, 0)
        self._others: dict[int, HasRoom] = {}
        self._given = 0  # how many limiting copies were last reported to the log

    @property
    def is_short(self) -> bool:
        """Whether this disk, or another voter's, has no room for more files: then nothing is kept without need."""
        if self._here.sys_errno or self._bounds():
            return True
        store = self._group.store
        return store is not None and store.fullness().sys_errno != 0

    @property
    def problem(self) -> str:
        """A text for the operator; empty: there is nothing to report."""
        if self._here.sys_errno:
            why = os.strerror(self._here.sys_errno)
            return f"the disk has no room for another segment ({why}); {self._here.spares} spare segments are left"
        members = [member for member, _ in self._bounds()]
        return f"the disk of member {members[0]} has no room, and bounds the growth of the log" if members else ""

    def here(self, room: Room) -> None:
        """Called when the thread has looked at this copy's files."""
        before, self._here = self._here, room
        if room.sys_errno or before.sys_errno:
            self._tell()

    def look(self) -> None:
        """Called each second, because a disk that was full may have room again."""
        if self._here.sys_errno:
            self._group.give(AskRoom())

    def _tell(self) -> None:
        leader, room = self._group.leader, self._here
        if leader and leader != self._group.member:
            told = HasRoom(self._group.uuid, room.spares, room.first_lsn, room.applied_lsn, room.sys_errno)
            self._around.tell(leader, told)

    # ---- at the leader ----

    def told(self, peer: int, room: HasRoom) -> None:
        """A member has reported the room on its disk."""
        self._others[peer] = room
        self.changed()

    def lost(self, peer: int) -> None:
        """The connection to a member is gone: forgets what the member reported."""
        if self._others.pop(peer, None) is not None:
            self.changed()

    def _bounds(self) -> list[tuple[int, HasRoom]]:
        """The voters that can make no more files."""
        if not self._others or not self._group.leads:
            return []
        voters = {each.member for each in self._group.members() if each.voter}
        return [(peer, room) for peer, room in self._others.items() if room.sys_errno and peer in voters]

    def changed(self) -> None:
        """If this member leads, tells the log that the room or the voters have changed."""
        leading = self._group.leading
        if leading is None or leading.store is None:
            return
        given = [[peer, room.spares, room.first_lsn, room.applied_lsn, room.sys_errno] for peer, room in self._bounds()]
        if given or self._given:
            check(lib.ls_replica_others_have(leading.store, ffi.new("ls_replica_room[]", given), len(given)))
        self._given = len(given)
