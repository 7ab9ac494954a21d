"""Makes every public call of the library's objects from a finalizer, while those objects are being freed.

A program: ``python -m kit.last_calls DIRECTORY END WAY``. END is ``closed`` (the store was closed in order) or
``dropped`` (never closed). WAY is how the objects are freed: ``cycle`` (by the garbage collector, with the caller
in their cycle), ``counted`` (by reference counts, the collector is off), or ``exit`` (at the interpreter's end).

The calls are those of the public surface, made with working arguments on objects as :mod:`kit.public_surface` makes
them. Prints what was called and what was found as JSON. At the exit nothing can be judged but that the process ends
with status 0.
"""

from __future__ import annotations

import asyncio
import collections.abc
import contextlib
import faulthandler
import gc
import inspect
import itertools
import json
import logging
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import logstore
from kit import public_surface
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENDS = ("closed", "dropped")
WAYS = ("cycle", "counted", "exit")
MODULES = ("logstore", "logstore.holds", "logstore.inspect", "logstore.rows", "logstore.tpc")
HANG_S = 120
ITEMS = 3
CALLS_BEFORE_EXIT = 12  # that share a store: each store has threads and descriptors of its own
#: Calls that take a token in place of a delivery.
WITH_TOKENS = ("accept", "accept_many", "release", "reject")
#: These wait for other programs or files, and have no handle of the core.
ELSEWHERE = frozenset({"Markers", "Pace", "Compaction", "Fullness", "Tail"})


class World(public_surface.World):
    """One open store, with all that the calls need."""

    def open(self) -> None:
        self.store = logstore.open(self.fresh(), segment_size=524288, durability="relaxed")
        self.q = self.store.declare_queue("q")
        self.store.declare_exchange("x")

    def forget(self) -> None:
        """Keeps no object of the store."""
        del self.store, self.q


class LastCall:
    """Calls when it is freed. The objects that are freed with it refer to it, and it refers to them."""

    def __init__(self, name: str, use: Callable[[], object], cycle: list[object], outcomes: dict[str, object]) -> None:
        self.name, self.use, self.cycle, self.outcomes = name, use, cycle, outcomes

    def __del__(self) -> None:
        try:
            self.outcomes[self.name] = used(self.use())
        except Exception as problem:  # noqa: BLE001 - it is judged later
            self.outcomes[self.name] = problem.with_traceback(None)


def used(result: Any) -> object:
    """Uses the result as a caller does."""
    if inspect.iscoroutine(result):
        with contextlib.suppress(TimeoutError):
            asyncio.run(asyncio.wait_for(result, 0.01))
    elif isinstance(result, collections.abc.Iterator):
        list(itertools.islice(result, ITEMS))
    return None


def members(module: str) -> Iterator[tuple[str, str]]:
    """The public methods and properties of its classes: class and name."""
    found = dict.fromkeys(name.partition(".")[0] for name, _ in public_surface.surface(module) if "." in name)
    for kind in found:
        of = getattr(__import__(module, fromlist=["_"]), kind)
        for name in dir(of):
            member = inspect.getattr_static(of, name)
            if name.startswith("_") or inspect.isclass(member) or f"{kind}.{name}" in public_surface.INTERNAL:
                continue
            if callable(getattr(of, name)) or isinstance(member, property) or inspect.isdatadescriptor(member):
                yield kind, name


def call_of(world: World, kind: str, name: str) -> tuple[Callable[[], object], list[object]]:
    """The call, and the objects that it needs."""
    owner = public_surface.owners(world)[kind]()
    name, _, with_token = name.partition(" with a ")
    if with_token:
        token = world.delivery().detach()
        return lambda: getattr(owner, name)([token] if name == "accept_many" else token), [owner]
    of = type(owner)
    if not callable(getattr(of, name)):
        return lambda: getattr(owner, name), [owner]
    known, given = public_surface.arguments(world), {}
    for each in inspect.signature(getattr(of, name)).parameters.values():
        if (
            each.name == "self"
            or each.default is not each.empty
            or each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        ):
            continue
        given[each.name] = (
            known.get(f"{kind}.{name}.{each.name}") or known.get(each.name) or missing(kind, name, each.name)
        )()
    return lambda: getattr(owner, name)(**given), [owner, *given.values()]


def missing(kind: str, name: str, argument: str) -> Callable[[], object]:
    raise SystemExit(f"{kind}.{name}: no valid argument for {argument!r}: add one to arguments() in public_surface.py")


def prepare(world: World, kind: str, name: str, outcomes: dict[str, object]) -> LastCall:
    """A last call on the world's present store, in one cycle with what it needs and with a delivery that is dropped."""
    use, objects = call_of(world, kind, name)
    cycle = [*objects, world.store, world.q, world.delivery()]
    return LastCall(f"{kind}.{name}", use, cycle, outcomes)


def one_by_one(world: World, end: str, way: str, calls: list[tuple[str, str]]) -> dict[str, object]:
    """Each call with a store of its own."""
    outcomes: dict[str, object] = {}
    for kind, name in calls:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        print(f"{kind}.{name}", file=sys.stderr, flush=True)  # the last line names the call that killed the process
        world.open()
        made = prepare(world, kind, name, outcomes)
        if end == "closed":
            world.store.close()
        if way == "cycle":
            made.cycle.append(made)
            world.store.last_call = made  # type: ignore[attr-defined]
        world.forget()
        del made
        if way == "cycle":
            gc.collect()
    faulthandler.cancel_dump_traceback_later()
    return outcomes


def at_exit(world: World, end: str, calls: list[tuple[str, str]], kept: list[object]) -> None:
    """Leaves all of them to the end of the interpreter, in cycles."""
    for number, (kind, name) in enumerate(calls):
        if number % CALLS_BEFORE_EXIT == 0:
            world.open()
        made = prepare(world, kind, name, {})
        made.cycle.append(made)
        kept.append(made)
        if number % CALLS_BEFORE_EXIT == CALLS_BEFORE_EXIT - 1 or number == len(calls) - 1:
            if end == "closed":
                world.store.close()
            world.forget()
    faulthandler.dump_traceback_later(HANG_S, exit=True)


def judged(outcomes: dict[str, object], calls: list[tuple[str, str]]) -> list[str]:
    """A call that was never made, or that raised what is no error of this library."""
    found = [f"{kind}.{name} was not called" for kind, name in calls if f"{kind}.{name}" not in outcomes]
    for name, problem in outcomes.items():
        if isinstance(problem, Exception) and not isinstance(problem, StoreError):
            found.append(f"{name}: {type(problem).__name__}: {problem}")
    return found


KEPT: list[object] = []


def main(place: Path, end: str, way: str) -> None:
    os.chdir(place)
    logging.disable()
    warnings.simplefilter("ignore")
    world = World(place)
    world.store.close()
    world.forget()
    kinds = public_surface.owners(world).keys() - ELSEWHERE
    calls = list(dict.fromkeys(each for module in MODULES for each in members(module) if each[0] in kinds))
    calls += [("Queue", f"{name} with a token") for name in WITH_TOKENS]
    if way == "counted":
        gc.disable()
    if way == "cycle":
        gc.collect()
        gc.freeze()  # so that the collection for each call does not look at every module
    names = [f"{kind}.{name}" for kind, name in calls]
    if way == "exit":
        at_exit(world, end, calls, KEPT)
        print(json.dumps({"called": names, "findings": []}), flush=True)
        return
    outcomes = one_by_one(world, end, way, calls)
    shutil.rmtree(place, ignore_errors=True)
    print(json.dumps({"called": names, "findings": judged(outcomes, calls)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
