"""How the libraries of table formats reach an export in an object store: with what its own file system was given.

The file system of pyarrow knows the endpoint, the region, and the credentials of an address. What it was not given, it
takes from the environment (``AWS_*``) or a profile, and so do these libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from logstore.core.extras import require
from logstore.errors import OptionError

if TYPE_CHECKING:
    from logstore.export.places import RemotePlace

__all__ = ["delta_storage", "iceberg_properties", "s3_address"]


def delta_storage(place: RemotePlace) -> tuple[str, dict[str, str]]:
    """The address of the place for ``deltalake``, and its ``storage_options``.

    Raises ``OptionError`` unless the place is in a file system of S3 that ``deltalake`` can reach as pyarrow does.
    """
    _, root = place.system
    given = _given(place, "Delta")
    if given.get("role_arn"):
        raise OptionError(
            f"the file system of {place} assumes the role {given['role_arn']}, which Delta tables cannot: give it the "
            "credentials of the role instead"
        )
    options = {"AWS_REGION": given["region"], "AWS_CONDITIONAL_PUT": "etag"}
    names = {"access_key": "ACCESS_KEY_ID", "secret_key": "SECRET_ACCESS_KEY", "session_token": "SESSION_TOKEN"}
    options |= {f"AWS_{name}": given[key] for key, name in names.items() if given.get(key)}
    if given.get("anonymous"):
        options["AWS_SKIP_SIGNATURE"] = "true"
    if endpoint := given["endpoint_override"]:
        scheme, _, host = endpoint.partition("://")
        if given.get("force_virtual_addressing"):
            bucket = root.partition("/")[0]
            endpoint = f"{scheme}://{bucket}.{host}"
            options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "true"
        options |= {"AWS_ENDPOINT_URL": endpoint} | ({"AWS_ALLOW_HTTP": "true"} if scheme == "http" else {})
    return f"s3://{quote(root)}", options


def iceberg_properties(place: RemotePlace) -> dict[str, str]:
    """The properties with which a catalog of ``pyiceberg`` reaches the place.

    Raises ``OptionError`` unless the place is in a file system of S3.
    """
    given = _given(place, "Iceberg")
    names = {"endpoint_override": "endpoint", "region": "region", "access_key": "access-key-id"}
    names |= {"secret_key": "secret-access-key", "session_token": "session-token", "role_arn": "role-arn"}
    names |= {"session_name": "role-session-name"}
    properties = {f"s3.{name}": given[key] for key, name in names.items() if given.get(key)}
    flags = {"anonymous": "anonymous", "force_virtual_addressing": "force-virtual-addressing"}
    return properties | {f"s3.{name}": "true" for key, name in flags.items() if given.get(key)}


def s3_address(place: RemotePlace) -> str:
    """The address of the place as the metadata of tables has it: names of S3 are not quoted there."""
    return f"s3://{place.system[1]}"


def _given(place: RemotePlace, tables: str) -> dict[str, Any]:
    """The arguments of the file system, with the region that it uses, and the endpoint as a URL."""
    system, _ = place.system
    if not isinstance(system, require("arrow", "pyarrow.fs").S3FileSystem):
        raise OptionError(
            f"the target is {place}, but {tables} tables need a local directory or S3: leave {tables.lower()} out, or "
            "choose another target"
        )
    given = dict(system.__reduce__()[1][0])
    endpoint = given.get("endpoint_override") or ""
    if endpoint and "://" not in endpoint:
        endpoint = f"{given.get('scheme') or 'https'}://{endpoint}"
    return given | {"region": system.region, "endpoint_override": endpoint}
