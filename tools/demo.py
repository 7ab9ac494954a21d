"""`make demo`: a broker, real clients, a kill in the middle, and then the log as a table.

It takes about a minute on two cores, and ends all processes that it starts, also on Ctrl-C. DEMO_MESSAGES is the
number of messages (200000), DEMO_DIR the directory for the export and the page (build/demo). The store is in a
temporary directory.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGES = int(os.environ.get("DEMO_MESSAGES", "200000"))
PLACE = Path(os.environ.get("DEMO_DIR", "build/demo"))
PUBLISHERS = 2
CONSUMERS = (("orders", "documents", "payments"), ("audit", "telemetry", "billing"))
DOWN_S = 1.0  # between the kill and the restart
STARTS_S = 60.0
ENDS_S = 150.0  # without progress of the clients
HOLD_BYTES = 8 << 30  # of log, at most, that is kept for the export
QUIET_S = 2.0  # without a consumed message, after which no redelivery is expected
LATE_S = 20.0  # the same while fewer are consumed than were published


class Missing(Exception):
    """A package that the demo needs is not installed."""


def check() -> None:
    """Raises Missing, which says what to install."""
    from logstore.core.extras import require
    from logstore.errors import StoreError
    from logstore.report import need_page
    from logstore.spark.java import find_java, need_pyspark

    try:
        require("demo", "pika")
        need_page()
        need_pyspark()
        find_java()
    except StoreError as missing:
        raise Missing(f"{missing}; 'make demo' installs what the demo needs") from None


class Broker:
    """`logstore serve` as a process of its own."""

    def __init__(self, store_dir: Path) -> None:
        self.store_dir, self.port = store_dir, 0
        self.process: subprocess.Popen[str] | None = None

    def prepare(self) -> None:
        """The store, with a queue whose rejected messages go to another one."""
        import logstore

        with logstore.open(self.store_dir) as store:
            store.declare_queue("rejected")
            store.declare_queue("orders", dead_letter="rejected")

    def start(self) -> None:
        """Start the broker, on its old port if it had one, and wait until clients can connect."""
        command = [sys.executable, "-m", "logstore", "serve", str(self.store_dir), "--port", str(self.port)]
        # In its own session, so that Ctrl-C reaches only this program, which then stops the broker in order.
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if not said.startswith("listening on "):
            raise RuntimeError(f"the broker did not start: {said.strip() or 'see logstore serve --verbose'}")
        self.port = int(said.rsplit(":", 1)[1])

    def kill(self) -> None:
        """As a power cut would."""
        assert self.process is not None
        self.process.kill()
        self._wait()

    def stop(self) -> None:
        """Stop in order; a second call has no effect."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STARTS_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.process is not None:
            self._wait()

    def _wait(self) -> None:
        assert self.process is not None
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def clients(shared: Any) -> Iterator[list[Any]]:
    """Run all clients, and end them on leaving."""
    import demo_clients

    context = multiprocessing.get_context("spawn")
    payer = PUBLISHERS
    works = [(demo_clients.publish, (shared, index, PUBLISHERS)) for index in range(PUBLISHERS)]
    works.append((demo_clients.publish_in_transactions, (shared, payer)))
    works += [(demo_clients.consume, (shared, index, queues)) for index, queues in enumerate(CONSUMERS)]
    processes = [context.Process(target=target, args=arguments, daemon=True) for target, arguments in works]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()


def shared_of(port: int) -> Any:
    """What the clients have in common."""
    import demo_clients

    context = multiprocessing.get_context("spawn")
    payments = max(MESSAGES // 50, 20)
    total = MESSAGES + payments
    return demo_clients.Shared(
        port=port,
        messages=MESSAGES,
        payments=payments,
        stop=context.Value("b", 0, lock=False),
        billing=context.Value("b", 0, lock=False),
        published=context.Array("q", PUBLISHERS + 1, lock=False),
        consumed=context.Array("q", len(CONSUMERS), lock=False),
        confirmed=context.Array("b", total, lock=False),
        seen={name: context.Array("b", total, lock=False) for name in demo_clients.QUEUES},
    )


def run_clients(broker: Broker, console: Any) -> str:
    """Publish and consume everything, with a kill in the middle. The result as text; raises if a message was lost."""
    import demo_clients
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    shared = shared_of(broker.port)
    connection = demo_clients.connect(shared, lambda: True)
    demo_clients.declare(connection.channel())
    connection.close()
    taken_from = {name for names in CONSUMERS for name in names}
    expected = sum(len(taken_from.intersection(demo_clients.queues_of(shared, one))) for one in range(shared.total))
    columns = TextColumn("  {task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with clients(shared) as processes, Progress(*columns, console=console) as bars:
        published = bars.add_task("published", total=shared.total)
        consumed = bars.add_task("consumed", total=expected)
        killed, last, moved, began = False, -1, time.monotonic(), time.monotonic()
        while True:
            time.sleep(0.1)
            done, taken = sum(shared.published), sum(shared.consumed)
            bars.update(published, completed=done)
            bars.update(consumed, completed=min(taken, expected))
            if done >= shared.total // 3:
                shared.billing.value = 1
            if not killed and done >= shared.total // 2:
                broker.kill()
                console.print(
                    f"  [bold]kill -9[/] of the broker after {done} confirmed messages; it starts again in {DOWN_S:g} s"
                )
                time.sleep(DOWN_S)
                broker.start()
                console.print("  it is back: what it confirmed is there, and the clients go on")
                killed = True
            if taken != last:
                last, moved = taken, time.monotonic()
            publishing = any(process.is_alive() for process in processes[: PUBLISHERS + 1])
            begun = done == shared.total and all(shared.consumed)  # a consumer may start after the last publisher ended
            quiet_s = QUIET_S if taken >= expected else LATE_S
            if begun and not publishing and time.monotonic() - moved > quiet_s:
                break
            if time.monotonic() - max(moved, began) > ENDS_S:
                raise RuntimeError("the clients make no progress: see 'logstore serve --verbose'")
        shared.stop.value = 1
        for process in processes[PUBLISHERS + 1 :]:
            process.join(STARTS_S)
    rest = demo_clients.look_at_rest(shared)
    lost = [
        number
        for number in range(shared.total)
        if shared.confirmed[number]
        and not all(shared.seen[name][number] for name in demo_clients.queues_of(shared, number))
    ]
    if lost:
        raise RuntimeError(f"{len(lost)} confirmed messages are lost, the first of them {lost[0]}")
    why = {"archive": " (it has no consumer)", "rejected": " (the dead letters)"}
    waiting = ", ".join(f"{number} on {name}{why.get(name, '')}" for name, number in rest.items() if number)
    return f"{sum(shared.confirmed)} messages confirmed, 0 lost\n  still waiting: {waiting or 'none'}"


# ---- The log as a table


def show(console: Any, title: str, table: Any, columns: dict[str, str], limit: int = 8) -> None:
    """The first rows of a Spark table: these columns, with the headings; 80 characters are wide enough."""
    from rich import box
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    kinds = dict(table.dtypes)
    for name, heading in columns.items():
        drawn.add_column(heading, justify="left" if kinds[name] in ("string", "date", "timestamp") else "right")
    for row in table.select(*columns).limit(limit).collect():
        drawn.add_row(*(cell(name, value) for name, value in row.asDict().items()))
    console.print(f"\n  {title}")
    console.print(drawn)


def cell(name: str, value: Any) -> str:
    """A value as text, in the unit of its column."""
    from logstore.report.texts import size_short, span_text

    if value is None:
        return "(none)" if name == "queue" else ""
    if name.endswith("_bytes"):
        return size_short(value)
    if name.endswith("_us"):
        return span_text(value)
    if isinstance(value, datetime):
        return f"{value:%H:%M:%S.%f}"[:-3]
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def ask_live(spark: Any, store_dir: Path, console: Any) -> None:
    """Read the log in place, while the broker has it open."""
    from pyspark.sql import functions as f

    import logstore.spark

    columns = ("type", "queue_id", "queue", "relocated", "record_bytes", "content_bytes", "queue_count")
    with logstore.spark.held(spark, store_dir, columns=columns) as records:
        types = records.groupBy("type").agg(
            f.count("type").alias("records"), f.sum("record_bytes").alias("record_bytes")
        )
        show(
            console,
            "What is in the log now; its older part is recycled:",
            types.orderBy(f.desc("records")),
            {"type": "type of record", "records": "records", "record_bytes": "size"},
        )
        show(
            console,
            "Its bytes by the first queue that a record names:",
            logstore.spark.bytes_by_queue(records).orderBy(f.desc("record_bytes")),
            {"queue": "queue", "record_bytes": "first written", "copied_bytes": "copied to recycle"},
        )


def ask_export(spark: Any, target: Path, console: Any) -> None:
    """The same log as Parquet."""
    from pyspark.sql import functions as f

    import logstore.spark

    messages = spark.read.parquet(str(target / "messages"))
    opened = spark.read.parquet(str(target / "open"))
    both = logstore.spark.everything(messages, opened)
    ranks = {"p50_us": "half", "p90_us": "90 %", "p99_us": "99 %", "p999_us": "99.9 %", "max_us": "all"}
    latency = logstore.spark.merge_latency(logstore.spark.latency_sketches(messages))
    show(
        console,
        "Within what time this share of the messages was consumed:",
        latency.orderBy("queue"),
        {"queue": "queue", "count": "messages"} | ranks,
    )
    depth = logstore.spark.queue_depth(both, "1 second").groupBy("queue").agg(f.max("depth").alias("deepest"))
    show(
        console,
        "How many messages waited at most (billing gets its consumer late):",
        depth.orderBy(f.desc("deepest")),
        {"queue": "queue", "deepest": "messages"},
    )
    again = logstore.spark.redeliveries(both).where("redelivered > 0")
    show(
        console,
        "Redeliveries: what consumers returned, or had in hand at the kill:",
        again.orderBy("queue"),
        {"queue": "queue", "settled": "messages ended", "redelivered": "delivered again", "most": "most deliveries"},
    )
    show(
        console,
        "Dead letters: what a consumer rejected:",
        logstore.spark.dead_lettered(both),
        {"queue": "queue", "day": "day (UTC)", "count": "messages"},
    )
    show(
        console,
        "What still waits, and so keeps a part of the log:",
        logstore.spark.pinning_by_queue(opened).orderBy("oldest_id"),
        {"queue": "queue", "messages": "messages", "content_bytes": "content", "since": "oldest (UTC)"},
    )


def step(console: Any, text: str) -> None:
    """What comes next."""
    console.print(f"\n[bold]{text}[/]")


def tour(stack: ExitStack, console: Any) -> Path:
    """Run the whole demo; the path of the page."""
    import logstore.spark
    from logstore.export import export, hold_for
    from logstore.report import report, write_page

    began = time.monotonic()
    work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logstore-demo-")))
    store_dir, target, page = work / "store", PLACE / "export", PLACE / "report.html"
    shutil.rmtree(target, ignore_errors=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    broker = Broker(store_dir)
    stack.callback(broker.stop)
    step(
        console,
        f"1. A broker on a new store, with {PUBLISHERS + 1} publishers and {len(CONSUMERS)} consumers (pika)",
    )
    broker.prepare()
    broker.start()
    held = stack.enter_context(hold_for(store_dir, target, limit_bytes=HOLD_BYTES))  # or the log would be recycled
    console.print(f"  {run_clients(broker, console)}")
    step(console, "2. Spark, which needs seconds to start, reads the log beside the broker")
    spark = logstore.spark.session(quick=True, log_level="ERROR", conf={"spark.sql.shuffle.partitions": "4"})
    stack.callback(spark.stop)
    ask_live(spark, store_dir, console)
    step(console, "3. The whole log, which a hold kept, is exported to Parquet; Spark reads it")
    made = export(store_dir, target, hold=held)
    speed = made.log_bytes / max(made.seconds, 1e-3) / 1e6
    console.print(
        f"  {made.log_bytes / 1e6:.0f} MB of log in {made.seconds:.1f} s ({speed:.0f} MB/s): {made.bytes / 1e6:.1f} MB "
        f"of Parquet\n  with {made.records:,} records, {made.messages:,} ended messages and {made.open:,} that wait"
    )
    ask_export(spark, target, console)
    step(console, "4. Reports, as pages for a browser")
    write_page(report(target, title="make demo: everything that was exported"), page)
    live = PLACE / "live.html"
    write_page(report(store_dir, title="make demo: the store beside its broker"), live)
    console.print("  all that happened, from the export:")
    console.print(f"    {page.resolve()}", soft_wrap=True)
    console.print("  the store beside its broker, and what keeps its log long:")
    console.print(f"    {live.resolve()}", soft_wrap=True)
    console.print("  the Parquet files, for DuckDB, Polars or Spark:")
    console.print(f"    {target.resolve()}", soft_wrap=True)
    console.print(f"\nIt took {time.monotonic() - began:.0f} s. docs/spark.md goes on from here.")
    return page


def main() -> int:
    """Exit status: 0 success, 1 a message was lost or an error occurred, 3 a package is missing."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 80)
    try:
        check()
    except Missing as missing:
        print(f"logstore: {missing}", file=sys.stderr)
        return 3
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with ExitStack() as stack:
            tour(stack, console)
    except KeyboardInterrupt:
        print("logstore: interrupted; what was started is ended", file=sys.stderr)
        return 130
    except (RuntimeError, OSError) as error:
        print(f"logstore: the demo failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
