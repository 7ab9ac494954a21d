"""Tells listeners of messages that died, and of transactions that came into doubt or left it.

Each inbox of the core (:mod:`queue_events`) keeps these notices in order once a listener wants them, and hands them out
after their records are durable. Its memory for them is fixed: what a listener that does not look has no place for is
dropped and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore._core import ffi, lib
from logstore.core.locks import Lock
from logstore.core.native import check
from logstore.core.xid import Xid, xid_from_c
from logstore.store.listeners import Listener, Listeners, call_all

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Deaths", "InDoubtChange", "InDoubtChanges", "StoreEvents"]

_AT_ONCE: Final = {lib.LS_NOTICE_DEATHS: 4096, lib.LS_NOTICE_IN_DOUBT: 64}
_NAMES: Final = {lib.LS_NOTICE_DEATHS: "death", lib.LS_NOTICE_IN_DOUBT: "in-doubt"}  # for the log
_STATES: Final = {
    lib.LS_TX_PREPARED: "prepared",
    lib.LS_TX_COMMITTED: "committed",
    lib.LS_TX_ROLLED_BACK: "rolled_back",
}


@dataclass(frozen=True, slots=True)
class Deaths:
    """Messages that have died since the last call, for good: no crash brings one back."""

    ids: tuple[int, ...]
    """Their persistence IDs, in the order in which they died."""
    missed: int
    """How many more died that are not named, because more than 65,536 waited to be told."""


@dataclass(frozen=True, slots=True)
class InDoubtChange:
    """A distributed transaction that came into doubt, or that was in doubt and has its outcome. Durable."""

    id: int
    """Its persistence ID, as ``Transaction.id``."""
    xid: Xid
    """The branch's name."""
    state: str
    """``prepared``: it waits for an outcome now; ``committed`` or ``rolled_back``: it has one."""


@dataclass(frozen=True, slots=True)
class InDoubtChanges:
    """Changes of transactions in doubt since the last call."""

    changes: tuple[InDoubtChange, ...]
    """In the order in which they happened."""
    missed: int
    """How many more there were, because more than 4,096 waited to be told: ``in_doubt()`` has the present state."""


class StoreEvents:
    """The listeners of the whole store that one inbox of the core serves.

    ``unused`` is called, on whatever thread, after the last one was closed.
    """

    def __init__(self, made: Any, unused: Callable[[], object]) -> None:
        self._made, self._unused = made, unused
        self._lock = Lock("the listeners of a store's events")
        self._of = {kind: Listeners(self._settle) for kind in _NAMES}
        self._wanted = 0  # the kinds that the core keeps
        self._missed = ffi.new("uint64_t *")
        self._found: dict[int, Any] = {}
        self._ended = False

    @property
    def has_listeners(self) -> bool:
        """Whether the core keeps anything for them."""
        return self._wanted != 0

    def listen(self, kind: int, callback: Callable[[Any], object], *, weak: bool) -> Listener:
        """Calls ``callback`` after events of this kind. Raises ``StoreClosed``."""
        with self._lock:
            if self._ended:
                raise errors.StoreClosed("the store was closed; open it again")
            if kind not in self._found:
                name = "uint64_t[]" if kind == lib.LS_NOTICE_DEATHS else "ls_tx_info[]"
                self._found[kind] = ffi.new(name, _AT_ONCE[kind])
            self._notice(self._used() | kind)
            return self._of[kind].add(callback, weak=weak)

    def _used(self) -> int:
        """The kinds that have listeners."""
        return sum(kind for kind, listeners in self._of.items() if listeners)

    def _notice(self, wanted: int) -> None:
        if wanted != self._wanted:
            check(lib.ls_inbox_notice(self._made[0], wanted))
            self._wanted = wanted

    def tell(self) -> None:
        """Calls the listeners of all that is durable and not told yet."""
        for kind, read in ((lib.LS_NOTICE_DEATHS, self._deaths), (lib.LS_NOTICE_IN_DOUBT, self._in_doubt)):
            more = self._wanted & kind != 0
            while more and not self._ended:
                count, found = read(self._found[kind])
                if count or found.missed:
                    call_all(self._of[kind], found, kind=_NAMES[kind])
                more = count == _AT_ONCE[kind]
        if self._used() != self._wanted:
            self._settle()

    def _deaths(self, into: Any) -> tuple[int, Deaths]:
        count = lib.ls_inbox_deaths(self._made[0], into, len(into), self._missed)
        return count, Deaths(tuple(ffi.unpack(into, count)), int(self._missed[0]))

    def _in_doubt(self, into: Any) -> tuple[int, InDoubtChanges]:
        count = lib.ls_inbox_in_doubt(self._made[0], into, len(into), self._missed)
        changes = tuple(InDoubtChange(one.id, xid_from_c(one.xid), _STATES[one.state]) for one in into[0:count])
        return count, InDoubtChanges(changes, int(self._missed[0]))

    def _settle(self) -> None:
        """The core keeps no longer what nobody listens to. Called on any thread."""
        try:
            self._notice_used()
        except errors.ReentrantCall:
            return  # called by a finalizer or signal handler: the next event settles it
        if not self._wanted:
            self._unused()

    def _notice_used(self) -> None:
        with self._lock:
            if self._ended:
                return
            wanted = self._used()
            if wanted != self._wanted:
                lib.ls_inbox_notice(self._made[0], wanted)  # fails only after the close, and in a fork
                self._wanted = wanted

    def end(self) -> None:
        """Ends all listeners. Nothing calls :meth:`tell` at the same time; the inbox is still there."""
        with self._lock:
            self._ended = True
            self._wanted = 0
        for listeners in self._of.values():
            listeners.end()
