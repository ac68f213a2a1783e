"""What a `StoreView` shows, against what a buffer that is opened to read shows of the same store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.inspect.view import StoreView
from soak.workloads import boot
from tests.golden.make import BOOT, STORES, unpack

WITHOUT = """
import sys
from diskbuffer.inspect.view import StoreView
view = StoreView(sys.argv[1])
view.episodes()
for column in view.schema:
    view.frames(column, 0, int(view.lows[0]), 1)
print(*sorted({"numba", "torch", "zarr", "llvmlite"} & sys.modules.keys()))
"""


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: value.numpy()}
    return found


def compare(path: Path) -> StoreView:
    """Open a store in both ways, and compare all that there is."""
    view = StoreView(path)
    with db.ReplayBuffer(path, mode="r") as buffer:
        index, streams = buffer._reader.index, view.layout.streams
        assert view.damage is None
        assert view.heads.tolist() == index.heads.tolist()
        assert view.index.table[:, :5].tolist() == index.table[:, :5].tolist()  # all but addresses
        assert (view.steps, view.added) == (len(buffer), index.added())
        table, episodes = view.episodes(), buffer.episodes
        assert table.episode.tolist() == list(range(len(episodes)))
        for name in ("stream", "start", "length", "ending", "tag"):
            assert table.column(name).tolist() == getattr(episodes, name).tolist(), name
        np.testing.assert_array_equal(table.returns, episodes.returns.reshape(len(episodes), -1).sum(axis=1))
        steps = buffer.steps()
        rng = np.random.default_rng(0)
        rng.shuffle(steps)
        batch = flat(buffer.at(steps)) if len(steps) else {}
        for column in set(batch) & set(view.schema):
            expected = batch[column][:, -1] if column.startswith("obs") and buffer.frame_stack > 1 else batch[column]
            np.testing.assert_array_equal(view.read(column, steps), expected, err_msg=column)
        for episode in (buffer.episodes[n] for n in range(len(episodes))):
            whole = flat(buffer.episode(episode))
            for column in view.schema.obs:
                expected = whole[column][:, -1] if buffer.frame_stack > 1 else whole[column]
                found = view.frames(column, episode.stream, episode.start // streams, episode.length + 1)
                np.testing.assert_array_equal(found, expected)
    return view


@pytest.mark.parametrize("booted_since", [False, True])
@pytest.mark.parametrize("name", [name for name, store in STORES.items() if not store.damage])
def test_stores_of_every_version_look_as_a_buffer_has_them(name: str, booted_since: bool, tmp_path: Path) -> None:
    with boot(BOOT + booted_since):
        compare(unpack(name, tmp_path))


def test_looking_imports_neither_numba_nor_torch(tmp_path: Path) -> None:
    path = unpack("closed", tmp_path)
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(path)], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")
