"""The index of steps and episodes against plain lists."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diskbuffer.index.fields import ENDED, FLOOR, HEAD
from diskbuffer.index.index import Index
from tests.amounts import examples


@dataclass
class Rows:
    """A stream as a plain list: of each row, whether it is an episode's last."""

    last: list[bool] = field(default_factory=list)
    low: int = 0
    slots: list[int] = field(default_factory=list)

    @property
    def head(self) -> int:
        return len(self.last) - 1

    def start(self, position: int) -> int:
        while position > 0 and not self.last[position - 1]:
            position -= 1
        return position

    def end(self, position: int) -> int:
        while position < self.head and not self.last[position]:
            position += 1
        return position

    def steps(self, context: int) -> list[int]:
        """Positions of steps of which every frame of the stack is there."""
        found = [p for p in range(self.low, self.head) if not self.last[p]]
        return [p for p in found if max(self.start(p), p - context) >= self.low]

    def steps_before(self, position: int) -> int:
        return sum(not last for last in self.last[:position])


class Indexed:
    """Streams that are written to an index and to lists."""

    def __init__(self, streams: int, segment_rows: int, context: int) -> None:
        self.index = Index(streams, segment_rows, context)
        self.rows = [Rows() for _ in range(streams)]
        self.segment_rows, self.context, self.made = segment_rows, context, 0

    def step(self, stream: int, ending: str) -> None:
        rows = self.rows[stream]
        if rows.last and ending == "cut off":
            rows.last[-1] = True
        starts = not rows.last or rows.last[-1]
        for last in [False] * starts + [ending == "ends"]:
            if (rows.head + 1) % self.segment_rows == 0:
                self.made += 1
                rows.slots.append(self.made)
                self.index.add_slot(stream, self.made)
            rows.last.append(last)
        self.index.table[stream, [HEAD, ENDED]] = rows.head, rows.last[-1]
        if starts:
            self.index.start_episodes(stream, np.array([rows.head - 1]))

    def evict(self, stream: int) -> None:
        rows = self.rows[stream]
        if rows.head >= rows.low + self.segment_rows + self.context:
            assert self.index.drop_segment(stream) == rows.slots.pop(0)
            rows.low += self.segment_rows

    def restored(self) -> Index:
        """Return an index as it is read from a disk, where what was evicted is not."""
        index = Index(len(self.rows), self.segment_rows, self.context)
        for stream, rows in enumerate(self.rows):
            if not rows.last:
                continue
            starts = [p for p in range(rows.low + 1, rows.head + 1) if rows.last[p - 1]]
            starts = [rows.start(rows.low), *starts]
            before = rows.steps_before(rows.low)
            index.restore(stream, np.array(rows.slots), np.array(starts), rows.head, rows.last[-1], before)
        return index

    def check_stream(self, index: Index, stream: int) -> None:
        rows = self.rows[stream]
        steps = [(stream, p, rows.start(p), rows.end(p)) for p in reversed(rows.steps(self.context))]
        located, missing = index.recent(np.full(len(steps), stream), np.arange(len(steps)))
        assert missing == -1
        assert list(zip(*located.tolist(), strict=True)) == steps
        assert index.recent(np.array([stream] * 2), np.array([0, len(steps)]))[1] == (1 if steps else 0)
        assert index.recent(np.array([stream]), np.array([-1]))[1] == 0
        assert index.recent(np.array([stream + len(self.rows)]), np.array([0]))[1] == 0
        kept = np.arange(rows.low, rows.head + 1)
        slots = [rows.slots[(p - rows.low) // self.segment_rows] for p in kept.tolist()]
        expected = [slot * self.segment_rows + p % self.segment_rows for slot, p in zip(slots, kept.tolist(), strict=True)]
        assert index.rows_of(np.full(len(kept), stream), kept).tolist() == expected
        known = range(index.starts(stream)[0] if rows.last else 0, rows.head + 1)
        firsts, lasts = index.episodes_along(np.full(len(known), stream), np.array(known, np.int64), 5)
        for p, along, ends in zip(known, firsts.tolist(), lasts.tolist(), strict=True):
            there = [q for q in range(p, p + 5) if q <= rows.head]
            assert along[: len(there)] == [rows.start(q) for q in there]
            assert ends[: len(there)] == [rows.end(q) if rows.last[rows.end(q)] else -1 for q in there]

    def check_episodes(self, index: Index) -> None:
        expected = []
        for stream, rows in enumerate(self.rows):
            floor = index.table[stream, FLOOR]
            starts = [p for p in range(rows.head + 1) if rows.start(p) == p and rows.end(p) >= floor] if rows.last else []
            expected += [(stream, max(p, floor), p, rows.end(p)) for p in starts]
        located = index.locate_episodes(np.arange(len(expected)))
        assert list(zip(*located.tolist(), strict=True)) == expected
        assert index.episodes == len(expected)

    def check(self, index: Index) -> None:
        context, expected = self.context, []
        for stream, rows in enumerate(self.rows):
            expected += [(stream, p, rows.start(p), rows.end(p)) for p in rows.steps(context)]
            assert index.slots(stream).tolist() == rows.slots
            known = index.starts(stream).tolist()  # of episodes before the first, only that they were
            for position in range(known[0] if known else 0, rows.head + 1):
                assert index.steps_before(stream, position) == rows.steps_before(position)
            around = np.arange(-2, rows.head + 4)
            samplable = set(rows.steps(context))
            starts, ends = index.episodes_of(np.full(len(around), stream), around)
            assert starts.tolist() == [rows.start(p) if p in samplable else -1 for p in around.tolist()]
            assert ends.tolist() == [rows.end(p) if p in samplable else -1 for p in around.tolist()]
            self.check_stream(index, stream)
        self.check_episodes(index)
        assert index.heads.tolist() == [rows.head for rows in self.rows]
        assert index.steps().tolist() == [len(rows.steps(context)) for rows in self.rows]
        located = index.locate(np.arange(len(expected)))
        assert list(zip(*(part.tolist() for part in located), strict=True)) == expected
        assert index.added() == sum(rows.steps_before(rows.head) for rows in self.rows)


@examples(60, 2000)
@given(data=st.data())
def test_the_index_knows_what_a_plain_list_knows(data: st.DataObject) -> None:
    streams, context = data.draw(st.integers(1, 3), "streams"), data.draw(st.integers(0, 5), "context")
    world = Indexed(streams, 8, context)
    world.check(world.index)
    endings = st.sampled_from(data.draw(st.sampled_from([["", "", "", "ends"], ["", "ends", "cut off"], [""]]), "mix"))
    for _ in range(data.draw(st.integers(1, 6), "rounds")):
        stream = data.draw(st.integers(0, streams - 1), "stream")
        for ending in data.draw(st.lists(endings, max_size=25), "steps"):
            world.step(stream, ending)
        for _ in range(data.draw(st.integers(0, 3), "evictions")):
            world.evict(stream)
        world.check(world.index)
    world.check(world.restored())


def test_an_index_takes_no_memory_for_each_row() -> None:
    world = Indexed(1, 1024, 3)
    for t in range(5000):
        world.step(0, "ends" if t % 1000 == 999 else "")
    assert world.index.nbytes < 1000
