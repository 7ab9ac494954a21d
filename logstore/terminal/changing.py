"""How a command changes a store: through the broker that has it open, or by opening the store itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from logstore.catalog.backends import backend_for
from logstore.codec.records import LSN_LIMIT
from logstore.core.lock_holder import store_locked
from logstore.errors import OutcomeUnknown, StoreError, StoreLocked
from logstore.inspect import Reader, read_catalog
from logstore.inspect.refusals import check_single, refusals
from logstore.store import control
from logstore.terminal.output import INTERRUPTED, Failure
from logstore.terminal.state import retried

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from logstore import MessageStore

BROKER = "broker"
STORE = "store"


def change(
    store_dir: Path,
    command: str,
    arguments: Mapping[str, Any],
    by_itself: Callable[[MessageStore], dict[str, Any]],
    *,
    connect: str | None,
    schema: str | None,
) -> dict[str, Any]:
    """Makes a change. Returns the result of the broker or of ``by_itself``, and ``through`` which of them.

    Raises the errors of opening; ``StoreLocked`` if a process without a control socket has the store open.
    """
    import logstore

    is_store = (store_dir / "META").is_file()
    if not is_store:
        Reader(store_dir).close()  # raises the specific error
    try:
        # create=True only makes the LOCK file that a copied store may lack; no store is made here.
        opened = logstore.open(store_dir, create=is_store, connect=connect, catalog=schema)
    except StoreLocked:
        return {"through": BROKER, **_order(store_dir, command, arguments)}
    with opened as store:
        return {"through": STORE, **by_itself(store)}


def _order(store_dir: Path, command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Has the broker execute a command, if it gives a sign of life. Ctrl-C ends the wait, not the command."""
    process = None
    try:
        pid = control.process_that_answers(store_dir)
        process = "" if pid is None else f" (process {pid})"
        notice = f"logstore: waiting for the broker{process} …"
        return control.call(store_dir, command, arguments, on_wait=lambda: click.echo(notice, err=True))
    except KeyboardInterrupt:
        if process is None:
            said = f"interrupted before the broker was asked for {command!r}: nothing was done"
        else:
            said = f"interrupted: the broker{process} may still execute {command!r}; its log says whether it did"
        raise Failure(said, INTERRUPTED) from None


def plan(
    store_dir: Path, look: Callable[[], dict[str, Any]], *, connect: str | None, schema: str | None
) -> dict[str, Any] | None:
    """What a change would do to a closed store, as ``look`` finds it; None while a writer has the store open.

    Raises what the change would raise. So a change that is refused does not open the store, which would recover it and
    begin an epoch, and its dry run says the same.
    """
    if connect is not None or schema is not None:
        backend_for(store_dir, connect, schema)
    with Reader(store_dir, from_lsn=LSN_LIMIT - 1) as reader:
        info = reader.info
    if info.live:
        return None
    check_single(info)
    for refusal in refusals(store_dir, connect=connect, schema=schema):
        raise StoreError(refusal)
    found = retried(store_dir, look)
    with Reader(store_dir, from_lsn=LSN_LIMIT - 1) as reader:
        if not reader.info.live:
            read_catalog(store_dir, reader.info, connect=connect, schema=schema)
    return found


def is_live(store_dir: Path) -> bool:
    """Whether a writer has the store open."""
    with Reader(store_dir, from_lsn=LSN_LIMIT - 1) as reader:
        return reader.info.live


def would_change(
    store_dir: Path, command: str, arguments: Mapping[str, Any], planned: dict[str, Any] | None
) -> dict[str, Any]:
    """The dry run of a change: its plan for a closed store, or else the broker's. Raises as :func:`change` does."""
    if planned is not None:
        return {"through": STORE, **planned}
    return {"through": BROKER, **ask(store_dir, command, {**arguments, "dry_run": True})}


def ask(
    store_dir: Path, command: str, arguments: Mapping[str, Any], *, sign_of_life_s: float | None = None
) -> dict[str, Any]:
    """Asks the broker for something that changes nothing. Raises ``StoreLocked`` if the broker does not answer: a ping
    within ``sign_of_life_s`` seconds, and then the command, each within ``control.PATIENCE_S`` by default.
    """
    control.process_that_answers(store_dir, sign_of_life_s)
    try:
        return control.call(store_dir, command, arguments, timeout_s=control.PATIENCE_S)
    except OutcomeUnknown as error:
        raise store_locked(
            store_dir, f"a broker that is busy: it has not answered {command!r} yet; try again later"
        ) from error
