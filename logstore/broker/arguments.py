"""Arguments of queue and exchange declarations: the supported ones are read, all others are refused.

An ignored argument would be a promise broken later, so the broker refuses every argument that it does not act on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore.broker.errors import precondition_failed
from logstore.broker.headers import EXPIRATION_MS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logstore.broker.errors import ChannelException

# AMQP declares these with flags, and the catalog has no column for them. They are set only when true, so that a queue
# declared through the library equals one declared by a client.
AUTO_DELETE_KEY: Final = "broker.auto-delete"
INTERNAL_KEY: Final = "broker.internal"


class QueueArguments(NamedTuple):
    """The values of a queue's arguments; None: not given."""

    ttl_ms: int | None = None
    expires_ms: int | None = None

    def by_key(self) -> dict[str, int | None]:
        """Every argument that a queue keeps, under the name that clients give it."""
        return {one.key: getattr(self, one.attribute) for one in _ARGUMENTS if one.attribute is not None}

    def table(self) -> dict[str, int]:
        """As a mapping for the catalog; empty for a plain queue."""
        return {key: value for key, value in self.by_key().items() if value is not None}


class _Argument(NamedTuple):
    """An argument of a queue that the broker understands."""

    key: str
    attribute: str | None  # of QueueArguments; None: checked and then of no effect
    is_granted: Callable[[object], bool]  # in a declaration
    is_stored: Callable[[object], bool]  # in a catalog row; other users of the store may have put other values there
    refusal: str  # the reply for a value that is not granted; {value!r} in it shows the value


def _is_number(least: int, most: float = math.inf) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_classic(value: object) -> bool:
    return value == "classic"


def _milliseconds(key: str, attribute: str, *, least: int) -> _Argument:
    refusal = f"{{value!r}} is not a number of milliseconds in {least}..{EXPIRATION_MS_MAX}"
    return _Argument(key, attribute, _is_number(least, EXPIRATION_MS_MAX), _is_number(0), refusal)


_ARGUMENTS: Final = (
    _milliseconds("x-message-ttl", "ttl_ms", least=0),
    _milliseconds("x-expires", "expires_ms", least=1),
    _Argument("x-queue-type", None, _is_classic, _is_classic, "only 'classic' queues exist here"),
)
_BY_KEY: Final = {one.key: one for one in _ARGUMENTS}


def parse_queue_arguments(queue: str, table: Mapping[str, Any], vhost: str) -> QueueArguments:
    """Read a declaration's arguments. Raises a 406 channel exception for an argument that cannot be granted."""
    granted = {}
    for key, value in table.items():
        argument = _BY_KEY.get(key)
        if argument is None or not argument.is_granted(value):
            refusal = "this broker does not implement it" if argument is None else argument.refusal.format(value=value)
            raise precondition_failed(f"invalid arg '{key}' for queue '{queue}' in vhost '{vhost}': {refusal}")
        if argument.attribute is not None:
            granted[argument.attribute] = value
    return QueueArguments(**granted)


def stored_queue_arguments(table: Mapping[str, Any]) -> QueueArguments:
    """Read a catalog row's arguments; values that no declaration makes are ignored."""
    kept = {one.attribute: table[one.key] for one in _ARGUMENTS if one.key in table and one.is_stored(table[one.key])}
    return QueueArguments(**{name: value for name, value in kept.items() if name is not None})


def refuse_all(kind: str, name: str, table: Mapping[str, Any] | None, vhost: str) -> None:
    """Raise a 406 channel exception if there are any arguments."""
    for key in table or ():
        raise precondition_failed(
            f"invalid arg '{key}' for {kind} '{name}' in vhost '{vhost}': this broker does not implement it"
        )


def inequivalent(arg: str, kind: str, name: str, vhost: str, received: object, current: object) -> ChannelException:
    """The 406 for a declaration that differs from the existing object, in the wording that clients know."""

    def text(value: object) -> str:
        if value is None:
            return "none"
        return f"'{str(value).lower() if isinstance(value, bool) else value}'"

    return precondition_failed(
        f"inequivalent arg '{arg}' for {kind} '{name}' in vhost '{vhost}': "
        f"received {text(received)} but current is {text(current)}"
    )
