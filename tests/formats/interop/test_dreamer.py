"""What we export, read by danijar's code, where there is an environment with it: see `make interop`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.formats import export
from tests.formats import episodes as made
from tests.formats.interop.environments import python_of

COLUMNS = {
    "obs/count": db.Column((), "int64"),
    "obs/camera": db.Column((16, 24, 3), "uint8"),
    "action": db.Column((2,), "float32"),
}

# Needs the packages elements, portal and cloudpickle, and the directory of danijar/dreamerv3 (e3f0224) in its path.
V3 = """
import json, sys, types
from importlib.util import find_spec
package = types.ModuleType("embodied")
package.__path__ = list(find_spec("embodied").submodule_search_locations)
sys.modules["embodied"] = package
from embodied.core.replay import Replay
replay = Replay(length=8, directory=sys.argv[1])
replay.load()
found = []
for _ in range(100):
    batch = replay.sample(4)
    found += [{name: batch[name][n].tolist() for name in ("count", "action", "reward", "is_first", "is_last")} for n in range(4)]
print(json.dumps([len(replay), found]))
"""


def test_dreamerv3_samples_from_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = python_of("dreamer", "embodied")
    monkeypatch.setattr("diskbuffer.formats.npz.dreamer_writing._ROWS", 50)
    random = np.random.default_rng(0)
    episodes = [made.episode(int(random.integers(1, 40)), random, COLUMNS, stream=n % 2) for n in range(20)]
    streams: list[list[tuple[int, list[float], float, bool, bool]]] = [[], []]
    for number, one in enumerate(episodes):
        rows = one.steps + 1
        one.columns["obs/count"][:] = np.arange(rows) + 1000 * number  # type: ignore[index]
        reward = np.zeros(rows)  # a store without rewards has zeros
        action = np.concatenate([one.columns["action"][:], np.zeros((1, 2))])
        for row in range(rows):
            told = (1000 * number + row, action[row].tolist(), reward[row], row == 0, row == one.steps)
            streams[one.stream].append(told)
    made.store_of(tmp_path / "store", episodes, COLUMNS, n_envs=2)
    export("dreamer", tmp_path / "store", tmp_path / "out", progress=False)
    printed = subprocess.run([python, "-c", V3, str(tmp_path / "out")], check=True, capture_output=True, text=True).stdout
    items, found = json.loads(printed.splitlines()[-1])
    assert items == sum(len(of) - 7 for of in streams)
    places = {told[0]: (stream, row) for stream, of in enumerate(streams) for row, told in enumerate(of)}
    for one in found:
        stream, row = places[one["count"][0]]
        wanted = [list(field) for field in zip(*streams[stream][row : row + 8], strict=True)]
        wanted[3][0] = True  # Dreamer begins every sequence anew
        assert [one["count"], one["action"], one["reward"], one["is_first"], one["is_last"]] == wanted
