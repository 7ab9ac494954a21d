"""Topic matching: which binding patterns match a routing key.

Words are separated by dots; `*` matches exactly one word, `#` zero or more words. An empty key has no
words. The patterns are stored in a trie, so the cost of a match depends on the words of the key and
the matching branches, not on the number of bindings.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

T = TypeVar("T")

ANY_WORD: Final = "*"
ANY_WORDS: Final = "#"


class _Node(Generic[T]):
    __slots__ = ("branches", "loops", "values")

    def __init__(self, loops: bool) -> None:
        self.loops = loops  # reached by "#": matches further words
        self.branches: dict[str, _Node[T]] = {}
        self.values: dict[T, int] = {}  # with counts, because the same value may be bound more than once


def split_words(key: str) -> list[str]:
    """The words of a key or a pattern."""
    return key.split(".") if key else []


class TopicTrie(Generic[T]):
    """Patterns with values. The same pair may be added several times, and then must be removed as often."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node(loops=False)

    def add(self, pattern: str, value: T) -> None:
        """Bind a value to a pattern."""
        node = self._root
        for word in split_words(pattern):
            found = node.branches.get(word)
            if found is None:
                found = node.branches[word] = _Node(loops=word == ANY_WORDS)
            node = found
        node.values[value] = node.values.get(value, 0) + 1

    def remove(self, pattern: str, value: T) -> None:
        """Undo one `add`. Raises `KeyError` if there was none."""
        words = split_words(pattern)
        path = [self._root]
        for word in words:
            path.append(path[-1].branches[word])
        values = path[-1].values
        values[value] -= 1
        if not values[value]:
            del values[value]
        for parent, word, node in zip(reversed(path[:-1]), reversed(words), reversed(path[1:]), strict=True):
            if node.values or node.branches:
                break
            del parent.branches[word]

    def match(self, key: str) -> set[T]:
        """All values whose pattern matches the key."""
        words = split_words(key)
        matched: set[T] = set()
        # With several "#" many paths lead to the same node at the same word. The set of visited pairs limits the work
        # to nodes x words; plain backtracking would be exponential.
        seen: set[tuple[int, int]] = set()
        pending: list[tuple[_Node[T], int]] = [(self._root, 0)]
        while pending:
            node, at = pending.pop()
            if (id(node), at) in seen:
                continue
            seen.add((id(node), at))
            many = node.branches.get(ANY_WORDS)
            if many is not None:
                pending.append((many, at))
            if at == len(words):
                matched.update(node.values)
                continue
            if node.loops:
                pending.append((node, at + 1))
            one = node.branches.get(ANY_WORD)
            if one is not None:
                pending.append((one, at + 1))
            word = words[at]
            if word not in (ANY_WORD, ANY_WORDS):  # in a key these are ordinary words
                exact = node.branches.get(word)
                if exact is not None:
                    pending.append((exact, at + 1))
        return matched
