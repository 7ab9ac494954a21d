"""The network of a chaos run whose members live in namespaces of their own: what is cut is lost on the way.

Each member has a namespace, with one end of a pair of virtual interfaces; the other ends are on one bridge, in a
namespace of its own. A direction between two members is cut by an entry in the sender's table of neighbours that names
a card that nobody has: its frames are lost without a word, and what was lost is sent again by TCP when the entry is
right again. Nothing of this touches the network of the machine. Needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chaos_proxy import Direction

CLONE_NEWNET: Final = 0x40000000
NAMESPACES: Final = "/run/netns"
NOBODY: Final = "02:00:00:00:00:ff"
PORT: Final = 7000  # of each member, at an address of its own


def missing() -> str:
    """Why there can be no such network here; empty: there can."""
    if os.geteuid() != 0:
        return "root"
    for program in ("ip", "nsenter"):
        if shutil.which(program) is None:
            return program
    name = f"logstore-{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
    except OSError:
        return "network namespaces"
    try:
        _ip("-n", name, "link", "add", "br0", "type", "bridge")
        _ip("-n", name, "link", "add", "one", "type", "veth", "peer", "name", "two")
    except OSError:
        return "virtual interfaces"
    finally:
        _ip("netns", "del", name)
    return ""


class Namespaces:
    """A network of all members."""

    def __init__(self, members: Iterable[int]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._members = list(members)
        self._hub = self._name("hub")
        with contextlib.ExitStack() as ends:
            self._add(self._hub, ends)
            _ip("-n", self._hub, "link", "add", "br0", "type", "bridge")
            _ip("-n", self._hub, "link", "set", "br0", "up")
            for member in self._members:
                self._connect(member, ends)
            for one in self._members:
                for other in self._members:
                    if one != other:
                        self._tell((one, other), _card(other))
            self._ends = ends.pop_all()

    def _name(self, what: object) -> str:
        return f"logstore-{os.getpid()}-{what}"

    def _add(self, name: str, ends: contextlib.ExitStack) -> None:
        _ip("netns", "add", name)
        ends.callback(_ip, "netns", "del", name)

    def _connect(self, member: int, ends: contextlib.ExitStack) -> None:
        name, end = self._name(member), f"v{member}"
        self._add(name, ends)
        _ip("-n", self._hub, "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", self._hub, "link", "set", end, "master", "br0", "up")
        _ip("-n", name, "link", "set", "eth0", "address", _card(member))
        _ip("-n", name, "address", "add", f"{_host(member)}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            _ip("-n", name, "link", "set", interface, "up")

    def _tell(self, direction: Direction, card: str) -> None:
        source, target = direction
        entry = (_host(target), "lladdr", card, "dev", "eth0", "nud", "permanent")
        _ip("-n", self._name(source), "neighbour", "replace", *entry)

    def addresses(self, member: int) -> tuple[str, str]:
        """Where the member listens, and where the others reach it."""
        return (f"{_host(member)}:{PORT}",) * 2

    def command(self, member: int) -> list[str]:
        """What runs a command there, before its words."""
        return ["nsenter", f"--net={NAMESPACES}/{self._name(member)}"]

    @contextlib.contextmanager
    def inside(self, member: int) -> Iterator[None]:
        """Sockets that this thread makes in the block are the member's."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"{NAMESPACES}/{self._name(member)}", os.O_RDONLY)
        try:
            self._enter(there)
            try:
                yield
            finally:
                self._enter(before)
        finally:
            os.close(there)
            os.close(before)

    def _enter(self, namespace: int) -> None:
        if self._libc.setns(namespace, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "a network namespace cannot be entered")

    def hold(self, directions: Iterable[Direction]) -> None:
        """What is sent in these directions is lost."""
        for direction in directions:
            self._tell(direction, NOBODY)

    def heal(self, directions: Iterable[Direction], *, reset: bool) -> None:  # noqa: ARG002 - no connection is reset here
        """What is sent arrives again."""
        for direction in directions:
            self._tell(direction, _card(direction[1]))

    def close(self) -> None:
        """Removes the namespaces, with their interfaces. Their processes have ended."""
        self._ends.close()


def _host(member: int) -> str:
    return f"10.77.0.{member}"


def _card(member: int) -> str:
    return f"02:00:00:00:00:{member:02x}"


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"'ip {' '.join(words)}' failed: {done.stderr.strip()}")
