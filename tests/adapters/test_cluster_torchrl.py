"""TorchRL's collectors over a buffer of a Ray cluster: each writes to a store of its own, which the next one continues."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
import torch

import diskbuffer as db
from diskbuffer.errors import InputError
from tests.adapters.clusters import PATIENCE

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'diskbuffer[ray]'")
tensordict = pytest.importorskip("tensordict", reason="needs TorchRL: pip install 'diskbuffer[torchrl]'")

from diskbuffer.adapters.ray import ClusterBuffer  # noqa: E402
from diskbuffer.adapters.ray.torchrl import CollectorBuffer  # noqa: E402
from tests.adapters.collecting import collected  # noqa: E402

ENVS, STEPS = 2, 6
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]  # Ray's own


class Collector:
    """What a collector of TorchRL's does with its buffer."""

    def __init__(self, buffer: CollectorBuffer, who: int) -> None:
        self._buffer, self._who = buffer, who

    def collect(self, first: int) -> int:
        """Collect a batch; return the process."""
        self._buffer.extend(collected(self._who, first))
        return os.getpid()


def test_collectors_write_to_stores_that_the_next_ones_continue(cluster: None, tmp_path: Path) -> None:
    with ClusterBuffer(tmp_path / "all", patience=PATIENCE, refresh_every=0.0) as stores:
        buffer = CollectorBuffer(stores)
        assert buffer.write_count == 0
        start = ray.remote(num_cpus=0)(Collector).remote
        actors = [start(client, who) for who, client in enumerate(buffer.clients(2))]
        ray.get([actor.collect.remote(0) for actor in actors])
        pids = ray.get([actor.collect.remote(STEPS) for actor in actors])
        batch = buffer.sample(256)
        assert batch.shape == (256,)
        n = batch["action"]
        assert set(batch["agent", "seen"][:, 0].tolist()) == {0, 1, 2, 3}
        assert torch.equal(batch["agent", "seen"][:, 1], n)
        assert torch.equal(batch["next", "agent", "seen"], batch["agent", "seen"] + torch.tensor([0, 1]))
        assert torch.equal(batch["next", "reward"], n[:, None].float())
        assert torch.equal(batch["next", "terminated"], n[:, None] == 8)
        ray.kill(actors[0])
        psutil.wait_procs([psutil.Process(pid) for pid in pids[:1] if psutil.pid_exists(pid)], timeout=60)
        ray.get(start(buffer.client(), 2).collect.remote(3))
        stores.refresh()
        assert len(buffer) == buffer.write_count == 5 * ENVS * STEPS
        stores.destroy()
    with db.ReplayBuffer(tmp_path / "all", mode="r") as reader:
        there = [(episode.length, *reader.at(episode.steps)["obs"]["agent"]["seen"][0].tolist()) for episode in reader.episodes]
    assert sorted(there, key=lambda one: one[1:]) == [
        *((length, env, first) for env in range(4) for length, first in ((9, 0), (3, 9))),
        *((6, env, 3) for env in (4, 5)),
    ]
    assert sorted(path.name for path in (tmp_path / "all").glob("actor-*")) == ["actor-0", "actor-1"]


def test_batches_that_do_not_fit_are_refused(cluster: None, tmp_path: Path) -> None:
    with ClusterBuffer(tmp_path / "all", patience=PATIENCE) as stores:
        buffer = CollectorBuffer(stores)
        with pytest.raises(InputError, match=r"found \(2, 3, 2\)"):
            buffer.extend(collected(0, 0).reshape(2, 3, 2))
        buffer.extend(collected(0, 0))
        with pytest.raises(InputError, match=r"missing are .*action"):
            buffer.extend(collected(0, 6).exclude("action"))
        stores.refresh()
        assert buffer.write_count == len(buffer) == ENVS * STEPS
        stores.destroy()
