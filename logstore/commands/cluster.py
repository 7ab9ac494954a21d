"""``logstore cluster``: makes, runs, shows and ends the members of a cluster. ``logstore.cluster`` does the work."""

from __future__ import annotations

import logging
import shlex
import signal
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

import click

from logstore.core.counts import counted
from logstore.core.extras import install_command
from logstore.errors import OptionError
from logstore.terminal.broker_options import FLAGS, broker_options
from logstore.terminal.options import SIZE, PathText, json_option
from logstore.terminal.output import Failure, lines_that_fit, output_width, print_json, print_lines
from logstore.terminal.stopping import Stopping
from logstore.terminal.watching import watch as watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logstore.cluster.certificates import Files

EVERY_S = 1.0
AUTHORITY = "ca"

logger = logging.getLogger(__name__)


class _Stopped(BaseException):
    """SIGTERM or Ctrl-C arrived after the member was opened and before it handles signals."""


_EXTRAS = {"msgspec": "cluster", "uvloop": "cluster", "pamqp": "broker"}


@contextmanager
def _with_extra() -> Iterator[None]:
    """Says in one line which package must be installed for this part."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        raise Failure(
            f"a cluster needs {error.name}, which is not installed: {install_command(_EXTRAS[error.name])}", 3
        ) from error


def _dir_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--dir",
        "directory",
        type=PathText(),
        default=Path(),
        metavar="DIR",
        help="The member's directory [default: the current one].",
    )(function)


@click.group(no_args_is_help=False)
def cluster() -> None:
    """Make, run and watch the members of a cluster.

    A cluster keeps copies of a store on several members, of which a majority must have what is confirmed. Each member
    has a directory with its configuration, cluster.toml, and a directory for each host (replicated store).
    """


@cluster.command()
@click.argument("directory", metavar="DIR", type=PathText())
@click.option("--name", required=True, help="The member's name: a host name in small letters.")
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where it listens for other members.")
@click.option("--advertise", metavar="HOST:PORT", help="The address that the others use [default: that of --listen].")
@click.option("--host", default="main", show_default=True, help="The name of the first host.")
@click.option(
    "--store",
    type=PathText(),
    metavar="STORE_DIR",
    help="Move this closed store into DIR as the host's first copy [default: a new store].",
)
@click.option("--segment-size", type=SIZE, help="Bytes of one segment of a new store [default: 16MiB].")
@click.option("--amqp", metavar="HOST:PORT", help="Where its AMQP broker listens for clients [default: it has none].")
@click.option("--member", type=int, help="The member's id, never used before in this cluster [default: random].")
@click.option("--ca", type=PathText(), help="The certificate of the cluster's authority.")
@click.option("--cert", "certificate", type=PathText(), help="The member's certificate.")
@click.option("--key", type=PathText(), help="The key of the member's certificate.")
def init(
    directory: Path,
    name: str,
    listen: str,
    advertise: str | None,
    host: str,
    store: Path | None,
    segment_size: int | None,
    amqp: str | None,
    member: int | None,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
) -> None:
    """Make the first member of a cluster, with one host.

    The host is a new store, or the one of --store, which is moved without a byte being rewritten. The member is the
    host's only voter until others join. If it is interrupted, the same command goes on.
    """
    with _with_extra():
        from logstore.cluster import founding
        from logstore.cluster.config import MemberFile

        random_id, uuid = founding.new_identity()
        wanted = MemberFile(
            name=name,
            member=random_id if member is None else member,
            cluster=uuid,
            listen=listen,
            advertise=advertise or "",
            amqp=amqp or "",
            ca=_path_in(directory, ca),
            cert=_path_in(directory, certificate),
            key=_path_in(directory, key),
        )
        made = founding.found(
            directory,
            wanted,
            host=host,
            store=store,
            segment_size=segment_size,
            is_id_given=member is not None,
        )
    done = "nothing was left to do" if made.was_complete else "made"
    click.echo(f"member {made.file.name} (id {made.file.member}) with host {made.host} in {directory}: {done}")
    click.echo(f"the host's copy is {made.copy}")
    click.echo(f"start it with: logstore cluster run --dir {shlex.quote(str(directory))}")


def _path_in(directory: Path, path: Path | None) -> str:
    """A path as the file has it: relative to the directory if it lies there; empty: none was given."""
    if path is None:
        return ""
    absolute = path.absolute()
    base = directory.absolute()
    return str(absolute.relative_to(base) if absolute.is_relative_to(base) else absolute)


@cluster.command()
@click.argument("address")
@_dir_option
@click.option("--name", required=True, help="The member's name: a host name in small letters.")
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where it listens for other members.")
@click.option("--advertise", metavar="HOST:PORT", help="The address that the others use [default: that of --listen].")
@click.option("--amqp", metavar="HOST:PORT", help="Where its AMQP broker listens for clients [default: it has none].")
@click.option("--member", type=int, help="The member's id, never used before in this cluster [default: random].")
@click.option("--ca", type=PathText(), help="The certificate of the cluster's authority.")
@click.option("--cert", "certificate", type=PathText(), help="The member's certificate.")
@click.option("--key", type=PathText(), help="The key of the member's certificate.")
def join(
    address: str,
    directory: Path,
    name: str,
    listen: str,
    advertise: str | None,
    amqp: str | None,
    member: int | None,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
) -> None:
    """Make a member that joins a cluster.

    ADDRESS is that of any running member. It is asked for the cluster and its hosts, and the member's configuration is
    made in DIR. The member joins when it runs: as a standby first, and as a voter once it has all.
    """
    with _with_extra():
        from logstore.cluster import founding, newcomer
        from logstore.cluster.config import MemberFile

        random_id, uuid = founding.new_identity()
        wanted = MemberFile(
            name=name,
            member=random_id if member is None else member,
            cluster=uuid,
            listen=listen,
            advertise=advertise or "",
            amqp=amqp or "",
            join=(address,),
            ca=_path_in(directory, ca),
            cert=_path_in(directory, certificate),
            key=_path_in(directory, key),
        )
        made = newcomer.join(directory, wanted, is_id_given=member is not None)
    click.echo(
        f"member {made.file.name} (id {made.file.member}) in {directory}; hosts: {', '.join(made.hosts) or 'none'}"
    )
    click.echo(f"it joins when it runs: logstore cluster run --dir {shlex.quote(str(directory))}")


@cluster.command()
@click.argument("directory", metavar="DIR", type=PathText())
@click.argument("name")
@click.argument("addresses", metavar="[ADDRESS]...", nargs=-1)
@click.option(
    "--ca-dir",
    type=PathText(),
    help="The directory of the authority, ca.pem and ca.key, made if it has none [default: DIR].",
)
def cert(directory: Path, name: str, addresses: tuple[str, ...], ca_dir: Path | None) -> None:
    """Make a certificate for member NAME.

    It is made in DIR, and the cluster's authority, too, if there is none. ADDRESS is a further host name or IP address
    of the member, without a port. Each member needs ca.pem, NAME.pem and NAME.key. ca.key signs for every member: keep
    it where no member runs.
    """
    from logstore.cluster import certificates

    certificates.member_name(name)
    place = directory if ca_dir is None else ca_dir
    authority = certificates.Files(place / f"{AUTHORITY}.pem", place / f"{AUTHORITY}.key")
    if not authority.cert.exists() and not authority.key.exists():
        _tell("the authority", certificates.make_authority(place))
    _tell(f"member {name}", certificates.make_certificate(directory, authority, name, addresses))


def _tell(whose: str, files: Files) -> None:
    click.echo(f"{whose}: certificate {files.cert}, key {files.key}")


@cluster.command()
@_dir_option
@broker_options
@click.option(
    "--stop-timeout",
    type=click.FloatRange(0.1, 86_400),
    default=30.0,
    show_default=True,
    help="Seconds after SIGTERM when the process exits even if something hangs.",
)
@click.option("--verbose", "-v", is_flag=True, help="Log more (to stderr).")
def run(directory: Path, stop_timeout: float, verbose: bool, limits: dict[str, Any]) -> None:
    """Run a member until SIGTERM or Ctrl-C.

    Prints "ready: NAME listens on HOST:PORT, hosts: …" when the other members can connect. The log goes to stderr. If
    its configuration has an address for AMQP, it serves clients of the hosts that it leads. The options for messages
    and memory are those of this broker.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("logstore").setLevel(logging.DEBUG if verbose else logging.INFO)
    with _with_extra():
        from logstore.cluster import config, running
    if limits and not config.read(directory).amqp:
        flags = ", ".join(FLAGS[name] for name in limits)
        raise OptionError(
            f"{flags}: this member runs no broker; set amqp in {directory / config.FILE_NAME}, or leave the option out"
        )
    with Stopping(stop_timeout) as stopping, _with_extra():

        def opened() -> None:
            signal.signal(signal.SIGINT, _stop)
            stopping.is_serving = True

        try:
            running.run(directory, limits, opened=opened, ready=lambda line: print(line, flush=True))
        except _Stopped:
            pass
        else:
            logger.info("stopped: every copy is closed")


def _stop(_number: int, _frame: object) -> NoReturn:
    raise _Stopped


@cluster.command()
@_dir_option
@click.option("--watch", is_flag=True, help="Repeat each second until Ctrl-C; with --json one line each time.")
@json_option
def status(directory: Path, watch: bool, as_json: bool) -> None:
    """Show a member's hosts and connections.

    A running member is asked. If it does not run, its directory is read, and the output says so. What other members
    have acknowledged only the leader knows.
    """
    from logstore.terminal.members import status_lines

    with _with_extra():
        from logstore.cluster import running

    def show() -> None:
        document = running.status(directory)
        if as_json:
            print_json(document)
        else:
            print_lines([*status_lines(document, output_width()), *([""] if watch else [])])

    if watch:
        watched(
            show,
            lambda width, height: lines_that_fit(status_lines(running.status(directory), width), width, height),
            EVERY_S,
            as_json=as_json,
        )
    else:
        show()


@cluster.command()
@click.argument("host")
@click.argument("member")
@_dir_option
def transfer(host: str, member: str, directory: Path) -> None:
    """Hand HOST over to another member.

    MEMBER is a name or an id. The command is given where the leader of HOST runs. Publishing waits until the other
    member serves.
    """
    with _with_extra():
        from logstore.cluster import running

        done = running.ask(directory, "transfer", {"host": host, "member": member})
    leader = f"member {done['leader_name'] or done['leader']}"
    if member not in (done["leader_name"], str(done["leader"])):
        raise Failure(f"{leader} leads host {host} now: {member} did not take it over in time")
    click.echo(f"{leader} leads host {host}")


@cluster.command()
@click.argument("host")
@click.option("--segment-size", type=SIZE, help="Bytes of one segment of its log [default: 16MiB].")
@_dir_option
def add(host: str, segment_size: int | None, directory: Path) -> None:
    """Add a host to a running cluster.

    The member of DIR makes it and leads it; the other members join it by themselves, up to three as voters. All other
    members must run. Give one such command at a time.
    """
    with _with_extra():
        from logstore.cluster import running

        done = running.ask(directory, "add", {"host": host, "segment_size": segment_size})
    click.echo(f"host {host} is there, with {counted(done['voters'], 'voter')}")


@cluster.command()
@click.argument("host")
@click.argument("member")
@_dir_option
def remove(host: str, member: str, directory: Path) -> None:
    """Remove a member from HOST.

    MEMBER is a name or an id. Any running member of HOST takes the command. A member that leads hands over first. Its
    copy stays as it is, and takes part no longer.
    """
    with _with_extra():
        from logstore.cluster import running

        done = running.ask(directory, "remove", {"host": host, "member": member})
    click.echo(f"member {done['name'] or done['member']} has left host {host}")


@cluster.command()
@click.argument("host")
@click.option("--keep", is_flag=True, help="Put the old copy aside as kept-N, for 'logstore salvage'.")
@_dir_option
def rebuild(host: str, keep: bool, directory: Path) -> None:
    """Replace this member's copy of HOST by a fresh one.

    For a copy that is damaged, too old, gone, or refused by the other members. They remove this member, the copy is
    discarded, and the member joins anew: as a standby first, and as a voter once it has all. Nothing is discarded
    unless the others are a majority without it. The member may run or not. If it is interrupted, it goes on when the
    member runs, or by the same command.
    """
    with _with_extra():
        from logstore.cluster import running

        done = running.rebuild(directory, host, keep=keep)
    if done["kept"] is not None:
        click.echo(f"the old copy is kept: {done['kept']}")
    if done["is_complete"]:
        click.echo(f"host {host} has a fresh copy here, and this member takes part with it")
    else:
        click.echo(f"the old copy of host {host} is gone, and the fresh one is on its way: look with 'status'")


@cluster.command()
@click.argument("host")
@_dir_option
def reopen(host: str, directory: Path) -> None:
    """Open HOST again, whose copy here has failed.

    For a host that a running member has left out after an error of its disk, once the disk works. The other hosts of
    the member go on. A copy that has less than what this member had acknowledged is refused, and needs 'logstore
    cluster rebuild'. A host that has not failed stays as it is.
    """
    with _with_extra():
        from logstore.cluster import running

        done = running.ask(directory, "reopen", {"host": host})
    state = "has not failed here: nothing was done" if done["was_open"] else "is open again here, and catches up"
    click.echo(f"host {host} {state}")
    if done["problem"] is not None:
        click.echo(f"it waits, though: {done['problem']}")


@cluster.command()
@click.argument("host")
@click.argument("queue")
@click.argument("text")
@_dir_option
def publish(host: str, queue: str, text: str, directory: Path) -> None:
    """Publish one message, to try a cluster.

    TEXT goes to QUEUE of HOST, which is made if it is not there. The command is given where the leader of HOST runs,
    and returns when a majority has the message on its disks.
    """
    with _with_extra():
        from logstore.cluster import running

        done = running.ask(directory, "publish", {"host": host, "queue": queue, "text": text})
    click.echo(f"message {done['id']} is on queue {queue}, on the disks of a majority")


@cluster.command()
@click.option("--dir", "directory", type=PathText(), metavar="DIR", help="Keep the members here [default: nowhere].")
@click.option("--members", type=int, default=3, show_default=True, help="From 1 to 5.")
def demo(directory: Path | None, members: int) -> None:
    """Run a cluster on this machine, to try it.

    Each member is a process that listens on 127.0.0.1 and has a directory of its own. With --dir they are kept, and
    the same command starts them again. Ctrl-C ends them all.
    """
    with _with_extra():
        from logstore.cluster.demo import started
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as ends:
        place = (
            Path(ends.enter_context(TemporaryDirectory(prefix="logstore-cluster-"))) if directory is None else directory
        )
        cluster_demo = ends.enter_context(started(place, members, lambda line: print(line, flush=True)))
        cluster_demo.show()
        cluster_demo.watch()


@cluster.command()
@click.argument("host")
@click.option("--accept-loss", is_flag=True, help="Also if something is not known to be durable.")
@_dir_option
def detach(host: str, accept_loss: bool, directory: Path) -> None:
    """Make this member's copy of HOST a single store.

    This ends replication of HOST on this member: for a host of which no majority is left, or a cluster that is given
    up. The member must not run. It never takes part in HOST again, and the other members go on without it. Without
    --accept-loss, only if all that the copy has is known to be durable.
    """
    with _with_extra():
        from logstore.cluster import detaching

        done = detaching.detach(directory, host, accept_loss=accept_loss)
    if done.unknown_from:
        unknown = f"from index {done.unknown_from} on it is not known whether a majority had it"
        click.echo(f"kept up to index {done.index}; {unknown}")
    click.echo(f"host {host} is a single store now: {done.store}")
    click.echo(f"open it with: logstore serve {shlex.quote(str(done.store))}")
