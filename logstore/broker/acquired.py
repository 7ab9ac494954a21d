"""Messages that were taken from a queue: settled one by one, or released in turns of the loop.

Invariant: a taken place is settled or released once, also if its message is off the queue already.
"""

from __future__ import annotations

import collections
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from logstore.broker.errors import STORE_ENDED
from logstore.broker.memory import DELIVERY_BYTES
from logstore.broker.turns import TURN_UNITS
from logstore.errors import NotEnqueued, StoreError, UnknownMessage, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logstore.broker.consumer import Consumer
    from logstore.broker.headers import Envelope
    from logstore.broker.memory import Share
    from logstore.broker.places import Place
    from logstore.broker.queues import BrokerQueue
    from logstore.broker.turns import Turns

logger = logging.getLogger(__name__)

# The message is already off the queue: by a purge, a deletion or another program.
GONE: Final = (NotEnqueued, UnknownMessage, UnknownQueue)


class Acquired:
    """A place taken by one consumer (or a get), with its decoded envelope.

    If `accept` or `reject` raises `StoreError`, the place is still taken and can be released.
    """

    __slots__ = ("consumer", "envelope", "place", "queue", "tag")

    def __init__(self, queue: BrokerQueue, place: Place, envelope: Envelope) -> None:
        self.queue = queue
        self.place = place
        self.envelope = envelope
        self.consumer: Consumer | None = None
        self.tag = 0  # the delivery tag, once there is one

    def accept(self) -> None:
        """Remove the message: it was processed. Durable after the next group commit."""
        self._settle(self.place.accept)

    def reject(self) -> None:
        """Move the message to the dead-letter queue, or remove it if there is none."""
        if self._settle(self.place.reject):
            self.queue.rejected()

    def _settle(self, settle: Callable[..., object]) -> bool:
        """True if it was settled now; False if the message was already off the queue. Raises `StoreError`."""
        is_settled = False
        if not self.queue.deleted:  # else the store has removed its places
            with contextlib.suppress(*GONE):
                settle(wait=False)
                is_settled = True
        self.queue.settled(self.place)
        return is_settled

    def release(self, *, unseen: bool = False) -> None:
        """Return the message to its old position, for any consumer. `unseen`: nothing of it was sent to a client."""
        self.queue.give_back(self.place, unseen=unseen)


class _Releases:
    """Deliveries that nobody has any more: they go back to their queues in order, in turns."""

    def __init__(self, turns: Turns, taken: Iterable[Acquired], share: Share | None) -> None:
        self._turns = turns
        self._taken = collections.deque(taken)
        self._share = share  # counts them

    def take_turn(self) -> int:
        taken = self._taken
        before = len(taken)
        for _ in range(min(before, 2 * TURN_UNITS)):
            acquired = taken.popleft()
            try:
                acquired.release()
            except STORE_ENDED:
                taken.clear()  # the next open of the host offers them again
                break
            except StoreError as error:
                logger.warning("a message of queue %r cannot be released: %s", acquired.queue.name, error)
        if self._share is not None:
            self._share.give_back((before - len(taken)) * DELIVERY_BYTES)
        if taken:
            self._turns.add(self)
        return TURN_UNITS


def release_in_turns(turns: Turns, taken: Iterable[Acquired], share: Share | None = None) -> None:
    """Release these deliveries in order: some now, and the others in turns. `share`: the one that counts them."""
    _Releases(turns, taken, share).take_turn()
