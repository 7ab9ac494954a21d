"""A message broker on a store: AMQP 0-9-1, for pika, aio-pika, kombu, Celery and their kin.

`logstore serve` runs it; `run` and `Server` are for programs that bring their own store.

What a client may rely on, each once it is complete:

* a publish that was confirmed is on the disk: `basic.ack` is sent only after the group commit that
  holds the message;
* an acknowledgement is on the disk once any synchronous call on the same channel was answered after
  it;
* a message that was delivered and not acknowledged goes back to its old place when its channel or
  connection ends, marked as redelivered;
* a message on several durable queues is on all of them or on none;
* between `tx.select` and `tx.commit` publishes and acknowledgements change nothing; the commit makes all of
  them happen or none, and `commit-ok` means that it is on the disk.

What is different from other brokers, on purpose or for now:

* transient messages (delivery mode 1) on durable queues are stored like persistent ones, and may
  survive a restart;
* non-durable queues, and exclusive ones even if durable, live in memory and end with the process;
* whatever is not implemented (headers exchanges, exchange-to-exchange bindings, `immediate`,
  queue arguments but `x-message-ttl`, `x-expires` and `x-queue-type: classic`) is refused clearly,
  with 540 or 406, and never ignored. 540 closes the channel, not the connection.

The package is a client of the store: it may import ``store`` and what lies below, and no other client.
"""

from __future__ import annotations

import logging

from logstore.broker.errors import BrokerError
from logstore.broker.limits import Limits
from logstore.broker.server import DEFAULT_HOST, DEFAULT_PORT, Server, run

__all__ = ["DEFAULT_HOST", "DEFAULT_PORT", "BrokerError", "Limits", "Server", "run"]

# Quiet unless the program that uses it sets logging up.
logging.getLogger("logstore").addHandler(logging.NullHandler())
