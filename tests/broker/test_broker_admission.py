"""Who gets in when many are silent in their handshake, and whose time runs."""

from __future__ import annotations

import errno
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.amqp_client import PROTOCOL_HEADER, RawClient
from kit.patience import PATIENCE_S, wait_until
from logstore.broker import listener as listener_module
from logstore.broker import users as users_module
from logstore.broker.users import check_password

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit.live_broker import Broker


pytestmark = pytest.mark.direct_only("clients of a relaying member log in there")


@pytest.fixture
def may_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Checks of passwords end when this is set."""
    made = threading.Event()

    def check(password: str, stored: str) -> bool:
        assert made.wait(PATIENCE_S)
        return check_password(password, stored)

    monkeypatch.setattr(users_module, "check_password", check)
    yield made
    made.set()


def greeted(broker: Broker) -> RawClient:
    """A client that has sent the protocol header, and nothing more."""
    client = broker.raw()
    client.send_bytes(PROTOCOL_HEADER)
    client.expect(commands.Connection.Start)
    return client


def log_in(client: RawClient) -> None:
    response = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
    client.send(0, response)
    client.expect(commands.Connection.Tune)


def closed_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "in its handshake" in each.getMessage()]


def test_a_newcomer_takes_the_place_of_the_client_that_has_been_silent_longest(
    start_broker: Callable[..., Broker], caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_broker(handshakes_max=3)
    first, second, third = (greeted(broker) for _ in range(3))
    log_in(first)  # now the second one is silent longest
    newcomer = broker.raw().open()
    second.expect_end()
    another = broker.raw()  # the newcomer is logged in, and has left its place
    another.send_bytes(PROTOCOL_HEADER)
    another.expect(commands.Connection.Start)
    broker.raw().open()
    third.expect_end()
    first.send(0, commands.Connection.TuneOk(0, 0, 0), commands.Connection.Open())
    first.expect(commands.Connection.OpenOk)
    newcomer.declare("q")
    lines = closed_lines(caplog)
    assert len(lines) == 1, "they are not logged one by one"
    assert "and 0 before it" in lines[0]


def test_a_newcomer_is_served_while_a_hundred_times_the_limit_are_silent(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(handshakes_max=4)
    silent = [broker.raw() for _ in range(400)]
    broker.raw().open().declare("q")
    assert broker.call(lambda: len(broker.server.admission.handshakes)) <= 4
    for each in silent:
        each.socket.close()
    broker.wait_for_connections(1)


def test_a_refused_client_that_does_not_answer_makes_room_first(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(handshakes_max=2)
    waiting = greeted(broker)
    refused = broker.raw()
    refused.start("guest", "wrong")
    assert "ACCESS_REFUSED" in refused.expect(commands.Connection.Close).reply_text
    broker.raw().open()
    refused.expect_end()
    log_in(waiting)


def test_the_time_that_a_check_takes_is_not_the_clients(
    start_broker: Callable[..., Broker], may_end: threading.Event
) -> None:
    broker = start_broker(handshake_s=1)
    client = broker.raw()
    client.start()
    handshakes = broker.server.admission.handshakes
    wait_until(lambda: broker.call(lambda: len(handshakes._served)) == 1, "its check")
    silent = greeted(broker)
    silent.expect_end()  # its time is over, and so would that of the other be
    may_end.set()
    client.expect(commands.Connection.Tune)
    client.expect_end()  # what is left of its time runs again


def test_an_answer_that_is_in_the_socket_when_the_time_is_over_counts(broker: Broker) -> None:
    client = greeted(broker)
    log_in(client)
    handshakes = broker.server.admission.handshakes

    def late(*values: Any) -> None:
        """The timer fires in a turn of the loop before it looks at the socket."""
        client.send(0, *values)
        [(connection, allowance)] = handshakes._allowances.items()
        handshakes._expired(connection, allowance)

    broker.call(lambda: late(commands.Connection.TuneOk(0, 0, 0)))
    client.send(0, commands.Connection.Open())
    client.expect(commands.Connection.OpenOk)
    client = greeted(broker)
    broker.call(late)
    client.expect_end()


def test_a_login_that_waits_for_its_check_is_closed_for_a_newcomer_only_if_nobody_is_silent(
    start_broker: Callable[..., Broker], may_end: threading.Event
) -> None:
    broker = start_broker(handshakes_max=2)
    older, newer = broker.raw(), broker.raw()
    older.start()
    wait_until(lambda: broker.call(lambda: len(broker.server.admission.handshakes._served)) == 1, "its check")
    newer.send_bytes(PROTOCOL_HEADER)
    newer.expect(commands.Connection.Start)
    third = greeted(broker)
    newer.expect_end()
    third.send(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0wrong", "en_US"))
    wait_until(lambda: broker.call(lambda: len(broker.server.admission.handshakes._served)) == 2, "both checks")
    newcomer = greeted(broker)
    third.expect_end()
    may_end.set()
    older.expect(commands.Connection.Tune)
    log_in(newcomer)


def test_a_login_beyond_the_share_of_its_address_is_530(
    start_broker: Callable[..., Broker], may_end: threading.Event
) -> None:
    broker = start_broker(password_checks_max=1)
    waiting = [broker.raw(), broker.raw()]
    for number, client in enumerate(waiting):
        client.start("guest", f"wrong {number}")
        wait_until(
            lambda number=number: broker.call(lambda: len(broker.server.users._checks._checks)) == number + 1,
            "its check",
        )
    third = broker.raw()
    third.start("guest", "wrong 3")
    text = third.expect_connection_close(530)
    assert text.endswith("1 password from 127.0.0.1 waiting for a check: try again later")
    may_end.set()
    for client in waiting:
        client.expect_connection_close(403)


def test_a_login_that_is_closed_for_a_newcomer_before_its_check_costs_no_check(
    start_broker: Callable[..., Broker], may_end: threading.Event
) -> None:
    broker = start_broker(handshakes_max=2)
    first = broker.raw()
    first.start("guest", "wrong")
    checks = broker.server.users._checks
    wait_until(lambda: broker.call(lambda: checks._running), "the first check")
    gone = broker.raw()
    gone.start("guest", "other")
    wait_until(lambda: broker.call(lambda: len(checks._checks)) == 2, "the second check")
    newcomer = greeted(broker)
    gone.expect_end()
    wait_until(lambda: broker.call(lambda: len(checks._checks)) == 1, "nobody waits for the second check")
    may_end.set()
    first.expect_connection_close(403)
    log_in(newcomer)


def test_300_logins_of_one_user_at_once_are_one_check(
    start_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    may_end = threading.Event()

    def check(password: str, stored: str) -> bool:
        checked.append(password)
        assert may_end.wait(PATIENCE_S)
        return check_password(password, stored)

    monkeypatch.setattr(users_module, "check_password", check)
    broker = start_broker(handshake_s=30)
    clients = [broker.raw() for _ in range(300)]
    for client in clients:
        client.start()
    handshakes = broker.server.admission.handshakes
    wait_until(lambda: broker.call(lambda: len(handshakes._served)) == 300, "all wait")
    may_end.set()
    for client in clients:
        client.expect(commands.Connection.Tune)
    assert checked == ["guest"]


def test_after_an_accept_that_the_system_refused_clients_are_accepted_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "ACCEPT_AGAIN_S", 0.01)
    listener = broker.server._listener
    assert listener is not None

    class Full:  # a socket that cannot accept
        def accept(self) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

    full: Any = Full()
    with caplog.at_level(logging.WARNING):
        broker.call(lambda: listener._accept_some(full))
    assert "no client can be accepted for 0.01 s: Too many open files" in caplog.text
    broker.raw().open().declare("q")
