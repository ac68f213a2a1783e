"""Every format goes on where a kill or a full disk stopped it: nothing is lost, and nothing is there twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diskbuffer.formats import export, import_
from tests.formats import episodes as made
from tests.formats import interrupted

# Format, options of the export, streams, losses of the export
CASES: dict[str, tuple[str, dict[str, Any], int, list[str]]] = {
    "dreamer": ("dreamer", {}, 2, []),
    "dreamer, episodes": ("dreamer", {"version": 2}, 1, []),
    "diffusion_policy": ("diffusion_policy", {}, 2, ["final_obs"]),
    "diffusion_policy, zip": ("diffusion_policy", {"zip": True}, 1, ["final_obs"]),
    "umi": ("umi", {}, 1, ["final_obs"]),
    "tensordict": ("tensordict", {}, 2, []),
}


def a_store(path: Path, streams: int) -> Path:
    episodes = [one for n in range(8) for one in made.some(3, n, longest=30, stream=n % streams)]
    return made.store_of(path, episodes, n_envs=streams)


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_exports_to_a_full_disk_go_on(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, options, streams, losses = CASES[case]
    monkeypatch.setattr("diskbuffer.formats.npz.dreamer_writing._ROWS", 100)
    monkeypatch.setattr("diskbuffer.formats.zarr2.writing._CHUNK", 20_000)
    store = a_store(tmp_path / "store", streams)
    export(name, store, tmp_path / "clean", progress=False, allow_loss=losses, **options)
    interrupted.fill_the_disk_and_go_on(name, store, tmp_path / "out", 14, allow_loss=losses, **options)
    for made_of in ("clean", "out"):
        import_(name, tmp_path / made_of, tmp_path / f"back of {made_of}", progress=False)
    interrupted.assert_same_in_each_stream(tmp_path / "back of clean", tmp_path / "back of out")


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_what_is_killed_goes_on(tmp_path: Path, case: str) -> None:
    name, options, streams, losses = CASES[case]
    store = a_store(tmp_path / "store", streams)
    export(name, store, tmp_path / "clean", progress=False, allow_loss=losses, **options)
    import_(name, tmp_path / "clean", tmp_path / "back of clean", progress=False)
    interrupted.kill_and_go_on("export", name, store, tmp_path / "out", 14, allow_loss=losses, **options)
    interrupted.kill_and_go_on("import", name, tmp_path / "out", tmp_path / "back of out", 14)
    interrupted.assert_same_in_each_stream(tmp_path / "back of clean", tmp_path / "back of out")


GOLDEN = Path(__file__).parent / "golden" / "npz"


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "source"), [("drqv2", GOLDEN / "drqv2"), ("ogbench", GOLDEN / "ogbench" / "raw.npz")])
def test_imports_that_are_killed_go_on(tmp_path: Path, name: str, source: Path) -> None:
    losses = ["final_info"] if name == "ogbench" else []
    import_(name, source, tmp_path / "clean", allow_loss=losses, progress=False)
    interrupted.kill_and_go_on("import", name, source, tmp_path / "store", 3, allow_loss=losses)
    interrupted.assert_same_in_each_stream(tmp_path / "clean", tmp_path / "store")
