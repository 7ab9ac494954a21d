"""cluster.toml: what it may say, and the one error that names the file and the key."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.cluster import config
from logstore.cluster.addresses import Tls
from logstore.cluster.config import MemberFile
from logstore.errors import NotAStore, OptionError

WHOLE = MemberFile(
    name="m1",
    member=config.MEMBER_MAX,
    cluster=bytes(range(16)),
    listen="0.0.0.0:7000",
    advertise="[2001:db8::1]:7000",
    join=("10.0.0.2:7000", "other.example:7001"),
    ca="ca.pem",
    cert='/elsewhere/m1 "quoted" \\ ü \x7f.pem',
    key="m1.key",
)
LEAST = {"name": '"m1"', "member": "1", "cluster": f'"{"0f" * 16}"', "listen": '"127.0.0.1:7000"'}


def written(tmp_path: Path, **changed: str | None) -> Path:
    """A directory whose file has these keys; None leaves one out."""
    lines = [f"{key} = {value}" for key, value in (LEAST | changed).items() if value is not None]
    (tmp_path / config.FILE_NAME).write_text("\n".join(["[cluster]", *lines, ""]), "utf-8")
    return tmp_path


def refused(directory: Path) -> str:
    """The error, without the file's name, which it begins with."""
    with pytest.raises(OptionError) as error:
        config.read(directory)
    before, _, rest = error.value.message.partition(": ")
    assert before == str(directory / config.FILE_NAME)
    assert "\n" not in rest
    return rest


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    config.write(tmp_path, WHOLE)
    assert config.read(tmp_path) == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == [config.FILE_NAME]
    assert (tmp_path / config.FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_each_key_has_a_comment_above_it_and_a_key_that_is_not_set_is_shown(tmp_path: Path) -> None:
    text = config.text_of(
        replace(WHOLE, listen="127.0.0.1:1", advertise="127.0.0.1:1", join=(), ca="", cert="", key="")
    )
    for key in config.KEYS:
        assert re.search(rf"^(# )?{key} = ", text, re.MULTILINE)
    assert text.startswith("# ")
    assert list(tomllib.loads(text)) == ["cluster"]


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    found = config.read(written(tmp_path))
    assert found == MemberFile(name="m1", member=1, cluster=b"\x0f" * 16, listen="127.0.0.1:7000")
    assert (found.advertise, found.join, found.tls(tmp_path)) == ("127.0.0.1:7000", (), None)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    assert WHOLE.tls(Path("/d")) == Tls(Path("/d/ca.pem"), Path(WHOLE.cert), Path("/d/m1.key"))


def test_a_member_is_started_with_what_the_file_says(tmp_path: Path) -> None:
    made = config.read(written(tmp_path)).config(tmp_path)
    assert (made.cluster, made.member, made.name, made.listen) == (b"\x0f" * 16, 1, "m1", "127.0.0.1:7000")
    assert made.tls is None


@pytest.mark.parametrize("key", LEAST)
def test_a_key_that_must_be_there_is_named(tmp_path: Path, key: str) -> None:
    assert refused(written(tmp_path, **{key: None})) == f"{key}: this key is missing"


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("name", "1", "is not a text"),
        ("name", '"Upper"', "small letters"),
        ("name", '""', "the text is empty"),
        ("member", '"1"', "is not a number"),
        ("member", "true", "is not a number"),
        ("member", "1.0", "is not a number"),
        ("member", "0", "a number from 1 to"),
        ("member", str(config.MEMBER_MAX + 1), "a number from 1 to"),
        ("cluster", f'"{"0f" * 15}"', "32 digits"),
        ("cluster", f'"{"0F" * 16}"', "32 digits"),
        ("listen", '"127.0.0.1"', "HOST:PORT"),
        ("listen", '"127.0.0.1:0"', "a port from 1 on"),
        ("listen", '"10.0.0.1:7000"', "need TLS"),
        ("advertise", '"10.0.0.1:7000"', "need TLS"),
        ("advertise", '"0.0.0.0:7000"', "no address that another member could use"),
        ("join", '"127.0.0.1:1"', "is not a list of texts"),
        ("join", "[1]", "is not a list of texts"),
        ("join", '["127.0.0.1:1", "10.0.0.1:1"]', "need TLS"),
        ("join", '["nowhere"]', "HOST:PORT"),
        ("cert", '"a.pem"', "and cert is there: give ca, cert and key, or none"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_with_its_key(tmp_path: Path, key: str, value: str, text: str) -> None:
    said = refused(written(tmp_path, **{key: value}))
    assert text in said
    assert said.startswith("ca: " if key == "cert" else f"{key}: ")


def test_an_unknown_key_is_refused_and_the_known_ones_are_listed(tmp_path: Path) -> None:
    assert refused(written(tmp_path, lissten='"x"')).startswith(
        "lissten: this key is unknown; known are name, member, "
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cluster: the table [cluster] is missing"),
        ("cluster = 1", "cluster: the table [cluster] is missing"),
        ("[cluster]\n[broker]\n", "broker: only the table [cluster] is known"),
        ("[cluster", "it is not TOML: "),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / config.FILE_NAME).write_text(text)
    assert refused(tmp_path).startswith(said)


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / config.FILE_NAME).write_bytes(b"\xff")
    with pytest.raises(OptionError, match=r"cluster\.toml is not UTF-8"):
        config.read(tmp_path)


def test_a_directory_without_the_file_is_no_members(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="is no member's directory: it has no cluster.toml"):
        config.read(tmp_path)
