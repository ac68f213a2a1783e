"""The pure parts, without a disk: schema, sizes, index, retention, blocks, the codec; and which part may import which."""

from __future__ import annotations

import ast
import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs.blosc
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer import errors
from diskbuffer.index.index import Index
from diskbuffer.native.libraries import HAVE_BLOSC
from diskbuffer.recording.blocks import Block, lead_frames, lead_rows, refuse_what_does_not_roll, same_rows, starts_of
from diskbuffer.recording.equality import all_zero, float_bytes, same_values
from diskbuffer.recording.retention import Retention
from diskbuffer.schema import Schema
from diskbuffer.store.format import codec, zarr_metadata
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.format.sizes import chunk_rows_of, segment_rows_of

Array = npt.NDArray[Any]
FRAMES = Schema.of({"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")})

# Schema

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128"]
PATHS = ["obs", "action", "extra/deep/er", "extra/x", "möglich", "a1"]
COLUMNS = st.builds(
    db.Column, st.lists(st.integers(1, 9), max_size=3).map(tuple), st.sampled_from(DTYPES), allow_nan=st.booleans()
)


def test_spaces_become_columns_and_reward_and_flags_are_added() -> None:
    observation = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (84, 84), np.uint8),
            "inner": spaces.Dict({"a": spaces.Discrete(3), "b": spaces.MultiBinary(4)}),
        }
    )
    schema = Schema.from_spaces(observation, spaces.MultiDiscrete([2, 3]), {"log_prob": db.Column()})
    assert dict(schema.columns) == {
        "obs/image": db.Column((84, 84), "uint8"),
        "obs/inner/a": db.Column((), "int64"),
        "obs/inner/b": db.Column((4,), "int8"),
        "action": db.Column((2,), "int64"),
        "reward": db.Column((), "float32"),
        "terminated": db.Column((), "bool"),
        "truncated": db.Column((), "bool"),
        "is_last": db.Column((), "bool"),
        "row_checksum": db.Column((2,), "uint32"),
        "log_prob": db.Column((), "float32"),
    }
    assert schema.obs == ("obs/image", "obs/inner/a", "obs/inner/b")
    assert schema.step == ("action", "reward", "terminated", "truncated", "log_prob")


def test_a_column_is_the_same_however_it_is_written() -> None:
    assert db.Column((3,), ">f4") == db.Column([3], np.float32) == db.Column((np.int64(3),), "float32")  # type: ignore[arg-type]
    assert db.Column((3,)) != db.Column((3,), allow_nan=True)
    assert str(db.Column((84, 84), "uint8")) == "uint8[84, 84]"
    assert "NaN allowed" in str(db.Column((), "float32", allow_nan=True))
    assert db.Column((2, 3), "complex64").row_bytes == 48


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.sampled_from(PATHS), COLUMNS, min_size=1))
def test_a_schema_comes_back_from_its_attributes(columns: dict[str, db.Column]) -> None:
    schema = Schema.of(columns)
    again = Schema.from_attributes(schema.to_attributes())
    assert again == schema
    assert list(again) == list(schema)
    assert schema.difference(again) == ""


def test_the_difference_of_schemas_names_each_column_that_differs() -> None:
    other = Schema.of({"obs": db.Column((84, 84), "float32"), "deed": db.Column((2,), "int8", allow_nan=True)})
    assert FRAMES.difference(other).splitlines() == [
        "  obs: stored uint8[84, 84], asked for float32[84, 84]",
        "  action: stored int64[], asked for nothing",
        "  deed: stored nothing, asked for int8[2] (NaN allowed)",
    ]


# Sizes


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((1023,), None),
        ((1024,), 4),
        ((84, 84), 4),
        ((128, 256), 4),
        ((64 * 1024,), 4),
        ((64 * 1024 + 1,), 2),
        ((210, 160, 3), 2),
        ((128 * 1024 + 1,), 1),
        ((1000, 1000, 3), 1),
    ],
)
def test_rows_of_a_kilobyte_and_more_are_packed_and_large_ones_fewer_together(shape: tuple[int, ...], rows: int | None) -> None:
    schema = Schema.of({"obs": db.Column(shape, "uint8")})
    assert chunk_rows_of(schema).get("obs") == rows
    assert set(chunk_rows_of(schema)) <= {"obs"}


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 10**8) | st.none(), st.integers(1, 256), st.sampled_from([(3,), (84, 84), (1000, 1000, 3)]))
def test_segments_are_powers_of_two_and_not_too_large(capacity: int | None, streams: int, shape: tuple[int, ...]) -> None:
    schema = Schema.of({"obs": db.Column(shape, "uint8")})
    rows = segment_rows_of(capacity, streams, schema)
    assert rows >= 8
    assert rows & (rows - 1) == 0
    assert rows * schema["obs"].row_bytes <= 256 * 1024**2
    assert rows <= 64 * 1024 or capacity is not None


@pytest.mark.parametrize(("capacity", "streams"), [(1_000_000, 1), (1_000_000, 16), (1_000_000, 64), (100_000, 4), (2000, 1)])
def test_slots_are_at_most_about_two_thousand_and_open_segments_a_sixteenth(capacity: int, streams: int) -> None:
    rows = segment_rows_of(capacity, streams, FRAMES)
    assert capacity / rows <= 2000
    assert streams * rows <= capacity / 16


def layout(**options: Any) -> Layout:
    values: dict[str, Any] = {"capacity": 1000, "streams": 2, "segment_rows": 64, "tail_rows": 64}
    values["chunks_of"] = chunk_rows_of(FRAMES)
    return Layout(FRAMES, **(values | options))


@pytest.mark.parametrize("options", [{}, {"capacity": None}, {"frame_stack": 4, "padding": "zeros", "autoreset": "same_step"}])
def test_a_layout_comes_back_from_its_attributes(options: dict[str, Any]) -> None:
    before = layout(**options)
    assert Layout.from_group(zarr_metadata.root(before, 12), "here") == (before, 12)


def test_the_sizes_of_files_are_those_of_what_is_in_them() -> None:
    sizes = layout()
    assert sizes.packed == ("obs",)
    assert set(sizes.flat) == {"action", "reward", "terminated", "truncated", "is_last", "row_checksum"}
    assert sizes.data_file("obs", 7) == "obs/c.7.0.0"
    assert sizes.data_file("action", 7) == "action/c.7"
    assert sizes.chunks("obs") == 16
    assert sizes.index_bytes("obs") == 16 * 16
    assert sizes.flat_bytes("action") == 64 * 8
    assert sizes.tail_rows % sizes.chunk_rows("obs") == 0
    assert (sizes.live_bytes("obs") - sizes.index_bytes("obs")) % 16 == 0  # entries of the index are aligned
    assert sizes.live_bytes("obs") >= 17 * codec.bound(4 * 84 * 84) + 16 * 16


def test_all_columns_share_their_rows_and_the_table_its_slots() -> None:
    arrays = {path: node for path, node in zarr_metadata.nodes(layout(), 12).items() if node["node_type"] == "array"}
    assert {arrays[path]["shape"][0] for path in FRAMES} == {12 * 64}
    assert {node["shape"][0] for path, node in arrays.items() if path.startswith("_segments")} == {12}
    assert arrays["_tail/obs"]["shape"] == [2, layout().tail_rows, 84, 84]


def test_a_capacity_fits_into_the_slots_that_a_store_starts_with() -> None:
    for capacity, streams in ((1, 1), (1000, 2), (1_000_000, 16)):
        some = layout(capacity=capacity, streams=streams)
        assert some.first_slots() * some.segment_rows >= capacity + streams * some.segment_rows


# Index


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
        self.index.advance(stream, rows.head, rows.last[-1])
        if starts:
            self.index.start_episode(stream, rows.head - 1)

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
        assert index.heads.tolist() == [rows.head for rows in self.rows]
        assert index.steps().tolist() == [len(rows.steps(context)) for rows in self.rows]
        located = index.locate(np.arange(len(expected)))
        assert list(zip(*(part.tolist() for part in located), strict=True)) == expected
        assert index.added() == sum(rows.steps_before(rows.head) for rows in self.rows)


@settings(deadline=None, max_examples=150)
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


# Retention


def test_a_segment_goes_once_the_capacity_was_added_after_it_was_left_behind() -> None:
    retention = Retention(100)
    assert retention.look_at == float("inf")
    retention.leave(1, 40)
    retention.leave(0, 55)
    retention.leave(1, 60)
    assert gone(retention, 200, lambda added, stream: 0) == [(140, 1), (155, 0), (160, 1)]


def test_each_stream_may_count_its_own_steps() -> None:
    retention = Retention(100, 2, each=True)
    retention.leave(1, 10)
    retention.leave(0, 20)
    retention.leave(1, 30)
    assert gone(retention, 300, lambda added, stream: added // 4 if stream == 1 else added) == [(70, 0), (240, 1)]


def gone(retention: Retention, steps: int, added_to: Callable[[int, int], int]) -> list[tuple[int, int]]:
    """Return after how many steps segments went, and of which stream; checked where `look_at` tells, and everywhere."""
    found = []
    for added in range(steps):
        looked_at = added >= retention.look_at
        while (stream := retention.due(added, partial(added_to, added))) is not None:
            assert looked_at
            found.append((added, stream))
    return found


def test_without_a_capacity_nothing_goes() -> None:
    retention = Retention(None)
    retention.leave(0, 10)
    assert retention.due(10**9, lambda stream: 10**9) is None
    assert retention.look_at == float("inf")


# Blocks of steps


def slowly(head: int, goes_on: list[bool], ended: list[bool], cut: bool) -> dict[str, Any]:
    """Lay steps out one by one, as `add` does; a row is (whose obs, whose next_obs, whose step)."""
    rows: list[list[int | None]] = [[None, None, None]]  # the newest before
    last, positions, starts = [cut], [], []
    for t, (on, over) in enumerate(zip(goes_on, ended, strict=True)):
        if not on:
            if t:
                last[-1] = True
            rows.append([None, None, None])
            last.append(False)
            starts.append(head + len(rows) - 1)
        rows[-1][0], rows[-1][2] = t, t
        positions.append(head + len(rows) - 1)
        rows.append([None, t, None])
        last.append(over)
    return {"rows": rows, "last": last, "positions": positions, "starts": starts, "new_head": head + len(rows) - 1}


@settings(deadline=None, max_examples=200)
@given(st.integers(-1, 50), st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30), st.booleans())
def test_a_block_of_steps_is_laid_out_as_steps_are_one_by_one(head: int, steps: list[tuple[bool, bool]], cut: bool) -> None:
    ended = [over for _, over in steps]
    goes_on = [on and not before for (on, _), before in zip(steps, [head < 0, *ended[:-1]], strict=True)]
    none = np.zeros(len(steps), np.int64)
    block, expected = Block(head, np.array(goes_on), np.array(ended), none), slowly(head, goes_on, ended, cut)
    assert block.positions.tolist() == expected["positions"]
    assert block.starts.tolist() == expected["starts"]
    assert block.new_head == expected["new_head"]
    assert [flags.tolist() for flags in block.flags(cut)] == [expected["last"], *[[False] * len(expected["last"])] * 2]
    values, following = np.arange(len(steps)) + 100, np.arange(len(steps)) + 200
    of_steps = [0 if step is None else step + 100 for _, _, step in expected["rows"]]
    assert block.values(values).tolist() == of_steps
    # What a step led to is what the next one starts at; the newest row before has its own.
    observed = [0] + [o + 100 if o is not None else o for o, _, _ in expected["rows"][1:]]
    for step in range(len(steps)):
        observed[int(block.positions[step]) + 1 - head] = step + 200
    assert block.observations(values, following, []).tolist() == observed


@given(
    head=st.integers(-1, 20),
    steps=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12),
    frames=st.integers(1, 5),
)
def test_frames_before_an_episode_have_rows_of_their_own(head: int, steps: list[tuple[bool, bool]], frames: int) -> None:
    goes_on = np.array([on for on, _ in steps])
    wanted = ~goes_on & np.array([own for _, own in steps])
    plain = Block(head, goes_on, np.zeros(len(steps), np.bool_), np.zeros(len(steps), np.int64))
    block = Block(head, goes_on, plain.ended, lead_rows(plain.positions, wanted, frames, 8))
    at, leading, starts = head, list[int](), list[int]()
    for step in range(len(steps)):
        if not goes_on[step]:
            at += 1
        if wanted[step]:
            rows = frames + ((at + frames) % 8 == 0)
            leading += range(at, at + rows)
            starts += [*range(at, at + rows), at + rows]
            assert block.lead_ins[int(wanted[:step].sum())].tolist() == [at + rows, at]
            at += rows
            assert at % 8  # no episode's first row is alone in a segment
        elif not goes_on[step]:
            starts.append(at)
        assert block.positions[step] == at
        at += 1
    assert block.new_head == at
    assert block.lead_rows.tolist() == leading
    assert block.starts.tolist() == starts
    last, are_leading, first = block.flags(False)
    assert (np.flatnonzero(are_leading) + head).tolist() == leading
    assert last[are_leading].all()
    assert (np.flatnonzero(first) + head).tolist() == block.lead_ins[:, 1].tolist()


@pytest.mark.parametrize("zeros", [False, True])
def test_what_is_before_a_stack_is_its_frames_and_before_these_its_filling(zeros: bool) -> None:
    stack = np.array([[5, 6], [7, 8], [9, 9]])
    filling = [0, 0] if zeros else [5, 6]
    assert lead_frames(stack, 2, 3, zeros, stacked=True).tolist() == [filling, [5, 6], [7, 8]]
    assert lead_frames(stack[2], 2, 2, zeros, stacked=False).tolist() == [[0, 0] if zeros else [9, 9]] * 2


def test_rows_are_compared_by_value() -> None:
    a = np.array([[0.0, 1.0], [np.nan, 2.0], [3.0, 4.0], [np.nan, 1.0], [np.inf, 1.0]])
    b = np.array([[-0.0, 1.0], [-np.nan, 2.0], [3.0, 5.0], [1.0, 1.0], [-np.inf, 1.0]])
    for dtype in ("float16", "float32", "float64", "complex64", "complex128"):
        assert same_rows(a.astype(dtype), b.astype(dtype)).tolist() == [True, True, False, False, False]
        for left, right, same in zip(a.astype(dtype), b.astype(dtype), [True, True, False, False, False], strict=True):
            width = float_bytes(np.dtype(dtype))
            assert same_values(left.ctypes.data, right.ctypes.data, left.nbytes, width) == same
            assert all_zero(left.ctypes.data, left.nbytes // 2, width) == (left[0] == 0)
            assert all_zero(right.ctypes.data, left.nbytes // 2, width) == (right[0] == 0)
    assert same_rows(a[:0], b[:0]).tolist() == []
    assert same_rows(a[::-1], a[::-1]).all()


@pytest.mark.parametrize("zeros", [False, True])
def test_stacks_that_roll_pass_and_each_other_is_found(zeros: bool) -> None:
    frames = np.arange(1, 8, dtype=np.uint8)[:, None] * np.ones(5, np.uint8)
    padded = np.concatenate([np.zeros((2, 5), np.uint8) if zeros else frames[[0, 0]], frames])
    stacks = np.stack([padded[t : t + 3] for t in range(7)])
    obs, next_obs = stacks[:-1], stacks[1:]
    refuse_what_does_not_roll("obs", obs, next_obs)
    for step in range(6):
        wrong = next_obs.copy()
        wrong[step, 0] += 1
        with pytest.raises(db.StackError, match=f"obs of step {step} .*not obs moved on by one frame"):
            refuse_what_does_not_roll("obs", obs, wrong)
    assert starts_of(obs, zeros).tolist() == [True] + [False] * 5


# Codec

SIZE = 8 * 1122
CONTENTS = {
    "frames": (np.arange(SIZE) // 100 % 7).astype(np.uint8),
    "zeros": np.zeros(SIZE, np.uint8),
    "noise": np.random.default_rng(0).integers(0, 256, SIZE).astype(np.uint8),
    "half noise": np.append(np.zeros(SIZE // 2, np.uint8), np.random.default_rng(1).integers(0, 256, SIZE // 2).astype(np.uint8)),
}
compiled = pytest.mark.skipif(not HAVE_BLOSC, reason="numcodecs exports no c-blosc here")


def encode(raw: Array, cname: str = "lz4", clevel: int = 5) -> Array:
    out, name = np.zeros(codec.bound(len(raw)), np.uint8), ctypes.create_string_buffer(cname.encode())
    size = codec.encode(raw.ctypes.data, len(raw), out.ctypes.data, ctypes.addressof(name), clevel)
    assert 0 < size <= codec.bound(len(raw))
    return out[:size].copy()


def decode(chunk: Array, wanted: int = SIZE, size: int = SIZE) -> tuple[int, Array]:
    target, scratch = np.full(wanted + 64, 0xEE, np.uint8), np.zeros(2 * size, np.uint8)
    reason = codec.decode(chunk.ctypes.data, len(chunk), size, wanted, target.ctypes.data, scratch.ctypes.data)
    assert (target[wanted:] == 0xEE).all(), "wrote behind what was wanted"
    return int(reason), target[:wanted]


@compiled
@pytest.mark.parametrize(("cname", "clevel"), [codec.LIVE, codec.SEALED])
@pytest.mark.parametrize("content", CONTENTS)
def test_a_chunk_comes_back_whole_and_in_part(content: str, cname: str, clevel: int) -> None:
    raw = CONTENTS[content]
    chunk = encode(raw, cname, clevel)
    assert (len(chunk) < SIZE / 2) == (content in ("frames", "zeros"))
    for wanted in (SIZE, SIZE - 1, 1122, 1, 5 * 1122):
        reason, found = decode(chunk, wanted)
        assert reason == 0
        np.testing.assert_array_equal(found, raw[:wanted])
    assert codec.decode_slowly(chunk.tobytes(), SIZE) == (0, raw.tobytes())


@compiled
@pytest.mark.parametrize("content", CONTENTS)
def test_a_chunk_is_what_numcodecs_and_crc32c_make_and_read(content: str) -> None:
    raw, chunk = CONTENTS[content], encode(CONTENTS[content]).tobytes()
    assert numcodecs.blosc.decompress(chunk[:-4]) == raw.tobytes()
    assert google_crc32c.value(chunk[:-4]) == int.from_bytes(chunk[-4:], "little")
    for cname in (b"lz4", b"lz4hc", b"zstd"):  # however another tool wrote it
        for shuffle, blocksize in ((0, 0), (0, 2048), (1, 0)):
            body = numcodecs.blosc.compress(raw.tobytes(), cname, 4, shuffle, blocksize)
            other = np.frombuffer(body + google_crc32c.value(body).to_bytes(4, "little"), np.uint8)
            for wanted in (SIZE, 3 * 1122):
                reason, found = decode(other, wanted)
                assert reason == 0
                np.testing.assert_array_equal(found, raw[:wanted])


@compiled
@pytest.mark.parametrize("content", CONTENTS)
def test_every_byte_that_is_flipped_is_found(content: str) -> None:
    chunk = encode(CONTENTS[content])
    for at in range(len(chunk)):
        for mask in (1, 0x80, 0xFF):
            chunk[at] ^= mask
            assert decode(chunk)[0] != 0, f"byte {at}"
            if at % 50 == 0:
                assert codec.decode_slowly(chunk.tobytes(), SIZE)[0] != 0
            chunk[at] ^= mask
    assert decode(chunk)[0] == 0


@compiled
@pytest.mark.parametrize("content", CONTENTS)
def test_a_header_that_lies_is_found_though_its_checksum_is_right(content: str) -> None:
    chunk = encode(CONTENTS[content])
    body, wrong = chunk[:-4].tobytes(), 0
    for at in range(min(40, len(body))):
        for value in {0, 1, 0x7F, 0x80, 0xFF, body[at] ^ 1, body[at] ^ 2}:
            other = bytearray(body)
            other[at] = value
            forged = bytes(other) + google_crc32c.value(bytes(other)).to_bytes(4, "little")
            reason, _ = decode(np.frombuffer(forged, np.uint8))  # neither crashes nor writes where it must not
            wrong += reason != 0
    assert wrong > 50


@compiled
def test_a_chunk_that_was_cut_short_is_found() -> None:
    chunk = encode(CONTENTS["half noise"])
    for size in [*range(30), 100, len(chunk) - 5, len(chunk) - 1]:
        assert decode(chunk[:size].copy())[0] != 0
        assert codec.decode_slowly(chunk[:size].tobytes(), SIZE)[0] != 0


@compiled
def test_a_chunk_of_another_size_is_refused() -> None:
    raw = CONTENTS["frames"]
    assert decode(encode(raw[: SIZE // 2].copy()), SIZE)[0] == codec.BAD_HEADER


@compiled
def test_chunks_are_sealed_to_what_they_were_and_smaller() -> None:
    contents = [CONTENTS["frames"], CONTENTS["noise"], CONTENTS["half noise"]]
    chunks = [encode(raw) for raw in contents]
    shard = np.concatenate(chunks)
    sizes = np.array([len(chunk) for chunk in chunks])
    entries = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1).astype(np.int64)
    scratch, out, moved = np.zeros(2 * SIZE, np.uint8), np.zeros(3 * codec.bound(SIZE), np.uint8), np.zeros((3, 2), np.int64)
    size = codec.recode_chunks(shard.ctypes.data, entries, SIZE, scratch, out, moved)
    assert 0 < size <= len(shard)
    for (at, n), raw in zip(moved.tolist(), contents, strict=True):
        reason, found = decode(out[at : at + n].copy())
        assert reason == 0
        np.testing.assert_array_equal(found, raw)
    shard[entries[1, 0] + 100] ^= 1
    assert codec.recode_chunks(shard.ctypes.data, entries, SIZE, scratch, out, moved) == -1 - 1  # chunk 1 is damaged


# The house

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "diskbuffer"


def modules() -> dict[str, Path]:
    found = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(file: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that one imports at run time, wherever in it."""

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            yield child
            yield from walk(child)

    found: set[str] = set()
    for node in walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} imports relatively"
            base = node.module or ""
            found |= {f"{base}.{name.name}" if f"{base}.{name.name}" in known else base for name in node.names}
    return {name for name in found if name in known}


def test_imports_only_go_down() -> None:
    known = modules()
    found = {name: imports(file, known) for name, file in known.items()}
    assert len(found) > 25

    def part(name: str) -> str:
        return name.split(".")[1] if "." in name else ""

    forbidden = {
        "store": {"samplers", "gather", "recording", "reader", "buffer", "loader", "index", "opening", "episodes", "creation"},
        "samplers": {"store", "gather", "recording", "reader", "buffer", "loader"},
        "gather": {"recording", "samplers", "reader", "buffer", "loader"},
        "recording": {"samplers", "gather", "reader", "buffer", "loader"},
        "loader": {"store", "index", "samplers", "recording", "reader", "buffer", "gather"},
        "index": {"store", "samplers", "gather", "recording", "reader", "buffer", "loader", "schema"},
        "schema": {"store", "samplers", "gather", "recording", "reader", "buffer", "loader", "index"},
        "retention": {"store", "samplers", "gather", "recording", "reader", "buffer", "loader"},
        "errors": {part(name) for name in known},
    }
    wrong = [
        f"{name} imports {other}"
        for name, others in found.items()
        for other in others
        if part(other) in forbidden.get(part(name), set()) and part(name) != part(other)
    ]
    assert wrong == []


def test_no_module_imports_itself_through_others() -> None:
    known = modules()
    left = {name: imports(file, known) - {name} for name, file in known.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}


def test_the_public_names_are_those_that_are_promised() -> None:
    assert set(errors.__all__) | {"Column", "ReplayBuffer", "Uniform", "__version__"} <= set(db.__all__)
    assert sorted(db.__all__) == list(db.__all__)
    assert all(getattr(db, name) is not None for name in db.__all__)
    public = {name for name in vars(db) if not name.startswith("_") and not name.islower()}
    assert public == set(db.__all__) - {"__version__", "check", "marks", "remove_mark", "warmup"}
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", db.__version__)


def test_every_name_that_the_documentation_mentions_is_there() -> None:
    pages = [*ROOT.glob("README.md"), *ROOT.glob("docs/*.md"), *PACKAGE.rglob("*.py"), *ROOT.glob("examples/*.py")]
    for page in pages:
        for name in re.findall(r"\bdb\.(\w+)", page.read_text()):
            assert name in db.__all__, f"{page.name} mentions db.{name}"


def test_every_error_is_in_the_tree_that_its_module_draws() -> None:
    drawn = re.findall(r"(\w+Error)(?: \((\w+)\))?", errors.__doc__ or "")
    assert {name for name, _ in drawn} == set(errors.__all__)
    for name, builtin in drawn:
        assert not builtin or builtin in {base.__name__ for base in getattr(db, name).__mro__}
