"""Optional libraries (extras): imported when needed; a missing one is reported with the command that installs it."""

from __future__ import annotations

from typing import Any

from logstore.core.imports import late
from logstore.errors import StoreError

__all__ = ["MissingExtra", "install_command", "require"]


class MissingExtra(StoreError):
    """The operation needs a library that is not installed. The message names the extra that installs it."""


def install_command(extra: str) -> str:
    """The command that installs the package with this extra.

    It names a checkout, because the package index has another project called ``logstore``.
    """
    return f"pip install '/path/to/checkout[{extra}]'"


def require(extra: str, module: str) -> Any:
    """Imports and returns the module. Raises :class:`MissingExtra`, which says how to install it.

    Raises ``ReentrantCall`` as :func:`logstore.core.imports.late` does.
    """
    package = module.partition(".")[0]
    try:
        return late(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingExtra(
            f"this needs the Python package {package}: install it with {install_command(extra)}"
        ) from None
