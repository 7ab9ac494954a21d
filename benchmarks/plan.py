"""The amounts of a run: the full one takes up to a quarter of an hour; the quick one runs a little of everything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from builds import OWN, Build
from slices import CONSUME, MODES, PUBLISH, WORKS, Mode, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from peers.base import Peer
    from results import Results

Made = TypeVar("Made")

SIZES = (100, 1024, 16 << 10, 1 << 20)


@dataclass
class Plan:
    """The whole."""

    sizes: Sequence[int] = SIZES
    modes: Sequence[Mode] = MODES
    works: Sequence[str] = WORKS
    rounds: int = 3
    seconds: float = 0.1  # a slice
    max_bytes: int = 48 << 20  # of content, a slice
    turns: int = 1  # a round
    turns_of_targets: int = 3  # where a target depends on it
    pairs: int = 20_000  # of one publish and one dequeue, a slice
    read_messages: int = 50_000
    recovery_messages: int = 4_000_000  # of 100 bytes
    recovery_bytes: int = 1 << 30  # of log with messages of 1 KiB
    start_messages: int = 1_000_000
    live: Sequence[int] = (10_000, 10_000_000)
    live_slices: int = 40
    memory_messages: int = 10_000_000
    amplified_bytes: int = 256 << 20
    is_quick: bool = False

    def span(self) -> Span:
        return Span(self.seconds, self.max_bytes)

    def turns_for(self, size: int, mode: Mode, work: str) -> int:
        """More where it matters."""
        single = mode.batch == 1 and mode.in_flight == 0 and size <= 1024 and work == PUBLISH
        batches = mode.batch == 1000 and size <= 16 << 10 and work == PUBLISH
        consumed = mode.batch >= 100 and work == CONSUME and size <= 16 << 10
        large = mode.threads == 64 and work == PUBLISH and size == 1 << 20
        return self.turns_of_targets if single or batches or consumed or large else self.turns


def quick() -> Plan:
    """A little of everything: shows that everything works; its figures must not be quoted."""
    return Plan(
        rounds=1,
        seconds=0.03,
        max_bytes=4 << 20,
        turns_of_targets=1,
        pairs=2000,
        read_messages=2000,
        recovery_messages=50_000,
        recovery_bytes=32 << 20,
        start_messages=20_000,
        live=(10_000, 50_000),
        live_slices=2,
        memory_messages=100_000,
        amplified_bytes=32 << 20,
        is_quick=True,
    )


@dataclass(frozen=True)
class Store:
    """A kind of store and its build: there are several of the store under test if builds are compared."""

    kind: type[Peer]
    build: Build

    @property
    def name(self) -> str:
        return self.build.name if self.kind.name == OWN else self.kind.name


@dataclass
class Context:
    """The arguments of every suite, for each round."""

    plan: Plan
    kinds: list[type[Peer]]
    results: Results
    directory: Path
    say: Callable[[str], None]
    round_number: int = 0
    known: dict[str, Any] = field(default_factory=dict)  # conditions that a suite adds
    builds: list[Build] = field(default_factory=lambda: [Build()])
    _kept: dict[str, Any] = field(default_factory=dict)

    @property
    def stores(self) -> list[Store]:
        """Everything that is measured, builds of the same kind in neighbouring slices."""
        others = [self.build_of_others]
        return [Store(kind, each) for kind in self.kinds for each in (self.builds if kind.name == OWN else others)]

    @property
    def build_of_others(self) -> Build:
        """In processes of their own as well, if builds are: the heap of a process that measures more costs less."""
        return self.builds[0]

    @property
    def is_last_round(self) -> bool:
        return self.round_number == self.plan.rounds - 1

    def kept(self, name: str, make: Callable[[Path], Made]) -> Made:
        """Data that the first round makes and all rounds use, in its own directory."""
        if name not in self._kept:
            self._kept[name] = make(self.directory / name.replace(" ", "-"))
        made: Made = self._kept[name]
        return made

    def turned(self, steps: list[Made], turn: int) -> list[Made]:
        """The items, in reverse order in every second turn."""
        return steps if (turn + self.round_number) % 2 == 0 else steps[::-1]
