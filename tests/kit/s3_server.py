"""Servers of S3 on a loopback port: moto in a process of its own, and one that refuses everything."""

from __future__ import annotations

import itertools
import os
import select
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
PROGRAM: Final = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
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
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        said = process.stdout.readline() if ready else b""
        assert said, "the server has not begun"
        server = S3Server(process, int(said))
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("AWS_")]:
                patch.delenv(name)
            for name, value in (ENVIRONMENT | {"AWS_ENDPOINT_URL": server.endpoint}).items():
                patch.setenv(name, value)
            yield server
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@contextmanager
def refusing_server() -> Iterator[dict[str, str]]:
    """The environment that leads to a server which refuses every request at once."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield ENVIRONMENT | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}
        finally:
            server.shutdown()
            thread.join()


class _Refusing(BaseHTTPRequestHandler):
    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        said = b"<Error><Code>AccessDenied</Code><Message>not for you</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _refuse  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""
