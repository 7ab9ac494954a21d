"""Interrupts the package at an exact step: with a signal handler's exception, or with its call into the library.

A step is a line of the package, or a point at which CPython checks for signals: the entry of a function, the return of
a call, a backward jump. The callback runs on the stack of the interrupted code, as a signal handler does.
"""

from __future__ import annotations

import dis
import functools
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import logstore

PACKAGE = str(Path(logstore.__file__).parent)
_LOOKS_AFTER = ("CALL", "RESUME")


# Before Python 3.13 an exception between logging's acquire and its `try` leaves logging's lock held for ever, and
# blocks
# every other thread that logs. That is not the package's fault, and would stop later tests.
_NOT_INTERRUPTED = logging.__file__


class Interrupted(BaseException):
    """Raised by a signal handler."""


@functools.cache
def _steps(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions before which CPython checks for signals."""
    found: set[int] = set()
    after = False
    for one in dis.get_instructions(code):
        if after:
            found.add(one.offset)
        after = one.opname.startswith(_LOOKS_AFTER)
        if one.opname.startswith("JUMP_BACKWARD"):
            found.add(int(one.argval))
    return frozenset(found)


def run(call: Callable[[], object], at: int, then: Callable[[], object], *, within: str = PACKAGE) -> bool:
    """Calls it, and ``then`` at the given step, where ``then`` may raise; whether that step was reached."""
    left = at

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "line" or (event == "opcode" and frame.f_lasti in _steps(frame.f_code)):
            left -= 1
            if left == 0:
                sys.settrace(None)
                then()
                sys.settrace(None)
        return local

    def entered(frame: FrameType, _event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if left <= 0 or file == _NOT_INTERRUPTED or not file.startswith(within):
            return None
        frame.f_trace_opcodes = True
        return local

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        call()
    finally:
        sys.settrace(before)
    return left <= 0


def every_step(
    call: Callable[[int], object], then: Callable[[], object], *, stride: int = 1, within: str = PACKAGE
) -> Iterator[tuple[int, bool]]:
    """Calls it repeatedly, interrupted one step later each time; yields the number, and whether it ended normally."""
    for number in range(1, 1 << 20):
        ended = reached = True
        try:
            reached = run(lambda: call(number), number * stride, then, within=within)  # noqa: B023 - called at once
        except Interrupted:
            ended = False
        if not reached:
            return
        yield number, ended  # outside the except block, so that the exception and the objects of its frames are freed


def interrupt() -> None:
    """A handler that raises, as Ctrl-C's does."""
    raise Interrupted
