"""Late imports: of modules that ``import logstore`` does not load, made by the call that first needs them.

A signal handler or a finalizer runs on the thread that it interrupts, also in the middle of an import. If it needs the
same module, Python gives it the half-initialised one, and a name of it is missing: an ``ImportError`` or
``AttributeError``. So a function that imports late calls :func:`late` with the module's name before its ``import``.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from logstore.errors import ReentrantCall

if TYPE_CHECKING:
    from types import CodeType, FrameType

_HALF = "partially initialized module"  # so Python's errors call it


def late(name: str) -> Any:
    """Imports the module, and returns it, initialised completely.

    Raises ``ReentrantCall`` if this thread is in the middle of importing it, or something that it needs. Other errors
    are those of ``import``, such as ``ModuleNotFoundError``.
    """
    module = sys.modules.get(name)
    if module is not None and not _is_initializing(module):
        return module
    frame = sys._getframe(1)
    if module is not None and _is_importing(module, frame):
        raise _refusal(name)
    try:
        made = importlib.import_module(name)
    except Exception as problem:
        if isinstance(problem, ModuleNotFoundError):
            raise
        if _HALF in str(problem) or _is_below(frame, late.__code__):
            raise _refusal(name) from problem
        raise
    if _is_initializing(made) and _is_importing(made, frame):
        raise _refusal(name)
    return made


def _is_initializing(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _is_importing(module: Any, frame: FrameType | None) -> bool:
    """Whether this stack is in the module's own code: else another thread imports it, which Python waits for."""
    names = vars(module)
    while frame is not None:
        if frame.f_globals is names and frame.f_code.co_name == "<module>":
            return True
        if frame.f_code.co_name == "_find_and_load" and frame.f_locals.get("name") == module.__name__:
            return True  # between two steps of Python's own
        frame = frame.f_back
    return False


def _is_below(frame: FrameType | None, code: CodeType) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def _refusal(name: str) -> ReentrantCall:
    return ReentrantCall(
        f"this call needs the module {name}, which this thread is in the middle of importing: a signal handler or a "
        "finalizer called the library during its first use; make the call later, or from another thread, or import "
        f"{name} at the start of the program"
    )
