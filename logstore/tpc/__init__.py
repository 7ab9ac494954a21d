"""Two-phase commit as Python knows it: PEP 249's calls, and a data manager for the ``transaction`` package.

* :func:`connect` gives a :class:`Connection` with ``tpc_begin`` … ``tpc_recover``, for a coordinator of one's own.
* :class:`Participant` makes a store take part in ``transaction.commit()``, so that an enqueue and a write to an SQL
  database commit together; :class:`Markers` is what tells, after a crash in between, whether the database did.

What is prepared here is on disk, in a relaxed store too: a promise that a crash takes back is none.

The package may import ``store``, ``catalog`` and what lies below those.
"""

from __future__ import annotations

from logstore.tpc.connection import Connection, connect
from logstore.tpc.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004 - PEP 249's name
)
from logstore.tpc.join import Ledger, Participant, Recovered
from logstore.tpc.markers import Markers
from logstore.tpc.xid import Xid

__all__ = [
    "connect",
    "Connection",
    "Xid",
    "Participant",
    "Recovered",
    "Ledger",
    "Markers",
    "Warning",
    "Error",
    "InterfaceError",
    "DatabaseError",
    "DataError",
    "OperationalError",
    "IntegrityError",
    "InternalError",
    "ProgrammingError",
    "NotSupportedError",
]
