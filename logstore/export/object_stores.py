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

__all__ = ["delta_storage"]


def delta_storage(place: RemotePlace) -> tuple[str, dict[str, str]]:
    """The address of the place for ``deltalake``, and its ``storage_options``.

    Raises ``OptionError`` unless the place is in a file system of S3 that ``deltalake`` can reach as pyarrow does.
    """
    system, root = place.system
    if not isinstance(system, require("arrow", "pyarrow.fs").S3FileSystem):
        raise OptionError(
            f"the target is {place}, but Delta tables need a local directory or S3, where a commit of the log cannot "
            "replace another one: leave delta out, or choose another target"
        )
    given = system.__reduce__()[1][0]  # its arguments
    if given.get("role_arn"):
        raise OptionError(
            f"the file system of {place} assumes the role {given['role_arn']}, which Delta tables cannot: give it the "
            "credentials of the role instead"
        )
    options = {"AWS_REGION": system.region, "AWS_CONDITIONAL_PUT": "etag"}
    names = {"access_key": "ACCESS_KEY_ID", "secret_key": "SECRET_ACCESS_KEY", "session_token": "SESSION_TOKEN"}
    options |= {f"AWS_{name}": given[key] for key, name in names.items() if given.get(key)}
    if given.get("anonymous"):
        options["AWS_SKIP_SIGNATURE"] = "true"
    if endpoint := given.get("endpoint_override"):
        options |= _endpoint(endpoint, given, root.partition("/")[0])
    return f"s3://{quote(root)}", options


def _endpoint(endpoint: str, given: dict[str, Any], bucket: str) -> dict[str, str]:
    scheme, mark, host = endpoint.rpartition("://")
    scheme = scheme if mark else given.get("scheme") or "https"
    options = {"AWS_ALLOW_HTTP": "true"} if scheme == "http" else {}
    if given.get("force_virtual_addressing"):
        return options | {"AWS_ENDPOINT_URL": f"{scheme}://{bucket}.{host}", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}
    return options | {"AWS_ENDPOINT_URL": f"{scheme}://{host}"}
