"""The index of steps and episodes against plain lists."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskbuffer.index.fields import FLOOR, HEAD
from diskbuffer.index.gathered import GatheredIndex, Part
from diskbuffer.index.index import NO_LEADS, Index, Of, Rows
from diskbuffer.native.index import StreamSums
from tests.amounts import examples

Int64 = npt.NDArray[np.int64]


@dataclass
class Lists:
    """A stream as plain lists: of each row, whether it is an episode's last; first rows and numbers of segments; lead-ins."""

    last: list[bool] = field(default_factory=list)
    low: int = 0
    begin: int = 0
    segments: list[tuple[int, int]] = field(default_factory=list)
    leads: dict[int, int] = field(default_factory=dict)

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

    def starts(self) -> list[int]:
        return [p for p in range(self.head + 1) if self.start(p) == p]

    def steps(self, context: int) -> list[int]:
        """Positions of steps of which every frame of the stack is there."""
        found = [p for p in range(max(self.low, self.begin), self.head) if not self.last[p]]
        first_frames = {p: self.leads.get(self.start(p), self.start(p)) for p in found}
        return [p for p in found if max(first_frames[p], p - context) >= self.low]

    def steps_before(self, position: int) -> int:
        return sum(not last for last in self.last[:position])

    def row(self, position: int, segment_rows: int) -> int:
        first, number = [segment for segment in self.segments if segment[0] <= position][-1]
        return number * segment_rows + position - first


class Indexed:
    """Streams that are written to an index and to lists."""

    def __init__(self, streams: int, segment_rows: int, context: int, uneven: bool = True) -> None:
        self.index = Index(streams, segment_rows, context)
        self.rows = [Lists() for _ in range(streams)]
        self.segment_rows, self.context, self.uneven, self.made = segment_rows, context, uneven, 0

    def row(self, stream: int, last: bool, dice: int) -> None:
        """Append a row; by the dice, the segment ends before it, or before the newest row, which the next one has again."""
        rows, next_row = self.rows[stream], self.rows[stream].head + 1
        first = next_row
        if rows.segments and next_row - rows.segments[-1][0] < self.segment_rows:
            first = -1 if dice > 1 or not self.uneven else next_row - dice
        if first >= 0:
            self.made += 1
            rows.segments.append((first, self.made))
            self.index.add_segments(stream, np.array([first]), np.array([self.made]))
        rows.last.append(last)

    def step(self, stream: int, ending: str, dice: int = 9) -> None:
        rows = self.rows[stream]
        if rows.last and ending == "cut off":
            rows.last[-1] = True
        starts, leads = not rows.last or rows.last[-1], NO_LEADS
        begun = list[int]()
        if starts and ending == "led in" and self.context:
            while len(begun) < self.context or rows.head + 1 - rows.segments[-1][0] >= self.segment_rows:
                begun.append(rows.head + 1)
                self.row(stream, True, dice)
            dice = 9  # the first row of an episode and its lead-in are in one segment
            leads = np.array([[rows.head + 1, begun[0]]])
            rows.leads[rows.head + 1] = begun[0]
        if starts:
            begun.append(rows.head + 1)
        for last in [False] * starts + [ending == "ends"]:
            self.row(stream, last, dice)
        if ending == "cut off" and len(self.rows) > 1:  # as a kernel does it
            self.index.table[stream, :2] = rows.head, rows.last[-1]
            self.index.advanced(stream if dice % 2 else None)
        else:
            self.index.advance(stream, rows.head, rows.last[-1])
        self.index.start_episodes(stream, np.array(begun, np.int64))
        self.index.add_leads(stream, leads)

    def evict(self, stream: int) -> None:
        rows = self.rows[stream]
        if len(rows.segments) > 1 and rows.head >= rows.segments[1][0] + self.context:
            assert self.index.drop_segment(stream) == rows.segments.pop(0)[1]
            rows.low = rows.segments[0][0]

    def clear(self, stream: int) -> None:
        rows = self.rows[stream]
        if rows.last and rows.last[-1]:
            rows.begin = rows.head + 1
            self.index.begin_at(stream, rows.begin)

    def restored(self) -> Index:
        """Return an index as it is read from a disk, where what was evicted is not."""
        index = Index(len(self.rows), self.segment_rows, self.context)
        there = [stream for stream, rows in enumerate(self.rows) if rows.last]
        kept = [self.rows[stream] for stream in there]
        segments = [(s, np.array(rows.segments, np.int64)) for s, rows in zip(there, kept, strict=True)]
        leads = [[lead for lead in sorted(rows.leads.items()) if lead[0] > rows.low] for rows in kept]
        starts = [
            (s, np.array([rows.start(rows.low), *(p for p in rows.starts() if p > rows.low)]))
            for s, rows in zip(there, kept, strict=True)
        ]
        firsts, numbers = (Of.joined([(s, pairs[:, n]) for s, pairs in segments], np.empty(0, np.int64)) for n in (0, 1))
        restored = Rows(
            np.array(there, np.int64),
            np.array([rows.head for rows in kept], np.int64),
            np.array([rows.last[-1] for rows in kept], np.bool_),
            firsts,
            numbers.values,
            Of.joined(starts, np.empty(0, np.int64)),
            Of.joined([(s, np.array(some, np.int64).reshape(-1, 2)) for s, some in zip(there, leads, strict=True)], NO_LEADS),
        )
        first_steps = Of(restored.streams, np.array([rows.steps_before(rows.low) for rows in kept], np.int64))
        index.restore(restored, first_steps)
        index.begin_at(np.arange(len(self.rows)), np.array([rows.begin for rows in self.rows]))
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
        assert index.rows_of(stream, kept).tolist() == [rows.row(p, self.segment_rows) for p in kept.tolist()]
        some = kept[kept >= index.starts(stream)[0]] if rows.last else kept
        assert index.episode_starts(stream, some).tolist() == [rows.start(p) for p in some.tolist()]
        whole = [q <= rows.head and rows.start(q) == q and (q == rows.head or rows.last[q]) for q in range(rows.head + 3)]
        assert index.rows_alone(stream, some, 2).tolist() == [whole[p] and whole[p + 1] for p in some.tolist()]
        known = range(index.starts(stream)[0] if rows.last else 0, rows.head + 1)
        firsts, lasts = index.episodes_along(np.full(len(known), stream), np.array(known, np.int64), 5)
        for p, along, ends in zip(known, firsts.tolist(), lasts.tolist(), strict=True):
            there = [q for q in range(p, p + 5) if q <= rows.head]
            assert along[: len(there)] == [rows.start(q) for q in there]
            assert ends[: len(there)] == [rows.end(q) if rows.last[rows.end(q)] else -1 for q in there]

    def check_episodes(self, index: Index) -> None:
        expected = []
        for stream, rows in enumerate(self.rows):
            floor, starts = int(index.table[stream, FLOOR]), rows.starts()
            starts = starts[max(0, bisect_right(starts, floor) - 1) :]
            expected += [(stream, max(p, floor), p, rows.end(p)) for p in starts]
            before = index.episodes_before(stream, np.array(starts, np.int64))
            assert before.tolist() == list(range(len(starts)))
        located = index.locate_episodes(np.arange(len(expected)))
        assert list(zip(*located.tolist(), strict=True)) == expected
        assert index.episodes == len(expected)
        there = [each for each in expected if each[3] > each[1]]
        assert list(zip(*index.sampled_episodes().tolist(), strict=True)) == there

    def check(self, index: Index) -> None:
        context, expected = self.context, []
        for stream, rows in enumerate(self.rows):
            expected += [(stream, p, rows.start(p), rows.end(p)) for p in rows.steps(context)]
            assert index.segments(stream).tolist() == [list(segment) for segment in rows.segments]
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
        assert index.added_each().tolist() == [rows.steps_before(rows.head) if rows.last else 0 for rows in self.rows]


@examples(60, 2000)
@given(data=st.data())
def test_the_index_knows_what_a_plain_list_knows(data: st.DataObject) -> None:
    streams, context = data.draw(st.integers(1, 3), "streams"), data.draw(st.integers(0, 5), "context")
    world = Indexed(streams, 8, context)
    world.check(world.index)
    mixes = [["", "", "", "ends"], ["", "ends", "cut off"], [""], ["", "ends", "led in"]]
    endings = st.tuples(st.sampled_from(data.draw(st.sampled_from(mixes), "mix")), st.integers(0, 20))
    for _ in range(data.draw(st.integers(1, 6), "rounds")):
        stream, before, version = data.draw(st.integers(0, streams - 1), "stream"), world.index.version, len(world.index)
        for ending, dice in data.draw(st.lists(endings, max_size=25), "steps"):
            world.step(stream, ending, dice)
        for _ in range(data.draw(st.integers(0, 3), "evictions")):
            world.evict(stream)
        if data.draw(st.integers(0, 5), "clear") == 0:
            world.clear(stream)
        assert (world.index.version > before) == bool(len(world.index.changed_since(before)))
        assert version == len(world.index) or stream in world.index.changed_since(before)
        world.check(world.index)
    world.check(world.restored())


def test_hundreds_of_streams_are_as_plain_lists_say(any_seed: int) -> None:
    rng = np.random.default_rng(any_seed)
    world = Indexed(600, 8, 1)
    for _ in range(4):
        for stream in rng.integers(0, 600, rng.choice([1, 3, 300])).tolist():
            for _ in range(int(rng.integers(0, 30))):
                world.step(stream, str(rng.choice(["", "", "", "ends", "cut off"])), int(rng.integers(0, 20)))
            world.evict(stream)
        expected = [(s, p) for s, rows in enumerate(world.rows) for p in rows.steps(1)]
        assert list(zip(*world.index.locate(np.arange(len(expected)))[:2].tolist(), strict=True)) == expected
        assert len(world.index) == len(expected)


def test_several_indexes_are_as_one(any_seed: int) -> None:
    rng = np.random.default_rng(any_seed)
    worlds, gathered = {0: Indexed(2, 8, 1, False), 3: Indexed(3, 8, 1), 6: Indexed(1, 8, 1)}, GatheredIndex(8, 8, 1)
    for _ in range(30):
        parts = []
        for number, (first, world) in enumerate(worlds.items()):
            if rng.random() < 0.1:  # another store comes in its place
                worlds[first] = world = Indexed(len(world.rows), 8, 1)
            for _ in range(int(rng.integers(0, 20))):
                stream = int(rng.integers(len(world.rows)))
                world.step(stream, str(rng.choice(["", "", "ends"])), int(rng.integers(0, 20)))
                world.evict(stream)
            is_gone = rng.random() < 0.1
            parts.append(Part(None if is_gone else world.index, first, number, 1000 * number + np.arange(1000)))
        dropped, before = gathered.dropped, sum(world.index.dropped for world in worlds.values())
        gathered.update(parts)
        assert gathered.dropped >= dropped or before == 0
        expected, rows = list[tuple[int, int]](), list[int]()
        environments = list[int]()
        for part, world in zip(parts, worlds.values(), strict=True):
            heads = gathered.table[part.first_stream : part.first_stream + len(world.rows), HEAD].tolist()
            assert heads == [-1 if part.of is None else lists.head for lists in world.rows]
            if part.of is None:
                continue
            environments += range(part.first_stream, part.first_stream + len(world.rows))
            for stream, lists in enumerate(world.rows):
                expected += [(part.first_stream + stream, p) for p in lists.steps(1)]
                rows += [1000 * part.store * 8 + lists.row(p, 8) for p in lists.steps(1)]
        located = gathered.locate(np.arange(len(expected)))
        assert list(zip(*located[:2].tolist(), strict=True)) == expected
        assert gathered.rows_of(located[0], located[1]).tolist() == rows
        assert gathered.environments.tolist() == environments


@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 1000])
def test_numbers_fall_on_streams_as_cumulated_counts_say(n: int, any_seed: int) -> None:
    rng, sums, counts = np.random.default_rng(any_seed), StreamSums(n), np.zeros(n, np.int64)
    for _ in range(20):
        some = np.flatnonzero(rng.random(n) < rng.choice([0.01, 0.5, 1]))
        counts[some] = rng.integers(0, rng.choice([2, 10, 2**40]), len(some)) * (rng.random(len(some)) < 0.7)
        sums.set(some, counts[some])
        assert sums.total == counts.sum()
        assert sums.of(np.arange(n)).tolist() == counts.tolist()
        ends = np.cumsum(counts)
        edges = np.concatenate([ends - 1, ends, ends + 1])
        numbers = np.concatenate([edges[(edges >= 0) & (edges < sums.total)], rng.integers(0, max(sums.total, 1), 50)])
        numbers = numbers[: len(numbers) * (sums.total > 0)]
        streams, places = sums.find(numbers)
        assert streams.tolist() == np.searchsorted(ends, numbers, side="right").tolist()
        assert places.tolist() == (numbers - (ends - counts)[streams]).tolist()


def test_an_index_takes_no_memory_for_each_row() -> None:
    world = Indexed(1, 1024, 3, uneven=False)
    for t in range(5000):
        world.step(0, "ends" if t % 1000 == 999 else "")
    assert world.index.nbytes < 1000


def test_tens_of_thousands_of_streams_take_little_memory() -> None:
    index = Index(2**16, 64, 0)
    every = np.arange(2**16)
    index.add_segments(every, np.zeros(2**16, np.int64), every)
    index.start_episodes(every, np.zeros(2**16, np.int64))
    assert index.nbytes < 300 * 2**16
