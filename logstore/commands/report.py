"""``logstore report``: what a log says of its queues, as one page to look at, or as JSON."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logstore.commands.options import PathText, catalog_options, json_option, store_argument
from logstore.commands.output import print_json
from logstore.commands.working import working
from logstore.report import need_page, write_page
from logstore.report import report as make_report
from logstore.report.run import TOP, TOP_MAX

if TYPE_CHECKING:
    _TimeType = click.ParamType[datetime]
else:
    _TimeType = click.ParamType


class Time(_TimeType):
    """A moment in ISO 8601; without a zone it is in UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The moment; a usage error for anything else."""
        try:
            found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time; write 2026-03-01, 2026-03-01T14:30 or 2026-03-01T14:30+01:00", param, ctx)
        return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


TIME = Time()


@click.command()
@store_argument
@click.option(
    "-o",
    "--output",
    "target",
    type=PathText(),
    metavar="FILE",
    help="Where the page goes [default: NAME-report.html, of DIR's name, in the current directory].",
)
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Only this queue; may be given again.")
@click.option("--from", "start", type=TIME, help="Only what happened from this time on (ISO 8601, UTC).")
@click.option("--to", "stop", type=TIME, help="Only what happened before this time.")
@click.option("--title", metavar="TEXT", help="What stands above the page.")
@click.option(
    "--top",
    type=click.IntRange(1, TOP_MAX),
    default=TOP,
    show_default=True,
    help="So many queues one by one, the others as one.",
)
@click.option("--spark", "by_spark", is_flag=True, help="Let Spark count: for what is too much for one process.")
@json_option
@catalog_options
def report(
    store_dir: Path,
    target: Path | None,
    queues: tuple[str, ...],
    start: datetime | None,
    stop: datetime | None,
    title: str | None,
    top: int,
    by_spark: bool,
    as_json: bool,
    connect: str | None,
    schema: str | None,
) -> None:
    """Say how a store's queues did, as one HTML page: depth, throughput, latency, bytes, and what holds the tail.

    DIR is a store, beside its broker too, or the target of an export. With --json the same figures are printed, and a
    page is written only if -o names it. Needs the extra: pip install '/path/to/checkout[report]'
    """
    if start is not None and stop is not None and start >= stop:
        raise click.UsageError("--from must lie before --to")
    if target is not None or not as_json:
        need_page()
    session = _session() if by_spark else None
    try:
        with working() as show:
            found = make_report(
                store_dir,
                queues=queues,
                start=start,
                stop=stop,
                top=top,
                title=title,
                spark=session,
                connect=connect,
                catalog=schema,
                show=show,
            )
    finally:
        if session is not None:
            session.stop()
    if target is not None or not as_json:
        name = os.path.basename(os.path.abspath(store_dir)) or "store"
        target = Path(f"{name}-report.html") if target is None else target
        write_page(found, target)
    if as_json:
        print_json(found)
    elif target is not None:
        sys.stdout.write(f"{target}\n")


def _session() -> Any:
    """A session for this one question, without Spark's own talk."""
    from logstore.spark import session

    return session()
