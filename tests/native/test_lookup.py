"""What native lookups refuse; what they find is compared with plain lists in tests/index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from diskbuffer.index.index import Index
from diskbuffer.native.index import StreamSums

THREE = np.zeros(3, np.int64)

WRONG: list[tuple[Callable[[Index], Any], type[Exception], str]] = [
    (lambda index: index.locate(THREE), IndexError, "places from 0 to -1, found 0"),
    (lambda index: index.locate_episodes(THREE), IndexError, "places from 0 to -1, found 0"),
    (lambda index: index.locate_in(0, THREE), IndexError, "stream 0 has no step 0"),
    (lambda index: index.recent(THREE[:2], THREE), ValueError, "one length, found 2 and 3"),
    (lambda index: index.episodes_of(THREE, THREE[:1]), ValueError, "one length"),
    (lambda index: index.rows_of(1, THREE), IndexError, "stream 1 has no row at position 0"),
    (lambda index: index.rows_of(2, THREE), IndexError, "streams from 0 to 1, found 2"),
    (lambda index: index.starts(-1), IndexError, "from 0 to 1, found -1"),
    (lambda index: index.add_segments(0, THREE, THREE[:2]), ValueError, "one length"),
    (lambda index: index.add_leads(0, np.zeros((2, 3), np.int64)), ValueError, "one length, found 3 and 2"),
    (lambda index: index.drop_segments(0, THREE[:1] + 1), ValueError, "has 0 segments, not 1"),
    (lambda index: index.clear(1, 2), IndexError, "found 2"),
    (lambda index: index.take(1, Index(2, 8, 0), -1, 0, THREE), IndexError, "found 2"),
    (lambda _: Index(0, 8, 0), ValueError, "found 0, 8, 0 and 1"),
    (lambda _: StreamSums(3).find(THREE), IndexError, "from 0 to -1"),
    (lambda _: StreamSums(3).set(THREE, THREE), ValueError, "ascending order"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_what_is_not_there_is_refused(call: Callable[[Index], Any], error: type[Exception], message: str) -> None:
    index = Index(2, 8, 0)
    with pytest.raises(error, match=message):
        call(index)
    assert index.version == 0
