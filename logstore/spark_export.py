"""``python -m logstore.spark_export DIR TARGET``: exports a log in Spark tasks; see docs/spark.md."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

from logstore import cli
from logstore.core.counts import counted
from logstore.export.plan import CHUNK_BYTES, FILE_BYTES
from logstore.inspect import Reader
from logstore.spark import export, session, stream_export
from logstore.terminal.options import AGE, SIZE, PlaceText, catalog_options, json_option, naming, path_argument
from logstore.terminal.output import print_json

__all__ = ["run"]


@click.command("python -m logstore.spark_export")
@path_argument
@click.argument("target", type=PlaceText())
@click.option(
    "--body", type=SIZE, help="Export this many bytes of each record's and message's content [default: none]."
)
@click.option("--compression", metavar="NAME", help="none, snappy, lz4, zstd, or zstd:1 to zstd:22 [default: zstd:1].")
@click.option("--file-bytes", type=SIZE, default=FILE_BYTES, help="Log bytes for one file and task [default: 128M].")
@click.option("--chunk-bytes", type=SIZE, default=CHUNK_BYTES, help="Log bytes exported in one step [default: 1G].")
@click.option("--keep", type=AGE, help="Drop the files of days that ended longer ago, such as 90d [default: none].")
@click.option("--iceberg", type=click.Path(path_type=Path), help="Register the files in the Iceberg catalog there.")
@click.option("--delta", is_flag=True, help="Make TARGET's records and messages Delta Lake tables.")
@click.option("--allow-gap", is_flag=True, help="Continue even if records were recycled before they were exported.")
@click.option("--require-complete", is_flag=True, help="Begin no target if the log has recycled something before.")
@click.option(
    "--follow",
    type=click.Path(path_type=Path),
    help="Keep running and export new records; the directory is for Spark's checkpoint.",
)
@click.option("--every", default="1 minute", show_default=True, help="With --follow: the interval.")
@json_option
@catalog_options
def main(
    store_dir: Path,
    target: Path | str,
    follow: Path | None,
    every: str,
    as_json: bool,
    connect: str | None,
    schema: str | None,
    **options: Any,
) -> None:
    """Write the part of the log in DIR after the last export to TARGET, in Spark tasks.

    Run as python -m logstore.spark_export it makes its own session; for spark-submit, use a script that calls run() of
    that module. All executors must reach DIR and TARGET under these names; TARGET may be an address such as s3://bucket/path.
    """
    options |= {"connect": connect, "catalog": schema}
    with naming(store_dir):
        Reader(store_dir).close()  # refuses a directory without a store before Java starts
        spark = session()
        if follow is not None:
            query = stream_export(spark, store_dir, target, follow, trigger={"processingTime": every}, **options)
            query.awaitTermination()
            return
        report = export(spark, store_dir, target, **options)
    told = asdict(report) | {"target": str(report.target), "store": str(report.store)}
    if as_json:
        print_json(told)
        return
    click.echo(
        f"{report.target}: {counted(report.records, 'record')} and {counted(report.messages, 'message')} from LSN "
        f"{report.start_lsn} to "
        f"{report.last_lsn}, in {counted(report.files, 'file')}; "
        f"{counted(report.open, 'message is', 'messages are')} open"
    )


def run() -> NoReturn:
    """Run the command with this process's arguments; also for a spark-submit script."""
    sys.exit(cli.run(sys.argv[1:], main))


if __name__ == "__main__":
    run()
