"""The options of every command that runs a broker."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from logstore.terminal.options import SIZE
from logstore.terminal.output import size_text

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

MEMORY_BYTES_MIN: Final = 16 << 20  # with less, a few clients with a few messages each would wait for each other
FLAGS: Final = {
    "body_bytes_max": "--max-body-bytes",
    "memory_bytes_max": "--max-memory",
    "blocked_timeout_s": "--blocked-timeout",
}
"""Each option, by the field of ``logstore.broker.Limits`` that it sets."""


def _checked_body_bytes(_: click.Context, __: click.Parameter, value: int | None) -> int | None:
    if value == 0:
        raise click.BadParameter("a message of 0 bytes at most is none; write 64K, 16MiB or 1G")
    return value


def _checked_memory(_: click.Context, __: click.Parameter, value: int | None) -> int | None:
    if value is not None and value < MEMORY_BYTES_MIN:
        raise click.BadParameter(f"a broker needs {size_text(MEMORY_BYTES_MIN)} at least; write 64M, 512MiB or 4G")
    return value


def broker_options(function: F) -> F:
    """Options for the limits of a broker. ``limits`` gets those that are given, by the fields of ``Limits``."""

    @wraps(function)
    def with_limits(*given: Any, **options: Any) -> Any:
        limits = {name: value for name in FLAGS if (value := options.pop(name)) is not None}
        return function(*given, limits=limits, **options)

    body_bytes = click.option(
        FLAGS["body_bytes_max"],
        "body_bytes_max",
        type=SIZE,
        callback=_checked_body_bytes,
        help="The longest message that a client may publish [default: 128MiB].",
    )
    memory = click.option(
        FLAGS["memory_bytes_max"],
        "memory_bytes_max",
        type=SIZE,
        callback=_checked_memory,
        help="The memory for messages, clients and what they have in progress, over all virtual hosts [default: 1GiB].",
    )
    blocked_timeout = click.option(
        FLAGS["blocked_timeout_s"],
        "blocked_timeout_s",
        type=click.FloatRange(0.001, 86_400),
        help="Seconds that a publish waits for room in a full store before it is refused [default: 30].",
    )
    return cast("F", body_bytes(memory(blocked_timeout(with_limits))))
