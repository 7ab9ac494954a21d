"""Copies that are refused, each for its own host: the other hosts of the two members go on.

A HELLO says what a member has of each host, and the other side judges each copy (R10). While a copy is refused, its
frames are dropped, and none is sent to it. Both sides log the reason and show it. The member that is refused offers
what it has by now each second; when that would be taken, the connection is renewed. So a refusal ends only with a
HELLO, and no frame from before it is taken.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar, Final

from logstore.cluster.frames import Identity, Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logstore.cluster.frames import Hello
    from logstore.cluster.group import Group
    from logstore.cluster.member_loop import MemberLoop

logger = logging.getLogger(__name__)

OFFER_EVERY_MS: Final = 1000
_NONE: Final[dict[bytes, str]] = {}


class HostRefused(Message, frozen=True, tag=19):
    """The sender refuses the receiver's copy of a host for this reason."""

    skippable: ClassVar[bool] = True

    host: bytes
    reason: str


class HostOffered(Message, frozen=True, tag=20):
    """The present state of the sender's copy of a host, which the receiver refuses."""

    skippable: ClassVar[bool] = True

    host: bytes
    told: Identity


class Refusals:
    """The refusals between this member and one other, in both directions. It belongs to the loop."""

    def __init__(self, member: MemberLoop) -> None:
        self._member = member
        self._here: dict[int, dict[bytes, str]] = {}  # peers' copies that this member refuses
        self._there: dict[int, dict[bytes, str]] = {}  # this member's copies that peers refuse
        self._starts: dict[int, int] = {}  # the process of each peer
        self._logged: dict[tuple[int, bytes, bool], str] = {}
        self._offered_ms = 0

    def here(self, peer: int) -> Mapping[bytes, str]:
        """The hosts of which this member refuses the peer's copy, with the reasons."""
        return self._here.get(peer, _NONE)

    def why_not(self, peer: int, host: bytes) -> str:
        """Why no frame of this host passes between the two members; empty: neither of them refuses."""
        refused = self._here.get(peer, _NONE).get(host)
        if refused is not None:
            return f"the copy of member {self._name(peer)} is refused: {refused}"
        refused = self._there.get(peer, _NONE).get(host)
        return "" if refused is None else f"member {self._name(peer)} refuses the copy of this member: {refused}"

    def _name(self, peer: int) -> str:
        return self._member.peers.get(peer, ("", ""))[0] or str(peer)

    def problem(self, host: bytes) -> str:
        """A text for the operator about a host; empty: nothing is refused."""
        peers = [peer for peer in sorted({*self._here, *self._there}) if not self._member.why_not(peer)]
        reasons = [self.why_not(peer, host) for peer in peers]
        return "; ".join(reason for reason in reasons if reason)

    def greeted(self, peer: int, hello: Hello) -> None:
        """Judges each copy of a peer; earlier judgements are dropped."""
        if hello.purpose != "frames":
            return
        self._starts[peer] = hello.start
        found = {}
        for uuid, told in hello.hosts.items():
            group = self._member.groups.get(uuid)
            reason = None if group is None else group.judge(peer, hello.start, told)
            if group is not None and reason is not None:
                found[uuid] = reason
                self._log(peer, group, reason, here=True)
        self._set(self._here, peer, found)

    def connected(self, peer: int) -> None:
        """Sends the refusals to the peer, before any frame."""
        self._set(self._there, peer, {})
        for uuid, reason in self.here(peer).items():
            self._member.tell(peer, HostRefused(uuid, reason))

    def refused(self, peer: int, message: HostRefused) -> None:
        """A peer refuses a copy of this member."""
        group = self._member.groups.get(message.host)
        if group is not None:
            self._set(self._there, peer, {**self._there.get(peer, _NONE), message.host: message.reason})
            self._log(peer, group, message.reason, here=False)
            self._member.changed(group)

    def offered(self, peer: int, message: HostOffered) -> None:
        """A peer reports a later state of its copy: judges the copy again, as after a HELLO."""
        group = self._member.groups.get(message.host)
        if group is None or message.host not in self.here(peer):
            return
        reason = group.judge(peer, self._starts[peer], message.told)
        if reason is None:
            logger.info("host %s: the copy of member %d has caught up; its connection is renewed", group.name, peer)
            self._member.transport.renew(peer)
        elif reason != self._here[peer][message.host]:
            self._here[peer][message.host] = reason
            self._log(peer, group, reason, here=True)
            self._member.tell(peer, HostRefused(message.host, reason))

    def look(self, now_ms: int) -> None:
        """Called each second: offers the refused copies again."""
        if not self._there or now_ms - self._offered_ms < OFFER_EVERY_MS:
            return
        self._offered_ms = now_ms
        for peer, refused in self._there.items():
            for uuid in refused:
                group = self._member.groups.get(uuid)
                if group is not None and group.engine is not None:
                    self._member.tell(peer, HostOffered(uuid, group.identity(first=True)))

    @staticmethod
    def _set(of: dict[int, dict[bytes, str]], peer: int, refused: dict[bytes, str]) -> None:
        if refused:
            of[peer] = refused
        else:
            of.pop(peer, None)

    def _log(self, peer: int, group: Group, reason: str, *, here: bool) -> None:
        """Notes and logs a reason, unless it is the same as before."""
        key = (peer, group.uuid, here)
        level = logging.DEBUG if self._logged.get(key) == reason else logging.WARNING
        self._logged[key] = reason
        text = "host %s: the copy of member %d is refused: %s" if here else "host %s: member %d refuses this copy: %s"
        logger.log(level, text, group.name, peer, reason)
