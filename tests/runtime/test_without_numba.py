"""Only recording is compiled by numba: whoever reads a store does not import it, for half a second and 50 MB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

import diskbuffer as db

READ = """
import numpy as np, sys
import diskbuffer as db
from diskbuffer.cli import main

for path in sys.argv[1:]:
    with db.ReplayBuffer(path, mode="r", seed=0) as buffer:
        uniform = (db.Uniform(n_step=3), db.Uniform(replace=False), db.Uniform(max_age=50))
        for sampler in (None, *uniform, db.Slices(3), db.Hindsight(lambda batch: batch["reward"])):
            buffer.sample(8, sampler)
            next(iter(buffer.loader(8, sampler)))
        buffer.at(buffer.steps()[:40])
        buffer.recent(np.arange(4), 0)
        buffer.episodes[0].length
        for _ in buffer.batches(32, shuffle=True):
            pass
        buffer.refresh()
        buffer.stats()
    assert db.check(path, progress=False).ok
    assert main(["info", path]) == main(["check", path]) == 0
assert "torch" in sys.modules
print(*sorted({name.split(".")[0] for name in sys.modules} & {"numba", "llvmlite"}))
"""
VECTORS = {
    "obs/achieved_goal": db.Column((2,), "float32"),
    "obs/desired_goal": db.Column((2,), "float32"),
    "action": db.Column((), "int64"),
}
FRAMES = {"obs/camera": db.Column((12, 12), "uint8", transform=db.Greyscale()), **VECTORS}


def test_who_reads_does_not_import_numba(tmp_path: Path) -> None:
    paths = [str(tmp_path / "frames"), str(tmp_path / "vectors")]
    for path, columns in zip(paths, (FRAMES, VECTORS), strict=True):
        obs = {name[4:]: np.zeros((101, *column.shape), column.dtype) for name, column in columns.items() if name[:4] == "obs/"}
        with db.ReplayBuffer(path, columns=columns, segment_rows=64, frame_stack=2 if columns is FRAMES else 1) as buffer:
            for _ in range(2):
                buffer.extend(obs=obs, action=np.zeros(100, np.int64), reward=np.ones(100))
    done = subprocess.run([sys.executable, "-c", READ, *paths], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [""]), done.stderr
