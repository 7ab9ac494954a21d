"""The core's interface for tests, as ``ffi`` and ``lib``: the simulated disk, and the codec field by field.

It is a separate extension module (csrc/tests/sim/testing.h), built on first use and whenever its sources change; the
installed package does not contain it. :func:`for_core` converts a disk for the core.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from cffi import FFI

from kit.stores import ROOT
from logstore import _build_core, _core

NAME = "_logstore_testing"
HEADER = ROOT / "csrc/tests/sim/testing.h"
SOURCES = sorted(
    path
    for folder in ("tests/sim", "format", "os")
    for path in (ROOT / "csrc" / folder).glob("*.c")
    if not path.name.startswith("consensus")  # a program of its own
)
BUILT = ROOT / "build/testing"


def _fingerprint() -> str:
    headers = [path for path in (ROOT / "csrc").rglob("*.h") if path.parent.name not in {"proof", "fuzz"}]
    found = hashlib.sha256(sysconfig.get_config_var("EXT_SUFFIX").encode())
    for path in [*SOURCES, *sorted(headers), Path(_build_core.__file__)]:
        found.update(path.as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def _build(into: Path) -> None:
    maker = FFI()
    maker.cdef("typedef struct vfs vfs;\n" + _build_core.declarations(HEADER.read_text(encoding="utf-8")))
    maker.set_source(
        NAME,
        '#include "tests/sim/testing.h"',
        sources=[str(path) for path in SOURCES],
        include_dirs=[str(ROOT / "csrc/include"), str(ROOT / "csrc")],
        extra_compile_args=[*_build_core.COMPILE_FLAGS, "-Wno-missing-field-initializers", "-Wno-unused-parameter"],
        extra_link_args=["-pthread"],
    )
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(maker.compile(tmpdir=scratch))
        into.mkdir(parents=True)
        shutil.copy(made, into / made.name)


def _load() -> Any:
    BUILT.mkdir(parents=True, exist_ok=True)
    ready = BUILT / _fingerprint()
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the workers of one test run start at the same time
        if not list(ready.glob(f"{NAME}*.so")):
            shutil.rmtree(ready, ignore_errors=True)
            _build(ready)
    (path,) = ready.glob(f"{NAME}*.so")
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


_module = _load()
ffi: Any = _module.ffi
lib: Any = _module.lib


def for_core(disk: Any) -> Any:
    """The ``vfs *`` of this module as one of the package's own."""
    return _core.ffi.cast("vfs *", int(ffi.cast("uintptr_t", disk)))
