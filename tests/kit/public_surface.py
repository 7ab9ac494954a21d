"""Calls every public callable with wrong values. A program; arguments: a working directory and the modules.

The public callables are found by inspection: the modules that docs/api.md names, their public names, and the methods of
their classes. For each parameter of a working call one argument is replaced by each wrong value in turn: by all of them
if LOGSTORE_TORTURE_S is set, else by the usual ones and a fixed share of the others. The file ``now`` has the present
call, so that a process that dies or hangs can be diagnosed; the findings are printed as JSON.
"""

from __future__ import annotations

import asyncio
import collections.abc
import contextlib
import dataclasses
import faulthandler
import functools
import gc
import importlib
import inspect
import itertools
import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

import logstore
from kit.torture import tortured
from kit.wrong_values import PLAIN
from logstore.errors import NotEnqueued, OptionError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
COLLECTED_AFTER = 100  # calls
CALL_S = 30  # after which a call counts as hung
HANG_S = 90  # after which the process ends itself: a call that no signal reaches
ITEMS = 3  # of an iterator that a call gives
ALWAYS = {"None", "-1", "2**64", "nan", "a short str", "bytes", "an empty list", "an object"}
SHARE = 12  # each parameter gets every twelfth of the other values, the next one beginning one further

# Only functions of the package make these, from values of the core.
MADE_ELSEWHERE = {"DeliveryToken", "MessageStore", "Queue", "Delivery", "Message", "MessageView", "Transaction", "Hold"}
# What a run of an export works with; and methods that callers write, not call.
NOT_CALLED = {"Run", "FileInfo", "Intent", "Manifest", "Mark", "Span", "ExportOptions", "Receiver"}
# What its decoder makes of a log: tests/codec has what the methods answer.
DECODER = "logstore.codec."
# Functions for the package's own modules.
INTERNAL = {"held_for", "is_file_path", "need_page", "staged_name"}
WRONG_FLAGS = {"None", "2**64", "nan", "a lying int", "a str of 1 MB", "a released view", "Arrow numbers", "an object"}
# Its functions take sessions and frames: tests/spark has what they answer.
NEEDS_A_JVM = {"logstore.spark"}
# Words for an argument in an error, besides its own name.
ALSO_CALLED = {
    "message_ids": ("id",),
    "store_dir": ("path", "directory", "store"),
    "data_dir": ("path", "directory", "store"),
    "path": ("store", "directory"),
    "connect": ("catalog", "URL"),
    "catalog": ("schema",),
    "schema": ("catalog",),
    "contents": ("content", "buffer"),
    "headers": ("header",),
    "deliveries": ("delivery",),
    "data": ("content", "buffer"),
    "store": ("MessageStore",),
    "exchange": ("exchange",),
    "to": ("queue",),
    "gtrid": ("xid",),
    "bqual": ("xid",),
    "format_id": ("xid",),
    "xids": ("xid",),
    "text": ("xid",),
    "where": ("Where",),
    "receiver": ("ExchangeRow",),  # a value that a store cannot receive
}


@functools.cache
def modules() -> list[str]:
    """The public modules, by the documentation."""
    found = {"logstore"}
    for dotted in re.findall(r"\blogstore(?:\.\w+)+", (ROOT / "docs" / "api.md").read_text("utf-8")):
        name = dotted
        while "." in name:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
                found.add(name)
                break
            name = name.rpartition(".")[0]
    return sorted(found)


def surface(module: str) -> Iterator[tuple[str, Any]]:
    """The public callables of this module: qualified names and objects."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or sorted(vars(found))
    for name in names:
        thing = getattr(found, name)
        home = getattr(thing, "__module__", "")
        if name.startswith("_") or not callable(thing) or not str(home).startswith("logstore"):
            continue
        if home != module and (home in modules() or (module != "logstore" and thing is getattr(logstore, name, None))):
            continue  # tested in its own module
        if home.startswith(DECODER):
            continue
        if not inspect.isclass(thing):
            yield from [(name, thing)] if name not in INTERNAL else []
        elif (
            name not in NOT_CALLED
            and not issubclass(thing, BaseException)
            and not getattr(thing, "_is_protocol", False)
        ):
            yield from of_class(name, thing)


def of_class(name: str, kind: type) -> Iterator[tuple[str, Any]]:
    """Its constructor, where callers use it, and its methods."""
    checks = not dataclasses.is_dataclass(kind) or hasattr(kind, "__post_init__")  # else it only holds what it is given
    if checks and name not in MADE_ELSEWHERE:
        yield name, kind
    for method in dir(kind):
        found = inspect.getattr_static(kind, method)
        function = getattr(kind, method)
        if method.startswith("_") or isinstance(found, property) or inspect.isclass(function):
            continue
        home = getattr(function, "__objclass__", function)  # a method in C names only its class
        ours = str(getattr(home, "__module__", "")).startswith("logstore")
        if callable(function) and ours:
            yield f"{name}.{method}", function


class World:
    """A store with contents, further stores, and valid arguments for every call."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.numbers = itertools.count()
        self._releasing = threading.Lock()
        self.closed = self.fresh()
        with logstore.open(self.closed, segment_size=524288) as store:
            queue = store.declare_queue("q")
            for number in range(3):
                store.publish(queue, b"%d" % number)
            store.dequeue(next(iter(store.messages(queue))).id, queue)
        self.open()

    def open(self) -> None:
        """A store for the calls that need one, and another whose objects are foreign to it."""
        self.store = logstore.open(self.fresh(), segment_size=524288, durability="relaxed")
        self.other = logstore.open(self.fresh(), segment_size=524288, durability="relaxed")
        released = self.store._released_queues

        def released_whole() -> set[int]:
            with self._releasing:
                return released()

        self.store._released_queues = released_whole  # type: ignore[method-assign]
        self.q = self.store.declare_queue("q")
        self.store.declare_exchange("x")
        self.foreign = self.other.declare_queue("q")
        self.other.publish(self.foreign, b"foreign")
        self.gone = logstore.open(self.fresh(), segment_size=524288, durability="relaxed")
        self.gone_queue = self.gone.declare_queue("q")
        self.gone_transaction = self.gone.begin()
        self.gone.close()
        self.deleted = self.store.declare_queue("deleted")
        self.store.delete_queue(self.deleted)

    def close(self) -> None:
        for store in (self.store, self.other):
            with contextlib.suppress(StoreError):
                store.close()

    def fresh(self) -> Path:
        """A path that does not exist."""
        return self.place / f"p{next(self.numbers)}"

    def name(self) -> str:
        return f"n{next(self.numbers)}"

    def message(self) -> int:
        return self.store.publish(self.q, b"content", wait=False)

    def staged(self) -> int:
        return self.store.stage(b"h", b"content")

    def delivery(self) -> Any:
        self.message()
        self.store.force()
        return self.q.acquire(1)[0]

    def settled(self) -> Any:
        made = self.delivery()
        made.accept(wait=False)
        return made

    def detached(self) -> Any:
        made = self.delivery()
        self.q.release(made.detach())
        return made

    def settled_token(self) -> Any:
        made = self.delivery().detach()
        self.q.accept(made, wait=False)
        return made

    def finished(self) -> Any:
        made = self.store.begin()
        made.commit(wait=False)
        return made

    def branch(self) -> Any:
        return self.store.begin(logstore.Xid(1, self.name().encode()))

    def ended(self) -> Any:
        made = self.branch()
        made.end()
        return made

    def prepared(self) -> Any:
        made = self.ended()
        made.prepare(wait=False)
        return made.xid

    def wrong(self) -> dict[str, Callable[[], object]]:
        """Objects of this package that are closed, settled, finished, deleted, or of another store."""
        return PLAIN | {
            "the store": lambda: self.store,
            "a closed store": lambda: self.gone,
            "a queue": lambda: self.store.declare_queue(self.name()),  # `delete_queue` takes it
            "another store's queue": lambda: self.foreign,
            "a closed store's queue": lambda: self.gone_queue,
            "a deleted queue": lambda: self.deleted,
            "an exchange": lambda: self.store.declare_exchange("x"),
            "a transaction": self.store.begin,
            "another store's transaction": self.other.begin,
            "a closed store's transaction": lambda: self.gone_transaction,
            "a finished transaction": self.finished,
            "a settled delivery": self.settled,
            "a detached delivery": self.detached,
            "a settled token": self.settled_token,
            "a token of no queue": lambda: self.settled_token()._replace(queue=0),
            "a list with a settled delivery": lambda: [self.delivery(), self.settled()],
            "a list with a settled token": lambda: [self.delivery(), self.settled_token()],
            "a list with another store's queue": lambda: [self.q, self.foreign],
            "an xid": lambda: logstore.Xid(1, b"x"),
        }

    def state(self) -> object:
        """The state that a refused call must not change."""
        store = self.store
        with self._releasing:  # the store's thread may be releasing one, which is in no list then
            store._release_dropped()  # else a later call would, and would look as if it had changed something
        return (
            [(queue.id, queue.depth, queue.acquired) for queue in store.queues()],
            len(store.exchanges()),
            len(store.bindings()),
            dict(store.config),
            len(store.in_doubt()),
        )


def owners(world: World) -> dict[str, Callable[[], Any]]:
    """For each class the object whose methods are called."""
    from logstore import inspect, tpc
    from logstore.inspect import inspection

    def inspected() -> Any:
        made = inspection.Inspection(world.closed)
        made.read()
        return made

    def held() -> Any:
        from logstore.holds import hold

        return hold(world.closed, world.name())

    def scan() -> Any:
        from logstore.rows.messages import MessageScan

        return MessageScan(world.closed, queue_names={})

    return {
        "MessageStore": lambda: world.store,
        "Queue": lambda: world.q,
        "Delivery": world.delivery,
        "Transaction": world.branch,
        "Compaction": lambda: world.store.compact(dry_run=True),
        "Fullness": lambda: world.store.fullness(),
        "Listener": lambda: world.store.on_fullness(print),
        "Tail": lambda: world.store.tail(),
        "Hold": held,
        "Reader": lambda: inspect.Reader(world.closed),
        "Inspection": inspected,
        "Pace": lambda: inspection.Pace(None),
        "MessageScan": scan,
        "Connection": lambda: tpc.connect(world.store),
        "Participant": lambda: participant(world),
        "Markers": lambda: markers(world),
    }


def participant(world: World) -> Any:
    import transaction

    from logstore import tpc

    return tpc.Participant(world.store, transaction_manager=transaction.TransactionManager(explicit=False))


def engine() -> Any:
    import sqlalchemy

    return sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.pool.StaticPool)


def session() -> Any:
    from sqlalchemy.orm import Session

    return Session(engine())


def markers(world: World) -> Any:
    from sqlalchemy.orm import Session

    from logstore import tpc

    made = engine()
    return tpc.Markers(made, Session(made), table=world.name())


def arguments(world: World) -> dict[str, Callable[[], object]]:
    """A valid argument for every required parameter, by its name or by the call's and its own."""
    from logstore import tpc
    from logstore.inspect import Reader

    def info() -> Any:
        with Reader(world.closed) as reader:
            return reader.info

    def segment() -> Any:
        with Reader(world.closed) as reader:
            return reader.segments()[0]

    def open_set() -> Any:
        from logstore.rows.messages import MessageScan

        with MessageScan(world.closed, queue_names={}) as scan:
            list(scan)
            return scan.open_rows()

    @functools.cache
    def figures() -> Any:
        from logstore.report import report

        return report(world.closed)

    @functools.cache
    def exported() -> Path:
        from logstore.export import export

        target = world.fresh()
        export(world.closed, target)
        return target

    def exchange() -> str:
        return world.store.declare_exchange(world.name()).name

    @functools.cache
    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    return {
        "loop": loop,
        "store_dir": lambda: world.closed,
        "path": lambda: world.closed,
        "target": world.fresh,
        "name": world.name,
        "queue": lambda: world.q,
        "declarations": lambda: [logstore.QueueDeclaration(world.name()) for _ in range(2)],
        "bindings": lambda: [logstore.BindingRow("x", "q", world.name())],
        "content": lambda: b"content",
        "contents": lambda: [b"a", b"b"],
        "data": lambda: b"more",
        "note": lambda: b"note",
        "message_id": world.message,
        "message_ids": lambda: [world.message()],
        "delivery": world.delivery,
        "deliveries": lambda: [world.delivery()],
        "callback": lambda: len,
        "lsn": lambda: world.store.durable_lsn,
        "time": lambda: datetime.now(UTC),
        "exchange": lambda: "x",
        "text": lambda: "1:61:62",
        "format_id": lambda: 1,
        "gtrid": lambda: world.name().encode(),
        "store": lambda: world.store,
        "receiver": lambda: type("Receiver", (), {"done": lambda *_: None}),
        "info": info,
        "segment": segment,
        "max_log_bytes": lambda: "1G",
        "segment_size": lambda: 524288,
        "first_lsn": lambda: 524288,
        "epoch": lambda: 1,
        "id": lambda: 524288,
        "queue_names": lambda: {1: "q"},
        "messages": open_set,
        "rate": lambda: 1e9,
        "size": lambda: 1,
        "queue_id": lambda: 1,
        "xid": lambda: tpc.Xid(1, world.name(), "b"),
        "xids": lambda: [tpc.Xid(1, world.name(), "b")],
        "bqual": lambda: "b",
        "engine": engine,
        "session": session,
        "transaction": lambda: None,
        "found": figures,
        "MessageStore.queue.name": lambda: "q",
        "MessageStore.exchange.name": lambda: "x",
        "MessageStore.annotate.message_id": world.message,
        "Queue.move.to": lambda: world.store.declare_queue(world.name()),
        "MessageStore.delete_exchange.exchange": exchange,
        "MessageStore.declare_exchanges.exchanges": lambda: [logstore.ExchangeRow(world.name())],
        "MessageStore.delete_exchanges.exchanges": lambda: [exchange()],
        "MessageStore.delete_queue.queue": lambda: world.store.declare_queue(world.name()),
        "MessageStore.delete_queues.queues": lambda: [world.store.declare_queue(world.name()).name],
        "MessageStore.update_queue.arguments": lambda: {"a": 1},
        "MessageStore.append_content.message_id": world.staged,
        "MessageStore.enqueue.message_id": world.staged,
        "MessageStore.destroy.message_id": world.staged,
        "Connection.append_content.message_id": world.staged,
        "Connection.enqueue.message_id": world.staged,
        "Participant.enqueue.message_id": world.staged,
        "Connection.tpc_commit.xid": world.prepared,
        "Connection.tpc_rollback.xid": world.prepared,
        "Hold.advance.lsn": lambda: info().end_lsn,
        "Inspection.whereabouts.message_id": lambda: next(iter(owners(world)["Inspection"]().places(1)))[0],
        "verify.target": exported,
        "read_table.target": exported,
        "report.start": lambda: None,
    }


class HungError(BaseException):
    """The call did not return in time."""


def hung(*_: object) -> None:
    raise HungError


class Driver:
    """Makes the calls and judges the results."""

    def __init__(self, world: World, now: Path) -> None:
        self.world = world
        self.findings: list[str] = []
        self.calls = 0
        self._parameters = 0
        self.called: list[str] = []
        self._now = os.open(now, os.O_RDWR | os.O_CREAT, 0o600)
        self._owners = owners(world)
        self._arguments = arguments(world)

    def drive(self, name: str, thing: Any) -> None:
        """Every parameter of one callable."""
        self.called.append(name)
        kind, _, method = ("", "", "") if inspect.ismethod(thing) else name.rpartition(".")  # of a class: as it is
        signature = inspect.signature(thing)
        parameters = [each for each in signature.parameters.values() if each.name != "self"]
        if kind and kind not in self._owners:
            self.findings.append(f"{name}: no object of {kind} to call it on: add one to owners() here")
            return
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD or (parameter.kind is parameter.VAR_POSITIONAL):
                continue
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            flag = is_flag(parameter)
            self._parameters += 1
            for number, (value, make) in enumerate(self.world.wrong().items()):
                if flag and value not in WRONG_FLAGS:
                    continue
                if not (tortured() or flag or value in ALWAYS or (number + self._parameters) % SHARE == 0):
                    continue
                if not self._try(name, thing, kind, method, parameters, parameter, value, make):
                    return

    def _try(
        self,
        name: str,
        thing: Any,
        kind: str,
        method: str,
        parameters: list[Any],
        parameter: inspect.Parameter,
        value: str,
        make: Callable[[], object],
    ) -> bool:
        """One call; False if no valid one is known."""
        wrong = parameter.name
        what = f"{name}({wrong}={value})"
        os.pwrite(self._now, what.ljust(200).encode(), 0)
        given: dict[str, Any] = {}
        for each in parameters:
            if each.name == wrong or each.default is not each.empty or each.kind is each.VAR_KEYWORD:
                continue
            known = self._arguments.get(f"{name}.{each.name}") or self._arguments.get(each.name)
            if known is None:
                self.findings.append(f"{name}: no valid argument for {each.name!r}: add one to arguments() here")
                return False
            given[each.name] = known()
        given[wrong] = make()
        call = getattr(self._owners[kind](), method) if kind else thing
        if self.calls % COLLECTED_AFTER == 0:
            gc.collect()
        before = self.world.state()
        self.calls += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, CALL_S)
            self._use(call(**given), given)
        except HungError:
            self.findings.append(f"{what} hangs")
        except SQLAlchemyError as problem:
            if kind != "Markers" and name != "Markers":  # documented to raise SQLAlchemy's errors
                self.findings.append(f"{what}: {type(problem).__name__}: {str(problem)[:150]} {place_of(problem)}")
        except (TypeError, ValueError, StoreError) as problem:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for stored in getattr(problem, "published", ()):  # by publish_many, whose error names them
                with contextlib.suppress(NotEnqueued):  # in a transaction it is on no queue yet
                    self.world.store.dequeue(stored, given["queue"], wait=False)
            if not is_flag(parameter) and not names(problem, wrong):  # a flag's own truth may be what fails
                self.findings.append(f"{what}: {type(problem).__name__} does not name it: {str(problem)[:150]}")
            elif before != self._state():
                self.findings.append(f"{what}: refused, and something changed: {before} to {self._state()}")
        except Exception as problem:  # noqa: BLE001 - which is what is looked for
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.findings.append(f"{what}: {type(problem).__name__}: {str(problem)[:150]} {place_of(problem)}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if not self._works():
            self.findings.append(f"{what}: the store no longer works")
            self.world.close()
            self.world.open()
        return True

    def _state(self) -> object:
        try:
            return self.world.state()
        except StoreError as problem:
            return problem

    def _use(self, result: Any, given: dict[str, Any]) -> None:
        """Uses the result as a caller does."""
        if inspect.iscoroutine(result):
            with contextlib.suppress(TimeoutError):  # it waits for what may come
                asyncio.run(asyncio.wait_for(result, 0.01))
        elif isinstance(result, collections.abc.Iterator):
            list(itertools.islice(result, ITEMS))
        elif isinstance(result, logstore.Transaction):
            result.rollback(wait=False)
        if hasattr(result, "close") and result not in given.values():
            result.close()

    def _works(self) -> bool:
        store = self.world.store
        try:
            message = store.publish(self.world.q, b"still here", wait=False)
            store.dequeue(message, self.world.q, wait=False)
        except StoreError:
            return False
        return True


def is_flag(parameter: inspect.Parameter) -> bool:
    """Whether anything that has a truth may stand for it. Methods in C have no annotations."""
    return parameter.annotation == "bool" or isinstance(parameter.default, bool)


def names(problem: Exception, parameter: str) -> bool:
    """Whether the error names its argument. A StoreError other than OptionError is about an object."""
    if isinstance(problem, StoreError) and not isinstance(problem, OptionError):
        return True
    words = (
        parameter,
        parameter.removesuffix("s"),
        parameter.replace("_", " "),
        *parameter.split("_"),
        *ALSO_CALLED.get(parameter, ()),
    )
    return any(re.search(rf"(?<![a-z]){re.escape(word)}", str(problem), re.IGNORECASE) for word in words)


def place_of(problem: BaseException) -> str:
    """Where in the package it came from."""
    trace, found = problem.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/logstore/" in file:
            found = f"[{Path(file).name}:{trace.tb_lineno}]"
        trace = trace.tb_next
    return found


def main(place: Path, wanted: list[str]) -> None:
    """Prints the findings in these modules, and the number of calls of each callable."""
    os.chdir(place)
    logging.disable()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, hung)
    gc.disable()  # during a call it would release the deliveries that it finds, which looks like a change by the call
    world = World(place)
    driver = Driver(world, place / "now")
    gc.freeze()  # so that the collections do not look at every module
    for module in wanted:
        for name, thing in surface(module):
            driver.drive(name, thing)
    world.close()
    shutil.rmtree(place, ignore_errors=True)
    print(json.dumps({"calls": driver.calls, "called": driver.called, "findings": driver.findings}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
