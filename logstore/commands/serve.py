"""``logstore serve``: opens or makes a store and runs the broker on it until it is told to stop.

SIGTERM ends it at any moment: while the store is being opened the process just goes, which is a crash that the next
open recovers from; after that the broker stops, and the store is closed, unless that takes too long.
"""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Any, NoReturn

import click

from logstore.commands.options import SIZE, catalog_options, store_argument
from logstore.commands.output import Failure
from logstore.commands.stopping import Stopping
from logstore.core.extras import install_command

if TYPE_CHECKING:
    from pathlib import Path


class _Stopped(BaseException):
    """SIGTERM or Ctrl-C came between the opening of the store and the broker's own handling of it."""


@click.command()
@store_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=5672, show_default=True, help="The port; 0: any that is free."
)
@click.option("--segment-size", type=SIZE, help="Of a new store: bytes of one segment [default: 16MiB].")
@click.option("--initial-segments", type=int, help="Of a new store: segments made at once [default: 2].")
@click.option("--max-write-buffers", type=int, help="Batches filled before the log forces by itself [default: 10].")
@click.option("--max-log-bytes", type=SIZE, help="The most that the log may take on disk [default: no limit].")
@click.option(
    "--max-undurable-bytes",
    type=SIZE,
    help="Of a new store: the most that may wait for the disk [default: 2 segments].",
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
    help="Read so much of the log a second, such as 10M, round and round, and warn of damage [default: do not].",
)
@click.option(
    "--durability",
    type=click.Choice(["strict", "relaxed"], case_sensitive=False),
    help="relaxed: confirm before the disk has it; a crash loses the last moments [default: strict].",
)
@catalog_options
@click.option(
    "--catalog-timeout",
    type=float,
    help="Seconds that an answer of the catalog's server is waited for [default: 10].",
)
@click.option(
    "--stop-timeout",
    type=click.FloatRange(0.1, 86_400),
    default=30.0,
    show_default=True,
    help="Seconds after SIGTERM when the process goes, whatever still hangs.",
)
@click.option("--verbose", "-v", is_flag=True, help="Say on stderr what goes on.")
def serve(
    store_dir: Path,
    host: str,
    port: int,
    schema: str | None,
    stop_timeout: float,
    verbose: bool,
    **options: Any,
) -> None:
    """Run an AMQP 0-9-1 broker on a store.

    The store in DIR is made if there is none. Prints "listening on HOST:PORT" when clients can connect. SIGTERM and
    Ctrl-C end it in good order. Sizes take suffixes: 64M, 1GiB.
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        from logstore.broker import BrokerError, descriptors, run
    except ModuleNotFoundError as error:
        if error.name not in ("pamqp", "uvloop"):
            raise
        raise Failure(f"the broker needs {error.name}, which is not installed: {install_command('broker')}") from error
    import logstore

    descriptors.raise_limit()
    given = {name: value for name, value in options.items() if value is not None}
    try:
        with Stopping(stop_timeout) as stopping, logstore.open(store_dir, catalog=schema, **given) as store:
            signal.signal(signal.SIGINT, _stop)
            stopping.is_serving = True
            run(store, host=host, port=port)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is being done
    except BrokerError as error:
        raise Failure(str(error)) from error
    except _Stopped:
        return


def _stop(_number: int, _frame: object) -> NoReturn:
    raise _Stopped
