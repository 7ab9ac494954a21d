"""Fixtures that every test may use: a store of one's own, opened as often as the test likes.

A store that a test leaves open is closed behind it, so that a failing test does not take others along.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from kit.stores import ROOT, SMALL_SEGMENT, memory_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logstore import MessageStore

# Nothing here fails because the machine has other work to do; all else stays as hypothesis has it, in CI and elsewhere.
settings.register_profile("unhurried", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Whoever runs the tests in the background may have interrupts ignored, and every process that a test starts with them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Plain pytest works in a fresh clone. After a change of the core, make builds the extension anew.
if not all(list((ROOT / "logstore").glob(f"{module}*.so")) for module in ("_core", "_hot")):
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=ROOT, check=True)

# A worker's standard output goes nowhere, so faulthandler writes to standard error what pytest-timeout would print.
# pytest-timeout stops looking once a test has failed, so a fixture that waits behind it would wait for ever.
STOPPED_S = 1200
_stderr = -1  # a copy: while a test runs, pytest keeps what is written to the descriptor itself


def pytest_configure() -> None:
    """Chooses the place of the tests' directories: in memory where there is room, because they make many syncs."""
    global _stderr
    _stderr = os.dup(2)
    if (root := memory_root()) is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(root))


def pytest_collection_finish() -> None:
    """Keeps what was imported and collected out of every later collection of garbage: some tests collect often."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Ends the process, with every thread's place, when a test and its fixtures take longer than any of them may."""
    _stop_late(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """As above, after the time that the test has: for all of it, or for what is left after a failure."""
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=_stderr)
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    _stop_late(item)
    return True


def pytest_enter_pdb() -> None:
    faulthandler.cancel_dump_traceback_later()


def _stop_late(item: pytest.Item) -> None:
    if item.get_closest_marker("slow") is None:
        faulthandler.dump_traceback_later(STOPPED_S, exit=True, file=_stderr)
    else:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The test's directory: in memory where there is room, and on a disk if the test is marked ``on_disk``."""
    if request.node.get_closest_marker("on_disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="logstore-", ignore_cleanup_errors=True) as made:
        yield Path(made).resolve()


@pytest.fixture
def store_dir(tmp_path: Path) -> Path:
    """Where the test's store is; not made yet."""
    return tmp_path / "store"


@pytest.fixture
def open_store(store_dir: Path) -> Iterator[Callable[..., MessageStore]]:
    """Open the test's store, in small segments unless told otherwise."""
    import logstore

    opened: list[MessageStore] = []

    def open_one(path: Path | None = None, **options: Any) -> MessageStore:
        options.setdefault("segment_size", SMALL_SEGMENT)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # another segment_size than the stored one
            opened.append(logstore.open(path or store_dir, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        with contextlib.suppress(logstore.StoreError):
            store.close()


@pytest.fixture
def store(open_store: Callable[..., MessageStore]) -> MessageStore:
    """One open store."""
    return open_store()


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a piece of Python in a process of its own, with the arguments as sys.argv[1:]."""

    def run(code: str, *arguments: object, timeout: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            **options,
        )

    return run


@pytest.fixture
def mounted_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount a file system of so many MiB, where the system lets us."""
    places: list[Path] = []

    def mount(mebibytes: int) -> Path:
        place = tmp_path / "small"
        place.mkdir()
        if os.getuid() != 0 or shutil.which("mount") is None:
            pytest.skip("SKIPPED LOUDLY: a small file system needs root and mount; the full disk was NOT tried")
        options = f"size={mebibytes}m,mode=0700"
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False)
        if made.returncode != 0:
            pytest.skip(f"SKIPPED LOUDLY: no tmpfs may be mounted here ({made.stderr.decode().strip()})")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", place], check=False)
