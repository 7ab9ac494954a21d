"""PEP 249's xids and exception names, mapped to logstore's own."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logstore
from kit.stores import contents
from logstore import errors, tpc

if TYPE_CHECKING:
    from logstore import MessageStore, Queue

Open = Any


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    return store.declare_queue("q")


@pytest.fixture
def connection(store: MessageStore, queue: Queue) -> tpc.Connection:
    return tpc.connect(store)


def prepare(connection: tpc.Connection, xid: Any, content: bytes = b"prepared") -> None:
    connection.tpc_begin(xid)
    connection.publish("q", content)
    connection.tpc_prepare()


# ---- xids ----


def test_an_xid_is_a_tuple_with_attributes(connection: tpc.Connection) -> None:
    xid = connection.xid(42, "gtrid", "bqual")
    assert (xid.format_id, xid.gtrid, xid.bqual) == (xid[0], xid[1], xid[2]) == tuple(xid) == (42, "gtrid", "bqual")
    assert len(xid) == 3
    assert (xid.prepared, xid.owner, xid.database) == (None, None, None)
    assert str(xid) == f"42:{b'gtrid'.hex()}:{b'bqual'.hex()}"
    assert repr(xid) == "Xid(42, 'gtrid', 'bqual')"
    assert xid == tpc.Xid(42, b"gtrid", bytearray(b"bqual"))
    assert hash(xid) == hash(tpc.Xid(42, memoryview(b"gtrid"), "bqual"))
    assert connection.xid(42, "gtrid") == (42, "gtrid", "")


@given(
    format_id=st.integers(-(2**63), 2**63 - 1),
    gtrid=st.one_of(st.binary(max_size=64), st.text(max_size=16)),
    bqual=st.binary(max_size=64),
)
def test_an_xid_keeps_its_bytes_through_text_pickling_and_copying(
    format_id: int, gtrid: bytes | str, bqual: bytes
) -> None:
    try:
        xid = tpc.Xid(format_id, gtrid, bqual)
    except tpc.DataError:
        assert isinstance(gtrid, str)
        with pytest.raises(UnicodeEncodeError):
            gtrid.encode("utf-8", "surrogateescape")
        return
    raw = gtrid if isinstance(gtrid, bytes) else gtrid.encode("utf-8", "surrogateescape")
    assert xid.name == logstore.Xid(format_id, raw, bqual)
    assert tpc.Xid(*xid) == tpc.Xid.of(xid.name) == tpc.Xid.of(list(xid)) == xid
    for again in (pickle.loads(pickle.dumps(xid)), copy.deepcopy(xid)):
        assert (type(again), again, vars(again)) == (tpc.Xid, xid, vars(xid))


@pytest.mark.parametrize(
    ("format_id", "gtrid", "bqual"),
    [
        (0, "", ""),
        (42, "gtrid", "bqual"),
        (10, "ünï", "☃"),
        (0x7FFFFFFF, "x" * 64, "y" * 64),
        (-(2**63), "ä" * 32, b"\xff" * 64),
    ],
)
def test_an_xid_comes_back_from_the_log_as_it_was(
    store: MessageStore, open_store: Open, format_id: int, gtrid: str, bqual: str | bytes
) -> None:
    store.declare_queue("q")
    before = datetime.now(UTC)
    connection = tpc.connect(store)
    xid = connection.xid(format_id, gtrid, bqual)
    prepare(connection, xid)
    store.close()
    store = open_store()
    connection = tpc.connect(store)
    (found,) = connection.tpc_recover()
    assert found == xid
    assert (found.format_id, found.gtrid) == (format_id, gtrid)
    assert found.prepared is not None
    assert before - timedelta(hours=1) < found.prepared < before + timedelta(hours=1)
    assert (found.owner, found.database) == (None, str(store.path))
    connection.tpc_commit(found)
    assert contents(store.queue("q")) == [b"prepared"]


@pytest.mark.parametrize(
    ("parts", "error", "says"),
    [
        ((2**63, "g", "b"), tpc.DataError, "64 bits"),
        ((1, "x" * 65, "b"), tpc.DataError, "at most 64"),
        ((1, "g", "ä" * 33), tpc.DataError, "at most 64"),
        ((1, "\ud800", "b"), tpc.DataError, "UTF-8"),
        (("1", "g", "b"), tpc.ProgrammingError, "whole number"),
        ((True, "g", "b"), tpc.ProgrammingError, "whole number"),
        ((1, 2, "b"), tpc.ProgrammingError, "text or bytes"),
        ((1, "g", None), tpc.ProgrammingError, "text or bytes"),
    ],
)
def test_an_invalid_xid_is_refused_by_its_name(
    connection: tpc.Connection, parts: Any, error: type[tpc.Error], says: str
) -> None:
    for make in (lambda: connection.xid(*parts), lambda: connection.tpc_begin(parts)):
        with pytest.raises(error, match=says) as caught:
            make()
        assert type(caught.value) is error
    connection.commit()


@pytest.mark.parametrize("wrong", ["1:67:62", b"gtrid", 7, (1, "g"), (1, "g", "b", "c"), object()])
@pytest.mark.parametrize("call", ["tpc_begin", "tpc_commit", "tpc_rollback"])
def test_an_invalid_xid_is_refused(connection: tpc.Connection, wrong: Any, call: str) -> None:
    with pytest.raises(tpc.ProgrammingError, match=r"xid\(format_id, gtrid, bqual\)"):
        getattr(connection, call)(wrong)


# ---- exceptions ----

# Every exception of logstore, and its name in PEP 249.
NAMES = {
    "StoreError": "OperationalError",
    "NotAStore": "OperationalError",
    "StoreLocked": "OperationalError",
    "ReplicatedStore": "OperationalError",
    "BatchRefused": "OperationalError",
    "EngineRefused": "OperationalError",
    "ClusterUnavailable": "OperationalError",
    "NotLeader": "OperationalError",
    "NoMajority": "OperationalError",
    "StoreFull": "OperationalError",
    "StorePoisoned": "OperationalError",
    "StoreClosed": "InterfaceError",
    "StoreForked": "InterfaceError",
    "ReentrantCall": "OperationalError",
    "OptionError": "DataError",
    "CorruptLog": "InternalError",
    "VersionError": "NotSupportedError",
    "CatalogError": "DatabaseError",
    "CatalogMismatch": "OperationalError",
    "CatalogOvertaken": "OperationalError",
    "CatalogUnavailable": "OperationalError",
    "UnknownMessage": "ProgrammingError",
    "UnknownQueue": "ProgrammingError",
    "UnknownExchange": "ProgrammingError",
    "QueueExists": "ProgrammingError",
    "MessageLocked": "OperationalError",
    "MessageInUse": "IntegrityError",
    "AlreadyEnqueued": "IntegrityError",
    "NotEnqueued": "IntegrityError",
    "TransactionError": "ProgrammingError",
    "UnknownXid": "ProgrammingError",
    "DuplicateXid": "ProgrammingError",
    "TransactionEnded": "ProgrammingError",
    "TransactionLimit": "OperationalError",
    "WrongState": "ProgrammingError",
    "OutcomeUnknown": "OperationalError",
}


def test_no_exception_is_without_a_name() -> None:
    assert set(NAMES) == set(errors.__all__)


@pytest.mark.parametrize(("name", "wanted"), NAMES.items())
def test_an_exception_goes_under_its_pep_249_name_with_cause_text_and_attributes(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, name: str, wanted: str
) -> None:
    store.declare_queue("q")
    original: errors.StoreError = (
        errors.CorruptLog("a check fails", segment="0000000001000000.seg", offset=4096, lsn=16781312)
        if name == "CorruptLog"
        else getattr(errors, name)(f"{name}: what, where, what next")
    )

    def fail(*_: Any, **__: Any) -> int:
        raise original

    monkeypatch.setattr(store, "publish", fail)
    with pytest.raises(tpc.Error) as caught:
        tpc.connect(store).publish("q", b"x")
    assert type(caught.value) is getattr(tpc, wanted)
    assert caught.value.__cause__ is original
    assert str(caught.value) == str(original)
    assert vars(caught.value) == vars(original)


def test_the_tree_of_exceptions_is_pep_249s_and_hangs_on_the_connection_too(connection: tpc.Connection) -> None:
    assert tpc.Warning.__bases__ == (Exception,)
    assert issubclass(tpc.Error, errors.StoreError)
    assert (tpc.InterfaceError.__bases__, tpc.DatabaseError.__bases__) == ((tpc.Error,), (tpc.Error,))
    below = (
        "DataError",
        "OperationalError",
        "IntegrityError",
        "InternalError",
        "ProgrammingError",
        "NotSupportedError",
    )
    assert {getattr(tpc, name).__bases__ for name in below} == {(tpc.DatabaseError,)}
    for name in (*below, "Warning", "Error", "InterfaceError", "DatabaseError"):
        assert getattr(connection, name) is getattr(tpc, name)
