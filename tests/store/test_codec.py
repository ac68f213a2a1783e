"""Chunks: what is encoded comes back, whatever is flipped or forged is found."""

from __future__ import annotations

from typing import Any

import google_crc32c
import numcodecs.blosc
import numpy as np
import numpy.typing as npt
import pytest

from diskbuffer.native import codec as native
from diskbuffer.native.checksums import length_word
from diskbuffer.schema.schema import Column, Schema
from diskbuffer.store.format import checksums, codec
from diskbuffer.store.format.encoding import TRIES, Recoder

Array = npt.NDArray[Any]

SIZE = 8 * 1122
CONTENTS = {
    "frames": (np.arange(SIZE) // 100 % 7).astype(np.uint8),
    "zeros": np.zeros(SIZE, np.uint8),
    "noise": np.random.default_rng(0).integers(0, 256, SIZE).astype(np.uint8),
    "half noise": np.append(np.zeros(SIZE // 2, np.uint8), np.random.default_rng(1).integers(0, 256, SIZE // 2).astype(np.uint8)),
}


def encode(raw: Array, cname: str = "lz4", clevel: int = 5, item: int = 1) -> Array:
    out = np.zeros(codec.bound(len(raw)), np.uint8)
    size = native.encode(raw.ctypes.data, len(raw), cname.encode(), clevel, item, out.ctypes.data)
    assert 0 < size <= codec.bound(len(raw))
    return out[:size].copy()


def decode(chunk: Array, wanted: int = SIZE, size: int = SIZE) -> tuple[int, Array]:
    target, scratch = np.full(wanted + 64, 0xEE, np.uint8), np.zeros(2 * size, np.uint8)
    reason = native.decode(chunk.ctypes.data, len(chunk), size, wanted, target.ctypes.data, scratch.ctypes.data)
    assert (target[wanted:] == 0xEE).all(), "wrote behind what was wanted"
    return reason, target[:wanted]


def test_rows_have_the_same_checksums_natively_and_in_python() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        shapes = [tuple(rng.integers(1, 12, rng.integers(0, 3)).tolist()) for _ in range(4)]
        dtypes = rng.choice(["bool", "int16", "float32", "uint64", "complex64"], 4).tolist()
        obs, *others = (Column(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
        schema = Schema.of({"obs": obs, "action": others[0], "reward": Column()} | {f"x{n}": c for n, c in enumerate(others[1:])})
        n, stream, first, apart, salt = (
            int(rng.integers(low, high)) for low, high in ((1, 40), (0, 99), (0, 2**40), (1, 9), (0, 2**62))
        )
        rows = {
            path: rng.integers(0, 2, (n, column.row_bytes), np.uint8).view(column.np_dtype).reshape(n, *column.shape)
            for path, column in schema.recorded.columns.items()
        }
        summed = {
            path: checksums.Summed(np.array([google_crc32c.value(row.tobytes()) for row in values], np.uint32), values[0].nbytes)
            for path, values in rows.items()
        }
        for word in (checksums.OBS, checksums.STEP):
            native = checksums.row_checksums(schema, salt, stream, first, n, rows, word, apart)
            assert native.tolist() == checksums.row_checksums(schema, salt, stream, first, n, summed, word, apart).tolist()
    for seed, length in rng.integers(0, 2**31, (100, 2)).tolist():
        for no_reset in (False, True):
            assert length_word(seed, length, no_reset) == checksums.length_word(seed, length, no_reset)


def test_rows_are_replaced_and_the_checksums_of_their_files_with_them() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        row_bytes, n_files, n_rows = rng.integers(1, 50), rng.integers(1, 4), rng.integers(1, 40)
        files = rng.integers(0, 256, (n_files, n_rows, row_bytes), np.uint8)
        before = [google_crc32c.value(file.tobytes()) for file in files]
        which = rng.integers(0, n_files, 30)
        targets = files.ctypes.data + (which * n_rows + rng.integers(0, n_rows, 30)) * row_bytes
        ends = files.ctypes.data + (np.arange(n_files) + 1) * n_rows * row_bytes
        changes = checksums.replace_rows(rng.integers(0, 256, (30, row_bytes), np.uint8), targets, ends, which)
        after = [google_crc32c.value(file.tobytes()) for file in files]
        assert (np.array(before) ^ changes).tolist() == after


@pytest.mark.parametrize(("cname", "clevel", "item"), [codec.LIVE, codec.SEALED, ("zstd", 3, 1), ("lz4hc", 4, 4), ("zstd", 1, 8)])
@pytest.mark.parametrize("content", CONTENTS)
def test_a_chunk_comes_back_whole_and_in_part(content: str, cname: str, clevel: int, item: int) -> None:
    raw = CONTENTS[content]
    chunk = encode(raw, cname, clevel, item)
    assert (len(chunk) < SIZE / 2) == (content in ("frames", "zeros"))
    for wanted in (SIZE, SIZE - 1, 1122, 1, 5 * 1122):
        reason, found = decode(chunk, wanted)
        assert reason == 0
        np.testing.assert_array_equal(found, raw[:wanted])


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


def test_a_chunk_that_was_cut_short_is_found() -> None:
    chunk = encode(CONTENTS["half noise"])
    for size in [*range(30), 100, len(chunk) - 5, len(chunk) - 1]:
        assert decode(chunk[:size].copy())[0] != 0


def test_a_chunk_of_another_size_is_refused() -> None:
    raw = CONTENTS["frames"]
    assert decode(encode(raw[: SIZE // 2].copy()), SIZE)[0] == codec.BAD_HEADER


METHODS = (
    codec.COPY,
    codec.PICTURES,
    codec.NONE,
    codec.Method("lz4hc", 7),
    codec.Method("lz4", 9, 4),
    codec.Method("zstd", 1, 2),
)


def recoded(chunks: list[Array], method: codec.Method = codec.PICTURES, size: int = SIZE) -> list[Array]:
    """Return what sealing makes of chunks of a live shard, where two that LZ4 had stored are tried."""
    shard, sizes = np.concatenate(chunks), np.array([len(chunk) for chunk in chunks])
    entries = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1).astype(np.int64)
    out, moved = np.zeros(len(chunks) * codec.bound(size), np.uint8), np.zeros((len(chunks), 2), np.int64)
    recoder = Recoder(size, (1, 33, 1122))
    recoder.stored[TRIES] = 2
    written = recoder.recode(shard.ctypes.data, entries, out, moved, method)
    assert written == moved[:, 1].sum()
    return [out[at : at + n].copy() for at, n in moved.tolist()]


@pytest.mark.some(20)
@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("seed", range(10))
def test_chunks_of_any_kind_are_sealed_to_what_they_were(seed: int, method: codec.Method) -> None:
    rng = np.random.default_rng(seed)
    some_noise = rng.integers(0, 256, SIZE).astype(np.uint8) & rng.integers(0, 256, SIZE // 8).astype(np.uint8).repeat(8)
    kinds = [*CONTENTS.values(), CONTENTS["noise"], CONTENTS["noise"], some_noise]
    contents = [np.roll(kinds[rng.integers(len(kinds))], rng.integers(SIZE)) for _ in range(rng.integers(1, 40))]
    chunks = [encode(raw, clevel=1) for raw in contents]
    for raw, before, after in zip(contents, chunks, recoded(chunks, method), strict=True):
        assert len(after) <= len(before)
        assert numcodecs.blosc.decompress(after[:-4].tobytes()) == raw.tobytes()
        for wanted in (SIZE, 1122, 1):
            reason, found = decode(after, wanted)
            assert reason == 0
            np.testing.assert_array_equal(found, raw[:wanted])


@pytest.mark.some(6)
@pytest.mark.parametrize("of_pictures", [False, True])
@pytest.mark.parametrize("content", CONTENTS)
def test_every_byte_that_is_flipped_is_found(content: str, of_pictures: bool) -> None:
    chunk = encode(CONTENTS[content])
    if of_pictures:
        (chunk,) = recoded([encode(CONTENTS[content], clevel=0)])
        assert (len(chunk) < SIZE) == (content != "noise")
    for at in range(len(chunk)):
        for mask in (1, 0x80, 0xFF):
            chunk[at] ^= mask
            assert decode(chunk)[0] != 0, f"byte {at}"
            chunk[at] ^= mask
    assert decode(chunk)[0] == 0


@pytest.mark.parametrize("method", [codec.PICTURES, codec.SEALED], ids=str)
def test_chunks_that_cannot_become_smaller_are_copied_and_others_do_become_smaller(method: codec.Method) -> None:
    """LZ4HC takes a hundred times as long over noise as copying it does."""
    noise = [np.random.default_rng(n).integers(0, 256, SIZE).astype(np.uint8) for n in range(30)]
    chunks = [encode(raw, clevel=1) for raw in noise]
    for before, after in zip(chunks, recoded(chunks, method), strict=True):
        np.testing.assert_array_equal(before, after)
    stored = [encode(raw, clevel=0) for raw in [CONTENTS["frames"]] * 30]  # not tried, where others become smaller
    assert all(len(after) < len(before) / 2 for before, after in zip(stored, recoded(stored, method), strict=True))
    behind = [*chunks, *stored]  # ... and of the first two neither did
    assert recoded(behind, method)[-1].tobytes() == stored[-1].tobytes()


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_damaged_chunk_is_found_when_it_is_sealed(method: codec.Method) -> None:
    chunks = [encode(CONTENTS[content]) for content in ("frames", "noise", "half noise")]
    chunks[1][100] ^= 1
    shard, sizes = np.concatenate(chunks), np.array([len(chunk) for chunk in chunks])
    entries = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1).astype(np.int64)
    out, moved = np.zeros(3 * codec.bound(SIZE), np.uint8), np.zeros((3, 2), np.int64)
    assert Recoder(SIZE, (1, 0, 1122)).recode(shard.ctypes.data, entries, out, moved, method) == -1 - 1
