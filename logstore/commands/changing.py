"""How a command changes a store: through the broker that has it open, or by opening the store itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.core.lock_holder import store_locked
from logstore.errors import OutcomeUnknown, StoreLocked
from logstore.inspect import Reader
from logstore.store import control

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
        return {"through": BROKER, **control.call(store_dir, command, arguments)}
    with opened as store:
        return {"through": STORE, **by_itself(store)}


def would_go_through(store_dir: Path, *, live: bool) -> str:
    """Whether a change would go through the broker or the store, for dry runs. Raises ``StoreLocked`` likewise."""
    if not live:
        return STORE
    ask(store_dir, "ping", {})
    return BROKER


def ask(store_dir: Path, command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Asks the broker for something that changes nothing. Raises ``StoreLocked`` if the broker does not answer."""
    try:
        return control.call(store_dir, command, arguments, timeout_s=control.PATIENCE_S)
    except OutcomeUnknown as error:
        raise store_locked(store_dir, "a broker that does not answer; check it, and try again") from error
