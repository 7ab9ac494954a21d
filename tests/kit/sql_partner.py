"""The other side of a joint commit in tests: an SQL database through SQLAlchemy and zope.sqlalchemy, with orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy
import zope.sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session, sessionmaker

from logstore import tpc

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    name: Mapped[str] = mapped_column(primary_key=True)


class Shop:
    """The application's database, its session joined to a transaction manager, and the markers in it."""

    def __init__(
        self, engine: sqlalchemy.Engine, manager: Any, *, markers_engine: sqlalchemy.Engine | None = None
    ) -> None:
        self.engine = engine
        Base.metadata.create_all(self.engine)
        self.session = scoped_session(sessionmaker(self.engine))
        zope.sqlalchemy.register(self.session, transaction_manager=manager)
        self.markers = tpc.Markers(markers_engine or engine, self.session)

    @classmethod
    def in_file(cls, path: Path, manager: Any) -> Shop:
        """One in SQLite."""
        return cls(sqlalchemy.create_engine(f"sqlite:///{path}", connect_args={"timeout": 60}), manager)

    def order(self, name: str) -> None:
        self.session.add(Order(name=name))

    def orders(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(sqlalchemy.select(Order.name).order_by(Order.name)))

    def marked(self) -> list[bool]:
        with self.engine.connect() as connection:
            return list(connection.scalars(sqlalchemy.text("SELECT committed FROM logstore_markers")))

    def close(self) -> None:
        self.session.remove()
        self.engine.dispose()


class Refusal(Exception):
    pass


def refuse() -> None:
    raise Refusal


class Step:
    """A data manager that only calls ``act`` at one step of the protocol."""

    def __init__(self, manager: Any, step: str, key: str, act: Any) -> None:
        self.transaction_manager = manager
        self._step, self._key, self._act = step, key, act

    def sortKey(self) -> str:  # noqa: N802 - the interface's name
        return self._key

    def _at(self, step: str) -> None:
        if step == self._step:
            self._act()

    def abort(self, current: Any) -> None:
        self._at("abort")

    def tpc_begin(self, current: Any) -> None:
        self._at("tpc_begin")

    def commit(self, current: Any) -> None:
        self._at("commit")

    def tpc_vote(self, current: Any) -> None:
        self._at("tpc_vote")

    def tpc_finish(self, current: Any) -> None:
        self._at("tpc_finish")

    def tpc_abort(self, current: Any) -> None:
        self._at("tpc_abort")


class FixedLedger:
    """A participant with prepared answers, which records its calls."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.written_xids: list[tpc.Xid] = []
        self.asked: list[tpc.Xid] = []

    def write(self, xid: tpc.Xid) -> None:
        self.written_xids.append(xid)

    def committed(self, xid: tpc.Xid) -> bool | None:
        self.asked.append(xid)
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: bool | None = self.answer
        return answer

    def written(self, bqual: str) -> Iterable[tpc.Xid]:
        return [xid for xid in self.written_xids if xid.bqual == bqual]

    def forget(self, xids: Iterable[tpc.Xid]) -> None:
        gone = set(xids)
        self.written_xids = [xid for xid in self.written_xids if xid not in gone]
