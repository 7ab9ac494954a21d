"""The thread that works on the disk for one group, and the jobs that wait for it.

Jobs are done in the order in which they were given; batches that wait are taken together (R3), and only the newest
"durable" counts. While the disk has no room for a batch, what needs none goes on.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from logstore.cluster.jobs import (
    AskRoom,
    Cut,
    Drop,
    Durable,
    Job,
    Keep,
    NoteCatalog,
    NoteTail,
    Take,
    Vote,
    take_and_apply,
)
from logstore.errors import EngineRefused

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from logstore.cluster.group import Group
    from logstore.errors import StoreFull

logger = logging.getLogger(__name__)

TOGETHER: Final = 64
ROOM_AGAIN_S: Final = 1.0
_NEED_NO_ROOM: Final = (Vote, NoteTail, NoteCatalog, Keep, Drop, AskRoom)


class CopyThread:
    """The thread of one group; its methods are called on the loop. What a job returns is done on the loop, too."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.executor = ThreadPoolExecutor(1, thread_name_prefix=f"logstore-{group.name}")
        self._jobs: deque[Job] = deque()
        self._is_working = False
        self._is_stopped = False
        self._no_file = False  # the first job is to take batches for which the disk has no room

    def stop(self) -> None:
        """Begins no further job, and ignores the result of the present one."""
        self._is_stopped = True
        self._jobs.clear()

    def give(self, job: Job) -> None:
        """Adds a job behind those that wait."""
        self._jobs.append(job)
        if isinstance(job, Durable):
            self._no_file = False  # what is applied may make room
        self._work()

    def wait_for_room(self, rest: Take, why: StoreFull) -> None:
        """Keeps these batches waiting, because this disk has no room.

        They are tried again soon, or once other batches were applied.
        """
        if not self._no_file:
            logger.warning("host %s waits for room on this disk: %s", self._group.name, why)
        self._jobs.appendleft(rest)
        self._no_file = not any(isinstance(job, Durable) for job in self._jobs)
        if self._no_file:
            self._group.loop.call_later(ROOM_AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        self._no_file = False
        self._work()

    def _work(self) -> None:
        if self._is_working or not self._jobs or self._is_stopped:
            return
        chunk = _passing(self._jobs) if self._no_file else [self._jobs.popleft()]
        if not chunk:
            return
        mergeable = isinstance(chunk[0], (Take, Durable))
        while mergeable and self._jobs and isinstance(self._jobs[0], (Take, Durable)) and len(chunk) < TOGETHER:
            chunk.append(self._jobs.popleft())
        self._is_working = True
        future = self.executor.submit(self._do, chunk)
        future.add_done_callback(lambda done: self._group.loop.call_soon_threadsafe(self._done, done))

    def _do(self, chunk: list[Job]) -> list[Callable[[Group], None]]:
        """Runs in the thread. What is to be done on the loop afterwards."""
        copy = self._group.copy
        if copy is None:
            return []
        if isinstance(chunk[0], (Take, Durable)):
            return take_and_apply(copy, chunk)
        return [chunk[0].do(copy)]

    def _done(self, future: Future[Any]) -> None:
        self._is_working = False
        if self._is_stopped:
            return
        try:
            for then in future.result():
                if not self._is_stopped:
                    then(self._group)
        except EngineRefused as error:
            logger.warning("host %s: the engine refused what the disk has done: %s", self._group.name, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the group cannot be relied on
            self._group.fail(error)
            return
        self._work()


def _passing(jobs: deque[Job]) -> list[Job]:
    """The next job while the first job, batches to be taken, waits for room; empty if all jobs must wait with it."""
    for job in jobs:
        if isinstance(job, Take):
            continue
        if isinstance(job, Cut):
            _abandon(jobs, job)
        elif not isinstance(job, _NEED_NO_ROOM):
            break
        jobs.remove(job)
        return [job]
    return []


def _abandon(jobs: deque[Job], cut: Cut) -> None:
    """Drops the waiting batches above the cut, which will never be taken."""
    before = []
    while jobs[0] is not cut:
        before.append(jobs.popleft())
    for job in reversed(before):
        if isinstance(job, Take):
            job.batches = [batch for batch in job.batches if batch.index <= cut.index]
            if not job.batches:
                if job.consumed is not None:
                    job.consumed()
                continue
        jobs.appendleft(job)
