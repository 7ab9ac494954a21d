"""Handlers of the methods channel.*, basic.* (except publishing), confirm.* and tx.*.

Each function handles one method. A reply goes through the channel's gate; an exception closes the
channel or the connection, according to its class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from logstore.broker.arguments import refuse_all
from logstore.broker.errors import NOT_FOUND, ChannelException, not_implemented, precondition_failed
from logstore.broker.transactions import ChannelTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from logstore.broker.channel import Channel
    from logstore.broker.queues import BrokerQueue


def named_queue(channel: Channel, name: str) -> BrokerQueue:
    """The queue of that name; an empty one means the queue declared last on the channel."""
    return channel.vhost.queue(name or last_queue(channel), channel.connection)


def last_queue(channel: Channel) -> str:
    """The name of the queue declared last on the channel. Raises 404 if there was none."""
    if channel.last_queue is None:
        raise ChannelException(NOT_FOUND, "no previously declared queue")
    return channel.last_queue


def _channel_flow(channel: Channel, method: commands.Channel.Flow) -> None:
    channel.flowing = bool(method.active)
    channel.reply(commands.Channel.FlowOk(channel.flowing))
    if channel.flowing:
        channel.consuming.wake()


def _qos(channel: Channel, method: commands.Basic.Qos) -> None:
    if method.prefetch_size:
        raise not_implemented(f"prefetch_size!=0 ({method.prefetch_size})")
    shared = method.global_ or channel.connection.prefetch_is_shared
    channel.consuming.set_prefetch(method.prefetch_count, shared=shared)
    channel.reply(commands.Basic.QosOk())


def _consume(channel: Channel, method: commands.Basic.Consume) -> None:
    if method.no_local:
        raise not_implemented("no_local=true")
    queue = named_queue(channel, method.queue)
    refuse_all("consumer of queue", queue.name, method.arguments, channel.vhost.name)
    tag = channel.consuming.consume(queue, method.consumer_tag, no_ack=method.no_ack, exclusive=method.exclusive)
    if not method.nowait:
        channel.reply(commands.Basic.ConsumeOk(tag))


def _cancel(channel: Channel, method: commands.Basic.Cancel) -> Coroutine[Any, Any, None] | None:
    deletion = channel.consuming.cancel(method.consumer_tag or "")
    if deletion is not None:
        return _cancel_last(channel, method, deletion)
    if not method.nowait:
        channel.reply(commands.Basic.CancelOk(method.consumer_tag))
    return None


async def _cancel_last(channel: Channel, method: commands.Basic.Cancel, deletion: Coroutine[Any, Any, object]) -> None:
    await deletion
    if not method.nowait:
        channel.reply(commands.Basic.CancelOk(method.consumer_tag))


def _cancel_ok(_channel: Channel, _method: commands.Basic.CancelOk) -> None:
    """Does nothing: a client may answer the broker's basic.cancel, although that needs no answer."""


def _get(channel: Channel, method: commands.Basic.Get) -> None:
    queue = named_queue(channel, method.queue)
    no_ack = method.no_ack
    channel.defer(lambda: channel.consuming.get(queue, no_ack=no_ack))


def _ack(channel: Channel, method: commands.Basic.Ack) -> Coroutine[Any, Any, None] | None:
    return channel.consuming.ack(method.delivery_tag, multiple=method.multiple)


def _nack(channel: Channel, method: commands.Basic.Nack) -> Coroutine[Any, Any, None] | None:
    return channel.consuming.reject(method.delivery_tag, multiple=method.multiple, requeue=method.requeue)


def _reject(channel: Channel, method: commands.Basic.Reject) -> None:
    channel.consuming.reject(method.delivery_tag or 0, multiple=False, requeue=method.requeue)


def _recover(channel: Channel, method: commands.Basic.Recover) -> Coroutine[Any, Any, None] | None:
    if not method.requeue:
        raise not_implemented("requeue=false")
    work = channel.consuming.recover()
    if work is not None:
        return _recover_many(channel, work)
    channel.reply(commands.Basic.RecoverOk())
    return None


async def _recover_many(channel: Channel, work: Coroutine[Any, Any, None]) -> None:
    await work
    channel.reply(commands.Basic.RecoverOk())


def _recover_async(channel: Channel, method: commands.Basic.RecoverAsync) -> Coroutine[Any, Any, None] | None:
    if not method.requeue:
        raise not_implemented("requeue=false")
    return channel.consuming.recover()


def _confirm_select(channel: Channel, method: commands.Confirm.Select) -> None:
    if channel.tx is not None:
        raise precondition_failed("cannot switch from tx to confirm mode")
    channel.publishing.confirming = True
    if not method.nowait:
        channel.reply(commands.Confirm.SelectOk())


def _tx_select(channel: Channel, _method: commands.Tx.Select) -> None:
    if channel.publishing.confirming:
        raise precondition_failed("cannot switch from confirm to tx mode")
    if channel.tx is None:
        channel.tx = ChannelTransaction(channel)
    channel.reply(commands.Tx.SelectOk())


def _tx_commit(channel: Channel, _method: commands.Tx.Commit) -> Coroutine[Any, Any, None] | None:
    return _transaction(channel).commit()


def _tx_rollback(channel: Channel, _method: commands.Tx.Rollback) -> None:
    _transaction(channel).rollback()
    channel.reply(commands.Tx.RollbackOk())


def _transaction(channel: Channel) -> ChannelTransaction:
    if channel.tx is None:
        raise precondition_failed("channel is not transactional")
    return channel.tx


HANDLERS: Final[dict[int, Callable[[Channel, Any], Coroutine[Any, Any, None] | None]]] = {
    commands.Channel.Flow.index: _channel_flow,
    commands.Basic.Qos.index: _qos,
    commands.Basic.Consume.index: _consume,
    commands.Basic.Cancel.index: _cancel,
    commands.Basic.CancelOk.index: _cancel_ok,
    commands.Basic.Get.index: _get,
    commands.Basic.Ack.index: _ack,
    commands.Basic.Nack.index: _nack,
    commands.Basic.Reject.index: _reject,
    commands.Basic.Recover.index: _recover,
    commands.Basic.RecoverAsync.index: _recover_async,
    commands.Confirm.Select.index: _confirm_select,
    commands.Tx.Select.index: _tx_select,
    commands.Tx.Commit.index: _tx_commit,
    commands.Tx.Rollback.index: _tx_rollback,
}
