"""Every format goes on where a kill or a full disk stopped it: nothing is lost, and nothing is there twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.formats import episodes as made
from tests.formats import interrupted

# Format, options of the export, streams, losses of the export and of the import
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "dreamer": ("dreamer", {}, 2),
    "dreamer, episodes": ("dreamer", {"version": 2}, 1),
}


def a_store(path: Path, streams: int) -> Path:
    episodes = [one for n in range(8) for one in made.some(3, n, longest=200, stream=n % streams)]
    return made.store_of(path, episodes, n_envs=streams)


@pytest.mark.parametrize("case", CASES)
def test_exports_to_a_full_disk_go_on(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, options, streams = CASES[case]
    monkeypatch.setattr("diskbuffer.formats.npz.dreamer_writing._ROWS", 100)
    store = a_store(tmp_path / "store", streams)
    interrupted.fill_the_disk_and_go_on(name, store, tmp_path / "out", 14, **options)
    interrupted.import_(name, tmp_path / "out", tmp_path / "back", progress=False)
    interrupted.assert_same_in_each_stream(store, tmp_path / "back")


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_what_is_killed_goes_on(tmp_path: Path, case: str) -> None:
    name, options, streams = CASES[case]
    store = a_store(tmp_path / "store", streams)
    interrupted.kill_and_go_on("export", name, store, tmp_path / "out", 14, **options)
    interrupted.kill_and_go_on("import", name, tmp_path / "out", tmp_path / "back", 14)
    interrupted.assert_same_in_each_stream(store, tmp_path / "back")
