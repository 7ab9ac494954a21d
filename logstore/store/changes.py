"""The results of changes of a store as text, for the command that requested the change and for the broker's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.core.counts import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["change_text", "left_text", "limit_text"]


def left_text(purged: Mapping[str, Any]) -> str:
    """What a purge leaves on its queue, such as ``3 unacknowledged, 1 locked by a transaction``; empty if nothing."""
    kinds = {"unacknowledged": "unacknowledged", "locked": "locked by a transaction", "unreadable": "unreadable"}
    return ", ".join(f"{purged[key]} {text}" for key, text in kinds.items() if purged.get(key))


def limit_text(result: Mapping[str, Any]) -> str:
    """The limit that a host has now."""
    limit = result["max_log_bytes"]
    return "no limit of the log" if limit is None else f"a limit of {counted(limit, 'byte')} for the log"


def change_text(command: str, arguments: Mapping[str, Any], result: Mapping[str, Any]) -> str | None:
    """One line about what a command of the control socket has changed; None if it changed nothing, as in a dry run."""
    if arguments.get("dry_run") is True:
        return None
    if command == "purge":
        left = left_text(result)
        said = f"purge {arguments['queue']!r}: {counted(result['messages'], 'message')} removed"
        return f"{said}, {left} left" if left else said
    if command == "compact":
        if not result["shrinks"]:
            return f"compact: nothing was done, because the log would stay at {result['bytes_before']} bytes"
        moved = counted(result["segments_moved"], "segment")
        return f"compact: the log was {result['bytes_before']} and is now {result['bytes_after']} bytes, {moved} moved"
    if command == "checkpoint":
        return f"checkpoint: {counted(result['bytes'], 'byte')} at LSN {result['lsn']}"
    if command in ("vhost.add", "vhost.remove", "vhost.reopen"):
        is_done = "refused" not in result and result.get("reopened", True)
        return f"{command} {arguments['name']!r}: {result['directory']}" if is_done else None
    if command == "vhost.set":
        return None if "refused" in result else f"{command} {arguments['name']!r}: {limit_text(result)}"
    if command.startswith("user."):
        host = f" {arguments['host']!r}" if "host" in arguments else ""
        return None if "refused" in result else f"{command} {arguments['user']!r}{host}"
    if command.startswith("in-doubt."):
        done = counted(result["operations"], "operation")
        return f"{command} {arguments['xid']}: {done} of transaction {result['id']}"
    return None
