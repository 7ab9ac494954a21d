"""Certificates for the members of a cluster: an authority, and a certificate a member. Needs the extra ``cluster``.

A member's certificate has its name among the DNS names, and serves both sides of a connection. Only their owner can
read keys. Nothing that exists is replaced.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore.core import arguments
from logstore.core.extras import require
from logstore.errors import OptionError, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 825
_EARLIER: Final = dt.timedelta(hours=1)  # begin earlier, so that a member whose clock is slow accepts a new certificate

_LABEL: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
NAME_MAX: Final = 64  # a common name has no more


class Files(NamedTuple):
    """The paths of a certificate and of its key."""

    cert: Path
    key: Path


def member_name(name: str) -> str:
    """Checks a member's name: a host name, in small letters. Raises ``OptionError``."""
    if len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise OptionError(
            f"a member's name has small letters, digits, '-' and '.', at most {NAME_MAX} in all, as a host name: "
            f"not {name!r}"
        )
    return name


def make_authority(directory: str | os.PathLike[str]) -> Files:
    """Makes the cluster's authority, ``ca.pem`` and ``ca.key``, in this directory.

    Each member needs ``ca.pem``. ``ca.key`` signs for every member: keep it where no member runs. Raises
    ``OptionError`` if one of them exists, ``StoreError`` if they cannot be written, ``MissingExtra``.
    """
    x509 = require("cluster", "cryptography.x509")
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "logstore cluster")])
    key = _new_key()
    usage = _usage(x509, signs_certificates=True)
    built = _builder(x509, name, name, key.public_key(), AUTHORITY_DAYS)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    built = built.add_extension(usage, critical=True)
    return _write(directory, "ca", _signed(built, key), key)


def make_certificate(
    directory: str | os.PathLike[str], authority: Files, name: str, addresses: Sequence[str] = ()
) -> Files:
    """Makes ``NAME.pem`` and ``NAME.key`` for the member of this name in this directory.

    ``addresses`` are further host names and IP addresses of the member, without ports. Raises as
    :func:`make_authority` does, and ``OptionError`` for an authority that cannot be read, or an impossible name.
    """
    x509 = require("cluster", "cryptography.x509")
    serialization = require("cluster", "cryptography.hazmat.primitives.serialization")
    member_name(name)
    names: list[Any] = [x509.DNSName(name)]
    for address in addresses:
        try:
            found = x509.IPAddress(ipaddress.ip_address(address))
        except ValueError:
            found = x509.DNSName(member_name(address))
        if found not in names:
            names.append(found)
    try:
        issuer = x509.load_pem_x509_certificate(authority.cert.read_bytes())
        issuer_key = serialization.load_pem_private_key(authority.key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise OptionError(f"the authority {authority.cert} with {authority.key} cannot be read: {error}") from error
    if issuer.public_key() != issuer_key.public_key():
        raise OptionError(f"{authority.key} is not the key of {authority.cert}")
    key = _new_key()
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    built = _builder(x509, subject, issuer.subject, key.public_key(), CERTIFICATE_DAYS)
    both = [x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(x509, signs_certificates=False), True),
        (x509.ExtendedKeyUsage(both), False),
        (x509.SubjectAlternativeName(names), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), False),
    ):
        built = built.add_extension(extension, critical=critical)
    return _write(directory, name, _signed(built, issuer_key), key)


def _new_key() -> Any:
    ec = require("cluster", "cryptography.hazmat.primitives.asymmetric.ec")
    return ec.generate_private_key(ec.SECP256R1())


def _usage(x509: Any, *, signs_certificates: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(x509: Any, subject: Any, issuer: Any, public_key: Any, days: int) -> Any:
    now = dt.datetime.now(dt.UTC)
    built = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    built = built.serial_number(x509.random_serial_number())
    built = built.not_valid_before(now - _EARLIER).not_valid_after(now + dt.timedelta(days=days))
    return built.add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)


def _signed(built: Any, key: Any) -> Any:
    return built.sign(key, require("cluster", "cryptography.hazmat.primitives.hashes").SHA256())


def _write(directory: str | os.PathLike[str], name: str, certificate: Any, key: Any) -> Files:
    serialization = require("cluster", "cryptography.hazmat.primitives.serialization")
    into = Path(arguments.path("directory", directory))
    files = Files(into / f"{name}.pem", into / f"{name}.key")
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    made: list[Path] = []
    try:
        into.mkdir(parents=True, exist_ok=True)
        for path, data, mode in ((files.key, private, 0o600), (files.cert, certificate.public_bytes(pem), 0o644)):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                made.append(path)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        for path in made:
            with contextlib.suppress(OSError):
                path.unlink()
        if isinstance(error, FileExistsError):
            raise OptionError(f"{error.filename} exists and stays as it is: name another directory") from error
        raise StoreError(f"the certificate {files.cert} cannot be written: {error}") from error
    return files
