"""``logstore bench``: a durable performance run, with a table during the run and at its end."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from logstore.bench.plan import PROFILES, plan
from logstore.core.counts import counted
from logstore.terminal.options import SIZE, Amount, catalog_options, json_option, store_argument
from logstore.terminal.output import Failure, print_facts, print_json, print_table, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from logstore.bench.plan import Plan
    from logstore.bench.report import Moment, Report

_COUNT = click.IntRange(min=0)
_SHARE = Amount(0, 1)


def _one_of(words: Iterable[str]) -> click.Choice[str]:
    return click.Choice(list(words), case_sensitive=False)


def _options(function: Any) -> Any:
    """The options of the plan: the load, its amount, and the options of the store."""
    for option in reversed(
        (
            click.option("--profile", type=_one_of(PROFILES), help="A built-in plan, described above."),
            click.option("--messages", type=_COUNT, help="The number of messages to publish."),
            click.option("--seconds", type=Amount(min=0), help="Seconds to publish [default: 10]."),
            click.option("--bytes", "total_bytes", type=SIZE, help="Bytes of content to publish."),
            click.option("--size", type=SIZE, help="Bytes of content in a message [default: 1K]."),
            click.option("--publishers", type=_COUNT, help="Threads that publish [default: 1]."),
            click.option("--consumers", type=_COUNT, help="Threads that consume [default: 1]."),
            click.option("--queues", type=_COUNT, help="Queues that the threads share [default: 1]."),
            click.option("--fan-out", type=_COUNT, help="Queues that each message is put on [default: 1]."),
            click.option("--batch", type=_COUNT, help="Messages published together [default: 100; 1: singly]."),
            click.option("--take", type=_COUNT, help="Messages consumed together [default: 100; 1: singly]."),
            click.option("--acquire/--dequeue", default=None, help="Acquire and accept, or dequeue by id [default]."),
            click.option("--transaction", type=_COUNT, help="Messages in a transaction [default: as in a batch]."),
            click.option(
                "--transaction-share", type=_SHARE, help="Share of the batches that are transactions [default: 0]."
            ),
            click.option("--depth", type=_COUNT, help="Messages that may wait [default: 100000; 0: no limit]."),
            click.option(
                "--sawtooth/--steady",
                default=None,
                help="Fill to the depth and drain in turn, or publish and consume at the same time [default].",
            ),
            click.option("--stuck", type=_COUNT, help="Messages that are published first and not consumed."),
            click.option("--survivors", type=_SHARE, help="Share of the messages that consumers leave on the queue."),
            click.option("--survivors-max", type=_COUNT, help="The most survivors at a time [default: 1000]."),
            click.option("--prepared", type=_COUNT, help="Transactions in doubt during the run."),
            click.option("--verify/--no-verify", default=None, help="Read and compare every content."),
            click.option("--wait/--no-wait", default=None, help="Whether calls wait for the disk [default: wait]."),
            click.option("--durability", type=_one_of(("strict", "relaxed")), help="[default: strict]"),
            click.option("--segment-size", type=SIZE, help="Bytes of a segment of a new store [default: 16MiB]."),
            click.option(
                "--initial-segments", type=_COUNT, help="Segments that a new store is made with [default: 2]."
            ),
            click.option("--max-log-bytes", type=SIZE, help="The largest size of the log [default: no limit]."),
            click.option("--must-return/--may-grow", default=None, help="Fail unless the log shrinks to its bound."),
            click.option("--keep/--drop", default=None, help="Keep the queues and their messages [default: drop]."),
            click.option("--existing", is_flag=True, help="Allow a store that has other queues."),
            click.option("--seed", type=int, help="Seed of the random choices [default: 1]."),
        )
    ):
        function = option(function)
    return function


@click.command()
@store_argument
@_options
@json_option
@catalog_options
def bench(
    store_dir: Path,
    profile: str | None,
    existing: bool,
    as_json: bool,
    connect: str | None,
    schema: str | None,
    **chosen: Any,
) -> int:
    """Measure what a store on this disk achieves.

    Publishes and consumes durably, and reports throughput, latency and log size.

    The store in DIR is made if there is none, and is kept without the benchmark's queues. A store with other queues is
    refused without --existing. Every message is durable when its call returns, unless the flags say otherwise.
    Publishers and consumers are threads, because only one process at a time can have a store open.

    Profiles, whose values each flag can override: "tail" writes 0.5 GB through a log of two segments of 1 MiB while a
    message, a prepared transaction and some survivors stay, verifies all contents, and fails if the log does not
    shrink to its bound; "broker" has many clients that acquire and accept; "stream" has large batches.

    Exit status: 0 success, 1 a content is wrong or the log did not shrink, 2 misuse, 3 the store cannot be opened.
    """
    from logstore.bench import run  # late, because it imports the store

    made = plan(profile, **chosen)
    with _shown(made) as tell:
        report = run(store_dir, made, existing=existing, connect=connect, schema=schema, tell=tell)
    if as_json:
        print_json({"store": str(store_dir), "profile": profile, **report.as_dict()})
    else:
        _print(report)
    if not report.passed:
        raise Failure("; ".join(report.problems))
    return 0


# ---- while it runs ----


@contextmanager
def _shown(made: Plan) -> Iterator[Callable[[Moment], None] | None]:
    """A table on stderr that follows the run, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    last: list[Moment] = []
    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:

        def tell(now: Moment) -> None:
            live.update(_moment_table(made, now, last[-1] if last else None), refresh=True)
            last[:] = [now]

        yield tell


def _moment_table(made: Plan, now: Moment, before: Moment | None) -> Any:
    """The present progress, and the rates since the last update."""
    from rich.table import Table

    since = now.seconds - (before.seconds if before else 0)
    published = now.published - (before.published if before else 0)
    consumed = now.consumed - (before.consumed if before else 0)
    limit = made.message_limit
    done = f"{now.published / limit:.0%}" if limit else f"of {made.time_limit_s:g} s" if made.time_limit_s else ""
    table = Table(show_header=False, box=None, pad_edge=False)
    for row in (
        ("running", f"{now.seconds:.1f} s {done}"),
        ("published", f"{now.published:,} ({published / max(since, 1e-9):,.0f}/s)"),
        ("consumed", f"{now.consumed:,} ({consumed / max(since, 1e-9):,.0f}/s)"),
        ("waiting", f"{now.waiting:,}"),
        ("log", f"{size_text(now.log_bytes)}, at most {size_text(now.log_bytes_max)}"),
        ("live", size_text(now.live_bytes)),
        ("segments", f"{now.segments} in use, {now.spares} spare"),
        ("", f"{now.segments_created} made, {now.segments_recycled} recycled, {now.segments_relocated} relocated"),
    ):
        table.add_row(*row)
    return table


# ---- at the end ----


def _print(report: Report) -> None:
    """Prints rates and durations, then everything else by name."""
    said = report.as_dict()
    rows = []
    for name in ("published", "consumed"):
        side = said[name]
        rows.append(
            (name, side["messages"], _number(side["messages_per_s"]), _number(side["mb_per_s"]), *_times(side["calls"]))
        )
    rows.append(("published to consumed", said["end_to_end"]["count"], "", "", *_times(said["end_to_end"])))
    columns = ("", "messages", "per s", "MB/s", "p50 µs", "p99 µs", "p99.9 µs", "max µs")
    print_table(columns, rows, right=columns[1:])
    print_facts(_facts(said))


def _times(times: dict[str, Any]) -> tuple[str, ...]:
    return tuple(_number(times[name]) for name in ("p50_us", "p99_us", "p999_us", "max_us"))


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _facts(said: dict[str, Any]) -> Iterator[tuple[str, str]]:
    log, segments, cpu, commits = said["log"], said["segments"], said["cpu"], said["commits"]
    written = _number(said["amplification"]["written_per_content_byte"])
    device = _number(said["amplification"]["device_per_content_byte"])
    moved = _number(said["amplification"]["relocated_per_appended_byte"])
    each = (
        f"{counted(_number(commits['bytes_per_batch']), 'byte')} and "
        f"{counted(_number(commits['records_per_batch']), 'record')}"
    )
    files = f"{counted(log['segments_end'], 'segment')} and {counted(log['spares_end'], 'spare')}"
    yield "durability", said["durability"]
    yield "took", f"{said['seconds']:.3g} s"
    yield "group commits", f"{commits['batches']}, each {each}"
    yield "log at most", size_text(log["bytes_max"])
    yield "log at the end", f"{size_text(log['bytes_end'])}, {files}"
    yield "live at the end", size_text(log["live_bytes_end"])
    yield "base", f"{log['base_lsn_before']} to {log['base_lsn_end']}"
    yield "segments", ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in segments.items())
    yield "written", f"{written} bytes per byte of content, {moved} bytes relocated per byte appended"
    yield "to the device", f"{device} bytes per byte of content, with whole blocks, new segments and checkpoints"
    yield (
        "processor",
        f"{cpu['user_s']:.3g} s user, {cpu['system_s']:.3g} s system; {cpu['cpus']} CPUs, load {cpu['load']:.2f}",
    )
    yield "memory at most", size_text(int(cpu["rss_max_bytes"]))
    if said["published"]["refused_full"]:
        yield "refused as full", str(said["published"]["refused_full"])
    if said["compared_after_restart"]:
        yield "compared after restart", f"{said['compared_after_restart']} contents"
    for one in said["returns"]:
        back = "shrank to" if one["returned"] else "did NOT shrink: it has"
        yield f"log, {one['when']}", f"{back} {size_text(one['bytes'])} in {one['seconds']:.2f} s; bound {one['bound']}"
