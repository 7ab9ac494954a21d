"""``logstore vhost``: the virtual hosts of a broker, each of which has a store of its own below the store in DIR."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from logstore.core.counts import counted
from logstore.core.host_directory import HOSTS, ROOT, host_stores
from logstore.errors import StoreError, StoreLocked
from logstore.store.changes import limit_text
from logstore.terminal.directory_group import (
    ListsByDefault,
    administer,
    check_broker_is_installed,
    read_config,
    refuse_member,
)
from logstore.terminal.options import LIMIT, SIZE, catalog_options, json_option, naming, path_argument
from logstore.terminal.output import print_json, print_table
from logstore.terminal.tables import printable

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import MessageStore


@click.group(cls=ListsByDefault, no_args_is_help=False)
@path_argument
@click.pass_context
def vhost(context: click.Context, store_dir: Path) -> None:
    """List, add, remove or change the virtual hosts of a broker.

    The host "/" is the store in DIR. Each other host has a store of its own in DIR/hosts, with which every command
    works as with DIR. Without a verb the hosts are listed.
    """
    context.obj = store_dir


@vhost.command(name="list")
@json_option
@catalog_options
@click.pass_obj
def list_(store_dir: Path, as_json: bool, connect: str | None, schema: str | None) -> None:
    """List the virtual hosts with the directories of their stores.

    A store in DIR/hosts that belongs to no host is listed without a name; adding its host takes it over.
    """
    check_broker_is_installed()
    refuse_member(store_dir)
    from logstore.broker.host_list import host_rows

    with naming(store_dir):
        rows = host_rows(read_config(store_dir, connect, schema))
    listed: list[dict[str, Any]] = [{"name": ROOT, "directory": str(store_dir), "state": "present"}]
    known = set()
    for row in rows:
        path = store_dir / HOSTS / row.directory
        known.add(path)
        is_missing = row.state == "present" and not (path / "META").is_file()
        listed.append(
            {"name": row.name, "directory": str(path), "state": "no store is there" if is_missing else row.state}
        )
    unknown = [path for path in host_stores(store_dir) if path not in known]
    listed += [{"name": None, "directory": str(path), "state": "no host"} for path in unknown]
    if as_json:
        print_json({"store": str(store_dir), "hosts": listed})
        return
    print_table(
        ("host", "state", "store"),
        ((printable(one["name"] or ""), one["state"], one["directory"]) for one in listed),
    )


@vhost.command()
@click.argument("name")
@click.option("--segment-size", type=SIZE, help="Bytes of one segment of its store [default: 16MiB].")
@click.option("--max-log-bytes", type=LIMIT, help="The largest size of its log on disk [default: none].")
@json_option
@catalog_options
@click.pass_obj
def add(
    store_dir: Path,
    name: str,
    segment_size: int | None,
    max_log_bytes: int | str | None,
    as_json: bool,
    connect: str | None,
    schema: str | None,
) -> None:
    """Add a virtual host.

    A running broker serves it at once. A store that is in its directory already is taken over with its messages. No
    user but those that 'logstore user DIR permit' names may open it.
    """
    check_broker_is_installed()
    refuse_member(store_dir)
    from logstore.broker.host_list import check_host_name

    check_host_name(name)
    options = {"segment_size": segment_size, "max_log_bytes": max_log_bytes}
    arguments = {"name": name, **{key: value for key, value in options.items() if value is not None}}
    done = administer(
        store_dir,
        "vhost.add",
        arguments,
        lambda root: _add(root, name, {key: value for key, value in arguments.items() if key != "name"}),
        connect=connect,
        schema=schema,
    )
    if as_json:
        print_json({"store": str(store_dir), "name": name, **done})
    else:
        held = f", with {counted(done['messages'], 'message')}" if done["messages"] else ""
        click.echo(f"added: virtual host {printable(name)} in {done['directory']}{held}")


@vhost.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Remove it with the messages that it has.")
@json_option
@catalog_options
@click.pass_obj
def remove(store_dir: Path, name: str, yes: bool, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Remove a virtual host and delete its store.

    It is refused if messages or transactions in doubt are left, unless --yes is given. A running broker closes the
    connections of the host. Users lose the permission to open it.
    """
    check_broker_is_installed()
    refuse_member(store_dir)
    from logstore.broker.host_list import check_host_name

    check_host_name(name)
    done = administer(
        store_dir,
        "vhost.remove",
        {"name": name, "yes": yes},
        lambda root: _remove(root, name, is_wanted=yes),
        connect=connect,
        schema=schema,
    )
    if as_json:
        print_json({"store": str(store_dir), "name": name, **done})
    else:
        click.echo(f"removed: virtual host {printable(name)}, with {counted(done['messages'], 'message')}")


@vhost.command()
@click.argument("name")
@json_option
@catalog_options
@click.pass_obj
def reopen(store_dir: Path, name: str, as_json: bool, connect: str | None, schema: str | None) -> None:
    """Open a virtual host again whose store has failed.

    For a host that a running broker could not open, or whose disk had an error: repair the cause first. Other hosts and
    their clients are not affected. A host that is open and can write is left as it is.
    """
    check_broker_is_installed()
    refuse_member(store_dir)
    from logstore.broker.host_list import check_host_name

    check_host_name(name)
    done = administer(
        store_dir,
        "vhost.reopen",
        {"name": name},
        lambda root: _refuse_reopen(root, name),
        connect=connect,
        schema=schema,
    )
    if as_json:
        print_json({"store": str(store_dir), "name": name, **done})
    elif done["reopened"]:
        held = f", with {counted(done['messages'], 'message')}"
        click.echo(f"reopened: virtual host {printable(name)} in {done['directory']}{held}")
    else:
        click.echo(f"virtual host {printable(name)} is open and can write: nothing was done")


@vhost.command(name="set")
@click.argument("name")
@click.option(
    "--max-log-bytes", type=LIMIT, required=True, help="The largest size of its log on disk; none removes it."
)
@json_option
@catalog_options
@click.pass_obj
def set_(
    store_dir: Path,
    name: str,
    max_log_bytes: int | str,
    as_json: bool,
    connect: str | None,
    schema: str | None,
) -> None:
    """Change the limit of a virtual host's log, also of "/".

    It is stored, and holds at once in a running broker. It is refused if the log has more bytes on disk already.
    """
    check_broker_is_installed()
    refuse_member(store_dir)
    from logstore.broker.host_list import check_host_name

    if name != ROOT:
        check_host_name(name)
    done = administer(
        store_dir,
        "vhost.set",
        {"name": name, "max_log_bytes": max_log_bytes},
        lambda root: _set(root, name, max_log_bytes),
        connect=connect,
        schema=schema,
    )
    if as_json:
        print_json({"store": str(store_dir), "name": name, **done})
    else:
        click.echo(f"set: virtual host {printable(name)} has {limit_text(done)}")


def _set(root: MessageStore, name: str, limit: int | str) -> dict[str, Any]:
    from logstore.broker.host_list import HostList, change_limit, missing_text

    if name == ROOT:
        return change_limit(name, root, limit)
    hosts = HostList(root)
    if hosts.row(name) is None:
        return {"refused": missing_text(name)}
    with hosts.open(name, {}) as store:
        return change_limit(name, store, limit)


def _refuse_reopen(root: MessageStore, name: str) -> dict[str, Any]:
    from logstore.broker.host_list import HostList, missing_text, unserved_text

    return {"refused": missing_text(name) if HostList(root).row(name) is None else unserved_text(name)}


def _add(root: MessageStore, name: str, options: dict[str, Any]) -> dict[str, Any]:
    from logstore.broker.host_list import HostList, exists_text, held_by

    hosts = HostList(root)
    hosts.finish_removals()
    if hosts.row(name) is not None:
        return {"refused": exists_text(name)}
    with hosts.make(name, options) as store:
        return {"directory": str(store.path), **held_by(store)}


def _remove(root: MessageStore, name: str, *, is_wanted: bool) -> dict[str, Any]:
    from logstore.broker.host_list import HostList, held_by, held_text, missing_text, unknown_text

    hosts = HostList(root)
    done: dict[str, Any] = {"directory": str(hosts.path(name)), "messages": 0, "in_doubt": 0}
    if hosts.row(name) is None:
        if not any(row.name == name for row in hosts.rows()):
            return {"refused": missing_text(name)}
        hosts.finish_removals()
        return done
    try:
        with hosts.open(name, {}) as store:
            done |= held_by(store)
    except StoreLocked:
        raise
    except StoreError as error:
        if not is_wanted:
            return {"refused": unknown_text(name, error.message)}
    if not is_wanted and (done["messages"] or done["in_doubt"]):
        return {"refused": held_text(name, done)}
    hosts.begin_removal(name)
    hosts.finish_removals()
    return done
