"""Choosing how chunks are compressed: by what the data are, within margins, and by what a column was told."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.errors import SchemaError
from diskbuffer.native import codec as native
from diskbuffer.schema.schema import Column, Schema
from diskbuffer.store.format import codec
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.writing import compression
from diskbuffer.store.writing.compression import CANDIDATES, LATE_MARGIN, MARGIN, Compression, Trial, cheapest, distances_of

Array = npt.NDArray[Any]
CODECS = (None, "none", "lz4", "lz4hc:4", "zstd:1", "zstd:9")


@pytest.fixture
def even_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every candidate take as long as the others, so that which is chosen does not depend on what else the machine does."""
    monkeypatch.setattr(compression, "time", SimpleNamespace(thread_time=itertools.count().__next__))


def games(n: int, rng: np.random.Generator) -> Array:
    """Return frames of a few things that move over a pattern that stands still."""
    frames = np.repeat((np.add.outer(np.arange(40) // 5, np.arange(40) // 7) % 5 * 50).astype(np.uint8)[None], n, axis=0)
    places = rng.integers(0, 33, (3, 2)) + rng.integers(-2, 3, (n, 3, 2)).cumsum(axis=0)
    for frame, corners in zip(frames, places % 33, strict=True):
        for colour, (y, x) in enumerate(corners):
            frame[y : y + 7, x : x + 7] = 90 + colour
    return frames


def noise(n: int, rng: np.random.Generator) -> Array:
    return rng.integers(0, 256, (n, 40, 40)).astype(np.uint8)


def sealed(path: Path, frames: Array, **options: Any) -> tuple[dict[str, Any], Array]:
    """Return what stats() tells of a column of frames, which is sealed, and the frames as zarr-python reads them."""
    columns = {"obs": db.Column(frames.shape[1:], frames.dtype, **options), "action": db.Column((), "int64")}
    n = len(frames) - 1
    with db.ReplayBuffer(path, columns=columns, segment_rows=64) as buffer:
        assert buffer.stats()["compression"]["obs"]["ratio"] is None
        buffer.extend(obs=frames, action=np.zeros(n), reward=np.zeros(n))
        buffer.flush(recompress=True)
        found: dict[str, Any] = buffer.stats()["compression"]["obs"]
        np.testing.assert_array_equal(buffer.at(buffer.steps())["obs"], frames[:-1])
        assert buffer.check(progress=False).problems == []
    with db.ReplayBuffer(path, mode="r") as buffer:
        assert buffer.stats()["compression"] == {}
    return found, zarr.open_group(path, mode="r")["obs"][: n + 1]  # type: ignore[index, return-value]


trials = st.lists(st.builds(Trial, st.sampled_from(CANDIDATES), st.integers(1, 1000), st.floats(1e-6, 1.0)), min_size=1)


@given(trials, st.sampled_from([MARGIN, LATE_MARGIN]))
def test_the_choice_is_within_the_margin_and_nothing_much_faster_is(found: list[Trial], margin: float) -> None:
    smallest = min(trial.bytes for trial in found)
    chosen = [trial for trial in found if trial.method == cheapest(found, margin) and trial.bytes <= margin * smallest]
    assert chosen
    fastest = min(trial.seconds for trial in found if trial.bytes <= margin * smallest)
    assert min(trial.seconds for trial in chosen) <= fastest / 0.8


@pytest.mark.parametrize(
    ("make", "expected", "most"), [(games, {"pictures", "lz4hc:4", "lz4hc:7"}, 0.2), (noise, {"copy"}, 1.02)]
)
@pytest.mark.usefixtures("even_clock")
def test_what_is_chosen_depends_on_the_data(tmp_path: Path, make: Callable[..., Array], expected: set[str], most: float) -> None:
    frames = make(600, np.random.default_rng(0))
    figures, found = sealed(tmp_path / "store", frames)
    np.testing.assert_array_equal(found, frames)
    assert figures["codec"] in expected
    assert 0 < figures["ratio"] <= most
    assert figures["us_per_row"] > 0


@pytest.mark.nightly
def test_files_are_hardly_larger_than_by_lz4hc_7(tmp_path: Path) -> None:
    frames = games(600, np.random.default_rng(1))
    by_default, _ = sealed(tmp_path / "default", frames)
    by_level_7, _ = sealed(tmp_path / "hc", frames, codec="lz4hc:7")
    assert by_level_7["codec"] == "lz4hc:7"
    assert by_default["ratio"] <= 1.1 * by_level_7["ratio"]


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("name", CODECS)
def test_a_column_has_the_codec_that_it_was_given(tmp_path: Path, name: str | None, dtype: str) -> None:
    frames = games(200, np.random.default_rng(0)).astype(dtype)
    figures, found = sealed(tmp_path / "store", frames, codec=name)
    np.testing.assert_array_equal(found, frames)
    expected = {
        None: {"cname": "lz4hc", "clevel": 7},
        "none": {"cname": "lz4", "clevel": 0},
        "lz4": {"cname": "lz4", "clevel": 9},
    }
    compressor, _, level = (name or "").partition(":")
    shuffled = dtype == "float32" and name not in (None, "none")
    (sharding,) = json.loads((tmp_path / "store" / "obs" / "zarr.json").read_text())["codecs"]
    assert sharding["configuration"]["codecs"][1]["configuration"] == {
        **(expected.get(name) or {"cname": compressor, "clevel": int(level)}),
        "shuffle": "shuffle" if shuffled else "noshuffle",
        "typesize": 4 if shuffled else 1,
        "blocksize": 0,
    }
    if name is not None:
        assert figures["codec"] == name + (", shuffled" if shuffled else "")
    if name == "none":
        assert figures["ratio"] >= 1
    else:
        assert figures["ratio"] < 0.2


def test_a_codec_may_be_left_out_when_a_store_is_opened_again_and_must_not_be_another(tmp_path: Path) -> None:
    def columns(name: str | None) -> dict[str, db.Column]:
        return {"obs": db.Column((40, 40), "uint8", codec=name), "action": db.Column((), "int64")}

    db.ReplayBuffer(tmp_path / "store", columns=columns("zstd:3")).close()
    for name in (None, "zstd:3"):
        with db.ReplayBuffer(tmp_path / "store", columns=columns(name)) as buffer:
            assert buffer.columns["obs"].codec == "zstd:3"
            assert buffer.columns["obs"] == columns(None)["obs"]
    with pytest.raises(SchemaError, match="obs: stored with codec zstd:3, asked for lz4"):
        db.ReplayBuffer(tmp_path / "store", columns=columns("lz4"))
    db.ReplayBuffer(tmp_path / "other", columns=columns(None)).close()
    with pytest.raises(SchemaError, match="obs: stored with a codec that is chosen from the data, asked for lz4"):
        db.ReplayBuffer(tmp_path / "other", columns=columns("lz4"))


@pytest.mark.parametrize(
    "name", ["", "lz4:1", "lz4hc", "lz4hc:0", "lz4hc:10", "zstd:22", "ZSTD:1", "zstd:1 ", "blosclz", 7, ("lz4hc", 9)]
)
def test_a_codec_that_there_is_none_of_is_refused(name: Any) -> None:
    with pytest.raises(SchemaError, match="a column's codec must be"):
        db.Column((40, 40), "uint8", codec=name)


def test_a_codec_of_rows_that_are_not_compressed_is_refused(tmp_path: Path) -> None:
    columns = {"obs": db.Column((100,), "float32", codec="zstd:1"), "action": db.Column((), "int64", codec="none")}
    with pytest.raises(SchemaError, match="'obs' has rows of 400 bytes, which are not compressed"):
        db.ReplayBuffer(tmp_path / "store", columns=columns)
    assert not (tmp_path / "store").exists()


def test_floats_of_a_kilobyte_are_compressed_where_they_have_a_codec(tmp_path: Path) -> None:
    for name, packed in ((None, 0), ("zstd:1", 1)):
        columns = {"obs": db.Column((300,), "float32", codec=name), "action": db.Column((), "int64")}
        with db.ReplayBuffer(tmp_path / str(name), columns=columns) as buffer:
            assert len(buffer.stats()["compression"]) == packed


def test_a_description_with_a_codec_that_there_is_none_of_is_refused() -> None:
    layout = Layout(Schema.of({"obs": Column((40, 40), "uint8", codec="zstd:3")}), None, 1, 64, {"obs": 4}, 64)
    attributes = layout.attributes(2)
    assert Layout.from_group({"attributes": {"diskbuffer": attributes}}, "x")[0].schema["obs"].codec == "zstd:3"
    damaged = Schema({"obs": Column((40, 40), "uint8"), **Schema.of({}).columns}).to_attributes()
    damaged["obs"]["codec"] = "brotli:1"
    with pytest.raises(SchemaError, match="brotli"):
        Schema.from_attributes(damaged)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((84, 84), "uint8", (1, 84, 7056)),
        ((96, 90, 3), "uint8", (3, 270, 25_920)),
        ((3, 96, 90), "uint8", (1, 90, 25_920)),
        ((84, 80), "float32", (4, 320, 26_880)),
        ((84, 80, 1), "uint8", (1, 1, 6_720)),
        ((5000,), "uint8", (1, 0, 5000)),
    ],
)
def test_where_pictures_resemble_themselves(shape: tuple[int, ...], dtype: str, expected: tuple[int, int, int]) -> None:
    assert distances_of(Column(shape, dtype)) == expected


class Shard:
    """Live chunks in memory, and the compression of their column."""

    def __init__(self) -> None:
        self._layout = Layout(Schema.of({"obs": Column((40, 40), "uint8")}), None, 1, 64, {"obs": 4}, 64)
        self.compression = Compression(self._layout, "obs")

    def seal(self, rows: Array, *, late: bool = False) -> tuple[Array, Array]:
        """Return the sizes of a segment's chunks, (16,), live and sealed."""
        size, rows = self._layout.chunk_bytes("obs"), np.ascontiguousarray(rows)
        live, sealed = np.zeros((16, 2), np.int64), np.zeros((16, 2), np.int64)
        shard, out = np.zeros(16 * codec.bound(size), np.uint8), np.zeros(16 * codec.bound(size), np.uint8)
        native.encode_chunks(rows.ctypes.data, 0, rows.nbytes, size, b"lz4", 1, shard, live)
        self.compression.begin(shard.ctypes.data, live)
        assert self.compression.recode(shard.ctypes.data, live, out, sealed, late=late) > 0
        self.compression.end()
        return live[:, 1], sealed[:, 1]

    @property
    def chosen(self) -> str:
        """The codec, as stats() has it."""
        return str(self.compression.figures()["codec"])


@pytest.mark.usefixtures("even_clock")
def test_it_is_chosen_again_after_some_segments_as_what_an_agent_sees_changes() -> None:
    rng, shard = np.random.default_rng(0), Shard()
    shard.seal(noise(64, rng))
    assert shard.chosen == "copy"
    later = []
    for _ in range(16):
        _, sizes = shard.seal(games(64, rng))
        later.append(shard.chosen)
        assert (sizes <= codec.bound(4 * 1600)).all()
    assert later[:15] == ["copy"] * 15
    assert later[15] == "lz4hc:7"


@pytest.mark.usefixtures("even_clock")
def test_chunks_that_cannot_shrink_are_tried_less_from_segment_to_segment() -> None:
    rng, shard = np.random.default_rng(0), Shard()
    shard.seal(games(64, rng))
    tries = []
    for make in (noise, noise, games, noise):
        before, after = shard.seal(make(64, rng))
        tries.append(shard.compression.tries)
        assert (after == before).all() == (make is noise)
    assert tries == [1, 1, 1, 1]
    assert shard.chosen == "lz4hc:7"


@pytest.mark.some(2)
@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_as_many_rows_are_compressed_together_as_are_asked_for(rows: int, tmp_path: Path) -> None:
    columns = {"obs": Column((40, 40), "uint8"), "action": Column((), "int64")}
    frames = games(61, np.random.default_rng(0))
    with db.ReplayBuffer(tmp_path / "store", columns=columns, chunk_rows=rows, segment_rows=16) as buffer:
        buffer.extend(frames, np.arange(60), np.ones(60))
        buffer.flush(recompress=True)
    with db.ReplayBuffer(tmp_path / "store", chunk_rows=rows) as buffer:
        assert buffer._store.layout.chunks_of == {"obs": rows}
        assert zarr.open_array(tmp_path / "store" / "obs", mode="r").chunks == (rows, 40, 40)
        np.testing.assert_array_equal(buffer.episode(0)["obs"].numpy(), frames)
        assert buffer.check(progress=False).ok
    other = 4 if rows == 8 else 8
    with pytest.raises(SchemaError, match=f"chunk_rows: stored {rows}, asked for {other}"):
        db.ReplayBuffer(tmp_path / "store", chunk_rows=other)
