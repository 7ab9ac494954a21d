"""``logstore report``: statistics of the queues in a log, as one HTML page or as JSON."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logstore.export.addresses import shown
from logstore.report import need_page, write_page
from logstore.report import report as make_report
from logstore.report.run import TOP, TOP_MAX
from logstore.report.sources import check_source
from logstore.terminal.options import PathText, catalog_options, json_option, source_argument
from logstore.terminal.output import print_json
from logstore.terminal.sampling import clients
from logstore.terminal.working import working

if TYPE_CHECKING:
    _TimeType = click.ParamType[datetime]
else:
    _TimeType = click.ParamType


class Time(_TimeType):
    """A time in ISO 8601; in UTC if it has no time zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The time; a usage error for any other text."""
        try:
            found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        except ValueError:
            said = f"{value!r} is not a time; write 2026-03-01, 2026-03-01T14:30 or 2026-03-01T14:30+01:00"
            self.fail(said, param, ctx)
        return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


TIME = Time()


@click.command()
@source_argument
@click.option(
    "-o",
    "--output",
    "target",
    type=PathText(),
    metavar="FILE",
    help="The file of the page [default: NAME-report.html in the current directory, with NAME from DIR].",
)
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Only this queue; may be repeated.")
@click.option("--from", "start", type=TIME, help="Only events from this time on (ISO 8601, UTC).")
@click.option("--to", "stop", type=TIME, help="Only events before this time.")
@click.option("--title", metavar="TEXT", help="The title of the page.")
@click.option(
    "--top",
    type=click.IntRange(1, TOP_MAX),
    default=TOP,
    show_default=True,
    help="The number of queues shown one by one; the others are shown together.",
)
@click.option("--spark", "by_spark", is_flag=True, help="Compute with Spark, for logs too large for one process.")
@json_option
@catalog_options
def report(
    store_dir: Path | str,
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
    """Report on the queues of a store or an export, as a page.

    One HTML page says first what is stuck, since when, and what would free it; then it shows depth, throughput,
    latency, bytes, and what holds the tail. DIR is a store, whose broker is asked for its clients if one runs, or the
    target or address of an export. With --json the same figures are printed, and a page is written only if -o names it.
    Needs the extra: pip install '/path/to/checkout[report]'
    """
    if start is not None and stop is not None and start >= stop:
        raise click.UsageError("--from must be before --to")
    if target is not None or not as_json:
        need_page()
    if by_spark:
        check_source(store_dir)  # before Java starts
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
                broker=clients(store_dir) if isinstance(store_dir, Path) else None,
                show=show,
            )
    finally:
        if session is not None:
            session.stop()
    if target is not None or not as_json:
        path = os.path.abspath(store_dir) if isinstance(store_dir, Path) else shown(store_dir).rstrip("/")
        name = os.path.basename(path) or "store"
        target = Path(f"{name}-report.html") if target is None else target
        write_page(found, target)
    if as_json:
        print_json(found)
    elif target is not None:
        sys.stdout.write(f"{target}\n")


def _session() -> Any:
    """A Spark session for this report, without Spark's log output."""
    from logstore.spark import session

    return session()
