"""JSON for programs that keep numbers as floating point."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

import logstore
from kit.command import fine
from logstore.terminal.options import json_option
from logstore.terminal.output import print_json

if TYPE_CHECKING:
    from pathlib import Path


def rounded(text: str) -> Any:
    """The document as a reader has it that keeps every number as floating point, with no digit after the point."""
    return json.loads(text, parse_int=lambda digits: int(float(digits)))


def with_strings(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: with_strings(one) for key, one in value.items()}
    if isinstance(value, list):
        return [with_strings(one) for one in value]
    return str(value) if type(value) is int else value


@pytest.mark.parametrize("command", ["info", "queues", "verify", "dump"])
def test_json_strings_gives_the_same_document_with_each_integer_as_a_string(tmp_path: Path, command: str) -> None:
    with logstore.open(tmp_path / "store") as store:
        store.publish(store.declare_queue("orders"), b"one")
    plain = fine(command, tmp_path / "store", "--json").splitlines()
    strings = fine(command, tmp_path / "store", "--json-strings").splitlines()
    assert [with_strings(json.loads(line)) for line in plain] == [json.loads(line) for line in strings]
    assert [rounded(line) for line in strings] == [json.loads(line) for line in strings]


def test_an_lsn_above_2_to_53_is_exact_with_json_strings_where_a_number_is_rounded() -> None:
    lsn = 2**53 + 1

    @click.command()
    @json_option
    def shown(as_json: bool) -> None:
        assert as_json
        print_json({"lsn": lsn, "parts": [lsn], "ok": True, "share": 0.5})

    plain, strings = (CliRunner().invoke(shown, [option]).output for option in ("--json", "--json-strings"))
    assert rounded(plain)["lsn"] == lsn - 1
    assert rounded(strings) == {"lsn": str(lsn), "parts": [str(lsn)], "ok": True, "share": 0.5}
