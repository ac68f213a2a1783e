"""Small data sets of every format that can be imported, and what the formats' own libraries read of them."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from diskbuffer.formats import EpisodeData, export
from diskbuffer.formats.filling import fill
from diskbuffer.plugin import Appender
from diskbuffer.schema.schema import escape_key

Array = npt.NDArray[Any]
Columns = dict[str, Array]
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
    losses : tuple of str
        Losses that every data set of this kind has.
    """

    format: str
    make: Callable[[Path], None]
    read: Callable[[Path], Columns] | None
    name: str = "."
    losses: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def episodes() -> list[EpisodeData]:
    """Return episodes at random, which are the same each time."""
    random = np.random.default_rng(0)
    found = []
    for number, steps in enumerate(_LENGTHS):
        columns: dict[str, Any] = {}
        for path, column in _COLUMNS.items():
            shape = (steps + path.startswith("obs"), *column.shape)
            values = random.normal(size=shape) if column.np_dtype.kind == "f" else random.integers(0, 200, shape)
            columns[path] = values.astype(column.np_dtype)
        columns["terminated"], columns["truncated"] = np.zeros(steps, bool), np.zeros(steps, bool)
        columns["terminated" if number % 2 else "truncated"][-1] = True
        found.append(EpisodeData(columns, steps))
    return found


def _exported(format: str, foreign: Callable[[Path], None] | None = None, **options: Any) -> Callable[[Path], None]:
    """Return what exports a store; `foreign` then removes what only our exports have."""

    def make(directory: Path) -> None:
        store, target = directory.parent / "store", directory / "exported"
        with Appender(store, columns=_COLUMNS, threads=1) as appender:
            fill(appender, episodes(), lambda _: None)
        losses = ["final_obs", "tags", "pictures", "strings", "final_info"]
        export(format, store, target, allow_loss=losses, progress=False, **options)
        shutil.rmtree(store)
        if foreign is not None:
            foreign(target)

    return make


def _without(name: str, *keys: str) -> Callable[[Path], None]:
    """Return what removes keys of a JSON file, or all of it."""

    def change(target: Path) -> None:
        if not keys:
            (target / name).unlink()
            return
        told = json.loads((target / name).read_text())
        (target / name).write_text(json.dumps({key: value for key, value in told.items() if key not in keys}))

    return change


def _joined(parts: Iterator[Columns]) -> Columns:
    """Return rows of several episodes, one after the other."""
    found: dict[str, list[Array]] = {}
    for part in parts:
        for path, rows in part.items():
            found.setdefault(path, []).append(np.asarray(rows))
    return {path: np.concatenate(rows) for path, rows in found.items()}


# HDF5


def _hdf5_episode(seed: int, steps: int) -> Columns:
    random = np.random.default_rng(seed)
    return {
        "image": random.integers(0, 256, (steps + 1, 6, 5, 3), dtype=np.uint8),
        "state": random.normal(size=(steps + 1, 4)),
        "actions": random.normal(size=(steps, 2)).astype(np.float32),
        "rewards": random.normal(size=steps),
        "dones": np.arange(steps) == steps - 1,
    }


def _make_d4rl(directory: Path) -> None:
    import h5py

    random, steps = np.random.default_rng(0), 20
    observations = random.normal(size=(steps, 3)).astype(np.float32)
    with h5py.File(directory / "data.hdf5", "w") as file:
        file.create_dataset("observations", data=observations, compression="gzip", chunks=(8, 3))
        file["next_observations"] = np.roll(observations, -1, axis=0)
        file["actions"] = random.normal(size=(steps, 2)).astype(np.float32)
        file.create_dataset("rewards", data=random.normal(size=steps), compression="lzf", shuffle=True)
        file["terminals"], file["timeouts"] = np.arange(steps) == 6, np.arange(steps) == 12
        file["infos/qpos"] = random.normal(size=(steps, 4))
        file["metadata/algorithm"] = np.bytes_(b"SAC")
        file.attrs["name"] = "maze"


def _read_d4rl(path: Path) -> Columns:
    import h5py

    with h5py.File(path, "r") as file:
        names = {"observations": "obs", "actions": "action", "rewards": "reward", "infos/qpos": "infos/qpos"}
        found = {column: np.asarray(file[name]) for name, column in names.items() if name in file}
        return {path: rows.reshape(len(rows)) if path == "reward" else rows for path, rows in found.items()}


def _make_robomimic(directory: Path) -> None:
    _make_demonstrations(directory / "data.hdf5", next_obs=True)


def _make_demonstrations(path: Path, next_obs: bool = False) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": {"control_freq": 20}})
        data.attrs["problem_info"] = json.dumps({"problem_name": "kitchen", "language_instruction": "open it"})
        for number, steps in enumerate(_LENGTHS):
            one, demo = _hdf5_episode(number, steps), data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = steps
            for name in ("image", "state"):
                options = {"compression": "gzip", "chunks": (2, *one[name].shape[1:])} if name == "image" else {}
                demo.create_dataset(f"obs/{name}", data=one[name][:-1], **options)
                if next_obs:
                    demo.create_dataset(f"next_obs/{name}", data=one[name][1:])
            for name in ("actions", "rewards"):
                demo.create_dataset(name, data=one[name])
            demo.create_dataset("dones", data=one["dones"].astype(np.int64))
        file.create_dataset("mask/train", data=np.array([b"demo_0", b"demo_1"]))


def _read_demonstrations(path: Path) -> Columns:
    import h5py

    def of(file: Path) -> Iterator[Columns]:
        with h5py.File(file, "r") as opened:
            names = [name for name in opened["data"] if name.startswith("demo_") and name[5:].isdecimal()]
            for name in sorted(names, key=lambda name: (int(name[5:]), name)):
                demo = opened["data"][name]
                yield {f"obs/{escape_key(key)}": np.asarray(demo["obs"][key]) for key in demo["obs"]} | {
                    "action": np.asarray(demo["actions"]),
                    **({"reward": np.asarray(demo["rewards"])} if "rewards" in demo else {}),
                }

    return _joined(one for file in (sorted(path.glob("*.hdf5")) if path.is_dir() else [path]) for one in of(file))


def _make_libero(directory: Path) -> None:
    for name in ("one", "two"):
        _make_demonstrations(directory / f"{name}_demo.hdf5")


def _make_maniskill(directory: Path) -> None:
    import h5py

    noted = []
    with h5py.File(directory / "data.h5", "w") as file:
        for number, steps in enumerate(_LENGTHS):
            one, group = _hdf5_episode(number, steps), file.create_group(f"traj_{number}")
            group.create_dataset("obs/agent/qpos", data=one["state"])
            group.create_dataset("obs/rgb", data=one["image"], compression="gzip")
            group.create_dataset("actions", data=one["actions"])
            group.create_dataset("terminated", data=one["dones"])
            group.create_dataset("truncated", data=one["dones"])
            noted.append({"episode_id": number, "episode_seed": 40 + number, "reset_kwargs": {"seed": 40 + number}})
    info = {"env_info": {"env_id": "PickCube-v1", "env_kwargs": {"obs_mode": "rgb"}}, "episodes": noted}
    (directory / "data.json").write_text(json.dumps(info))


def _read_maniskill(path: Path) -> Columns:
    import h5py

    with h5py.File(path, "r") as file:
        names = [name for name in file if name.startswith("traj_") and name[5:].isdecimal()]
        groups = [file[name] for name in sorted(names, key=lambda name: (int(name[5:]), name))]
        keys = {"obs/agent/qpos": "obs/agent/qpos", "obs/rgb": "obs/rgb", "action": "actions"}
        return _joined(
            {path: np.asarray(group[key])[: len(group["actions"])] for path, key in keys.items() if key in group}
            for group in groups
        )


# Minari, by h5py and pyarrow


def _read_minari(path: Path) -> Columns:
    import h5py

    with h5py.File(path / "data" / "main_data.hdf5", "r") as file:

        def of(number: int) -> Columns:
            group = file[f"episode_{number}"]
            steps = len(group["rewards"])
            found = {"action": np.asarray(group["actions"]), "reward": np.asarray(group["rewards"])}
            return found | {f"obs/{key}": np.asarray(rows)[:steps] for key, rows in group["observations"].items()}

        return _joined(of(number) for number in range(sum(name.startswith("episode_") for name in file)))


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


def _make_dreamer(directory: Path) -> None:
    for number, steps in enumerate(_LENGTHS):
        one = _hdf5_episode(number, steps)
        ends = np.arange(steps + 1) == steps
        np.savez_compressed(
            directory / f"2026112{number}T021234-{'8c24b939f7b8414986ad37d60fd5bc0'}{number}-{steps}.npz",
            image=one["image"],
            state=one["state"],
            action=np.concatenate([np.zeros((1, 2), np.float32), one["actions"]]),
            reward=np.append(0, one["rewards"]),
            is_first=np.arange(steps + 1) == 0,
            is_last=ends,
            is_terminal=ends,
        )


def _read_dreamer(path: Path) -> Columns:
    def of(file: Path) -> Columns:
        with np.load(file) as opened:
            found = {"obs/image": opened["image"][:-1], "obs/state": opened["state"][:-1], "action": opened["action"][1:]}
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


def _make_drqv2(directory: Path) -> None:
    for number, steps in enumerate(_LENGTHS):
        one = _hdf5_episode(number, steps)
        np.savez_compressed(
            directory / f"20261123T02121{number}_{number}_{steps}.npz",
            observation=one["image"],
            action=np.concatenate([np.zeros((1, 2), np.float32), one["actions"]]),
            reward=np.append(0, one["rewards"]).astype(np.float32)[:, None],
            discount=np.append(1, 1 - one["dones"]).astype(np.float32)[:, None],
        )


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


def _make_ogbench(directory: Path) -> None:
    random, rows = np.random.default_rng(0), 20
    np.savez_compressed(
        directory / "data.npz",
        observations=random.normal(size=(rows, 3)).astype(np.float32),
        actions=random.normal(size=(rows, 2)).astype(np.float32),
        qpos=random.normal(size=(rows, 4)),
        terminals=np.isin(np.arange(rows), [6, 12, 19]).astype(np.float32),
    )


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
            found["obs/camera"] = _movie(sorted((path / "videos" / key).glob("*/*.mp4")))
        elif feature["dtype"] == "image":
            found["obs/camera"] = _pictures(table[key])
    return found


def _movie(files: list[Path]) -> Array:
    import av

    found = []
    for file in files:
        with av.open(str(file), format="mp4") as container:
            found += [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
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


def _tfds() -> Any:
    return importlib.import_module("tensorflow_datasets")


def _make_rlds(directory: Path) -> None:
    tfds: Any = _tfds()
    tfds.disable_progress_bar()
    f = tfds.features
    observation = {"image": f.Image(shape=(8, 8, 3), encoding_format="png"), "state": f.Tensor(shape=(3,), dtype=np.float32)}
    steps = {
        "observation": f.FeaturesDict(observation),
        "action": f.Tensor(shape=(2,), dtype=np.float32),
        "reward": f.Scalar(np.float32),
        "kind": f.ClassLabel(num_classes=3),
        "language": f.Text(),
        **{name: f.Scalar(np.bool_) for name in ("is_first", "is_last", "is_terminal")},
    }
    features = f.FeaturesDict({"steps": f.Dataset(steps)})
    with tfds.core.registered.skip_registration():

        class Mine(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
            VERSION = tfds.core.Version("1.0.0")
            pkg_dir_path = directory

            def _info(self) -> Any:
                return tfds.core.DatasetInfo(builder=self, features=features)

            def _split_generators(self, _: Any) -> Any:
                return {"train": self._generate_examples()}

            def _generate_examples(self) -> Iterator[Any]:
                for number, one in enumerate(episodes()):
                    yield f"{number:04}", {"steps": [_rlds_row(one, row) for row in range(one.steps + 1)]}

    builder = Mine(data_dir=str(directory / "work"), file_format="array_record")
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare()
    Path(builder.data_dir).rename(directory / "1.0.0")
    shutil.rmtree(directory / "work")


def _rlds_row(one: EpisodeData, row: int) -> dict[str, Any]:
    from PIL import Image

    picture = io.BytesIO()
    Image.fromarray(np.asarray(one.columns["obs/camera"][row : row + 1])[0]).save(picture, "PNG")
    picture.seek(0)
    last = row == one.steps
    rows = {name: np.asarray(one.columns[name][row : row + 1]) for name in ("obs/state", "action", "reward")}
    return {
        "observation": {"image": picture, "state": rows["obs/state"][0]},
        "action": np.zeros(2, np.float32) if last else rows["action"][0],
        "reward": 0 if last else np.float32(rows["reward"][0]),
        "kind": 1,
        "language": "open it",
        "is_first": row == 0,
        "is_last": last,
        "is_terminal": last,
    }


def _read_rlds(path: Path) -> Columns:
    def of(steps: Any) -> Columns:
        rows = [steps[number] for number in range(len(steps) - 1)]
        found = {f"obs/{escape_key(key)}": np.stack([row["observation"][key] for row in rows]) for key in rows[0]["observation"]}
        return found | {name: np.stack([row[name] for row in rows]) for name in ("action", "reward")}

    source: Any = _tfds().builder_from_directory(path).as_data_source("train")
    return _joined(of(source[number]["steps"]) for number in range(len(source)))


# A pickle


def _make_sb3(directory: Path) -> None:
    import pickle

    (directory / "buffer.pkl").write_bytes(pickle.dumps({"observations": np.zeros((3, 1, 2))}))


KINDS: dict[str, Kind] = {
    "d4rl": Kind("d4rl", _make_d4rl, _read_d4rl, "data.hdf5"),
    "robomimic": Kind("robomimic", _make_robomimic, _read_demonstrations, "data.hdf5"),
    "libero": Kind("libero", _make_libero, _read_demonstrations),
    "maniskill": Kind("maniskill", _make_maniskill, _read_maniskill, "data.h5"),
    "minari, HDF5": Kind("minari", _exported("minari"), _read_minari, "exported"),
    "minari, Arrow": Kind("minari", _exported("minari", data_format="arrow"), _read_minari_tables, "exported"),
    "minari, Parquet": Kind("minari", _exported("minari", data_format="parquet"), _read_minari_tables, "exported"),
    "diffusion_policy": Kind("diffusion_policy", _make_diffusion_policy, _read_zarr, "data.zarr"),
    "diffusion_policy, zip": Kind("diffusion_policy", _zip_of(_make_diffusion_policy), _read_zarr, "data.zarr.zip"),
    "umi": Kind("umi", _exported("umi", zip=False, foreign=_without(".zattrs")), _read_zarr, "exported"),
    "umi, zip": Kind("umi", _exported("umi"), None, "exported"),
    "dreamer, chunks": Kind("dreamer", _exported("dreamer"), _read_chunks, "exported"),
    "dreamer, episodes": Kind("dreamer", _make_dreamer, _read_dreamer),
    "drqv2": Kind("drqv2", _make_drqv2, _read_drqv2),
    "ogbench": Kind("ogbench", _make_ogbench, _read_ogbench, "data.npz"),
    "lerobot, videos": Kind("lerobot", _exported("lerobot"), _read_lerobot, "exported"),
    "lerobot, pictures": Kind(
        "lerobot", _exported("lerobot", _without("meta/info.json", "diskbuffer"), pictures="image"), _read_lerobot, "exported"
    ),
    "tensordict": Kind("tensordict", _exported("tensordict"), _read_tensordict, "exported"),
    "tensordict, storage": Kind("tensordict", _exported("tensordict", _as_storage), _read_tensordict, "exported"),
    "rlds": Kind("rlds", _make_rlds, _read_rlds, "1.0.0"),
    "sb3": Kind("sb3", _make_sb3, None, "buffer.pkl"),
}
