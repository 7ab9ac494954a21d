"""The users of a member's broker: its own, in ``catalog.sqlite`` of its directory, also while it does not run."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from logstore.broker.user_changes import change_user_in
from logstore.catalog.backends import FILE_NAME
from logstore.catalog.catalog import Catalog
from logstore.cluster import config
from logstore.cluster.directory import hosts, locked, takes_part
from logstore.core.host_directory import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ROOT_HOST = "main"
"""The cluster's host that is the virtual host ``/``."""


def vhost_of(host: str) -> str:
    """The virtual host's name of a host of the cluster."""
    return ROOT if host == ROOT_HOST else host


def host_of(vhost: str) -> str:
    """The cluster's host that a virtual host is."""
    return ROOT_HOST if vhost == ROOT else vhost


def open_users(directory: Path, cluster: bytes) -> Catalog:
    """The catalog that has the member's users, made if there is none. Raises ``StoreError``."""
    return Catalog.create(directory, store_uuid=cluster)


def read_users(directory: Path) -> Mapping[str, str]:
    """The configuration that has the users; empty: no broker has run, and no user was made. Raises ``StoreError``."""
    file = config.read(directory)
    if not (directory / FILE_NAME).exists():
        return {}
    with closing(Catalog.open(directory, store_uuid=file.cluster, read_only=True)) as users:
        return dict(users.config)


def change(users: Catalog, directory: Path, verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """See ``change_user_in``."""

    def has_host(name: str) -> bool:
        return any(vhost_of(path.name) == name for path in hosts(directory) if takes_part(path))

    return change_user_in(users.config, has_host, verb, arguments)


def change_at_rest(directory: Path, verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same while the member does not run. Raises ``StoreLocked`` if it does."""
    file = config.read(directory)
    with locked(directory), closing(open_users(directory, file.cluster)) as users:
        return change(users, directory, verb, arguments)
