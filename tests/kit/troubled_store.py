"""A store with every kind of trouble that a report answers for, made at fixed times of the past three days.

The program ``python -m kit.troubled_store DIRECTORY CLOCK`` makes it; CLOCK is the file of a ``JumpingClock``.
"""

from __future__ import annotations

import struct
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import logstore

NOW_S = 1_772_442_000  # 2026-03-02 09:00:00 UTC: the report runs at this time
HOUR_S = 3600
IDLE, BUSY, DEAD, PARKED, AGAIN = "billing", "orders", "orders.dead", "reminders", "imports"
LONG = "warehouse." + "europe-central." * 12 + "partition"
CHINESE, ARABIC, HINDI, EMOJI = "注文-订单-주문", "طلبات العملاء", "ऑर्डर की कतार", "🛒🧾 checkout"
HOSTILE = "<script>alert('queue')</script>"
XID = logstore.Xid(7, b"order-17", b"db1")


def make(path: Path, clock: Path) -> None:
    """The store, closed at NOW_S."""

    def at(seconds_ago: int) -> None:
        with clock.open("r+b") as file:
            file.write(struct.pack("=qq", NOW_S - seconds_ago, 1))

    at(75 * HOUR_S)
    with logstore.open(path, segment_size=1 << 16) as store:
        dead = store.declare_queue(DEAD)
        busy = store.declare_queue(BUSY, dead_letter=dead)
        idle, parked = store.declare_queue(IDLE), store.declare_queue(PARKED)
        again = store.declare_queue(AGAIN)
        store.publish_many(again, [b"old"] * 5)
        foreign = [store.declare_queue(name) for name in (CHINESE, ARABIC, HINDI, EMOJI, LONG, HOSTILE)]
        at(72 * HOUR_S)
        doubt = store.begin(XID)
        store.publish(busy, b"to the warehouse" * 100, transaction=doubt)
        store.dequeue(store.publish(idle, b"first" * 100), idle, doubt)
        doubt.end()
        doubt.prepare()
        at(70 * HOUR_S)
        store.delete_queue(again)
        again = store.declare_queue(AGAIN)
        store.publish_many(again, [b"new"] * 3)
        for hour in range(60, -1, -1):
            at(hour * HOUR_S)
            store.publish_many(idle, [bytes(400)] * 20)
            store.publish_many(busy, [bytes(2000)] * 15)
            at(hour * HOUR_S - 1)
            for number, delivery in enumerate(busy.acquire(15)):
                if number == 0 and hour < 24:
                    delivery.reject()
                else:
                    delivery.accept()
            for number, queue in enumerate(foreign):
                if hour % (number + 2) == 0:
                    store.dequeue(store.publish(queue, b"x" * 300), queue)
            if hour == 12:
                store.publish_many(foreign[0], [b"x" * 100] * 40)
        store.publish(parked, b"later", not_before=datetime.fromtimestamp(NOW_S, UTC) + timedelta(hours=30))
        at(0)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
