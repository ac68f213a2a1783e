"""Replay buffers of diffusion_policy and UMI, both ways."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.formats import confined, export, import_
from diskbuffer.formats.zarr2 import jpegxl, writing
from tests.amounts import examples
from tests.formats import episodes as made
from tests.formats.golden.zarr2 import steps

GOLDEN = Path(__file__).parents[1] / "golden" / "zarr2"


def without_final(episodes: list[Any]) -> list[dict[str, Any]]:
    """Return what comes back of episodes whose final observations are lost: the last ones again."""
    found = made.expected(episodes)
    for one in found:
        for name in one:
            if name.startswith("obs"):
                one[name][-1] = one[name][-2]
    return found


@given(seed=st.integers(0, 10**6), umi=st.booleans(), zipped=st.booleans(), chunk=st.integers(1, 20), streams=st.integers(1, 3))
@examples(2, 20)
def test_a_store_comes_back_bit_by_bit_but_for_final_observations(
    tmp_path_factory: pytest.TempPathFactory, seed: int, umi: bool, zipped: bool, chunk: int, streams: int
) -> None:
    path = tmp_path_factory.mktemp("zarr2")
    name = "umi" if umi else "diffusion_policy"
    random = np.random.default_rng(seed)
    episodes = [one for n in range(4) for one in made.some(2, seed + n, longest=20, stream=int(random.integers(streams)))]
    made.store_of(path / "store", episodes, n_envs=streams, metadata={"a": 1})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writing, "_CHUNK", chunk * 1200)
        patched.setattr("diskbuffer.formats.rows.BLOCK", int(random.integers(1, 10)) * 1500)
        with pytest.raises(db.errors.LossError, match="final_obs: "):
            export(name, path / "store", path / "out", zip=zipped, progress=False)
        export(name, path / "store", path / "out", zip=zipped, allow_loss=["final_obs"], progress=False)
        import_(name, path / "out", path / "back", progress=False)
    assert (path / "out").is_file() == zipped
    found = made.read(path / "back")
    for stream in range(streams):
        mine = [one for one in found if one["stream"] == stream]
        made.assert_same(mine, without_final([one for one in episodes if one.stream == stream]))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["diffusion_policy", "umi"])
def test_zarr_python_reads_an_export(tmp_path: Path, name: str) -> None:
    jpegxl.register()
    episodes = made.some(5, 1)
    made.store_of(tmp_path / "store", episodes)
    export(name, tmp_path / "store", tmp_path / "out", allow_loss=["final_obs"], progress=False)
    store = zarr.storage.ZipStore(tmp_path / "out", mode="r") if name == "umi" else str(tmp_path / "out")
    group: Any = zarr.open_group(store, mode="r", zarr_format=2)
    ends = np.cumsum([one.steps for one in episodes])
    np.testing.assert_array_equal(group["meta/episode_ends"][:], ends)
    assert group["data/camera"].chunks[0] == (1 if name == "umi" else 1737)
    for column, array in (("obs/camera", "camera"), ("obs/state", "state"), ("action", "action"), ("terminated", "terminated")):
        wanted = np.concatenate([np.asarray(one.columns[column][: one.steps]) for one in episodes])
        assert group[f"data/{array}"].dtype == wanted.dtype
        np.testing.assert_array_equal(group[f"data/{array}"][:], wanted)


def assert_golden(path: Path, names: dict[str, str]) -> list[dict[str, Any]]:
    found = made.read(path)
    assert len(found) == 4
    for one, wanted in zip(found, steps.episodes(), strict=True):
        for column, name in names.items():
            rows = one[column][:-1] if column.startswith("obs") else one[column]
            assert rows.dtype == wanted[name].dtype, column
            np.testing.assert_array_equal(rows, wanted[name], err_msg=column)
            np.testing.assert_array_equal(one[column][-1], rows[-1])
        assert not one["terminated"].any()
        assert not one["truncated"].any()
    return found


def test_files_of_diffusion_policys_own_code(tmp_path: Path) -> None:
    import_("diffusion_policy", GOLDEN / "diffusion_policy.zarr", tmp_path / "store", progress=False)
    assert_golden(tmp_path / "store", {"obs/img": "img", "obs/state": "state", "action": "action"})
    import_("diffusion_policy", GOLDEN / "diffusion_policy.zarr", tmp_path / "other", obs="img", steps=["state"], progress=False)
    assert_golden(tmp_path / "other", {"obs": "img", "state": "state", "action": "action"})


def test_files_of_umis_own_code(tmp_path: Path) -> None:
    import_("umi", GOLDEN / "umi.zarr.zip", tmp_path / "store", progress=False)
    names = {
        f"obs/robot0_{name}": f"robot0_{name}" for name in ("eef_pos", "eef_rot_axis_angle", "gripper_width", "demo_start_pose")
    }
    found = assert_golden(tmp_path / "store", {**names, "obs/camera0_rgb": "img"})
    for one, wanted in zip(found, steps.episodes(), strict=True):
        poses = [wanted[f"robot0_{name}"] for name in ("eef_pos", "eef_rot_axis_angle", "gripper_width")]
        np.testing.assert_array_equal(one["action"], np.concatenate(poses, axis=1))
        lossy = one["obs/camera1_rgb"][:-1].astype(int)
        assert 0 < abs(lossy - wanted["img"]).max() < 40


@pytest.mark.nightly
def test_pictures_may_be_lossy_as_umis(tmp_path: Path) -> None:
    columns = {
        "obs/camera": db.Column((16, 16, 3), "uint8"),
        "obs/mask": db.Column((8, 8, 1), "uint8"),
        "action": db.Column((2,)),
    }
    episodes = made.some(3, 1, columns)
    made.store_of(tmp_path / "store", episodes, columns)
    with pytest.raises(db.errors.LossError, match="pictures: obs/camera, obs/mask"):
        export("umi", tmp_path / "store", tmp_path / "out", lossy=True, allow_loss=["final_obs"], progress=False)
    export("umi", tmp_path / "store", tmp_path / "out", lossy=True, allow_loss=["final_obs", "pictures"], progress=False)
    import_("umi", tmp_path / "out", tmp_path / "back", progress=False)
    for one, wanted in zip(made.read(tmp_path / "back"), without_final(episodes), strict=True):
        np.testing.assert_array_equal(one["action"], wanted["action"])
        assert (one["obs/camera"] != wanted["obs/camera"]).any()
    export("umi", tmp_path / "store", tmp_path / "exact", allow_loss=["final_obs"], progress=False)
    import_("umi", tmp_path / "exact", tmp_path / "same", progress=False)
    for one, wanted in zip(made.read(tmp_path / "same"), without_final(episodes), strict=True):
        np.testing.assert_array_equal(one["obs/mask"], wanted["obs/mask"])


@pytest.mark.nightly
def test_pictures_that_the_fastest_lossless_way_would_change_come_back() -> None:
    random = np.random.default_rng(1)
    for _ in range(300):
        picture = random.integers(0, 100, (1, 16, 24, 3)).astype(np.uint8)
        again = np.empty_like(picture)
        jpegxl.decode(jpegxl.encode(picture, False), again)
        np.testing.assert_array_equal(again, picture)


COMPRESSORS: dict[str, Any] = {
    "none": None,
    "blosc": numcodecs.Blosc("zstd", 5, numcodecs.Blosc.BITSHUFFLE),
    "zstd": numcodecs.Zstd(3),
    "lz4": numcodecs.LZ4(),
    "zlib": numcodecs.Zlib(),
    "gzip": numcodecs.GZip(),
    "bz2": numcodecs.BZ2(),
    "lzma": numcodecs.LZMA(),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_zarr_python_in_every_way(tmp_path: Path, compressor: str, order: Any) -> None:
    random = np.random.default_rng(0)
    group = zarr.open_group(str(tmp_path / "in"), mode="w", zarr_format=2)
    data = {
        "a": random.integers(0, 9, (50, 5, 7)).astype(">i4"),
        "action": random.normal(size=(50, 3)),
        "empty": np.full((50,), 2.5),
    }
    for name, values in data.items():
        array = group.create_array(
            f"data/{name}",
            shape=values.shape,
            chunks=(8, 2, 4)[: values.ndim],
            dtype=values.dtype,
            compressors=COMPRESSORS[compressor],
            filters=None,
            fill_value=2.5 if name == "empty" else 0,
            order=order,
            chunk_key_encoding={"name": "v2", "separator": "/" if order == "F" else "."},
        )
        if name != "empty":
            array[:] = values
    group.create_array("meta/episode_ends", data=np.array([20, 21, 50]), compressors=None)
    import_("diffusion_policy", tmp_path / "in", tmp_path / "store", progress=False)
    found = made.read(tmp_path / "store")
    assert [one["steps"] for one in found] == [20, 1, 29]
    for column, name in (("obs/a", "a"), ("obs/empty", "empty"), ("action", "action")):
        rows = np.concatenate([one[column][: one["steps"]] for one in found])
        assert rows.dtype == data[name].dtype.newbyteorder("=")
        np.testing.assert_array_equal(rows, data[name])


def without_a_chunk(damage: Callable[[Path], Any]) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        damage(path)
        (path / "data" / "state" / "0.0").unlink()

    return do


def change(name: str, **to: Any) -> Callable[[Path], object]:
    """Return what changes the metadata of an array."""

    def run(path: Path) -> None:
        file = path / name / ".zarray"
        file.write_text(json.dumps({**json.loads(file.read_text()), **to}))

    return run


def ends(*values: int) -> Callable[[Path], object]:
    def run(path: Path) -> None:
        (path / "meta" / "episode_ends" / "0").write_bytes(np.array(values, np.int64).tobytes())

    return run


HOSTILE: dict[str, Callable[[Path], object]] = {
    "no ends": lambda path: shutil.rmtree(path / "meta" / "episode_ends"),
    "no data": lambda path: shutil.rmtree(path / "data"),
    "no action": lambda path: shutil.rmtree(path / "data" / "action"),
    "ends that do not ascend": ends(4, 3, 14, 20),
    "ends that repeat": ends(4, 4, 14, 20),
    "ends below zero": ends(-4, 13, 14, 20),
    "ends after the rows": ends(4, 13, 14, 21),
    "floats for ends": change("meta/episode_ends", dtype="<f8"),
    "ends cut short": lambda path: (path / "meta" / "episode_ends" / "0").write_bytes(b"12345"),
    "other rows": change("data/state", shape=[19, 5]),
    "pickles": change("data/state", filters=[{"id": "pickle", "protocol": 5}], dtype="|O"),
    "a pickle for a compressor": change("data/state", compressor={"id": "pickle", "protocol": 5}),
    "a codec of the future": change("data/state", compressor={"id": "future"}),
    "a huge shape": change("data/state", shape=[20, 10**12]),
    "a huge chunk": change("data/state", chunks=[10**9, 5]),
    "chunks of nothing": change("data/state", chunks=[0, 5]),
    "other axes": change("data/state", chunks=[5]),
    "a negative shape": change("data/state", shape=[-20, 5]),
    "several fill values": without_a_chunk(change("data/state", fill_value=[1, 2])),
    "another dtype": change("data/state", dtype="<f8"),
    "no dtype": change("data/state", dtype="nothing"),
    "a dtype that is code": change("data/state", dtype={"a": 1}),
    "no json": lambda path: (path / "data" / "state" / ".zarray").write_text("{"),
    "json in json": lambda path: (path / "data" / "state" / ".zarray").write_text("[" * 100_000),
    "another separator": change("data/state", dimension_separator="/../"),
    "a damaged chunk": lambda path: (path / "data" / "img" / "0.0.0.0").write_bytes(b"\x02\x01\x01\x01" + bytes(40)),
    "an empty chunk": lambda path: (path / "data" / "img" / "1.0.0.0").write_bytes(b""),
    "attributes of something else": lambda path: (path / ".zattrs").write_text('{"diskbuffer": {"version": 1}}'),
}


@pytest.mark.some(10)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_groups_are_errors(tmp_path: Path, kind: str) -> None:
    shutil.copytree(GOLDEN / "diffusion_policy.zarr", tmp_path / "in")
    HOSTILE[kind](tmp_path / "in")
    with pytest.raises((db.errors.SourceError, db.InputError)):
        import_("diffusion_policy", tmp_path / "in", tmp_path / "store", progress=False)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("codec", [code for code in COMPRESSORS if code not in ("none", "gzip", "lzma")])
def test_chunks_that_hold_more_than_they_should_are_errors(tmp_path: Path, codec: str) -> None:
    shutil.copytree(GOLDEN / "diffusion_policy.zarr", tmp_path / "in")
    change("data/state", compressor={"id": codec})(tmp_path / "in")
    (tmp_path / "in" / "data" / "state" / "0.0").write_bytes(COMPRESSORS[codec].encode(bytes(1024**2)))
    with pytest.raises(db.errors.SourceError):
        import_("diffusion_policy", tmp_path / "in", tmp_path / "store", progress=False)


def header(size: int, block: int, length: int, flags: int = 2) -> bytes:
    """Return the header of a chunk of Blosc's; by default one that is a copy of what it holds."""
    return bytes([2, 1, flags, 1]) + struct.pack("<III", size, block, length)


@pytest.mark.parametrize(
    "chunk",
    [
        header(100, 100, 116),
        header(100, 100, 116) + bytes(99),
        header(100, 100, 4096) + bytes(100),
        header(100, 100, 116, flags=0x20) + bytes(3),
        header(100, 1, 116, flags=0x20) + bytes(100),
        header(100, 0, 116) + bytes(100),
        header(100, 100, 20, flags=0x20) + struct.pack("<I", 4000),
        header(100, 100, 116)[:15],
    ],
)
def test_a_chunk_of_bloscs_that_claims_more_than_is_there_is_an_error(tmp_path: Path, chunk: bytes) -> None:
    shutil.copytree(GOLDEN / "diffusion_policy.zarr", tmp_path / "in")
    (tmp_path / "in" / "data" / "state" / "0.0").write_bytes(chunk)  # of 5 rows of 5 float32
    with pytest.raises(db.errors.SourceError):
        import_("diffusion_policy", tmp_path / "in", tmp_path / "store", progress=False)


def test_more_than_files_can_hold_is_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "_SMALL", 1000)
    shutil.copytree(GOLDEN / "diffusion_policy.zarr", tmp_path / "in")
    change("data/state", shape=[20, 10**6])(tmp_path / "in")
    with pytest.raises(db.errors.SourceError, match="may be a bomb"):
        import_("diffusion_policy", tmp_path / "in", tmp_path / "store", progress=False)


@pytest.mark.parametrize("cut", [10, 2000, 6000])
def test_zips_that_are_cut_are_errors(tmp_path: Path, cut: int) -> None:
    data = (GOLDEN / "umi.zarr.zip").read_bytes()
    (tmp_path / "in.zarr.zip").write_bytes(data[:-cut])
    with pytest.raises(db.errors.SourceError):
        import_("umi", tmp_path / "in.zarr.zip", tmp_path / "store", progress=False)


def test_pictures_that_are_damaged_are_errors(tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN / "umi.zarr.zip") as source, zipfile.ZipFile(tmp_path / "in.zip", "w") as target:
        for name in source.namelist():
            data = source.read(name)
            target.writestr(name, data[: len(data) // 2] if name == "data/camera0_rgb/3.0.0.0" else data)
    with pytest.raises(db.errors.SourceError):
        import_("umi", tmp_path / "in.zip", tmp_path / "store", progress=False)
