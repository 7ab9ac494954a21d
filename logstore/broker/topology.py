"""Handlers of the methods exchange.* and queue.*.

Each function handles one method; `VirtualHost` does the work and knows the rules. Later frames on the same channel wait
for the method; other channels continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from logstore.broker import frames
from logstore.broker.basic import last_queue, named_queue
from logstore.broker.durable_queue import DurableQueue
from logstore.broker.errors import (
    ACCESS_REFUSED,
    ChannelException,
    not_implemented,
    precondition_failed,
)
from logstore.broker.exchanges import DEFAULT_EXCHANGE
from logstore.broker.memory_queue import MemoryQueue
from logstore.broker.turns import in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pamqp import base

    from logstore.broker.channel import Channel
    from logstore.broker.queues import BrokerQueue


async def _exchange_declare(channel: Channel, method: commands.Exchange.Declare) -> None:
    if method.exchange == DEFAULT_EXCHANGE:
        raise ChannelException(ACCESS_REFUSED, "operation not permitted on the default exchange")
    if method.passive:
        channel.vhost.exchange(method.exchange)
    else:
        await channel.vhost.declare_exchange(
            method.exchange,
            method.exchange_type,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=method.arguments,
        )
    _reply(channel, method.nowait, commands.Exchange.DeclareOk())


async def _exchange_delete(channel: Channel, method: commands.Exchange.Delete) -> None:
    await channel.vhost.delete_exchange(method.exchange, if_unused=method.if_unused)
    _reply(channel, method.nowait, commands.Exchange.DeleteOk())


async def _exchange_bind(_channel: Channel, method: base.Frame) -> None:
    raise not_implemented(f"{method.name}: this broker binds exchanges to queues only")


async def _queue_declare(channel: Channel, method: commands.Queue.Declare) -> None:
    vhost = channel.vhost
    name = method.queue
    if method.passive:
        queue = vhost.queue(name or last_queue(channel), channel.connection)
        queue.touch()
    else:
        queue = await vhost.declare_queue(
            name or vhost.new_queue_name(),
            channel.connection,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=method.arguments or {},
        )
    if channel.connection.has_given_up:  # the connection ended meanwhile: remove its new exclusive queue, too
        vhost.connection_gone(channel.connection)
    channel.last_queue = queue.name
    if not method.nowait:
        channel.send(frames.queue_declare_ok(channel.number, queue.name, queue.ready_count, len(queue.consumers)))


async def _queue_bind(channel: Channel, method: commands.Queue.Bind) -> None:
    queue = named_queue(channel, method.queue)
    # As the specification says: if both are empty, the key is the name of the last queue.
    key = method.routing_key if method.queue or method.routing_key else queue.name
    await channel.vhost.bind(method.exchange, queue, key, method.arguments or {})
    _reply(channel, method.nowait, commands.Queue.BindOk())


async def _queue_unbind(channel: Channel, method: commands.Queue.Unbind) -> None:
    queue = named_queue(channel, method.queue)
    key = method.routing_key if method.queue or method.routing_key else queue.name
    await channel.vhost.unbind(method.exchange, queue, key, method.arguments or {})
    channel.reply(commands.Queue.UnbindOk())


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
