"""``logstore serve``: opens or makes a store and runs the broker on it until SIGTERM or Ctrl-C.

SIGTERM ends the process at any moment. While the store is being opened, the process exits at once, like a crash, and
the next open recovers. Afterwards the broker stops and the store is closed, unless that takes longer than the timeout.
"""

from __future__ import annotations

import logging
import re
import signal
from typing import TYPE_CHECKING, Any, NoReturn

import click

from logstore.core.counts import counted
from logstore.errors import OptionError
from logstore.terminal.broker_options import broker_options
from logstore.terminal.directory_group import check_broker_is_installed
from logstore.terminal.options import LIMIT, SIZE, catalog_options, store_argument
from logstore.terminal.output import Failure, size_text
from logstore.terminal.stopping import Stopping

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.core.reports import Recovery


logger = logging.getLogger(__name__)


# Options of the store in DIR only; the others hold for the stores of all virtual hosts.
_OF_ROOT = frozenset({"segment_size", "initial_segments", "max_log_bytes", "connect", "catalog_timeout"})


class _Stopped(BaseException):
    """SIGTERM or Ctrl-C arrived after the store was opened and before the broker handles signals."""


@click.command()
@store_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=5672, show_default=True, help="The port; 0 means any free port."
)
@click.option("--segment-size", type=SIZE, help="Bytes of one segment of a new store [default: 16MiB].")
@click.option("--initial-segments", type=int, help="Segments that a new store is made with [default: 2].")
@click.option(
    "--max-write-buffers", type=int, help="Filled batches after which the log forces by itself [default: 10]."
)
@click.option(
    "--max-log-bytes",
    type=LIMIT,
    help="The largest size of the log on disk, stored for later starts; none removes it [default: as stored].",
)
@broker_options
@click.option(
    "--max-undurable-bytes",
    type=SIZE,
    help="The most bytes that may wait for the disk, and that a crash can lose [default: 2 segments].",
)
@click.option("--max-prepared", type=int, help="Distributed transactions prepared at once [default: 10000].")
@click.option(
    "--prepared-timeout",
    type=float,
    help="Seconds after which a prepared transaction is rolled back without its coordinator [default: never].",
)
@click.option(
    "--scrub",
    "scrub_rate",
    type=SIZE,
    metavar="BYTES",
    help="Read the log repeatedly at BYTES per second, such as 10M, and warn of damage [default: do not].",
)
@click.option(
    "--durability",
    type=click.Choice(["strict", "relaxed"], case_sensitive=False),
    help="relaxed: confirm before the data is on disk; a crash loses the latest changes [default: strict].",
)
@catalog_options
@click.option(
    "--catalog-timeout",
    type=float,
    help="Seconds to wait for each answer of the catalog's server [default: 10].",
)
@click.option(
    "--stop-timeout",
    type=click.FloatRange(0.1, 86_400),
    default=30.0,
    show_default=True,
    help="Seconds after SIGTERM when the process exits even if something hangs.",
)
@click.option("--verbose", "-v", is_flag=True, help="Log each connection and refusal, too (to stderr).")
def serve(
    store_dir: Path,
    host: str,
    port: int,
    schema: str | None,
    stop_timeout: float,
    verbose: bool,
    limits: dict[str, Any],
    **options: Any,
) -> None:
    """Run an AMQP 0-9-1 broker on a store.

    The store in DIR is made if there is none. Prints "listening on HOST:PORT" when clients can connect. SIGTERM and
    Ctrl-C stop it cleanly. Sizes take suffixes: 64M, 1GiB. The log on stderr tells of the start, the recovery, refused
    logins, a full store, what commands changed, failures and the stop.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("logstore").setLevel(logging.DEBUG if verbose else logging.INFO)
    check_broker_is_installed()
    import logstore
    from logstore.broker import BrokerError, Limits, descriptors, run
    from logstore.broker.server import check_address

    descriptors.raise_limit()
    given = {name: value for name, value in options.items() if value is not None}
    try:
        check_address(host, port)
        with Stopping(stop_timeout) as stopping, logstore.open(store_dir, catalog=schema, **given) as store:
            signal.signal(signal.SIGINT, _stop)
            stopping.is_serving = True
            how = _recovered(store.recovery, store.segment_size)
            logger.info("logstore %s: store %s, %s", logstore.__version__, store.path, how)
            of_hosts = {name: value for name, value in given.items() if name not in _OF_ROOT}
            run(store, host=host, port=port, limits=Limits(**limits), host_options=of_hosts)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the stop is already in progress
        logger.info("stopped: the store is closed")
    except OptionError as error:
        for name in sorted(options, key=len, reverse=True):  # the text has the names of logstore.open
            flag = "--scrub" if name == "scrub_rate" else f"--{name.replace('_', '-')}"
            error.message = re.sub(rf"\b{name}\b", flag, error.message) if "_" in name else error.message
        raise
    except BrokerError as error:
        raise Failure(str(error)) from error
    except _Stopped:
        return


def _recovered(found: Recovery, segment_size: int) -> str:
    """The result of the recovery at an open, in one line."""
    if found.created:
        return f"created, with segments of {size_text(segment_size)}"
    done = [
        f"{counted(count, noun)} {text}"
        for count, noun, text in (
            (found.torn_bytes, "byte", "of a torn tail set aside"),
            (found.transactions_abandoned, "transaction", "without outcome rolled back"),
            (found.transactions_in_doubt, "transaction", "in doubt"),
            (found.staged_dropped, "message", "never enqueued, and dropped"),
            (found.places_dropped, "message", "of deleted or transient queues dropped"),
        )
        if count
    ]
    since = "a checkpoint and the log since" if found.checkpoint_used else "the whole log"
    if found.checkpoint_ignored:
        since += f" (the checkpoint is not usable: {found.checkpoint_ignored})"
    how = "closed cleanly" if found.clean else "not closed: recovered after a crash"
    read = (
        f"{counted(found.messages, 'message')} from {since}, {size_text(found.bytes_read)}, in "
        f"{found.total_us / 1e6:.2f} s"
    )
    return "; ".join([how, f"epoch {found.epoch}", read, *done])


def _stop(_number: int, _frame: object) -> NoReturn:
    raise _Stopped
