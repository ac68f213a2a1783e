"""Rows that a light reader reads of random stores of format 2, against what was written: live, closed, killed and damaged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from diskbuffer.errors import CorruptionError, EvictedError, InputError
from diskbuffer.reading.episode_columns import list_episodes
from diskbuffer.reading.light_reader import LightReader
from diskbuffer.schema import CHECKSUM
from tests.storage.experience import VALUE, Model, Writing, create, layout_of, value_of

WITHOUT = """
import sys
from pathlib import Path
from diskbuffer.reading.light_reader import LightReader
reader = LightReader(Path(sys.argv[1]))
assert len(reader.read("obs/pixels", [int(sys.argv[2])])) == 1
print(*sorted({"torch", "zarr"} & sys.modules.keys()))
"""


def written(root: Path, seed: int, calls: int = 80) -> Writing:
    rng = np.random.default_rng(seed)
    environments = int(rng.integers(1, 6))
    create(root, layout_of(environments, 16, 32, 4))
    writing = Writing(root, Model.of(environments), rng)
    writing.go_on(calls)
    return writing


def compare(reader: LightReader, model: Model) -> None:
    """Compare all rows in all columns, in a random order, at once."""
    layout, rng = reader.store.layout, np.random.default_rng(0)
    n = layout.environments
    assert reader.index.heads.tolist() == model.heads.tolist()
    every = [
        (environment, at, row)
        for environment, rows in enumerate(model.rows)
        for at, row in rows.items()
        if at >= model.low[environment]
    ]
    rng.shuffle(every)
    steps = np.array([at * n + environment for environment, at, _ in every], np.int64)
    for path, column in layout.schema.columns.items():
        if path in (CHECKSUM, VALUE):
            continue
        if path in layout.schema.step and path not in ("terminated", "truncated", "is_last"):
            kept = [n for n, each in enumerate(every) if each[2].step]
        else:
            kept = list(range(len(every)))
        expected = [value_of(path, column, *every[n]) for n in kept]
        found = reader.read(path, steps[kept])
        if len(kept):
            np.testing.assert_array_equal(found, np.stack(expected), err_msg=path)
        ages = np.array([model.heads[every[n][0]] - every[n][1] for n in kept], np.int64)
        np.testing.assert_array_equal(reader.recent(path, [every[n][0] for n in kept], ages), found)
    for environment, low in enumerate(model.low.tolist()):
        with pytest.raises(InputError, match="has no row"):
            reader.read("reward", [(model.heads[environment] + 1) * n + environment])
        if low:
            with pytest.raises(EvictedError):
                reader.read("reward", [(low - 1) * n + environment])
    with reader.store.lock:
        episodes = list_episodes(reader.store, reader.index)
    assert episodes.length.sum() == len(reader.index)


@pytest.mark.parametrize("seed", range(2))
def test_rows_beside_a_writer_and_after_it(tmp_path: Path, seed: int) -> None:
    writing = written(tmp_path / "store", seed)
    reader = LightReader(tmp_path / "store")
    compare(reader, writing.model)
    for _ in range(2):
        writing.go_on(40)
        reader.refresh()
        compare(reader, writing.model)
    writing.close()
    reader.refresh()
    compare(reader, writing.model)
    reader.close()


@pytest.mark.parametrize("seed", range(4, 6))
def test_rows_of_a_store_whose_writer_died(tmp_path: Path, seed: int) -> None:
    writing = written(tmp_path / "store", seed)
    writing.die()
    reader = LightReader(tmp_path / "store")
    compare(reader, writing.model)
    reader.close()


def test_a_damaged_chunk_is_told_and_others_are_read(tmp_path: Path) -> None:
    writing = written(tmp_path / "store", 9, 200)
    writing.close()
    model, n = writing.model, writing.layout.environments
    steps = [at * n + e for e, rows in enumerate(model.rows) for at in rows if at >= model.low[e]]
    file = sorted((tmp_path / "store" / "obs" / "pixels").glob("c.*"), key=lambda each: each.stat().st_size)[
        0
    ]  # a sealed one: of others, rows are verified at opening
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(bytes(data))
    reader, damaged = LightReader(tmp_path / "store"), 0
    for step in steps:
        at, environment = divmod(step, n)
        try:
            found = reader.read("obs/pixels", [step])[0]
        except CorruptionError:
            damaged += 1
            continue
        column = reader.store.layout.schema["obs/pixels"]
        np.testing.assert_array_equal(found, value_of("obs/pixels", column, environment, at, model.rows[environment][at]))
    assert 0 < damaged <= 4
    reader.close()


def test_nothing_of_pytorch_is_imported(tmp_path: Path) -> None:
    writing = written(tmp_path / "store", 3)
    writing.close()
    step = int(writing.model.heads[0]) * writing.layout.environments
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path / "store"), str(step)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
