"""CoilMQ's own tests of its queue stores, from its source distribution, pass with this store in place of one of its
own.

The tests are downloaded at run time, in the installed version. Without a package index this is skipped, or fails if CI
is set.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NoReturn

import pytest

from kit.stores import ROOT

# CoilMQ's stores put an unsent frame at the end of its queue, and one of its tests expects that. This store puts it
# back at its old place, as after a crash.
BACK_IN_PLACE = "tests/queue_manager/test_logstore.py::TestQueueManagerLogstore::test_send_backlog_err_unreliable"

FIXTURE = """
import pytest
from logstore.plugins.coilmq import LogstoreQueue

@pytest.fixture
def store(tmp_path):
    store = LogstoreQueue(tmp_path / "store", segment_size=512 * 1024)
    yield store
    store.close()
"""
STORE_TESTS = "from tests.store import BaseQueueTests\nclass TestLogstore(BaseQueueTests): pass\n"
MANAGER_TESTS = (
    "from tests.queue_manager import QueueManagerTests\nclass TestQueueManagerLogstore(QueueManagerTests): pass\n"
)


def cannot_run(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def coilmq_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of the installed CoilMQ, unpacked, with a test module for our store in it."""
    version = importlib.metadata.version("coilmq")
    into = tmp_path_factory.mktemp("coilmq")
    command = ["download", "--no-deps", "--no-binary", ":all:", "--dest", str(into), f"coilmq=={version}"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *command],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode != 0:
        cannot_run(f"CoilMQ's own tests did NOT run: its sources cannot be fetched ({done.stderr.strip()[-300:]})")
    (archive,) = into.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(into, filter="data")
    root = into / f"coilmq-{version}"
    (root / "tests" / "store" / "test_logstore.py").write_text(FIXTURE + STORE_TESTS)
    (root / "tests" / "queue_manager" / "test_logstore.py").write_text(FIXTURE + MANAGER_TESTS)
    (root / "ours.ini").write_text("[pytest]\n")
    return root


def run_theirs(root: Path, *arguments: str) -> tuple[int, int]:
    """The number of CoilMQ's tests that passed and that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", "ours.ini", "--rootdir", str(root), *arguments]
    done = subprocess.run(
        command,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(ROOT)]), "PYTEST_ADDOPTS": ""},
    )
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    assert "error" not in counts, done.stdout + done.stderr
    assert counts, done.stdout + done.stderr
    print(done.stdout)
    return counts.get("passed", 0), counts.get("failed", 0)


def defined_in(file: Path) -> int:
    return len(re.findall(r"^    def test_", file.read_text(), re.MULTILINE))


def test_every_test_that_coilmq_has_for_all_its_stores_passes_with_ours(coilmq_tests: Path) -> None:
    wanted = defined_in(coilmq_tests / "tests" / "store" / "__init__.py")
    assert wanted >= 5
    assert run_theirs(coilmq_tests, "tests/store/test_logstore.py") == (wanted, 0)


def test_every_test_of_coilmqs_queue_manager_passes_but_the_one_that_wants_a_frame_requeued_at_the_end(
    coilmq_tests: Path,
) -> None:
    wanted = defined_in(coilmq_tests / "tests" / "queue_manager" / "__init__.py")
    assert wanted >= 10
    assert run_theirs(coilmq_tests, "tests/queue_manager/test_logstore.py", "--deselect", BACK_IN_PLACE) == (
        wanted - 1,
        0,
    )
    assert run_theirs(coilmq_tests, BACK_IN_PLACE) == (0, 1)
