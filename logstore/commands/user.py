"""``logstore user``: who may log in to a broker, and which virtual hosts each user may open."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from logstore.terminal.directory_group import ListsByDefault, change_users, check_broker_is_installed, read_users
from logstore.terminal.options import catalog_options, json_option, naming, path_argument
from logstore.terminal.output import Failure, print_json, print_table
from logstore.terminal.tables import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PASSWORD_BYTES_MAX: Final = 1024


@click.group(cls=ListsByDefault, no_args_is_help=False)
@path_argument
@click.pass_context
def user(context: click.Context, store_dir: Path) -> None:
    """List, add, change or remove the users of a broker.

    DIR is the store of the host "/", which has the users of all hosts, or the directory of a cluster's member, which
    has users of its own. A change holds for the next connection of the user; open ones stay. Without a verb the users
    are listed.
    """
    context.obj = store_dir


@user.command(name="list")
@json_option
@catalog_options
@click.pass_obj
def list_(store_dir: Path, as_json: bool, connect: str | None, schema: str | None) -> None:
    """List the users and the virtual hosts that each may open."""
    check_broker_is_installed()
    from logstore.broker.users import user_rows

    with naming(store_dir):
        rows = user_rows(read_users(store_dir, connect, schema))
    if as_json:
        fields = [{"name": row.name, "hosts": list(row.hosts), "loopback_only": row.loopback_only} for row in rows]
        print_json({"store": str(store_dir), "users": fields})
        return
    if not rows:
        click.echo("there are no users; the first start of a broker makes the user guest")
        return
    print_table(
        ("user", "may log in from", "hosts"),
        (
            (
                printable(row.name),
                "this machine" if row.loopback_only else "anywhere",
                " ".join(map(printable, row.hosts)) or "(none)",
            )
            for row in rows
        ),
    )


def _password_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--stdin", "from_stdin", is_flag=True, help="Read the password from a line of the standard input."
    )(function)


@user.command()
@click.argument("name")
@click.option("--permit", "hosts", multiple=True, metavar="HOST", help="A host that the user may open [default: /].")
@click.option("--loopback-only", is_flag=True, help="The user may log in from this machine only.")
@_password_option
@json_option
@catalog_options
@click.pass_obj
def add(
    store_dir: Path,
    name: str,
    hosts: tuple[str, ...],
    loopback_only: bool,
    from_stdin: bool,
    as_json: bool,
    connect: str | None,
    schema: str | None,
) -> None:
    """Add a user.

    The password is asked for, or read from the standard input if that is no terminal.
    """
    arguments = {"user": name, "hosts": list(hosts) or ["/"], "loopback_only": loopback_only}
    _change(store_dir, "add", arguments, "added", as_json, connect, schema, _hash(name, from_stdin=from_stdin))


@user.command()
@click.argument("name")
@_password_option
@json_option
@catalog_options
@click.pass_obj
def password(
    store_dir: Path, name: str, from_stdin: bool, as_json: bool, connect: str | None, schema: str | None
) -> None:
    """Change a user's password.

    It is asked for, or read from the standard input if that is no terminal.
    """
    made = _hash(name, from_stdin=from_stdin)
    _change(store_dir, "password", {"user": name}, "password changed", as_json, connect, schema, made)


@user.command()
@click.argument("name")
@click.argument("host")
@json_option
@catalog_options
@click.pass_obj
def permit(store_dir: Path, name: str, host: str, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Permit a user to open a virtual host."""
    _change(store_dir, "permit", {"user": name, "host": host}, "permitted", as_json, connect, schema)


@user.command()
@click.argument("name")
@click.argument("host")
@json_option
@catalog_options
@click.pass_obj
def forbid(store_dir: Path, name: str, host: str, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Forbid a user to open a virtual host."""
    _change(store_dir, "forbid", {"user": name, "host": host}, "forbidden", as_json, connect, schema)


@user.command()
@click.argument("name")
@json_option
@catalog_options
@click.pass_obj
def remove(store_dir: Path, name: str, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Remove a user."""
    _change(store_dir, "remove", {"user": name}, "removed", as_json, connect, schema)


def _change(
    store_dir: Path,
    verb: str,
    arguments: dict[str, Any],
    done_text: str,
    as_json: bool,
    connect: str | None,
    schema: str | None,
    password_hash: str | None = None,
) -> None:
    check_broker_is_installed()
    from logstore.store.control import SECRET

    for text in (arguments["user"], arguments.get("host", "/"), *arguments.get("hosts", ())):
        if not text or not _is_utf_8(text):
            raise click.UsageError(f"{text!r} is not the name of a user or a host")
    given = arguments if password_hash is None else arguments | {SECRET: password_hash}
    done = change_users(store_dir, verb, given, connect=connect, schema=schema)
    if as_json:
        print_json({"store": str(store_dir), **arguments, **done})
    else:
        hosts = " ".join(map(printable, done["hosts"])) or "(none)"
        may_open = "" if verb == "remove" else f"; may open {hosts}"
        click.echo(f"{done_text}: user {printable(arguments['user'])}{may_open}")


def _hash(name: str, *, from_stdin: bool) -> str:
    """The hash of a password from the terminal, which is asked twice, or of a line of the standard input."""
    check_broker_is_installed()
    from logstore.broker.users import hash_password

    if from_stdin or sys.stdin is None or not sys.stdin.isatty():
        try:
            line = "" if sys.stdin is None else sys.stdin.readline(PASSWORD_BYTES_MAX + 2)
        except UnicodeDecodeError:
            line = "\udc80"  # as other locales read it
        found = line.removesuffix("\n").removesuffix("\r")
    else:
        found = click.prompt(f"password of {printable(name)}", hide_input=True, confirmation_prompt=True, err=True)
    if not found:
        raise Failure("no password was given: type it, or write it to the standard input", 2)
    if not _is_utf_8(found):
        raise Failure("a password is text in UTF-8", 2)
    if len(found.encode()) > PASSWORD_BYTES_MAX:
        raise Failure(f"a password has at most {PASSWORD_BYTES_MAX} bytes in UTF-8", 2)
    return hash_password(found)


def _is_utf_8(text: str) -> bool:
    """False for an argument that had other bytes."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
