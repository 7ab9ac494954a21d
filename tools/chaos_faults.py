"""The faults of a chaos run. A round's plan is drawn from the seed; who leads at that moment decides whom it meets."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos_cluster import Gone, Refused
from chaos_copies import remove_copy
from chaos_proxy import Proxies

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from chaos_cluster import Cluster
    from chaos_journal import Journal
    from chaos_proxy import Direction

DOWN_S = (0.0, 1.5)  # a process that ended is started again after so long
LAGGED = 8000  # confirmed while a member is down: more than the others keep for it
UPDATE_S = (0.0, 1.0)  # after a member that needs an update is started: the update is under way, or has just ended
STOPPED_S = (1.0, 3.0)
CUT_S = (0.3, 3.0)
FULL_S = (1.0, 4.0)
FAILED_S = (0.5, 2.0)
DELAY_S = (0.005, 0.15)
ELECTION_S = (0.02, 0.8)  # after the first fault: the election is under way, or has just ended

KINDS = (
    "kill one",
    "kill two",
    "kill all",
    "stop",
    "cut both",
    "cut one way",
    "delay",
    "half-close",
    "hand over",
    "restart",
    "lag",
    "wipe",
)
OF_PROXIES = ("delay", "half-close")  # a network of namespaces has none of these
POWER_CUTS = ("power cut one", "power cut two", "power cut all")
DISK_FAULTS = ("full disk", "failed sync")
COUNTED = {
    "kill one": "kills",
    "kill two": "kills",
    "kill all": "kills",
    "stop": "stops",
    "cut both": "cuts",
    "cut one way": "cuts",
    "delay": "delays",
    "half-close": "half-closes",
    "hand over": "hand-overs",
    "restart": "restarts",
    "lag": "lags",
    "wipe": "wipes",
    "power cut one": "power cuts",
    "power cut two": "power cuts",
    "power cut all": "power cuts",
    "full disk": "full disks",
    "failed sync": "failed syncs",
}
NAMES = tuple(dict.fromkeys(COUNTED.values()))


@dataclass(frozen=True)
class Fault:
    """One fault of a plan."""

    kind: str
    after_s: float
    """Since the fault before it; of the first, since its share of the round's numbers is confirmed."""
    leader: bool
    """Whether it meets the leader, if one is known; else any member."""


def plan(chance: random.Random, first: Sequence[str] = KINDS, kinds: Sequence[str] = KINDS) -> list[Fault]:
    """One to three faults; the later ones mostly meet the election that the one before has begun."""
    faults = [Fault(chance.choice(first), chance.uniform(0, 0.5), chance.random() < 0.7)]
    while len(faults) < 3 and chance.random() < 0.4:
        faults.append(Fault(chance.choice(kinds), chance.uniform(*ELECTION_S), chance.random() < 0.5))
    return faults


def plan_of_round(chance: random.Random, number: int, *, disks: bool, namespaces: bool = False) -> list[Fault]:
    """Of a round of this number. With disks two of three rounds begin with a power cut or another fault of a disk."""
    kinds = tuple(kind for kind in KINDS if kind not in OF_PROXIES) if namespaces else KINDS
    if not disks:
        return plan(chance, kinds, kinds)
    everything = kinds + POWER_CUTS + DISK_FAULTS
    return plan(chance, (everything, POWER_CUTS, DISK_FAULTS)[number % 3], everything)


class Faults:
    """Makes the faults of one round, and heals them when their time has come. The caller calls ``turn`` often."""

    def __init__(
        self,
        cluster: Cluster,
        chance: random.Random,
        counts: dict[str, int],
        journal: Journal,
        confirmed: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._journal = journal
        self._confirmed = confirmed
        self._is_away = False  # a member waits for what only a majority can do: no second one may
        self._chance = chance
        self._counts = counts
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def begin(self, faults: list[Fault]) -> None:
        """The plan begins now."""
        at_s = 0.0
        for fault in faults:
            at_s += fault.after_s
            self._later(at_s, lambda fault=fault: self._make(fault))

    def turn(self) -> bool:
        """Does what is due; whether something is left."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        return bool(self._due)

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), work))

    def _make(self, fault: Fault) -> None:
        victims = self._victims(fault)
        if victims and self._done(fault.kind, victims):
            self._journal.write("fault", kind=fault.kind, members=victims)
        else:
            self._later(0.05, lambda: self._make(fault))  # its victims are not there yet, or nobody leads

    def _victims(self, fault: Fault) -> list[int]:
        """Whom it meets; none: those are not there now."""
        cluster, chance = self._cluster, self._chance
        running = [member for member, process in cluster.processes.items() if not process.is_stopped]
        wanted = {"two": 2, "all": len(cluster.members)}.get(fault.kind.rpartition(" ")[2], 1)
        if len(running) < wanted or (fault.kind in ("lag", "wipe") and self._is_away):
            return []
        victims = chance.sample(running, wanted)
        leader = cluster.leader() if fault.leader or fault.kind == "hand over" else None
        if leader is None and fault.kind == "hand over":
            return []
        if fault.kind == "wipe":  # a follower
            leader = cluster.leader()
            others = [member for member in running if member != leader]
            return [chance.choice(others)] if leader is not None and others else []
        if leader is not None and leader not in victims:
            victims[0] = leader
        return victims

    def _done(self, kind: str, victims: list[int]) -> bool:
        """Whether it was made."""
        if kind == "hand over":
            return self._hand_over(victims[0])
        if kind.startswith("kill"):
            for member in victims:
                self._end(member, in_order=False)
        elif kind.startswith("power cut"):
            self._cut_power(victims)
        elif kind == "full disk":
            self._fill(victims[0])
        elif kind == "failed sync":
            return self._fail_sync(victims[0])
        elif kind == "lag":
            self._lag(victims[0])
        elif kind == "wipe":
            return self._wipe(victims[0])
        elif kind == "restart":
            self._end(victims[0], in_order=True)
        elif kind == "stop":
            self._stop(victims[0])
        else:
            return self._meet_connections(kind, victims[0])
        return True

    def _count(self, kind: str) -> None:
        self._counts[COUNTED[kind]] += 1

    def _hand_over(self, leader: int) -> bool:
        try:
            self._cluster.processes[leader].ask("transfer")
        except (Refused, Gone):
            return False
        self._count("hand over")
        return True

    def _end(self, member: int, *, in_order: bool) -> None:
        process = self._cluster.take(member)
        if in_order:
            process.close()
        else:
            process.kill()
        self._count("restart" if in_order else "kill one")
        self._later(self._chance.uniform(*DOWN_S), lambda: self._start(member))

    def _cut_power(self, members: list[int]) -> None:
        disks = self._cluster.disks
        assert disks is not None
        self._cluster.excused.update(members)
        disks.cut_off(members, at_flush=self._chance.random() < 0.7)
        for member in members:
            self._cluster.take(member).kill()
        for member in members:
            disks.lose_power(member, self._chance)
            self._count("power cut one")
            self._later(self._chance.uniform(*DOWN_S), lambda member=member: self._start(member))

    def _fill(self, member: int) -> None:
        """The member's copy may leave the group; then it is killed and started when there is room again."""
        cluster, disks = self._cluster, self._cluster.disks
        assert disks is not None
        cluster.excused.add(member)
        disks.fill(member)
        self._count("full disk")

        def heal() -> None:
            disks.make_room(member)
            if disks.has_failed(member):  # a failed sync has met it as well, and heals it
                return
            if member in cluster.processes and not cluster.has_failed(member):
                cluster.excused.discard(member)
            elif member in cluster.processes:
                self._leave(member)

        self._later(self._chance.uniform(*FULL_S), heal)

    def _leave(self, member: int) -> None:
        """Ends the process of a member whose copy is poisoned."""
        self._cluster.take(member).kill()
        self._later(self._chance.uniform(*DOWN_S), lambda: self._start(member))

    def _fail_sync(self, member: int) -> bool:
        """The member's copy is poisoned; it leaves the group, and is killed and started later."""
        cluster = self._cluster
        assert cluster.disks is not None
        cluster.excused.add(member)
        if not cluster.disks.fail_flush(member):
            cluster.excused.discard(member)
            return False
        self._count("failed sync")
        process = cluster.processes[member]

        def end() -> None:
            if cluster.processes.get(member) is process:
                self._leave(member)

        self._later(self._chance.uniform(*FAILED_S), end)
        return True

    def _start(self, member: int) -> None:
        disks = self._cluster.disks
        if disks is not None and disks.is_full(member):
            self._later(FULL_S[0] / 4, lambda: self._start(member))
            return
        if disks is not None and disks.has_failed(member):  # what was written before the failed flush is lost
            disks.lose_power(member, self._chance, forgetful=True)
        self._cluster.excused.discard(member)
        self._cluster.start(member)
        self._cluster.processes[member].ask("resume")

    # ---- updates ----

    def _lag(self, member: int) -> None:
        """The member is down until the others keep no longer what it needs next."""
        self._cluster.take(member).kill()
        self._count("lag")
        self._is_away = True
        enough = self._confirmed() + LAGGED

        def start() -> None:
            self._is_away = False
            self._start_to_update(member)

        self._when(lambda: self._confirmed() >= enough, start)

    def _wipe(self, member: int) -> bool:
        """The member's copy is removed, and its leader changes: a leader refuses who lost what it had acknowledged."""
        cluster = self._cluster
        leader = cluster.leader()
        if leader is None or leader == member or not self._has_copy(member):
            return False
        before = cluster.processes[leader].ask("standing")
        cluster.take(member).kill()
        remove_copy(cluster.directory(member))
        self._count("wipe")
        self._is_away = True

        def is_led_anew() -> bool:
            leader = cluster.leader()
            with contextlib.suppress(Gone, Refused):
                if leader is not None and cluster.processes[leader].ask("standing")["term"] > before["term"]:
                    return True
                if leader is not None:
                    cluster.processes[leader].ask("transfer")
            return False

        def has_all() -> bool:  # until then, no other member may lose its copy
            process = cluster.processes.get(member)
            with contextlib.suppress(Gone, Refused):
                return process is not None and process.ask("standing")["durable_index"] >= before["index"]
            return False

        def is_back() -> None:
            self._is_away = False

        def start() -> None:
            self._start_to_update(member)
            self._when(has_all, is_back)

        self._when(is_led_anew, start)
        return True

    def _has_copy(self, member: int) -> bool:
        """Whether something of the queue is there: a member that has just joined waits for its first update."""
        with contextlib.suppress(Refused, Gone):
            return bool(self._cluster.processes[member].ask("standing")["durable_index"])
        return False

    def _start_to_update(self, member: int) -> None:
        """Often somebody is killed in the update."""
        self._start(member)
        kind = self._chance.choice(("kill one", "kill one", "kill two", "stop", "cut one way", ""))
        if kind:
            fault = Fault(kind, 0.0, self._chance.random() < 0.5)
            self._later(self._chance.uniform(*UPDATE_S), lambda: self._make(fault))

    def _when(self, holds: Callable[[], bool], work: Callable[[], None]) -> None:
        """Does it once this holds."""
        if holds():
            work()
        else:
            self._later(0.1, lambda: self._when(holds, work))

    def _stop(self, member: int) -> None:
        process = self._cluster.processes[member]
        process.stop()
        self._count("stop")

        def go_on() -> None:
            if self._cluster.processes.get(member) is process:
                process.go_on()

        self._later(self._chance.uniform(*STOPPED_S), go_on)

    def _meet_connections(self, kind: str, member: int) -> bool:
        """Of the member with one other or with all others."""
        chance, network = self._chance, self._cluster.network
        others = [other for other in self._cluster.members if other != member]
        if chance.random() < 0.4:
            others = [chance.choice(others)]
        outward: list[Direction] = [(member, other) for other in others]
        inward: list[Direction] = [(other, member) for other in others]
        if kind == "half-close":
            assert isinstance(network, Proxies)
            if not sum(network.half_close(direction) for direction in chance.choice((outward, inward))):
                return False
            self._count(kind)
            return True
        both = kind != "cut one way"
        met = outward + inward if both else chance.choice((outward, inward))
        if kind == "delay":
            assert isinstance(network, Proxies)
            network.delay(met, chance.uniform(*DELAY_S))
        else:
            network.hold(met)
        self._count(kind)
        reset = kind != "delay" and chance.random() < 0.5
        self._later(chance.uniform(*CUT_S), lambda: network.heal(met, reset=reset))
        return True
