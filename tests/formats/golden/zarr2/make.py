"""Make the golden files with the published code and zarr 2: ``python make.py``.

PYTHONPATH must have the directory of a checkout of real-stanford/universal_manipulation_interface (d095ba9), whose ReplayBuffer
is diffusion_policy's; and zarr 2, numcodecs, imagecodecs and numba must be installed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import steps  # noqa: E402


def main() -> None:
    """Make a replay buffer as diffusion_policy does, in a directory, and as UMI does, in a zip."""
    import zarr  # of version 2

    zarr2: Any = zarr
    from diffusion_policy.codecs.imagecodecs_numcodecs import JpegXl, register_codecs
    from diffusion_policy.common.replay_buffer import ReplayBuffer

    register_codecs()
    buffer = ReplayBuffer.create_empty_numpy()
    for episode in steps.episodes():
        buffer.add_episode({name: episode[name] for name in ("img", "state", "action")})
    buffer.save_to_path(str(HERE / "diffusion_policy.zarr"), chunks={"img": (7, 12, 12, 3), "state": (5, 5)})

    umi = ReplayBuffer.create_empty_zarr(storage=zarr2.MemoryStore())
    for episode in steps.episodes():
        umi.add_episode(data={name: episode[name] for name in episode if name.startswith("robot0")}, compressors=None)
    pictures = np.concatenate([episode["img"] for episode in steps.episodes()])
    for name, codec in (("camera0_rgb", JpegXl(lossless=True, numthreads=1)), ("camera1_rgb", JpegXl(level=99, numthreads=1))):
        array = umi.data.require_dataset(
            name=name, shape=pictures.shape, chunks=(1, *pictures.shape[1:]), compressor=codec, dtype=np.uint8
        )
        for number, picture in enumerate(pictures):
            array[number] = picture
    with zarr2.ZipStore(HERE / "umi.zarr.zip", mode="w") as store:
        umi.save_to_store(store=store)


if __name__ == "__main__":
    main()
