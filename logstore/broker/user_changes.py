"""Changes of the users by commands, through a running broker or in a closed store: each is checked and made here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from logstore.broker.host_list import HostList, missing_text
from logstore.broker.users import Users
from logstore.core.host_directory import ROOT
from logstore.errors import OptionError
from logstore.store.control import SECRET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping

    from logstore import MessageStore

USER_CHANGES: Final = ("add", "password", "permit", "forbid", "remove")


def change_user(store: MessageStore, verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Make one of the `USER_CHANGES` in the store of `/`; see `change_user_in`."""
    present = HostList(store)
    return change_user_in(store.config, lambda host: host == ROOT or present.row(host) is not None, verb, arguments)


def change_user_in(
    config: MutableMapping[str, str], has_host: Callable[[str], bool], verb: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Make one of the `USER_CHANGES` in this configuration. Returns the user's hosts then, or why it is `refused`.

    A password comes as its hash, so that it is in no request. It may wait for the disk.
    """
    users = Users(config)
    name = _text(arguments, "user")
    row = users.row(name)
    if verb == "add":
        if row is not None:
            return {"refused": f"the user {name!r} exists already: 'logstore user DIR password' changes the password"}
        hosts = _texts(arguments, "hosts")
        missing = _missing(has_host, hosts)
        if missing is None:
            only_here = arguments.get("loopback_only") is True
            users.write(name, _text(arguments, SECRET), loopback_only=only_here, hosts=hosts)
        return {"hosts": hosts} if missing is None else {"refused": missing}
    if row is None:
        return {"refused": f"there is no user {name!r}: 'logstore user DIR list' shows them"}
    kept = set(row.hosts)
    if verb == "password":
        users.change(name, hash=_text(arguments, SECRET))
    elif verb == "remove":
        users.remove(name)
        kept.clear()
    elif verb == "forbid":
        kept.discard(_text(arguments, "host"))
        users.change(name, hosts=sorted(kept))
    else:
        host = _text(arguments, "host")
        missing = _missing(has_host, [host])
        if missing is not None:
            return {"refused": missing}
        kept.add(host)
        users.change(name, hosts=sorted(kept))
    return {"hosts": sorted(kept)}


def _missing(has_host: Callable[[str], bool], hosts: Iterable[str]) -> str | None:
    """A text that names the first of these hosts that is not there; None if all are."""
    return next((missing_text(host) for host in hosts if not has_host(host)), None)


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise OptionError(f"{name} is a text of at least one character, not {value!r}")
    return value


def _texts(arguments: Mapping[str, Any], name: str) -> list[str]:
    value = arguments.get(name)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise OptionError(f"{name} is a list of texts, not {value!r}")
    return sorted(set(value))
