"""A run whose files other processes put into the staging of the target has every row once, whatever ends it."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.exported import SEGMENT, everything
from kit.killed import killed, quick_directory, remove
from kit.torture import stride
from logstore.export import Run, export, run, verify
from logstore.export.manifest import MANIFEST, STAGING, UPLOAD, FileInfo
from logstore.export.places import place_of
from logstore.export.remote_target import RemoteTarget
from logstore.export.target import read_manifest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

from kit.object_store import BUCKET, ObjectStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLACE = f"{BUCKET}/kept"
_TOKEN = re.compile(r"-[0-9a-f]{16}(?=\.parquet$)")


class TaskRun(Run):
    """Puts its files where tasks put them, instead of the local staging directory."""

    def write(self, job: Any, units: Any, span: Any, staging: Path) -> tuple[list[FileInfo], list[FileInfo]]:
        files, opened = super().write(job, units, span, staging)
        target = self._place
        if not isinstance(target, RemoteTarget):
            return files, opened
        top = target.begin_tasks()
        uploaded = {file: f"{top}/{file.staged}-1" for file in [*files, *opened]}
        for file, name in uploaded.items():
            target.place.put(name, staging / file.staged)
            if file.dataset != "open":
                (staging / file.staged).unlink()
        target.add_uploaded(uploaded)
        return files, opened


def nameless(found: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the datasets by the names that a local target gives them."""
    return {_TOKEN.sub("", name): raw for name, raw in found.items() if name.endswith(".parquet")}


class Case:
    """A target with one run of tasks, and what it has after the next."""

    def __init__(self, place: Path, *, whole: bool) -> None:
        self.store, self.before = place / "store", place / "before"
        self.objects = ObjectStore(place / "objects", whole=whole)
        for _ in range(2):
            shutil.rmtree(self.before, ignore_errors=True)
            shutil.copytree(self.objects.directory, self.before)
            with logstore.open(self.store, segment_size=SEGMENT) as store:
                queue = store.declare_queue("orders")
                store.dequeue_many(store.publish_many(queue, [bytes(2000)] * 30)[:20], queue)
            self.export()
            export(self.store, place / "local")
        local = everything(place / "local")
        self.wanted = {name: raw for name, raw in local.items() if name.endswith(".parquet")}
        self.check()

    def begin(self) -> None:
        shutil.rmtree(self.objects.directory)
        shutil.copytree(self.before, self.objects.directory)

    def export(self) -> None:
        export(self.store, PLACE, filesystem=self.objects.files)

    def export_and_die(self, number: int) -> None:
        self.objects.at(number)
        self.export()

    def found(self) -> dict[str, bytes]:
        return everything(self.objects.directory / PLACE)

    def check(self) -> None:
        """The next run completes the export, and nothing else is left."""
        self.objects.at(0)
        self.export()
        manifest = read_manifest(place_of(PLACE, self.objects.files))
        assert manifest is not None
        assert nameless(self.found()) == self.wanted
        assert set(self.found()) == {MANIFEST, *manifest.paths()}
        assert verify(PLACE, filesystem=self.objects.files).problems == ()


@pytest.fixture(scope="module", params=["whole objects", "files that are renamed"])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    place = quick_directory("export-tasks-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "Run", TaskRun)
        yield Case(place, whole=request.param == "whole objects")
    remove(place)


@pytest.mark.slow
def test_after_a_kill_at_any_call_the_next_run_has_every_row_once_and_the_staging_is_empty(case: Case) -> None:
    number, seen = 0, set()
    while True:
        number += stride(3)
        case.begin()
        if not killed(case.export_and_die, number):
            break
        found = case.found()
        seen.add((any(name.startswith(STAGING) for name in found), UPLOAD in found))
        case.check()
    assert number > 30
    assert seen >= {(False, False), (True, False), (True, True)}


def test_a_run_by_tasks_writes_what_another_run_does(case: Case) -> None:
    case.begin()
    case.check()
