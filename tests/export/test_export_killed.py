"""An export that is killed at any step, or in which any system call fails, neither loses nor doubles a row.

The steps are the calls that change the disk. After a kill at each, the next run must give the same bytes as an
undisturbed export, so no row is missing or doubled.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.disk_steps import Steps, die
from kit.killed import killed, quick_directory, remove
from kit.torture import stride
from logstore.export import export, open_set
from logstore.export.manifest import INTENT, MANIFEST, ExportError
from logstore.export.target import read_manifest
from logstore.export.verification import verify
from logstore.holds import hold

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEGMENT = 512 << 10
BODY = 1000  # of 2000 and 20,000 bytes; what is open has bodies, too


class Case:
    """A store that has worked since its export, and the expected result of the next export."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store, self.target, self.before = place / "store", place / "target", place / "before"
        with logstore.open(self.store, segment_size=SEGMENT) as store:
            queue = store.declare_queue("orders")
            first = list(store.publish_many(queue, [bytes(2000)] * 200))
            store.dequeue_many(first[:50], queue)
        export(self.store, self.before, body=BODY)
        with hold(self.store, "export"), logstore.open(self.store) as store:
            queue = store.queue("orders")
            more = list(store.publish_many(queue, [bytes(20_000)] * 40))
            store.dequeue_many(first[50:90] + more[:5], queue)
        self.begin()
        self.export()
        self.wanted = contents(self.target)
        assert set(self.wanted) - set(contents(self.before))
        self.removed = sorted(set(contents(self.before)) - set(self.wanted))
        assert len(self.removed) > 1  # a run removes parts, too

    def begin(self) -> None:
        """The target as it was before the second run."""
        shutil.rmtree(self.target, ignore_errors=True)
        shutil.copytree(self.before, self.target)

    def export(self) -> None:
        export(self.store, self.target, file_bytes=SEGMENT, body=BODY)

    def check(self) -> None:
        """Check that readers now find no incomplete file, and that the next run completes the export."""
        for path in self.target.glob("**/*.parquet"):
            name = path.relative_to(self.target).as_posix()
            before = self.before / name
            assert path.read_bytes() in (self.wanted.get(name), before.read_bytes() if before.is_file() else b"none")
        self.export()
        assert contents(self.target) == self.wanted
        assert verify(self.target).problems == ()


def contents(target: Path) -> dict[str, bytes]:
    return {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def case() -> Iterator[Case]:
    place = quick_directory("export-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_set, "PART_ROWS", 32)
        yield Case(place)
    remove(place)


def export_and_die(case: Case, number: int) -> None:
    with Steps(case.target, number, die):
        case.export()


def test_after_a_kill_at_any_step_the_next_run_gives_the_same_bytes(case: Case) -> None:
    number, seen = 0, set()
    while True:
        number += stride(2)
        case.begin()
        if not killed(export_and_die, case, number):
            break
        manifest = read_manifest(case.target)
        assert manifest is not None
        seen.add((manifest.encode() == case.wanted[MANIFEST], (case.target / INTENT).exists()))
        case.check()
    assert number > 40
    # Killed while staging, while putting into place, and after the manifest.
    assert seen >= {(False, False), (False, True), (True, True)}


def test_a_run_killed_while_it_completes_a_killed_run_is_completed_by_the_next(case: Case) -> None:
    case.begin()
    with Steps(case.target, 0, die) as steps:
        case.export()
    again = 0
    for first in range(steps.count - 11, steps.count, 5):
        for number in range(1, 12, 2):
            case.begin()
            assert killed(export_and_die, case, first)
            again += killed(export_and_die, case, number)
            case.check()
    assert again > 5


def test_an_export_killed_in_its_first_run_starts_again(case: Case) -> None:
    for number in (1, 2, 3, 5, 8, 13, 21, 30, 34, 38):
        shutil.rmtree(case.target)
        assert killed(export_and_die, case, number)
        export(case.store, case.target, file_bytes=SEGMENT, body=BODY)
        found = contents(case.target)
        shutil.rmtree(case.target)
        export(case.store, case.target, file_bytes=SEGMENT, body=BODY)
        assert contents(case.target) == found


def test_after_a_failed_call_at_any_step_the_next_run_gives_the_same_bytes(case: Case) -> None:
    def refuse(name: str, _: tuple[Any, ...]) -> None:
        raise OSError(code, os.strerror(code))

    number = code = 0
    while True:
        number += 1
        code = errno.ENOSPC if number % 2 else errno.EIO
        case.begin()
        try:
            with Steps(case.target, number, refuse) as steps:
                case.export()
        except ExportError as error:
            wanted = "is full" if code == errno.ENOSPC else os.strerror(code)
            assert wanted in error.message, error.message
            assert str(case.target) in error.message
        if steps.count < number:
            break
        case.check()
    assert number > 40


class Journal(Steps):
    """Records every call that changes the disk within the target, with its file."""

    def __init__(self, target: Path) -> None:
        super().__init__(target, 0, die)
        self.calls: list[tuple[str, str]] = []

    def wrapped(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            about = arguments[0]
            if name in ("write", "fsync"):
                about = os.readlink(f"/proc/self/fd/{about}")
            if str(about).startswith(self.target) and self.changes(name, arguments):
                shown = [
                    os.path.relpath(one, self.target) for one in (about, *arguments[1:]) if isinstance(one, Path | str)
                ]
                self.calls.append((name, " ".join(shown)))
            return self.real[name](*arguments, **options)

        return call

    def last(self, name: str, about: str, before: int) -> int:
        """The position of the last such call before that one; -1 if there is none."""
        return max((at for at in range(before) if self.calls[at] == (name, about)), default=-1)


@pytest.mark.parametrize("first", [True, False])
def test_everything_is_forced_in_the_order_that_a_power_failure_requires(case: Case, first: bool) -> None:
    case.begin()
    if first:
        shutil.rmtree(case.target)
    with Journal(case.target) as journal:
        case.export()
    calls = journal.calls
    renames = {about.split()[1]: at for at, (name, about) in enumerate(calls) if name == "rename"}
    sources = {about.split()[1]: about.split()[0] for name, about in calls if name == "rename"}
    intended = renames[INTENT]
    told = renames[MANIFEST]
    for place, source in sources.items():
        if source.endswith(".part") or place == INTENT:
            written, forced = (journal.last(name, source, renames[place]) for name in ("write", "fsync"))
            assert -1 < written < forced, place  # a file is forced before it gets its name
        if place.startswith("_staging/"):
            assert renames[place] < journal.last("fsync", "_staging", intended)
        elif place.endswith(".parquet"):
            assert intended < journal.last("fsync", ".", renames[place])  # the intent stands before anything moves
            directory = os.path.dirname(place)
            assert renames[place] < journal.last("fsync", directory, told), place
    made = [about for name, about in calls if name == "mkdir" and about not in (".", "_staging")]
    assert made
    assert all(journal.last("fsync", os.path.dirname(about) or ".", told) > -1 for about in made)
    assert journal.last("fsync", "_staging/manifest.json", intended) > -1
    removed = calls.index(("unlink", INTENT))
    parts = [at for at, (name, about) in enumerate(calls) if name == "unlink" and about in case.removed]
    assert len(parts) == (0 if first else len(case.removed))
    # A part that the old manifest names is removed after the new one stands, and before the intent that names it goes.
    assert all(told < journal.last("fsync", ".", at) < at < journal.last("fsync", "open", removed) for at in parts)
    assert told < journal.last("fsync", ".", removed)
    assert calls[-1] == ("fsync", ".")
    assert len([place for place in renames if place.endswith(".parquet")]) >= 4
