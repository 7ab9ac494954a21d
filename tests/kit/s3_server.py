"""A server of S3 in a process of its own, on a loopback port: moto's."""

from __future__ import annotations

import itertools
import os
import re
import select
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from kit.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY: Final = "AKIAANYBODY"
SECRET: Final = "s3cret-of-nobody"
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,  # nothing of this machine's user
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
_RUNNING = re.compile(rb"Running on http://127\.0\.0\.1:([0-9]+)")
_paths = itertools.count(1)


class S3Server:
    """The server, until the block ends."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.endpoint = f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def files(self) -> Any:
        """Everything on the server as a file system of pyarrow."""
        fs = pytest.importorskip("pyarrow.fs")
        return fs.S3FileSystem(endpoint_override=self.endpoint, allow_bucket_creation=True)

    def address(self) -> str:
        """A place that nothing uses yet, in a bucket that exists."""
        self.files.create_dir("archive")
        return f"s3://archive/export-{next(_paths)}"


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """The running server; the environment leads to it."""
    pytest.importorskip("moto", reason="moto is not installed: pip install '/path/to/checkout[test]'")
    pytest.importorskip("flask", reason="flask is not installed: pip install '/path/to/checkout[test]'")
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        server = S3Server(process, _port(process))
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("AWS_")]:
                patch.delenv(name)
            for name, value in (ENVIRONMENT | {"AWS_ENDPOINT_URL": server.endpoint}).items():
                patch.setenv(name, value)
            yield server
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def _port(process: subprocess.Popen[bytes]) -> int:
    assert process.stderr is not None
    said, until = b"", time.monotonic() + PATIENCE_S
    while (found := _RUNNING.search(said)) is None:
        ready, _, _ = select.select([process.stderr], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"the server has not begun within {PATIENCE_S} s: {said!r}"
        piece = os.read(process.stderr.fileno(), 1 << 16)
        assert piece, f"the server has ended: {said!r}"
        said += piece
    return int(found[1])
