"""Users of the broker, kept in the catalog's configuration.

One entry per user, `broker.user.NAME`: a JSON object with `hash` (scrypt, with its cost and salt), `loopback_only`
and `hosts`, the virtual hosts that the user may open; without `hosts` it is `/`. A new store gets the user guest with
password guest, who may log in from this machine only.

A password check is slow on purpose, so it runs off the event loop (`password_checks`). A password that was right once
is remembered until the process ends, as a keyed digest; the key stays in memory.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import ipaddress
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore.broker.limits import PASSWORD_CHECKS_MAX
from logstore.broker.password_checks import PasswordChecks
from logstore.core.host_directory import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping


_PREFIX: Final = "broker.user."
_INITIALISED: Final = "broker.users"  # so that a removed guest is not added again
_SCRYPT_N: Final = 1 << 14  # 16 MiB and about 50 ms
_SCRYPT_R: Final = 8
_SCRYPT_P: Final = 1
_SALT_BYTES: Final = 16
_DIGEST_BYTES: Final = 32
_SCRYPT_BYTES_MAX: Final = 64 << 20
_REMEMBERED_MAX: Final = 1024


def hash_password(password: str) -> str:
    """A salted scrypt hash, as `scrypt$n$r$p$salt$hash`."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return _encode(salt, _scrypt(password, salt, _SCRYPT_N, _SCRYPT_R, _SCRYPT_P))


def _encode(salt: bytes, digest: bytes) -> str:
    encoded = (base64.b64encode(each).decode() for each in (salt, digest))
    return "$".join(("scrypt", str(_SCRYPT_N), str(_SCRYPT_R), str(_SCRYPT_P), *encoded))


def check_password(password: str, stored: str) -> bool:
    """True if the password matches the hash. False also for a hash of another format."""
    try:
        scheme, n, r, p, salt, digest = stored.split("$")
        if scheme != "scrypt":
            return False
        made = _scrypt(password, base64.b64decode(salt), int(n), int(r), int(p))
        return hmac.compare_digest(made, base64.b64decode(digest))
    except ValueError:
        return False


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_SCRYPT_BYTES_MAX, dklen=_DIGEST_BYTES)


def address_of(peer: Any) -> str:
    """A socket's peer without the port."""
    return str(peer[0]) if isinstance(peer, tuple) and peer else str(peer)


def is_loopback(peer: Any) -> bool:
    """True if a socket's peer is on this machine."""
    try:
        address = ipaddress.ip_address(peer[0].split("%")[0])
    except (ValueError, TypeError, IndexError, AttributeError):
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user without the password."""

    name: str
    loopback_only: bool
    hosts: tuple[str, ...]


def user_rows(config: Mapping[str, str]) -> list[UserRow]:
    """All users, by name."""
    found = {key.removeprefix(_PREFIX): _fields(value) for key, value in config.items() if key.startswith(_PREFIX)}
    return [
        UserRow(name, bool(fields.get("loopback_only", True)), _hosts(fields)) for name, fields in sorted(found.items())
    ]


def _fields(entry: str | None) -> dict[str, Any]:
    try:
        fields = json.loads(entry or "{}")
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _hosts(fields: Mapping[str, Any]) -> tuple[str, ...]:
    hosts = fields.get("hosts", [ROOT])
    return tuple(sorted(map(str, hosts))) if isinstance(hosts, list) else ()


class Users:
    """The users who may log in. At most `checks_max` passwords from one address wait to be checked."""

    def __init__(self, config: MutableMapping[str, str], checks_max: int = PASSWORD_CHECKS_MAX) -> None:
        self._config = config
        self._key = secrets.token_bytes(32)
        self._remembered: set[bytes] = set()
        self._checks = PasswordChecks(checks_max)
        self._nobody = _encode(secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_DIGEST_BYTES))
        if _INITIALISED not in config:
            self.add("guest", "guest", loopback_only=True)
            config[_INITIALISED] = "1"

    def add(self, name: str, password: str, *, loopback_only: bool = False) -> None:
        """Add a user, or change the password of an existing one, who keeps the hosts.

        A new user may open `/`. Raises `ValueError` for an empty name.
        """
        if not name:
            raise ValueError("the name of the user is empty; give it at least one character")
        hosts = _hosts(self._fields(name))
        self.write(name, hash_password(password), loopback_only=loopback_only, hosts=hosts)

    def write(self, name: str, password_hash: str, *, loopback_only: bool, hosts: Iterable[str]) -> None:
        """Write a user's whole entry."""
        entry = {"hash": password_hash, "loopback_only": loopback_only, "hosts": sorted(set(hosts))}
        self._config[_PREFIX + name] = json.dumps(entry)

    def remove(self, name: str) -> None:
        """Remove a user; open connections stay. Raises `KeyError` if there is none."""
        del self._config[_PREFIX + name]

    def row(self, name: str) -> UserRow | None:
        """A user without the password; None if there is none."""
        return next((row for row in user_rows(self._config) if row.name == name), None)

    def change(self, name: str, **fields: Any) -> None:
        """Replace some fields of a user's entry. Raises `KeyError` if there is none."""
        entry = self._config[_PREFIX + name]
        self._config[_PREFIX + name] = json.dumps(_fields(entry) | fields)

    def forget_host(self, host: str) -> None:
        """Forbid a removed host to every user, so that a later host of the same name is not open to them."""
        for row in user_rows(self._config):
            if host in row.hosts:
                self.change(row.name, hosts=[each for each in row.hosts if each != host])

    def has(self, name: str) -> bool:
        """Whether there is a user of that name."""
        return _PREFIX + name in self._config

    def may_open(self, name: str, host: str) -> bool:
        """Whether a user may open a host."""
        return host in _hosts(self._fields(name))

    def _fields(self, name: str) -> dict[str, Any]:
        return _fields(self._config.get(_PREFIX + name))

    async def refusal(self, name: str, password: str, peer: Any) -> str | None:
        """Why this user may not log in with this password from this peer; None: the user may.

        Raises `TooManyChecks` if so many passwords from the peer's address wait to be checked already.
        """
        stored, loopback_only = self._entry(name)
        if loopback_only and not is_loopback(peer):
            return f"user {name!r} may log in from this machine only"
        proof = hmac.digest(self._key, "\0".join((name, password, stored)).encode(), "sha256")
        if proof in self._remembered:
            return None
        check = functools.partial(check_password, password, stored)
        if not await self._checks.result(address_of(peer), proof, check):
            return f"user {name!r} is unknown, or the password is wrong"
        if len(self._remembered) >= _REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered.add(proof)
        return None

    def _entry(self, name: str) -> tuple[str, bool]:
        """A user's hash and restriction. An unknown user gets a hash that no password matches, and that is as slow."""
        try:
            entry = json.loads(self._config[_PREFIX + name])
            return str(entry["hash"]), bool(entry.get("loopback_only", True))
        except (KeyError, TypeError, ValueError, AttributeError):
            return self._nobody, False
