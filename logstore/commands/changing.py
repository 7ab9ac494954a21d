"""How a command that changes a store gets at it: through the broker that has it open, or by opening it itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    """Have it done; what the broker or ``by_itself`` says of it, and ``through`` whom it was done.

    Raises as opening does; ``StoreLocked`` if somebody has the store open who has no control socket.
    """
    import logstore

    is_store = (store_dir / "META").is_file()
    if not is_store:
        Reader(store_dir).close()  # says what is wrong with it
    try:
        # A store that was copied without its LOCK file is still one; nothing else is ever made here.
        opened = logstore.open(store_dir, create=is_store, connect=connect, catalog=schema)
    except StoreLocked:
        return {"through": BROKER, **control.call(store_dir, command, arguments)}
    with opened as store:
        return {"through": STORE, **by_itself(store)}


def would_go_through(store_dir: Path, *, live: bool) -> str:
    """Whom a change would go through; for dry runs. Raises ``StoreLocked`` as the change itself would."""
    if not live:
        return STORE
    ask(store_dir, "ping", {})
    return BROKER


def ask(store_dir: Path, command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What the broker says to something that changes nothing. Raises ``StoreLocked`` if it says nothing."""
    try:
        return control.call(store_dir, command, arguments, timeout_s=control.PATIENCE_S)
    except OutcomeUnknown as error:
        raise StoreLocked(
            f"the store {store_dir} is open in a broker that does not answer: see what it does, and try again"
        ) from error
