"""Contents as callers pass them: which values are one buffer or many, and how many go to the core at a time."""

from __future__ import annotations

import array
import itertools
import random
from collections import deque
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore import errors
from logstore._core import lib
from logstore.core import binary_arrays
from logstore.store.content import ArrowPiece, Buffers, Stream, is_parts, pieces, split

ITEMS = st.lists(st.binary(max_size=40), max_size=60)


def unpacked(given_contents: Any, headers: Any = None) -> list[tuple[bytes, bytes | None]]:
    """The contents as the core would split them by their sizes."""
    found: list[tuple[bytes, bytes | None]] = []
    for piece in pieces(given_contents, headers):
        if isinstance(piece, ArrowPiece):
            whole, sizes = bytes(piece.parts.data), piece.parts.sizes
            ends = list(itertools.accumulate(sizes))
            assert not ends or ends[-1] <= len(whole)
            found += [(whole[end - size : end], None) for end, size in zip(ends, sizes, strict=True)]
        else:
            items = list(piece.contents)
            heads = [None] * len(items) if piece.headers is None else list(piece.headers)
            found += [
                (bytes(item), head if head is None else bytes(head))  # type: ignore[call-overload] # of buffers only
                for item, head in zip(items, heads, strict=True)
            ]
    return found


def test_a_buffer_is_one_content_and_an_iterable_many() -> None:
    for buffer in (b"", bytearray(b"x"), memoryview(b"x"), array.array("d", [1.0]), pa.py_buffer(b"x")):
        assert not is_parts(buffer)
        first, rest = split(buffer)
        assert first is buffer
        assert list(rest) == []
    for parts in ([b"a", b"b"], (b"a", b"b"), iter([b"a", b"b"])):
        assert is_parts(parts)
        first, rest = split(parts)
        assert [first, *rest] == [b"a", b"b"]
    assert split([])[0] == b""
    assert not is_parts("text")
    assert not is_parts(5)


@given(items=ITEMS)
def test_a_list_goes_down_whole_and_in_order(items: list[bytes]) -> None:
    assert unpacked(items) == [(item, None) for item in items]
    assert unpacked(iter(items), headers=iter(items)) == [(item, item) for item in items]


@given(items=ITEMS, seed=st.integers(0, 1000), wide=st.booleans())
def test_any_slicing_and_chunking_of_an_arrow_array_gives_its_items(items: list[bytes], seed: int, wide: bool) -> None:
    chance = random.Random(seed)
    kind = pa.large_binary() if wide else pa.binary()
    whole = pa.array(items, kind)
    start = chance.randint(0, len(items))
    stop = chance.randint(start, len(items))
    expected = [(item, None) for item in items[start:stop]]
    assert unpacked(whole.slice(start, stop - start)) == expected
    cut = chance.randint(0, len(items))
    chunked = pa.chunked_array([whole.slice(0, cut), whole.slice(cut)], kind)
    assert unpacked(chunked.slice(start, stop - start)) == expected
    heads = [(item, item[::-1]) for item in items]
    assert unpacked(chunked, headers=pa.array([item[::-1] for item in items], kind)) == heads


def test_text_arrays_are_their_utf8() -> None:
    assert unpacked(pa.array(["ä", "", "b"])) == [("ä".encode(), None), (b"", None), (b"b", None)]


def test_only_lists_and_arrow_arrays_are_read_before_their_items_are_published() -> None:
    def endless() -> Any:
        while True:
            yield b""

    items = [b"a", b"b"]
    for contents in (endless(), iter(items), deque(items), {b"a": 1}, {b"a": 1}.values(), map(bytes, items)):
        (piece,) = pieces(contents, None)  # type: ignore[arg-type] # of any items
        assert isinstance(piece, Stream)
        assert not piece.is_last
    for headers in (endless(), iter(items), deque(items)):
        for contents in (items, tuple(items), pa.array(items)):
            (piece,) = pieces(contents, headers)
            assert isinstance(piece, Stream)
    for contents in (items, tuple(items), pa.array(items), pa.chunked_array([items, items[:0]])):
        for given_headers in (None, items, pa.array(items)):
            assert not any(isinstance(piece, Stream) for piece in pieces(contents, given_headers))


@given(sizes=st.lists(st.integers(0, 30), max_size=8))
def test_the_last_chunk_alone_is_known_to_be_the_last_piece(sizes: list[int]) -> None:
    chunks = [pa.array([b"x"] * size, pa.binary()) for size in sizes]
    found = [piece.is_last for piece in pieces(pa.chunked_array(chunks, pa.binary()), None)]
    assert found == [False] * (len(sizes) - 1) + [True] * (len(sizes) > 0)


def test_offsets_that_do_not_ascend_are_refused() -> None:
    offsets = pa.py_buffer(array.array("i", [0, 5, 2, 6]).tobytes())
    broken = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"abcdef")])
    with pytest.raises(errors.OptionError, match="offset"):
        unpacked(broken)


def test_offsets_beyond_the_data_are_refused() -> None:
    offsets = pa.py_buffer(array.array("i", [0, 5, 6_000_000, 6]).tobytes())  # pyarrow checks only the ends
    broken = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"abcdef")])
    with pytest.raises(errors.OptionError, match="outside its data"):
        unpacked(broken.slice(0, 2))


def of_offsets(offsets: list[int], data: bytes, *, wide: bool = False) -> tuple[pa.Array, array.array[int]]:
    """An array of binaries with these offsets, and the memory of the offsets, which are valid while it is made."""
    memory = array.array("q" if wide else "i", [0] * len(offsets))
    kind = pa.large_binary() if wide else pa.binary()
    made = pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(memory), pa.py_buffer(data)])
    memory[:] = array.array(memory.typecode, offsets)
    return made, memory


WRONG_OFFSETS = ([0, -1], [-1, 3], [-8, -2], [0, 2, 7], [6, 6, 7], [0, 2**31 - 1], [5, 4], [0, -1, 3])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("offsets", WRONG_OFFSETS)
@pytest.mark.parametrize("use", ["alone", "with headers", "as headers"])
def test_no_use_of_an_array_reads_outside_its_data(offsets: list[int], wide: bool, use: str) -> None:
    broken, _ = of_offsets(offsets, b"abcdef", wide=wide)
    other = [b""] * len(broken)
    with pytest.raises(errors.OptionError, match="offset"):
        unpacked(other if use == "as headers" else broken, {"alone": None, "with headers": other}.get(use, broken))


@pytest.mark.parametrize("wide", [False, True])
def test_an_array_with_fewer_offsets_than_items_is_refused(wide: bool) -> None:
    class Short:
        offset = 1

        def __len__(self) -> int:
            return 3

        def buffers(self) -> list[Any]:
            return [None, pa.py_buffer(bytes(4 * (8 if wide else 4))), pa.py_buffer(b"abcdef")]

    with pytest.raises(errors.OptionError, match="fewer offsets"):
        binary_arrays.parts_of(Short(), wide=wide)


@pytest.mark.parametrize("wide", [False, True])
def test_offsets_that_change_during_the_call_change_nothing(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    items, offsets = of_offsets([0, 1, 3, 6], b"abcdef", wide=wide)

    class Changing:
        """The core, and another thread that changes the offsets as soon as the core has read them."""

        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def ls_sizes_of_offsets(self, *given: Any) -> int:
            code = lib.ls_sizes_of_offsets(*given)
            for number in range(len(offsets)):
                offsets[number] = 3 + 1_000_000 * number
            return code

    monkeypatch.setattr(binary_arrays, "lib", Changing())
    assert unpacked(items) == [(b"a", None), (b"bc", None), (b"def", None)]


@given(sizes=st.lists(st.sampled_from([0, 1, 300, 9000, 70_000]), max_size=1100))
@settings(max_examples=30)
def test_large_contents_among_small_ones_go_down_once_each_and_in_order(sizes: list[int]) -> None:
    items = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    assert unpacked(items) == [(item, None) for item in items]
    assert unpacked(tuple(items), headers=items) == [(item, item) for item in items]


def test_items_of_several_bytes_each_count_as_bytes() -> None:
    wide = array.array("I", [1, 2, 3])
    assert unpacked([b"x", wide, memoryview(wide)]) == [(b"x", None), (wide.tobytes(), None), (wide.tobytes(), None)]


def test_a_list_that_gives_another_number_of_items_than_its_length_is_refused() -> None:
    class Changing(list[bytes]):
        def __iter__(self) -> Any:
            return iter([b"x"])

    for contents, headers in [(Changing([b"x", b"y"]), None), ([b"x", b"y"], Changing([b"x", b"y"]))]:
        with pytest.raises(errors.OptionError, match="changed while it was read"):
            unpacked(contents, headers)


def test_a_list_is_read_once_as_it_is_at_the_call() -> None:
    items = [b"%d" % number for number in range(5000)]
    source = pieces(items, None)
    first = next(source)
    items[:] = []
    assert isinstance(first, Buffers)
    assert [item for piece in (first, *source) for item in piece.contents] == [b"%d" % n for n in range(5000)]
