"""Updates by segments of one host on a running member: the update that it receives, and those that it sends.

```
     the member's loop                        the group's thread                    threads of the updates
 COPY ──▶ dial the member that offers ──────────────────────────────────────────▶  manifest, catalog, segments
                                              Begin: the update's directory ◀─────
          Engine.updated ◀────────────────────────────────────────────────────────  all is there
 SWITCH ───────────────────────────────────▶  Switch: forced, opened, VOTE
          Engine.switched ◀─────────────────
```

* One update is taken at a time, and the copy goes on meanwhile. A leader that is elected in between changes nothing:
  the sender goes on as a follower. If the sender is silent, because its disk hangs, the new leader's offer is taken.
* If it fails before the engine has said SWITCH, the engine learns of it, and the next offer begins with the files that
  are here. From SWITCH on the engine counts on the new copy: if that cannot be switched in, the group fails.
* A peer gets one update at a time; its newest connection counts.
* Nothing of an update is freed while a thread works on it, and no task is left after :meth:`GroupUpdates.close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from logstore.cluster.jobs import Job, nothing
from logstore.cluster.update import Manifest, Update
from logstore.cluster.update_frames import Request, UpdateFailed, Why, ended
from logstore.cluster.updating import (
    IN_FLIGHT,
    PAUSE_S,
    RATE,
    Received,
    read_request,
    receive_update,
    refuse_update,
    send_update,
)
from logstore.errors import EngineRefused, OptionError, StoreClosed, StoreError
from logstore.holds import LIMIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from logstore.cluster.group import Around, Group
    from logstore.cluster.replica import Copy
    from logstore.cluster.said import Said

logger = logging.getLogger(__name__)

LEAVES: Final = "this member leaves the host's group"
THREADS: Final = 4
UPDATED_WITHIN_S: Final = 10.0
"""How long the engine may refuse a copy that is whole: it waits for a leader, or for entries to be written."""
MOVED_WITHIN_S: Final = 1.0
"""How long a sender waits for more to be durable before it looks again."""


class _InThread(Job):
    """A job whose result a caller awaits; if it fails, the caller gets the error, and the group continues."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: Future[object] = Future()


class Begin(_InThread):
    """The update's directory is made. The result is the update; None: the copy needs none any more."""

    __slots__ = ("manifest",)

    def __init__(self, manifest: Manifest) -> None:
        super().__init__()
        self.manifest = manifest

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        if self.future.set_running_or_notify_cancel():
            try:
                has = copy.is_there and copy.info().applied_index >= self.manifest.index
                self.future.set_result(None if has else Update(copy, self.manifest))
            except BaseException as error:  # noqa: BLE001 - the caller's
                self.future.set_exception(error)
        return nothing


class Switch(_InThread):
    """The new copy is forced, opened and counts. A failure is the group's as well."""

    __slots__ = ("received", "said")

    def __init__(self, received: Received, said: Said) -> None:
        super().__init__()
        self.received = received
        self.said = said

    def do(self, copy: Copy) -> Callable[[Group], None]:  # noqa: D102 - as in Job
        if not self.future.set_running_or_notify_cancel():
            return nothing
        end = self.received.manifest
        try:
            assert self.received.update is not None
            self.said.lower(end.term, end.index)
            self.received.update.finish()
            self.received.check_members(copy)
            copy.drop_kept(end.index)  # the engine has nothing below
            number = copy.member().copy
        except BaseException as error:
            self.future.set_exception(error)
            raise
        self.future.set_result(None)
        return lambda group: group.switched(number, end.term, end.index)


class GroupUpdates:
    """The updates of a group. Its methods are called on the member's loop."""

    def __init__(self, group: Group, around: Around) -> None:
        """Sets up the object; no update begins yet."""
        self._group = group
        self._around = around
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix=f"logstore-update-{group.name}")
        self._taking: asyncio.Task[None] | None = None
        self._next: tuple[int, int] | None = None  # an offer that arrived while an update was ending
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._connections: set[tuple[int, asyncio.StreamWriter]] = set()
        self._waits: _InThread | None = None  # in the group's queue, or being done
        self._whole: Received | None = None
        self._moved = asyncio.Event()
        self._durable = asyncio.Event()
        self._switched = asyncio.Event()
        self._is_closed = False

    # ---- the end ----

    def stop(self) -> None:
        """Cancels everything; :meth:`close` waits until it has ended."""
        self._is_closed = True
        if self._waits is not None:
            self._waits.future.cancel()
        for task in (*self._sending.values(), *filter(None, [self._taking])):
            task.cancel(LEAVES)

    async def close(self) -> None:
        """Ends all updates. The sender or receiver is informed, and received bytes stay on the disk."""
        self.stop()
        while tasks := [*self._sending.values(), *filter(None, [self._taking])]:
            await asyncio.wait(tasks)
        self._executor.shutdown(wait=False)

    # ---- what the group tells ----

    def acted(self) -> None:
        """The engine has answered to an event."""
        self._moved.set()

    def became_durable(self) -> None:
        """More of the log has become durable."""
        self._durable.set()

    def switched(self) -> None:
        """The engine knows that the new copy is in use."""
        self._switched.set()

    def lost(self, peer: int) -> None:
        """The peer does not answer: aborts its connections for updates, which would wait much longer."""
        for one, writer in self._connections:
            if one == peer:
                writer.transport.abort()

    # ---- taking one ----

    def take(self, peer: int, index: int) -> None:
        """The engine asked for a COPY: the peer offers a copy that ends at this index, or beyond."""
        if self._is_closed:
            return
        self._next = (peer, index)
        if self._taking is None:
            self._take_next()

    def _take_next(self) -> None:
        offer, self._next = self._next, None
        if offer is not None and not self._is_closed:
            self._taking = self._around.loop.create_task(self._take(*offer))
            self._taking.add_done_callback(self._taken)

    def _taken(self, task: asyncio.Task[None]) -> None:
        self._taking = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._group.fail(error)
        self._take_next()

    async def _take(self, peer: int, index: int) -> None:
        group = self._group
        logger.info(
            "host %s: an update from member %d begins; it is to end at batch %d or above", group.name, peer, index
        )
        try:
            received = await self._receive(peer, index)
            if received.update is not None:
                await self._switch_in(received)
                logger.info(
                    "host %s has the copy of member %d, up to batch %d", group.name, peer, received.manifest.index
                )
                return
            why = "no update is needed any more"
        except (StoreError, OSError, MemoryError) as error:
            why = str(error) or type(error).__name__
        logger.warning("host %s: the update from member %d has failed: %s", group.name, peer, why)
        if self._next is None and group.engine is not None:
            with contextlib.suppress(EngineRefused):  # then the group fails
                group.engine.update_failed()

    async def _receive(self, peer: int, index: int) -> Received:
        group = self._group
        reader, writer = await self._around.open_update(peer)
        with self._watched(peer, writer):
            return await receive_update(
                reader,
                writer,
                self._begin,
                store_uuid=group.uuid,
                index=index,
                executor=self._executor,
                replaced=lambda: group.standing().leader not in (0, peer),
            )

    def _begin(self, manifest: Manifest) -> Update | None:
        """Runs in a thread of the updates. The copy is its thread's, and what VOTE is to have was asked for before."""
        job = Begin(manifest)
        self._around.loop.call_soon_threadsafe(self._give, job)
        try:
            made = job.future.result()
        except CancelledError:
            raise StoreClosed(LEAVES) from None
        assert made is None or isinstance(made, Update)
        return made

    def _give(self, job: _InThread) -> None:
        if self._is_closed:
            job.future.cancel()
            return
        self._waits = job
        self._group.give(job)

    async def _switch_in(self, received: Received) -> None:
        """Tells the engine that the copy is complete, and waits for the switch that its answer demands."""
        self._whole = received
        self._switched.clear()
        try:
            await self._tell_engine(received)
            switch = self._waits
            assert isinstance(switch, Switch)
            await ended(asyncio.wrap_future(switch.future))
            await self._switched.wait()
        except BaseException as error:
            await received.failed(str(error) or type(error).__name__)
            raise
        finally:
            self._whole = None
        await received.switched()

    async def _tell_engine(self, received: Received) -> None:
        """Tells the engine that the copy is complete, and tries again while it refuses for a moment.

        It does so while entries are written or no leader is known. A copy that is of no use it refuses for good.
        """
        end = received.manifest
        try:
            async with asyncio.timeout(UPDATED_WITHIN_S):
                while not self._is_taken(received):
                    if self._group.standing().state != "follows" or self._group.standing().durable_index >= end.index:
                        raise UpdateFailed(
                            Why.BEHIND, f"this member leads, or batch {end.index} is durable here by now"
                        )
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise UpdateFailed(
                Why.WAITED,
                f"the engine did not take the copy within {UPDATED_WITHIN_S:.0f} s: no member leads, or the "
                "copy is of no use any more",
            ) from None

    def _is_taken(self, received: Received) -> bool:
        group, end = self._group, received.manifest
        if group.engine is None:
            raise StoreClosed(f"host {group.name} takes no part on this member")
        members = received.members_index, received.members
        try:
            answer = group.engine.updated(self._around.now_ms(), end.index, end.term, *members)
        except EngineRefused:
            return False
        except OptionError as error:
            raise UpdateFailed(Why.MEMBERS, f"the engine refuses what the sender says of the copy: {error}") from None
        group.act(answer)
        return True

    def switch(self) -> None:
        """The engine asked for a SWITCH, in its answer to :meth:`_is_taken`."""
        assert self._whole is not None
        self._give(Switch(self._whole, self._group.said))

    # ---- sending ----

    def send(self, peer: int, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A peer asks this member for an update of this host. An earlier one of the same peer ends first."""
        before = self._sending.get(peer)
        if before is not None:
            before.cancel(f"a newer connection of member {peer} asks for an update")
        task = self._around.loop.create_task(self._send(peer, before, request, reader, writer))
        self._sending[peer] = task
        self._tell_sending()
        task.add_done_callback(functools.partial(self._sent, peer))
        if self._is_closed:
            task.cancel(LEAVES)

    def _sent(self, peer: int, task: asyncio.Task[None]) -> None:
        if self._sending.get(peer) is task:
            del self._sending[peer]
            self._tell_sending()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("host %s: an update of member %d has failed", self._group.name, peer, exc_info=error)

    def _tell_sending(self) -> None:
        if self._group.engine is not None:
            self._group.act(self._group.engine.sends_update(self._around.now_ms(), bool(self._sending)))

    async def _send(
        self,
        peer: int,
        before: asyncio.Task[None] | None,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        group = self._group
        try:
            if before is not None:
                await asyncio.wait([before])
            if group.copy_number == 0:
                await refuse_update(reader, writer, Why.STORE, f"member {self._around.member} has no copy of it yet")
                return
            with self._watched(peer, writer):
                sent = await send_update(
                    reader,
                    writer,
                    group.path / f"copy-{group.copy_number}",
                    uuid=group.uuid,
                    executor=self._executor,
                    rate=RATE,
                    in_flight=IN_FLIGHT,
                    limit_bytes=LIMIT_BYTES,
                    moved=self._more_is_durable,
                    request=request,
                )
        except (StoreError, OSError) as error:
            group.pacing.updated(peer, took=False)
            logger.warning("host %s: an update of member %d has failed: %s", group.name, peer, error)
        else:
            group.pacing.updated(peer, took=sent.switched)
            what = "has the copy" if sent.switched else f"did not take the copy ({sent.reason})"
            logger.info(
                "host %s: member %d %s up to batch %d; %d bytes", group.name, peer, what, sent.index, sent.bytes
            )
        finally:
            writer.close()

    async def _more_is_durable(self) -> None:
        """Waits at least for a pause, because a busy host moves all the time and a reader's view lags a little."""
        self._durable.clear()
        await asyncio.sleep(PAUSE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MOVED_WITHIN_S):
                await self._durable.wait()

    @contextlib.contextmanager
    def _watched(self, peer: int, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._connections.add((peer, writer))
        try:
            yield
        finally:
            self._connections.discard((peer, writer))


async def answer_update(
    member: int,
    groups: Mapping[bytes, Group],
    refused: Mapping[bytes, str],
    peer: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """A peer has opened a connection for an update: reads which host it wants, and lets that host's group send it.

    ``refused``: the hosts of which the peer's copy is refused, with the reasons.
    """
    try:
        request = await read_request(reader, writer)
    except UpdateFailed as error:
        logger.warning("member %d: an update has failed: %s", peer, error)
        return
    group = groups.get(request.uuid)
    if group is None or group.engine is None:
        reason = f"member {member} has no host with the store {request.uuid.hex()}"
        logger.warning("member %d: an update is refused: %s", peer, reason)
        await refuse_update(reader, writer, Why.STORE, reason)
    elif request.uuid in refused:
        await refuse_update(reader, writer, Why.STORE, refused[request.uuid])
    else:
        group.updates.send(peer, request, reader, writer)
