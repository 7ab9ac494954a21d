"""The state of a cluster's member for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.terminal.output import facts_lines, size_text
from logstore.terminal.tables import folded_lines, printable, table_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

STATES = {
    "leads": "leads",
    "stands": "leads, and does not serve yet",
    "follows": "follows",
    "failed": "has left its group",
    "closed": "closed",
    "stopped": "does not run",
    "detached": "a single store: its replication has ended here",
}

_LOG = {"term": "term", "index": "index", "durable up to index": "durable_index"}


def status_lines(document: dict[str, Any], width: int) -> list[str]:
    """The document of ``cluster status --json`` as lines of at most this width."""
    lines = facts_lines(_facts(document), width)
    if not document["running"]:
        lines += folded_lines(
            "the member does not run: this is what its directory says; who leads, and what a majority has, only "
            "running members know",
            width,
        )
    for host in document["hosts"]:
        lines += ["", *facts_lines(_host_facts(host), width)]
        if host["members"]:
            peers = {peer["member"]: peer for peer in document["peers"]}
            rows = [_member_row(one, host, document["member"], peers) for one in host["members"]]
            columns = ["member", "id", "role", "acknowledged", "connection"]
            lines += table_lines(columns, rows, width=width, right=["id", "acknowledged"])
    if not document["hosts"]:
        lines += ["", "this member has no host"]
    return lines


def _facts(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "member", f"{document['name']} (id {document['member']}), cluster {document['cluster']}"
    others = f", others use {document['advertise']}" if document["advertise"] != document["listen"] else ""
    yield "address", f"{document['listen']}{others}"
    yield "process", f"{document['pid']}" if document["running"] else "none"


def _host_facts(host: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield f"host {host['host']}", STATES.get(host["state"], host["state"])
    if host["problem"]:
        yield "problem", host["problem"]
    if host["state"] in ("leads", "stands", "follows"):
        yield "leader", _leader(host)
    if host["term"] is not None:
        known = [f"{word} {host[key]}" for word, key in _LOG.items() if host[key] is not None]
        yield "log", ", ".join(known)
    if host["undurable_bytes"] is not None:
        yield "not durable yet", size_text(host["undurable_bytes"])
    if host["paced_by"] is not None:
        yield "paced", f"publishers wait for {host['paced_by_name'] or 'a member'} (id {host['paced_by']}), which lags"
    if host["stored"] is not None:
        stored = host["stored"]
        yield "copy", stored["copy"]
        if stored["end_lsn"] is not None:
            known = stored["known_durable_lsn"]
            durable = "" if known is None else f", known durable to LSN {known}"
            yield "on the disk", f"forced to LSN {stored['end_lsn']}{durable}"


def _leader(host: dict[str, Any]) -> str:
    if host["leader"] is None:
        return "none is known"
    return f"{host['leader_name'] or 'a member without a known name'} (id {host['leader']})"


def _member_row(
    one: dict[str, Any], host: dict[str, Any], me: int, peers: dict[int, dict[str, Any]]
) -> tuple[object, ...]:
    role = "voter" if one["voter"] else "standby"
    if one["member"] == host["leader"]:
        role += ", leads"
    if one["member"] == me:
        connection = "this member"
    elif one["member"] not in peers:
        connection = "none: its address is unknown here"
    else:
        peer = peers[one["member"]]
        connection = "connected" if peer["connected"] else f"none: {peer['reason']}"
    acknowledged = "-" if one["acknowledged"] is None else one["acknowledged"]
    return one["name"] or "-", one["member"], role, acknowledged, printable(connection)
