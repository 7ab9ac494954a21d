"""Members for tests of the commands: made with ``cluster init``, run as processes, or with sockets in this process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

from kit.command import fine
from kit.patience import PATIENCE_S, wait_until
from kit.ports import free_ports
from kit.serve_process import CommandProcess
from kit.stores import SMALL_SEGMENT
from kit.trio import Trio
from logstore.cluster import config
from logstore.cluster.running import MemberSocket, status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def made(directory: Path, name: str = "m1", *more: object) -> Path:
    """The directory of a new member, the only one of its cluster."""
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    fine("cluster", "init", directory, "--name", name, "--listen", listen, "--segment-size", SMALL_SEGMENT, *more)
    return directory


def leads(directory: Path, host: str = "main") -> dict[str, Any]:
    """The status of the running member, once it serves the host."""

    def look() -> dict[str, Any] | None:
        found = status(directory)
        serves = any(one["host"] == host and one["state"] == "leads" for one in found["hosts"])
        return found if serves else None

    found = wait_until(look, "the member serves")
    assert found is not None
    return found


class MemberProcess(CommandProcess):
    """One run of ``cluster run``. Its error output goes to a file beside the directory."""

    def __init__(self, directory: Path, *options: str) -> None:
        errors = directory.with_name(directory.name + ".stderr")
        super().__init__(errors, "cluster", "run", "--dir", directory, *options)


@contextlib.contextmanager
def running(directory: Path) -> Iterator[MemberProcess]:
    process = MemberProcess(directory)
    try:
        yield process
    finally:
        process.kill()


@contextlib.contextmanager
def sockets(trio: Trio) -> Iterator[None]:
    """The sockets of the running members of a trio, each with its configuration in its directory."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    opened = []
    for number, member in trio.members.items():
        given = trio.config(number)
        file = config.MemberFile(name=given.name, member=number, cluster=given.cluster, listen=given.listen)
        config.write(trio.directories[number], file)
        opened.append(MemberSocket(trio.directories[number], file, member))
        asyncio.run_coroutine_threadsafe(opened[-1].start(), loop).result(PATIENCE_S)
    try:
        yield
    finally:
        for one in opened:
            asyncio.run_coroutine_threadsafe(one.stop(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
