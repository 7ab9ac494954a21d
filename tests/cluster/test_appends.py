"""A frame with more bytes than a message may have goes as several, each of which follows the one before."""

from __future__ import annotations

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from logstore.cluster import appends
from logstore.cluster import engine as engines
from logstore.cluster.frames import Carried, message_parts
from logstore.cluster.replica import Batch

BATCH_BYTES_MAX = 1 << 20


def frame_of(sizes: list[int]) -> tuple[engines.Frame, list[Carried]]:
    carried = []
    for at, size in enumerate(sizes):
        batch = Batch(3 + at // 5, 101 + at, 8192, 8192 + size, 4096, 0, None, bytes(size))
        carried.append(Carried(batch, engines.BATCH, b""))
    return engines.Frame(1, 2, 9, 100, 3, 90, engines.APPEND, 0, len(sizes)), carried


@pytest.mark.parametrize("sizes", [[BATCH_BYTES_MAX] * engines.ENTRIES_MAX, [4096], [4096, BATCH_BYTES_MAX] * 20])
def test_each_part_fits_into_a_message_and_follows_the_one_before(sizes: list[int]) -> None:
    frame, carried = frame_of(sizes)
    index, term, sent = frame.log_index, frame.index_term, []
    for part, some in appends.parts(frame, carried):
        assert (part.log_index, part.index_term, part.entry_count) == (index, term, len(some))
        assert (part.term, part.other, part.type) == (frame.term, frame.other, frame.type)
        assert some
        assert message_parts(1, part, some)  # it raises for a message that is too long
        index, term = some[-1].batch.index, some[-1].batch.term
        sent += some
    assert sent == carried


def test_a_frame_that_fits_goes_as_it_is() -> None:
    frame, carried = frame_of([4096] * 20)
    assert list(appends.parts(frame, carried)) == [(frame, carried)]
