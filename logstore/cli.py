"""The ``logstore`` command: groups the subcommands, and turns each failure into one line and an exit status.

Exit statuses: 0 success; 1 problems were found, or the requested object does not exist; 2 misuse; 3 the store cannot
be opened or read (no store, locked, damaged, written by a newer version, catalog mismatch). With every status but 0,
one line on stderr says why. A closed output pipe (``| head``) and Ctrl-C end a command without a message.

An operator's mistake never shows a traceback; a defect of logstore always does.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from click.shell_completion import shell_complete

from logstore import __version__
from logstore.commands.completion import COMPLETE_VAR
from logstore.errors import (
    EngineRefused,
    NoMajority,
    NotLeader,
    OptionError,
    OutcomeUnknown,
    StoreError,
    StorePoisoned,
    TransactionError,
    UnknownMessage,
    UnknownQueue,
)
from logstore.terminal.output import INTERRUPTED, Failure, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROBLEM = 1
MISUSE = 2
CANNOT_OPEN = 3
HUNG_UP = 128 + signal.SIGPIPE

# The store can be opened; the request fails for another reason.
_PROBLEMS = (
    EngineRefused,
    NoMajority,
    NotLeader,
    OutcomeUnknown,
    StorePoisoned,
    TransactionError,
    UnknownMessage,
    UnknownQueue,
)

# Errors that only a write gives. Without a file name they concern stdout: errors of other files carry the name.
_OF_OUTPUT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Look (changes nothing; works while a broker runs)": (
        ("info", "queues", "stats", "connections", "peek", "tail", "chain", "dump", "holds", "verify")
    ),
    "Change (through the broker, or in a closed store)": (
        "purge",
        "in-doubt",
        "compact",
        "checkpoint",
        "vhost",
        "user",
    ),
    "Copy and report (works while a broker runs)": ("backup", "export", "report", "sql"),
    "Rescue (needs a closed store)": ("recover", "salvage", "repair-catalog"),
    "Serve and measure": ("serve", "bench"),
    "Cluster": ("cluster",),
    "Help": ("help", "completion"),
}


class _Commands(Mapping[str, click.Command]):
    """The commands by name. Each is imported when it is asked for, which halves the time to start one of them."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in set(self):
            raise KeyError(name)
        module = name.replace("-", "_")
        found = getattr(importlib.import_module(f"logstore.commands.{module}"), "help_" if name == "help" else module)
        assert isinstance(found, click.Command)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for names in GROUPS.values() for name in names))

    def __len__(self) -> int:
        return sum(map(len, GROUPS.values()))


class _Grouped(click.Group):
    """A group of commands whose help shows them by what they are for, each with its whole first sentence."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands()  # type: ignore[assignment] # click adds commands, and here none is added

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes one section for each group."""
        widest = max(map(len, self.commands))
        for title, names in GROUPS.items():
            with formatter.section(title):
                rows = [(name.ljust(widest), self.commands[name].get_short_help_str(1000)) for name in names]
                formatter.write_dl(rows)


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from logstore.codec.files import FORMAT_VERSION
        from logstore.core.native import core_version

        click.echo(f"logstore {__version__}, log format {FORMAT_VERSION}, core {core_version()}")
        context.exit()


@click.group(
    cls=_Grouped,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def command() -> None:
    """Inspect, check, recover and serve a message store in a directory.

    Exit status: 0 fine, 1 problems found, 2 misuse, 3 the store cannot be opened. 'logstore help exit-status' says
    more; other topics are sizes, permissions, full, growth, damage and locked.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command with these arguments (the process's own by default) and exit with its status."""
    if COMPLETE_VAR in os.environ:
        sys.exit(shell_complete(command, {}, "logstore", COMPLETE_VAR, os.environ[COMPLETE_VAR]))
    warnings.showwarning = lambda message, *_: _say(str(message))  # one line for operators, without a source line
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal's encoding lacks must not raise
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _say(text: str) -> None:
    print(f"logstore: {one_line(text)}", file=sys.stderr)


def run(arguments: Sequence[str], program: click.Command = command) -> int:
    """Like :func:`main`, but returns the exit status instead of exiting. ``program`` is the click command to run.

    Without arguments ``logstore`` shows its help.
    """
    try:
        status = _invoke(list(arguments) or (["--help"] if program is command else []), program)
        sys.stdout.flush()
    except click.UsageError as error:
        context = error.ctx.command_path if error.ctx is not None else "logstore"
        _say(f"{error.format_message().rstrip('.')} (see '{context} --help')")
        return MISUSE
    except (click.Abort, KeyboardInterrupt):
        _drop_output()
        return INTERRUPTED
    except Failure as failure:
        _say(str(failure))
        return failure.status
    except StoreError as error:
        _say(error.message)
        return _status_of(error)
    except BrokenPipeError:
        _drop_output()
        return HUNG_UP
    except OSError as error:
        if error.filename is not None:
            _say(f"{os.fsdecode(error.filename)}: {error.strerror}")
            return CANNOT_OPEN
        if error.errno not in _OF_OUTPUT:
            _say(str(error))
            return CANNOT_OPEN
        _say(f"the output cannot be written: {error.strerror or error}")
        _drop_output()
        return PROBLEM
    except MemoryError:
        _say("there is not enough memory for this")
        return CANNOT_OPEN
    return status if isinstance(status, int) else 0


def _invoke(arguments: list[str], program: click.Command) -> object:
    """Runs the command and returns its result. Not with click's own main, which would handle a broken pipe itself."""
    try:
        with program.make_context("logstore" if program is command else program.name, arguments) as context:
            return program.invoke(context)
    except click.exceptions.Exit as done:  # --help and --version
        return done.exit_code


def _status_of(error: StoreError) -> int:
    if isinstance(error, OptionError):
        return MISUSE
    return PROBLEM if isinstance(error, _PROBLEMS) else CANNOT_OPEN


def _drop_output() -> None:
    """Sends pending output to /dev/null: otherwise Python writes it again at its exit and reports the same error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
