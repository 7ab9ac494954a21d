"""Heavy libraries, which only those who ask for them have: imported when needed, and missed with a clear word."""

from __future__ import annotations

import importlib
from typing import Any

from logstore.errors import StoreError

__all__ = ["MissingExtra", "install_command", "require"]


class MissingExtra(StoreError):
    """What was asked for needs a library that is not installed; the message names the extra that brings it."""


def install_command(extra: str) -> str:
    """How to install the package with this extra. The index has another project under the import's name."""
    return f"pip install '/path/to/checkout[{extra}]'"


def require(extra: str, module: str) -> Any:
    """The module, imported. Raises :class:`MissingExtra`, which says how to install it."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingExtra(
            f"this needs the Python package {package}: install it with {install_command(extra)}"
        ) from None
