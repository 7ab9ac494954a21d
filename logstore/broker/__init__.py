"""A message broker on a store: AMQP 0-9-1, for pika, aio-pika, kombu, Celery and similar clients.

`logstore serve` runs it; `run` and `Server` are for programs that open the store themselves.

Guarantees for clients:

* a confirmed publish is on disk: `basic.ack` is sent only after the group commit that holds the
  message;
* an acknowledgement is on disk when the answer to a later synchronous call on the same channel
  arrives;
* a delivered and unacknowledged message returns to its old place, marked as redelivered, when its
  channel or connection ends;
* a message on several durable queues is on all of them or on none;
* between `tx.select` and `tx.commit` publishes and acknowledgements change nothing; the commit makes
  all of them happen or none, and `commit-ok` means that it is on disk.

Differences from other brokers:

* transient messages (delivery mode 1) on durable queues are stored like persistent ones, and may
  survive a restart;
* non-durable queues, and exclusive ones even if durable, are kept in memory and end with the process;
* a feature that is not implemented (headers exchanges, exchange-to-exchange bindings, `immediate`,
  queue arguments except `x-message-ttl`, `x-expires` and `x-queue-type: classic`) is refused with 540
  or 406 and never ignored. 540 closes the channel, not the connection.

The package is a client of the store: it may import ``store`` and the packages below it, and no other client.
"""

from __future__ import annotations

import logging

from logstore.broker.errors import BrokerError
from logstore.broker.limits import Limits
from logstore.broker.server import DEFAULT_HOST, DEFAULT_PORT, Server, run

__all__ = ["DEFAULT_HOST", "DEFAULT_PORT", "BrokerError", "Limits", "Server", "run"]

# No output unless the program configures logging.
logging.getLogger("logstore").addHandler(logging.NullHandler())
