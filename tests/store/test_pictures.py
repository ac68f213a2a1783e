"""Columns that are compressed with a loss: what is lost, what is not, and what is found of what is damaged or made up."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest
import xarray
import zarr
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import diskbuffer as db
from diskbuffer import editing
from diskbuffer.native import codec as native
from diskbuffer.native import webp
from diskbuffer.schema.schema import Column, Schema
from diskbuffer.store.format import checksums, pictures
from diskbuffer.store.format.codec import BAD_CHECKSUM, BAD_PICTURE
from diskbuffer.zarr_codec import WebP
from tests.amounts import examples

Array = npt.NDArray[Any]
HEIGHT, WIDTH = 22, 35
CODEC = "webp:90"


def scenes(n: int, height: int = HEIGHT, width: int = WIDTH) -> Array:
    """Return pictures as a camera that pans over something smooth would take them, with a little noise."""
    rng, (y, x) = np.random.default_rng(n), np.mgrid[:height, :width]
    waves = [(rng.uniform(0.02, 0.3, 2), rng.uniform(0, 6, 3), rng.uniform(10, 40)) for _ in range(6)]
    found = np.full((n, height, width, 3), 128.0)
    for frame, (frequency, phase, size), channel in itertools.product(range(n), waves, range(3)):
        found[frame, :, :, channel] += size * np.sin(frequency[0] * y + frequency[1] * (x + frame) + phase[channel] / 4)
    return (found + rng.normal(0, 2, found.shape)).clip(0, 255).astype(np.uint8)


def by_pillow(frame: Array, quality: int) -> bytes:
    """Return a frame as Pillow compresses it."""
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "WEBP", quality=quality, method=webp.EFFORT)
    return file.getvalue()


def seen_by_pillow(file: bytes) -> Array:
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))


def chunks_of(root: Path, path: str = "obs") -> dict[int, bytes]:
    """Return the chunks on the disk by row of the only stream, read as the format says."""
    layout: Any = zarr.open_group(root, mode="r").attrs["diskbuffer"]
    rows, found = int(layout["segment_rows"]), dict[int, bytes]()
    for file in (root / path).glob("c.*"):
        if file.suffix == ".tmp":  # of a segment that is just being sealed
            continue
        data, slot = file.read_bytes(), int(file.name.split(".")[1])
        for row, (at, size) in enumerate(np.frombuffer(data[-16 * rows :], "<i8").reshape(-1, 2).tolist()):
            if at >= 0:
                found[slot * rows + row] = data[at : at + size]
    return found


def make(path: Path, frames: Array, **options: Any) -> db.ReplayBuffer:
    columns = {"obs": db.Column(frames.shape[1:], "uint8", codec=options.pop("codec", CODEC)), "action": db.Column((), "int64")}
    return db.ReplayBuffer(path, columns=columns, segment_rows=options.pop("segment_rows", 16), **options)


def add(buffer: db.ReplayBuffer, frames: Array, first: int, last: int) -> None:
    for n in range(first, last):
        buffer.add(frames[n], n, 0.0, frames[n + 1], False, False)


def extend(buffer: db.ReplayBuffer, frames: Array, first: int, last: int) -> None:
    buffer.extend(obs=frames[first : last + 1], action=np.arange(first, last), reward=np.zeros(last - first))


CALLS: dict[str, Callable[[db.ReplayBuffer, Array, int, int], None]] = {
    "add": add,
    "extend": extend,
    "flush": lambda buffer, *_: buffer.flush(),
    "seal": lambda buffer, *_: buffer.flush(recompress=True),
}


@examples(4, 60)
@given(
    calls=st.lists(st.tuples(st.sampled_from([*CALLS, "add", "extend", "reopen"]), st.integers(1, 24)), min_size=2, max_size=7),
    shape=st.tuples(st.integers(18, 40), st.integers(19, 40)),
    quality=st.integers(1, 100),
    stack=st.sampled_from([1, 3]),
)
def test_rows_are_what_was_given_until_they_are_packed_and_then_what_pillow_makes_of_them(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, int]], shape: tuple[int, int], quality: int, stack: int
) -> None:
    path, n = tmp_path_factory.mktemp("pictures") / "store", 0
    frames = scenes(sum(some for _, some in calls) + 1, *shape)
    buffer = make(path, frames, codec=f"webp:{quality}", frame_stack=stack)
    for call, some in calls:
        if call == "reopen":
            buffer.close()
            buffer = db.ReplayBuffer(path)
        else:
            CALLS[call](buffer, frames, n, n + some)
            n += some if call in ("add", "extend") else 0

    def check(expected: Array) -> None:
        assert len(buffer.episodes.length) == (n > 0)  # each goes on where the last one ended
        batch = buffer.at(buffer.steps()) if n else {"obs": np.zeros((0, 1)), "next_obs": np.zeros((0, 1))}
        obs, following = (
            np.asarray(batch[name]) if stack == 1 else np.asarray(batch[name])[:, -1] for name in ("obs", "next_obs")
        )
        assert np.array_equal(obs, expected[:n]) or not n
        assert np.array_equal(following, expected[1 : n + 1]) or not n  # the same pictures, not others of the same frames

    def stored() -> Array:
        found = frames.copy()
        for row, chunk in chunks_of(path).items():
            assert int.from_bytes(chunk[-4:], "little") == google_crc32c.value(chunk[:-4])
            assert int.from_bytes(chunk[:4], "little") == google_crc32c.value(frames[row].tobytes())
            if len(chunk) != frames[row].nbytes + 8:
                assert chunk[4:-4] == by_pillow(frames[row], quality)  # and never of what was decoded
                found[row] = seen_by_pillow(chunk[4:-4])
        return found

    buffer.flush()
    check(stored())
    buffer.close()
    with db.ReplayBuffer(path, mode="r") as buffer:
        expected = stored()
        check(expected)
        assert not n or np.array_equal(expected[n], frames[n])  # the newest, which is the next step's
    assert db.check(path, progress=False).ok


@pytest.mark.parametrize("how", ["add", "extend"])
def test_stacks_of_frames_that_lost_something_go_on(tmp_path: Path, how: str) -> None:
    frames = scenes(60)
    stacks = np.stack([frames[np.maximum(np.arange(60) - back, 0)] for back in (2, 1, 0)], axis=1)
    buffer = make(tmp_path / "store", frames, frame_stack=3)
    for first in range(0, 54, 9):
        if how == "extend":
            buffer.extend(obs=stacks[first : first + 10], action=np.zeros(9, np.int64), reward=np.zeros(9))
        else:
            add(buffer, stacks, first, first + 9)
        if first % 2:
            buffer.close()
            buffer = db.ReplayBuffer(tmp_path / "store")
    assert buffer.episodes.length.tolist() == [54]
    buffer.close()


# What cannot be


@pytest.mark.parametrize(
    "column",
    [
        {"shape": (40, 40), "dtype": "uint8"},
        {"shape": (40, 40, 1), "dtype": "uint8"},
        {"shape": (3, 40, 40), "dtype": "uint8"},
        {"shape": (40, 40, 3), "dtype": "float32"},
        {"shape": (4, 16384, 3), "dtype": "uint8"},
        {"shape": (40, 40, 3), "dtype": "uint8", "codec": "webp:0"},
        {"shape": (40, 40, 3), "dtype": "uint8", "codec": "webp:101"},
        {"shape": (40, 40, 3), "dtype": "uint8", "codec": "webp"},
    ],
)
def test_a_column_that_is_not_of_pictures_is_refused(column: dict[str, Any]) -> None:
    with pytest.raises(db.errors.SchemaError, match="webp"):
        Column(**{"codec": CODEC} | column)


def test_a_column_of_steps_and_one_of_tiny_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(db.errors.SchemaError, match="only columns of observations"):
        db.ReplayBuffer(tmp_path / "a", columns={"obs": Column(), "camera": Column((40, 40, 3), "uint8", codec=CODEC)})
    with pytest.raises(db.errors.SchemaError, match="which are not compressed"):
        db.ReplayBuffer(tmp_path / "b", columns={"obs": Column((8, 8, 3), "uint8", codec=CODEC)})
    assert not list(tmp_path.iterdir())


def test_another_codec_or_quality_is_refused_and_rows_of_a_chunk_are_of_other_columns(tmp_path: Path) -> None:
    frames = scenes(2)
    make(tmp_path / "store", frames, chunk_rows=4).close()
    for codec in ("webp:75", "lz4"):
        with pytest.raises(db.errors.SchemaError, match=f"stored with codec webp:90, asked for {codec}"):
            make(tmp_path / "store", frames, codec=codec)
    make(tmp_path / "store", frames, chunk_rows=4).close()


def test_without_pillow_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = scenes(3)
    with make(tmp_path / "store", frames) as buffer:
        add(buffer, frames, 0, 2)
    webp.functions.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL._webp", None)
    with pytest.raises(db.errors.MissingPackageError, match=r"diskbuffer\[webp\]"):
        db.ReplayBuffer(tmp_path / "store", mode="r")
    with pytest.raises(db.errors.MissingPackageError, match=r"diskbuffer\[webp\]"):
        make(tmp_path / "other", frames)
    assert not (tmp_path / "other").exists()


# Damage, and what was made up


def chunk_of(body: bytes, frame: Array) -> bytes:
    chunk = int(google_crc32c.value(frame.tobytes())).to_bytes(4, "little") + body
    return chunk + int(google_crc32c.value(chunk)).to_bytes(4, "little")


def decoded(chunk: bytes, height: int = HEIGHT, width: int = WIDTH) -> tuple[int, Array]:
    """Decode a chunk, with and without its checksum, with a margin around that nothing may be written to."""
    column, size = Column((height, width, 3), "uint8", codec=CODEC), height * width * 3
    memory = np.full(size + 128, 0xEE, np.uint8)
    at = np.frombuffer(chunk, np.uint8).ctypes.data
    wrong = native.decode_picture(at, len(chunk), width, height, memory.ctypes.data + 64, *webp.functions())
    assert (memory[:64] == 0xEE).all()
    assert (memory[-64:] == 0xEE).all()
    if wrong != BAD_CHECKSUM:
        body = np.full(size, 0xEE, np.uint8)
        assert pictures.decode_body(chunk[:-4], column, body) == wrong
        assert wrong or body.tobytes() == memory[64:-64].tobytes()
    return wrong, memory[64:-64].reshape(height, width, 3)


def animated(frames: Array) -> bytes:
    file = io.BytesIO()
    first, *others = map(Image.fromarray, frames)
    first.save(file, "WEBP", save_all=True, append_images=others)
    return file.getvalue()


FRAMES = scenes(3)
GOOD = by_pillow(FRAMES[0], 90)
MADE_UP = {
    "nothing": b"",
    "a byte": b"R",
    "too long": bytes(FRAMES[0].nbytes + 1),
    "zeros": bytes(200),
    "a header alone": GOOD[:30],
    "cut short": GOOD[:-20],
    "of another size": by_pillow(scenes(1, HEIGHT, WIDTH + 1)[0], 10),
    "turned": by_pillow(scenes(1, WIDTH, HEIGHT)[0], 10),
    "much larger": by_pillow(np.zeros((1000, 1000, 3), np.uint8), 10),
    "animated": animated(FRAMES // 64 * 64),
    "a PNG": b"\x89PNG\r\n\x1a\n" + bytes(100),
}


@pytest.mark.parametrize("body", MADE_UP.values(), ids=MADE_UP)
def test_what_is_no_picture_of_the_column_is_refused(body: bytes) -> None:
    assert decoded(chunk_of(GOOD, FRAMES[0]))[0] == 0
    assert decoded(chunk_of(body, FRAMES[0]))[0] == BAD_PICTURE


def test_a_row_that_is_stored_as_it_was_given_comes_back() -> None:
    wrong, found = decoded(chunk_of(FRAMES[0].tobytes(), FRAMES[0]))
    assert wrong == 0
    assert np.array_equal(found, FRAMES[0])


def test_every_byte_that_is_flipped_is_found() -> None:
    chunk = chunk_of(GOOD, FRAMES[0])
    for at in range(len(chunk)):
        assert decoded(chunk[:at] + bytes([chunk[at] ^ 4]) + chunk[at + 1 :])[0] == BAD_CHECKSUM


def test_pictures_that_a_stranger_made_write_nothing_out_of_bounds(amount: Callable[[int, int], int]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(amount(300, 20_000)):
        file = bytearray(GOOD)
        for at in rng.integers(0, len(file) if rng.random() < 0.5 else 40, rng.integers(1, 6)):
            file[at] = rng.integers(0, 256)
        decoded(chunk_of(bytes(file[: rng.integers(20, len(file) + 1)]), FRAMES[0]))


def test_a_chunk_that_is_too_large_is_not_copied() -> None:
    good, large = chunk_of(GOOD, FRAMES[0]), chunk_of(bytes(FRAMES[0].nbytes + 1), FRAMES[0])
    shard = np.frombuffer(good + large, np.uint8)
    entries = np.array([[0, len(good)], [len(good), len(large)]])
    for n, expected in ((1, len(good)), (2, -1 - 1)):
        out, moved = np.zeros(2 * len(large), np.uint8), np.zeros((n, 2), np.int64)
        assert native.copy_pictures(shard.ctypes.data, entries[:n], FRAMES[0].nbytes, out, moved) == expected
        assert out[: len(good)].tobytes() == good
        assert not out[len(good) :].any()


def replace_chunk(root: Path, row: int, chunk: bytes) -> None:
    """Put another chunk of the same size in the place of a row's."""
    old = chunks_of(root)[row]
    file = root / "obs" / f"c.{row // 16}.0.0.0"
    assert len(chunk) == len(old)
    file.write_bytes(file.read_bytes().replace(old, chunk))


def turned(size: int, frame: Array) -> bytes:
    """Return a chunk of some bytes, whose checksums are right, with a picture of another size."""
    return chunk_of(MADE_UP["turned"].ljust(size - 8, b"\0"), frame)


@pytest.mark.some(2)
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("what", ["flipped", "made up"])
def test_damage_is_named_and_repaired_and_no_other_picture_changes(tmp_path: Path, what: str, sealed: bool) -> None:
    frames, path, row = scenes(61), tmp_path / "store", 21
    with make(path, frames) as buffer:
        extend(buffer, frames, 0, 60)
        if sealed:
            buffer.flush(recompress=True)
    before = chunks_of(path)
    damaged = bytearray(before[row])
    damaged[50] ^= 1
    replace_chunk(path, row, bytes(damaged) if what == "flipped" else turned(len(damaged), frames[row]))
    with db.ReplayBuffer(path, mode="r") as buffer:
        with pytest.raises(db.CorruptionError, match="obs"):
            buffer.at([row])
        others = buffer.at([step for step in range(60) if step not in (row - 1, row)])["obs"].numpy()
    report = db.check(path, progress=False)
    assert [(problem.column, problem.steps) for problem in report.problems] == [("obs", (row, row))]
    db.check(path, repair=True, progress=False)
    assert db.check(path, progress=False).ok
    after = chunks_of(path)
    assert {at: chunk for at, chunk in after.items() if at != row} == {at: chunk for at, chunk in before.items() if at != row}
    with db.ReplayBuffer(path) as buffer:
        left = buffer.steps().tolist()
        assert left == [step for step in range(60) if step not in (row - 1, row)]
        assert np.array_equal(buffer.at(left)["obs"].numpy(), others)


@examples(20, 200)
@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**31), st.data())
def test_a_checksum_of_rows_whose_values_are_lost_is_that_of_the_rows(n: int, flats: int, seed: int, data: Any) -> None:
    rng = np.random.default_rng(seed)
    lossy = [f"obs/p{k}" for k in range(data.draw(st.integers(1, 2)))]
    columns = dict.fromkeys(lossy, Column((19, 19, 3), "uint8", codec=CODEC)) | {
        f"obs/x{k}": Column((3,), "int8") for k in range(flats)
    }
    schema = Schema.of(dict(sorted(columns.items(), key=lambda _: rng.random())))
    rows: dict[str, Any] = {p: rng.integers(0, 256, (n, schema[p].row_bytes), np.uint8) for p in schema.obs}
    sums = {
        p: checksums.Summed(np.array([google_crc32c.value(row.tobytes()) for row in rows[p]], np.uint32), 1083) for p in lossy
    }
    known = checksums.row_checksums(schema, 5, 1, 7, n, rows, checksums.OBS)
    assert checksums.row_checksums(schema, 5, 1, 7, n, rows | sums, checksums.OBS).tolist() == known.tolist()


# Elsewhere


def test_stock_tools_read_it(tmp_path: Path) -> None:
    frames, path = scenes(41), tmp_path / "store"
    with make(path, frames) as buffer:
        add(buffer, frames, 0, 40)
    with db.ReplayBuffer(path, mode="r") as buffer:
        ours = np.concatenate([buffer.at(buffer.steps())["obs"].numpy(), frames[40:]])
    array = zarr.open_group(path, mode="r")["obs"]
    assert isinstance(array, zarr.Array)
    assert np.array_equal(np.asarray(array[:41]), ours)
    import dask.array  # slow, and one worker's alone

    lazy: Any = dask.array.from_zarr(str(path), component="obs")
    assert np.array_equal(lazy[7:20].compute(), ours[7:20])
    with xarray.open_zarr(path, consolidated=True) as data:
        assert np.array_equal(data["obs"][3:5].values, ours[3:5])
    made: Any = zarr.create_array(
        tmp_path / "array",
        shape=frames.shape,
        chunks=(1, *frames.shape[1:]),
        dtype="uint8",
        serializer=WebP(90),
        compressors=None,
    )
    made[:] = frames  # zarr-python writes such arrays, too
    assert np.array_equal(made[:], [seen_by_pillow(by_pillow(frame, 90)) for frame in frames])
    with pytest.raises(Exception, match="no picture"):
        zarr_reads_made_up(path)


def zarr_reads_made_up(path: Path) -> None:
    replace_chunk(path, 3, turned(len(chunks_of(path)[3]), FRAMES[0]))
    array: Any = zarr.open_group(path, mode="r")["obs"]
    array[3]


def test_copies_have_the_same_files_of_pictures(tmp_path: Path) -> None:
    frames, path = scenes(61), tmp_path / "store"
    with make(path, frames) as buffer:
        extend(buffer, frames, 0, 40)
        buffer.copies.mark("here")
        buffer.copies.snapshot(tmp_path / "snapshot")
        extend(buffer, frames, 40, 60)
        buffer.flush(recompress=True)
    before = chunks_of(path)
    assert {row: before[row] for row in range(40)}.items() <= chunks_of(tmp_path / "snapshot").items()
    for place, mark in ((tmp_path / "snapshot", None), (path, "here")):
        with db.ReplayBuffer(place, mark=mark) as buffer:
            assert len(buffer) == 40
            extend(buffer, frames, 40, 60)
            assert buffer.episodes.length.tolist() == [60]
            buffer.flush(recompress=True)
        after = chunks_of(place)
        assert {row: after[row] for row in range(60)} == {row: before[row] for row in range(60)}


def test_another_codec_in_a_copy_is_of_what_the_store_has(tmp_path: Path) -> None:
    frames = scenes(30)
    with make(tmp_path / "store", frames) as buffer:
        extend(buffer, frames, 0, 29)
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        ours = buffer.at(buffer.steps())["obs"].numpy()
    editing.copy(tmp_path / "store", tmp_path / "plain", codec={"obs": None}, progress=False)
    with db.ReplayBuffer(tmp_path / "plain", mode="r") as buffer:
        assert np.array_equal(buffer.at(buffer.steps())["obs"].numpy(), ours)
    editing.copy(tmp_path / "plain", tmp_path / "again", codec={"obs": "webp:50"}, progress=False)
    packed = {row: chunk for row, chunk in chunks_of(tmp_path / "again").items() if row < 29}
    assert {row: chunk[4:-4] for row, chunk in packed.items()} == {row: by_pillow(ours[row], 50) for row in range(29)}


def test_the_stores_of_several_writers_are_read_as_one(tmp_path: Path) -> None:
    frames = scenes(30)
    for name, some in (("a", frames), ("b", frames[::-1].copy())):
        with make(tmp_path / "runs", some, writer=name) as buffer:
            extend(buffer, some, 0, 29)
            buffer.flush()
    with pytest.raises(db.errors.SchemaError, match="compressed with a loss"):
        make(tmp_path / "runs", frames, writer="c", codec=None, chunk_rows=1)
    with db.ReplayBuffer(tmp_path / "runs", mode="r") as buffer:
        batch = buffer.at(buffer.steps())
    for n, (obs, action) in enumerate(zip(batch["obs"].numpy(), batch["action"].tolist(), strict=True)):
        assert abs(obs.astype(int) - (frames if n < 29 else frames[::-1])[action]).mean() < 6
