"""What an interpreter of records does with a record of an unknown chain, and with a contradiction.

Only these differ between a log that must be complete and one that is known to be damaged. The strict policy is
strict.py, the lenient one salvage/lenient.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logstore.codec.place_states import RelocatedState
    from logstore.codec.records import Record, StateRow, XidBody
    from logstore.codec.state import Copies, Message, Moved, Place, Transaction, Work


class Policy(ABC):
    """The decisions of an :class:`~logstore.codec.interpreter.Interpreter`."""

    keeps_ended = False  # remember all ended chains, not only those that began below the base

    @abstractmethod
    def contradiction(self, lsn: int, reason: str) -> None:
        """Two records contradict each other; the newer one counts."""

    @abstractmethod
    def known(self, record: Record) -> Message | None:
        """The message of a record that is not the first of its chain; None if the record has no effect."""

    @abstractmethod
    def opened(self, lsn: int, work: Work) -> Transaction | None:
        """The transaction of an operation in the record at ``lsn``; None if the operation has no effect."""

    @abstractmethod
    def stepped(self, record: Record) -> Transaction | None:
        """The transaction of a step or an outcome; None if the record has no effect."""

    @abstractmethod
    def moved_transaction(self, record: Record, xid: XidBody | None, state: str) -> Transaction:
        """The transaction whose whole state the record gives."""

    @abstractmethod
    def accepts(self, record: Record, copies: Copies, moved: Moved) -> bool:
        """Whether a relocated state counts."""

    @abstractmethod
    def accepts_without_parts(self, record: Record, copies: Copies) -> bool:
        """Whether a relocated state counts although some of its parts are missing."""

    @abstractmethod
    def take_content(self, message: Message, state: RelocatedState, copies: Copies) -> None:
        """Sets the positions of the message's content."""

    @abstractmethod
    def not_on(self, lsn: int, message_id: int, message: Message, queue_id: int, ended: str) -> None:
        """A message is ``ended`` (dequeued or moved) from a queue on which it has no place."""

    @abstractmethod
    def stated(self, lsn: int, row: StateRow) -> Message | None:
        """The message of a row of ``PLACE_STATES``; None if the row has no effect."""

    @abstractmethod
    def missing_place(self, lsn: int, message_id: int, message: Message, queue_id: int, reason: str) -> Place | None:
        """A note or a state is for a place that the message does not have; returns the place to use, if any."""

    @abstractmethod
    def is_over(self, message: Message) -> bool:
        """Whether a message that is not staged has ended: it has no place and no pending work."""

    @abstractmethod
    def dequeued(self, record: Record, message: Message) -> None:
        """A dequeue outside transactions took effect and does not carry the delete."""

    @abstractmethod
    def recover(self) -> None:
        """A new epoch begins: apply the effects of opening the store."""

    @abstractmethod
    def numbered(self, lsn: int, tx_id: int, order_index: int, count: int) -> None:
        """Checks the order index of ``count`` enqueues, in a transaction or not."""

    def keeps(self, work: Work) -> bool:  # noqa: ARG002
        """Whether pending work stays although the relocated state does not list it."""
        return False

    def as_kept(self, places: tuple[Place, ...]) -> tuple[Place, ...]:
        """The places of a message in the form in which this policy keeps them."""
        return places
