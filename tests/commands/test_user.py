"""``logstore user``: who may log in and open which host, through a broker and in a closed store."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pika
import pytest

import logstore
from kit.command import COMMAND, fine, refused, run, told
from kit.patience import PATIENCE_S
from kit.serve_process import ServeProcess
from kit.stores import SMALL_SEGMENT
from logstore.broker.users import Users

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    logstore.open(tmp_path / "DIR", segment_size=SMALL_SEGMENT).close()
    fine("vhost", tmp_path / "DIR", "add", "shop", "--segment-size", "512K")
    return tmp_path / "DIR"


@pytest.fixture
def served(path: Path) -> Iterator[ServeProcess]:
    broker = ServeProcess(path)
    yield broker
    broker.kill()


@pytest.fixture(params=["closed", "served"])
def either(path: Path, request: pytest.FixtureRequest) -> Path:
    if request.param == "served":
        request.getfixturevalue("served")
    return path


def users_of(path: Path) -> dict[str, Any]:
    return {one["name"]: (one["hosts"], one["loopback_only"]) for one in told("user", path, "list")["users"]}


def refusal(broker: ServeProcess, name: str, password: str, host: str) -> str | None:
    """Why the broker refuses a login; None: it does not."""
    try:
        pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1", broker.port, virtual_host=host, credentials=pika.PlainCredentials(name, password)
            )
        ).close()
    except pika.exceptions.AMQPConnectionError as error:
        return repr(error).replace("\\", "")  # without escapes of quotes
    return None


def test_a_user_may_open_the_root_unless_the_command_names_hosts(either: Path) -> None:
    fine("user", either, "add", "anna", text="secret\n")
    fine("user", either, "add", "bob", "--permit", "shop", "--loopback-only", text="secret\n")
    assert users_of(either) == {"guest": (["/"], True), "anna": (["/"], False), "bob": (["shop"], True)}


def test_permissions_and_users_are_changed_one_by_one(either: Path) -> None:
    fine("user", either, "add", "anna", text="secret\n")
    assert told("user", either, "permit", "anna", "shop")["hosts"] == ["/", "shop"]
    assert told("user", either, "permit", "anna", "shop")["hosts"] == ["/", "shop"]
    assert told("user", either, "forbid", "anna", "/")["hosts"] == ["shop"]
    fine("user", either, "password", "anna", text="another\n")
    assert users_of(either)["anna"] == (["shop"], False)
    assert told("user", either, "forbid", "anna", "shop")["hosts"] == []
    fine("user", either, "remove", "anna")
    assert "anna" not in users_of(either)


def test_mistakes_are_refused_and_change_nothing(either: Path) -> None:
    fine("user", either, "add", "anna", text="secret\n")
    before = users_of(either)
    assert "exists already" in refused(1, "user", either, "add", "anna", text="x\n")
    assert "no virtual host 'nowhere'" in refused(1, "user", either, "permit", "anna", "nowhere")
    assert "no virtual host 'nowhere'" in refused(1, "user", either, "add", "bob", "--permit", "nowhere", text="x\n")
    for verb in (("permit", "carl", "/"), ("forbid", "carl", "/"), ("remove", "carl")):
        assert "there is no user 'carl'" in refused(1, "user", either, *verb)
    assert "there is no user 'carl'" in refused(1, "user", either, "password", "carl", text="x\n")
    assert users_of(either) == before


@pytest.mark.parametrize("text", ["", "\n", "x" * 1025 + "\n"])
def test_no_password_and_one_that_is_too_long_are_misuse(path: Path, text: str) -> None:
    refused(2, "user", path, "add", "anna", text=text)


def test_a_password_that_is_no_text_is_misuse_without_a_traceback(path: Path) -> None:
    line = [*COMMAND, "user", str(path), "add", "anna"]
    done = subprocess.run(line, input=b"\xff\xfe\n", capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_a_change_holds_for_the_next_connection(path: Path, served: ServeProcess) -> None:
    fine("user", path, "add", "anna", text="secret\n")
    assert refusal(served, "anna", "secret", "/") is None
    for host, text in (("shop", "access to vhost 'shop' refused for user 'anna'"), ("none", "vhost none not found")):
        told_why = refusal(served, "anna", "secret", host)
        assert told_why is not None
        assert "530" in told_why
        assert text in told_why
    fine("user", path, "permit", "anna", "shop")
    assert refusal(served, "anna", "secret", "shop") is None
    fine("user", path, "password", "anna", text="another\n")
    assert refusal(served, "anna", "secret", "shop") is not None
    assert refusal(served, "anna", "another", "shop") is None
    fine("user", path, "remove", "anna")
    assert refusal(served, "anna", "another", "shop") is not None


def test_an_open_connection_stays_when_its_user_is_forbidden(path: Path, served: ServeProcess) -> None:
    channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", served.port)).channel()
    fine("user", path, "forbid", "guest", "/")
    channel.queue_declare("q")
    assert "access to vhost '/' refused for user 'guest'" in str(refusal(served, "guest", "guest", "/"))


def test_a_user_of_an_earlier_version_may_open_the_root(path: Path) -> None:
    with logstore.open(path) as store:
        Users(store.config).add("anna", "secret")
        entry = json.loads(store.config["broker.user.anna"])
        del entry["hosts"]
        store.config["broker.user.anna"] = json.dumps(entry)
    assert users_of(path)["anna"] == (["/"], False)


@pytest.mark.parametrize("entry", ["", "no json", "[]", '{"hosts": "shop"}', '{"hosts": null}'])
def test_a_damaged_entry_permits_no_host_but_the_root_at_most(entry: str) -> None:
    users = Users({"broker.users": "1", "broker.user.anna": entry})
    assert not users.may_open("anna", "shop")


def test_no_password_is_in_the_log_of_the_broker_or_in_the_catalog(path: Path) -> None:
    broker = ServeProcess(path, options=["--verbose"])
    try:
        fine("user", path, "add", "anna", text="geheim-4711\n")
        refused(1, "user", path, "add", "anna", text="geheim-4711\n")
        log = broker.errors.read_text()
        assert "user.add 'anna'" in log
        assert "geheim-4711" not in log
        assert "scrypt" not in log
    finally:
        broker.kill()
    assert all(b"geheim-4711" not in file.read_bytes() for file in path.rglob("*") if file.is_file())


def test_the_users_of_a_store_without_a_broker_yet_are_none(tmp_path: Path) -> None:
    logstore.open(tmp_path / "new", segment_size=SMALL_SEGMENT).close()
    assert "the first start of a broker makes the user guest" in fine("user", tmp_path / "new")
    assert run("user", tmp_path / "nowhere").returncode == 3
