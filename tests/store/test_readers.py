"""Six Zarr readers return the same bytes as we do: whether the store is empty, live, killed, closed, or wrapped around.

Those that are no part of the tests' environment are in test_other_readers.py.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import xarray
import zarr
from tensordict import TensorDict

import diskbuffer as db
from diskbuffer.store.system.files import Files
from diskbuffer.store.writing.sealer import Sealer
from tests.store.rows_by_zarr import Array, Rows, arrays_of, check, packed_columns, with_zarr_python
from tests.store.states import (
    State,
    add_nested,
    closed,
    closed_and_opened_again,
    killed,
    killed_and_opened_again,
    live,
    of_nested_dicts,
    wrapped_around,
    wrapped_around_and_closed,
)
from tests.support.experience import Experience, Feeder
from tests.support.specimens import copy_while_open
from tests.support.writers import Writers


def with_zarrs(root: Path, path: str) -> Array:
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return with_zarr_python(root, path)


def with_tensorstore(root: Path, path: str) -> Array:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(root / path)}}
    return np.asarray(tensorstore.open(spec, read=True).result().read().result())


def with_xarray(root: Path, path: str) -> Array:
    *parents, name = path.split("/")
    with xarray.open_zarr(root, group="/".join(parents) or None, consolidated=not parents) as data:
        return np.asarray(data[name])


def with_dask(root: Path, path: str) -> Array:
    import dask.array  # slow, and one worker's alone

    lazy: Any = dask.array.from_zarr(str(root), component=path)
    return np.asarray(lazy.compute(scheduler="threads", num_workers=2))


def with_tensordict(root: Path, path: str) -> Array:
    tensor: Any = TensorDict.from_zarr(root)[tuple(path.split("/"))]
    return np.asarray(tensor.numpy())


READERS = {
    "zarr-python": with_zarr_python,
    "zarrs": with_zarrs,
    "tensorstore": with_tensorstore,
    "xarray": with_xarray,
    "dask": with_dask,
    "tensordict": with_tensordict,
}
LEAVE_DECODING_TO_ZARR_PYTHON = ("dask", "tensordict")


@pytest.mark.nightly
def test_all_of_them_read_an_empty_store(tmp_path: Path) -> None:
    with Experience(2).open(tmp_path / "store", 100) as buffer:
        for read in READERS.values():
            assert check(tmp_path / "store", buffer, read, closed=False) == 0
            assert not read(tmp_path / "store", "obs").any()
            assert len(read(tmp_path / "store", "obs")) == len(read(tmp_path / "store", "action")) > 100


@pytest.mark.nightly
@pytest.mark.parametrize(
    "state", [live, killed, killed_and_opened_again, closed, closed_and_opened_again, wrapped_around, wrapped_around_and_closed]
)
def test_all_of_them_read_the_same_bytes_as_we_do(
    state: State,
    tmp_path: Path,
    writers: Writers,
) -> None:
    world = Experience(2)
    buffer, everything_in_columns = state(tmp_path / "store", world, writers)
    with buffer:
        assert world.check(buffer) >= 120
        for read in READERS.values():
            assert check(tmp_path / "store", buffer, read, closed=everything_in_columns) > 600


@pytest.mark.nightly
def test_all_of_them_read_nested_observations_live_and_closed(tmp_path: Path) -> None:
    with of_nested_dicts(tmp_path / "store") as buffer:
        add_nested(buffer, 61)
        for read in READERS.values():
            assert check(tmp_path / "store", buffer, read, closed=False) > 600
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        for read in READERS.values():
            assert check(tmp_path / "store", buffer, read, closed=True) > 600


@pytest.mark.some(1)
@pytest.mark.parametrize("reader", ["zarr-python", "zarrs", "tensorstore"])
def test_reading_while_steps_are_added_never_fails_nor_gives_wrong_bytes(
    reader: str, tmp_path: Path, amount: Callable[[int, int], int]
) -> None:
    world, root, read = Experience(), tmp_path / "store", READERS[reader]
    wanted = amount(6, 60)
    errors: list[BaseException] = []
    caught_writing: list[Exception] = []
    done, reads = threading.Event(), 0

    def read_again_where_caught_writing(root: Path, path: str) -> Array:
        try:
            return read(root, path)
        except Exception as error:  # noqa: BLE001  each reader has errors of its own for a checksum that does not match
            caught_writing.append(error)
            return read(root, path)

    def compare() -> None:
        rows = Rows(root, read_again_where_caught_writing)
        there = rows.positions(0)
        if len(there) == 0:
            return
        found = rows.in_column("obs", 0, there)
        packed = np.array(found.reshape(len(there), -1)[:, 8:].all(axis=1))
        assert packed[there <= there[-1] - tail_rows].all()
        np.testing.assert_array_equal(found[packed], world.frames(0, there[packed]))
        steps = there[:-1][~world.is_last(0, there[:-1])]
        np.testing.assert_array_equal(rows.in_column("action", 0, steps), world.actions(0, steps))

    def keep_reading() -> None:
        nonlocal reads
        try:
            while not done.is_set() or reads < wanted:
                compare()
                reads += 1
        except BaseException as error:  # noqa: BLE001  the test's own thread raises it
            errors.append(error)

    with world.open(root, 1000, segment_rows=64) as buffer:
        feed = Feeder(world, buffer)
        feed.add(100)
        tail_rows = arrays_of(root)["_tail/obs"]["shape"][1]
        thread = threading.Thread(target=keep_reading)
        thread.start()
        added = 100
        while thread.is_alive() and (reads < wanted or added < 600):
            if added < 950:  # nothing is evicted: a reader of the whole array would see the slot filled again
                feed.add()
                added += 1
            time.sleep(0.0003)
        done.set()
        thread.join()
    if errors:
        raise errors[0]
    assert len(caught_writing) <= 1 + reads // 10, caught_writing
    assert reads >= wanted
    assert added > 500


@pytest.mark.nightly
def test_a_shard_read_from_its_front_while_chunks_are_appended_fails_and_is_right_when_read_again(tmp_path: Path) -> None:
    """One read of a whole file is not one instant: its front can be older than the index at its end."""
    world = Experience()
    with world.open(tmp_path / "store", 1000, segment_rows=64) as buffer:
        feed = Feeder(world, buffer)
        feed.add(9)
        shard = tmp_path / "store" / "obs" / "c.0.0.0"
        front = shard.read_bytes()
        tail_rows = arrays_of(tmp_path / "store")["_tail/obs"]["shape"][1]
        feed.add(tail_rows)
        now = shard.read_bytes()
        index_bytes = 16 * 64 // 4
        assert front[:-index_bytes] != now[:-index_bytes]
        assert front[-index_bytes:] != now[-index_bytes:]

        caught = tmp_path / "caught"
        copy_while_open(tmp_path / "store", caught)
        (caught / "obs" / "c.0.0.0").write_bytes(front[:-index_bytes] + now[-index_bytes:])
        for read in READERS.values():
            with pytest.raises(Exception, match=r"(?i)checksum|crc32c|invalid blosc"):  # whichever it looks at first
                read(caught, "obs")
            assert check(tmp_path / "store", buffer, read, closed=False) > 0


# Metadata


def test_packed_columns_have_the_codecs_of_the_format(tmp_path: Path) -> None:
    of_nested_dicts(tmp_path / "store").close()
    packed = packed_columns(tmp_path / "store")
    assert packed == {"obs/camera/left", "obs/camera/depth", "state"}
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    arrays = arrays_of(tmp_path / "store")
    for path, metadata in arrays.items():
        as_bytes = {"name": "bytes"} if metadata["data_type"] in ("uint8", "bool") else little
        if path not in packed:
            assert metadata["codecs"] == [as_bytes], path
            continue
        (sharding,) = metadata["codecs"]
        assert sharding["name"] == "sharding_indexed"
        blosc = {"cname": "lz4hc", "clevel": 7, "shuffle": "noshuffle", "typesize": 1, "blocksize": 0}
        assert sharding["configuration"] == {
            "chunk_shape": [4, *metadata["shape"][1:]],
            "codecs": [as_bytes, {"name": "blosc", "configuration": blosc}, {"name": "crc32c"}],
            "index_codecs": [little],
            "index_location": "end",
        }
        assert metadata["chunk_grid"]["configuration"]["chunk_shape"] == [16, *metadata["shape"][1:]]


CODECS = {"chosen": None, "none": "none", "lz4": "lz4", "hc": "lz4hc:7", "zstd": "zstd:1"}


def of_every_codec(rng: np.random.Generator, n: int) -> dict[str, Array]:
    """Return observations for columns of every codec, (n, ...), some of which cannot be made smaller."""
    steps = np.arange(n)[:, None, None]
    smooth = (np.add.outer(np.arange(36), np.arange(40))[None] // 4 + steps).astype(np.uint8)
    mixed = np.where(steps // 20 % 2 == 0, smooth, rng.integers(0, 256, (n, 36, 40)).astype(np.uint8))
    kinds = {"bytes": mixed, "floats": mixed[:, :30].astype(np.float32)}
    return {f"{kind}_{name}": values for kind, values in kinds.items() for name in CODECS}


@pytest.mark.nightly
@pytest.mark.parametrize("reader", [reader for reader in READERS if reader not in LEAVE_DECODING_TO_ZARR_PYTHON])
def test_columns_of_every_codec_are_read_live_and_sealed_and_after_a_kill(tmp_path: Path, reader: str) -> None:
    rows = of_every_codec(np.random.default_rng(0), 301)
    columns = {
        f"obs/{name}": db.Column(values.shape[1:], values.dtype, codec=CODECS[name.split("_", 1)[1]])
        for name, values in rows.items()
    }
    columns["action"] = db.Column((), "int64")
    with db.ReplayBuffer(tmp_path / "store", columns=columns, segment_rows=64) as buffer:
        first = {name: values[:200] for name, values in rows.items()}
        buffer.extend(obs=first, action=np.arange(199), reward=np.zeros(199))
        buffer.flush(recompress=True)
        second = {name: values[199:] for name, values in rows.items()}
        buffer.extend(obs=second, action=np.arange(199, 300), reward=np.zeros(101))
        copy_while_open(tmp_path / "store", tmp_path / "killed")
    with db.ReplayBuffer(tmp_path / "killed") as buffer:
        assert buffer.check(progress=False).problems == []
        batch = buffer.at(buffer.steps())
        for name, values in rows.items():
            np.testing.assert_array_equal(batch["obs"][name], values[:300])
        buffer.flush(recompress=True)
        told = buffer.stats()["compression"]
        assert {path: figures["codec"].split(",")[0] for path, figures in told.items() if "chosen" not in path} == {
            path: column.codec for path, column in columns.items() if column.codec
        }
    for store in ("store", "killed"):
        for name, values in rows.items():
            np.testing.assert_array_equal(READERS[reader](tmp_path / store, f"obs/{name}")[:301], values)


def test_every_array_names_its_dimensions_and_shares_the_rows(tmp_path: Path) -> None:
    of_nested_dicts(tmp_path / "store").close()
    arrays = arrays_of(tmp_path / "store")
    assert len(arrays) > 20
    sizes: dict[str, set[int]] = {}
    for path, metadata in arrays.items():
        names = metadata["dimension_names"]
        assert len(names) == len(set(names)) == len(metadata["shape"]), path
        assert all(isinstance(name, str) for name in names), path
        expected = {"_segments": "slot", "_tail": "stream"}.get(path.split("/")[0], "row")
        assert names[0] == ("words" if path == "_segments/cleared" else expected)
        for name, size in zip(names, metadata["shape"], strict=True):
            sizes.setdefault(name, set()).add(size)
    assert len(sizes["row"]) == len(sizes["slot"]) == 1
    assert sizes["row"] == {16 * slots for slots in sizes["slot"]}


def test_zarr_lists_the_store_without_a_warning_and_as_its_consolidated_metadata_does(tmp_path: Path) -> None:
    with of_nested_dicts(tmp_path / "store") as buffer:
        add_nested(buffer, 40)
        buffer.flush(recompress=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            listed = dict(zarr.open_group(str(tmp_path / "store"), mode="r", use_consolidated=False).members(max_depth=None))
            known = dict(zarr.open_group(str(tmp_path / "store"), mode="r", use_consolidated=True).members(max_depth=None))
        assert set(listed) == set(known) > {"obs/camera/left", "action/grip", "reward", "_segments/length", "_tail/state"}
        for path, node in listed.items():
            if isinstance(node, zarr.Array):
                assert node.metadata.to_dict() == known[path].metadata.to_dict(), path
        assert set(zarr.open_group(buffer.path, mode="r").attrs["diskbuffer"]["columns"]) == set(buffer.columns)  # type: ignore[arg-type, index, call-overload]


def test_only_files_of_zarr_are_in_the_store(tmp_path: Path) -> None:
    with of_nested_dicts(tmp_path / "store") as buffer:
        add_nested(buffer, 40)
        buffer.flush(recompress=True)
    arrays = arrays_of(tmp_path / "store")
    data = [file for file in (tmp_path / "store").rglob("*") if file.is_file() and file.name != "zarr.json"]
    for file in data:
        path = str(file.parent.relative_to(tmp_path / "store"))
        assert path in arrays, f"{file.name} is not in an array's directory"
        of_length = ("writer.lock", "writer.json", "state.json", "group.json", "tail.0", "tail.1", "tail.2")
        if path != "_segments/length" or file.name not in of_length:
            key = file.name.split(".")
            assert key[0] == "c"
            assert len(key) == 1 + len(arrays[path]["shape"])


def test_a_segment_that_is_sealed_while_a_reader_maps_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, seal, real = threading.Event(), Sealer._seal, Files.map

    def wait(self: Sealer) -> None:
        gate.wait()
        seal(self)

    monkeypatch.setattr(Sealer, "_seal", wait)
    world = Experience(1)
    with world.open(tmp_path / "store", segment_rows=16) as buffer:
        Feeder(world, buffer).add(60)
        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:

            def mapped(self: Files, name: str, *args: Any, **kwargs: Any) -> Any:
                found = real(self, name, *args, **kwargs)
                if name.startswith("obs/c.0") and not gate.is_set():
                    gate.set()
                    buffer.flush(recompress=True)
                return found

            monkeypatch.setattr(Files, "map", mapped)
            world.check_batch(reader.at(reader.steps()))
            assert gate.is_set()
