"""A separate disk under a real file system: mkfs, a loop device over the logging disk, mount; and their removal.

Everything is in one directory whose name begins with PREFIX, and its owner process holds a lock in it. So the remains
of a killed run are recognised by name and free lock, and the next run unmounts, detaches and removes them. Nothing else
is ever touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.patience import PATIENCE_S
from kit.real_disk_log import BaseImage, Cut, DiskLog, leave
from kit.real_disk_server import CONTROL_BYTES, NAME, control_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "logstore-disk-"
SERVER = Path(__file__).with_name("real_disk_server.py")
ROOM_BYTES = 1 << 30  # bytes for the images and logs of one run, in memory if there is enough

MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-J", "size=4", "-E", "lazy_itable_init=0,nodiscard"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K"],
}
IMAGE_BYTES = {"ext4": 96 << 20, "xfs": 320 << 20}  # the smallest xfs has 300 MiB
# No background writes during the tests; requested writes are not delayed.
OPTIONS = {"ext4": "noatime,commit=600", "xfs": "noatime"}
NO_UUID = {"ext4": "", "xfs": ",nouuid"}  # for images of a disk that is mounted itself
PACKAGES = {
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "filefrag": "e2fsprogs",
    "losetup": "mount",
    "mount": "mount",
    "umount": "mount",
}


def lacking(file_system: str) -> tuple[list[str], list[str]]:
    """What such a disk needs and is not here: of the machine, and packages."""
    missing = []
    if os.geteuid() != 0:
        missing.append("root")
    missing += [device for device in ("/dev/fuse", "/dev/loop-control") if not os.access(device, os.R_OK | os.W_OK)]
    known = Path("/proc/filesystems").read_text().split()
    missing += [f"{name} in the kernel" for name in ("fuse", file_system) if name not in known]
    tools = (MKFS[file_system][0], "filefrag", "losetup", "mount", "umount")
    packages = sorted({PACKAGES[tool] for tool in tools if shutil.which(tool) is None})
    try:
        found = importlib.util.find_spec("mfusepy") is not None and importlib.import_module("mfusepy") is not None
    except OSError:
        found = False
    packages += [] if found else ["mfusepy with libfuse3 (fuse3)"]
    return missing, packages


def need(file_system: str) -> None:
    """Skips the test, loudly, where such a disk cannot be had; a package that is missing in CI fails it."""
    missing, packages = lacking(file_system)
    if missing:
        pytest.skip(f"SKIPPED LOUDLY: no real disk here, without {', '.join(missing)}; {file_system} was NOT tried")
    if packages:
        said = f"no real disk here, without the packages {', '.join(packages)}; {file_system} was NOT tried"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(said)
        pytest.skip(f"SKIPPED LOUDLY: {said}")


def run(*command: object) -> str:
    """The command's output; its failure fails the test."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}"
    return done.stdout.strip()


# ---- a place, and the remains of other runs ----


def _roots() -> list[Path]:
    return [Path(root) for root in ("/dev/shm", tempfile.gettempdir()) if os.access(root, os.W_OK)]


def _claim(place: Path) -> int | None:
    """The lock of the place's owner; None while another process holds it."""
    lock = os.open(place / "owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _mounts_below(place: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in reversed(points) if point.startswith(f"{place}/")]


def _loops_below(place: Path) -> list[str]:
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # detached meanwhile
            if backing.read_text().startswith(f"{place}/"):
                found.append(f"/dev/{backing.parts[3]}")
    return found


def take_apart(place: Path) -> None:
    """Unmounts, detaches and removes everything in a place; lazily if a mount hangs."""
    for disk_too in (False, True):  # the loop device holds the file system that its disk is in
        for point in _mounts_below(place):
            if not disk_too and Path(point).name == "fuse":
                continue
            if subprocess.run(["umount", point], capture_output=True, check=False).returncode != 0:
                subprocess.run(["umount", "-l", point], capture_output=True, check=False)
        for device in _loops_below(place):
            subprocess.run(["losetup", "-d", device], capture_output=True, check=False)
    shutil.rmtree(place, ignore_errors=True)


def sweep() -> list[Path]:
    """Removes the remains of runs that died."""
    swept = []
    for root in _roots():
        for place in root.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):  # its owner is just removing it
                lock = _claim(place)
                if lock is not None:
                    take_apart(place)
                    os.close(lock)
                    swept.append(place)
    return swept


def _new_place() -> tuple[Path, int]:
    """A new directory and its owner's lock. If a sweep removes the directory before the lock is taken, makes another
    one.
    """
    roots = [root for root in _roots() if shutil.disk_usage(root).free >= ROOM_BYTES]
    while True:
        place = Path(tempfile.mkdtemp(prefix=PREFIX, dir=roots[0] if roots else None))
        with contextlib.suppress(FileNotFoundError):
            lock = _claim(place)
            if lock is not None and place.exists():
                return place, lock
            if lock is not None:
                os.close(lock)


@contextlib.contextmanager
def place_of_ones_own() -> Iterator[Path]:
    """A directory, in memory if there is room; always removed at the end."""
    sweep()
    place, lock = _new_place()
    try:
        yield place
    finally:
        take_apart(place)
        os.close(lock)


# ---- the disk ----


class RealDisk:
    """A file system on a disk that logs all writes. `path` is its mount point."""

    def __init__(self, place: Path, file_system: str) -> None:
        self.place = place
        self.file_system = file_system
        self.path = place / "mounted"
        self.device = ""
        self._image = place / "image"
        self._log = place / "log"
        self._fuse = place / "fuse"
        for directory in (self.path, self._fuse):
            directory.mkdir(exist_ok=True)
        self._image.write_bytes(b"")
        os.truncate(self._image, IMAGE_BYTES[file_system])
        run(*MKFS[file_system], self._image)
        self.control_path = place / "control"
        self._begin()

    def _begin(self) -> None:
        """Serves the image, with a log that begins now."""
        self.base = BaseImage(self._image)
        self._log.write_bytes(b"")
        self.control_path.write_bytes(bytes(CONTROL_BYTES))
        self.control = control_of(self.control_path)
        self._serve()

    def lose_power(self, cut: Cut, *, forgetful: bool = False) -> int:
        """The disk as the cut leaves it, mounted again; its users are dead. How many writes no flush had covered.

        Whoever kills the users first, and reads ``control.entries`` for the position then, loses nothing that they
        could tell others to be forced.
        """
        self.end()
        unflushed = leave(self.base, self.log(), cut, self._image, forgetful=forgetful)
        self._begin()
        self.mount()
        return unflushed

    def _serve(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, SERVER, self._image, self._log, self.control_path, self._fuse],
            stderr=(self.place / "said").open("wb"),
        )
        until = time.monotonic() + PATIENCE_S
        while not os.path.ismount(self._fuse):
            assert self._server.poll() is None, f"the disk did not start: {(self.place / 'said').read_text()}"
            assert time.monotonic() < until, "the disk does not come"
            time.sleep(0.005)
        self.device = run("losetup", "--find", "--show", "--direct-io=on", self._fuse / NAME)

    def mount(self) -> None:
        run("mount", "-t", self.file_system, "-o", OPTIONS[self.file_system], self.device, self.path)

    def unmount(self) -> None:
        """Unmount; no process uses the file system any more."""
        run("umount", self.path)

    def end(self) -> None:
        """Remove everything: the file system if it is mounted, the device, the server."""
        if os.path.ismount(self.path):
            self.unmount()
        run("losetup", "-d", self.device)
        until = time.monotonic() + PATIENCE_S
        while subprocess.run(["umount", self._fuse], capture_output=True, check=False).returncode != 0:
            assert time.monotonic() < until, "the disk's own file system stays busy"
            time.sleep(0.005)  # the device lets go of the file a moment after it is detached
        self._server.wait(PATIENCE_S)

    def log(self) -> DiskLog:
        return DiskLog(self._log)


@contextlib.contextmanager
def real_disk(file_system: str) -> Iterator[RealDisk]:
    """A disk, made and mounted, in a place of its own."""
    need(file_system)
    with place_of_ones_own() as place:
        disk = RealDisk(place, file_system)
        disk.mount()
        yield disk


@contextlib.contextmanager
def mounted(image: Path, file_system: str) -> Iterator[Path]:
    """An image mounted beside it, through a loop device that goes with the mount."""
    point = image.with_name(f"{image.name}-mounted")
    point.mkdir(exist_ok=True)
    run("mount", "-t", file_system, "-o", f"loop,{OPTIONS[file_system]}{NO_UUID[file_system]}", image, point)
    try:
        yield point
    finally:
        run("umount", point)
