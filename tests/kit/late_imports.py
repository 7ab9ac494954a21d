"""Makes a public call while the same call, on the same thread, is in its first import. A program.

``python -m kit.late_imports DIRECTORY CALL``. The call is made in a process that has imported what ``import logstore``
loads, and what the preparation needs. A handler makes the same call at every 37th line of the modules that it imports;
at every line if LOGSTORE_TORTURE_S is set. Prints as JSON how often the handler was entered, how often it was refused,
and what was found.
"""

from __future__ import annotations

import itertools
import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import logstore
from kit.torture import tortured
from logstore import MessageStore, ReentrantCall
from logstore.core.imports import late

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

NUMBERS = itertools.count()
STRIDE = 37


def _opened(place: Path) -> MessageStore:
    store = logstore.open(place / f"p{next(NUMBERS)}")
    queue = store.declare_queue("q")
    store.publish(queue, b"x")
    return store


def _open(place: Path) -> Callable[[], object]:
    return lambda: logstore.open(place / f"o{next(NUMBERS)}").close()


def _backup(place: Path) -> Callable[[], object]:
    store = _opened(place)
    return lambda: store.backup(place / f"b{next(NUMBERS)}")


def _scrubbed(place: Path) -> Callable[[], object]:
    return lambda: logstore.open(place / f"s{next(NUMBERS)}", scrub_rate=1e6).close()


def _on_store(call: Callable[[MessageStore], object]) -> Callable[[Path], Callable[[], object]]:
    def prepare(place: Path) -> Callable[[], object]:
        store = _opened(place)
        return lambda: call(store)

    return prepare


def _on_path(module: str, call: Callable[[Any, Path, Path], object]) -> Callable[[Path], Callable[[], object]]:
    """A call of a function of a module that is not imported yet, on the directory of a closed store."""

    def prepare(place: Path) -> Callable[[], object]:
        store = _opened(place)
        store.close()
        return lambda: call(late(module), store.path, place / f"t{next(NUMBERS)}")

    return prepare


CALLS: dict[str, Callable[[Path], Callable[[], object]]] = {
    "open": _open,
    "open with scrub_rate": _scrubbed,
    "MessageStore.backup": _backup,
    "MessageStore.stats": _on_store(lambda store: store.stats()),
    "MessageStore.tail": _on_store(lambda store: store.tail()),
    "salvage": _on_path("logstore.salvage", lambda module, path, target: module.salvage(path, target)),
}


class Handler:
    """Enters the call again at every 37th line of the modules that the call imports."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.lines = self.entered = self.refused = 0
        self.findings: list[str] = []
        self._inside = False

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """The tracer."""
        if event == "call" and frame.f_code.co_name == "<module>" and not self._inside:
            return self._line
        return None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        self.lines += 1
        if event in ("line", "return") and not self._inside and (tortured() or self.lines % STRIDE == 1):
            self._enter(str(frame.f_globals.get("__name__")))
        return None if event == "line" else self._line

    def _enter(self, module: str) -> None:
        self._inside = True
        self.entered += 1
        sys.settrace(None)
        try:
            self.call()
        except ReentrantCall:
            self.refused += 1
        except BaseException as problem:  # noqa: BLE001 - which is what is looked for
            where = traceback.extract_tb(problem.__traceback__)[-1]
            said = f"{type(problem).__name__}: {str(problem)[:200]} [{Path(where.filename).name}:{where.lineno}]"
            self.findings.append(f"in {module}: {said}")
        finally:
            sys.settrace(self.trace)
            self._inside = False


def main(place: Path, name: str) -> None:
    """Prints the findings of this call."""
    call = CALLS[name](place)
    handler = Handler(call)
    sys.settrace(handler.trace)
    try:
        call()
    except BaseException as problem:  # noqa: BLE001 - which is what is looked for
        handler.findings.append(f"the interrupted call: {type(problem).__name__}: {problem}")
    finally:
        sys.settrace(None)
    call()  # and once more
    print(
        json.dumps(
            {"entered": handler.entered, "refused": handler.refused, "findings": list(dict.fromkeys(handler.findings))}
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
