"""Help: the commands in groups, ``logstore help TOPIC`` for use without a network, and completion for shells."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from logstore.commands.topics import TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SHELLS: Final = ("bash", "zsh", "fish")
COMPLETE_VAR: Final = "_LOGSTORE_COMPLETE"  # set by the script of a shell when it asks for completions

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Look (changes nothing; works while a broker runs)": (
        ("info", "queues", "stats", "connections", "peek", "tail", "chain", "dump", "holds", "verify")
    ),
    "Change (through the broker, or in a closed store)": ("purge", "in-doubt", "compact", "checkpoint"),
    "Copy and report (works while a broker runs)": ("backup", "export", "report"),
    "Rescue (needs a closed store)": ("recover", "salvage", "repair-catalog"),
    "Serve and measure": ("serve", "bench"),
    "Help": ("help", "completion"),
}


# Of commands whose module has another name.
MODULES: Final = {"queues": "info", "checkpoint": "compact", "completion": "help"}


class Commands(Mapping[str, click.Command]):
    """The commands by name. Each is imported when it is asked for, which halves the time to start one of them."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in set(self):
            raise KeyError(name)
        function = "help_" if name == "help" else name.replace("-", "_")
        module = importlib.import_module(f"logstore.commands.{MODULES.get(name, name.replace('-', '_'))}")
        command = getattr(module, function)
        assert isinstance(command, click.Command)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for names in GROUPS.values() for name in names))

    def __len__(self) -> int:
        return sum(map(len, GROUPS.values()))


class Grouped(click.Group):
    """A group of commands whose help shows them by what they are for, each with its whole first sentence."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = Commands()  # type: ignore[assignment] # click adds commands, and here none is added

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes one section for each group."""
        widest = max(map(len, self.commands))
        for title, names in GROUPS.items():
            with formatter.section(title):
                rows = [(name.ljust(widest), self.commands[name].get_short_help_str(1000)) for name in names]
                formatter.write_dl(rows)


@click.command("help")
@click.argument(
    "topic",
    required=False,
    shell_complete=lambda context, _, text: [
        CompletionItem(name) for name in topics_of(context) if name.startswith(text)
    ],
)
@click.pass_context
def help_(context: click.Context, topic: str | None) -> None:
    """Explain a command or a topic; without one, list them.

    Topics are what operators ask: exit-status, sizes, permissions, full, growth, damage, locked.
    """
    program = context.parent
    assert program is not None
    assert isinstance(program.command, click.Group)
    if topic is None:
        click.echo(program.get_help())
    elif topic in TOPICS:
        click.echo(TOPICS[topic].strip("\n"))
    elif topic in program.command.commands:
        wanted = program.command.commands[topic]
        with click.Context(wanted, info_name=topic, parent=program) as shown:
            click.echo(wanted.get_help(shown))
    else:
        near = get_close_matches(topic, topics_of(context), n=1)
        like = f"; there is {near[0]!r}" if near else ""
        raise click.UsageError(f"there is no command or topic {topic!r}{like}; 'logstore help' lists them", program)


def topics_of(context: click.Context) -> Sequence[str]:
    """The names that ``help`` takes: topics, then commands."""
    program = context.find_root().command
    return [*TOPICS, *(program.list_commands(context) if isinstance(program, click.Group) else ())]


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands in a shell.

    bash: add 'eval "$(logstore completion bash)"' to ~/.bashrc; zsh: the same with zsh to ~/.zshrc, after compinit;
    fish: logstore completion fish > ~/.config/fish/completions/logstore.fish. It completes commands, options, files,
    and for peek and purge the names of the store's queues.
    """
    made = get_completion_class(shell)
    assert made is not None  # click knows these three
    # Not the class's own source(), which starts a shell to find its version and writes a warning.
    click.echo(ShellComplete.source(made(context.find_root().command, {}, "logstore", COMPLETE_VAR)), nl=False)
