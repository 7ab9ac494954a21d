"""A failed system call ends every operation of the library with a typed error, and every command with a plain message.

Each case fails one call of those that the package makes from Python for the store and its output files, with EIO,
ESTALE, EDQUOT, EROFS and ENODEV in turn. csrc/tests/proof/sweeps.c does the same for the core's calls.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.failing_calls import ERRORS, FailingCalls
from kit.killed import quick_directory, remove
from logstore import backup, cli, inspect, report, salvage
from logstore.errors import StoreError
from logstore.salvage import catalog_repair

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

from logstore import export
from logstore.export import verification as export_verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TRIED_MOST = 40  # calls of one operation, evenly chosen


class Case:
    """A store, an older export of it, and the operations on them."""

    def __init__(self, place: Path) -> None:
        self.template, self.place = place / "template", place / "case"
        store, exported = self.template / "store", self.template / "exported"
        self.template.mkdir()
        with logstore.open(store, segment_size=64 << 10) as opened:
            ids = list(opened.publish_many(opened.declare_queue("orders"), [bytes(3000)] * 60))
            opened.dequeue_many(ids[:10], "orders")
        export.export(store, exported)
        with logstore.open(store) as opened:
            opened.publish_many("orders", [bytes(3000)] * 10)
        self.figures = report.report(store)
        self.store, self.exported = self.place / "store", self.place / "exported"

    def begin(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.template, self.place)


@pytest.fixture(scope="module")
def case() -> Iterator[Case]:
    place = quick_directory("failing-")
    logging.disable()
    yield Case(place)
    logging.disable(logging.NOTSET)
    remove(place)


def catalog(case: Case) -> None:
    with inspect.Reader(case.store) as reader:
        inspect.read_catalog(case.store, reader.info)


LIBRARY: dict[str, Callable[[Case], object]] = {
    "open": lambda case: logstore.open(case.store).close(),
    "create": lambda case: logstore.open(case.place / "new", segment_size=64 << 10).close(),
    "catalog": catalog,
    "plan of a backup": lambda case: backup.plan_backup(case.store, case.place / "copy"),
    "backup": lambda case: backup.back_up(case.store, case.place / "copy"),
    "salvage": lambda case: salvage.salvage(case.store, case.place / "saved"),
    "repair of the catalog": lambda case: catalog_repair.repair_catalog(case.store),
    "export": lambda case: export.export(case.store, case.exported),
    "verify of an export": lambda case: export_verify.verify(case.exported),
    "report": lambda case: report.report(case.store),
    "report of an export": lambda case: report.report(case.exported),
    "page": lambda case: report.write_page(case.figures, case.place / "page.html"),
}

COMMANDS: dict[str, tuple[str, ...]] = {
    "info": ("info", "store"),
    "queues": ("queues", "store"),
    "dump": ("dump", "store"),
    "tail": ("tail", "store"),
    "holds": ("holds", "store"),
    "in-doubt": ("in-doubt", "store", "list"),
    "verify": ("verify", "store"),
    "recover": ("recover", "store"),
    "recover --dry-run": ("recover", "--dry-run", "store"),
    "compact": ("compact", "store"),
    "checkpoint": ("checkpoint", "store"),
    "purge": ("purge", "store", "orders"),
    "repair-catalog": ("repair-catalog", "store"),
    "backup": ("backup", "store", "copy"),
    "salvage": ("salvage", "store", "saved"),
    "export": ("export", "store", "exported"),
    "export --verify": ("export", "--verify", "exported"),
    "report": ("report", "-o", "page.html", "store"),
}


def tell(failed: str, code: int, said: str) -> bool:
    """Whether this text has the reason and the file, or for a temporary file its directory."""
    path = failed.split(" ", 1)[1]
    if code == errno.EDQUOT and "full" in said:
        return True
    directory, name = os.path.split(path)
    return os.strerror(code) in said and (name in said or (name.startswith(".") and directory in said))


def each_failing(case: Case, work: Callable[[], object]) -> Iterator[tuple[FailingCalls, object, BaseException | None]]:
    """Run the operation once for each call, which fails; yields the results or errors."""
    case.begin()
    with FailingCalls(case.place) as whole:
        work()
    step = max(1, whole.count // TRIED_MOST)
    for index, number in enumerate(range(1, whole.count + 1, step)):
        case.begin()
        failing = FailingCalls(case.place, number, ERRORS[index % len(ERRORS)])
        given: object = None
        raised = None
        try:
            with failing:
                given = work()
        except Exception as problem:  # noqa: BLE001 - the one that is looked for, whichever it is
            raised = problem
        yield failing, given, raised


@pytest.mark.parametrize("name", LIBRARY)
def test_a_failed_call_is_a_typed_error_with_reason_and_file(case: Case, name: str) -> None:
    tried, wrong = 0, []
    for failing, _, raised in each_failing(case, lambda: LIBRARY[name](case)):
        tried += 1
        if raised is None:
            continue
        if not isinstance(raised, StoreError):
            wrong.append(f"{failing.failed}: {raised!r}")
        elif not tell(failing.failed, failing.code, raised.message):
            wrong.append(f"{failing.failed}: {raised.message}")
    assert wrong == []
    assert tried > 2


def run(case: Case, words: tuple[str, ...]) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = cli.run(list(words))
    return status, said.getvalue()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_failed_call_ends_a_command_with_a_plain_message(case: Case, name: str) -> None:
    wrong = []
    words = tuple(str(case.place / one) if one in NAMES else one for one in COMMANDS[name])
    for failing, given, raised in each_failing(case, lambda: run(case, words)):
        if raised is not None:
            wrong.append(f"{failing.failed}: {raised!r}")
            continue
        status, said = given if isinstance(given, tuple) else (-1, "")
        if "Traceback" in said or (status != 0 and not tell(failing.failed, failing.code, said)):
            wrong.append(f"{failing.failed}: {status} {said}")
    assert wrong == []


NAMES = {"store", "copy", "saved", "exported", "page.html"}


def test_the_check_detects_an_error_without_a_type_or_a_file(case: Case) -> None:
    def careless() -> Any:
        with open(case.store / "META", "rb") as file:
            os.fstat(file.fileno())

    found = [raised for _, _, raised in each_failing(case, careless)]
    assert [type(one) for one in found] == [OSError, OSError]
    assert not tell(f"fstat {case.store}/META", errno.EIO, str(found[1]))
