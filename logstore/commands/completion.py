"""``logstore completion``: the script that completes commands in a shell."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

SHELLS: Final = ("bash", "zsh", "fish")
COMPLETE_VAR: Final = "_LOGSTORE_COMPLETE"  # set by the script of a shell when it asks for completions


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
