"""Builds the extension module ``logstore._consensus`` from ``csrc/consensus/`` and the source of libraft.

    logstore/_build_consensus.py DIRECTORY    puts the source of libraft into DIRECTORY

libraft 0.22.1 is not part of this project. ``LOGSTORE_RAFT_SOURCE`` names its source: the tarball, which must have the
pinned hash, or an unpacked directory of that version, which may be changed. Otherwise apt downloads the source package
of Debian from the machine's own mirror, with lists of its own, without root, into the directory. A library of the
system is never used, because distributions build it without assertions.

Where the source cannot be had, one line says so, and everything but the cluster is built; with ``CI=true`` that is an
error. Like ``_build_core.py`` this file is used by ``setup.py`` and the Makefile alone. As a program it needs only the
standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
UNPACKED = Path("build/libraft")  # relative to ROOT, like all paths for setuptools

VERSION = "0.22.1"
TARBALL = f"raft_{VERSION}.orig.tar.gz"
SHA256 = "7e45b6f24f3671c9bfd5b146814493f87cb2e560712bd469c1f5969a4b94291a"
SUITE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NO_ANSWER_S = 20  # apt gives up on a mirror that is silent for so long
FETCH_S_MAX = 300

# The core of libraft, which does no I/O. Its other files are for libuv and for the interface of earlier versions.
FILES = (
    "byte",
    "client",
    "configuration",
    "convert",
    "election",
    "entry",
    "err",
    "heap",
    "membership",
    "message",
    "progress",
    "raft",
    "random",
    "recv",
    "recv_append_entries",
    "recv_append_entries_result",
    "recv_install_snapshot",
    "recv_request_vote",
    "recv_request_vote_result",
    "recv_timeout_now",
    "replication",
    "restore",
    "state",
    "syscall",
    "timeout",
    "tracing",
    "trail",
)

# gnu11 as libraft's own build; assertions on; its warnings are not ours.
COMPILE_FLAGS = ["-std=gnu11", "-O2", "-g", "-fvisibility=hidden", "-UNDEBUG", "-w"]


class NoSource(Exception):
    """The source of libraft cannot be had; the text says why."""


def prepare(into: Path, *, again: bool = False) -> Path | None:
    """Puts the source into this directory, unless it is there; None, and a line, where it cannot be had.

    The directory then has ``src/``, ``include/raft.h`` and ``LICENSE``. A source that is named and is wrong ends the
    program. ``again``: looks for it also where an earlier call did not find it.
    """
    named = os.environ.get("LOGSTORE_RAFT_SOURCE", "")
    origin = f"{VERSION} {named or SHA256} {' '.join(FILES)}\n"
    mark = into / "origin"
    if not (named and Path(named).is_dir()) and mark.is_file() and mark.read_text("utf-8") == origin:
        return into
    absent = into / "absent"
    if not again and absent.is_file() and absent.read_text("utf-8") == origin:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="libraft-") as work:
            tree = _named(Path(named), Path(work)) if named else _unpack(_fetch(into.parent, Path(work)), Path(work))
            _lay_out(tree, into)
    except NoSource as error:
        if named:
            raise SystemExit(f"logstore: LOGSTORE_RAFT_SOURCE={named}: {error}") from None
        line = (
            f"logstore: the cluster is NOT built, everything else is: the source of libraft {VERSION} cannot be had "
            f"({error}); name {TARBALL} with LOGSTORE_RAFT_SOURCE"
        )
        if os.environ.get("CI") == "true":
            raise SystemExit(line) from None
        print(line, file=sys.stderr)
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        absent.write_text(origin, "utf-8")
        return None
    mark.write_text(origin, "utf-8")
    return into


def _named(source: Path, work: Path) -> Path:
    if source.is_dir():
        return source
    if not source.is_file():
        raise NoSource("there is no such file or directory")
    return _unpack(source, work)


def _unpack(tarball: Path, work: Path) -> Path:
    found = hashlib.sha256(tarball.read_bytes()).hexdigest()
    if found != SHA256:
        raise NoSource(f"its SHA-256 is {found}, not {SHA256}")
    with tarfile.open(tarball) as files:
        files.extractall(work, filter="data")
    return work / f"raft-{VERSION}"


def _fetch(kept: Path, work: Path) -> Path:
    """Downloads the tarball, or finds the one of an earlier run."""
    tarball = kept / TARBALL
    if tarball.is_file() and hashlib.sha256(tarball.read_bytes()).hexdigest() == SHA256:
        return tarball
    if not shutil.which("apt-get"):
        raise NoSource("apt-get, which downloads it, is not here")
    if not KEYRING.is_file():
        raise NoSource(f"{KEYRING}, which its signature needs, is not here")
    # The target says `.../debian/`; security and others have no source of other suites and fail.
    asked = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", where=work)
    mirrors = [uri for uri in dict.fromkeys(asked.split()) if "security" not in uri]
    why = NoSource("apt knows no mirror")
    for mirror in mirrors:
        try:
            _download(mirror, work)
        except NoSource as error:
            why = error
            continue
        kept.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(work / TARBALL, tarball))
    raise why


def _download(mirror: str, work: Path) -> None:
    (work / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (work / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    (work / "sources.list").write_text(f"deb-src [signed-by={KEYRING}] {mirror} {SUITE} main\n", "utf-8")
    options = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": work / "lists",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "",  # root may be unable to become another user, and the directory is private
        "APT::Update::Error-Mode": "any",
        "Acquire::Retries": 0,
        "Acquire::http::Timeout": NO_ANSWER_S,
        "Acquire::https::Timeout": NO_ANSWER_S,
    }
    apt = ["apt-get", *(f"-o{name}={value}" for name, value in options.items())]
    _run(*apt, "update", where=work)
    _run(*apt, "--download-only", "--tar-only", "source", f"raft/{SUITE}", where=work)


def _run(*command: str, where: Path) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=where,
            env=os.environ | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoSource(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E: ")] or ["it failed"]
        raise NoSource(f"{command[0]}: {lines[0].removeprefix('E: ')}")
    return done.stdout


def _lay_out(tree: Path, into: Path) -> None:
    """Copies the files that are needed; a file that did not change keeps its time, so nothing is compiled again."""
    template = tree / "include" / "raft.h.in"
    wanted = [tree / "src" / f"{name}.c" for name in FILES]
    missing = [path for path in (template, tree / "LICENSE", *wanted) if not path.is_file()]
    if missing:
        raise NoSource(f"it is not the source of libraft {VERSION}: {missing[0].relative_to(tree)} is missing")
    header = template.read_text("utf-8")
    numbers = dict(re.findall(r"#define RAFT_VERSION_(MAJOR|MINOR|RELEASE) (\d+)", header))
    found = ".".join(numbers.get(part, "?") for part in ("MAJOR", "MINOR", "RELEASE"))
    if found != VERSION:
        raise NoSource(f"it is the source of libraft {found}; {VERSION} is needed")
    laid = {Path("include/raft.h"): header.replace("@enable_v0@", "no").encode()}
    for path in (*wanted, *(tree / "src").glob("*.h"), tree / "LICENSE"):
        laid[path.relative_to(tree)] = path.read_bytes()
    for name in [path for path in into.rglob("*") if path.is_file() and path.relative_to(into) not in laid]:
        name.unlink()
    for name, content in laid.items():
        place = into / name
        if not place.is_file() or place.read_bytes() != content:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


# ---- for setup.py ----------------------------------------------------------------------------------------------------


@functools.cache
def core() -> dict[str, Any]:
    """What ``_build_core.py`` defines: the rules for headers and flags are one."""
    return runpy.run_path(str(Path(__file__).with_name("_build_core.py")))


def files(suffix: str) -> list[str]:
    """The files of ``csrc/consensus`` with this suffix, relative to the checkout."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc/consensus").glob(f"*{suffix}"))


def sanitizers() -> list[str]:
    """The flags for the value of ``LOGSTORE_SANITIZE``."""
    found: list[str] = core()["sanitizer_flags"](os.environ.get("LOGSTORE_SANITIZE", ""))
    return found


def library_files() -> list[str]:
    """The C files of libraft, relative to the checkout."""
    return [(UNPACKED / "src" / f"{name}.c").as_posix() for name in FILES]


def builder() -> FFI:
    """The cffi builder that ``cffi_modules`` in ``setup.py`` names; ``setup.py`` adds libraft."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(core()["declarations"]((ROOT / "csrc/consensus/engine.h").read_text("utf-8")))
    ffi.set_source(
        "logstore._consensus",
        core()["PREAMBLE"].replace("logstore.h", "consensus/engine.h"),
        sources=files(".c"),
        include_dirs=["csrc", (UNPACKED / "include").as_posix()],
        depends=files(".h"),
        extra_compile_args=[*core()["COMPILE_FLAGS"], *sanitizers()],
        extra_link_args=sanitizers(),
    )
    return ffi


if __name__ == "__main__":
    prepare(Path(sys.argv[1]).resolve(), again=True)
