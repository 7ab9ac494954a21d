"""The core makes its system calls through one table, and makes only the permitted ones.

There are two checks: of the object files, of which only os-vfs_posix.o can reach a file, and of a C program under a
tracer from its first call to its last.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit.stores import ROOT

CORE = sorted(
    path for path in (ROOT / "csrc").rglob("*.c") if path.relative_to(ROOT).parts[1] not in ("consensus", "tests")
)
FLAGS = ["-std=c11", "-O0", "-D_GNU_SOURCE", "-pthread", f"-I{ROOT / 'csrc/include'}", f"-I{ROOT / 'csrc'}"]

FILE_CALLS = re.compile(
    r"^_*(?:open|openat|creat|close|read|pread|preadv2?|readv|write|pwrite|pwritev2?|writev|lseek|fsync|fdatasync|sync|"
    r"syncfs|sync_file_range|rename|renameat2?|unlink|unlinkat|remove|link|linkat|symlink|symlinkat|readlink|readlinkat|"
    r"mkdir|mkdirat|rmdir|mmap|munmap|msync|mremap|truncate|ftruncate|fallocate|posix_fallocate|posix_fadvise|fadvise|sync_file_range|"
    r"readahead|flock|lockf|fcntl|ioctl|dup[23]?|opendir|fdopendir|readdir|readdir_r|scandir|closedir|f?stat|lstat|"
    r"fstatat|statx|f?xstat|fxstatat|statfs|access|faccessat|chmod|fchmod|fchmodat|chown|umask|mkstemp|mkdtemp|tmpfile|"
    r"fopen|fdopen|freopen|fclose|fread|fwrite|fputs|fgets|fflush|f?printf|puts|sendfile|splice|copy_file_range|"
    r"eventfd|eventfd_read|eventfd_write|getrandom|getentropy|clock_gettime|gettimeofday|time|syscall)(?:64)?(?:_chk|_2)?$"
)


@pytest.fixture(scope="module")
def compiler() -> str:
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name
    pytest.skip("SKIPPED LOUDLY: no C compiler is here; the core's system calls were NOT checked")


@pytest.fixture(scope="module")
def objects(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every file of the core, compiled separately."""
    out = tmp_path_factory.mktemp("objects")
    made = [out / f"{source.parent.name}-{source.stem}.o" for source in CORE]
    running = [
        subprocess.Popen([*compiler.split(), *FLAGS, "-c", "-o", str(target), str(source)])
        for source, target in zip(CORE, made, strict=True)
    ]
    assert [process.wait() for process in running] == [0] * len(made)
    return made


@pytest.fixture(scope="module")
def workload(compiler: str, objects: list[Path]) -> Path:
    program = objects[0].parent / "workload"
    source = ROOT / "tests" / "c" / "workload.c"
    subprocess.run([*compiler.split(), *FLAGS, "-o", str(program), str(source), *map(str, objects)], check=True)
    return program


def test_no_object_but_the_systems_own_can_reach_a_file(objects: list[Path]) -> None:
    if shutil.which("nm") is None:
        pytest.skip("SKIPPED LOUDLY: nm is not here; the objects were NOT looked into")
    reaches = {}
    for made in objects:
        listed = subprocess.run(["nm", "--undefined-only", str(made)], capture_output=True, text=True, check=True)
        names = [line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()]
        reaches[made.name] = sorted(name for name in names if FILE_CALLS.match(name))
    posix = set(reaches.pop("os-vfs_posix.o"))
    assert {"openat", "fdatasync", "flock"} <= {name.removesuffix("64") for name in posix}  # the check sees calls
    assert {name: calls for name, calls in reaches.items() if calls} == {}


# ---- under the tracer ----


@dataclass
class Call:
    phase: str
    name: str
    arguments: str
    result: str


@pytest.fixture(scope="module")
def traced(workload: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    """The store's directory, and every call of the workload with its phase."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("SKIPPED LOUDLY: strace is not here; the workload was NOT watched")
    directory = tmp_path_factory.mktemp("traced") / "store"
    trace = directory.parent / "trace"
    command = [strace, "-f", "-y", "-s", "64", "-o", str(trace), str(workload), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0 and "ptrace" in done.stderr:
        pytest.skip(
            f"SKIPPED LOUDLY: tracing is not allowed here ({done.stderr.strip()}); the workload was NOT watched"
        )
    assert done.returncode == 0, done.stderr
    return directory, parsed(trace.read_text())


def parsed(trace: str) -> list[Call]:
    """Calls in the order of their starts; the two lines of an interrupted call are joined."""
    calls: list[Call] = []
    unfinished: dict[str, Call] = {}
    phase = ""
    for line in trace.splitlines():
        pid, _, rest = line.partition(" ")
        rest = rest.strip()
        resumed = re.match(r"<\.\.\. (\w+) resumed>(.*?)\)?\s+= (.*)$", rest)
        if resumed and pid in unfinished:
            call = unfinished.pop(pid)
            call.arguments += resumed[2]
            call.result = resumed[3]
            continue
        begun = re.match(r"(\w+)\((.*?)(?: <unfinished \.\.\.>|\)\s+= (.*))$", rest)
        if begun is None:
            continue
        told = re.search(r'"phase (\w+)\\n"', begun[2]) if begun[1] == "write" else None
        if told:
            phase = told[1]
            continue
        calls.append(Call(phase, begun[1], begun[2], begun[3] or ""))
        if begun[3] is None:
            unfinished[pid] = calls[-1]
    return [call for call in calls if call.phase not in ("", "end")]  # calls of the loader are not the core's


def test_the_workload_opens_only_its_own_directory_and_never_follows_a_link(traced: tuple[Path, list[Call]]) -> None:
    directory, calls = traced
    opens = [call for call in calls if call.name in ("open", "openat", "openat2", "creat")]
    assert len(opens) > 20
    assert {call.name for call in opens} == {"openat"}
    for call in opens:
        at, name, flags = re.match(r'([^,]*), "([^"]*)", ([A-Z_|]+)', call.arguments).groups()  # type: ignore[union-attr]
        assert "O_CLOEXEC" in flags, call
        if at.startswith("AT_FDCWD"):
            assert Path(name) in (directory, directory.parent), call
            assert "O_DIRECTORY" in flags, call
            continue
        assert "O_NOFOLLOW" in flags or (name == "." and "O_DIRECTORY" in flags), call
        assert "/" not in name, call
        below = re.search(r"<(.*?)>", at)
        assert below is not None
        assert Path(below[1]) in (directory, directory / "holds"), call
    made = [call for call in opens if "O_CREAT" in call.arguments]
    assert made
    assert all(call.arguments.rstrip(")").endswith("0600") for call in made)


def test_every_call_on_a_file_is_on_one_below_the_directory(traced: tuple[Path, list[Call]]) -> None:
    directory, calls = traced
    touching = (
        "pwrite64",
        "pread64",
        "fdatasync",
        "fsync",
        "fallocate",
        "ftruncate",
        "flock",
        "getdents64",
        "write",
        "read",
    )
    seen = set()
    for call in calls:
        if call.name in touching:
            target = re.match(r"\d+<(.*?)>", call.arguments)
            assert target is not None, call
            if target[1].startswith("anon_inode:[eventfd"):
                continue
            assert Path(target[1].removesuffix(" (deleted)")).is_relative_to(directory.parent), call
            seen.add(call.name)
        elif call.name in (
            "rename",
            "unlink",
            "mkdir",
            "stat",
            "lstat",
            "truncate",
            "link",
            "symlink",
            "chmod",
            "rmdir",
        ):
            pytest.fail(f"a call by path: {call}") if call.name != "mkdir" else None
    assert {"pwrite64", "pread64", "fdatasync", "fsync", "flock"} <= seen


def test_no_file_is_ever_mapped(traced: tuple[Path, list[Call]]) -> None:
    _, calls = traced
    maps = [call for call in calls if call.name == "mmap"]
    assert maps  # at least the threads' stacks
    assert [call for call in maps if "MAP_ANONYMOUS" not in call.arguments] == []


def test_one_sync_for_each_durable_publish_and_one_for_each_commit(traced: tuple[Path, list[Call]]) -> None:
    _, calls = traced

    def syncs(phase: str) -> int:
        return sum(call.phase == phase and call.name == "fdatasync" for call in calls)

    assert syncs("durable") == 20
    assert syncs("commits") == 5


def test_a_batch_is_one_write_of_whole_blocks(traced: tuple[Path, list[Call]]) -> None:
    _, calls = traced
    into = "/0000000000080000.seg>"  # the log's first segment; meanwhile spares are made
    writes = [call for call in calls if call.phase == "durable" and call.name == "pwrite64" and into in call.arguments]
    assert len(writes) == 20
    for call in writes:
        size, offset = map(int, re.search(r", (\d+), (\d+)$", call.arguments).groups())  # type: ignore[union-attr]
        assert size % 4096 == offset % 4096 == 0


def test_a_file_is_synced_before_its_rename_and_the_directory_after(traced: tuple[Path, list[Call]]) -> None:
    directory, calls = traced
    names = [(call.name, call.arguments) for call in calls]
    renamed = next(
        i for i, (name, arguments) in enumerate(names) if name.startswith("rename") and '"META.new"' in arguments
    )
    before, after = names[:renamed], names[renamed + 1 :]
    assert any(name in ("fsync", "fdatasync") and "/META.part>" in arguments for name, arguments in before)
    assert any(
        name == "fsync" and re.match(rf"\d+<{re.escape(str(directory))}>", arguments) for name, arguments in after[:3]
    )
