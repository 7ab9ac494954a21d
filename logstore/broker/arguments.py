"""Arguments of queue and exchange declarations: what is understood, and a clear no to everything else.

An argument that is ignored is a promise that is broken later, so whatever the broker does not act
on is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore.broker.errors import precondition_failed
from logstore.broker.headers import EXPIRATION_MS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logstore.broker.errors import ChannelException

TTL: Final = "x-message-ttl"
EXPIRES: Final = "x-expires"
QUEUE_TYPE: Final = "x-queue-type"

# What AMQP declares with flags and the catalog has no column for; only set when true, so that a queue
# declared through the library and one declared by a client are the same queue.
AUTO_DELETE_KEY: Final = "broker.auto-delete"
INTERNAL_KEY: Final = "broker.internal"


class QueueArguments(NamedTuple):
    """What a queue's arguments ask for."""

    ttl_ms: int | None = None
    expires_ms: int | None = None

    def table(self) -> dict[str, int]:
        """As a mapping for the catalog; empty for a plain queue."""
        table = {TTL: self.ttl_ms, EXPIRES: self.expires_ms}
        return {key: value for key, value in table.items() if value is not None}


def parse_queue_arguments(queue: str, table: Mapping[str, Any]) -> QueueArguments:
    """Read a declaration's arguments. Raises a 406 channel exception for what cannot be granted."""
    ttl_ms = expires_ms = None
    for key, value in table.items():
        if key == TTL:
            ttl_ms = _milliseconds(queue, key, value, least=0)
        elif key == EXPIRES:
            expires_ms = _milliseconds(queue, key, value, least=1)
        elif key != QUEUE_TYPE:
            raise precondition_failed(
                f"invalid arg '{key}' for queue '{queue}' in vhost '/': this broker does not implement it"
            )
        elif value != "classic":
            raise precondition_failed(
                f"invalid arg '{key}' for queue '{queue}' in vhost '/': only 'classic' queues exist here"
            )
    return QueueArguments(ttl_ms, expires_ms)


def _milliseconds(queue: str, key: str, value: object, *, least: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= EXPIRATION_MS_MAX:
        return value
    raise precondition_failed(
        f"invalid arg '{key}' for queue '{queue}' in vhost '/': {value!r} is not a number of "
        f"milliseconds in {least}..{EXPIRATION_MS_MAX}"
    )


def stored_queue_arguments(table: Mapping[str, Any]) -> QueueArguments:
    """Read a catalog row's arguments; what other users of the store put there is not the broker's."""

    def number(key: str) -> int | None:
        value = table.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    return QueueArguments(number(TTL), number(EXPIRES))


def refuse_all(kind: str, name: str, table: Mapping[str, Any] | None) -> None:
    """Raise a 406 channel exception if there are arguments at all."""
    for key in table or ():
        raise precondition_failed(
            f"invalid arg '{key}' for {kind} '{name}' in vhost '/': this broker does not implement it"
        )


def inequivalent(arg: str, kind: str, name: str, received: object, current: object) -> ChannelException:
    """The 406 for a declaration that differs from what exists, in the words clients know."""

    def text(value: object) -> str:
        if value is None:
            return "none"
        return f"'{str(value).lower() if isinstance(value, bool) else value}'"

    return precondition_failed(
        f"inequivalent arg '{arg}' for {kind} '{name}' in vhost '/': "
        f"received {text(received)} but current is {text(current)}"
    )
