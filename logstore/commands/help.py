"""``logstore help``: explains a command or a topic, for use without a network."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from logstore.terminal.topics import TOPICS

if TYPE_CHECKING:
    from collections.abc import Sequence


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
