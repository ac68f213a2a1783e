"""The reader in docs/format-1.md, which needs numpy and numcodecs alone, returns what is stored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db

PAGE = Path(__file__).parents[2] / "docs" / "format-1.md"


def reader() -> Any:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code) == 1
    found: dict[str, Any] = {}
    exec(compile(code[0], str(PAGE), "exec"), found)
    assert "diskbuffer" not in {name.split(".")[0] for name in re.findall(r"^(?:import|from) (\S+)", code[0], re.MULTILINE)}
    return found["read"]


@pytest.mark.some(2)
@pytest.mark.parametrize("capacity", [None, 150])
@pytest.mark.parametrize("codec", [None, "zstd:3", "none"])
def test_it_returns_what_is_stored(tmp_path: Path, capacity: int | None, codec: str | None) -> None:
    columns = {
        "obs/pixels": db.Column((40, 30), "uint8", codec=codec),
        "obs/depth": db.Column((30, 20), "float32", codec=codec),
        "action": db.Column((2,), "float32"),
    }
    random = np.random.default_rng(0)
    with db.ReplayBuffer(
        tmp_path / "store", capacity, columns=columns, n_envs=2, autoreset="next_step", segment_rows=32
    ) as buffer:
        for number in range(12):
            n = int(random.integers(1, 60))
            obs = {
                "pixels": random.integers(0, 9, (n + 1, 40, 30), np.uint8),
                "depth": random.random((n + 1, 30, 20), np.float32),
            }
            buffer.extend(obs=obs, action=random.random((n, 2), np.float32), reward=np.arange(n), env=number % 2)
            buffer.cut_off(number % 2)
            if number == 4 and capacity is None:
                buffer.clear()
    read = reader()
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        steps = buffer.steps()
        batch: Any = buffer.at(steps)
        for stream in range(2):
            here = np.flatnonzero(steps % 2 == stream)
            for path in (*columns, "reward"):
                positions, values = read(tmp_path / "store", path, stream)
                wanted = batch["obs"][path.removeprefix("obs/")] if path.startswith("obs/") else batch[path]
                assert capacity is not None or positions[0] == steps[here][0] // 2  # none that was cleared
                at = np.searchsorted(positions, steps[here] // 2)
                np.testing.assert_array_equal(positions[at], steps[here] // 2)
                np.testing.assert_array_equal(values[at], wanted.numpy()[here])
