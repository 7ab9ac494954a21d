"""Texts of addresses such as ``s3://bucket/path``: what may be shown of them, and what is secret."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from logstore.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["has_secrets", "is_address", "one_line", "shown", "without_secrets"]

_TEXT_MAX: Final = 400
_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRET: Final = re.compile(r"secret|password|token|key|sas|sig", re.IGNORECASE)
_USERLESS: Final = frozenset({"s3", "s3a", "gs", "gcs"})  # before their @ is a key, not the name of a user or container


def is_address(value: object) -> bool:
    """Whether this is an address such as ``s3://bucket/path``, and not a path."""
    return isinstance(value, str) and _ADDRESS.match(value) is not None


def shown(target: object) -> str:
    """The path, or the address without what is secret in it."""
    return without_secrets(target)[0] if isinstance(target, str) and is_address(target) else str(target)


def has_secrets(target: object) -> bool:
    """Whether this is an address with a key or a password in it."""
    return isinstance(target, str) and is_address(target) and bool(without_secrets(target)[1])


def without_secrets(address: str) -> tuple[str, tuple[str, ...]]:
    """The address without user, password and query, and the texts in it that are secret."""
    found = _ADDRESS.match(address)
    kind = "" if found is None else found[1].lower()
    try:
        parts = urlsplit(address)
        host, user = parts.netloc.rpartition("@")[2], parts.netloc.rpartition("@")[0]
        port = host.rpartition(":")[2]
    except ValueError:  # whose text may have the password
        raise OptionError(f"the target is not an address of {kind}://: check its host, user and password") from None
    if "@" not in parts.netloc and ":" in host and (kind in _USERLESS or not port.isdigit()):
        raise OptionError(
            f"the target is not an address of {kind}:// (a colon, but no @ before the first slash: write / in a key as "
            "%2F, and @ as %40)"
        )
    name, _, password = user.partition(":")
    secrets = [password, *([name] if kind in _USERLESS else [])]
    secrets += [value for key, value in parse_qsl(parts.query) if _SECRET.search(key)]
    secrets = [one for one in secrets if one]
    kept = f"{name}@" if name and kind not in _USERLESS else ""
    shown = f"{kind}://{kept}{host}{parts.path}"
    return shown, tuple(sorted({*secrets, *(unquote(one) for one in secrets)}, key=len, reverse=True))


def one_line(error: Exception, secrets: Iterable[str]) -> str:
    """The first line of a library's text, without secrets."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    for secret in secrets:
        text = text.replace(secret, "…")
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
