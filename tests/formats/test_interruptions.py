"""Every format goes on where a kill or a full disk stopped it: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from diskbuffer.formats import export, import_
from diskbuffer.formats.json_files import write_json
from diskbuffer.formats.stored import StoreSource
from tests.formats import episodes as made
from tests.formats import interrupted
from tests.support.simulated_disk import Kind, build
from tests.support.specimens import contents
from tests.support.tracing import Trace

# Format, options of the export, streams, losses of the export
CASES: dict[str, tuple[str, dict[str, Any], int, list[str]]] = {
    "dreamer": ("dreamer", {}, 2, []),
    "dreamer, episodes": ("dreamer", {"version": 2}, 1, []),
    "diffusion_policy": ("diffusion_policy", {}, 2, ["final_obs"]),
    "diffusion_policy, zip": ("diffusion_policy", {"zip": True}, 1, ["final_obs"]),
    "umi": ("umi", {}, 1, ["final_obs"]),
    "tensordict": ("tensordict", {}, 2, []),
}

# What of the writes that were not synced a power loss leaves
KINDS: tuple[Kind, ...] = (*get_args(Kind), "random") * 2


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
def test_what_is_killed_goes_on(tmp_path: Path, case: str, any_seed: int) -> None:
    name, options, streams, losses = CASES[case]
    store = a_store(tmp_path / "store", streams)
    export(name, store, tmp_path / "clean", progress=False, allow_loss=losses, **options)
    import_(name, tmp_path / "clean", tmp_path / "back of clean", progress=False)
    clean, out, back = (tmp_path / name for name in ("back of clean", "out", "back of out"))
    for _ in interrupted.killed_and_finished("export", name, store, out, any_seed, allow_loss=losses, **options):
        interrupted.assert_same_in_each_stream(clean, import_(name, out, back, progress=False))
        shutil.rmtree(back)
    for _ in interrupted.killed_and_finished("import", name, tmp_path / "clean", back, any_seed):
        interrupted.assert_same_in_each_stream(clean, back)


EVERY = CASES | {
    "minari": ("minari", {}, 1, []),
    "lerobot": ("lerobot", {}, 1, ["final_obs"]),
    "webdataset": ("webdataset", {"shard_mb": 1}, 1, []),
    "video": ("video", {}, 1, ["pictures", "columns"]),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("boots", [True, False])
@pytest.mark.parametrize("case", EVERY)
def test_what_an_export_lost_with_the_power_is_not_taken_for_written(
    tmp_path: Path, case: str, boots: bool, any_seed: int, amount: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After another start of the machine any file may be cut; without one, what another program cut is noticed, too."""
    name, options, streams, losses = EVERY[case]
    random, store = np.random.default_rng(any_seed), a_store(tmp_path / "store", streams)
    how: dict[str, Any] = {"progress": False, "allow_loss": losses, **options}
    export(name, store, tmp_path / "clean", **how)
    for n in range(amount(1, 8)):
        target = tmp_path / f"out{n}"
        monkeypatch.setattr("diskbuffer.formats.unfinished.boot_id", lambda: "same")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(StoreSource, "episodes", interrupted.stopping_at(int(random.integers(1, 24))))
            with pytest.raises(KeyboardInterrupt):
                export(name, store, target, **how)
        place = tmp_path / f".out{n}.unfinished" / "data"
        files = sorted(file for file in place.rglob("*") if file.is_file() and file.stat().st_size) if place.is_dir() else [place]
        for file in files if boots else files[:1]:
            os.truncate(file, int(random.integers(file.stat().st_size)))
        if boots:
            monkeypatch.setattr("diskbuffer.formats.unfinished.boot_id", lambda: "another")
        export(name, store, target, **how)
        if name in ("webdataset", "video"):
            assert contents(target) == contents(tmp_path / "clean")
            continue
        for made_of in (tmp_path / "clean", target):
            back = tmp_path / f"back of {made_of.name}"
            if not back.exists():
                import_(name, made_of, back, progress=False)
        interrupted.assert_same_in_each_stream(tmp_path / "back of clean", tmp_path / f"back of out{n}")


@pytest.mark.nightly
@pytest.mark.parametrize("case", [*CASES, "minari", "lerobot"])
def test_what_an_import_lost_with_the_power_is_imported_again(
    tmp_path: Path, case: str, any_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, options, streams, losses = EVERY[case]
    random, store = np.random.default_rng(any_seed), a_store(tmp_path / "store", streams)
    made.read_here(monkeypatch, 100)
    source = export(name, store, tmp_path / "source", progress=False, allow_loss=losses, **options)
    clean, place, left = (tmp_path / name for name in ("clean", "place", "left"))
    import_(name, source, clean, progress=False)
    place.mkdir()
    with interrupted.booted(1), Trace(place) as trace:
        import_(name, source, place / "out", progress=False)
    for kind in KINDS:
        left.mkdir()
        disk = trace.disk(int(random.integers(len(trace.events) + 1)))
        build(disk.crash(kind, random), left)
        with interrupted.booted(2):
            if not (left / "out").exists():
                import_(name, source, left / "out", progress=False)
            interrupted.assert_same_in_each_stream(clean, left / "out")
        shutil.rmtree(left)


def test_what_was_made_stays_where_the_disk_is_too_full_to_note_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, full = a_store(tmp_path / "store", 1), OSError(28, "No space left on device")

    def write(path: Path, value: Any) -> None:
        if value["sizes"]:
            raise full
        write_json(path, value)

    with monkeypatch.context() as patched:
        patched.setattr("diskbuffer.formats.unfinished.write_json", write)
        patched.setattr(StoreSource, "episodes", interrupted.stopping_at(12, full))
        with pytest.raises(OSError, match="No space left"):
            export("dreamer", store, tmp_path / "out", version=2, progress=False)
    place = tmp_path / ".out.unfinished" / "data"
    assert len(list(place.glob("*.npz"))) == 12
    times = {file.name: file.stat().st_mtime_ns for file in place.iterdir()}
    export("dreamer", store, tmp_path / "out", version=2, progress=False)
    assert times.items() <= {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()}.items()


GOLDEN = Path(__file__).parent / "golden" / "npz"


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "source"), [("drqv2", GOLDEN / "drqv2"), ("ogbench", GOLDEN / "ogbench" / "raw.npz")])
def test_imports_that_are_killed_go_on(tmp_path: Path, name: str, source: Path, any_seed: int) -> None:
    losses = ["final_info"] if name == "ogbench" else []
    import_(name, source, tmp_path / "clean", allow_loss=losses, progress=False)
    for _ in interrupted.killed_and_finished("import", name, source, tmp_path / "store", any_seed, allow_loss=losses):
        interrupted.assert_same_in_each_stream(tmp_path / "clean", tmp_path / "store")
