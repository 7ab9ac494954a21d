"""The name of a branch of a distributed transaction, as X/Open XA defines it: :class:`Xid`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from logstore._core import ffi
from logstore.core import arguments

XID_PART_BYTES_MAX: Final = 64
_FORMAT_ID_MIN: Final = -(2**63)
_FORMAT_ID_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class Xid:
    """The name of a branch of a distributed transaction (X/Open XA; PEP 249's two-phase extension).

    ``gtrid`` and ``bqual`` are at most 64 bytes each and are compared byte for byte. As text an xid is
    ``format:gtrid-hex:bqual-hex``. Raises ``ValueError`` for a part that is too long or a format id beyond 64 bits.
    """

    format_id: int
    gtrid: bytes
    bqual: bytes = b""

    def __post_init__(self) -> None:
        if isinstance(self.format_id, bool) or not isinstance(self.format_id, int):
            raise TypeError(f"format_id is an int, not {arguments.shown(self.format_id)}")
        if not _FORMAT_ID_MIN <= self.format_id <= _FORMAT_ID_MAX:
            raise ValueError(f"format_id {arguments.shown(self.format_id)} does not fit into 64 bits")
        for name in ("gtrid", "bqual"):
            part = getattr(self, name)
            if not isinstance(part, bytes):
                raise TypeError(f"{name} is bytes, not {type(part).__name__}")
            if len(part) > XID_PART_BYTES_MAX:
                raise ValueError(f"{name} has {len(part)} bytes; at most {XID_PART_BYTES_MAX} are allowed")

    def __str__(self) -> str:
        return f"{self.format_id}:{self.gtrid.hex()}:{self.bqual.hex()}"

    @classmethod
    def parse(cls, text: str) -> Xid:
        """The xid of a text that ``str()`` made. Raises ``ValueError`` for any other text."""
        arguments.instance("text", text, str)
        try:
            format_id, gtrid, bqual = text.split(":")
            return cls(int(format_id), bytes.fromhex(gtrid), bytes.fromhex(bqual))
        except ValueError as problem:
            raise ValueError(
                f"an xid is format:gtrid-hex:bqual-hex, not {arguments.shown(text)} ({problem})"
            ) from problem

    def _to_c(self) -> Any:
        made = ffi.new("ls_xid *")
        made.format_id = self.format_id
        made.gtrid_bytes = len(self.gtrid)
        made.bqual_bytes = len(self.bqual)
        ffi.memmove(made.data, self.gtrid + self.bqual, len(self.gtrid) + len(self.bqual))
        return made


def xid_from_c(c_xid: Any) -> Xid:
    """The xid in a copy of the core's ``ls_xid``."""
    data = bytes(c_xid.data[0 : c_xid.gtrid_bytes + c_xid.bqual_bytes])
    return Xid(c_xid.format_id, data[: c_xid.gtrid_bytes], data[c_xid.gtrid_bytes :])
