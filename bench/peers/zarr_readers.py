"""Zarr libraries, which read the very store that our buffer wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.peers.ours import filled
from bench.peers.peer import FramesPeer

FLAT = ("action", "reward", "terminated", "truncated")


class ZarrPython(FramesPeer):
    """zarr-python's `oindex`, an array at a time, with every frame of the stacks once."""

    name, where = "zarr-python", "disk"
    slow, pipeline = True, ""

    def fill(self, directory: Path) -> None:
        """Write a store, find the rows of its steps, and open it again."""
        import zarr

        filled(self._transitions, directory, self._seed).close()
        if self.pipeline:
            zarr.config.set({"codec_pipeline.path": self.pipeline})
        group = zarr.open_group(str(directory / "store"), mode="r")
        length, first = (np.asarray(group[f"_segments/{name}"]) for name in ("length", "first_row"))
        attributes: Any = group.attrs["diskbuffer"]
        rows, size = length[:, 0], int(attributes["segment_rows"])
        slots = [slot for slot in np.argsort(first) if rows[slot]]
        self._rows = np.concatenate([slot * size + np.arange(rows[slot]) for slot in slots])
        self._arrays = {name: self._open(directory / "store", group, name) for name in ("obs", *FLAT)}

    def _open(self, path: Path, group: Any, name: str) -> Any:
        return group[name]

    def _read(self, name: str, rows: Any) -> Any:
        return self._arrays[name].oindex[rows]

    def sample(self, size: int) -> Any:
        """Draw steps."""
        drawn, window = self.draw(size)
        needed, places = np.unique(self._rows[window], return_inverse=True)
        frames = torch.from_numpy(self._read("obs", needed))[torch.from_numpy(places.reshape(size, -1))]
        return frames, {name: torch.from_numpy(self._read(name, self._rows[drawn])) for name in FLAT}


class Zarrs(ZarrPython):
    """zarr-python with the codecs of zarrs."""

    name, needs, pipeline = "zarrs", ("zarrs",), "zarrs.ZarrsCodecPipeline"


class Tensorstore(ZarrPython):
    """tensorstore, with a cache of decoded chunks that holds all of them."""

    name, needs = "tensorstore, all cached", ("tensorstore",)
    cache = 4 * 1024**3  # bytes of decoded chunks that it may keep

    def _open(self, path: Path, group: Any, name: str) -> Any:
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path / name)}}
        spec |= {"context": {"cache_pool": {"total_bytes_limit": self.cache}}}
        return tensorstore.open(spec, read=True, recheck_cached_data=False, recheck_cached_metadata=False).result()

    def _read(self, name: str, rows: Any) -> Any:
        return self._arrays[name][rows].read().result()


class TensorstoreUncached(Tensorstore):
    """tensorstore as it comes: it reads and decodes chunks at every draw."""

    name, cache = "tensorstore", 0
