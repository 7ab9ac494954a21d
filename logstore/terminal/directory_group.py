"""A group of commands on one store: ``logstore GROUP DIR VERB``, where ``DIR`` alone means ``DIR list``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from logstore.codec.records import LSN_LIMIT
from logstore.core.directory import with_directory
from logstore.core.extras import install_command
from logstore.inspect import Reader, read_catalog
from logstore.terminal.changing import change
from logstore.terminal.options import naming
from logstore.terminal.output import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from logstore import MessageStore


class ListsByDefault(click.Group):
    """Takes ``DIR`` without a verb as ``DIR list``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments, with the verb ``list`` added if there is none."""
        has_directory = bool(args) and not args[0].startswith("-")
        if has_directory and not ctx.resilient_parsing and (len(args) == 1 or args[1].startswith("-")):
            args = [args[0], "list", *args[1:]]
        return super().parse_args(ctx, args)


def check_broker_is_installed() -> None:
    """Raises ``Failure`` if a package is missing that the broker needs."""
    try:
        import logstore.broker  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("pamqp", "uvloop"):
            raise
        raise Failure(f"the broker needs {error.name}, which is not installed: {install_command('broker')}") from error


def read_config(store_dir: Path, connect: str | None, schema: str | None) -> Mapping[str, str]:
    """The configuration in a store's catalog, also while a broker runs."""
    with Reader(store_dir, from_lsn=LSN_LIMIT - 1) as reader:
        return read_catalog(store_dir, reader.info, connect=connect, schema=schema).config


def is_member(directory: Path) -> bool:
    """Whether it is the directory of a cluster's member."""
    return (directory / "cluster.toml").is_file()


def refuse_member(directory: Path) -> None:
    """Raises ``Failure`` for a member's directory: its virtual hosts are those of the cluster."""
    if is_member(directory):
        raise Failure(
            f"{directory} is the directory of a cluster's member, and its virtual hosts are those of the cluster: "
            "'logstore cluster status' shows them, and 'logstore cluster add' makes one"
        )


def read_users(directory: Path, connect: str | None, schema: str | None) -> Mapping[str, str]:
    """The configuration that has the users, of a store or of a member."""
    if not is_member(directory):
        return read_config(directory, connect, schema)
    _refuse_catalog_options(connect, schema)
    from logstore.cluster import member_users

    return member_users.read_users(directory)


def change_users(
    directory: Path, verb: str, arguments: Mapping[str, Any], *, connect: str | None, schema: str | None
) -> dict[str, Any]:
    """Changes a user, in a store or of a member. Raises ``Failure`` if it is refused."""
    from logstore.broker.user_changes import change_user

    if not is_member(directory):
        return administer(
            directory,
            f"user.{verb}",
            arguments,
            lambda store: change_user(store, verb, arguments),
            connect=connect,
            schema=schema,
        )
    _refuse_catalog_options(connect, schema)
    from logstore.cluster import running

    with naming(directory):
        return _judged(running.change_user(directory, verb, dict(arguments)), directory)


def _refuse_catalog_options(connect: str | None, schema: str | None) -> None:
    if connect is not None or schema is not None:
        raise Failure("a member's users are in its directory: leave --connect and --catalog out", 2)


def administer(
    store_dir: Path,
    command: str,
    arguments: Mapping[str, Any],
    by_itself: Callable[[MessageStore], dict[str, Any]],
    *,
    connect: str | None,
    schema: str | None,
) -> dict[str, Any]:
    """Makes a change as :func:`change` does. Raises ``Failure`` if it is refused."""
    with naming(store_dir):
        done = change(store_dir, command, arguments, by_itself, connect=connect, schema=schema)
    return _judged(done, store_dir)


def _judged(done: dict[str, Any], store_dir: Path) -> dict[str, Any]:
    if "refused" in done:
        raise Failure(with_directory(str(done["refused"]), store_dir))
    return done
