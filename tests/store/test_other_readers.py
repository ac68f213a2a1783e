"""Zarr readers that have environments of their own return the same bytes as we do.

`make interop` installs them, in ``.venv/interop/readers``, and runs this. Without them, it is skipped.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore

import diskbuffer as db
from tests.store import states
from tests.store.rows_by_zarr import Array, arrays_of, check
from tests.support.experience import Experience
from tests.support.writers import Writers

PROGRAMS = Path(__file__).parent / "other_readers"
ENVIRONMENT = Path(sys.prefix) / "interop" / "readers"


def is_flat(metadata: dict[str, Any]) -> bool:
    return bool(metadata["codecs"][0]["name"] == "bytes")


@dataclass(frozen=True)
class Reader:
    """A program that reads arrays, which of them, and the error that it raises of the others."""

    command: tuple[str, ...]
    needs: str  # what is in its environment where it was installed
    reads: Callable[[dict[str, Any]], bool]
    error: str = "(?!)"
    verifies: bool = True  # or ignores the CRC32C of a chunk

    @property
    def is_there(self) -> bool:
        return any(ENVIRONMENT.glob(self.needs)) and shutil.which(self.command[0]) is not None

    def __call__(self, arrays: list[tuple[str, str]], out: Path) -> list[Array | str]:
        """Read arrays, each by its store and its path; errors are texts."""
        out.mkdir()
        done = subprocess.run([*self.command, str(out)], input=json.dumps(arrays), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found: list[Array | str] = []
        for number, one in enumerate(json.loads(done.stdout.splitlines()[-1])["arrays"]):
            if "error" in one:
                found.append(one["error"])
            else:
                data = (out / str(number)).read_bytes()
                found.append(np.frombuffer(data, np.dtype(one["dtype"]).newbyteorder("<")).reshape(one["shape"]))
        return found


def python(library: str) -> tuple[str, ...]:
    return str(ENVIRONMENT / "bin" / "python"), str(PROGRAMS / "read_in_python.py"), library


PACKAGES = "lib/python*/site-packages"
READERS = {
    "zarrita.js": Reader(
        ("node", str(PROGRAMS / "read_in_javascript.mjs"), str(ENVIRONMENT)),
        "node_modules/zarrita",
        lambda metadata: metadata["data_type"] != "complex64",
        "unsupported dataType: complex64",
        verifies=False,
    ),
    "zarrista": Reader(python("zarrista"), f"{PACKAGES}/zarrista", lambda metadata: True),
    "napari": Reader(
        python("napari"),
        f"{PACKAGES}/napari",
        lambda metadata: len(metadata["shape"]) > 1 and metadata["data_type"] != "complex64",
        "0 layers of one array|NotImplementedError",
    ),
    "gdal": Reader(python("gdal"), f"{PACKAGES}/rasterio", is_flat, "Unsupported codec: sharding_indexed"),
    "z5": Reader(
        python("z5"),
        f"{PACKAGES}/z5py",
        lambda metadata: is_flat(metadata) and metadata["data_type"] not in ("bool", "complex64"),
        "unsupported zarr v3 codec: crc32c|Unsupported zarr v3 data_type: (complex64|bool)",
    ),
}


def nested(root: Path, *_: Any) -> tuple[db.ReplayBuffer, bool]:
    with states.of_nested_dicts(root) as buffer:
        states.add_nested(buffer, 61)
    return db.ReplayBuffer(root, mode="r"), True


def zstd_and_derived(root: Path, world: Experience, *_: Any) -> tuple[db.ReplayBuffer, bool]:
    rows = np.random.default_rng(0).integers(0, 5, (301, 40, 36))
    columns = {
        "obs/pixels": db.Column((40, 36), "uint8", codec="zstd:3"),
        "obs/depth": db.Column((40, 36), "float32", codec="zstd:1"),
    }
    with db.ReplayBuffer(root, columns={**columns, "action": db.Column((), "int64")}, segment_rows=64) as buffer:
        obs = {"pixels": rows.astype(np.uint8), "depth": rows.astype(np.float32)}
        buffer.extend(obs=obs, action=np.arange(300), reward=np.arange(300))
        buffer.columns.map(lambda batch: batch["action"] * 0.5, 64, out="value", progress=False)
        buffer.flush(recompress=True)
    assert arrays_of(root)["obs/pixels"]["codecs"][0]["configuration"]["codecs"][1]["configuration"]["cname"] == "zstd"
    return db.ReplayBuffer(root, mode="r"), True


STATES: tuple[states.State, ...] = (
    states.live,
    states.killed,
    states.closed,
    states.wrapped_around_and_closed,
    nested,
    zstd_and_derived,
)
Stores = dict[Path, tuple[db.ReplayBuffer, bool]]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, server: Writers) -> Iterator[Stores]:
    """A store in each state, in a directory whose name ends in .zarr: by that napari knows what it is."""
    where = tmp_path_factory.mktemp("stores")
    made = {where / f"{state.__name__}.zarr": state for state in STATES}
    opened = {root: state(root, Experience(2), server) for root, state in made.items()}
    yield opened
    for buffer, _ in opened.values():
        buffer.close()


def flip_a_bit_of_the_first_chunks_checksum(array: Path) -> None:
    shard = array / "c.0.0.0"
    data = bytearray(shard.read_bytes())
    chunks = 64 // json.loads((array / "zarr.json").read_bytes())["codecs"][0]["configuration"]["chunk_shape"][0]
    offset, nbytes = np.frombuffer(data[-16 * chunks :], "<u8")[:2].tolist()
    data[offset + nbytes - 1] ^= 1
    shard.write_bytes(data)


@pytest.mark.interop
@pytest.mark.parametrize("name", READERS)
def test_it_reads_the_same_bytes_as_we_do(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    reader = READERS[name]
    if not reader.is_there:
        pytest.skip("`make interop` installs it")
    stores: Stores = request.getfixturevalue("stores")  # not made where nothing reads them
    flipped = tmp_path / "flipped.zarr"
    shutil.copytree(next(root for root in stores if root.stem == "zstd_and_derived"), flipped)
    flip_a_bit_of_the_first_chunks_checksum(flipped / "obs" / "pixels")
    about = {(str(root), path): metadata for root in stores for path, metadata in arrays_of(root).items()}
    *values, damaged = reader([*about, (str(flipped), "obs/pixels")], tmp_path / "out")
    assert isinstance(damaged, str) == reader.verifies, f"{damaged}: docs/readers.md says whether checksums are verified"
    found = dict(zip(about, values, strict=True))
    for key, metadata in about.items():
        value = found[key]
        if reader.reads(metadata):
            assert not isinstance(value, str), f"{key}: {value}"
            dtype = np.dtype(metadata["data_type"])
            assert value.dtype == dtype or (value.dtype == np.uint8 and dtype == np.bool_), f"{key}: {value.dtype}"
        else:
            assert isinstance(value, str), f"{name} reads {metadata} now: docs/readers.md says that it does not"
            assert re.search(reader.error, value), f"{key}: {value}"

    def read(root: Path, path: str) -> Array:
        """What this reader does not read is tensorstore's, so that the rest can be compared with what we say is stored."""
        value, metadata = found[str(root), path], about[str(root), path]
        if isinstance(value, str):
            spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(root / path)}}
            return np.asarray(tensorstore.open(spec, read=True).result().read().result())
        return value.astype(metadata["data_type"])

    for root, (buffer, everything_in_columns) in stores.items():
        assert check(root, buffer, read, closed=everything_in_columns) > 600
    last, (buffer, _) = list(stores.items())[-1]
    assert "value" in buffer.columns.derived
    if not isinstance(found[str(last), "value"], str):
        np.testing.assert_array_equal(read(last, "value")[:300], np.arange(300) * 0.5)


def test_the_page_names_the_versions_that_are_tried() -> None:
    root = Path(__file__).parents[2]
    pins = (root / "constraints.txt").read_text() + (PROGRAMS / "requirements.txt").read_text()
    versions = dict(re.findall(r"^([\w-]+)==([\d.]+)", pins, re.MULTILINE))
    versions |= json.loads((PROGRAMS / "package.json").read_text())["dependencies"]
    rows = [line.split(" | ") for line in (root / "docs" / "readers.md").read_text().splitlines() if line.startswith("| ")]
    told = {cells[0].removeprefix("| ").lower(): " ".join(cells[1:3]) for cells in rows if len(cells) == 5}
    names = {"zarr-python": "zarr", "zarrita.js": "zarrita", "gdal": "rasterio", "z5": "z5py"}
    for name in ("zarr-python", "zarrs", "zarrista", "tensorstore", "xarray", "dask", "tensordict", *map(str.lower, READERS)):
        assert versions[names.get(name, name)] in told[name], name
