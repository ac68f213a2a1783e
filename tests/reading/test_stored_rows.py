"""Chunks that compression cannot make smaller: only the rows that are wanted are read, and their own checksums verify them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.reading.gather import structs
from diskbuffer.store.format.codec import HEADER
from diskbuffer.store.segments.shard import index_of
from tests.support.specimens import flip

STEPS, CHUNK_ROWS = 300, 4
ROW = 101  # of a shape whose bytes are no multiple of 8, as checksums go by whole words


def noise(n: int = STEPS + 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (n, ROW, 61), dtype=np.uint8)


def fill(path: Path, frames: Any, *, sealed: bool = True, **options: Any) -> None:
    columns = {"obs": db.Column(frames.shape[1:], "uint8"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(path, STEPS, columns=columns, **{"chunk_rows": CHUNK_ROWS} | options) as buffer:
        buffer.extend(obs=frames, action=np.arange(STEPS), reward=np.zeros(STEPS))
        if sealed:
            buffer.flush(recompress=True)


def place_of(buffer: db.ReplayBuffer, row: int) -> tuple[Path, int]:
    """Return the file that a row of the only stream is in, and at which byte it begins."""
    layout, maps = buffer._store.layout, buffer._store.maps
    slot, offset = divmod(row, layout.segment_rows)
    shard = maps.get("obs", slot)
    at, length = index_of(shard, layout.chunks("obs"))[offset // CHUNK_ROWS].tolist()
    assert length > layout.chunk_bytes("obs"), "it was to be noise"
    name = layout.data_file("obs", slot)
    return buffer._store.files.root / name, at + HEADER + offset % CHUNK_ROWS * layout.schema["obs"].row_bytes


@pytest.mark.some(4)
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_rows_come_back_as_they_were(tmp_path: Path, sealed: bool, stack: int, n_envs: int) -> None:
    frames = noise()
    columns = {"obs": db.Column(frames.shape[1:], "uint8")}
    with db.ReplayBuffer(
        tmp_path / "store",
        2 * STEPS,
        columns=columns,
        n_envs=n_envs,
        autoreset="next_step",
        frame_stack=stack,
        chunk_rows=CHUNK_ROWS,
    ) as buffer:
        for env in range(n_envs):
            buffer.extend(obs=frames[:: (-1) ** env], reward=np.zeros(STEPS), env=env)
        if sealed:
            buffer.flush(recompress=True)
        for _ in range(20):  # with pages that are asked for ahead, and without
            batch = buffer.sample(64)
            at, env = np.divmod(batch["steps"].numpy(), n_envs)
            window = np.maximum(at[:, None] + np.arange(1 - stack, 1), 0)
            following = np.maximum(at[:, None] + np.arange(2 - stack, 2), 0)
            for name, rows in (("obs", window), ("next_obs", following)):
                expected = frames[np.where(env[:, None] == 1, STEPS - rows, rows)]
                assert (batch[name].numpy().reshape(expected.shape) == expected).all()


def test_what_is_damaged_is_named_where_it_is_wanted_and_only_there(tmp_path: Path) -> None:
    frames = noise()
    fill(tmp_path / "store", frames)
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        file, at = place_of(buffer, 42)
        flip(file, at + 1000)
        assert (buffer.at([40])["next_obs"].numpy() == frames[41]).all()  # rows 40 and 41, of the same chunk as 42
        for step in (41, 42):  # one of whose two rows it is
            with pytest.raises(db.CorruptionError, match=r"rows 40 to 43 .*checksum does not match"):
                buffer.at([step])
        assert (buffer.at([43])["obs"].numpy() == frames[43]).all()
    assert not db.check(tmp_path / "store").ok


def test_rows_whose_own_checksum_is_damaged_are_verified_by_their_chunks(tmp_path: Path) -> None:
    frames = noise()
    fill(tmp_path / "store", frames)
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        buffer.at([42])  # so that its segment is mapped, and its flat files verified
        slot, offset = divmod(42, buffer._store.layout.segment_rows)
        flip(buffer._store.files.root / buffer._store.layout.data_file("row_checksum", slot), 12 * offset)
        assert (buffer.at([42])["obs"].numpy() == frames[42]).all()


def test_a_row_of_another_place_does_not_pass(tmp_path: Path) -> None:
    frames = noise()
    fill(tmp_path / "store", frames)
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        file, there = place_of(buffer, 43)
        _, here = place_of(buffer, 42)
        contents = bytearray(file.read_bytes())
        contents[here : here + frames[0].nbytes] = contents[there : there + frames[0].nbytes]
        with file.open("r+b") as opened:
            opened.write(contents)
        with pytest.raises(db.CorruptionError, match="checksum does not match"):
            buffer.at([42])


@pytest.mark.parametrize("shape", [{"obs/a": (64, 64), "obs/b": (2,)}, {"obs": (32, 32)}])
def test_other_columns_are_read_by_chunks(tmp_path: Path, shape: dict[str, tuple[int, ...]]) -> None:
    """A row's checksum covers all of the observation, and of small rows a chunk has few pages."""
    columns = {path: db.Column(size, "uint8") for path, size in shape.items()}
    with db.ReplayBuffer(tmp_path / "store", STEPS, columns=columns, chunk_rows=CHUNK_ROWS) as buffer:
        assert (buffer._reader.columns.targets[..., structs.CHECKSUMS] < 1).all()
        rng = np.random.default_rng(0)
        obs: Any = {path.split("/")[-1]: rng.integers(0, 256, (STEPS + 1, *size), np.uint8) for path, size in shape.items()}
        buffer.extend(obs=obs if len(obs) > 1 else obs["obs"], reward=np.zeros(STEPS))
        buffer.flush(recompress=True)
        batch, first = buffer.sample(64), next(iter(shape)).split("/")[-1]
        found = batch["obs"][first] if len(shape) > 1 else batch["obs"]
        assert (found.numpy() == obs[first][batch["steps"].numpy()]).all()
