"""Handlers of the methods exchange.* and queue.*.

Each function handles one method; `VirtualHost` does the work and knows the rules. Later frames on the same channel wait
for the method; other channels continue. A change of exchanges or bindings in the catalog, or the declaration of a
queue, takes those of its kind that wait directly behind it on its channel with it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from logstore.broker import frames
from logstore.broker.basic import last_queue, named_queue
from logstore.broker.durable_queue import DurableQueue
from logstore.broker.errors import (
    ACCESS_REFUSED,
    ChannelException,
    ConnectionException,
    not_implemented,
    precondition_failed,
)
from logstore.broker.exchanges import DEFAULT_EXCHANGE, Exchange
from logstore.broker.memory_queue import MemoryQueue
from logstore.broker.turns import in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine, Hashable

    from pamqp import base

    from logstore.broker.catalog_changes import Change
    from logstore.broker.channel import Channel
    from logstore.broker.queues import BrokerQueue


async def _exchange_declare(channel: Channel, method: commands.Exchange.Declare) -> None:
    if method.exchange == DEFAULT_EXCHANGE:
        raise ChannelException(ACCESS_REFUSED, "operation not permitted on the default exchange")
    if method.passive:
        channel.vhost.exchange(method.exchange)
        _reply(channel, method.nowait, commands.Exchange.DeclareOk())
    else:
        await channel.vhost.declare_exchange(
            _exchange_of(method),
            method.arguments,
            answer=functools.partial(_reply, channel, method.nowait, commands.Exchange.DeclareOk()),
            further=functools.partial(_further, channel, method.index, _next_exchange),
        )


def _exchange_of(method: commands.Exchange.Declare) -> Exchange:
    return Exchange(
        method.exchange,
        method.exchange_type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
    )


def _next_exchange(channel: Channel, method: commands.Exchange.Declare) -> Change | None:
    if method.passive or method.exchange == DEFAULT_EXCHANGE:
        return None
    answer = functools.partial(_reply, channel, method.nowait, commands.Exchange.DeclareOk())
    return channel.vhost.stored_exchange(_exchange_of(method), method.arguments, answer)


async def _exchange_delete(channel: Channel, method: commands.Exchange.Delete) -> None:
    await channel.vhost.delete_exchange(
        method.exchange,
        if_unused=method.if_unused,
        answer=functools.partial(_reply, channel, method.nowait, commands.Exchange.DeleteOk()),
        further=functools.partial(_further, channel, method.index, _next_exchange_deletion),
    )


def _next_exchange_deletion(channel: Channel, method: commands.Exchange.Delete) -> Change | None:
    answer = functools.partial(_reply, channel, method.nowait, commands.Exchange.DeleteOk())
    return channel.vhost.stored_exchange_deletion(method.exchange, if_unused=method.if_unused, answer=answer)


async def _exchange_bind(_channel: Channel, method: base.Frame) -> None:
    raise not_implemented(f"{method.name}: this broker binds exchanges to queues only")


async def _queue_declare(channel: Channel, method: commands.Queue.Declare) -> None:
    vhost = channel.vhost
    if method.passive:
        queue = vhost.queue(method.queue or last_queue(channel), channel.connection)
        queue.touch()
        _declared(channel, method, queue)
        return
    await vhost.declare_queue(
        method.queue or vhost.new_queue_name(),
        channel.connection,
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        arguments=method.arguments or {},
        answer=functools.partial(_declared, channel, method),
        further=functools.partial(_further, channel, method.index, _next_declaration),
    )
    if channel.connection.has_given_up:  # the connection ended meanwhile: remove its new exclusive queue, too
        vhost.connection_gone(channel.connection)


def _declared(channel: Channel, method: commands.Queue.Declare, queue: BrokerQueue) -> None:
    channel.last_queue = queue.name
    if not method.nowait:
        channel.send(frames.queue_declare_ok(channel.number, queue.name, queue.ready_count, len(queue.consumers)))


def _next_declaration(channel: Channel, method: commands.Queue.Declare) -> Change | None:
    if method.passive or not method.durable or method.exclusive or not method.queue:
        return None
    return channel.vhost.stored_declaration(
        method.queue,
        auto_delete=method.auto_delete,
        arguments=method.arguments or {},
        answer=functools.partial(_declared, channel, method),
    )


async def _queue_bind(channel: Channel, method: commands.Queue.Bind) -> None:
    queue, key = _queue_and_key(channel, method)
    await channel.vhost.bind(
        method.exchange,
        queue,
        key,
        method.arguments or {},
        answer=functools.partial(_reply, channel, method.nowait, commands.Queue.BindOk()),
        further=functools.partial(_further, channel, method.index, _next_binding),
    )


def _queue_and_key(channel: Channel, method: commands.Queue.Bind | commands.Queue.Unbind) -> tuple[BrokerQueue, str]:
    queue = named_queue(channel, method.queue)
    # As the specification says: if both are empty, the key is the name of the last queue.
    return queue, method.routing_key if method.queue or method.routing_key else queue.name


def _next_binding(channel: Channel, method: commands.Queue.Bind) -> Change | None:
    queue, key = _queue_and_key(channel, method)
    answer = functools.partial(_reply, channel, method.nowait, commands.Queue.BindOk())
    return channel.vhost.stored_binding(method.exchange, queue, key, method.arguments or {}, answer)


def _further(
    channel: Channel, index: int, next_change: Callable[[Channel, Any], Change | None], keys: Container[Hashable]
) -> Change | None:
    """The change of the next frame that waits for this method on its channel, if it can be made together with it.

    Any other frame stays where it is, also one that will be refused: that happens when its turn comes.
    """
    held = channel.held
    if not held or not channel.is_open:
        return None
    kind, _, payload = held[0]
    if kind != frames.METHOD or len(payload) < 4 or frames.method_index(payload) != index:
        return None
    try:
        change = next_change(channel, frames.decode_method(index, payload))
    except (ChannelException, ConnectionException):
        return None
    if change is None or change.key in keys:
        return None
    channel.connection.receiving.take_held(held)
    return change


async def _queue_unbind(channel: Channel, method: commands.Queue.Unbind) -> None:
    queue, key = _queue_and_key(channel, method)
    await channel.vhost.unbind(
        method.exchange,
        queue,
        key,
        method.arguments or {},
        answer=functools.partial(channel.reply, commands.Queue.UnbindOk()),
        further=functools.partial(_further, channel, method.index, _next_removal),
    )


def _next_removal(channel: Channel, method: commands.Queue.Unbind) -> Change | None:
    queue, key = _queue_and_key(channel, method)
    answer = functools.partial(channel.reply, commands.Queue.UnbindOk())
    return channel.vhost.stored_removal(method.exchange, queue, key, method.arguments or {}, answer)


async def _queue_purge(channel: Channel, method: commands.Queue.Purge) -> None:
    queue = named_queue(channel, method.queue)
    if isinstance(queue, DurableQueue):
        count = await channel.wakeups.loop.run_in_executor(None, queue.handle.purge)
        queue.was_purged()
    else:
        assert isinstance(queue, MemoryQueue)
        count = await in_turns(queue.purge())
    _reply(channel, method.nowait, commands.Queue.PurgeOk(count))


async def _queue_delete(channel: Channel, method: commands.Queue.Delete) -> None:
    name = method.queue or last_queue(channel)
    count = 0
    if name in channel.vhost.queues:
        queue = channel.vhost.queue(name, channel.connection)

        def is_kept() -> bool:
            _check_deletable(channel.vhost.name, queue, if_unused=method.if_unused, if_empty=method.if_empty)
            return False

        is_kept()
        count = await channel.vhost.delete_queue(queue, unless=is_kept)
        channel.changed()
    _reply(channel, method.nowait, commands.Queue.DeleteOk(count))


def _check_deletable(vhost: str, queue: BrokerQueue, *, if_unused: bool, if_empty: bool) -> None:
    if if_unused and queue.consumers:
        raise precondition_failed(f"queue '{queue.name}' in vhost '{vhost}' in use")
    if if_empty and queue.ready_count:
        raise precondition_failed(f"queue '{queue.name}' in vhost '{vhost}' not empty")


def _reply(channel: Channel, nowait: bool, method: base.Frame) -> None:
    if not nowait:
        channel.reply(method)


HANDLERS: Final[dict[int, Callable[[Channel, Any], Coroutine[Any, Any, None]]]] = {
    commands.Exchange.Declare.index: _exchange_declare,
    commands.Exchange.Delete.index: _exchange_delete,
    commands.Exchange.Bind.index: _exchange_bind,
    commands.Exchange.Unbind.index: _exchange_bind,
    commands.Queue.Declare.index: _queue_declare,
    commands.Queue.Bind.index: _queue_bind,
    commands.Queue.Unbind.index: _queue_unbind,
    commands.Queue.Purge.index: _queue_purge,
    commands.Queue.Delete.index: _queue_delete,
}
