"""What waits at the end of a log, by queue: counted with Arrow from the table of live messages.

That table is in this process also when Spark counts all else. Times are µs since 1970, in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from logstore.report.arrow import NONE, groups, ints, one_of, parents_of

if TYPE_CHECKING:
    from collections.abc import Collection

TIMES: Final = ("enqueue_time", "not_before", "expires")

__all__ = ["Waiting", "content_bytes_of", "waiting_of"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The places of one queue that have not ended."""

    places: int
    content_bytes: int
    since_us: int | None
    """The first known time at which one of them was enqueued."""
    unknown: int
    """Places whose time of enqueue the log no longer has; they are older than its first record."""
    hidden: int
    """Places whose time has not come."""
    due_us: int | None
    """When the first of these is offered."""
    expired: int
    expired_us: int | None
    """When the first of these expired."""
    dead: int
    """Places of messages that another queue dead-lettered."""

    @property
    def offered(self) -> int:
        """Places that a consumer could take, if no transaction has locked them."""
        return self.places - self.hidden - self.expired


def waiting_of(table: Any, now_us: int) -> dict[int, Waiting]:
    """What waits on each queue, by id. ``now_us`` decides what is hidden and what has expired."""
    import numpy as np

    parts = [_places(batch) for batch in table.select(["content_bytes", "places"]).to_batches() if batch.num_rows]
    if not parts:
        return {}
    queues, content, entered, not_before, expires, dead = map(np.concatenate, zip(*parts, strict=True))
    hidden, expired = not_before > now_us, (expires != NONE) & (expires <= now_us)
    found: dict[int, Waiting] = {}
    for queue_id, mine in groups(queues):
        times = entered[mine]
        found[queue_id] = Waiting(
            places=len(mine),
            content_bytes=int(content[mine].sum()),
            since_us=_least(times[times != NONE]),
            unknown=int(np.count_nonzero(times == NONE)),
            hidden=int(np.count_nonzero(hidden[mine])),
            due_us=_least(not_before[mine][hidden[mine]]),
            expired=int(np.count_nonzero(expired[mine])),
            expired_us=_least(expires[mine][expired[mine]]),
            dead=int(np.count_nonzero(dead[mine])),
        )
    return found


def _places(batch: Any) -> tuple[Any, ...]:
    """Of each place that has not ended: queue, content bytes, times, and whether its message was dead-lettered."""
    import numpy as np

    flat, rows = batch.column("places").flatten(), parents_of(batch.column("places"))
    ended, queues = ints(flat.field("dequeue_lsn")) != NONE, ints(flat.field("queue_id"))
    dead = np.zeros(batch.num_rows, bool)
    dead[rows[ended & one_of(flat.field("reason"), ("dead_lettered",))]] = True
    content, times = ints(batch.column("content_bytes")), (_times(flat, name) for name in TIMES)
    columns = (queues, content[rows], *times, dead[rows])
    return tuple(column[~ended & (queues != NONE)] for column in columns)


def _times(flat: Any, name: str) -> Any:
    """A column of times of the places; an export of an earlier version may not have it."""
    import numpy as np

    known = {field.name for field in flat.type}
    return ints(flat.field(name)) if name in known else np.full(len(flat), NONE, np.int64)


def _least(times: Any) -> int | None:
    return int(times.min()) if len(times) else None


def content_bytes_of(table: Any, message_ids: Collection[int]) -> dict[int, int]:
    """The content bytes of these live messages, by id."""
    import numpy as np

    found: dict[int, int] = {}
    wanted = sorted(message_ids)
    for batch in table.select(["id", "content_bytes"]).to_batches() if wanted else ():
        ids = ints(batch.column("id"))
        chosen = np.isin(ids, wanted)
        found |= dict(zip(ids[chosen].tolist(), ints(batch.column("content_bytes"))[chosen].tolist(), strict=True))
    return found
