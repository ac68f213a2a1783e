"""The layout of a store's files, and the sizes that are chosen for them; without a disk."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.schema.schema import Schema
from diskbuffer.store.format import codec, zarr_metadata
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.format.sizes import chunk_rows_of, segment_rows_of, small_segment_rows_of
from tests.amounts import examples

FRAMES = Schema.of({"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")})


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


@examples(80, 2000)
@given(st.integers(1, 10**8) | st.none(), st.integers(1, 256), st.sampled_from([(3,), (84, 84), (1000, 1000, 3)]))
def test_segments_are_powers_of_two_and_not_too_large(capacity: int | None, streams: int, shape: tuple[int, ...]) -> None:
    schema = Schema.of({"obs": db.Column(shape, "uint8")})
    rows = segment_rows_of(capacity, streams, schema.columns)
    assert rows >= 8
    assert rows & (rows - 1) == 0
    assert rows * schema["obs"].row_bytes <= 256 * 1024**2
    assert rows <= 64 * 1024 or capacity is not None


@pytest.mark.parametrize(("capacity", "streams"), [(1_000_000, 1), (1_000_000, 16), (1_000_000, 64), (100_000, 4), (2000, 1)])
def test_slots_are_at_most_about_two_thousand_and_open_segments_an_eighth(capacity: int, streams: int) -> None:
    rows = segment_rows_of(capacity, streams, FRAMES.columns)
    assert capacity / rows <= 2000
    assert streams * rows <= capacity / 7


@pytest.mark.parametrize(
    ("shape", "streams", "rows"), [((4,), 1, 4096), ((4,), 8, 512), ((84, 84), 1, 1024), ((84, 84), 256, 16)]
)
def test_segments_of_small_rows_are_worth_their_files_but_a_quarter_at_most(
    shape: tuple[int, ...], streams: int, rows: int
) -> None:
    schema = Schema.of({"obs": db.Column(shape, "float32" if len(shape) == 1 else "uint8")})
    assert segment_rows_of(20_000, streams, schema.columns) == rows


@pytest.mark.parametrize(
    ("capacity", "streams", "width", "rows"),
    [
        (64 * 128, 64, 64, 4096),
        (256 * 24, 256, 64, 4096),
        (8 * 2048, 8, 64, 32768),
        (16_384, 16, 7056, 1024),
        (5, 1, 1024, 256),
        (10_000_000, 1, 64, None),
    ],
)
def test_segments_of_small_stores_hold_many_rollouts_and_128_mb_at_most(
    capacity: int, streams: int, width: int, rows: int | None
) -> None:
    columns = {"obs": db.Column((width,), "uint8"), "action": db.Column((), "float32")}
    assert small_segment_rows_of(capacity, streams, columns) == rows
    assert small_segment_rows_of(capacity, streams, columns | {"obs": db.Column((width,), "uint8", codec="lz4")}) is None


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
    assert arrays.pop("_segments/cleared")["shape"] == [4, 2]
    assert {node["shape"][0] for path, node in arrays.items() if path.startswith("_segments")} == {12}
    assert arrays["_tail/obs"]["shape"] == [2, layout().tail_rows, 84, 84]


def test_a_capacity_fits_into_the_slots_that_a_store_starts_with() -> None:
    for capacity, streams in ((1, 1), (1000, 2), (1_000_000, 16)):
        some = layout(capacity=capacity, streams=streams)
        assert some.first_slots() * some.segment_rows >= capacity + streams * some.segment_rows
