"""``logstore holds``: the holds of a store, what each keeps, and until when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from logstore.terminal.options import json_option, store_argument
from logstore.terminal.output import age_text, print_json, print_table, rounded_size

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.holds import HoldInfo


@click.command()
@store_argument
@json_option
def holds(store_dir: Path, as_json: bool) -> None:
    """List the holds, which keep parts of the log for readers.

    A hold ends with its process, when its time has passed, and when it alone would keep more than its limit.
    """
    from logstore.holds import list_holds

    found = list_holds(store_dir)
    if as_json:
        print_json({"store": str(store_dir), "holds": [describe(each) for each in found]})
        return
    if not found:
        click.echo("there are no holds")
        return
    print_table(
        ("hold", "state", "from LSN", "keeps", "limit", "age", "lasts", "process"),
        (
            (
                each.name,
                each.state,
                each.lsn,
                rounded_size(each.kept_bytes),
                rounded_size(each.limit_bytes) if each.limit_bytes else "none",
                age_text(each.age_s),
                age_text(each.left_s),
                "" if each.pid is None else each.pid,
            )
            for each in found
        ),
        right=("from LSN",),
    )


def describe(hold: HoldInfo) -> dict[str, Any]:
    """The keys of one hold in ``holds --json``."""
    return {
        "name": hold.name,
        "state": hold.state,
        "honoured": hold.honoured,
        "lsn": hold.lsn,
        "kept_bytes": hold.kept_bytes,
        "limit_bytes": hold.limit_bytes,
        "created": hold.created.isoformat(),
        "age_s": round(hold.age_s, 3),
        "expires": hold.expires.isoformat(),
        "left_s": round(hold.left_s, 3),
        "pid": hold.pid,
    }
