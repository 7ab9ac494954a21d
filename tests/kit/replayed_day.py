"""A day of messages replayed faster than it was, and a Spark query that follows it; each a process of its own.

``replayed_day.py write STORE MESSAGES RATE`` publishes numbered messages at this rate and consumes them a little later.
It prints each number up to which all is published. Killed and started again, it continues after the last message that
its store has, so the log has each number once, in order.

``replayed_day.py follow STORE PLACE START [now]`` writes each batch of the stream from an LSN on into a directory of
its own, until it is killed; with ``now``, until it has what is there.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logstore import MessageStore

QUEUES = 8
AT_ONCE = 1000
SEGMENT = 1 << 20
NUMBER_BYTES = 8
COLUMNS = ["lsn", "type", "id", "relocated", "deletes", "body"]
CONF = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def _waiting(store: MessageStore) -> list[tuple[int, int, list[int]]]:
    """The messages that wait, as runs in one queue: the first number, the queue, the ids."""
    found = [
        (int.from_bytes(message.content[:NUMBER_BYTES], "big"), place, message.id)
        for place in range(QUEUES)
        for message in store.messages(f"queue {place}", load=True)
    ]
    runs = itertools.groupby(sorted(found), key=lambda one: one[1])
    listed = ((place, list(run)) for place, run in runs)
    return [(run[0][0], place, [one[2] for one in run]) for place, run in listed]


def write(path: str, messages: int, rate: float) -> None:
    """Publishes the numbers below ``messages`` that are not there yet."""
    import logstore

    with logstore.open(path, segment_size=SEGMENT) as store:
        queues = [store.declare_queue(f"queue {place}") for place in range(QUEUES)]
        waiting = _waiting(store)
        first = next_number = waiting[-1][0] + len(waiting[-1][2]) if waiting else 0
        began = time.monotonic()
        while next_number < messages:
            time.sleep(max(0.0, began + (next_number - first) / rate - time.monotonic()))
            numbers = range(next_number, min(next_number + AT_ONCE, messages))
            place = next_number // AT_ONCE % QUEUES
            made = store.publish_many(
                queues[place], [b"%b: a message" % n.to_bytes(NUMBER_BYTES, "big") for n in numbers]
            )
            waiting.append((next_number, place, list(made)))
            next_number = numbers.stop
            while len(waiting) > QUEUES:
                _, place, ids = waiting.pop(0)
                store.dequeue_many(ids, queues[place])
            print(next_number, flush=True)


def follow(path: str, place: Path, start: int, *, now: bool) -> None:
    """Streams the store into ``place/rows/batch=N``; a batch that is given again takes the place of its first try."""
    import logstore.spark

    spark = logstore.spark.session(quick=True, log_level="FATAL", conf=CONF)

    def keep(rows: Any, batch: int) -> None:
        rows.write.mode("overwrite").parquet(str(place / "rows" / f"batch={batch:08d}"))

    frame = logstore.spark.read_stream(spark, path, columns=COLUMNS, body=NUMBER_BYTES, start=start)
    started = frame.writeStream.option("checkpointLocation", str(place / "checkpoint")).foreachBatch(keep)
    query = (started.trigger(availableNow=True) if now else started.trigger(processingTime="1 second")).start()
    query.awaitTermination()
    spark.stop()


def committed(place: Path) -> tuple[int, int]:
    """How many batches a query has committed, and the LSN up to which."""
    done = max((int(file.name) for file in (place / "checkpoint" / "commits").glob("[0-9]*")), default=-1)
    if done < 0:
        return 0, 0
    *_, offset = (place / "checkpoint" / "offsets" / str(done)).read_text().splitlines()
    return done + 1, int(json.loads(offset)["lsn"])


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        follow(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), now=sys.argv[5:] == ["now"])
