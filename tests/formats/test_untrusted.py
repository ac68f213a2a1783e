"""Data sets that lead elsewhere: links, pipes, what lies beside them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.formats import export, import_, untrusted
from tests.formats import episodes as made

GOLDEN = Path(__file__).parent / "golden"


def tensordict(path: Path) -> None:
    made.store_of(path.parent / "exported", made.some(3, 1))
    export("tensordict", path.parent / "exported", path, progress=False)


def libero(path: Path) -> None:
    path.mkdir()
    for name in ("a_demo.hdf5", "b_demo.hdf5"):
        with h5py.File(path / name, "w") as file:
            demo = file.create_group("data/demo_0")
            demo["obs/state"], demo["actions"] = np.zeros((3, 2)), np.zeros((3, 1))


def copied(name: str) -> Callable[[Path], None]:
    return lambda path: (shutil.copytree(GOLDEN / name, path), None)[1]


# A format, how to make a data set of it, and the name of a file in it.
DATA_SETS: dict[str, tuple[Callable[[Path], None], str]] = {
    "diffusion_policy": (copied("zarr2/diffusion_policy.zarr"), "data/img/1.0.0.0"),
    "drqv2": (copied("npz/drqv2"), "20261123T021213_1_10.npz"),
    "dreamer": (copied("npz/dreamerv2"), "20261123T021234-8c24b939f7b8414986ad37d60fd5bc03-3.npz"),
    "tensordict": (tensordict, "action.memmap"),
    "libero": (libero, "b_demo.hdf5"),
}


@pytest.mark.parametrize("format", DATA_SETS)
@pytest.mark.parametrize("way", ["link", "link to a directory", "pipe"])
def test_links_and_pipes_in_a_data_set_are_refused(tmp_path: Path, format: str, way: str) -> None:
    make, name = DATA_SETS[format]
    make(tmp_path / "given")
    file = tmp_path / "given" / name
    if way == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif way == "link to a directory":
        (tmp_path / "given" / "more").symlink_to(tmp_path / "given")
    else:
        file.unlink()
        os.mkfifo(file)
    with pytest.raises(db.errors.SourceError, match=r"link|neither a file"):
        import_(format, tmp_path / "given", tmp_path / "store", progress=False)
    assert not (tmp_path / "store").exists()


def test_the_path_of_a_data_set_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(GOLDEN / "npz" / "drqv2")
    import_("drqv2", tmp_path / "link", tmp_path / "store", progress=False)
    assert len(made.read(tmp_path / "store")) == 4


def test_links_of_a_hugging_face_cache_are_followed_and_no_others(tmp_path: Path) -> None:
    snapshot, blobs = (
        tmp_path / "datasets--some--thing" / "snapshots" / "0a1b" / "data",
        tmp_path / "datasets--some--thing" / "blobs",
    )
    shutil.copytree(GOLDEN / "npz" / "drqv2", snapshot)
    blobs.mkdir()
    for n, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / f"{n:040x}")
        file.symlink_to(f"../../../blobs/{n:040x}")
    import_("drqv2", snapshot, tmp_path / "store", progress=False)
    assert len(made.read(tmp_path / "store")) == 4
    (tmp_path / "secret").write_bytes((blobs / f"{0:040x}").read_bytes())
    for where in (tmp_path / "secret", snapshot.parent / "beside"):
        (snapshot.parent / "beside").write_bytes(b"")
        file.unlink()
        file.symlink_to(where)
        with pytest.raises(db.errors.SourceError, match="is a link"):
            import_("drqv2", snapshot, tmp_path / "other", progress=False)
    (blobs / "out").symlink_to(tmp_path / "secret")
    file.unlink()
    file.symlink_to("../../../blobs/out")
    with pytest.raises(db.errors.SourceError, match="is a link"):
        import_("drqv2", snapshot, tmp_path / "other", progress=False)


def test_a_link_beside_a_file_of_maniskills_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        group = file.create_group("traj_0")
        group["obs"], group["actions"] = np.zeros((3, 2)), np.zeros((2, 1))
    (tmp_path / "elsewhere").write_text('{"episodes": [{"episode_id": 0}], "secret": 1}')
    for leads_to in ("elsewhere", "data.json"):
        (tmp_path / "data.json").unlink(missing_ok=True)
        (tmp_path / "data.json").symlink_to(leads_to)
        with pytest.raises(db.errors.SourceError, match="is a link"):
            import_("maniskill", tmp_path / "data.h5", tmp_path / "store", progress=False)
    (tmp_path / "data.json").unlink()
    (tmp_path / "data.json").write_text('{"episodes": [{"episode_id": [3.5]}]}')
    with pytest.raises(db.errors.SourceError, match="has no episode 0"):
        import_("maniskill", tmp_path / "data.h5", tmp_path / "store", progress=False)


def test_what_lies_beside_a_path_is_looked_up_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("there")
    assert untrusted.is_file_beside(tmp_path, "there", "file")
    assert not untrusted.is_file_beside(tmp_path, "there")
    assert not untrusted.is_file_beside(tmp_path, "missing", "file")
    assert not untrusted.is_file_beside(tmp_path, "there", "file", "file")
    with pytest.raises(db.errors.SourceError, match="is a link"):
        untrusted.is_file_beside(tmp_path, "link", "file")
