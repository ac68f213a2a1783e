"""Stores in the planned format, made by hand, are read right by every Zarr reader, and by the reader in docs/format.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import xarray
import zarr

from tests.store.planned_format import COLUMNS, PACKED, ROWS, TAIL_ROWS, Array, Made, made, values

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
JAVASCRIPT = Path(__file__).parent / "other_readers" / "read_in_javascript.mjs"
INTEROP = Path(sys.prefix) / "interop" / "readers"


def by_zarr(root: Path, path: str) -> Array:
    found: Any = zarr.open_group(root, mode="r")[path]
    return np.asarray(found[:])


def by_zarrs(root: Path, path: str) -> Array:
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return by_zarr(root, path)


def by_tensorstore(root: Path, path: str) -> Array:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{root}/{path}"}}
    return np.asarray(tensorstore.open(spec).result().read().result())


def by_dask(root: Path, path: str) -> Array:
    import dask.array  # slow, and one worker's alone

    lazy: Any = dask.array
    return np.asarray(lazy.from_zarr(str(root), component=path).compute())


def by_xarray(root: Path, path: str) -> Array:
    name = path.rpartition("/")
    group: dict[str, Any] = {"group": name[0], "consolidated": False} if name[0] else {}
    with xarray.open_zarr(root, **group) as dataset:
        if not path.startswith("_"):
            assert dataset[name[2]].dims[:2] == ("row", "lane")
        return np.asarray(dataset[name[2]].values)


READERS: dict[str, Callable[[Path, str], Array]] = {
    "zarr-python": by_zarr,
    "zarrs": by_zarrs,
    "tensorstore": by_tensorstore,
    "dask": by_dask,
    "xarray": by_xarray,
}
ARRAYS = (*COLUMNS, "_segments", "_heads", *(f"_tail/{path}" for path in PACKED))
STORES: dict[str, dict[str, Any]] = {
    "equal": {"heads": [20, 20, 20]},
    "one environment": {"heads": [29]},
    "uneven": {"heads": [40, 3, 17, 25]},
    "one that added nothing": {"heads": [12, -1, 20]},
    "evicted": {"heads": [60, 61, 33], "kept": 4},
    "live": {"heads": [13, 22, 8], "live": True},
    "ended": {"heads": [31, 30, 30], "ended": {0: 11}},
    "ended after one row": {"heads": [31, 30, 18], "ended": {0: 8, 2: 18}},
    "ended, and evicted": {"heads": [70, 61, 64], "ended": {0: 45, 1: 58, 2: 64}, "kept": 4},
    "after a power loss": {"heads": [44, 30, 21], "lost": {0: (12, 24), 2: (16, 16)}},
    "a chunk of the table is gone": {"heads": [300, 290, 310], "kept": 6},
}


def store_of(root: Path, name: str) -> Made:
    return made(root / "store", seed=len(name), **STORES[name])


def rows_of(arrays: dict[str, Array], path: str, environment: int) -> tuple[Array, Array]:
    """Return positions and values of an environment's rows, from what a reader returned of three arrays."""
    entries, column = arrays["_segments"], arrays[path]
    end, low = (int(word) % 2**40 for word in arrays["_heads"][environment, :2])
    numbers = {}
    for number in np.flatnonzero(entries[:, 0] % 2**32 == environment + 1).tolist():  # of two with the same row, the later counts
        numbers[int(entries[number, 1])] = number
    positions, rows = [np.zeros(0, np.int64)], [column[:0, 0]]
    for first, following in pairwise([*sorted(numbers), end]):
        if first >= low:
            number = numbers[first]
            n = min(int(entries[number, 5]) or end, following) - first
            begin = number // column.shape[1] * ROWS
            positions.append(np.arange(first, first + n))
            rows.append(column[begin : begin + n, number % column.shape[1]])
    return np.concatenate(positions), np.concatenate(rows)


@pytest.mark.some(6)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", STORES)
def test_zarr_readers_return_every_row(tmp_path: Path, name: str, reader: str) -> None:
    store = store_of(tmp_path, name)
    arrays = {path: READERS[reader](store.root, path) for path in ARRAYS}
    for path, (shape, dtype) in COLUMNS.items():
        for environment, wanted in store.rows.items():
            positions, found = rows_of(arrays, path, environment)
            assert found.dtype == np.dtype(dtype)
            assert found.shape[1:] == shape
            np.testing.assert_array_equal(positions, wanted)
            if store.live and path in PACKED:  # what is in no chunk is in the tail
                tail = arrays[f"_tail/{path}"]
                newest = positions[positions > store.heads[environment] - TAIL_ROWS]
                found[np.isin(positions, newest)] = tail[environment, newest % TAIL_ROWS]
            np.testing.assert_array_equal(found, values(path, environment, positions))


def test_where_environments_go_in_step_the_lane_is_the_environment(tmp_path: Path) -> None:
    store = Made(tmp_path / "store", 3, [20, 20, 20])
    store.segments = [(environment, first) for first in (0, 8, 16) for environment in range(3)]
    store.rows = {environment: np.arange(21) for environment in range(3)}
    store.write()
    reward = by_zarr(store.root, "reward")
    for environment in range(3):
        np.testing.assert_array_equal(reward[:21, environment], values("reward", environment, np.arange(21)))


def test_a_lane_is_contiguous_in_the_file(tmp_path: Path) -> None:
    store = store_of(tmp_path, "uneven")
    data = (store.root / "obs" / "vector" / "c.0.0.0").read_bytes()
    environment, first = store.segments[2]
    there = min(ROWS, store.heads[environment] + 1 - first)
    lane = np.frombuffer(data, np.float32)[2 * ROWS * 3 : 3 * ROWS * 3].reshape(ROWS, 3)[:there]
    np.testing.assert_array_equal(lane, values("obs/vector", environment, np.arange(first, first + there)))


def test_the_reader_in_the_docs_returns_every_row(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code) == 1
    assert code[0].count("\n") <= 40
    names: dict[str, Any] = {}
    exec(compile(code[0], str(PAGE), "exec"), names)
    for name in STORES:
        if name == "live":
            continue
        store = store_of(tmp_path / name, name)
        for path in COLUMNS:
            for environment, wanted in store.rows.items():
                positions, found = names["read"](store.root, path, environment)
                np.testing.assert_array_equal(positions, wanted)
                np.testing.assert_array_equal(found, values(path, environment, wanted))


@pytest.mark.interop
@pytest.mark.parametrize("name", STORES)
def test_zarrita_returns_the_same_arrays_as_zarr_python(tmp_path: Path, name: str) -> None:
    if not (INTEROP / "node_modules" / "zarrita").exists() or shutil.which("node") is None:
        pytest.skip("zarrita.js is not installed: make interop")
    store, out = store_of(tmp_path, name), tmp_path / "out"
    out.mkdir()
    asked = json.dumps([(str(store.root), path) for path in ARRAYS])
    command = ["node", str(JAVASCRIPT), str(INTEROP), str(out)]
    done = subprocess.run(command, input=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for number, (path, read) in enumerate(zip(ARRAYS, json.loads(done.stdout.splitlines()[-1])["arrays"], strict=True)):
        wanted = by_zarr(store.root, path)
        assert read["shape"] == list(wanted.shape)
        flat = np.frombuffer((out / str(number)).read_bytes(), wanted.dtype)
        strides = [n * wanted.itemsize for n in read["stride"]]  # in what order zarrita.js has it in memory
        found = np.lib.stride_tricks.as_strided(flat, wanted.shape, strides)
        np.testing.assert_array_equal(found, wanted)
