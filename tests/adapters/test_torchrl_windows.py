"""Windows through TorchRL's buffers: of any draw, rows around the step whose place the index names."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import ReplayBuffer, ReplayBufferEnsemble, TensorDictReplayBuffer

import diskbuffer as db
from diskbuffer.adapters.torchrl import DiskSampler, DiskStorage

LENGTH, AROUND = 20, torch.arange(-1, 4)  # of an episode; offsets
OFFSETS = {"obs/pixels": (-1, 0), "action": AROUND.tolist(), "reward": (0,)}


def steps(first: int, n: int, lanes: int) -> TensorDict:
    """Return steps of which every entry tells which it is: (n,), or (lanes, n)."""
    number = torch.arange(first, first + n)
    number = number if lanes == 1 else number + 1000 * torch.arange(lanes)[:, None]
    shape, ends = number.shape, (number % LENGTH == LENGTH - 1)[..., None]

    def pictures(of: torch.Tensor) -> torch.Tensor:
        return (of % 251).to(torch.uint8)[..., None, None].expand(*shape, 40, 40).contiguous()

    after = {"pixels": pictures(number + 1), "reward": number.float()[..., None], "done": ends, "terminated": ends.clone()}
    return TensorDict({"pixels": pictures(number), "action": number.clone(), "next": TensorDict(after, shape)}, shape)


def check(batch: Any, storage: DiskStorage, index: Any) -> None:
    """Compare a batch with what its steps are by number."""
    number = storage.get(index)["action"]
    expected = number[:, None] + AROUND
    within = expected // LENGTH == (number // LENGTH)[:, None]
    mask = batch["mask", "action"] if "mask" in batch else torch.ones_like(within)
    assert torch.equal(mask, within)
    assert torch.equal(batch["action"][mask], expected[mask])
    assert torch.equal(batch["action"].clamp(min=0) // LENGTH, (number // LENGTH)[:, None].expand_as(expected))  # the nearest row
    assert torch.equal(batch["pixels"][:, 1, 0, 0].long(), number % 251)
    assert torch.equal(batch["next", "reward"][:, 0, 0].long(), number)


@pytest.mark.parametrize("padding", [None, "edge"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_batch_has_what_is_around_the_steps_of_its_index(padding: Any, lanes: int, tmp_path: Path) -> None:
    storage = DiskStorage(400, tmp_path / "store", ndim=1 if lanes == 1 else 2, segment_rows=64)
    sampler = DiskSampler(db.Windows(OFFSETS, seed=0, padding=padding))
    how: dict[str, Any] = {"storage": storage, "sampler": sampler, "batch_size": 32, "dim_extend": lanes - 1}
    buffer = TensorDictReplayBuffer(**how)
    for first in range(0, 1000, 100):  # of which the ring forgets most
        buffer.extend(steps(first, 100, lanes))
        buffer.sample()
    for each in (buffer, TensorDictReplayBuffer(**how, prefetch=2)):
        for _ in range(5):
            batch = each.sample()
            check(batch, storage, batch["index"] if lanes == 1 else tuple(batch["index"].unbind(-1)))
    plain, info = ReplayBuffer(**how).sample(return_info=True)
    check(plain, storage, info["index"])
    storage.close()


def test_windows_are_drawn_by_priority_and_refused_of_stacks(tmp_path: Path) -> None:
    sampler = DiskSampler(db.Prioritized(seed=0, windows=db.Windows(OFFSETS, padding="edge")))
    buffer = TensorDictReplayBuffer(storage=DiskStorage(400, tmp_path / "store"), sampler=sampler, batch_size=16)
    buffer.extend(steps(0, 100, 1))
    buffer.sample()
    buffer.update_priority(torch.arange(100), torch.where(torch.arange(100) == 30, 1e6, 1e-6))
    batch = buffer.sample()
    assert (batch["index"] == 30).all()  # hardly any other, with that priority
    assert batch["priority_weight"].shape == (16,)
    check(batch, buffer.storage, batch["index"])
    sampler = DiskSampler(db.Windows(OFFSETS))
    stacked = TensorDictReplayBuffer(storage=DiskStorage(400, tmp_path / "other", frame_stack=4), sampler=sampler, batch_size=4)
    frames = torch.arange(4, dtype=torch.uint8)[:, None, None].expand(4, 40, 40)
    ends = {"reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)}
    stacked.add(TensorDict({"pixels": frames, "action": torch.tensor(0), "next": {"pixels": frames + 1, **ends}}, []))
    with pytest.raises(db.InputError, match="windows are of single frames"):
        stacked.sample()
    for each in (buffer, stacked):
        each.storage.close()


@pytest.mark.parametrize("from_all", [False, True])
def test_an_ensemble_has_windows_of_each_of_its_buffers(from_all: bool, tmp_path: Path) -> None:
    buffers = []
    for n in range(2):
        sampler = DiskSampler(db.Windows(OFFSETS, seed=n, padding="edge"))
        buffers.append(TensorDictReplayBuffer(storage=DiskStorage(400, tmp_path / f"{n}"), sampler=sampler, batch_size=8))
        buffers[-1].extend(steps(0, 100, 1))
    how: dict[str, Any] = {"sample_from_all": True} if from_all else {"num_buffer_sampled": 3}
    ensemble = ReplayBufferEnsemble(*buffers, batch_size=24, **how)
    for _ in range(5):
        batch = ensemble.sample()
        for part in batch.unbind(0):
            assert part["action"].shape[1:] == (len(AROUND),)
            check(part, buffers[0].storage, part["index", "index"])  # all buffers have the same steps
    for buffer in buffers:
        buffer.storage.close()


def test_what_was_drawn_and_not_asked_for_is_in_nobodys_way(tmp_path: Path) -> None:
    storage = DiskStorage(400, tmp_path / "store")
    sampler = DiskSampler(db.Windows(OFFSETS, seed=0, padding="edge"))
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=8)
    buffer.extend(steps(0, 100, 1))
    index, _ = sampler.sample(storage, 8)
    assert storage.get(slice(0, 2))["action"].tolist() == [0, 1]
    assert storage.get(index)["action"].shape == (8, len(AROUND))
    assert storage.get(index)["action"].shape == (8,)
    sampler.sample(storage, 8)
    copied = pickle.loads(pickle.dumps(storage))
    assert copied.get(torch.tensor([3]))["action"].tolist() == [3]
    for each in (copied, storage):
        each.close()


def test_an_index_names_the_steps_of_a_batch_though_others_take_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = DiskStorage(400, tmp_path / "store")
    sampler = DiskSampler(db.Windows(OFFSETS, seed=0, padding="edge"))
    buffer, places = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=8), storage.places
    buffer.extend(steps(0, 100, 1))

    def and_then(asked: Any) -> Any:
        found = places(asked)
        buffer.extend(steps(100, 400, 1))
        return found

    monkeypatch.setattr(storage, "places", and_then)
    index, _ = sampler.sample(storage, 8)
    assert (index >= 0).all()
    storage.close()
