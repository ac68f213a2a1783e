"""Small data sets of every format that can be imported, and what the formats' own libraries read of them."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from diskbuffer.formats import export
from diskbuffer.schema.schema import escape_key
from tests.formats.episodes import episode, store_of

Array = npt.NDArray[Any]
Columns = dict[str, Array]
_GOLDEN = Path(__file__).parents[1] / "tests" / "formats" / "golden"
_COLUMNS = {
    "obs/camera": db.Column((8, 8, 3), "uint8"),
    "obs/state": db.Column((3,), "float32"),
    "action": db.Column((2,), "float32"),
    "reward": db.Column((), "float64"),
    "skill": db.Column((), "int64"),
}
_LENGTHS = (5, 3, 6)


@dataclass(frozen=True)
class Kind:
    """A kind of data sets.

    Attributes
    ----------
    format : str
        As `import_` takes it.
    name : str
        What is imported, below the directory that the data set is made in; the directory itself by default.
    make : callable
        ``make(directory)`` makes one.
    read : callable or None
        ``read(path)`` returns rows by columns' paths, one after the other in the order of episodes, as the format's own library
        reads them. Of observations without the final ones. None where the format is refused without being read.
    """

    format: str
    make: Callable[[Path], None]
    read: Callable[[Path], Columns] | None
    name: str = "."


def _exported(format: str, foreign: Callable[[Path], None] | None = None, **options: Any) -> Callable[[Path], None]:
    """Return what exports a store; `foreign` then removes what only our exports have."""

    def make(directory: Path) -> None:
        random, target = np.random.default_rng(0), directory / "exported"
        endings = ("truncated", "terminated", "truncated")
        made = [episode(steps, random, _COLUMNS, ending) for steps, ending in zip(_LENGTHS, endings, strict=True)]
        store = store_of(directory.parent / "store", made, _COLUMNS, threads=1)
        losses = ["final_obs", "tags", "pictures", "strings", "final_info"]
        export(format, store, target, allow_loss=losses, progress=False, **options)
        shutil.rmtree(store)
        if foreign is not None:
            foreign(target)

    return make


def _without(name: str, *keys: str) -> Callable[[Path], None]:
    """Return what removes keys of a JSON file, or all of it."""

    def change(target: Path) -> None:
        told = json.loads((target / name).read_text())
        (target / name).unlink()
        if keys:
            (target / name).write_text(json.dumps({key: value for key, value in told.items() if key not in keys}))

    return change


def _golden(name: str) -> Callable[[Path], None]:
    """Return what copies a data set that the format's own code has written."""

    def make(directory: Path) -> None:
        if (_GOLDEN / name).is_dir():
            shutil.copytree(_GOLDEN / name, directory, dirs_exist_ok=True)
        else:
            shutil.copy(_GOLDEN / name, directory)

    return make


def _by_tests(name: str, file: str, **options: Any) -> Callable[[Path], None]:
    """Return what writes HDF5 as the tests do, in the layouts that others have published."""

    def make(directory: Path) -> None:
        getattr(importlib.import_module("tests.formats.test_hdf5"), name)(directory / file, **options)

    return make


def _joined(parts: Iterator[Columns]) -> Columns:
    """Return rows of several episodes, one after the other."""
    found: dict[str, list[Array]] = {}
    for part in parts:
        for path, rows in part.items():
            found.setdefault(path, []).append(np.asarray(rows))
    return {path: np.concatenate(rows) for path, rows in found.items()}


# HDF5, by h5py


def _read_d4rl(path: Path) -> Columns:
    import h5py

    with h5py.File(path, "r") as file:
        names = {"observations": "obs", "actions": "action", "rewards": "reward", "infos/qpos": "infos/qpos"}
        found = {column: np.asarray(file[name]) for name, column in names.items() if name in file}
        return {path: rows.reshape(len(rows)) if path == "reward" else rows for path, rows in found.items()}


def _read_groups(prefix: str, path: Path) -> Columns:
    """Read a group for each episode, named by its number, of a file or of all in a directory."""
    import h5py

    def of(file: Path) -> Iterator[Columns]:
        with h5py.File(file, "r") as opened:
            top = opened["data"] if prefix == "demo_" else opened
            names = [name for name in top if name.startswith(prefix) and name[len(prefix) :].isdecimal()]
            for name in sorted(names, key=lambda name: (int(name[len(prefix) :]), name)):
                group = top[name]
                found = {"action": np.asarray(group["actions"])}
                if "rewards" in group:
                    found["reward"] = np.asarray(group["rewards"])
                observations = _leaves("obs", group["observations" if prefix == "episode_" else "obs"])
                yield found | {column: rows[: len(found["action"])] for column, rows in observations}

    return _joined(one for file in (sorted(path.glob("*.hdf5")) if path.is_dir() else [path]) for one in of(file))


def _leaves(path: str, group: Any) -> Iterator[tuple[str, Array]]:
    for key in group:
        below, inner = f"{path}/{escape_key(key)}", group[key]
        if hasattr(inner, "dtype"):
            yield below, np.asarray(inner)
        else:
            yield from _leaves(below, inner)


# Minari, by h5py and pyarrow


def _by_minari(layout: str, directory: Path) -> None:
    importlib.import_module("tests.formats.test_minari").given_set(directory / "set", layout)


def _read_minari(path: Path) -> Columns:
    return _read_groups("episode_", path / "data" / "main_data.hdf5")


def _read_minari_tables(path: Path) -> Columns:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    def of(directory: Path) -> Columns:
        (file,) = (file for file in directory.iterdir() if file.name[0] not in "._" and file.name != "metadata.json")
        metadata = json.loads((path / "data" / "metadata.json").read_text())
        if metadata["data_format"] == "parquet":
            table = parquet.read_table(file)
        else:
            with pa.memory_map(str(file)) as mapped:
                table = pa.ipc.open_file(mapped).read_all()
        table = table.combine_chunks()
        steps = len(table) - 1
        found = {"reward": table["rewards"].to_numpy()[:steps], "action": _lists(table["actions"])[:steps]}
        observations = table["observations"].chunk(0)
        for kind in observations.type:
            found[f"obs/{kind.name}"] = _lists(observations.field(kind.name))[:steps]
        return found

    numbers = sorted(int(inner.name) for inner in (path / "data").iterdir() if inner.name.isdecimal())
    return _joined(of(path / "data" / str(number)) for number in numbers)


def _lists(column: Any) -> Array:
    return np.array(column.to_pylist())


# Zarr v2, by zarr-python


def _make_diffusion_policy(directory: Path) -> None:
    import numcodecs
    import zarr

    random = np.random.default_rng(0)
    steps = sum(_LENGTHS)
    data: dict[str, tuple[Array, Any]] = {
        "img": (random.integers(0, 99, (steps, 6, 5, 3), dtype=np.uint8), numcodecs.Blosc("lz4", 5, 0)),
        "state": (random.normal(size=(steps, 3)).astype(np.float32), numcodecs.Blosc("zstd", 3, 1)),
        "wide": (np.zeros((steps, 40)), numcodecs.Blosc("blosclz", 5, 2)),
        "zipped": (random.normal(size=(steps, 2)), numcodecs.Zlib()),
        "fast": (random.normal(size=(steps, 2)), numcodecs.LZ4()),
        "small": (random.integers(0, 5, (steps, 9)), numcodecs.Zstd()),
        "action": (random.normal(size=(steps, 2)).astype(np.float32), numcodecs.Blosc("lz4", 5, 0)),
    }
    group = zarr.open_group(str(directory / "data.zarr"), mode="w", zarr_format=2)
    for name, (values, codec) in data.items():
        chunks = (5 if name != "action" else steps, *values.shape[1:])
        array = group.create_array(f"data/{name}", shape=values.shape, chunks=chunks, dtype=values.dtype, compressors=codec)
        array[:] = values
    group.create_array("meta/episode_ends", data=np.cumsum(_LENGTHS), compressors=numcodecs.Blosc())


def _read_zarr(path: Path) -> Columns:
    import zarr

    from diskbuffer.formats.zarr2 import jpegxl

    jpegxl.register()
    store: Any = zarr.storage.ZipStore(path, mode="r") if path.is_file() else str(path)
    group: Any = zarr.open_group(store, mode="r", zarr_format=2)
    found = {}
    for name in group["data"].array_keys():
        found["action" if name == "action" else f"obs/{escape_key(name)}"] = group["data"][name][:]
    return found


def _zip_of(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def zipped(directory: Path) -> None:
        make(directory)
        with zipfile.ZipFile(directory / "data.zarr.zip", "w") as file:
            for path in sorted((directory / "data.zarr").rglob("*")):
                if path.is_file():
                    file.write(path, str(path.relative_to(directory / "data.zarr")))
        shutil.rmtree(directory / "data.zarr")

    return zipped


# .npz, by numpy


def _read_dreamer(path: Path) -> Columns:
    def of(file: Path) -> Columns:
        with np.load(file) as opened:
            found = {"obs/image": opened["image"][:-1], "obs/vector": opened["vector"][:-1], "action": opened["action"][1:]}
            return found | {"reward": opened["reward"][1:].reshape(-1)}

    return _joined(of(file) for file in sorted(path.glob("*.npz")))


def _read_chunks(path: Path) -> Columns:
    """Read chunks of DreamerV3's of our export, which has one environment: in the order of their chain."""
    files = sorted(path.glob("*.npz"))
    names = {file.stem.split("-")[1]: file for file in files}
    following = {file.stem.split("-")[2] for file in files}
    (uuid,) = set(names) - following
    rows: list[dict[str, Array]] = []
    while uuid in names:
        with np.load(names[uuid]) as opened:
            length = int(names[uuid].stem.split("-")[3])
            rows.append({name: opened[name][:length] for name in opened.files})
        uuid = names[uuid].stem.split("-")[2]
    together = {name: np.concatenate([one[name] for one in rows]) for name in rows[0]}
    first = together["is_first"].reshape(-1).astype(bool)
    last = np.append(first[1:], True) | together["is_last"].reshape(-1).astype(bool)
    told = json.loads((path / "diskbuffer.json").read_text())["keys"]
    found = {}
    for column, key in told.items():
        late = column == "reward"
        found[column] = together[key][1:][~last[:-1]] if late else together[key][~last]
    return found


def _read_drqv2(path: Path) -> Columns:
    def of(file: Path) -> Columns:
        with np.load(file) as opened:
            found = {"obs": opened["observation"][:-1], "action": opened["action"][1:]}
            rewards = opened["reward"][1:]
            return found | {"reward": rewards.reshape(-1) if rewards.shape[1:] == (1,) else rewards}

    def order(file: Path) -> tuple[int, str, int]:
        named = re.fullmatch(r"(.+)_(\d{1,9})_(\d{1,9})\.npz", file.name)
        return (0, named[1], int(named[2])) if named else (1, file.name, 0)

    return _joined(of(file) for file in sorted(path.glob("*.npz"), key=order))


def _read_ogbench(path: Path) -> Columns:
    with np.load(path) as opened:
        ends = opened["terminals"].reshape(-1) != 0
        ends[-1] = True
        names = {"observations": "obs", "actions": "action", "qpos": "qpos"}
        return {column: opened[name][~ends] for name, column in names.items() if name in opened.files}


# LeRobot, by pyarrow, PyAV and Pillow


def _read_lerobot(path: Path) -> Columns:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    info = json.loads((path / "meta" / "info.json").read_text())
    files = sorted((path / "data").glob("*/*.parquet"))
    table = pa.concat_tables([parquet.read_table(file) for file in files]).combine_chunks()
    paths = {"observation.state": "obs/state", "action": "action", "skill": "skill"}
    found = {column: _lists(table[name]) for name, column in paths.items() if name in table.column_names}
    for key, feature in info["features"].items():
        if feature["dtype"] == "video":
            found["obs/camera"] = _movie(path, key, info["fps"])
        elif feature["dtype"] == "image":
            found["obs/camera"] = _pictures(table[key])
    return found


def _movie(path: Path, key: str, fps: float) -> Array:
    """Return the frames of each episode, from the second on in its file at which its row in the table has it begin."""
    import av
    import pyarrow.parquet as parquet

    found, name = [], f"videos/{key}"
    for table in sorted((path / "meta" / "episodes").glob("*/*.parquet")):
        for row in parquet.read_table(table).to_pylist():
            chunk, file = row[f"{name}/chunk_index"], row[f"{name}/file_index"]
            with av.open(str(path / name / f"chunk-{chunk:03}" / f"file-{file:03}.mp4"), format="mp4") as container:
                frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
            begin = round(row[f"{name}/from_timestamp"] * fps)
            found += frames[begin : begin + row["length"]]
    return np.stack(found)


def _pictures(column: Any) -> Array:
    from PIL import Image

    return np.stack([np.asarray(Image.open(io.BytesIO(one["bytes"])).convert("RGB")) for one in column.to_pylist()])


# TensorDict, as bytes


def _read_tensordict(path: Path) -> Columns:
    root = path / "storage" if (path / "storage" / "meta.json").exists() else path

    def of(directory: Path, key: str) -> Array:
        told = json.loads((directory / "meta.json").read_text())[key]
        dtype = np.dtype(told["dtype"].removeprefix("torch."))
        return np.fromfile(directory / f"{key}.memmap", dtype).reshape(told["shape"])

    found = {"action": of(root, "action"), "skill": of(root, "skill"), "reward": of(root / "next", "reward")[..., 0]}
    found |= {"obs/camera": of(root, "camera"), "obs/state": of(root, "state")}
    size = len(found["action"])
    told = root / "storage_metadata.json"
    steps = json.loads(told.read_text())["len"] if told.exists() else size
    writer = root.parent / "writer" / "metadata.json"
    oldest = json.loads(writer.read_text())["cursor"] if writer.exists() and steps == size else 0  # of a ring that is full
    return {column: np.roll(rows[:steps], -oldest, axis=0) for column, rows in found.items()}


def _as_storage(target: Path) -> None:
    """Make of an export what TorchRL's replay buffers dump: a storage, and the writer's cursor."""
    _without("diskbuffer.json")(target)
    inner = target.parent / "inner"
    target.rename(inner)
    target.mkdir()
    inner.rename(target / "storage")
    (target / "writer").mkdir()
    (target / "writer" / "metadata.json").write_text('{"cursor": 0}')


# RLDS, by TFDS


def _make_rlds(directory: Path) -> None:
    tests: Any = importlib.import_module("tests.formats.test_rlds")
    tests.tfds.disable_progress_bar()
    random, label = np.random.default_rng(0), tests.tfds.features.ClassLabel(num_classes=100)
    with contextlib.redirect_stdout(io.StringIO()):
        made = tests.make(directory, [episode(steps, random, tests.COLUMNS) for steps in _LENGTHS], skill=label)
    made.rename(directory / "1.0.0")
    shutil.rmtree(directory / "data")


def _read_rlds(path: Path) -> Columns:
    def of(steps: Any) -> Columns:
        rows = [steps[number] for number in range(len(steps) - 1)]
        found = {f"obs/{escape_key(key)}": np.stack([row["observation"][key] for row in rows]) for key in rows[0]["observation"]}
        found["action/arm"] = np.stack([row["action"]["arm"] for row in rows])
        return found | {"reward": np.stack([row["reward"] for row in rows])}

    source: Any = importlib.import_module("tensorflow_datasets").builder_from_directory(path).as_data_source("train")
    return _joined(of(source[number]["steps"]) for number in range(len(source)))


# A pickle


def _make_sb3(directory: Path) -> None:
    (directory / "buffer.pkl").write_bytes(pickle.dumps({"observations": np.zeros((3, 1, 2))}))


KINDS: dict[str, Kind] = {
    "d4rl": Kind("d4rl", _by_tests("d4rl", "data.hdf5"), _read_d4rl, "data.hdf5"),
    "robomimic": Kind("robomimic", _by_tests("robomimic", "data.hdf5", chunks=True), partial(_read_groups, "demo_"), "data.hdf5"),
    "libero": Kind("libero", _by_tests("libero", "set"), partial(_read_groups, "demo_"), "set"),
    "maniskill": Kind("maniskill", _by_tests("maniskill", "data.h5"), partial(_read_groups, "traj_"), "data.h5"),
    "minari, HDF5": Kind("minari", _exported("minari"), _read_minari, "exported"),
    "minari, Arrow": Kind("minari", partial(_by_minari, "arrow"), _read_minari_tables, "set"),
    "minari, Parquet": Kind("minari", partial(_by_minari, "parquet"), _read_minari_tables, "set"),
    "diffusion_policy": Kind("diffusion_policy", _make_diffusion_policy, _read_zarr, "data.zarr"),
    "diffusion_policy, zip": Kind("diffusion_policy", _zip_of(_make_diffusion_policy), _read_zarr, "data.zarr.zip"),
    "umi": Kind("umi", _exported("umi", zip=False, foreign=_without(".zattrs")), _read_zarr, "exported"),
    "umi, zip": Kind("umi", _exported("umi"), None, "exported"),
    "dreamer, chunks": Kind("dreamer", _exported("dreamer"), _read_chunks, "exported"),
    "dreamer, episodes": Kind("dreamer", _golden("npz/dreamerv2"), _read_dreamer),
    "drqv2": Kind("drqv2", _golden("npz/drqv2"), _read_drqv2),
    "ogbench": Kind("ogbench", _golden("npz/ogbench/raw.npz"), _read_ogbench, "raw.npz"),
    "lerobot, videos": Kind("lerobot", _exported("lerobot"), _read_lerobot, "exported"),
    "lerobot, pictures": Kind(
        "lerobot", _exported("lerobot", _without("meta/info.json", "diskbuffer"), pictures="image"), _read_lerobot, "exported"
    ),
    "tensordict": Kind("tensordict", _exported("tensordict"), _read_tensordict, "exported"),
    "tensordict, storage": Kind("tensordict", _exported("tensordict", _as_storage), _read_tensordict, "exported"),
    "rlds": Kind("rlds", _make_rlds, _read_rlds, "1.0.0"),
    "sb3": Kind("sb3", _make_sb3, None, "buffer.pkl"),
}
