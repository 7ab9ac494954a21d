"""The catalog's promises about rows, ids, foreign files and damage."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.catalog_cases import OTHER_UUID, UUID, everything, fill, reopened, run_python
from logstore.catalog.catalog import BindingRow, Catalog, ExchangeRow, QueueRow
from logstore.catalog.rows import QUEUE_ID_MAX
from logstore.errors import (
    CatalogError,
    CatalogMismatch,
    CatalogUnavailable,
    OptionError,
    QueueExists,
    StoreError,
    UnknownExchange,
    UnknownQueue,
    VersionError,
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with closing(Catalog.create(tmp_path, store_uuid=UUID)) as made:
        yield made


# ---- What was committed is there


def test_a_new_catalog_is_empty_and_numbers_queues_from_one(catalog: Catalog) -> None:
    assert everything(catalog) == ([], [], [], {}, 1)
    assert catalog.declare_queue("first") == (QueueRow(1, "first", {}, None), True)
    assert catalog.next_queue_id == 2


def test_everything_is_there_after_reopening(catalog: Catalog, tmp_path: Path) -> None:
    fill(catalog)
    before = everything(catalog)
    assert before == (
        [QueueRow(1, "dead", {}, None), QueueRow(2, "orders", {"x-max": 5, "ä": [1, None]}, "dead")],
        [ExchangeRow("market", "topic", {"a": True}, "rest"), ExchangeRow("rest", "fanout", {}, None)],
        [
            BindingRow("market", "orders", "eu.#", {}),
            BindingRow("market", "orders", "eu.#", {"match": "all"}),
            BindingRow("rest", "dead", "", {}),
        ],
        {"colour": "blue"},
        3,
    )
    catalog.close()
    with reopened(tmp_path) as again:
        assert everything(again) == before


def test_declarations_of_a_killed_process_survive(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from logstore.catalog.catalog import Catalog\n"
        "catalog = Catalog.create(sys.argv[1], store_uuid=bytes(range(16)))\n"
        "catalog.declare_queue('orders'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert run_python(code, tmp_path).returncode == -signal.SIGKILL
    with reopened(tmp_path) as again:
        assert again.queue("orders").id == 1


def test_sqlite_is_as_durable_as_it_can_be(catalog: Catalog) -> None:
    with catalog._transaction() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_the_directory_entry_of_a_new_catalog_is_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[str] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        forced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    Catalog.create(tmp_path, store_uuid=UUID).close()
    assert forced == [str(tmp_path)]


# ---- Creating, opening, and other people's files


def test_creating_again_with_the_same_uuid_changes_nothing(catalog: Catalog, tmp_path: Path) -> None:
    fill(catalog)
    before = everything(catalog)
    catalog.close()
    with closing(Catalog.create(tmp_path, store_uuid=UUID)) as again:
        assert everything(again) == before


def test_creating_over_another_stores_catalog_is_a_mismatch(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(CatalogMismatch, match="belongs to the store"):
        Catalog.create(tmp_path, store_uuid=OTHER_UUID)
    assert catalog.declare_queue("still ours")[1]


def test_a_creation_interrupted_before_its_commit_is_finished(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").touch()
    with closing(Catalog.create(tmp_path, store_uuid=UUID)) as made:
        assert made.declare_queue("orders")[0].id == 1


def test_opening_never_creates_a_file(tmp_path: Path) -> None:
    with pytest.raises(CatalogMismatch, match="missing"):
        Catalog.open(tmp_path, store_uuid=UUID)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_a_mismatch(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").touch()
    with pytest.raises(CatalogMismatch, match="empty"):
        Catalog.open(tmp_path, store_uuid=UUID)
    assert (tmp_path / "catalog.sqlite").stat().st_size == 0


def test_another_stores_catalog_is_a_mismatch(catalog: Catalog, tmp_path: Path) -> None:
    catalog.close()
    with pytest.raises(CatalogMismatch, match="belongs to the store 00010203"):
        Catalog.open(tmp_path, store_uuid=OTHER_UUID)


@pytest.mark.parametrize(("start", "reason"), [(Catalog.create, "holds other tables"), (Catalog.open, "is empty")])
def test_a_foreign_database_is_refused_and_not_touched(
    start: Callable[..., Catalog], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "catalog.sqlite"
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("CREATE TABLE recipes (title)")
    path.chmod(0o644)
    before = path.read_bytes()
    with pytest.raises(CatalogMismatch, match=reason):
        start(tmp_path, store_uuid=UUID)
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_newer_catalog_is_a_version_error_whatever_else_it_holds(catalog: Catalog, tmp_path: Path) -> None:
    catalog.close()
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as tool:
        tool.execute("UPDATE store SET catalog_version = 2, uuid = 'in another form'")
        tool.execute("DROP TABLE config")
        tool.commit()
    with pytest.raises(VersionError, match="version 2"):
        Catalog.open(tmp_path, store_uuid=UUID)


def test_a_symbolic_link_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    catalog.close()
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "catalog.sqlite").rename(elsewhere)
    (tmp_path / "catalog.sqlite").symlink_to(elsewhere)
    with pytest.raises(CatalogError, match="not a regular file"):
        Catalog.open(tmp_path, store_uuid=UUID)


def test_all_files_are_accessible_only_to_their_owner(tmp_path: Path) -> None:
    def modes() -> set[int]:
        return {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}

    before = os.umask(0)
    try:
        with closing(Catalog.create(tmp_path, store_uuid=UUID)) as made:
            made.declare_queue("orders")
            assert len(list(tmp_path.iterdir())) == 3, "with -wal and -shm"
            assert modes() == {0o600}
        (tmp_path / "catalog.sqlite").chmod(0o644)
        with reopened(tmp_path) as again:
            again.declare_queue("more")
            assert modes() == {0o600}
    finally:
        os.umask(before)


def test_a_missing_directory_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CatalogUnavailable, match="cannot be made: No such file or directory"):
        Catalog.create(tmp_path / "nowhere", store_uuid=UUID)


@pytest.mark.parametrize("damage", ["garbage", "cut", "free pages", "no table", "id in use", "dangling", "arguments"])
def test_a_damaged_catalog_is_refused_in_one_sentence(damage: str, catalog: Catalog, tmp_path: Path) -> None:
    fill(catalog)
    catalog.close()
    path = tmp_path / "catalog.sqlite"
    statements = {
        "no table": "DROP TABLE bindings",
        "id in use": "UPDATE store SET next_queue_id = 2",
        "dangling": "UPDATE queues SET dead_letter = 77 WHERE id = 2",
        "arguments": "UPDATE queues SET arguments = '[1' WHERE id = 2",
    }
    if damage == "garbage":
        path.write_bytes(b"not a database at all" * 1000)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:8192])
    elif damage == "free pages":  # their count in the header: nothing would meet it before a page is needed
        content = bytearray(path.read_bytes())
        content[36:40] = (9).to_bytes(4, "big")
        path.write_bytes(content)
    else:
        with closing(sqlite3.connect(path)) as tool:
            tool.execute(statements[damage])
            tool.commit()
    with pytest.raises(CatalogError, match="damaged") as caught:
        Catalog.open(tmp_path, store_uuid=UUID)
    assert "\n" not in caught.value.message


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
def test_a_flipped_bit_gives_no_error_but_the_packages(flips: list[tuple[float, int]]) -> None:
    def use(directory: str) -> str:
        try:
            with closing(Catalog.open(directory, store_uuid=UUID)) as opened:
                everything(opened)
                opened.declare_queue("another")
        except StoreError as error:
            return error.message
        return "unharmed"

    with tempfile.TemporaryDirectory() as directory:
        with closing(Catalog.create(directory, store_uuid=UUID)) as made:
            fill(made)
        path = Path(directory, "catalog.sqlite")
        content = bytearray(path.read_bytes())
        used = [at for at, byte in enumerate(content) if byte]  # most of the file is padding
        for where, bits in flips:
            content[used[int(where * len(used))]] ^= bits
        path.write_bytes(content)
        assert "\n" not in use(directory)


@pytest.mark.parametrize(
    "doctored",
    [
        "UPDATE queues SET name = x'05' WHERE id = 1",
        "UPDATE queues SET name = CAST(x'ff' AS TEXT) WHERE id = 1",
        "UPDATE store SET revision = 'many'",
        "UPDATE config SET value = x'00'",
        "UPDATE bindings SET arguments = '[]'",
    ],
)
def test_a_value_of_a_wrong_type_is_damage(doctored: str, catalog: Catalog, tmp_path: Path) -> None:
    fill(catalog)
    catalog.close()
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as tool:
        tool.execute(doctored)
        tool.commit()
    with pytest.raises(CatalogError, match=r"damaged|Could not decode"):
        Catalog.open(tmp_path, store_uuid=UUID)


# ---- Queues


def test_a_queue_id_is_never_used_twice(catalog: Catalog, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        catalog.declare_queue(name)
    catalog.delete_queue(3)
    assert catalog.declare_queue("c")[0].id == 4
    catalog.delete_queue(4)
    catalog.close()
    with reopened(tmp_path) as again:
        assert again.next_queue_id == 5
        assert again.declare_queue("c")[0].id == 5


def test_after_the_last_queue_id_declarations_are_refused(catalog: Catalog, tmp_path: Path) -> None:
    catalog.close()
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as tool:
        tool.execute("UPDATE store SET next_queue_id = ?", [QUEUE_ID_MAX])
        tool.commit()
    with reopened(tmp_path) as again:
        assert again.declare_queue("last")[0].id == QUEUE_ID_MAX == 2**32 - 2
        before = everything(again)
        with pytest.raises(CatalogError, match="all 4294967294 queue ids"):
            again.declare_queue("one more")
        assert everything(again) == before


def test_declaring_the_same_queue_again_gives_the_same_one(catalog: Catalog) -> None:
    catalog.declare_queue("dead")
    first, made = catalog.declare_queue("orders", arguments={"b": [1], "a": 2}, dead_letter="dead")
    assert made
    assert catalog.declare_queue("orders", arguments={"a": 2, "b": (1,)}, dead_letter="dead") == (
        first,
        False,
    )


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"arguments": {"a": 1.0}},
        {"arguments": {"a": 1, "b": None}},
        {"arguments": {"a": 1}, "dead_letter": "x"},
    ],
)
def test_declaring_a_queue_with_other_arguments_is_refused(other: dict[str, Any], catalog: Catalog) -> None:
    catalog.declare_queue("orders", arguments={"a": 1})
    with pytest.raises(QueueExists, match="'orders' exists with arguments"):
        catalog.declare_queue("orders", **other)


def test_an_unknown_queue_is_named(catalog: Catalog) -> None:
    for call in (
        lambda: catalog.queue("nobody"),
        lambda: catalog.declare_queue("x", dead_letter="nobody"),
    ):
        with pytest.raises(UnknownQueue, match="nobody"):
            call()
    with pytest.raises(UnknownQueue, match="id 7"):
        catalog.delete_queue(7)
    assert catalog.next_queue_id == 1


def test_a_dead_letter_queue_is_not_deleted_while_a_queue_uses_it(catalog: Catalog) -> None:
    fill(catalog)
    with pytest.raises(CatalogError, match="dead-letter queue of 'orders'"):
        catalog.delete_queue(1)
    with pytest.raises(CatalogError), catalog._transaction() as connection:
        connection.exec_driver_sql("DELETE FROM queues WHERE id = 1")
    catalog.delete_queue(2)
    catalog.delete_queue(1)
    assert catalog.queues() == []


# ---- Exchanges and bindings


def test_declaring_the_same_exchange_again_gives_the_same_one_and_another_is_refused(
    catalog: Catalog,
) -> None:
    first, made = catalog.declare_exchange("market", type="topic", arguments={"a": 1})
    assert made
    assert catalog.declare_exchange("market", type="topic", arguments={"a": 1}) == (first, False)
    assert catalog.exchange("market") == first == ExchangeRow("market", "topic", {"a": 1}, None)
    for other in ({"type": "fanout", "arguments": {"a": 1}}, {"type": "topic"}):
        with pytest.raises(CatalogError, match="'market' exists as 'topic'"):
            catalog.declare_exchange("market", **other)


def test_an_unknown_exchange_is_named(catalog: Catalog) -> None:
    catalog.declare_queue("q")
    for call in (
        lambda: catalog.exchange("nobody"),
        lambda: catalog.delete_exchange("nobody"),
        lambda: catalog.declare_exchange("x", alternate="nobody"),
        lambda: catalog.bind("nobody", "q"),
        lambda: catalog.unbind("nobody", "q"),
    ):
        with pytest.raises(UnknownExchange, match="nobody"):
            call()


def test_an_alternate_exchange_is_not_deleted_while_an_exchange_uses_it(catalog: Catalog) -> None:
    fill(catalog)
    with pytest.raises(CatalogError, match="alternate of 'market'"):
        catalog.delete_exchange("rest")
    catalog.delete_exchange("market")
    catalog.delete_exchange("rest")
    assert catalog.exchanges() == []


def test_the_same_binding_twice_is_one_and_other_arguments_make_another(catalog: Catalog) -> None:
    fill(catalog)
    before = catalog.bindings()
    catalog.bind("market", "orders", "eu.#", arguments={"match": "all"})
    assert catalog.bindings() == before
    catalog.bind("market", "orders", "eu.#", arguments={"match": "any"})
    assert catalog.bindings() == [*before, BindingRow("market", "orders", "eu.#", {"match": "any"})]


def test_unbinding_removes_exactly_that_binding_and_may_be_repeated(catalog: Catalog) -> None:
    fill(catalog)
    first, second, third = catalog.bindings()
    catalog.unbind("market", "orders", "eu.#", arguments={"match": "none"})
    catalog.unbind("market", "orders", "eu")
    assert catalog.bindings() == [first, second, third]
    catalog.unbind("market", "orders", "eu.#")
    assert catalog.bindings() == [second, third]
    with pytest.raises(UnknownQueue):
        catalog.unbind("market", "nobody")


@pytest.mark.parametrize("end", ["queue", "exchange"])
def test_bindings_are_deleted_with_their_queue_and_their_exchange(end: str, catalog: Catalog, tmp_path: Path) -> None:
    fill(catalog)
    if end == "queue":
        catalog.delete_queue(2)
    else:
        catalog.delete_exchange("market")
    assert catalog.bindings() == [BindingRow("rest", "dead", "", {})]
    catalog.close()
    with reopened(tmp_path) as again:
        assert again.bindings() == [BindingRow("rest", "dead", "", {})]


# ---- What callers hand in, and what they are handed


@pytest.mark.parametrize("name", ["", "x" * 256, "ä" * 128, "a\0b", "\ud800"])
def test_a_name_that_cannot_be_stored_is_an_option_error(name: str, catalog: Catalog) -> None:
    calls: list[Callable[[], object]] = [
        lambda: catalog.declare_queue(name),
        lambda: catalog.declare_exchange(name),
        lambda: catalog.declare_exchange("x", type=name),
        lambda: catalog.config.__setitem__(name, "value"),
    ]
    for call in calls:
        with pytest.raises(OptionError):
            call()
    assert everything(catalog) == ([], [], [], {}, 1)


def test_the_longest_possible_names_are_stored(catalog: Catalog, tmp_path: Path) -> None:
    name = "ä" * 127 + "b"
    catalog.declare_queue(name)
    catalog.declare_exchange(name)
    catalog.bind(name, name, name)
    with pytest.raises(OptionError, match="256 bytes"):
        catalog.bind(name, name, name + "b")
    catalog.close()
    with reopened(tmp_path) as again:
        assert again.bindings() == [BindingRow(name, name, name, {})]


@pytest.mark.parametrize("name", [None, 5, b"bytes"])
def test_a_name_that_is_not_a_str_is_a_type_error(name: Any, catalog: Catalog) -> None:
    fill(catalog)
    for call in (
        lambda: catalog.declare_queue(name),
        lambda: catalog.declare_exchange(name),
        lambda: catalog.bind("market", "orders", name),
        lambda: catalog.config.__setitem__("key", name),
        lambda: catalog.config.__setitem__(name, "value"),
    ):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"a": b"bytes"}, "not JSON serializable"),
        ({"a": float("nan")}, "not JSON compliant"),
        ({"a": [{1: "one"}]}, "the key 1"),
        ({"a": "x" * 65536}, "at most 64 KiB"),
    ],
)
def test_arguments_that_json_cannot_represent_are_an_option_error(
    arguments: dict[str, Any], reason: str, catalog: Catalog
) -> None:
    with pytest.raises(OptionError, match=reason):
        catalog.declare_queue("orders", arguments=arguments)
    assert catalog.queues() == []


def test_arguments_nested_too_deeply_are_an_option_error(catalog: Catalog) -> None:
    arguments: dict[str, Any] = {}
    for _ in range(100_000):
        arguments = {"deeper": arguments}
    with pytest.raises(OptionError, match="nested too deeply"):
        catalog.declare_queue("orders", arguments=arguments)


def test_arguments_that_are_not_a_mapping_are_a_type_error(catalog: Catalog) -> None:
    with pytest.raises(TypeError, match="mapping"):
        catalog.declare_queue("orders", arguments=[("a", 1)])  # type: ignore[arg-type]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=5), st.randoms())
def test_arguments_come_back_as_given_and_their_order_never_matters(arguments: dict[str, Any], random: Any) -> None:
    shuffled = list(arguments.items())
    random.shuffle(shuffled)
    with tempfile.TemporaryDirectory() as name:
        with closing(Catalog.create(name, store_uuid=UUID)) as made:
            assert made.declare_queue("q", arguments=arguments)[0].arguments == arguments
            assert not made.declare_queue("q", arguments=dict(shuffled))[1]
        with closing(Catalog.open(name, store_uuid=UUID)) as opened:
            assert json.dumps(opened.queue("q").arguments, sort_keys=True) == json.dumps(arguments, sort_keys=True)


def test_returned_rows_are_copies(catalog: Catalog) -> None:
    fill(catalog)
    before = everything(catalog)
    for row in (*catalog.queues(), *catalog.exchanges(), *catalog.bindings()):
        row.arguments["mine"] = 1
    assert everything(catalog) == before
    assert not catalog.declare_queue("dead")[1]


def test_config_is_a_mapping_of_str_to_str(catalog: Catalog, tmp_path: Path) -> None:
    config = catalog.config
    config["a"] = "1"
    config.update({"b": "2"}, c="3")
    config["a"] = "one"
    assert config.pop("b") == "2"
    assert config.setdefault("d", "4") == "4"
    assert dict(config) == {"a": "one", "c": "3", "d": "4"}
    with pytest.raises(KeyError):
        del config["nothing"]
    with pytest.raises(TypeError):
        config["n"] = 5  # type: ignore[assignment]
    with pytest.raises(TypeError):
        config.update({"new": "good", "bad": None})
    assert "new" not in config
    catalog.close()
    with reopened(tmp_path) as again:
        assert dict(again.config) == {"a": "one", "c": "3", "d": "4"}
        again.config.clear()
        assert len(again.config) == 0
