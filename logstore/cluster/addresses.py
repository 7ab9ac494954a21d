"""Addresses of members, and TLS between them.

Plain connections are allowed only while every address is one of the loopback.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logstore.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a member: the cluster's authority, the member's certificate and its key."""

    ca: Path
    cert: Path
    key: Path

    def context(self, *, listens: bool) -> ssl.SSLContext:
        """TLS 1.3, with the peer's certificate required. Raises ``OptionError`` for files that cannot be used."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.verify_mode = ssl.CERT_REQUIRED
        if listens:
            made.num_tickets = 0  # a connection is never resumed
        try:
            made.load_verify_locations(self.ca)
        except (OSError, ValueError) as error:
            raise OptionError(f"ca {self.ca} cannot be used: {error}") from error
        try:
            # OpenSSL must not ask the terminal for a key's password.
            made.load_cert_chain(self.cert, self.key, password="")
        except (OSError, ValueError) as error:
            raise OptionError(f"cert {self.cert} with key {self.key} cannot be used: {error}") from error
        return made


def parse(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[HOST]:PORT``. Raises ``OptionError``."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 0xFFFF:
        raise OptionError(f"an address is HOST:PORT or [HOST]:PORT, not {address!r}")
    return host, int(port)


def joined(host: str, port: int) -> str:
    """Host and port as one text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def named(name: str, address: str) -> str:
    """A member's name and address as one text, ``NAME@HOST:PORT``, as configurations of a group have it."""
    return f"{name}@{address}"


def parse_named(text: str) -> tuple[str, str]:
    """Name and address of such a text. Raises ``OptionError``."""
    name, at, address = text.partition("@")
    if not at or not name:
        raise OptionError(f"a member is NAME@HOST:PORT, not {text!r}")
    parse(address)
    return name, address


def is_loopback(address: str) -> bool:
    """Whether the address is one of this machine, whatever a name server says."""
    host, _ = parse(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def judge_plain(addresses: Iterable[str]) -> None:
    """Raises ``OptionError`` if one of these addresses needs TLS."""
    for address in addresses:
        if not is_loopback(address):
            raise OptionError(
                f"connections to {address} need TLS: give ca, cert and key (logstore cluster cert makes them), or use "
                "addresses of the loopback for every member, such as 127.0.0.1:7000"
            )


def dns_names(peer_certificate: dict[str, Any] | None) -> set[str]:
    """The DNS names in a certificate, as ``ssl`` shows it."""
    names = (peer_certificate or {}).get("subjectAltName", ())
    return {value.lower() for kind, value in names if kind == "DNS"}
