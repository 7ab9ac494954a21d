"""Builds the extension modules ``logstore._core`` from ``csrc/`` (cffi, out of line, API mode) and ``logstore._hot``.

Python sees the declarations in ``csrc/include/logstore.h`` between ``/* cffi:begin */`` and ``/* cffi:end */``. The
binding is generated from the header, so this file names no function. Only setuptools imports it, through ``setup.py``;
nothing does at run time. ``_hot`` is CPython's own binding of a few calls; it is not linked with the core.

Assertions of the core stay on in every build. ``LOGSTORE_SANITIZE=address,undefined`` (or ``thread``) in the
environment adds the sanitizers; ``CC`` chooses the compiler, as always.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from cffi import FFI
from setuptools import Extension

ROOT = Path(__file__).resolve().parent.parent
HEADER = Path("csrc/include/logstore.h")  # relative to ROOT, like all paths for setuptools

BEGIN = "/* cffi:begin */"
END = "/* cffi:end */"

COMPILE_FLAGS = [
    "-std=c11",
    "-O2",
    "-g",
    "-D_GNU_SOURCE",
    "-fvisibility=hidden",
    "-pthread",
    "-UNDEBUG",  # setuptools passes on the interpreter's own -DNDEBUG
    "-Wall",
    "-Wextra",
]

SANITIZERS = frozenset({"address", "undefined", "thread"})

# The code that cffi generates cannot be changed here.
PREAMBLE = """
#include "logstore.h"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
"""

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DEFINE = re.compile(r"#\s*define\s+([A-Za-z_]\w*)(\(?)(.*)")
_ARITHMETIC = re.compile(r"[\w\s()+\-*/~|&^<>]*\d[\w\s()+\-*/~|&^<>]*")
_INTEGER_MACRO = re.compile(r"\bU?INT(?:8|16|32|64)_C\b")
_NAME_INSIDE = re.compile(r"\b[A-Za-z_]")


def declarations(header: str) -> str:
    """The C declarations of the public header in the form that ``FFI.cdef`` accepts.

    Removes comments and keeps line numbers. Every ``#define NAME number`` becomes ``#define NAME ...``, so that the
    compiler fills in the value.
    """
    if header.count(BEGIN) != 1 or header.count(END) != 1 or header.index(BEGIN) > header.index(END):
        raise SystemExit(f"{HEADER}: needs exactly one line {BEGIN!r} and, after it, one line {END!r}")
    before, rest = header.split(BEGIN)
    bare = _COMMENT.sub(lambda found: "\n" * found.group().count("\n") or " ", rest.split(END)[0])
    first_line = before.count("\n") + 1
    return "\n".join(_declaration(line.rstrip(), first_line + index) for index, line in enumerate(bare.split("\n")))


def _declaration(line: str, number: int) -> str:
    if not line.lstrip().startswith("#"):
        return line
    define = _DEFINE.fullmatch(line.strip())
    if define is None or define[2] or not _is_number(define[3]):
        raise SystemExit(f"{HEADER}:{number}: only '#define NAME number' may stand here, not: {line.strip()}")
    return f"#define {define[1]} ..."


def _is_number(value: str) -> bool:
    bare = _INTEGER_MACRO.sub("", value)
    return _ARITHMETIC.fullmatch(bare) is not None and _NAME_INSIDE.search(bare) is None


def sanitizer_flags(wanted: str) -> list[str]:
    """Flags of compiler and linker for a value of ``LOGSTORE_SANITIZE``; ``-O1`` builds in half the time."""
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = sorted(set(names) - SANITIZERS)
    if unknown:
        raise SystemExit(f"LOGSTORE_SANITIZE: {unknown[0]!r} is none of {', '.join(sorted(SANITIZERS))}")
    if not names:
        return []
    return [f"-fsanitize={','.join(names)}", "-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]


def whole_program_flags() -> list[str]:
    """``-O3 -flto`` if the compiler and its linker support it: many calls between the core's files are short.

    It saves a sixth of the instructions of a publish and a third of those of a dequeue
    (docs/decisions/python-boundary.md).
    """
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as made:
        source = Path(made) / "probe.c"
        source.write_text("int probe(void) { return 0; }\n", encoding="ascii")
        built = ["-fPIC", "-shared", "-o", str(source.with_suffix(".so")), str(source)]
        for flags in (["-O3", "-flto=auto"], ["-O3", "-flto"]):
            try:
                done = subprocess.run([*compiler, *flags, *built], capture_output=True, check=False)
            except OSError:
                return []
            if done.returncode == 0:
                return flags
    return []


@functools.cache
def optional_flags() -> tuple[str, ...]:
    """The sanitizers of ``LOGSTORE_SANITIZE``; without them the flags that make a program of all files."""
    return tuple(sanitizer_flags(os.environ.get("LOGSTORE_SANITIZE", "")) or whole_program_flags())


def hot_files(suffix: str) -> list[str]:
    """The files of ``logstore._hot`` with this suffix, relative to the checkout."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "logstore/_hot").glob(f"*{suffix}"))


def core_files(suffix: str) -> list[str]:
    """The files of the core with this suffix, relative to the checkout. ``consensus`` is a module of its own."""
    found = (path.relative_to(ROOT) for path in (ROOT / "csrc").rglob(f"*{suffix}"))
    return sorted(path.as_posix() for path in found if path.parts[1] not in {"consensus", "tests"})


def builder() -> FFI:
    """The cffi builder that ``cffi_modules`` in ``setup.py`` names."""
    header = ROOT / HEADER
    if not header.is_file():
        raise SystemExit(f"{HEADER} is missing: build from a whole checkout or a source distribution")
    ffi = FFI()
    ffi.cdef(declarations(header.read_text(encoding="utf-8")))
    ffi.set_source(
        "logstore._core",
        PREAMBLE,
        sources=core_files(".c"),
        include_dirs=["csrc/include", "csrc"],
        depends=core_files(".h") + core_files(".def"),
        extra_compile_args=[*COMPILE_FLAGS, *optional_flags()],
        extra_link_args=["-pthread", *optional_flags()],
    )
    return ffi


def hot() -> Extension:
    """The extension ``logstore._hot``. It uses the full API of CPython (docs/decisions/python-boundary.md)."""
    return Extension(
        "logstore._hot",
        sources=hot_files(".c"),
        include_dirs=["csrc/include"],
        depends=[*hot_files(".h"), *(f"csrc/include/{name}" for name in ("logstore.h", "logstore_calls.h"))],
        extra_compile_args=[*COMPILE_FLAGS, *optional_flags()],
        extra_link_args=["-pthread", *optional_flags()],
    )
