"""``logstore connections``: the clients of a running broker, and which of them hang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from logstore.terminal.changing import ask, is_live
from logstore.terminal.options import json_option, store_argument
from logstore.terminal.output import Failure, age_text, print_json, print_table, rounded_size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_RIGHT = ("channels", "consumers", "unacked", "unsent")


@click.command()
@store_argument
@json_option
def connections(store_dir: Path, as_json: bool) -> None:
    """List the clients of a running broker, those that hang first.

    A client that does not read its messages waits for "client", with the bytes that are unsent and the time since when;
    one whose publishes are not durable yet waits for "disk", or in a cluster for "majority". Many unacknowledged
    messages and a long silence: the program hangs, or works on what it has got.
    """
    if not is_live(store_dir):
        raise Failure(f"{store_dir}: a running broker is needed, and no process has the store open")
    document = {"store": str(store_dir), **ask(store_dir, "connections", {})}
    document["connections"].sort(key=_order)
    if as_json:
        print_json(document)
        return
    if not document["connections"]:
        click.echo("no client is connected")
        return
    columns = ("client", "user", "vhost", *_RIGHT, "waits for", "connected", "silent", "queues")
    print_table(columns, map(_row, document["connections"]), right=_RIGHT)


def _order(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return (one["waits_for"] is None, -(one["blocked_s"] or 0), -one["unacknowledged"], -one["silent_s"], one["peer"])


def _row(one: Mapping[str, Any]) -> tuple[object, ...]:
    waits = "" if one["waits_for"] is None else one["waits_for"]
    if one["blocked_s"] is not None:
        waits += f" for {age_text(one['blocked_s'])}"
    return (
        one["peer"],
        f"({one['state']})" if one["user"] is None else one["user"],
        "" if one["vhost"] is None else one["vhost"],
        one["channels"],
        one["consumers"],
        one["unacknowledged"],
        rounded_size(one["unsent_bytes"]),
        waits,
        age_text(one["connected_s"]),
        age_text(one["silent_s"]),
        ", ".join(one["queues"]),
    )
