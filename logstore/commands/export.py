"""``logstore export``: writes the log to Parquet files, once or repeatedly."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from logstore.core.counts import counted
from logstore.inspect import LogRecycled
from logstore.terminal.options import (
    AGE,
    SIZE,
    Amount,
    PathText,
    PlaceText,
    catalog_options,
    dry_run_option,
    json_option,
    naming,
    place_argument,
)
from logstore.terminal.output import Failure, one_line, print_json, size_text
from logstore.terminal.stopping import rest
from logstore.terminal.working import working

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from pathlib import Path

    from logstore.export import ExportReport
    from logstore.export.manifest import Missing, Span
    from logstore.export.plan import ExportPlan
    from logstore.export.verification import VerifyReport
    from logstore.holds import Hold

RENEWED_EVERY_S = 60.0


@click.command()
@place_argument
@click.argument("target", type=PlaceText(), required=False)
@click.option(
    "--body", type=SIZE, help="Export this many bytes of each record's and message's content [default: none]."
)
@click.option("--compression", metavar="NAME", help="none, snappy, lz4, zstd, or zstd:1 to zstd:22 [default: zstd:1].")
@click.option(
    "--every", type=Amount(min=0, min_open=True), help="Keep running, and export again after this many seconds."
)
@click.option("--keep", type=AGE, help="Drop the files of days that ended longer ago, such as 90d [default: none].")
@click.option("--iceberg", type=PathText(), help="Register the files in the Iceberg catalog in this directory.")
@click.option("--delta", is_flag=True, help="Make TARGET's records and messages Delta Lake tables.")
@click.option("--allow-gap", is_flag=True, help="Continue even if records were recycled before they were exported.")
@click.option("--require-complete", is_flag=True, help="Begin no target if the log has recycled something before.")
@click.option(
    "--hold-limit",
    type=SIZE,
    help="The most of the log that a running writer keeps for the export [default: 1G, or the log's size].",
)
@click.option("--verify", "verify_only", is_flag=True, help="Check the export in DIR against its manifest instead.")
@dry_run_option
@json_option
@catalog_options
def export(
    store_dir: Path | str,
    target: Path | str | None,
    verify_only: bool,
    **options: Any,
) -> None:
    """Write what is new in the log to TARGET, as Parquet files.

    TARGET has the datasets records, messages and open, by day; it may be absent. It is a directory, or an address such
    as s3://bucket/path that pyarrow or fsspec takes; credentials come from where these look for them. While a broker
    runs, a hold keeps the log until it was read. However the command ends, the exported part is complete, and the next
    run continues from there.

    logstore export --verify TARGET reads all files of an export and reports damage.
    """
    if verify_only:
        if target is not None:
            raise click.UsageError("--verify takes only the export's directory")
        _verify(store_dir, as_json=options["as_json"])
        return
    if target is None:
        raise click.UsageError("missing argument TARGET")
    if isinstance(store_dir, str):
        raise click.UsageError("DIR is the directory of a store, and only TARGET may be an address")
    with naming(store_dir):
        _export(store_dir, target, **options)


def _export(
    store_dir: Path,
    target: Path | str,
    *,
    body: int | None,
    compression: str | None,
    every: float | None,
    keep: timedelta | None,
    iceberg: Path | None,
    delta: bool,
    allow_gap: bool,
    require_complete: bool,
    hold_limit: int | None,
    dry_run: bool,
    as_json: bool,
    connect: str | None,
    schema: str | None,
) -> None:
    from logstore.export import hold_for, plan_export
    from logstore.export.addresses import shown
    from logstore.export.manifest import ExportGap, ExportIncomplete

    if allow_gap and require_complete:
        raise click.UsageError("--allow-gap and --require-complete contradict each other: give one of the two")
    given: dict[str, Any] = {"body": body, "compression": compression, "keep": keep}
    given |= {"allow_gap": allow_gap, "require_complete": require_complete}
    try:
        if dry_run:
            _tell_plan(store_dir, shown(target), plan_export(store_dir, target, **given), as_json=as_json)
            return
        given |= {
            "iceberg": iceberg,
            "delta": delta,
            "hold_limit_bytes": hold_limit,
            "connect": connect,
            "catalog": schema,
        }
        run = partial(_run, store_dir, target, as_json=as_json, **given)
        if every is None:
            run()
        else:
            _repeat(run, partial(hold_for, store_dir, target, limit_bytes=hold_limit), every)
    except (ExportGap, ExportIncomplete) as error:
        raise Failure(error.message) from error


def _run(store_dir: Path, target: Path | str, *, as_json: bool, **given: Any) -> None:
    from logstore.export import export as run

    with working() as show:
        report = run(store_dir, target, progress=partial(show, "exporting"), **given)
    _tell(store_dir, report, as_json=as_json)


def _repeat(run: Callable[..., None], take_hold: Callable[[], Hold], seconds: float) -> None:
    """Exports repeatedly, and keeps a hold on the part of the log that was not exported yet."""
    while True:
        with take_hold() as held:
            try:
                while True:
                    run(hold=held)
                    _rest(seconds, held)
            except LogRecycled:
                rest(seconds)  # the hold exceeded its limit; the next run reports whether records are lost


def _rest(seconds: float, held: Hold) -> None:
    """Waits until the next export, and renews the hold meanwhile."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        held.renew()
        rest(min(left, RENEWED_EVERY_S))
    held.renew()


def _span(gap: Span | None) -> list[int] | None:
    return None if gap is None else [gap.start_lsn, gap.stop_lsn]


def _missing(missing: Missing | None) -> dict[str, Any] | None:
    return None if missing is None else {"lsn": missing.lsn, "time": missing.time.isoformat()}


def _tell_plan(store_dir: Path, target: str, planned: ExportPlan, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "store": str(store_dir),
                "target": target,
                "dry_run": True,
                "start_lsn": planned.start_lsn,
                "last_lsn": planned.stop_lsn,
                "log_bytes": planned.log_bytes,
                "units": len(planned.units),
                "gap": _span(planned.gap),
                "missing_before": _missing(planned.missing_before),
                "expired": [file.path for file in planned.expired],
            }
        )
        return
    click.echo(
        f"would be exported: {size_text(planned.log_bytes)} of the log, from LSN {planned.start_lsn} to "
        f"{planned.stop_lsn}, in {counted(len(planned.units), 'unit')}"
    )
    if planned.gap is not None:
        click.echo(f"lost before it was exported: LSN {planned.gap.start_lsn} to {planned.gap.stop_lsn}")
    if planned.missing_before is not None:
        click.echo(f"was recycled before the first export: {planned.missing_before}")
    if planned.expired:
        rows = sum(file.rows for file in planned.expired)
        click.echo(
            f"would be dropped, being too old: {counted(len(planned.expired), 'file')} with {counted(rows, 'row')}, of "
            f"days up to {max(file.day for file in planned.expired)}"
        )


def _tell(store_dir: Path, report: ExportReport, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "store": str(store_dir),
                "target": str(report.target),
                "dry_run": False,
                "start_lsn": report.start_lsn,
                "last_lsn": report.last_lsn,
                "records": report.records,
                "messages": report.messages,
                "open": report.open,
                "files": report.files,
                "bytes": report.bytes,
                "log_bytes": report.log_bytes,
                "gap": _span(report.gap),
                "missing_before": _missing(report.missing_before),
                "dropped_files": report.upkeep.dropped_files,
                "dropped_rows": report.upkeep.dropped_rows,
                "merged_files": report.upkeep.merged_files,
                "seconds": round(report.seconds, 3),
            }
        )
    elif report.files == 0:
        click.echo(f"{report.target}: nothing new below LSN {report.last_lsn}")
    else:
        click.echo(
            f"{report.target}: {counted(report.records, 'record')} and {counted(report.messages, 'message')} in "
            f"{counted(report.files, 'file')} "
            f"({size_text(report.bytes)}), everything below LSN {report.last_lsn}, "
            f"{counted(report.open, 'message')} open; "
            f"{size_text(report.log_bytes)} of the log in {report.seconds:.1f} s"
        )
    if report.gap is not None and not as_json:
        click.echo(f"lost before it was exported: LSN {report.gap.start_lsn} to {report.gap.stop_lsn}")
    if report.upkeep.dropped_files and not as_json:
        many = counted(report.upkeep.dropped_files, "file")
        click.echo(f"dropped, being too old: {many} with {counted(report.upkeep.dropped_rows, 'row')}")
    sys.stdout.flush()  # so that each report of a repeated export is visible at once


def _verify(target: Path | str, *, as_json: bool) -> None:
    from logstore.export.addresses import shown
    from logstore.export.verification import verify

    with working() as show:
        report = verify(target, progress=partial(show, "reading"))
    _tell_verified(shown(target), report, as_json=as_json)
    if report.problems:
        many = len(report.problems)
        raise Failure(f"{many} {'problem was' if many == 1 else 'problems were'} found in the export {shown(target)}")


def _tell_verified(target: str, report: VerifyReport, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "target": target,
                "store": str(report.manifest.store),
                "ok": not report.problems,
                "first_lsn": report.manifest.first_lsn,
                "last_lsn": report.manifest.last_lsn,
                "files": report.files,
                "bytes": report.bytes,
                "records": report.records,
                "messages": report.messages,
                "gaps": [_span(gap) for gap in report.manifest.gaps],
                "missing_before": _missing(report.manifest.missing_before),
                "dropped": [asdict(one) for one in report.manifest.dropped],
                "problems": list(report.problems),
            }
        )
        return
    for problem in report.problems:
        click.echo(one_line(problem))
    for gap in report.manifest.gaps:
        click.echo(f"lost before it was exported: LSN {gap.start_lsn} to {gap.stop_lsn}")
    if report.manifest.missing_before is not None:
        click.echo(f"was recycled before the first export: {report.manifest.missing_before}")
    for dropped in report.manifest.dropped:
        click.echo(f"dropped, being too old: {dropped}")
    click.echo(
        f"{target}: {counted(report.files, 'file')} ({size_text(report.bytes)}) with "
        f"{counted(report.records, 'record')} and "
        f"{counted(report.messages, 'message')}, LSN {report.manifest.first_lsn} to {report.manifest.last_lsn}"
    )
