"""The directory of a virtual host: a safe name for every name of a host, and one for each."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logstore.core.host_directory import NAME_MAX, host_directory, host_stores

if TYPE_CHECKING:
    from pathlib import Path

UTF_8 = st.characters(exclude_categories=["Cs"])
NAMES = st.text(UTF_8, max_size=255)
# Few characters, so that pairs are often almost equal: case, dots, escapes, the mark of a digest, composed letters.
NEIGHBOURS = st.text(st.sampled_from("aA.%+/-_2fe\u0301\u00e9\u202e\0"), max_size=8)
LONG = st.text(st.sampled_from("xX."), min_size=118, max_size=255)


def as_file_systems_see(directory: str) -> str:
    return unicodedata.normalize("NFC", directory).casefold()


@given(NAMES)
@example("")
@example(".")
@example("..")
@example("/")
@example("../../etc")
@example("hosts")
@example("\u202egnp.exe")
@example("x" * 255)
@example("ä" * 127)
@example("a\nb\x1b[31m")
@example("trailing.")
@example(".hidden")
@example("NUL")
def test_every_name_of_a_host_has_a_directory_that_every_file_system_takes(name: str) -> None:
    directory = host_directory(name)
    assert re.fullmatch(r"[a-z0-9_%+-]([a-z0-9_.%+-]*[a-z0-9_%+-])?", directory)
    assert len(directory) <= NAME_MAX


@given(st.one_of(st.tuples(NAMES, NAMES), st.tuples(NEIGHBOURS, NEIGHBOURS), st.tuples(LONG, LONG)))
@example(("shop", "Shop"))
@example(("a", "%61"))
@example(("", "%"))
@example(("é", "e\u0301"))
@example(("x" * 254, "x" * 255))
@example(("x" * 87 + "/" * 40, "x" * 87 + "/" * 39 + "x"))
def test_two_names_of_hosts_never_have_one_directory(names: tuple[str, str]) -> None:
    one, other = names
    if one != other:
        assert as_file_systems_see(host_directory(one)) != as_file_systems_see(host_directory(other))


@given(LONG)
def test_the_directory_of_a_long_name_is_that_of_no_short_name(name: str) -> None:
    directory = host_directory(name)
    assert host_directory(directory) != directory or "+" not in directory
    assert not re.search(r"%.?\+|%[0-9a-f]?$", directory)


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("shop", "shop"),
        ("shop.example-2_b", "shop.example-2_b"),
        ("Shop", "%53hop"),
        ("a/b", "a%2fb"),
        ("ä", "%c3%a4"),
        ("", "%"),
        (".", "%2e"),
        ("..", "%2e%2e"),
        ("/", "%2f"),
        ("x" * 121, "x" * 87 + "+79072a47bfaa54e6057a9ee21e0dea64"),
    ],
)
def test_the_directories_of_some_names_are_these(name: str, directory: str) -> None:
    """They are on disks: another name for one of them would lose the host."""
    assert host_directory(name) == directory


def test_only_directories_with_a_store_are_stores_of_hosts(tmp_path: Path) -> None:
    assert host_stores(tmp_path) == []
    for name in ("b", "a", "empty"):
        (tmp_path / "hosts" / name).mkdir(parents=True)
    for name in ("b", "a"):
        (tmp_path / "hosts" / name / "META").touch()
    assert host_stores(tmp_path) == [tmp_path / "hosts" / "a", tmp_path / "hosts" / "b"]
