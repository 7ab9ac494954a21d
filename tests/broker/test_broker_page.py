"""docs/broker.md says what the broker does: each row of its tables is compared with a running broker."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from kit.amqp_client import RawClient, raw_frame
from kit.live_broker import Broker, Clients, open_store
from kit.patience import PATIENCE_S
from kit.stores import ROOT
from logstore.broker import Limits, fields
from logstore.broker.arguments import QueueArguments
from logstore.broker.exchanges import EXCHANGE_TYPES, PREDECLARED
from logstore.broker.handshake import SERVER_PROPERTIES
from logstore.broker.holdings import CLIENT_BYTES_FREE
from logstore.broker.memory import CHANNEL_BYTES, CONNECTION_BYTES, CONSUMER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = (ROOT / "docs" / "broker.md").read_text("utf-8")


def table(heading: str) -> dict[str, list[str]]:
    """The rows of the table below a heading: the first cell without quotes, and the other cells."""
    section = re.split(rf"^#+ {heading}\n", PAGE, maxsplit=1, flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", section, re.MULTILINE)
    ]
    found = {first.replace("`", ""): rest for first, *rest in rows[2:]}
    assert len(found) == len(rows) - 2, "two rows of one name"
    return found


METHODS, EXCHANGES, ARGUMENTS = table("Methods"), table("Exchanges"), table("Queues")
PROPERTIES, CAPABILITIES, LIMITS = table("Message properties"), table("Capabilities"), table("Limits")
REFUSALS = table("What it refuses")


def scope_of_served(**_: Any) -> Any:
    """The tests of a trio share the trio anyway, and each gives it back."""
    return "function" if os.environ.get("LOGSTORE_TEST_TRIO") else "module"


@pytest.fixture(scope=scope_of_served)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, way: str) -> Iterator[Clients]:
    """A broker with the queue orders and the exchanges shop and inside."""
    if way == "trio":
        broker = request.getfixturevalue("broker")
    else:
        broker = request.getfixturevalue("broker_class")(open_store(tmp_path_factory.mktemp("page") / "store"))
    client = broker.raw().open()
    client.declare("orders", durable=True)
    for name, internal in (("shop", False), ("inside", True)):
        client.send(1, commands.Exchange.Declare(exchange=name, durable=True, internal=internal))
        client.expect(commands.Exchange.DeclareOk)
    yield broker
    if way != "trio":
        broker.stop()
        broker.store.close()


@pytest.fixture
def client(served: Any) -> Iterator[RawClient]:
    """A new connection, the only one besides that of the fixture above."""
    with served.raw() as made:
        yield made
    served.wait_for_connections(1)


def kebab(name: str) -> str:
    """`Basic.RecoverAsync` as `basic.recover-async`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


BY_NAME = {kebab(method.name): method for method in commands.INDEX_MAPPING.values()}


def answer_of(client: RawClient, method: str) -> str:
    """The next frame in the words of the page; `none` if it answers the probe behind the method."""
    _, value = client.receive()
    if isinstance(value, commands.Channel.Close):
        return str(value.reply_code)
    if isinstance(value, commands.Connection.Close):
        return f"{value.reply_code}, connection"
    name = kebab(value.name)
    return "none" if name == "basic.qos-ok" and method != "basic.qos" else name.partition(".")[2]


# ---- Methods

ARGUMENTS_OF = {
    "channel.flow": {"active": True},
    "exchange.declare": {"exchange": "new"},
    "exchange.delete": {"exchange": "new"},
    "exchange.bind": {"destination": "shop", "source": "shop"},
    "exchange.unbind": {"destination": "shop", "source": "shop"},
    "queue.declare": {"queue": "new"},
    "queue.bind": {"queue": "orders", "exchange": "shop", "routing_key": "k"},
    "queue.unbind": {"queue": "orders", "exchange": "shop", "routing_key": "k"},
    "queue.purge": {"queue": "orders"},
    "queue.delete": {"queue": "new"},
    "basic.consume": {"queue": "orders"},
    "basic.cancel": {"consumer_tag": "c"},
    "basic.cancel-ok": {"consumer_tag": "c"},
    "basic.get": {"queue": "orders"},
    "basic.ack": {"delivery_tag": 0, "multiple": True},
    "basic.nack": {"delivery_tag": 0, "multiple": True},
    "basic.recover": {"requeue": True},
    "basic.recover-async": {"requeue": True},
    "connection.secure-ok": {"response": "x"},
    "connection.update-secret": {"new_secret": "x", "reason": "y"},
}
PROBE = commands.Basic.Qos()
BYTES_OF = {"octet": 1, "short": 2, "long": 4, "longlong": 8, "shortstr": 1, "longstr": 4, "table": 4}


def empty(method: str) -> bytes:
    """A method with arguments of zeros and empty strings."""
    kinds = [BY_NAME[method].amqp_type(name) for name in BY_NAME[method].attributes()]
    flags = [1] if "bit" in kinds else []  # all flags of a method share one octet
    return BY_NAME[method].index.to_bytes(4, "big") + bytes(
        sum([BYTES_OF[kind] for kind in kinds if kind != "bit"] + flags)
    )


def shake_hands(client: RawClient, last: str) -> str:
    """The handshake up to this method of the client; the answer to it."""
    client.start()
    if last == "connection.start-ok":
        return answer_of(client, last)
    client.expect(commands.Connection.Tune)
    client.send(0, commands.Connection.TuneOk(0, 131072, 0))
    client.send(0, commands.Connection.Open())
    answer = answer_of(client, last)
    return "none" if last == "connection.tune-ok" and answer == "open-ok" else answer


def answer_to(client: RawClient, method: str) -> str:
    if method in ("connection.start-ok", "connection.tune-ok", "connection.open"):
        return shake_hands(client, method)
    if method == "connection.close-ok":  # after the broker's close, which an unknown method causes
        client.open().send_bytes(raw_frame(1, 1, b"\x00\x1e\x00\x0a"))
        client.expect(commands.Connection.Close)
        client.send(0, commands.Connection.CloseOk())
        client.expect_end()
        return "none"
    client.open()
    if method in ("connection.close", "channel.close"):
        client.send_bytes(raw_frame(1, int(method == "channel.close"), empty(method)))
        return answer_of(client, method)
    value = BY_NAME[method](**ARGUMENTS_OF.get(method, {}))
    if method == "channel.open":
        client.send(2, value)
    elif method.startswith("connection."):
        client.send(0, value)
    elif method == "channel.close-ok":
        client.send(1, commands.Queue.Declare(queue="missing", passive=True))
        client.expect(commands.Channel.Close)
        client.send(1, value, commands.Channel.Open())
        return "none" if answer_of(client, method) == "open-ok" else "something"
    elif method == "basic.publish":
        client.publish("nowhere")
        client.send(1, PROBE)
    elif method == "basic.reject":
        client.publish("orders", b"x")
        client.send(1, commands.Basic.Get(queue="orders"))
        client.expect(commands.Basic.GetOk)
        client.content()
        client.send(1, commands.Basic.Reject(1, requeue=False), PROBE)
    elif method in ("tx.commit", "tx.rollback"):
        client.send(1, commands.Tx.Select())
        client.expect(commands.Tx.SelectOk)
        client.send(1, value)
    else:
        client.send(1, value, PROBE)
    return answer_of(client, method)


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@pytest.mark.parametrize("method", METHODS)
def test_each_method_of_the_table_gets_the_answer_of_the_table(client: RawClient, method: str) -> None:
    assert answer_to(client, method) == METHODS[method][0].strip("`")


@pytest.mark.parametrize("method", sorted(set(BY_NAME) - set(METHODS)))
def test_a_method_that_is_not_in_the_table_is_503(client: RawClient, method: str) -> None:
    client.open().send_bytes(raw_frame(1, 0 if method.startswith("connection.") else 1, empty(method)))
    client.expect_connection_close(503)


# ---- Exchanges and queues


@pytest.mark.parametrize("kind", EXCHANGES)
def test_each_type_of_exchange_is_taken_or_refused_as_the_table_says(client: RawClient, kind: str) -> None:
    client.open().send(1, commands.Exchange.Declare(exchange=f"of-{kind}", exchange_type=kind))
    assert answer_of(client, "exchange.declare") == EXCHANGES[kind][0].strip("`")


def test_the_table_of_exchanges_has_every_type_that_the_broker_has() -> None:
    assert {kind for kind, cells in EXCHANGES.items() if cells[0] == "`declare-ok`"} == EXCHANGE_TYPES
    for name in PREDECLARED:
        assert f"`{name}`" in PAGE


def values(cell: str) -> list[Any]:
    """The values of a cell, which are JSON in quotes."""
    return [json.loads(text) for text in re.findall(r"`([^`]*)`", cell)]


EVERY_VALUE = [
    (argument, value, code)
    for argument, (taken, refused, _) in ARGUMENTS.items()
    for cell, code in ((taken, 0), (refused, 406))
    for value in values(cell)
]


@pytest.mark.parametrize(("argument", "value", "code"), EVERY_VALUE, ids=str)
@pytest.mark.parametrize("durable", [True, False])
def test_each_value_of_a_queue_argument_is_taken_or_refused_as_the_table_says(
    client: RawClient, argument: str, value: Any, code: int, durable: bool
) -> None:
    name = f"{argument} {value} {type(value).__name__} {durable}"
    client.open().send(1, commands.Queue.Declare(queue=name, durable=durable, arguments={argument: value}))
    if code:
        assert f"invalid arg '{argument}'" in client.expect_channel_close(code)
    else:
        client.expect(commands.Queue.DeclareOk)


def test_the_table_of_arguments_takes_every_argument_that_the_broker_has_and_no_other() -> None:
    kept = set(QueueArguments().by_key())
    assert {argument for argument, cells in ARGUMENTS.items() if cells[0]} == kept | {"x-queue-type"}
    assert list(ARGUMENTS)[:3] == [argument for argument, cells in ARGUMENTS.items() if cells[0]]


def test_the_table_of_properties_has_those_that_the_broker_reads() -> None:
    assert set(PROPERTIES) == fields._WANTED


def test_the_table_of_capabilities_is_what_the_broker_tells() -> None:
    offered = SERVER_PROPERTIES["capabilities"]
    assert {name: cells[0] == "yes" for name, cells in CAPABILITIES.items()} == offered
    assert f"`product` is `{SERVER_PROPERTIES['product']}`" in PAGE


def test_the_table_of_limits_has_each_limit_with_its_default() -> None:
    assert {name: float(cells[0]) for name, cells in LIMITS.items()} == dataclasses.asdict(Limits())


# ---- Redelivery


def test_after_an_orderly_stop_what_was_delivered_is_redelivered_and_the_rest_is_not(
    restart_broker: Callable[[], Broker], way: str
) -> None:
    """A new leader counts as after a crash: everything may have been delivered."""
    client = restart_broker().raw().open()
    client.declare("q", durable=True)
    client.send(1, commands.Confirm.Select())
    client.expect(commands.Confirm.SelectOk)
    for text in (b"delivered", b"never delivered"):
        client.publish("q", text)
        client.expect(commands.Basic.Ack)
    client.send(1, commands.Basic.Get(queue="q"))
    assert client.expect(commands.Basic.GetOk).redelivered is False
    client.content()
    again = restart_broker().raw().open()
    again.publish("q", b"new")
    seen = []
    for _ in range(3):
        again.send(1, commands.Basic.Get(queue="q"))
        redelivered = again.expect(commands.Basic.GetOk).redelivered
        seen.append((again.content()[1], redelivered))
    assert seen == [(b"delivered", True), (b"never delivered", way == "trio"), (b"new", False)]


# ---- Refusals

REQUESTS: dict[str, Callable[[RawClient], None]] = {}


def request(name: str) -> Callable[[Callable[[RawClient], None]], Callable[[RawClient], None]]:
    def keep(function: Callable[[RawClient], None]) -> Callable[[RawClient], None]:
        REQUESTS[name] = function
        return function

    return keep


def on_channel(*methods: Any, expect: type[Any] | None = None) -> Callable[[RawClient], None]:
    """Sends all methods on channel 1; the first is answered if expect names the answer."""

    def send(client: RawClient) -> None:
        client.open()
        for index, method in enumerate(methods):
            client.send(1, method)
            if index == 0 and expect is not None:
                client.expect(expect)

    return send


def with_properties(**properties: Any) -> Callable[[RawClient], None]:
    return lambda client: client.open().publish("orders", b"x", properties=commands.Basic.Properties(**properties))


def declared(arguments: dict[str, Any]) -> Callable[[RawClient], None]:
    return on_channel(commands.Queue.Declare(queue="q", arguments=arguments))


_CONSUME = commands.Basic.Consume(queue="orders", consumer_tag="c")
_OK = commands.Basic.ConsumeOk
REQUESTS |= {
    "a wrong password, or an unknown user": lambda client: client.start(password="wrong"),
    "a method of the server": on_channel(commands.Basic.Deliver("c", 1, False, "", "k")),
    "a consumer tag that is in use on the channel": on_channel(_CONSUME, _CONSUME, expect=_OK),
    "an unknown type of exchange": on_channel(commands.Exchange.Declare(exchange="e", exchange_type="x-strange")),
    "an exchange of type headers": on_channel(commands.Exchange.Declare(exchange="e", exchange_type="headers")),
    "a binding between exchanges": on_channel(commands.Exchange.Bind(destination="shop", source="shop")),
    "immediate": lambda client: client.open().publish("orders", b"x", immediate=True),
    "no_local": on_channel(commands.Basic.Consume(queue="orders", no_local=True)),
    "prefetch_size": on_channel(commands.Basic.Qos(prefetch_size=1)),
    "basic.recover without requeue": on_channel(commands.Basic.Recover(requeue=False)),
    "a queue that does not exist": on_channel(commands.Basic.Get(queue="missing")),
    "an exchange that does not exist": lambda client: client.open().publish("k", b"x", exchange="missing"),
    "an empty queue name before any declaration on the channel": on_channel(commands.Basic.Get(queue="")),
    "a queue name that begins with amq.": on_channel(commands.Queue.Declare(queue="amq.mine")),
    "an exchange name that begins with amq.": on_channel(commands.Exchange.Declare(exchange="amq.mine")),
    "a declaration or binding of the default exchange": on_channel(
        commands.Queue.Bind(queue="orders", exchange="", routing_key="k")
    ),
    "a deletion of amq.direct": on_channel(commands.Exchange.Delete(exchange="amq.direct")),
    "a publish to an internal exchange": lambda client: client.open().publish("k", b"x", exchange="inside"),
    "a second consumer where one is exclusive": on_channel(
        commands.Basic.Consume(queue="orders", exclusive=True), commands.Basic.Consume(queue="orders"), expect=_OK
    ),
    "an argument of a queue": declared({"x-dead-letter-exchange": "shop"}),
    "a value of an argument": declared({"x-message-ttl": -1}),
    "a type of queue": declared({"x-queue-type": "quorum"}),
    "an argument of an exchange": on_channel(
        commands.Exchange.Declare(exchange="e", arguments={"alternate-exchange": "shop"})
    ),
    "an argument of a consumer": on_channel(commands.Basic.Consume(queue="orders", arguments={"x-priority": 1})),
    "an argument of a binding that JSON cannot represent": on_channel(
        commands.Queue.Bind(queue="orders", exchange="shop", routing_key="k", arguments={"x": bytearray(b"b")})
    ),
    "a declaration that differs from the queue": on_channel(commands.Queue.Declare(queue="orders", durable=False)),
    "a declaration that differs from the exchange": on_channel(
        commands.Exchange.Declare(exchange="shop", exchange_type="fanout", durable=True)
    ),
    "an unknown delivery tag, or a second acknowledgement": on_channel(commands.Basic.Ack(7)),
    "another user's user_id": with_properties(user_id="root"),
    "an expiration that is no number": with_properties(expiration="soon"),
    "a deletion with if_unused of a queue that has consumers": on_channel(
        _CONSUME, commands.Queue.Delete(queue="orders", if_unused=True), expect=_OK
    ),
    "tx.select on a channel with confirms": on_channel(
        commands.Confirm.Select(), commands.Tx.Select(), expect=commands.Confirm.SelectOk
    ),
    "confirm.select on a channel with transactions": on_channel(
        commands.Tx.Select(), commands.Confirm.Select(), expect=commands.Tx.SelectOk
    ),
    "tx.commit without tx.select": on_channel(commands.Tx.Commit()),
    "a deletion with if_unused of an exchange that has bindings": on_channel(
        commands.Queue.Bind(queue="orders", exchange="shop", routing_key="k"),
        commands.Exchange.Delete(exchange="shop", if_unused=True),
        expect=commands.Queue.BindOk,
    ),
}


@request("another mechanism of login")
def _mechanism(client: RawClient) -> None:
    client.send_bytes(b"AMQP\x00\x00\x09\x01")
    client.expect(commands.Connection.Start)
    client.send(0, commands.Connection.StartOk({}, "EXTERNAL", "x", "en_US"))


@request("a virtual host that is not there")
def _vhost(client: RawClient) -> None:
    client.start()
    client.expect(commands.Connection.Tune)
    client.send(0, commands.Connection.TuneOk(0, 0, 0), commands.Connection.Open("other"))


@request("a tune above the offer")
def _tune(client: RawClient) -> None:
    client.start()
    client.expect(commands.Connection.Tune)
    client.send(0, commands.Connection.TuneOk(0, 262144, 0))


@request("a channel number above the limit")
def _channel(client: RawClient) -> None:
    client.open().send(2048, commands.Channel.Open())


@request("a frame above the negotiated size")
def _frame(client: RawClient) -> None:
    client.open().send_bytes(raw_frame(3, 1, bytes(200_000))[:100])


@request("an unknown method")
def _method(client: RawClient) -> None:
    client.open().send_bytes(raw_frame(1, 1, b"\x00\x1e\x00\x0a"))


@request("malformed arguments")
def _malformed(client: RawClient) -> None:
    client.open().send_bytes(raw_frame(1, 1, commands.Basic.Qos.index.to_bytes(4, "big") + bytes(6)))


@request("a method while a body is missing")
def _content(client: RawClient) -> None:
    client.open().send(1, commands.Basic.Publish(routing_key="orders"), PROBE)


@request("a deletion with if_empty of a queue that has messages")
def _not_empty(client: RawClient) -> None:
    client.open().publish("orders", b"x")
    client.send(1, commands.Queue.Delete(queue="orders", if_empty=True))


STORE_HAS_FAILED = "a virtual host whose store has failed"
MORE_PASSWORDS = "more passwords from one address than the limit"
LIMITED: dict[str, dict[str, int]] = {
    "more connections than the limit": {"connections_max": 1},
    MORE_PASSWORDS: {"password_checks_max": 2},
    "a body above the limit": {"body_bytes_max": 10},
    "a channel that memory does not hold": {"memory_bytes_max": 10},
    "a consumer that memory does not hold": {"memory_bytes_max": 10},
    "an exclusive queue of another connection": {},
    "a virtual host that the user may not open": {},
    STORE_HAS_FAILED: {},
}


def refuse_a_password(broker: Broker) -> RawClient:
    checks, may_end = broker.server.users._checks, threading.Event()
    waiting = [
        asyncio.run_coroutine_threadsafe(checks.result("127.0.0.1", key, lambda: may_end.wait(PATIENCE_S)), broker.loop)
        for key in (b"in progress", b"first", b"second")
    ]
    client = broker.raw()
    client.start()
    client.socket.recv(1, socket.MSG_PEEK)
    may_end.set()
    assert all(each.result(PATIENCE_S) for each in waiting)
    return client


def refuse_limited(name: str, broker: Broker) -> RawClient:
    """A client that made this request of a broker with small limits."""
    if name == "more connections than the limit":
        broker.raw().open()
        client = broker.raw()
        client.start()
        client.expect(commands.Connection.Tune)
        client.send(0, commands.Connection.TuneOk(0, 0, 0), commands.Connection.Open())
        return client
    if name == MORE_PASSWORDS:
        return refuse_a_password(broker)
    if name.startswith("a virtual host"):
        broker.call(lambda: broker.server.down.add("shop"))
        if name == STORE_HAS_FAILED:
            broker.call(lambda: broker.server.users.change("guest", hosts=["/", "shop"]))
        client = broker.raw()
        client.start()
        client.expect(commands.Connection.Tune)
        client.send(0, commands.Connection.TuneOk(0, 0, 0), commands.Connection.Open("shop"))
        return client
    client = broker.raw().open()
    if name == "an exclusive queue of another connection":
        broker.raw().open().declare("mine", exclusive=True)
        client.send(1, commands.Queue.Declare(queue="mine", passive=True))
    elif name == "a body above the limit":
        client.publish("orders", bytes(11))
    elif name == "a channel that memory does not hold":
        count = (CLIENT_BYTES_FREE - CONNECTION_BYTES) // CHANNEL_BYTES
        for number in range(2, count + 1):
            client.open_channel(number)
        client.send(count + 1, commands.Channel.Open())
    else:
        assert name == "a consumer that memory does not hold"
        client.declare("orders")
        count = (CLIENT_BYTES_FREE - CONNECTION_BYTES - CHANNEL_BYTES) // CONSUMER_BYTES
        for _ in range(count):
            client.send(1, commands.Basic.Consume(queue="orders"))
            client.expect(commands.Basic.ConsumeOk)
        client.send(1, commands.Basic.Consume(queue="orders"))
    return client


def refusal(client: RawClient) -> tuple[str, str, str]:
    """Code, what is closed, and the text behind the code's name; numbers of limits count as equal."""
    _, close = client.receive()
    assert isinstance(close, commands.Channel.Close | commands.Connection.Close), close
    kind = "channel" if isinstance(close, commands.Channel.Close) else "connection"
    return str(close.reply_code), kind, close.reply_text.partition(" - ")[2]


def written(name: str) -> tuple[str, str, str]:
    code, closes, text = REFUSALS[name]
    return code, closes, text.strip("`")


@pytest.mark.parametrize("name", REQUESTS)
def test_each_refused_request_gets_the_code_and_text_of_the_table(client: RawClient, name: str) -> None:
    REQUESTS[name](client)
    assert refusal(client) == written(name)


IN_CLUSTER = pytest.mark.direct_only("a host of a cluster has another leader when a store of it has failed")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=IN_CLUSTER if name == STORE_HAS_FAILED else ()) for name in LIMITED]
)
def test_each_request_above_a_limit_gets_the_code_and_text_of_the_table(
    start_broker: Callable[..., Broker], name: str
) -> None:
    code, closes, text = refusal(refuse_limited(name, start_broker(**LIMITED[name])))
    wanted = written(name)
    assert (code, closes) == wanted[:2]
    assert re.sub(r"\d+", "N", text) == re.sub(r"\d+", "N", wanted[2])


def test_every_row_of_the_table_of_refusals_is_tried() -> None:
    assert {*REQUESTS, *LIMITED} == set(REFUSALS)
