"""What we export, read by the ReplayBuffer of diffusion_policy and UMI, with zarr 2: see `make interop`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from diskbuffer.formats import export
from tests.formats import episodes as made
from tests.formats.interop.environments import python_of

# Needs zarr 2, numcodecs, imagecodecs and numba, and real-stanford/universal_manipulation_interface (d095ba9) in its path.
OWN = """
import json, sys
import numpy as np, zarr
from diffusion_policy.codecs.imagecodecs_numcodecs import register_codecs
from diffusion_policy.common.replay_buffer import ReplayBuffer
register_codecs()
if sys.argv[1] == "umi":
    with zarr.ZipStore(sys.argv[2], mode="r") as store:
        buffer = ReplayBuffer.copy_from_store(src_store=store, store=zarr.MemoryStore())
else:
    buffer = ReplayBuffer.copy_from_path(sys.argv[2])
np.savez(sys.argv[3], ends=buffer.episode_ends[:], **{name: values[:] for name, values in buffer.data.items()})
"""


@pytest.mark.parametrize("name", ["diffusion_policy", "umi"])
def test_their_own_replay_buffer_reads_an_export(tmp_path: Path, name: str) -> None:
    python = python_of("zarr2", "diffusion_policy")
    episodes = made.some(5, 1)
    made.store_of(tmp_path / "store", episodes)
    export(name, tmp_path / "store", tmp_path / "out", allow_loss=["final_obs"], progress=False)
    subprocess.run([python, "-c", OWN, name, str(tmp_path / "out"), str(tmp_path / "read.npz")], check=True)
    with np.load(tmp_path / "read.npz") as read:
        np.testing.assert_array_equal(read["ends"], np.cumsum([one.steps for one in episodes]))
        for column, array in (("obs/camera", "camera"), ("obs/state", "state"), ("action", "action"), ("reward", "reward")):
            wanted = np.concatenate([np.asarray(one.columns[column][: one.steps]) for one in episodes])
            assert read[array].dtype == wanted.dtype
            np.testing.assert_array_equal(read[array], wanted)
