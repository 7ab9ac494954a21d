"""The exception tree: names and nesting are public, messages are for people, and objects can be pickled."""

from __future__ import annotations

import ast
import inspect
import pickle

import pytest

from kit.stores import ROOT
from logstore import errors
from logstore.errors import CorruptLog, OptionError, StoreError

# The whole tree, each class with its parent, on which docs and callers rely.
PARENTS = {
    "StoreError": "Exception",
    "NotAStore": "StoreError",
    "StoreLocked": "StoreError",
    "ReplicatedStore": "StoreError",
    "StoreFull": "StoreError",
    "StorePoisoned": "StoreError",
    "StoreClosed": "StoreError",
    "StoreForked": "StoreError",
    "ReentrantCall": "StoreError",
    "OptionError": "StoreError",
    "CorruptLog": "StoreError",
    "VersionError": "StoreError",
    "CatalogError": "StoreError",
    "CatalogMismatch": "CatalogError",
    "CatalogOvertaken": "CatalogError",
    "CatalogUnavailable": "CatalogError",
    "UnknownMessage": "StoreError",
    "UnknownQueue": "StoreError",
    "UnknownExchange": "StoreError",
    "QueueExists": "StoreError",
    "MessageLocked": "StoreError",
    "MessageInUse": "StoreError",
    "AlreadyEnqueued": "StoreError",
    "NotEnqueued": "StoreError",
    "TransactionError": "StoreError",
    "UnknownXid": "TransactionError",
    "DuplicateXid": "TransactionError",
    "TransactionEnded": "TransactionError",
    "TransactionLimit": "TransactionError",
    "WrongState": "TransactionError",
    "OutcomeUnknown": "StoreError",
    "BatchRefused": "StoreError",
    "EngineRefused": "StoreError",
    "ClusterUnavailable": "StoreError",
    "NotLeader": "StoreError",
    "NoMajority": "StoreError",
}


def make(name: str) -> StoreError:
    cls = getattr(errors, name)
    if cls is CorruptLog:
        return CorruptLog("a check fails", segment="0000000001000000.seg", offset=4096, lsn=16781312)
    made = cls(f"{name}: what, where, what next")
    assert isinstance(made, StoreError)
    return made


def test_the_tree_has_exactly_these_names_and_this_nesting() -> None:
    found = {
        name: cls.__bases__[0].__name__
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if cls.__module__ == errors.__name__
    }
    assert found == PARENTS


def test_every_exception_is_exported() -> None:
    assert set(errors.__all__) == set(PARENTS)
    assert len(errors.__all__) == len(PARENTS)


@pytest.mark.parametrize("name", PARENTS)
def test_every_exception_says_what_it_means_in_whole_sentences(name: str) -> None:
    text = inspect.cleandoc(getattr(errors, name).__doc__)
    assert text.endswith(".")
    assert text.count(". ") + text.count(".\n") >= 1, "meaning alone is not enough: also what to do"


@pytest.mark.parametrize("name", PARENTS)
def test_one_except_clause_catches_them_all(name: str) -> None:
    with pytest.raises(StoreError) as caught:
        raise make(name)
    assert caught.value.message == str(caught.value) != ""


@pytest.mark.parametrize("name", PARENTS)
def test_an_exception_survives_pickling_with_its_attributes(name: str) -> None:
    error = make(name)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_corrupt_log_names_segment_offset_and_lsn() -> None:
    error = CorruptLog("the record's checksum fails", segment="0000000001000000.seg", offset=4096, lsn=16781312)
    assert (error.segment, error.offset, error.lsn) == ("0000000001000000.seg", 4096, 16781312)
    assert error.reason == "the record's checksum fails"
    for part in (
        "0000000001000000.seg",
        "4096",
        "16781312",
        "the record's checksum fails",
        "'logstore verify DIR'",
        "'logstore salvage DIR NEW'",
    ):
        assert part in str(error)
    assert "\n" not in str(error)


def test_a_wrong_option_is_also_a_value_error_and_nothing_else_is_a_builtin_in_disguise() -> None:
    assert issubclass(OptionError, ValueError)
    builtin_parents = {
        name: [base.__name__ for base in getattr(errors, name).__mro__ if base.__module__ == "builtins"]
        for name in PARENTS
    }
    assert builtin_parents.pop("OptionError") == ["ValueError", "Exception", "BaseException", "object"]
    assert all(parents == ["Exception", "BaseException", "object"] for parents in builtin_parents.values())


#: Raised once, as its last step, by a run that has then ended.
RAISED_ONCE = {("logstore/bench/runner.py", "load.problem")}


def test_no_exception_that_an_object_keeps_is_raised() -> None:
    """One that is raised again gathers its callers' frames; what is needed later is kept as its maker."""
    found = {
        (path.relative_to(ROOT).as_posix(), ast.unparse(node.exc))
        for path in sorted((ROOT / "logstore").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Attribute | ast.Subscript)
        and not ast.unparse(node.exc).rpartition(".")[2][:1].isupper()  # a class
    }
    assert found == RAISED_ONCE
