"""Topic matching, compared with a slow and simple model."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.broker.topics import TopicTrie, split_words

words = st.sampled_from(["a", "b", "cc", ""])
keys = st.lists(words, max_size=5).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "cc", "", "*", "#"]), max_size=5).map(".".join)


def fits(pattern: list[str], key: list[str]) -> bool:
    """The definition, word by word."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(fits(pattern[1:], key[at:]) for at in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and fits(pattern[1:], key[1:])


@given(st.lists(patterns, max_size=12), st.lists(keys, min_size=1, max_size=6))
def test_a_key_finds_exactly_the_patterns_that_fit(bound: list[str], asked: list[str]) -> None:
    trie: TopicTrie[int] = TopicTrie()
    for number, pattern in enumerate(bound):
        trie.add(pattern, number)
    for key in asked:
        expected = {number for number, pattern in enumerate(bound) if fits(split_words(pattern), split_words(key))}
        assert trie.match(key) == expected


@given(st.lists(st.tuples(patterns, st.integers(0, 2)), max_size=12), st.data())
def test_a_removed_pattern_is_not_found_and_the_others_are(bound: list[tuple[str, int]], data: st.DataObject) -> None:
    trie: TopicTrie[int] = TopicTrie()
    for pattern, value in bound:
        trie.add(pattern, value)
    kept = list(bound)
    for _ in range(data.draw(st.integers(0, len(bound)))):
        trie.remove(*kept.pop(data.draw(st.integers(0, len(kept) - 1))))
    key = data.draw(keys)
    assert trie.match(key) == {value for pattern, value in kept if fits(split_words(pattern), split_words(key))}
    for pattern, value in kept:
        trie.remove(pattern, value)
    assert not trie._root.branches


def test_removing_what_was_never_added_is_an_error() -> None:
    trie: TopicTrie[int] = TopicTrie()
    trie.add("a.b", 1)
    with pytest.raises(KeyError):
        trie.remove("a.c", 1)


def test_many_hashes_and_a_long_key_take_little_time() -> None:
    trie: TopicTrie[int] = TopicTrie()
    trie.add(".".join(["#", "a"] * 20 + ["b"]), 1)
    started = time.process_time()
    assert trie.match(".".join(["a"] * 120)) == set()
    assert time.process_time() - started < 1
