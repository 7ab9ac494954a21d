"""The parameter types of the commands (sizes, LSNs, xids, paths), and the options that several commands share."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from logstore.cluster.directory import CONFIG_NAME, copy_number, hosts
from logstore.codec.records import LSN_LIMIT
from logstore.core import arguments
from logstore.core.directory import with_directory
from logstore.core.sizes import size_of
from logstore.core.xid import XID_PART_BYTES_MAX
from logstore.errors import CorruptLog, NotAStore, OptionError, StoreError
from logstore.terminal.output import JSON_STRINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Number = click.ParamType[int]
    _XidType = click.ParamType[str]
    _LimitType = click.ParamType[int | str]
    _AgeType = click.ParamType[timedelta]
else:
    _Number = _XidType = _LimitType = _AgeType = click.ParamType

F = TypeVar("F", bound="Callable[..., Any]")

_XID = re.compile(r"-?\d{1,19}:.*:.*", re.ASCII | re.DOTALL)
_AGE = re.compile(r"([0-9]{1,6})([wdhm])")
_AGE_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes"}


class Size(_Number):
    """A size in bytes: a number; K, M, G, T or KiB … mean powers of 1024, and kB, MB … powers of 1000."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes; a usage error for anything else."""
        if isinstance(value, int):
            return value
        found = size_of(str(value))
        if found is None:
            self.fail(f"{value!r} is not a size; write 65536, 64K, 16MiB or 1G", param, ctx)
        return found


class Limit(_LimitType):
    """A size in bytes, as :class:`Size` takes it, or ``none``."""

    name = "size|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """The number of bytes, or ``none``; a usage error for anything else."""
        return "none" if str(value).strip().lower() == "none" else SIZE.convert(value, param, ctx)


class Lsn(_Number):
    """An LSN or an id: decimal, or hexadecimal with 0x."""

    name = "lsn"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; a usage error for any other text."""
        try:
            number = value if isinstance(value, int) else int(value, 16 if value[:2] in ("0x", "0X") else 10)
        except ValueError:
            number = -1
        if not 0 <= number < LSN_LIMIT:
            self.fail(f"{value!r} is not an LSN or id; write it in decimal, or in hexadecimal with 0x", param, ctx)
        return number


class XidText(_XidType):
    """The name of a distributed transaction in one of the two forms in which ``in-doubt list`` prints it."""

    name = "xid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text; a usage error for one that has neither form."""
        if not _XID.fullmatch(str(value)) or any(len(part) > 2 * XID_PART_BYTES_MAX for part in value.split(":")):
            form = "format:gtrid-hex:bqual-hex, or its readable name"
            self.fail(f"{value!r} is not an xid; write it as 'in-doubt DIR list' does: {form}", param, ctx)
        return str(value)


class Age(_AgeType):
    """A whole number of weeks, days, hours or minutes, such as 90d."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """The age, above 0; a usage error for anything else."""
        if isinstance(value, timedelta):
            return value
        found = _AGE.fullmatch(str(value).strip())
        if found is None or not int(found[1]):
            self.fail(f"{value!r} is not an age; write 90d, 12w or 36h", param, ctx)
        return timedelta(**{_AGE_UNITS[found[2]]: int(found[1])})


class Amount(click.FloatRange):
    """A finite number in a range. A range alone would accept NaN and, if it is open, infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error for anything else."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class PathText(click.Path):
    """A valid path, as :func:`logstore.core.arguments.path` checks it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; a usage error for an invalid one."""
        try:
            arguments.path("the path", value)
        except OptionError as problem:
            self.fail(problem.message, param, ctx)
        return super().convert(value, param, ctx)


class PlaceText(PathText):
    """A valid path, or an address of an export such as ``s3://bucket/path``, which stays a text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path or the address; a usage error for an invalid path."""
        if "://" in str(value):
            from logstore.export.addresses import is_address

            if is_address(value):
                return value
        return super().convert(value, param, ctx)


class StorePath(PathText):
    """The directory of a store. That of a member's host stands for the copy in it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path of the copy, if the member has one there."""
        path = super().convert(value, param, ctx)
        copy = path / f"copy-{copy_number(path)}"
        return copy if copy.is_dir() and not (path / "META").exists() else path


class SourceText(PlaceText, StorePath):
    """The directory of a store or of an export, or an address of an export."""


SIZE = Size()
AGE = Age()
LIMIT = Limit()
LSN = Lsn()
XID = XidText()


@contextmanager
def naming(store_dir: Path | str) -> Iterator[None]:
    """Adds the store directory to the text of a ``StoreError`` raised inside, and to the commands that it names.

    Of an address it adds what is not secret.
    """
    try:
        yield
    except StoreError as error:
        if isinstance(store_dir, str):
            from logstore.export.addresses import shown

            store_dir = shown(store_dir)
        if isinstance(error, CorruptLog) and not error.segment:
            error.message = error.message.removeprefix("no log to open: ")  # damage of META or of the whole log
        if isinstance(error, NotAStore) and isinstance(store_dir, Path) and (store_dir / CONFIG_NAME).exists():
            of_host = next(iter(hosts(store_dir)), store_dir / "HOST")
            error.message = (
                f"{store_dir} is the directory of a cluster's member: name one of its hosts, such as {of_host}, "
                f"or ask the member with `logstore cluster status --dir {quote(str(store_dir))}`"
            )
        if str(store_dir) not in error.message:
            error.message = f"{store_dir}: {error.message}"
        error.message = with_directory(error.message, store_dir) if isinstance(store_dir, Path) else error.message
        raise


def _directories(_context: click.Context, _param: click.Parameter, text: str) -> list[CompletionItem]:
    return [CompletionItem(text, type="dir")]  # the shell lists them


def path_argument(function: F) -> F:
    """``DIR``. The library checks whether it is a store."""
    kind = StorePath(readable=False)
    return click.argument("store_dir", metavar="DIR", type=kind, shell_complete=_directories)(function)


def place_argument(function: F) -> F:
    """``DIR``, which may be the address of an export. The library checks what is there."""
    kind = SourceText(readable=False)
    return click.argument("store_dir", metavar="DIR", type=kind, shell_complete=_directories)(function)


def store_argument(function: F) -> F:
    """``DIR``, for a command whose errors name it."""

    @wraps(function)
    def wrapped(store_dir: Path, **options: Any) -> Any:
        with naming(store_dir):
            return function(store_dir=store_dir, **options)

    return path_argument(cast("F", wrapped))


def source_argument(function: F) -> F:
    """``DIR``, a store or an export, which may be an address, for a command whose errors name it."""

    @wraps(function)
    def wrapped(store_dir: Path | str, **options: Any) -> Any:
        with naming(store_dir):
            return function(store_dir=store_dir, **options)

    return place_argument(cast("F", wrapped))


def dry_run_option(function: F) -> F:
    """``--dry-run``."""
    return click.option("--dry-run", is_flag=True, help="Change nothing; show what would happen.")(function)


def json_option(function: F) -> F:
    """``--json`` and ``--json-strings``, which the command does not distinguish: print_json does."""

    def with_strings(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
        context.meta[JSON_STRINGS] = value

    def either(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
        return value or context.meta[JSON_STRINGS]

    strings = click.option(
        "--json-strings",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=with_strings,
        help="The same with integers as strings, for programs that round above 2^53.",
    )
    plain = click.option("--json", "as_json", is_flag=True, callback=either, help="Print JSON, for programs.")
    return plain(strings(function))


def catalog_options(function: F) -> F:
    """``--connect`` and ``--catalog``, or environment variables, for a catalog that is not in the store directory.

    A URL with a password belongs in the environment, because every user can see command lines.
    """
    schema = click.option(
        "--catalog",
        "schema",
        metavar="NAME",
        envvar="LOGSTORE_CATALOG",
        show_envvar=True,
        help="The schema on that server [default: logstore].",
    )
    connect = click.option(
        "--connect",
        metavar="URL",
        envvar="LOGSTORE_CONNECT",
        show_envvar=True,
        help="The server that has the catalog: postgresql+psycopg://user@host/database",
    )
    return connect(schema(function))
