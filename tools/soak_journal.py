"""The parent's journal of what a soak's store must hold, and its comparison with the store's contents.

Every message is on exactly one queue. At most one command is in flight; a kill leaves its outcome unknown, and then the
journal has two candidates until the store is read again.
"""

from __future__ import annotations

import copy
import json
import math
import os
import time
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from soak_worker import content_of, digest

if TYPE_CHECKING:
    from pathlib import Path


class Violation(Exception):
    """The store does not hold what it must."""


def xid_text(name: str) -> str:
    """The store's text for the xid of the transaction with this name."""
    return f"1:{name.encode().hex()}:{b'soak'.hex()}"


@lru_cache(maxsize=4096)
def digest_of(token: str, size: int) -> str:
    return digest(content_of(token, size))


@dataclass
class Tx:
    distributed: bool
    prepared: bool = False
    prepared_s: float = 0.0  # wall clock, before the command was sent
    work: list[dict[str, Any]] = field(default_factory=list)  # the commands


@dataclass
class State:
    """Queues with their messages in order, sizes, and the transactions without an outcome."""

    queues: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    txs: dict[str, Tx] = field(default_factory=dict)

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> State:
        return cls(known["queues"], known["sizes"], {name: Tx(**tx) for name, tx in known["txs"].items()})

    def apply(self, command: dict[str, Any]) -> None:
        """Apply a command that was done."""
        kind, name = command["do"], command["tx"]
        if kind == "begin":
            self.txs[name] = Tx(command["distributed"])
        elif kind == "prepare":
            self.txs[name].prepared = True
            self.txs[name].prepared_s = command["at_s"]
        elif kind == "outcome":
            for work in self.txs.pop(name).work:
                if command["how"] == "commit":
                    self._do(work)
                elif work["do"] == "publish":
                    del self.sizes[work["token"]]
        elif kind in ("publish", "move", "consume"):
            if kind == "publish":
                self.sizes[command["token"]] = command["size"]
            if name:
                self.txs[name].work.append(command)
            else:
                self._do(command)

    def _do(self, work: dict[str, Any]) -> None:
        if work["do"] in ("move", "consume"):
            self.queues[work["queue"]].remove(work["token"])
        if work["do"] == "consume":
            del self.sizes[work["token"]]
        else:
            self.queues[work.get("target", work["queue"])].append(work["token"])

    def died(self) -> State:
        """A copy without what a restart ends."""
        after = copy.deepcopy(self)
        for name in [name for name, tx in after.txs.items() if not tx.prepared]:
            after.apply({"do": "outcome", "tx": name, "how": "rollback"})
        return after

    def timed_out(self, found: dict[str, Any], after_s: float) -> State:
        """A copy without the transactions that are no longer in doubt and were prepared for longer than ``after_s``."""
        after = copy.deepcopy(self)
        for name, tx in self.txs.items():
            if tx.prepared and xid_text(name) not in found["in_doubt"] and time.time() - tx.prepared_s >= after_s:
                after.apply({"do": "outcome", "tx": name, "how": "rollback"})
        return after

    def locked(self) -> set[str]:
        return {work["token"] for tx in self.txs.values() for work in tx.work}

    def differences(self, found: dict[str, Any]) -> list[str]:
        """The differences between the contents found and this state; message by message."""
        wrong = []
        where = {entry[0].split()[0]: queue for queue, entries in found["queues"].items() for entry in entries}
        locked = self.locked()
        for queue in sorted(set(self.queues) | set(found["queues"])):
            expected, there = self.queues.get(queue, []), found["queues"].get(queue)
            if there is None:
                wrong.append(f"queue {queue} is gone with {len(expected)} messages")
                continue
            tokens = [entry[0].split()[0] for entry in there]
            for token in expected:
                if token not in tokens:
                    at = f"it is on {where[token]}" if token in where else "it is nowhere"
                    wrong.append(f"message {token} ({self.sizes[token]} bytes) is lost from queue {queue}: {at}")
            for token in tokens:
                if token not in expected:
                    wrong.append(f"message {token} is on queue {queue}, where it must not be")
                elif tokens.count(token) > 1:
                    wrong.append(f"message {token} is {tokens.count(token)} times on queue {queue}")
            if not wrong and tokens != expected:
                wrong.append(f"queue {queue} is in the order {tokens}, not {expected}")
            for header, size, checksum, is_locked in there:
                wrong += self._differences_of(queue, header, size, checksum, is_locked, locked)
        prepared = sorted(xid_text(name) for name, tx in self.txs.items() if tx.prepared)
        if found["in_doubt"] != prepared:
            wrong.append(f"in doubt are {found['in_doubt']}, not {prepared}")
        for what, count in (("messages", len(self.sizes)), ("transactions", len(self.txs))):
            if found[what] != count:
                wrong.append(f"the store counts {found[what]} {what}, not {count}")
        return wrong

    def _differences_of(
        self, queue: str, header: str, size: int, checksum: str, is_locked: bool, locked: set[str]
    ) -> list[str]:
        token = header.split(maxsplit=1)[0]
        known = self.sizes.get(token)
        if known is None:
            return []  # reported already
        wrong = []
        if header != f"{token} {known}":
            wrong.append(f"message {token} on queue {queue} has the header {header!r}")
        if (size, checksum) != (known, digest_of(token, known)):
            wrong.append(f"message {token} on queue {queue} has other bytes: {size} of them, {known} were published")
        if is_locked != (token in locked):
            wrong.append(f"message {token} on queue {queue} is {'' if is_locked else 'not '}locked")
        return wrong


class Journal:
    """The known state, the command in flight, and after a kill the possible states."""

    def __init__(self, path: Path, store: Path) -> None:
        self.path, self.store = path, store
        self.state = State()
        self.candidates: list[State] = []
        self.in_flight: dict[str, Any] | None = None
        self.number = 0
        self.limits: dict[str, int] = {}
        self.timeouts_s: list[float] = []  # of prepared transactions: of every worker since the last check

    @classmethod
    def load(cls, path: Path, store: Path) -> Journal:
        """The stored journal, or a new one. Raises ``Violation`` for a journal without its store, or the reverse."""
        journal = cls(path, store)
        if path.exists():
            known = json.loads(path.read_text())
            journal.number = known["number"]
            journal.candidates = [State.from_json(one) for one in known["candidates"]]
            journal.state = journal.candidates[0]
        elif store.exists():
            raise Violation(f"{store} is there, but its journal {path} is not: choose another --dir")
        return journal

    def save(self) -> None:
        fresh = self.path.with_suffix(".new")
        candidates = [asdict(one) for one in self.candidates or [self.state]]
        with fresh.open("w") as file:
            json.dump({"number": self.number, "candidates": candidates}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)

    # ---- commands ----

    def begin_command(self, command: dict[str, Any]) -> None:
        self.in_flight = command

    def answered(self, command: dict[str, Any], answer: Any) -> None:
        """Raises ``Violation`` for an outcome that was not requested and that no timeout explains."""
        self.in_flight = None
        if command["do"] == "outcome":
            command = command | {"how": self._outcome(command, answer)}
        self.state.apply(command)

    def _outcome(self, command: dict[str, Any], state: str) -> str:
        tx, how = self.state.txs[command["tx"]], {"committed": "commit", "rolled_back": "rollback"}.get(state)
        waited = time.time() - tx.prepared_s
        timed_out = tx.prepared and waited >= min(self.timeouts_s, default=math.inf)
        if how != command["how"] and not (how == "rollback" and timed_out):
            raise Violation(f"in {self.store}: {command} came to the state {state} after {waited:.3f} s")
        return str(how)

    def interrupted(self, state: str) -> None:
        """The command in flight was interrupted by an exception; its transaction, if any, has this state."""
        command = self.in_flight
        assert command is not None
        self.in_flight = None
        name = command["tx"]
        if not name:
            done = copy.deepcopy(self.state)
            done.apply(command)
            self.candidates = [self.state, done]
        elif state == "prepared" and command["do"] == "prepare":
            self.state.apply(command)
        elif state in ("committed", "rolled_back") and command["do"] != "begin":
            how = "commit" if state == "committed" else "rollback"
            self.state.apply({"do": "outcome", "tx": name, "how": how})

    def worker_died(self) -> bool:
        """The worker has ended: the store holds what a restart keeps. True: two states are possible."""
        if self.candidates:  # not read since the last kill or interrupted command
            self.candidates = [one.died() for one in self.candidates]
            self.state = self.candidates[0]
            return False
        self.candidates = [self.state.died()]
        if self.in_flight is not None:
            done = copy.deepcopy(self.state)
            done.apply(self.in_flight)
            if done.died() != self.candidates[0]:
                self.candidates.append(done.died())
            self.in_flight = None
        self.state = self.candidates[0]
        return len(self.candidates) > 1

    def check(self, found: dict[str, Any]) -> tuple[int, int]:
        """The number of messages and bytes that were accounted for. Raises ``Violation``."""
        states = self.candidates or [self.state]
        if self.timeouts_s:  # a worker that was killed may have ended transactions before
            states = [state.timed_out(found, min(self.timeouts_s)) for state in states]
        judged = [(state.differences(found), state) for state in states]
        wrong, state = min(judged, key=lambda one: len(one[0]))
        if wrong:
            unknown = f" (nearest of {len(judged)} states that may be)" if len(judged) > 1 else ""
            raise Violation(
                f"in {self.store}, base LSN {found['base_lsn']}, next LSN {found['next_lsn']}{unknown}: "
                + "; ".join(wrong[:20])
                + (f"; and {len(wrong) - 20} more" if len(wrong) > 20 else "")
            )
        self.state, self.candidates = state, []
        self.timeouts_s = self.timeouts_s[-1:]
        visible = [token for queue in state.queues.values() for token in queue]
        return len(visible), sum(state.sizes[token] for token in visible)

    # ---- possible next commands ----

    @property
    def queues(self) -> dict[str, list[str]]:
        return self.state.queues

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def active(self) -> list[str]:
        return [name for name, tx in self.state.txs.items() if not tx.prepared]

    def prepared(self) -> list[str]:
        return [name for name, tx in self.state.txs.items() if tx.prepared]

    def is_distributed(self, name: str) -> bool:
        return self.state.txs[name].distributed

    def size_of(self, name: str) -> int:
        return len(self.state.txs[name].work)

    def free(self, queue: str) -> list[str]:
        locked = self.state.locked()
        return [token for token in self.state.queues[queue] if token not in locked]

    def live(self) -> int:
        return len(self.state.sizes)

    def live_bytes(self) -> int:
        return sum(self.state.sizes.values())
