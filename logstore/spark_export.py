"""``python -m logstore.spark_export DIR TARGET``: exports a log in Spark tasks; see docs/spark.md."""

from __future__ import annotations

import sys
from typing import NoReturn

from logstore import cli
from logstore.commands.spark_export import main

__all__ = ["run"]


def run() -> NoReturn:
    """Run the command with this process's arguments; also for a spark-submit script."""
    sys.exit(cli.run(sys.argv[1:], main))


if __name__ == "__main__":
    run()
