"""Exchanges: from a routing key to the queues whose bindings match it.

Every message is routed, so each exchange caches its routes by key until one of its bindings changes.
The cache is bounded, because clients choose the keys.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from logstore.broker.errors import precondition_failed
from logstore.broker.topics import TopicTrie

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from logstore.broker.durable_queue import DurableQueue
    from logstore.broker.memory_queue import MemoryQueue
    from logstore.broker.queues import BrokerQueue

ROUTES_CACHED_MAX: Final = 8192  # per exchange

DEFAULT_EXCHANGE: Final = ""
PREDECLARED: Final = {"amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic"}


class Binding(NamedTuple):
    """One binding; two that differ only in their arguments are two bindings."""

    exchange: str
    queue: str
    key: str
    arguments: str  # canonical JSON, so that the binding is hashable

    @property
    def argument_table(self) -> dict[str, Any]:
        """The arguments as a mapping."""
        table: dict[str, Any] = json.loads(self.arguments)
        return table


def canonical_arguments(arguments: Mapping[str, Any] | None) -> str:
    """Arguments as canonical JSON. Raises a 406 channel exception for values that JSON cannot represent."""
    try:
        return json.dumps(arguments or {}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        raise precondition_failed("arguments may hold strings, numbers, booleans, lists and tables only") from None


class Route(NamedTuple):
    """The queues that a message goes to: queues in the store, and queues in memory."""

    durable: tuple[DurableQueue, ...]
    memory: tuple[MemoryQueue, ...]

    @classmethod
    def to(cls, queues: Iterable[BrokerQueue]) -> Route:
        """The route to these queues, sorted by name, so that it is always the same."""
        durable: list[DurableQueue] = []
        memory: list[MemoryQueue] = []
        for queue in sorted(queues, key=lambda each: each.name):
            queue.sort_into(durable, memory)
        return cls(tuple(durable), tuple(memory))

    def without_deleted(self, *, leaving: bool = False) -> Route:
        """The route without deleted queues: a queue can be deleted between a publish and its write.

        With `leaving` also without queues whose deletion is in progress; used after the store has refused a write.
        """
        if not any(queue.deleted or queue.is_leaving for queue in (*self.durable, *self.memory)):
            return self
        return Route(
            tuple(queue for queue in self.durable if not (queue.deleted or (leaving and queue.is_leaving))),
            tuple(queue for queue in self.memory if not queue.deleted),
        )


NOWHERE: Final = Route((), ())


class _Matcher(Protocol):
    def add(self, pattern: str, value: BrokerQueue) -> None: ...
    def remove(self, pattern: str, value: BrokerQueue) -> None: ...
    def match(self, key: str) -> Iterable[BrokerQueue]: ...


class _Direct:
    """Matches equal keys."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[BrokerQueue, int]] = {}

    def add(self, pattern: str, value: BrokerQueue) -> None:
        counts = self._queues.setdefault(pattern, {})
        counts[value] = counts.get(value, 0) + 1

    def remove(self, pattern: str, value: BrokerQueue) -> None:
        counts = self._queues[pattern]
        counts[value] -= 1
        if not counts[value]:
            del counts[value]
        if not counts:
            del self._queues[pattern]

    def match(self, key: str) -> Iterable[BrokerQueue]:
        return self._queues.get(key, ())


class _Fanout(_Direct):
    """Matches every key."""

    def add(self, pattern: str, value: BrokerQueue) -> None:  # noqa: ARG002
        super().add("", value)

    def remove(self, pattern: str, value: BrokerQueue) -> None:  # noqa: ARG002
        super().remove("", value)

    def match(self, key: str) -> Iterable[BrokerQueue]:  # noqa: ARG002
        return super().match("")


def _new_matcher(kind: str) -> _Matcher:
    if kind == "direct":
        return _Direct()
    if kind == "fanout":
        return _Fanout()
    return TopicTrie()


EXCHANGE_TYPES: Final = frozenset({"direct", "fanout", "topic"})


class Exchange:
    """One exchange with its bindings."""

    def __init__(
        self, name: str, kind: str, *, durable: bool, auto_delete: bool = False, internal: bool = False
    ) -> None:
        self.name = name
        self.kind = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.bindings: set[Binding] = set()
        self._matcher = _new_matcher(kind)
        self._routes: dict[str, Route] = {}

    def add(self, binding: Binding, queue: BrokerQueue) -> bool:
        """Add a binding. False if it exists already."""
        if binding in self.bindings:
            return False
        self.bindings.add(binding)
        self._matcher.add(binding.key, queue)
        self._routes.clear()
        return True

    def remove(self, binding: Binding, queue: BrokerQueue) -> bool:
        """Remove a binding. False if there is none."""
        if binding not in self.bindings:
            return False
        self.bindings.remove(binding)
        self._matcher.remove(binding.key, queue)
        self._routes.clear()
        return True

    def route(self, key: str) -> Route:
        """The queues for a routing key."""
        route = self._routes.get(key)
        if route is None:
            if len(self._routes) >= ROUTES_CACHED_MAX:
                self._routes.clear()
            route = self._routes[key] = Route.to(self._matcher.match(key))
        return route


class DefaultExchange(Exchange):
    """The exchange without a name: every queue is always bound to it by its own name."""

    def __init__(self, queues: Mapping[str, BrokerQueue]) -> None:
        super().__init__(DEFAULT_EXCHANGE, "direct", durable=True)
        self._queues = queues

    def route(self, key: str) -> Route:
        """The queue of that name, if there is one."""
        queue = self._queues.get(key)
        return NOWHERE if queue is None else queue.route
