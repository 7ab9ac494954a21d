"""Certificates for members."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")

from kit.members import run
from logstore.cluster.certificates import Files, make_authority, make_certificate
from logstore.errors import OptionError, StoreError

__all__ = ["run"]


def test_certificates_are_for_their_owner_and_replace_nothing(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="the extra cluster is not installed")
    authority = make_authority(tmp_path)
    made = make_certificate(tmp_path, authority, "member-1", ["10.0.0.1", "host.example"])
    for path in (authority.key, made.key):
        assert path.stat().st_mode & 0o077 == 0
    before = made.cert.read_bytes()
    for again in (lambda: make_authority(tmp_path), lambda: make_certificate(tmp_path, authority, "member-1")):
        with pytest.raises(OptionError, match="exists"):
            again()
    assert made.cert.read_bytes() == before
    for name in ("", "Member", "a b", "-a", "a" * 65, "a..b", "../x"):
        with pytest.raises(OptionError, match="name"):
            make_certificate(tmp_path, authority, name)
    with pytest.raises(OptionError, match="cannot be read"):
        make_certificate(tmp_path, Files(tmp_path / "no.pem", authority.key), "member-2")
    with pytest.raises(OptionError, match="is not the key"):
        make_certificate(tmp_path, Files(authority.cert, made.key), "member-2")
    with pytest.raises(StoreError, match="cannot be written"):
        make_certificate(made.cert / "below", authority, "member-2")
