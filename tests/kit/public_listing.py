"""Lists the public names with their signatures, the commands with their options, and the exit statuses, as text.

``python -m kit.public_listing`` in ``tests/`` writes tests/project/public_surface.txt again. It leaves annotations and
help out, which no caller writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import inspect
import io
from typing import TYPE_CHECKING, Any

import click

from kit.public_surface import INTERNAL, MADE_ELSEWHERE, modules
from kit.stores import ROOT
from logstore import cli, errors
from logstore.spark_export import main as spark_export

if TYPE_CHECKING:
    from collections.abc import Iterator

LISTING = ROOT / "tests" / "project" / "public_surface.txt"
PLAIN = bool | int | float | str | bytes | tuple
# With the modules that docs/api.md names.
ALSO_PUBLIC = ("logstore.errors",)


def default(value: object) -> str:
    """A default in the form in which it is written, "..." for one that has no such form."""
    if isinstance(value, enum.Enum):
        return str(value)
    return repr(value) if isinstance(value, PLAIN | None) else "..."


def parameters(thing: Any) -> str:
    """The parameters of a callable as its caller writes them."""
    signature = inspect.signature(thing)
    bare = [
        each.replace(annotation=each.empty, default=written(each.default))
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


class Written(str):
    """A default whose repr is this text."""

    __slots__ = ()
    __repr__ = str.__str__


def written(value: object) -> object:
    """A default as :func:`parameters` shows it."""
    return value if value is inspect.Parameter.empty else Written(default(value))


def of_class(name: str, kind: type) -> Iterator[str]:
    """A class: for an error its bases; its constructor if callers use it; its members that the package defines."""
    error = issubclass(kind, BaseException)
    yield f"{name}: error({', '.join(each.__name__ for each in kind.__bases__)})" if error else f"{name}: class"
    owned = [each for each in kind.__mro__ if each.__module__.startswith("logstore")]
    made_by_callers = not error and not issubclass(kind, enum.Enum) and kind.__name__ not in MADE_ELSEWHERE
    if made_by_callers and any("__init__" in vars(each) for each in owned):
        yield f"{name}{parameters(kind)}"
    fields = {each.name for each in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for member in sorted(fields | {each for owner in owned for each in vars(owner)}):
        if member.startswith("_") or f"{kind.__name__}.{member}" in INTERNAL:
            continue
        found = inspect.getattr_static(kind, member, None)
        function = getattr(kind, member, None)
        if isinstance(found, classmethod | staticmethod) or inspect.isroutine(found):
            yield f"{name}.{member}{parameters(function)}"
        elif isinstance(function, kind) and isinstance(function, enum.Enum):
            yield f"{name}.{member} = {function.value!r}"
        else:
            yield f"{name}.{member}"


def of_module(name: str) -> Iterator[str]:
    """Lists the names in a module's __all__. A class that another public module has as well is listed in each."""
    module = importlib.import_module(name)
    for each in sorted(module.__all__):
        thing = getattr(module, each)
        if inspect.isclass(thing):
            yield from of_class(f"{name}.{each}", thing)
        elif callable(thing):
            yield f"{name}.{each}{parameters(thing)}"
        else:
            yield f"{name}.{each}"


def of_command(path: str, command: click.Command) -> Iterator[str]:
    """A command, its arguments and options, and the commands below it."""
    yield path
    for each in command.params:
        shape = [f"{kind}" for kind in ("required", "multiple", "is_flag", "hidden") if getattr(each, kind, False)]
        shape += [f"nargs={each.nargs}"] if each.nargs != 1 else []
        choices = getattr(each.type, "choices", None)
        shape.append("|".join(map(str, choices)) if choices else each.type.name)
        shape += [f"default={each.default!r}"] if isinstance(each.default, PLAIN) else []
        names = " / ".join(filter(None, (" ".join(each.opts), " ".join(each.secondary_opts))))
        yield f"{path} {names}: {', '.join(shape)}"
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from of_command(f"{path} {name}", below)


def statuses() -> Iterator[str]:
    """The exit status for each kind of failure, found by failing so."""
    tree = [getattr(errors, name) for name in errors.__all__]
    usual = [click.UsageError, click.Abort, KeyboardInterrupt, MemoryError, BrokenPipeError]
    for kind in [*tree, *usual]:

        @click.command()
        def fails(kind: Any = kind) -> None:
            raise kind("so", segment="", offset=0, lsn=0) if kind is errors.CorruptLog else kind("so")

        with contextlib.redirect_stderr(io.StringIO()), kept_output():
            yield f"{kind.__name__}: exit status {cli.run([], fails)}"


@contextlib.contextmanager
def kept_output() -> Iterator[None]:
    """The process's output stays open, although a command that is interrupted drops it."""
    drop = cli._drop_output
    cli._drop_output = lambda: None
    try:
        yield
    finally:
        cli._drop_output = drop


def listing() -> str:
    """All of it, a line each."""
    lines: list[str] = []
    for name in sorted({*modules(), *ALSO_PUBLIC}):
        lines += of_module(name)
    lines += of_command("logstore", cli.command)
    lines += of_command("python -m logstore.spark_export", spark_export)
    lines += statuses()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    LISTING.write_text(listing(), encoding="utf-8")
