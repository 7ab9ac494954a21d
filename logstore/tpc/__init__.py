"""Two-phase commit with Python's interfaces: PEP 249's calls, and a data manager for the ``transaction`` package.

* :func:`connect` gives a :class:`Connection` with ``tpc_begin`` … ``tpc_recover``, for your own coordinator.
* :class:`Participant` makes a store take part in ``transaction.commit()``, so that an enqueue and a write to an SQL
  database commit together. After a crash between the two, :class:`Markers` tells whether the database has committed.

A prepared transaction is always on disk, even in a store with relaxed durability.

The package may import ``store``, ``catalog`` and the packages below those.
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
