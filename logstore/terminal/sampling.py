"""A sample of a store from outside: its broker is asked, and if none answers, the log is read.

See :mod:`logstore.store.statistics`. It changes nothing, and waits at most ``control.SIGN_OF_LIFE_S`` for a sign of
life of the broker, then ``control.PATIENCE_S`` for the sample.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from logstore.errors import StoreError
from logstore.inspect import QueueLife
from logstore.store import control
from logstore.store.statistics import QUEUE_KEYS, sampled_queues, totals_of
from logstore.terminal.changing import ask
from logstore.terminal.state import full_from_log, held_bytes, limit_in, read_state

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.terminal.state import State

NOT_SERVED = "no broker serves this store, and only a broker knows consumers, unacknowledged messages and rates"


def asked(store_dir: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The broker's sample, without the name of the store; None and the reason if no broker gives one."""
    if not control.is_served(store_dir):
        return None, NOT_SERVED
    try:
        found = ask(store_dir, "stats", {}, sign_of_life_s=control.SIGN_OF_LIFE_S)
        queues = sampled_queues(found.pop("queue_columns"), found.pop("queue_rows"))
        return {**found, "queues": queues, "totals": totals_of(queues)}, None
    except StoreError as error:
        return None, f"the broker gives no statistics: {error.message}"
    except (KeyError, IndexError, TypeError):
        return None, "the broker gives no statistics that this logstore understands: use the logstore that runs it"


def clients(store_dir: Path) -> dict[str, Any]:
    """What a report needs of the broker: its queues and connections, and whether the store is full.

    ``problem`` says why the others are null, if no broker gives them.
    """
    found, problem = asked(store_dir)
    if found is None:
        return {"queues": None, "connections": None, "full": None, "problem": problem}
    try:
        told = ask(store_dir, "connections", {}, sign_of_life_s=control.SIGN_OF_LIFE_S)["connections"]
    except StoreError as error:
        told, problem = None, f"the broker does not list its connections: {error.message}"
    return {"queues": found["queues"], "connections": told, "full": found["full"], "problem": problem}


def sample(store_dir: Path, *, connect: str | None = None, schema: str | None = None) -> dict[str, Any]:
    """A sample without rates. Raises the errors of ``read_state`` if no broker answers."""
    found, problem = asked(store_dir)
    if found is not None:
        return {"store": str(store_dir), "through": "broker", "problem": None, "state": "live", **found}
    state = read_state(store_dir, connect=connect, schema=schema)
    return {"store": str(store_dir), "through": "log", "problem": problem, **_from_log(store_dir, state)}


def _from_log(store_dir: Path, state: State) -> dict[str, Any]:
    limit = limit_in(state.catalog)
    queues = [_queue(queue.id, queue.name, state.queues.get(queue.id)) for queue in state.catalog.queues]
    return {
        "state": state.info.state,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "clock_s": None,
        "full": full_from_log(state.fullness, store_dir, state.queues, state.catalog),
        "log": {
            "bytes": state.info.log_bytes,
            "live_bytes": state.fullness.live_bytes,
            "counted_bytes": state.fullness.counted_bytes,
            "held_bytes": held_bytes(store_dir),
            "max_bytes": None if limit is None else limit.max_log_bytes,
            "segments": state.info.segments,
            "spares": state.info.spares,
            "base_lsn": state.info.base_lsn,
            "durable_lsn": state.info.durable_lsn,
        },
        "forces": None,
        "relocation": None,
        "scrub": None,
        "threads_failed": None,
        "broker": None,
        "queues": queues,
        "totals": totals_of(queues),
    }


def _queue(queue_id: int, name: str, life: QueueLife | None) -> dict[str, Any]:
    found = QueueLife(queue_id, False, 0, 0, 0, 0) if life is None else life
    known = {
        "id": queue_id,
        "name": name,
        "durable": True,
        "depth": found.depth,
        "ready": found.ready,
        "locked": found.locked,
        "hidden": found.hidden,
        "expired": found.expired,
        "bytes": found.content_bytes,
        "ready_bytes": found.ready_bytes,
    }
    return dict.fromkeys(QUEUE_KEYS) | known
