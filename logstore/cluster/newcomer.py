"""Makes the directory of a member that joins a cluster: one member is asked for the cluster's UUID and hosts.

The member itself joins when it runs (joining.py), so nothing has changed in the cluster when this returns.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from logstore.cluster.directory import locked
from logstore.cluster.founding import judge_new, make_directory, same_configuration
from logstore.cluster.joining import Join, ask
from logstore.cluster.transport import NO_CLUSTER, Me, Nobody, Transport, new_event_loop
from logstore.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.cluster.addresses import Tls
    from logstore.cluster.config import MemberFile
    from logstore.cluster.joining import Joined
    from logstore.cluster.transport import Handler


@dataclass(frozen=True, slots=True)
class Newcomer:
    """What was made."""

    file: MemberFile
    hosts: list[str]
    """That the cluster has now."""


def join(directory: Path, wanted: MemberFile, *, is_id_given: bool = False) -> Newcomer:
    """Makes ``cluster.toml`` for a member that asks the addresses of ``wanted.join``, of which the first is asked now.

    The cluster's UUID in ``wanted`` does not count. The same call finds what is there. Raises ``OptionError``,
    and ``StoreError`` if the member does not answer; then nothing was made.
    """
    directory = directory.absolute()
    tls = wanted.tls(directory)
    judge_new(directory)
    cluster, answer = _ask(wanted, tls)
    for member, text in answer.members:
        if member == wanted.member or text.partition("@")[0] == wanted.name:
            raise OptionError(
                f"the cluster has a member {text} with the id {member} already: choose another name or id"
            )
    make_directory(directory)
    with locked(directory):
        file = same_configuration(directory, replace(wanted, cluster=cluster), is_id_given=is_id_given)
    return Newcomer(file, [name for _, name in answer.hosts])


def _ask(wanted: MemberFile, tls: Tls | None) -> tuple[bytes, Joined]:
    async def work() -> tuple[bytes, Joined]:
        me = Me(cluster=NO_CLUSTER, member=wanted.member, name=wanted.name)
        transport = Transport(me, cast("Handler", Nobody()), tls=tls)
        try:
            return await ask(transport, wanted.join[0], Join(wanted.advertise, []))
        finally:
            await transport.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work())
