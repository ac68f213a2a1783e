"""LeRobot v3: stores to data sets and back, data sets that LeRobot has made, and what is no data set."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import diskbuffer as db
from diskbuffer.formats import export, import_
from diskbuffer.formats.lerobot import LEROBOT
from diskbuffer.formats.lerobot.encoding import Video
from diskbuffer.formats.lerobot.names import column_paths, feature_names
from diskbuffer.formats.lerobot.pixels import Pixels
from diskbuffer.formats.lerobot.reader import LeRobotSource
from diskbuffer.formats.lerobot.statistics import NAMES, QUANTILES, Numbers, Pictures, Together
from diskbuffer.formats.lerobot.table import Table
from diskbuffer.formats.lerobot.tape import Tape
from diskbuffer.plugin import Contents
from tests.amounts import examples
from tests.formats import episodes as made
from tests.formats import interrupted

GOLDEN = Path(__file__).with_name("golden") / "lerobot" / "data_set.tar.xz"
FINAL = ["final_obs"]
COLUMNS = {
    **made.COLUMNS,
    "obs/grey": db.Column((9, 11), "uint8"),
    "obs/one": db.Column((10, 12, 1), "uint8"),
    "obs/first": db.Column((3, 9, 14), "uint8"),
    "obs/stack": db.Column((4, 8, 9), "uint8"),
    "obs/deep/er": db.Column((1,), "bool"),
    "obs/a%2Eb": db.Column((2, 3), "float16", allow_nan=True),
    "index": db.Column((), "int8"),
    "next/reward": db.Column((), "float32"),
    "wave": db.Column((2,), "complex64"),
    "large": db.Column((), "uint64"),
    "many": db.Column((1, 2, 1, 2, 1, 3), "int32"),
}


def to_store(source: Path, store: Path, **options: Any) -> list[dict[str, Any]]:
    """Import a data set, and return all that the store holds."""
    shutil.rmtree(store, ignore_errors=True)
    return made.read(import_("lerobot", source, store, progress=False, **options))


def without_final(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is left of episodes in a format without final observations: the last one stands for it."""
    for one in found:
        for name, rows in one.items():
            if name == "obs" or name.startswith("obs/"):
                rows[-1] = rows[-2]
    return found


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a data set that LeRobot has made, and of what it reads of it."""
    path = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(path, filter="data")
    return path


@pytest.fixture
def data_set(golden: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden / "data_set", tmp_path / "data_set"))


# There and back


def groups_of(directory: Path) -> list[int]:
    """Return how many rows each row group has, of all files in their order."""
    metadata = [pq.read_metadata(file) for file in sorted(directory.rglob("*.parquet"))]
    return [one.row_group(n).num_rows for one in metadata for n in range(one.num_row_groups)]


@given(seed=st.integers(0, 10**6), image=st.booleans(), streams=st.integers(1, 2))
@examples(1, 10)
def test_episodes_come_back_as_they_were_but_for_final_observations(
    tmp_path_factory: pytest.TempPathFactory, seed: int, image: bool, streams: int
) -> None:
    path, random = tmp_path_factory.mktemp("stores"), np.random.default_rng(seed)
    names = [name for name in COLUMNS if random.random() < 0.6] or ["obs/state"]
    columns = {name: COLUMNS[name] for name in names}
    tags = ("", 'pick, "it"', "lège")
    episodes = [
        made.episode(int(random.integers(1, 30)), random, columns, ending, tag=str(random.choice(tags)), stream=n % streams)
        for n, ending in enumerate(random.choice(["terminated", "truncated", "cut off"], 6))
    ]
    more: dict[str, Any] = {"metadata": {"seed": seed}, "environment": {"id": "made"}, "frame_stack": 2, "padding": "zeros"}
    store = made.store_of(path / "store", episodes, columns, n_envs=streams, **more)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("diskbuffer.formats.lerobot.writer._BLOCK", int(random.integers(2_000, 60_000)))
        patched.setattr("diskbuffer.formats.lerobot.writer._MOST_EPISODES", int(random.integers(1, 7)))
        patched.setattr("diskbuffer.formats.lerobot.files._BLOCK", int(random.integers(100, 30_000)))
        made.read_here(patched, int(random.integers(2_000, 60_000)))
        pictures = "image" if image else "lossless"
        export("lerobot", store, path / "data", allow_loss=FINAL, progress=False, pictures=pictures, chunks_size=2)
        found = to_store(path / "data", path / "again")
    made.assert_same(found, without_final(made.read(store)))
    assert groups_of(path / "data" / "data") == [one["steps"] for one in found]
    with db.ReplayBuffer(store, mode="r") as before, db.ReplayBuffer(path / "again", mode="r") as after:
        assert before.columns == after.columns
        assert ({"fps": 30} | (before.metadata or {}), before.n_envs) == (after.metadata, after.n_envs)
        assert before.environment == after.environment
        assert before.frame_stack == after.frame_stack
        assert before._store.layout.padding == after._store.layout.padding


@pytest.mark.nightly
def test_a_single_observation_has_the_name_that_policies_know(tmp_path: Path) -> None:
    for shape, dtype, name in (((4,), "float32", "observation.state"), ((16, 16, 3), "uint8", "observation.image")):
        columns = {"obs": db.Column(shape, dtype), "action": db.Column((), "int64")}
        store = made.store_of(tmp_path / name, made.some(2, columns=columns), columns)
        data = export("lerobot", store, tmp_path / f"{name}-data", allow_loss=FINAL, progress=False)
        assert name in json.loads((data / "meta/info.json").read_text())["features"]
        made.assert_same(to_store(data, tmp_path / f"{name}-again"), without_final(made.read(store)))


@pytest.mark.nightly
def test_lossy_videos_look_alike(tmp_path: Path) -> None:
    columns = {"obs/camera": db.Column((64, 80, 3), "uint8"), "obs/grey": db.Column((66, 64), "uint8")}
    pictures = {name: np.add.outer(np.arange(13) * 6, np.zeros(column.shape)) + 40 for name, column in columns.items()}
    store = tmp_path / "store"
    with db.ReplayBuffer(store, columns={**columns, "action": db.Column((), "int64")}) as buffer:
        nested = {name.removeprefix("obs/"): rows.astype(np.uint8) for name, rows in pictures.items()}
        buffer.extend(obs=nested, action=np.zeros(12, np.int64), reward=np.zeros(12), terminated=np.arange(12) == 11)
    data = export("lerobot", store, tmp_path / "data", allow_loss=FINAL, progress=False, pictures="video", codec="h264")
    (found,) = to_store(data, tmp_path / "again")
    for name, rows in pictures.items():
        assert found[name].dtype == np.uint8
        assert np.abs(found[name][:12].astype(float) - rows[:12]).max() <= 4, name


def test_what_a_data_set_of_others_says_goes_back_into_one(data_set: Path, tmp_path: Path) -> None:
    import_("lerobot", data_set, tmp_path / "store", progress=False)
    again = export("lerobot", tmp_path / "store", tmp_path / "again", allow_loss=FINAL, progress=False)
    before, after = (json.loads((path / "meta/info.json").read_text()) for path in (data_set, again))
    for name in ("fps", "robot_type", "total_episodes", "total_frames", "total_tasks"):
        assert before[name] == after[name]
    for name, feature in before["features"].items():
        if feature["dtype"] not in ("video", "image"):
            assert {key: after["features"][name][key] for key in ("dtype", "shape", "names")} == feature
    with pq.ParquetFile(data_set / "meta/tasks.parquet") as mine, pq.ParquetFile(again / "meta/tasks.parquet") as theirs:
        assert mine.read().to_pydict() == theirs.read().to_pydict()


# What LeRobot has made


def test_a_data_set_of_lerobot_is_read_as_lerobot_reads_it(golden: Path, tmp_path: Path) -> None:
    found = to_store(golden / "data_set", tmp_path / "store")
    assert_as_lerobot_reads(found, dict(np.load(golden / "expected.npz")))
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        assert buffer.metadata is not None
        assert buffer.metadata["fps"] == 10
        assert buffer.metadata["lerobot"]["names"]["action"] == ["left", "right"]


def assert_as_lerobot_reads(found: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """Assert that a store's episodes are what LeRobot read of the data set that it was made of."""
    counted = ("timestamp", "frame_index", "episode_index", "index", "task_index", "task", "next.terminated", "next.truncated")
    paths = {"next.reward": "reward", "next.done": "terminated"}
    for name, values in expected.items():
        if name in counted:
            continue
        path = paths.get(name, name.replace("observation.", "obs.").replace(".", "/"))
        rows = np.concatenate([one[path][: one["steps"]] for one in found])
        assert (rows.dtype, rows.shape) == (values.dtype, values.shape), name
        np.testing.assert_array_equal(rows, values, name)
    assert [tag for one in found for tag in [one["tag"]] * one["steps"]] == expected["task"].tolist()
    assert [one["steps"] for one in found] == np.bincount(expected["episode_index"].astype(int)).tolist()


# Losses, and options


@pytest.mark.nightly
def test_what_is_lost_has_a_name(data_set: Path, tmp_path: Path) -> None:
    store = made.store_of(tmp_path / "store", made.some(1))
    with pytest.raises(db.errors.LossError, match="final_obs"):
        export("lerobot", store, tmp_path / "out", progress=False)
    assert "value" in LEROBOT.losses(Contents({}, derived=frozenset({"value"})))["derived"]

    def told(info: dict[str, Any]) -> None:
        info["features"]["note"] = {"dtype": "string", "shape": [1], "names": None}

    change(data_set, told)
    with pytest.raises(db.errors.LossError, match="note"):
        import_("lerobot", data_set, tmp_path / "in", progress=False)
    with_column(data_set / "meta/episodes/chunk-000/file-000.parquet", "tasks", lambda old: pa.array([["a", "b"], ["c"], ["c"]]))
    with pytest.raises(db.errors.LossError, match="tasks"):
        import_("lerobot", data_set, tmp_path / "in", allow_loss=["strings"], progress=False)
    assert to_store(data_set, tmp_path / "in", allow_loss=["strings", "tasks"])[0]["tag"] == "a; b"


@pytest.mark.nightly
def test_times_that_are_no_multiples_of_a_frame_are_a_column_or_an_error(data_set: Path, tmp_path: Path) -> None:
    times = np.linspace(0, 1, 15, dtype=np.float32)
    with_column(data_set / "data/chunk-000/file-000.parquet", "timestamp", lambda old: pa.array(times))
    with pytest.raises(db.errors.LossError, match="timestamps=True"):
        import_("lerobot", data_set, tmp_path / "store", progress=False)
    found = to_store(data_set, tmp_path / "other", timestamps=True)
    np.testing.assert_array_equal(np.concatenate([one["timestamp"] for one in found]), times)


def test_done_within_an_episode_is_a_column_or_an_error(data_set: Path, tmp_path: Path) -> None:
    with_column(data_set / "data/chunk-000/file-000.parquet", "next.done", lambda old: pa.array([True] * len(old)))
    with pytest.raises(db.errors.SourceError, match="done='column'"):
        import_("lerobot", data_set, tmp_path / "store", progress=False)
    found = to_store(data_set, tmp_path / "other", done="column")
    assert all(one["next/done"].all() and not one["terminated"].any() for one in found)


def test_a_rate_that_is_no_whole_number_is_a_named_loss(tmp_path: Path) -> None:
    store = made.store_of(tmp_path / "store", made.some(2), metadata={"fps": 29.97})
    with pytest.raises(db.errors.LossError, match=r"fps: 29.97 frames a second.*would be 30"):
        export("lerobot", store, tmp_path / "out", allow_loss=["final_obs"], progress=False)
    export("lerobot", store, tmp_path / "out", allow_loss=["final_obs", "fps"], progress=False)
    assert json.loads((tmp_path / "out" / "meta" / "info.json").read_text())["fps"] == 30
    export("lerobot", store, tmp_path / "other", fps=25, allow_loss=["final_obs"], progress=False)


@pytest.mark.nightly
def test_done_can_be_truncated(data_set: Path, tmp_path: Path) -> None:
    assert all(
        one["truncated"][-1] and not one["terminated"].any() for one in to_store(data_set, tmp_path / "s", done="truncated")
    )


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "options",
    [{"pictures": "jpeg"}, {"codec": "vp9"}, {"fps": 0}, {"fps": 12.5}, {"chunks_size": 0}, {"pictures": "video"}],
)
def test_options_that_are_none_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    store = made.store_of(tmp_path / "store", made.some(1))
    with pytest.raises(db.InputError):
        export("lerobot", store, tmp_path / "out", allow_loss=FINAL, progress=False, **options)
    assert not (tmp_path / "out").exists()


def test_options_of_reading_that_are_none_are_refused(data_set: Path, tmp_path: Path) -> None:
    for options in ({"done": "yes"}, {"timestamps": 1}):
        with pytest.raises(db.InputError):
            import_("lerobot", data_set, tmp_path / "store", progress=False, **options)


# What its parts do


parts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)


@given(st.lists(st.lists(parts, min_size=1, max_size=3).map(".".join), min_size=1, max_size=8, unique=True))
@examples(30, 200)
def test_any_features_have_paths_of_their_own_that_a_store_takes(names: list[str]) -> None:
    paths = column_paths(names)
    columns = {path: db.Column((), "float32") for path in paths.values()}
    assert len(columns) == len(names)
    if all(len(path) <= 200 for path in columns):
        from diskbuffer.schema.schema import Schema

        Schema.of(columns)


@given(
    st.lists(
        st.lists(st.sampled_from(["obs", "action", "a", "b%2Ec", "index", "reward", "x-y"]), min_size=1, max_size=3),
        unique_by=tuple,
    )
)
@examples(100, 300)
def test_columns_come_back_from_their_features_names(given: list[list[str]]) -> None:
    paths = ["/".join(parts) for parts in given]
    paths = [path for path in paths if path != "obs" and not any(path.startswith(f"{other}/") for other in paths)]
    names = feature_names(paths, [])
    assert len(set(names.values())) == len(paths)
    assert not any("/" in name for name in names.values())
    plain = {path: name for path, name in names.items() if "%2E" not in path and not name.endswith("_")}
    back = column_paths(list(plain.values()))
    assert {path: back[name] for path, name in plain.items() if path != "next/reward"} == {
        path: path for path in plain if path != "next/reward"
    }


@pytest.mark.nightly
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=20), st.integers(1, 9))
@examples(100, 300)
def test_a_tape_reads_any_slices(slices: list[tuple[int, int]], size: int) -> None:
    rows = np.arange(50)

    def opened(first: int) -> Any:
        return (rows[at : at + size] for at in range(first, len(rows), size))

    tape = Tape(opened, (), np.dtype(np.int64), "rows")
    for first, count in slices:
        if first + count <= len(rows):
            np.testing.assert_array_equal(tape.read(first, first + count), rows[first : first + count])
        else:
            with pytest.raises(db.errors.SourceError, match="ends early"):
                tape.read(first, first + count)


@pytest.mark.nightly
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3))
@examples(30, 100)
def test_statistics_are_those_of_all_values(seed: int, episodes: int, width: int) -> None:
    random = np.random.default_rng(seed)
    together, everything = Together(), []
    for _ in range(episodes):
        values = random.normal(3, 10, (int(random.integers(1, 40)), 2, width)).astype(np.float32)
        part, step = Numbers(len(values)), int(random.integers(1, 12))
        for first in range(0, len(values), step):
            part.add(first, values[first : first + step])
        found = part.result()
        assert list(found) == list(NAMES)
        for name, at in QUANTILES.items():
            np.testing.assert_allclose(found[name], np.quantile(values.reshape(-1, width).astype(float), at, axis=0))
        together.add("x", {name: np.array([value]) for name, value in found.items()})
        everything.append(values)
    total, rows = together.result()["x"], np.concatenate(everything)
    flat = rows.reshape(-1, width).astype(float)
    assert total["count"] == [len(rows)]
    for name, expected in (("min", flat.min(0)), ("max", flat.max(0)), ("mean", flat.mean(0)), ("std", flat.std(0))):
        np.testing.assert_allclose(total[name], expected, rtol=1e-6, atol=1e-6)


def test_statistics_of_pictures_are_of_each_channel() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 9, 7, 3), dtype=np.uint8)
    statistics = Pictures(50)
    statistics.add(0, pixels[:20])
    statistics.add(20, pixels[20:])
    found = statistics.result()
    channels = pixels.reshape(-1, 3) / 255
    np.testing.assert_allclose(np.ravel(found["mean"]), channels.mean(axis=0))
    np.testing.assert_allclose(np.ravel(found["std"]), channels.std(axis=0))
    np.testing.assert_allclose(np.ravel(found["q50"]), np.quantile(channels, 0.5, axis=0), atol=0.005)
    assert np.shape(found["max"]) == (3, 1, 1)


# After a kill, or on a full disk


@pytest.mark.nightly
def test_an_export_and_an_import_that_are_killed_are_finished(
    tmp_path: Path, any_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskbuffer.formats.lerobot.writer._MOST_EPISODES", 4)
    store = made.store_of(tmp_path / "store", made.some(20), n_envs=1)
    wanted, data, again = without_final(made.read(store)), tmp_path / "data", tmp_path / "again"
    for _ in interrupted.killed_and_finished("export", "lerobot", store, data, any_seed, allow_loss=FINAL):
        made.assert_same(to_store(data, again), wanted)
    exported(tmp_path)
    shutil.rmtree(again)
    for _ in interrupted.killed_and_finished("import", "lerobot", data, again, any_seed):
        made.assert_same(made.read(again), wanted)


def exported(path: Path) -> None:
    """Export a store to files of few episodes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("diskbuffer.formats.lerobot.writer._MOST_EPISODES", 4)
        export("lerobot", path / "store", path / "data", allow_loss=FINAL, progress=False)


@pytest.mark.nightly
def test_an_export_that_finds_no_room_is_an_error_and_is_finished_later(tmp_path: Path) -> None:
    made.store_of(tmp_path / "store", made.some(20))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"too large|wrote only"):
            exported(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not (tmp_path / "data").exists()
    exported(tmp_path)
    made.assert_same(to_store(tmp_path / "data", tmp_path / "again"), without_final(made.read(tmp_path / "store")))


# What is damaged, or hostile


def change(path: Path, changed: Callable[[dict[str, Any]], None]) -> None:
    """Change info.json."""
    file = path / "meta/info.json"
    info = json.loads(file.read_text())
    changed(info)
    file.write_text(json.dumps(info))


def with_column(path: Path, name: str, changed: Callable[[Any], Any] | None) -> None:
    """Change a column of a parquet file, or leave it out."""
    table = pq.read_table(path)
    at = table.schema.get_field_index(name)
    old, table = table.column(at), table.remove_column(at)
    if changed is not None:
        table = table.add_column(at, name, changed(old))
    pq.write_table(table, path)


DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
MOVIE = "videos/observation.images.top/chunk-000/file-000.mp4"


def told(*place: str, as_: Any) -> Callable[[Path], None]:
    """Return what has info.json say something else at a place."""

    def change_it(path: Path) -> None:
        def changed(info: dict[str, Any]) -> None:
            for name in place[:-1]:
                info = info[name]
            info[place[-1]] = as_

        change(path, changed)

    return change_it


def cut(name: str, part: float) -> Callable[[Path], None]:
    def cut_it(path: Path) -> None:
        os.truncate(path / name, int((path / name).stat().st_size * part))

    return cut_it


def text(given: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        (path / "meta/info.json").write_text(given)

    return write


def column(file: str, name: str, changed: Callable[[Any], Any] | None) -> Callable[[Path], None]:
    return lambda path: with_column(path / file, name, changed)


def other_video(height: int, width: int, frames: int, fps: int = 10) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        video = Video(path / MOVIE, Pixels(height, width, False, 2), fps, None)
        video.add(np.zeros((frames, height, width, 3), np.uint8))
        video.finish()

    return write


def playlist(path: Path) -> None:
    (path / "other.mp4").write_bytes((path / MOVIE).read_bytes())
    (path / MOVIE).write_text(f"ffconcat version 1.0\nfile '{path / 'other.mp4'}'\n")


def samples(count: int) -> Callable[[Path], None]:
    """Return what has the video say that it has so many samples, of one byte each."""

    def change_it(path: Path) -> None:
        found = bytearray((path / MOVIE).read_bytes())
        at = found.index(b"stsz") + 8
        found[at : at + 8] = (1).to_bytes(4, "big") + count.to_bytes(4, "big")
        (path / MOVIE).write_bytes(found)

    return change_it


def a_picture(width: int, height: int, mode: str = "RGB") -> Any:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, "PNG")
    return lambda old: pa.array([{"bytes": file.getvalue(), "path": "x"}] * len(old), old.type)


def no_pictures(old: Any) -> Any:
    return pa.array([{"bytes": None, "path": "/etc/passwd"}] * len(old), old.type)


OURS = {"path": "a", "shape": [9], "dtype": "int8", "allow_nan": False}
FLOATS = pa.list_(pa.float32())
NO_PICTURE = {"bytes": b"PNG", "path": ""}
HOSTILE: dict[str, Callable[[Path], None]] = {
    "no info": lambda path: (path / "meta/info.json").unlink(),
    "info is no JSON": cut("meta/info.json", 0.5),
    "info is deep": text("[" * 100_000),
    "info is a list": text("[1]"),
    "another version": told("codebase_version", as_="v2.1"),
    "no frames a second": told("fps", as_=0),
    "frames a second are a text": told("fps", as_="30"),
    "more episodes": told("total_episodes", as_=4),
    "many episodes": told("total_episodes", as_=10**15),
    "more steps": told("total_frames", as_=16),
    "features are a list": told("features", as_=[1]),
    "a feature is a text": told("features", "action", as_="float32"),
    "a shape is negative": told("features", "action", "shape", as_=[-2]),
    "a shape is huge": told("features", "action", "shape", as_=[2**30, 2**30]),
    "another shape": told("features", "action", "shape", as_=[3]),
    "numbers are pictures": told("features", "action", as_={"dtype": "image", "shape": [4, 4, 3], "names": None}),
    "pictures are numbers": told("features", "observation.images.wrist", as_={"dtype": "float32", "shape": [2], "names": None}),
    "huge pictures": told("features", "observation.images.top", "shape", as_=[10**5, 10**5, 3]),
    "other pictures": told("features", "observation.images.top", "shape", as_=[64, 64, 3]),
    "a path above": told("data_path", as_="../data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"),
    "an absolute path": told("data_path", as_="/etc/passwd"),
    "a path of attributes": told("data_path", as_="{chunk_index.__class__}"),
    "a path with room": told("data_path", as_="{chunk_index:0999999999d}"),
    "a path of a dict": told("data_path", as_="{0}"),
    "a path is a number": told("data_path", as_=7),
    "a video's path above": told("video_path", as_="../../{video_key}.mp4"),
    "ours is damaged": told("diskbuffer", as_={"columns": {"action": {"path": 3}}}),
    "ours does not fit": told("diskbuffer", as_={"columns": {"action": OURS}}),
    "ours has many streams": told("diskbuffer", as_={"n_envs": 10**9}),
    "no data": lambda path: (path / DATA).unlink(),
    "data end early": cut(DATA, 0.7),
    "data are empty": cut(DATA, 0),
    "no action": column(DATA, "action", None),
    "no flags": column(DATA, "next.done", None),
    "no episode's number": column(DATA, "episode_index", None),
    "another episode's rows": column(DATA, "episode_index", lambda old: pa.array(np.zeros(len(old), np.int64))),
    "rows in another order": column(DATA, "frame_index", lambda old: pa.array(old.to_numpy()[::-1].copy())),
    "lists of other lengths": column(DATA, "action", lambda old: pa.array([[1.0], *[[1.0, 2.0, 3.0]] * 14], FLOATS)),
    "values are missing": column(DATA, "next.reward", lambda old: pa.array([None] * len(old), pa.float32())),
    "values are texts": column(DATA, "next.reward", lambda old: pa.array(["1"] * len(old))),
    "no pictures": column(DATA, "observation.images.wrist", no_pictures),
    "pictures of another size": column(DATA, "observation.images.wrist", a_picture(8, 8)),
    "pictures of 16 bits": column(DATA, "observation.images.wrist", a_picture(16, 12, "I;16")),
    "a picture that is none": column(DATA, "observation.images.wrist", lambda old: pa.array([NO_PICTURE] * 15, old.type)),
    "a huge picture": column(DATA, "observation.images.wrist", a_picture(20_000, 6_000, "1")),
    "no episodes": lambda path: shutil.rmtree(path / "meta/episodes"),
    "episodes end early": cut(EPISODES, 0.5),
    "no lengths": column(EPISODES, "length", None),
    "no tasks": column(EPISODES, "tasks", None),
    "no times": column(EPISODES, "videos/observation.images.top/from_timestamp", None),
    "lengths are negative": column(EPISODES, "length", lambda old: pa.array([-5, 7, 13])),
    "lengths are others": column(EPISODES, "length", lambda old: pa.array([7, 5, 3])),
    "times are none": column(EPISODES, "videos/observation.images.top/from_timestamp", lambda old: pa.array([0.0, np.nan, 1.0])),
    "times are late": column(EPISODES, "videos/observation.images.top/from_timestamp", lambda old: pa.array([0.0, 0.5, 100.0])),
    "files are negative": column(EPISODES, "data/file_index", lambda old: pa.array([0, 0, -1])),
    "another file": column(EPISODES, "data/file_index", lambda old: pa.array([0, 0, 1])),
    "no video": lambda path: (path / MOVIE).unlink(),
    "a video ends early": cut(MOVIE, 0.6),
    "a video is empty": cut(MOVIE, 0),
    "a video of another size": other_video(48, 80, 15),
    "a video with less frames": other_video(64, 80, 14),
    "a video of another speed": other_video(64, 80, 15, fps=20),
    "a video is a list of others": playlist,
    "a video with many samples": samples(2**31),
}  # fmt: skip


@pytest.mark.some(8)
@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_damaged_is_a_typed_error(what: str, data_set: Path, tmp_path: Path) -> None:
    HOSTILE[what](data_set)
    with pytest.raises((db.errors.SourceError, db.errors.LossError)):
        import_("lerobot", data_set, tmp_path / "store", progress=False)
    assert not (tmp_path / "store").exists()


def test_columns_that_are_read_in_turns_are_read_in_blocks_of_their_own_sizes(data_set: Path) -> None:
    """One reader of a file once took on the size of blocks of another: thousands of pictures at a time."""
    table = Table(data_set / DATA)
    pictures = table.blocks("observation.images.wrist", 0, 2)
    assert len(next(pictures)) == 2
    assert len(next(table.blocks("phase", 0, 100))) == 15
    assert [len(block) for block in pictures] == [2, 2, 2, 2, 2, 2, 1]
    table.close()


def test_files_are_closed(data_set: Path) -> None:
    source = LeRobotSource(data_set)
    for episode in source.episodes():
        for rows in episode.columns.values():
            assert len(rows[: episode.steps]) == episode.steps
    source.close()
    open_ones = [
        os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")
    ]
    assert not [path for path in open_ones if path.startswith(str(data_set))]


def test_the_format_says_what_it_is() -> None:
    assert (LEROBOT.name, LEROBOT.pickles) == ("lerobot", False)
    assert LEROBOT.losses(Contents({}, final=False)) == {}


def test_lossless_videos_are_h264_with_key_frames_close_to_each_other(tmp_path: Path) -> None:
    video = Video(tmp_path / "x.mp4", Pixels(9, 7, True, None), 30, None)
    video.add(np.random.default_rng(0).integers(0, 256, (40, 9, 7), dtype=np.uint8))
    video.finish()
    with av.open(str(tmp_path / "x.mp4")) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        assert stream.codec_context.codec.name == "h264"
        assert stream.time_base is not None
        assert [packet.pts * stream.time_base * 30 for packet in packets if packet.pts is not None] == list(range(40))
        assert [n for n, packet in enumerate(packets) if packet.is_keyframe] == [0, 10, 20, 30]
