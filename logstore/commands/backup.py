"""``logstore backup``: a whole copy of a store, with or without a running writer."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from logstore.core.counts import counted
from logstore.core.host_directory import host_stores
from logstore.terminal.options import (
    SIZE,
    Amount,
    PathText,
    catalog_options,
    dry_run_option,
    json_option,
    store_argument,
)
from logstore.terminal.output import Failure, print_json, progress, size_text

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.backup import BackupPlan, BackupReport

MB = 1_000_000


@click.command()
@store_argument
@click.argument("target", type=PathText())
@click.option("--rate", type=Amount(min=0, min_open=True), help="Copy at most this many MB per second.")
@click.option(
    "--hold-limit",
    type=SIZE,
    help="The most of the log that a running writer keeps for the backup [default: 1G, or the log's size].",
)
@dry_run_option
@json_option
@catalog_options
def backup(
    store_dir: Path,
    target: Path,
    rate: float | None,
    hold_limit: int | None,
    dry_run: bool,
    as_json: bool,
    connect: str | None,
    schema: str | None,
) -> None:
    """Copy a whole store to TARGET, also while its broker runs.

    TARGET is an absent or empty directory. The copy is the store as of one moment. It opens without further files,
    contains the catalog, and has the same UUID. After an error, nothing is left there. The stores of further virtual
    hosts are stores of their own: the command names those that it leaves out.
    """
    from logstore.backup import back_up, plan_backup

    if dry_run:
        _tell_plan(store_dir, target, plan_backup(store_dir, target), as_json=as_json)
        return
    planned = plan_backup(store_dir, target).bytes
    with progress("copying", planned) as show:
        report = back_up(
            store_dir,
            target,
            connect=connect,
            catalog=schema,
            rate_bytes_s=None if rate is None else rate * MB,
            hold_limit_bytes=hold_limit,
            progress=lambda done, _total: show(done),
        )
    _tell(store_dir, report, as_json=as_json)


def _tell_plan(store_dir: Path, target: Path, plan: BackupPlan, *, as_json: bool) -> None:
    document: dict[str, Any] = {
        "store": str(store_dir),
        "target": str(target),
        "dry_run": True,
        "lsn": plan.lsn,
        "bytes": plan.bytes,
        "segments": plan.segments,
        "free_bytes": plan.free_bytes,
        "hosts_left_out": _left_out(store_dir),
    }
    if as_json:
        print_json(document)
    else:
        click.echo(
            f"would be copied: {size_text(plan.bytes)} in {counted(plan.segments, 'segment')}, up to LSN "
            f"{plan.lsn}; free space: "
            f"{size_text(plan.free_bytes)}"
        )
        _tell_left_out(store_dir)
    if plan.free_bytes < plan.bytes:
        raise Failure(
            f"there is not enough room at {target}: {plan.bytes} bytes are needed, but {plan.free_bytes} are free; "
            "make room, or choose another target"
        )


def _tell(store_dir: Path, report: BackupReport, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "store": str(store_dir),
                "target": str(report.target),
                "dry_run": False,
                "lsn": report.lsn,
                "base_lsn": report.base_lsn,
                "bytes": report.bytes,
                "segments": report.segments,
                "seconds": round(report.seconds, 3),
                "hosts_left_out": _left_out(store_dir),
            }
        )
    else:
        click.echo(
            f"{report.target}: {size_text(report.bytes)} in {counted(report.segments, 'segment')}, everything "
            "durable below LSN "
            f"{report.lsn}, in {report.seconds:.1f} s"
        )
        _tell_left_out(store_dir)


def _left_out(store_dir: Path) -> list[str]:
    """The stores of virtual hosts, which a backup of the host "/" does not contain."""
    return [str(path) for path in host_stores(store_dir)]


def _tell_left_out(store_dir: Path) -> None:
    left_out = _left_out(store_dir)
    if left_out:
        click.echo(f"left out: {counted(len(left_out), 'virtual host')}, each a store of its own; to copy it:")
        for path in left_out:
            click.echo(f"  logstore backup {quote(path)} TARGET")
