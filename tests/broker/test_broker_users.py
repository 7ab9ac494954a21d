"""Users: who may log in, from where, and how passwords are kept."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pika
import pytest

from kit.patience import PATIENCE_S, wait_until
from logstore.broker import users as users_module
from logstore.broker.users import Users, check_password, hash_password, is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.live_broker import Broker


def test_a_hash_matches_only_its_password_and_is_salted() -> None:
    first, second = hash_password("secret"), hash_password("secret")
    assert first != second
    assert "secret" not in first
    assert check_password("secret", first)
    assert check_password("secret", second)
    assert not check_password("Secret", first)


def test_a_check_of_a_password_needs_16_mib(run_python: Callable[..., Any]) -> None:
    code = "from logstore.broker.users import hash_password; print(hash_password('secret'))"
    scheme, n, r, p, *_ = run_python(code).stdout.split("$")
    assert (scheme, p) == ("scrypt", "1")
    assert 128 * int(n) * int(r) == 16 << 20


@pytest.mark.parametrize("stored", ["", "secret", "scrypt$1$2", "md5$1$1$1$YQ==$YQ==", "scrypt$x$8$1$YQ==$YQ=="])
def test_a_damaged_hash_refuses_every_login(stored: str) -> None:
    assert not check_password("secret", stored)


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (("127.0.0.1", 1), True),
        (("127.8.8.8", 1), True),
        (("::1", 1, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        (("10.0.0.1", 1), False),
        (("::ffff:10.0.0.1", 1, 0, 0), False),
        (("fe80::1%eth0", 1, 0, 2), False),
        (None, False),
        ("", False),
    ],
)
def test_loopback_addresses_are_recognised(peer: Any, expected: bool) -> None:
    assert is_loopback(peer) is expected


def login(broker: Broker, users: Users, name: str, password: str, peer: Any = ("127.0.0.1", 1)) -> bool:
    return broker.call_async(lambda: users.refusal(name, password, peer)) is None


def test_guest_may_log_in_from_this_machine_only(broker: Broker) -> None:
    users = Users({})
    assert login(broker, users, "guest", "guest")
    assert not login(broker, users, "guest", "guest", ("192.0.2.1", 1))
    assert not login(broker, users, "guest", "other")


def test_a_removed_guest_stays_removed(broker: Broker) -> None:
    config: dict[str, str] = {}
    Users(config).remove("guest")
    assert not login(broker, Users(config), "guest", "guest")
    with pytest.raises(KeyError):
        Users(config).remove("guest")


def test_other_users_may_log_in_from_anywhere_and_a_new_password_replaces_the_old(broker: Broker) -> None:
    users = Users({})
    users.add("anna", "one")
    assert login(broker, users, "anna", "one", ("192.0.2.1", 1))
    users.add("anna", "two")
    assert not login(broker, users, "anna", "one")
    assert login(broker, users, "anna", "two")
    with pytest.raises(ValueError, match="name"):
        users.add("", "x")


@pytest.mark.parametrize("entry", ["", "[]", "{}", '{"hash": 5}', "null", "nonsense"])
def test_a_damaged_entry_refuses_every_login(broker: Broker, entry: str) -> None:
    users = Users({"broker.user.anna": entry, "broker.users": "1"})
    assert not login(broker, users, "anna", "")


def test_users_are_kept_over_a_restart(restart_broker: Callable[[], Broker]) -> None:
    broker = restart_broker()
    broker.call(lambda: broker.server.users.add("anna", "geheim ✓"))
    broker = restart_broker()
    credentials = pika.PlainCredentials("anna", "geheim ✓")
    assert broker.pika(credentials=credentials).is_open


def test_password_checks_do_not_block_others_and_a_right_password_is_remembered(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = broker.pika().channel()
    may_end = threading.Event()
    checked = []

    def check(password: str, stored: str) -> bool:
        checked.append(password)
        assert may_end.wait(PATIENCE_S)
        return check_password(password, stored)

    monkeypatch.setattr(users_module, "check_password", check)
    guessing = [broker.raw() for _ in range(10)]
    for number, client in enumerate(guessing):
        client.start("guest", f"wrong {number}")
    wait_until(lambda: checked, "the first check")
    for _ in range(20):
        channel.queue_declare("q")
    may_end.set()
    for client in guessing:
        client.expect_connection_close(403)
    for _ in range(10):
        broker.pika().close()
    assert sorted(checked) == [f"wrong {number}" for number in range(10)]
