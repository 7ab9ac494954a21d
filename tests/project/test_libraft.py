"""The source of libraft: where it comes from, what is refused, and what is built without it.

A small tree stands for the source, and a program in apt's place hands it out; only the hash of the copy differs.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from kit.checkouts import checkout, quick_compiler
from kit.stores import ROOT

BUILDER = ROOT / "logstore" / "_build_consensus.py"
RULES = runpy.run_path(str(BUILDER))
HEADER = """#define RAFT__LEGACY_@enable_v0@
#define RAFT_VERSION_MAJOR 0
#define RAFT_VERSION_MINOR {minor}
#define RAFT_VERSION_RELEASE 1
"""


def tree(where: Path, minor: int = 22) -> Path:
    """The files of libraft's source by name."""
    for name in ("src", "include"):
        (where / name).mkdir(parents=True)
    (where / "include" / "raft.h.in").write_text(HEADER.format(minor=minor))
    (where / "LICENSE").write_text("as it comes with libraft\n")
    for name in (*RULES["FILES"], "uv", "legacy"):
        (where / "src" / f"{name}.c").write_text(f"/* {name} */\n")
    (where / "src" / "entry.h").write_text("/* entry */\n")
    return where


def tarball(where: Path) -> Path:
    with tarfile.open(where / RULES["TARBALL"], "w:gz") as files:
        files.add(tree(where / "made"), f"raft-{RULES['VERSION']}")
    return where / RULES["TARBALL"]


class Workshop:
    """A copy of the builder that expects this tarball, and a program in apt's place."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.tarball = tarball(where)
        self.into = where / "build" / "libraft"
        self.builder = where / "_build_consensus.py"
        sha256 = hashlib.sha256(self.tarball.read_bytes()).hexdigest()
        text = BUILDER.read_text("utf-8").replace(RULES["SHA256"], sha256)
        keyring = where / "keyring.gpg"
        keyring.touch()
        self.builder.write_text(text.replace(str(RULES["KEYRING"]), str(keyring)))
        self.apt(f"cp {self.tarball} .")

    def apt(self, source: str) -> None:
        """What apt does when it is asked for the source."""
        (self.where / "bin").mkdir(exist_ok=True)
        program = self.where / "bin" / "apt-get"
        program.write_text(
            f'#!/bin/sh\necho "$*" >> {self.where}/asked\ncase "$*" in\n'
            f'indextargets*) echo http://first.invalid/debian/;;\n*" source "*) {source};;\nesac\n'
        )
        program.chmod(0o755)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name not in {"CI", "LOGSTORE_RAFT_SOURCE"}}
        return subprocess.run(
            [sys.executable, self.builder, self.into],
            env=kept | {"PATH": f"{self.where}/bin:{os.environ['PATH']}"} | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def laid(self) -> bool:
        """Whether the source is there, as a build needs it and nothing else."""
        found = {path.relative_to(self.into).as_posix() for path in self.into.rglob("*") if path.is_file()}
        wanted = {f"src/{name}.c" for name in RULES["FILES"]} | {"src/entry.h", "include/raft.h", "LICENSE", "origin"}
        return found == wanted and "RAFT__LEGACY_no\n" in (self.into / "include" / "raft.h").read_text()

    def asked(self) -> int:
        """How often apt was called."""
        calls = self.where / "asked"
        return len(calls.read_text().splitlines()) if calls.exists() else 0


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_apt_brings_the_source_once_with_lists_of_its_own(workshop: Workshop) -> None:
    done = workshop.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert workshop.laid()
    _, update, source = (workshop.where / "asked").read_text().splitlines()
    for option in ("Dir::Etc::sourcelist", "Dir::Etc::sourceparts=/dev/null", "Dir::State::lists", "Dir::Cache"):
        assert f"-o{option}" in update
        assert f"-o{option}" in source
    assert workshop.run().returncode == 0
    shutil.rmtree(workshop.into)
    assert workshop.run().returncode == 0
    assert workshop.laid()
    assert workshop.asked() == 3


def test_a_named_tarball_or_directory_needs_no_network(workshop: Workshop, tmp_path: Path) -> None:
    for named in (workshop.tarball, tmp_path / "made"):
        shutil.rmtree(workshop.into, ignore_errors=True)
        done = workshop.run(LOGSTORE_RAFT_SOURCE=str(named))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert workshop.laid()
    assert workshop.asked() == 0


def test_a_changed_file_of_a_named_directory_is_taken_and_the_others_keep_their_times(
    workshop: Workshop, tmp_path: Path
) -> None:
    named = tmp_path / "made"
    assert workshop.run(LOGSTORE_RAFT_SOURCE=str(named)).returncode == 0
    for path in workshop.into.rglob("*"):
        os.utime(path, (1, 1))
    (named / "src" / "raft.c").write_text("/* changed */\n")
    assert workshop.run(LOGSTORE_RAFT_SOURCE=str(named)).returncode == 0
    assert (workshop.into / "src" / "raft.c").read_text() == "/* changed */\n"
    assert [path.name for path in (workshop.into / "src").iterdir() if path.stat().st_mtime != 1] == ["raft.c"]


def test_a_named_tarball_with_another_hash_is_refused(workshop: Workshop) -> None:
    with workshop.tarball.open("ab") as file:
        file.write(b"\0")
    found = hashlib.sha256(workshop.tarball.read_bytes()).hexdigest()
    done = workshop.run(LOGSTORE_RAFT_SOURCE=str(workshop.tarball))
    assert done.returncode == 1
    assert done.stderr.startswith(f"logstore: LOGSTORE_RAFT_SOURCE={workshop.tarball}: its SHA-256 is {found}, not ")
    assert len(done.stderr.splitlines()) == 1
    assert not workshop.into.exists()


def test_a_fetched_tarball_with_another_hash_is_refused_and_not_kept(workshop: Workshop) -> None:
    workshop.apt(f"echo other > {RULES['TARBALL']}")
    done = workshop.run()
    assert done.returncode == 0
    assert "its SHA-256 is " in done.stderr
    assert not (workshop.into / "origin").exists()
    workshop.apt(f"cp {workshop.tarball} .")
    assert workshop.run().returncode == 0
    assert workshop.laid()


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("nothing", "there is no such file or directory"),
        ("system", "it is not the source of libraft 0.22.1: include/raft.h.in is missing"),
        ("older", "it is the source of libraft 0.17.1; 0.22.1 is needed"),
    ],
)
def test_another_version_and_a_library_of_the_system_are_refused(
    workshop: Workshop, tmp_path: Path, named: str, says: str
) -> None:
    tree(tmp_path / "older", minor=17)
    (tmp_path / "system" / "include").mkdir(parents=True)
    (tmp_path / "system" / "include" / "raft.h").write_text(HEADER.format(minor=22))
    done = workshop.run(LOGSTORE_RAFT_SOURCE=str(tmp_path / named))
    assert (done.returncode, done.stderr) == (1, f"logstore: LOGSTORE_RAFT_SOURCE={tmp_path / named}: {says}\n")


def test_without_the_source_one_line_says_so_and_in_ci_that_is_a_failure(workshop: Workshop) -> None:
    workshop.apt("echo 'E: Unable to find a source package for raft' >&2; exit 100")
    line = (
        "logstore: the cluster is NOT built, everything else is: the source of libraft 0.22.1 cannot be had "
        "(apt-get: Unable to find a source package for raft); name raft_0.22.1.orig.tar.gz with LOGSTORE_RAFT_SOURCE\n"
    )
    done = workshop.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", line)
    done = workshop.run(CI="true")
    assert (done.returncode, done.stderr) == (1, line)


def test_the_line_is_not_repeated_by_the_build_that_follows(workshop: Workshop) -> None:
    workshop.apt("exit 100")
    assert workshop.run().returncode == 0
    asked = workshop.asked()
    assert runpy.run_path(str(workshop.builder))["prepare"](workshop.into) is None
    assert workshop.asked() == asked


def test_without_the_source_a_wheel_has_everything_else(tmp_path: Path) -> None:
    """The marker of a source that was not found, as `make` leaves it, stands for a machine without one."""
    where = checkout(tmp_path / "checkout")
    (where / "build" / "libraft").mkdir(parents=True)
    origin = f"{RULES['VERSION']} {RULES['SHA256']} {' '.join(RULES['FILES'])}\n"
    (where / "build" / "libraft" / "absent").write_text(origin)
    # The core is not compiled: an empty file has the place of each of its sources.
    for path in (where / "csrc").rglob("*.c"):
        path.write_text("")
    names = module_names(where, os.environ | {"LOGSTORE_RAFT_SOURCE": "", "LOGSTORE_CONNECTOR": "no", "CI": ""})
    assert "logstore._consensus" not in names
    assert {"logstore._core", "logstore._hot"} <= names


def module_names(where: Path, environment: dict[str, str]) -> set[str]:
    """The extension modules that a build in this checkout would compile."""
    says = (
        "import sys, runpy; sys.argv = ['setup.py', '--quiet', 'build_ext']\n"
        "from setuptools.command.build_ext import build_ext\n"
        "build_ext.build_extensions = lambda self: print(*(each.name for each in self.extensions))\n"
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", says], cwd=where, env=environment, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def built() -> Path:
    """The source that this checkout was built with."""
    laid = ROOT / "build" / "libraft"
    if not (laid / "origin").exists():
        assert os.environ.get("CI") != "true", "the cluster was not built"
        pytest.skip("the source of libraft could not be had: the cluster is NOT tested")
    return laid


def test_the_module_has_the_version_that_is_pinned_with_its_assertions() -> None:
    built()
    from logstore._consensus import lib

    assert lib.engine_raft_version() == 2201
    (module,) = (ROOT / "logstore").glob("_consensus*.so")
    assert b"__assert_fail" in module.read_bytes()


def test_an_import_of_the_package_does_not_load_it() -> None:
    says = "import logstore, sys; print([name for name in sys.modules if 'consensus' in name])"
    done = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.on_disk
def test_the_wheel_carries_the_module_and_the_licence_of_libraft(tmp_path: Path) -> None:
    licence = (built() / "LICENSE").read_bytes()
    where = checkout(tmp_path / "checkout")
    shutil.copytree(built(), where / "build" / "libraft")
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "--no-index"]
    environment = os.environ | {"CC": str(quick_compiler(tmp_path / "bin")), "LOGSTORE_CONNECTOR": "no"}
    subprocess.run([*command, "-w", tmp_path, where], check=True, env=environment)
    (wheel,) = tmp_path.glob("logstore_engine-*.whl")
    with zipfile.ZipFile(wheel) as files:
        assert "logstore/_consensus.abi3.so" in files.namelist()
        assert files.read("logstore/_consensus.LICENSE") == licence
        (notice,) = (name for name in files.namelist() if name.endswith("/NOTICE"))
        assert b"LGPL-3.0-only WITH LGPL-3.0-linking-exception" in files.read(notice)
        (metadata,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        both = b"License-Expression: Apache-2.0 AND (LGPL-3.0-only WITH LGPL-3.0-linking-exception)\n"
        assert both in files.read(metadata)
        assert b"License-File: NOTICE\n" in files.read(metadata)
        assert not [name for name in files.namelist() if name.endswith((".c", ".h"))]


def test_only_the_engine_includes_libraft() -> None:
    found = [path for path in (ROOT / "csrc").rglob("*.[ch]") if "raft.h>" in path.read_text(errors="replace")]
    assert [path.name for path in found] == ["engine.c"]
