"""Parts of an index against indices of the same stores alone, at random."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

from diskbuffer.index.fields import ENDED, EPISODES, FLOOR, HEAD, LOW, OWN, SEGMENTS, STORE
from diskbuffer.index.index import Index
from diskbuffer.index.part import IndexPart, Streams

Int64 = npt.NDArray[np.int64]
ROWS, CONTEXT = 8, 2
FIELDS = [HEAD, ENDED, LOW, FLOOR, EPISODES, SEGMENTS]


def ints(*numbers: int) -> Int64:
    return np.array(numbers, np.int64)


class Store:
    """One store's streams, in an index of its own and in a part of a shared one."""

    def __init__(self, alone: Index, part: IndexPart) -> None:
        self.alone, self.part, self._next = alone, part, 0

    def add_episode(self, rng: random.Random, stream: int) -> None:
        """Add some rows, of which the last may end an episode."""
        head, table = int(self.alone.heads[stream]), self.alone.table
        is_over = head < 0 or bool(table[stream, ENDED])
        last, segments = head + rng.randrange(1, 20), self.alone.segments(stream)
        firsts = [*range(int(segments[-1, 0]) + ROWS if len(segments) else head + 1, last + 1, ROWS)]
        numbers = [self._next + n for n in range(len(firsts))]
        self._next += len(firsts) + rng.randrange(2)
        ended = rng.random() < 0.5
        for index in self.both():
            index.add_segments(np.full(len(firsts), stream), np.array(firsts, np.int64), np.array(numbers, np.int64))
            if is_over:
                index.start_episodes(ints(stream), ints(head + 1))
            index.advance(ints(stream), ints(last), np.array([ended]))

    def evict(self, rng: random.Random, stream: int) -> None:
        """Drop some segments, but not the newest."""
        count = rng.randrange(max(1, len(self.alone.segments(stream))))
        dropped = [index.drop_segments(ints(stream), ints(count)).tolist() for index in self.both()]
        assert dropped[0] == dropped[1]

    def drop_below(self, rng: random.Random) -> None:
        """Drop what lies below some positions, which may be all of a stream."""
        below = np.maximum(self.alone.heads + 2 - rng.randrange(30), 0)
        for index in self.both():
            index.drop_below(below)

    def both(self) -> tuple[Streams, Streams]:
        return self.alone, self.part

    def check(self) -> None:
        """Compare everything that can be read."""
        alone, part = self.alone, self.part
        assert len(alone) == len(part)
        assert alone.added() == part.added()
        assert (alone.heads == part.heads).all()
        assert (alone.table[:, FIELDS] == part.table[:, FIELDS]).all()
        assert (self.part.table[:, STORE] == self.part.store).all()
        assert (self.part.table[:, OWN] == np.arange(self.part.count)).all()
        for name in ("added_each", "newest_segments", "newest_alone"):
            assert (getattr(alone, name)() == getattr(part, name)()).all(), name
        there = np.flatnonzero(alone.heads >= alone.table[:, LOW])
        heads = alone.heads[there]
        for name in ("steps_up_to", "episode_starts", "rows_of"):
            assert (getattr(alone, name)(there, heads) == getattr(part, name)(there, heads)).all(), name
        for found, same in zip(alone.segments_from(there, heads), part.segments_from(there, heads), strict=True):
            assert (found == same).all()


def test_a_part_is_as_the_index_of_its_store_alone(any_seed: int) -> None:
    rng = random.Random(any_seed)
    for _ in range(20):
        counts = [rng.randrange(1, 5) for _ in range(rng.randrange(1, 4))]
        whole, firsts = Index(sum(counts), ROWS, CONTEXT), np.cumsum([0, *counts])
        stores = [
            Store(Index(count, ROWS, CONTEXT), IndexPart(whole, int(firsts[n]), count, n, len(counts)))
            for n, count in enumerate(counts)
        ]
        for _ in range(100):
            store = rng.choice(stores)
            stream = rng.randrange(store.part.count)
            what = rng.random()
            if what < 0.7:
                store.add_episode(rng, stream)
            elif what < 0.9:
                store.evict(rng, stream)
            else:
                store.drop_below(rng)
            for each in stores:
                each.check()
        numbers = np.concatenate([whole.segments(stream)[:, 1] for stream in range(sum(counts))])
        assert len(np.unique(numbers)) == len(numbers)
