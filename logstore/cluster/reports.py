"""The report that ``logstore cluster status`` shows of a member, running or not: a JSON document with the same keys.

LSNs, indexes and ids are exact numbers. What is not known is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from logstore.cluster import config
from logstore.cluster.directory import hosts, read_vote
from logstore.errors import StoreError
from logstore.inspect import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.cluster.config import MemberFile
    from logstore.cluster.group import Group
    from logstore.cluster.member_loop import MemberLoop

Document = dict[str, Any]

HOST_KEYS: Final = (
    "host",
    "uuid",
    "state",
    "problem",
    "term",
    "leader",
    "leader_name",
    "index",
    "durable_index",
    "undurable_bytes",
    "paced_by",
    "paced_by_name",
    "members",
    "stored",
)
"""Of each host, in this order."""


def member_keys(directory: Path, file: MemberFile) -> Document:
    """The keys whose values the configuration gives."""
    return {
        "directory": str(directory),
        "cluster": file.cluster.hex(),
        "member": file.member,
        "name": file.name,
        "listen": file.listen,
        "advertise": file.advertise,
    }


# ---- a running member, on its loop -----------------------------------------------------------------------------------


def running(member: MemberLoop) -> Document:
    """The hosts, and the connections to the other members."""
    names = {member.member: member.config.name} | {peer: name for peer, (name, _) in member.peers.items()}
    reached = [_peer(member, peer, *found) for peer, found in sorted(member.peers.items())]
    groups = sorted(member.all_groups(), key=lambda group: group.name)
    return {"hosts": [_host(member, group, names) for group in groups], "peers": reached}


def _peer(member: MemberLoop, peer: int, name: str, address: str) -> Document:
    reason = member.why_not(peer)
    return {"member": peer, "name": name, "address": address, "connected": not reason, "reason": reason or None}


def _host(member: MemberLoop, group: Group, names: dict[int, str]) -> Document:
    standing = group.standing()
    leads = standing.state == "leads"
    return {
        "host": group.name,
        "uuid": group.uuid.hex() or None,
        "state": standing.state,
        "problem": standing.problem or None,
        "term": standing.term,
        "leader": standing.leader or None,
        "leader_name": names.get(standing.leader),
        "index": standing.index,
        "durable_index": standing.durable_index,
        "undurable_bytes": group.undurable_bytes() if leads else None,
        "paced_by": standing.paced_by or None,
        "paced_by_name": names.get(standing.paced_by),
        "members": [
            {
                "member": one.member,
                "name": one.name or None,
                "voter": one.voter,
                "acknowledged": None
                if not leads
                else standing.index
                if one.member == member.member
                else one.acknowledged,
            }
            for one in member.seats(group)
        ],
        "stored": None,
    }


# ---- a member that does not run --------------------------------------------------------------------------------------


def stopped(directory: Path) -> Document:
    """The same keys for a member that does not run, read from its directory; nothing is changed.

    ``stored`` has what the disk says.
    """
    return {"hosts": [_stopped_host(path) for path in hosts(directory)], "peers": []}


def _stopped_host(path: Path) -> Document:
    document: Document = dict.fromkeys(HOST_KEYS)
    document |= {"host": path.name, "state": "stopped", "members": []}
    vote = read_vote(path)
    if vote is None:
        return document | {"problem": f"{path / 'VOTE'} cannot be read"}
    copy = path / f"copy-{vote.copy}"
    document |= {
        "uuid": vote.uuid.hex,
        "term": vote.term,
        "state": "detached" if vote.detached else "stopped",
        "stored": {
            "copy": str(copy),
            "voted_for": vote.voted_for or None,
            "rebuild": vote.rebuild,
            "floor_index": vote.floor_index or None,
            "end_lsn": None,
            "known_durable_lsn": None,
        },
    }
    try:
        with Reader(copy, undurable=True) as reader:
            info = reader.info
    except StoreError as error:
        return document | {"problem": error.message}
    document["index"] = info.index or None
    document["stored"] |= {"end_lsn": info.end_lsn, "known_durable_lsn": info.known_durable_lsn or None}
    return document


def at_rest(directory: Path) -> Document:
    """The whole document of a member that does not run."""
    return {**member_keys(directory, config.read(directory)), "running": False, "pid": None, **stopped(directory)}
