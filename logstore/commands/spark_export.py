"""``python -m logstore.spark_export``: the export as a job of Spark's."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from logstore.commands.options import SIZE, catalog_options, json_option, naming, path_argument
from logstore.commands.output import print_json
from logstore.export.plan import CHUNK_BYTES, FILE_BYTES
from logstore.inspect import Reader
from logstore.spark import export, session, stream_export


@click.command("python -m logstore.spark.export_job")
@path_argument
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--body", type=SIZE, help="Keep so many bytes of each record's content [default: none].")
@click.option("--compression", metavar="NAME", help="none, snappy, lz4, zstd, or zstd:1 to zstd:22 [default: zstd:1].")
@click.option("--file-bytes", type=SIZE, default=FILE_BYTES, help="Of the log, for one file and task [default: 128M].")
@click.option("--chunk-bytes", type=SIZE, default=CHUNK_BYTES, help="Of the log, written at once [default: 1G].")
@click.option("--iceberg", type=click.Path(path_type=Path), help="Register the files in the Iceberg catalog there.")
@click.option("--allow-gap", is_flag=True, help="Go on though records were lost that were not exported yet.")
@click.option(
    "--follow", type=click.Path(path_type=Path), help="Stay, and export what comes; the checkpoint's directory."
)
@click.option("--every", default="1 minute", show_default=True, help="With --follow: how often.")
@json_option
@catalog_options
def main(
    store_dir: Path,
    target: Path,
    follow: Path | None,
    every: str,
    as_json: bool,
    connect: str | None,
    schema: str | None,
    **options: Any,
) -> None:
    """Write what the log in DIR has beyond the last export to TARGET, in tasks of Spark's.

    As python -m logstore.spark.export_job with a session of its own; for spark-submit, from a script that calls this
    module's run(). All executors must reach DIR and TARGET under these paths.
    """
    options |= {"connect": connect, "catalog": schema}
    with naming(store_dir):
        Reader(store_dir).close()  # what is no store needs no Java to be told so
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
        f"{report.target}: {report.records} records and {report.messages} messages from LSN {report.start_lsn} to "
        f"{report.last_lsn}, in {report.files} files; {report.open} messages are open"
    )
