"""TorchRL's buffers on a `DiskStorage` draw what they draw from a storage in memory, bit for bit."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db

torchrl = pytest.importorskip("torchrl")

from tensordict import NonTensorData, TensorDict  # noqa: E402
from torchrl.data import (  # noqa: E402
    ImmutableDatasetWriter,
    LazyTensorStorage,
    ReplayBuffer,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers.samplers import RandomSampler, SamplerWithoutReplacement, SliceSampler  # noqa: E402
from torchrl.data.replay_buffers.scheduler import LinearScheduler  # noqa: E402

from diskbuffer.adapters.torchrl import DiskSampler, DiskStorage  # noqa: E402
from diskbuffer.adapters.torchrl.rows import Later  # noqa: E402
from diskbuffer.plugin import one_of  # noqa: E402
from tests.bools import bytes_of_bools, disguised  # noqa: E402
from tests.support.specimens import adopt  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:TorchRL's SliceSampler")  # what it takes is not what is tested


class Environment:
    """Trajectories of pictures, or stacks of them, and vectors, that end in every way."""

    def __init__(self, seed: int, stack: int = 1) -> None:
        self.rng, self._stack, self._number = np.random.default_rng(seed), stack, 0
        self._begin()

    def _begin(self) -> None:
        frame = self.rng.integers(0, 256, (40, 40), np.uint8)
        self._frames, self._number, self._t = [frame] * self._stack, self._number + 1, 0

    def _observation(self) -> dict[str, Any]:
        pixels = torch.from_numpy(np.stack(self._frames))
        return {"pixels": pixels if self._stack > 1 else pixels[0], "t": torch.tensor([float(self._t)])}

    def _flags(self, terminated: bool, truncated: bool) -> dict[str, Any]:
        flags = {"terminated": terminated, "truncated": truncated, "done": terminated or truncated}
        return {name: torch.tensor([value]) for name, value in flags.items()}

    def rollout(self, steps: int) -> TensorDict:
        """Go on for some steps, over as many episodes as that takes."""
        found = []
        for _ in range(steps):
            now = self._observation() | self._flags(False, False)
            self._frames = [*self._frames[1:], self.rng.integers(0, 256, (40, 40), np.uint8)]
            self._t += 1
            terminated, truncated = self.rng.random() < 0.05, self.rng.random() < 0.03
            after = self._observation() | self._flags(terminated, truncated)
            step = now | {
                "action": torch.tensor(int(self.rng.integers(4))),
                ("collector", "traj_ids"): torch.tensor(self._number),
                ("agent", "some value"): torch.from_numpy(self.rng.normal(size=3)),
                "next": after | {"reward": torch.from_numpy(self.rng.normal(size=1).astype("f4"))},
            }
            found.append(TensorDict(step, []))
            if terminated or truncated or self.rng.random() < 0.02:  # or reset from outside
                self._begin()
        return torch.stack(found)


def both(size: int, tmp_path: Path, make: Any = RandomSampler, stack: int = 1, **how: Any) -> list[TensorDictReplayBuffer]:
    """Return TorchRL's buffer and ours, with the same seeds."""
    ours = DiskStorage(size, tmp_path / "store", segment_rows=32, frame_stack=stack, **how)
    storages = [LazyTensorStorage(size, **how), ours]
    return [
        TensorDictReplayBuffer(storage=storage, sampler=make(), batch_size=16, generator=torch.Generator().manual_seed(5))
        for storage in storages
    ]


def same(one: TensorDict, other: TensorDict) -> None:
    names = [sorted(map(str, td.keys(True, True))) for td in (one, other)]
    assert names[0] == names[1]
    assert one.batch_size == other.batch_size
    for key in one.keys(True, True):
        assert one[key].dtype == other[key].dtype, key
        assert torch.equal(one[key], other[key]), key


@pytest.mark.some(1)
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("make", [RandomSampler, SamplerWithoutReplacement, lambda: SliceSampler(num_slices=4)])
def test_batches_are_the_same(stack: int, make: Any, tmp_path: Path) -> None:
    world, (theirs, ours) = Environment(stack, stack), both(150, tmp_path, make, stack)
    for n in (20, 1, 7, 64, 3, 90, 150, 31):
        steps = world.rollout(n)
        assert torch.equal(theirs.extend(steps.clone()), ours.extend(steps.clone()))
        for _ in range(3):
            same(theirs.sample(), ours.sample())
    for _ in range(20):
        step = world.rollout(1)[0]
        assert theirs.add(step.clone()) == ours.add(step.clone())
        same(theirs.sample(), ours.sample())
    same(theirs[:], ours[:].to_tensordict())
    same(theirs[3:9], ours[3:9].to_tensordict())
    assert ours[[]].batch_size == theirs[[]].batch_size
    rows = ours[:]
    for how in ({}, {"include_nested": True}, {"include_nested": True, "leaves_only": True}):
        assert set(rows.keys(**how)) == set(theirs[:].keys(**how))
    assert {type(value) for value in dict.values(rows["next"]._tensordict)} == {Later}  # keys alone read nothing
    stored = ours.storage.stored.buffer
    assert stored is not None
    assert stored.columns["obs/pixels"].shape == (40, 40)
    assert stored.frame_stack == stack


def test_environments_side_by_side(tmp_path: Path) -> None:
    worlds = [Environment(10 + n) for n in range(3)]
    theirs, ours = both(120, tmp_path, ndim=2)
    for n in (12, 5, 2, 40, 30):  # not 1, with which TorchRL fails by itself
        steps = torch.stack([world.rollout(n) for world in worlds])
        assert torch.equal(theirs.extend(steps.clone()), ours.extend(steps.clone()))
        for _ in range(3):
            same(theirs.sample(), ours.sample())
    assert len(theirs) == len(ours)
    ours.storage.close()
    again = DiskStorage(120, tmp_path / "store", ndim=2, segment_rows=32)
    same(theirs[:], again[:].to_tensordict().transpose(0, 1) if theirs[:].shape[0] == 3 else again[:].to_tensordict())


SLICES: list[dict[str, Any]] = [
    {},
    {"cache_values": True},
    {"end_key": ("next", "terminated")},  # of which there are few
    {"end_keys": [("next", "truncated"), ("next", "terminated"), "is not there"]},
    {"strict_length": False, "pad_output": True, "truncated_key": None},
    {"span": True, "traj_key": ("collector", "traj_ids")},
]


@pytest.mark.some(1)
@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("how", SLICES, ids=str)
def test_torchrls_slices_are_those_of_a_storage_in_memory(how: dict[str, Any], ndim: int, tmp_path: Path) -> None:
    lanes = [(), (3,), (2, 3)][ndim - 1]
    n_lanes = math.prod(lanes)
    worlds = [Environment(n) for n in range(n_lanes)]
    storages = [
        LazyTensorStorage(60 * n_lanes, ndim=ndim),
        DiskStorage(60 * n_lanes, tmp_path / "store", ndim=ndim, segment_rows=32),
    ]
    buffers = [
        TensorDictReplayBuffer(storage=storage, sampler=SliceSampler(slice_len=4, **how), batch_size=32, dim_extend=0)
        for storage in storages
    ]
    for n in (20, 12, 3, 25, 17, 60, 2, 40):
        steps = torch.stack([world.rollout(n) for world in worlds], 1).reshape(n, *lanes)
        cursor = (torch.arange(n) + buffers[1].writer.state_dict()["_cursor"]) % 60 if ndim > 1 else None
        for storage, buffer in zip(storages, buffers, strict=True):
            if cursor is None:
                buffer.extend(steps.clone())
            else:
                storage.set(cursor, steps.clone())
        for seed in range(3):
            for buffer in buffers:
                buffer.set_rng(torch.Generator().manual_seed(seed))
            same(buffers[0].sample(), buffers[1].sample())


def test_a_sampler_that_looks_at_every_step_is_told_of_once(tmp_path: Path) -> None:
    storage = DiskStorage(50, tmp_path / "store")
    quick = TensorDictReplayBuffer(storage=storage, sampler=DiskSampler(db.Slices(2)), batch_size=4)
    quick.extend(Environment(0).rollout(20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick.sample()
        assert len(quick[:]) == 20
    slow = TensorDictReplayBuffer(storage=storage, sampler=SliceSampler(slice_len=2), batch_size=4)
    with pytest.warns(UserWarning, match=r"DiskSampler\(diskbuffer.Slices\(length\)\)"):
        slow.sample()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slow.sample()


def test_places_are_written_to_one_after_the_other(tmp_path: Path) -> None:
    storage = DiskStorage(20, tmp_path / "store")
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
    buffer.extend(small(10))
    refused: list[Callable[[], Any]] = [
        lambda: buffer.__setitem__(3, small(1)[0]),
        lambda: buffer.__setitem__(torch.tensor([3, 4]), small(2)),
        lambda: buffer.writer.write_at(torch.tensor([3, 4]), small(2)),
        lambda: storage.set(range(11, 13), small(2)),
        lambda: storage.set(slice(0, 10), small(10)),
    ]
    for write in refused:
        with pytest.raises(db.InputError, match="place 10 is next, not places"):
            write()
    with pytest.raises(db.InputError, match="TensorDictMaxValueWriter writes in another order"):
        TensorDictReplayBuffer(storage=storage, writer=TensorDictMaxValueWriter(rank_key="number"), batch_size=4)
    assert buffer.extend(small(2, 10)).tolist() == [10, 11]
    assert buffer[:]["number"].tolist() == list(range(12))


def test_who_only_reads_has_a_writer_that_raises(tmp_path: Path) -> None:
    storage = DiskStorage(20, tmp_path / "store")
    storage.set(range(3), small(3))
    buffer = TensorDictReplayBuffer(storage=storage, writer=ImmutableDatasetWriter(), batch_size=4)
    with pytest.raises(RuntimeError):
        buffer.extend(small(2))
    assert set(buffer.sample()["number"].tolist()) <= {0, 1, 2}


def test_steps_of_lanes_that_a_kill_left_unequal_are_found(tmp_path: Path) -> None:
    """A kill may come when a step of some environments is written already: their oldest steps are behind, and stay so."""
    count = torch.arange(25)[:, None] + 1000 * torch.arange(2)
    steps = TensorDict({"x": count, "next": {"done": count % 7 == 0}}, [25, 2])
    storage = DiskStorage(40, tmp_path / "store", ndim=2, segment_rows=8)
    storage.set(range(15), steps[:15])
    values = storage.stored.known().rows(steps[15:16, :1].expand(1, 2), np.array([15]))
    storage.stored.opened.extend(**one_of(values, (slice(None), 0)), slot=[15], env=0)
    storage.close()
    storage = DiskStorage(40, tmp_path / "store", ndim=2, segment_rows=8)
    assert storage[:, 1]["x"].tolist() == [1000 + n for n in range(15)]
    assert storage[:, 0]["x"].tolist() == list(range(1, 16))
    buffer = TensorDictReplayBuffer(storage=storage, sampler=DiskSampler(db.Uniform(0)), batch_size=500, dim_extend=0)
    for first, last in ((15, 15), (15, 18), (18, 25)):
        if last > first:
            storage.set((torch.arange(first, last) % 20).tolist(), steps[first:last])
        drawn = buffer.sample()["x"].tolist()
        present = [storage[:, lane]["x"].tolist() for lane in (0, 1)]
        assert {*drawn} == {*present[0], *present[1]}


def test_a_column_that_is_changed_in_place_is_read_again(tmp_path: Path) -> None:
    storage = DiskStorage(20, tmp_path / "store")
    numbers = torch.arange(12)
    storage.set(numbers, TensorDict({"x": numbers}, [12]))
    storage[:]["x"][3] = 100
    assert storage[:]["x"].tolist() == numbers.tolist()
    kept = storage[:]["x"]
    storage.set(torch.tensor([12]), TensorDict({"x": torch.tensor([7])}, [1]))
    assert storage[:]["x"].tolist() == [*numbers.tolist(), 7]
    assert kept.tolist() == numbers.tolist()
    assert storage[:5]["x"].tolist() == [0, 1, 2, 3, 4]


def test_a_state_that_is_older_than_the_steps_leaves_the_writer_behind_them(tmp_path: Path) -> None:
    def open_it() -> Any:
        return TensorDictReplayBuffer(storage=DiskStorage(100, tmp_path / "store"), batch_size=8)

    world, first = Environment(4), open_it()
    first.extend(world.rollout(20))
    state = first.state_dict()
    first.extend(world.rollout(20))
    first.storage.close()
    again = open_it()
    for _ in range(2):
        again.load_state_dict(state)
    assert again.extend(world.rollout(5)).tolist() == [40, 41, 42, 43, 44]


def test_a_write_that_fails_leaves_the_writer_where_it_was(tmp_path: Path) -> None:
    ours = TensorDictReplayBuffer(storage=DiskStorage(50, tmp_path / "store"), batch_size=8)
    ours.extend(TensorDict({"x": torch.arange(20.0)}, [20]))
    with pytest.raises(db.InputError):
        ours.extend(TensorDict({"x": torch.arange(2)}, [2]))
    assert ours.extend(TensorDict({"x": torch.arange(2.0)}, [2])).tolist() == [20, 21]
    ours.storage.close()
    again = TensorDictReplayBuffer(storage=DiskStorage(50, tmp_path / "store"), batch_size=8)
    assert again.extend(TensorDict({"x": torch.arange(2.0)}, [2])).tolist() == [22, 23]


def test_a_pickled_storage_knows_what_was_written_since(tmp_path: Path) -> None:
    ours = TensorDictReplayBuffer(storage=DiskStorage(20, tmp_path / "store", segment_rows=16), batch_size=8)
    ours.extend(TensorDict({"x": torch.arange(20)}, [20]))
    pickled = pickle.dumps(ours.storage)
    ours.extend(TensorDict({"x": torch.arange(100, 170)}, [70]))
    copied = pickle.loads(pickled)
    assert sorted(copied.get(torch.arange(20))["x"].tolist()) == list(range(150, 170))


@pytest.mark.nightly
@pytest.mark.parametrize("stack", [1, 4])
def test_a_snapshot_is_loaded_whole(stack: int, tmp_path: Path) -> None:
    world = Environment(5, stack)
    ours, other = (
        TensorDictReplayBuffer(storage=DiskStorage(60, tmp_path / name, segment_rows=16, frame_stack=stack), batch_size=8)
        for name in ("one", "other")
    )
    for n in (50, 45):
        ours.extend(world.rollout(n))
    ours.dumps(tmp_path / "dump")
    other.extend(Environment(6, stack).rollout(30))
    for seed in range(2):
        other.loads(tmp_path / "dump")
        same(ours[:].to_tensordict(), other[:].to_tensordict())
        assert other.storage.stored.entries.stack == ours.storage.stored.entries.stack
        scans = [SliceSampler(slice_len=2)._get_stop_and_length(buffer.storage) for buffer in (ours, other)]
        assert all(torch.equal(*of) for of in zip(*scans, strict=True))
        other.extend(Environment(seed, stack).rollout(10))
    asked = TensorDictReplayBuffer(storage=DiskStorage(60, tmp_path / "asked", frame_stack=5 - stack), batch_size=8)
    asked.extend(Environment(6, 5 - stack).rollout(30))
    with pytest.raises(db.errors.SchemaError, match="asks for something else"):
        asked.loads(tmp_path / "dump")
    assert len(asked) == 30
    asked.extend(Environment(7, 5 - stack).rollout(5))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("all of it")
    with pytest.raises(db.errors.NotAStoreError):
        TensorDictReplayBuffer(storage=DiskStorage(60, tmp_path / "mine", frame_stack=stack), batch_size=8).loads(
            tmp_path / "dump"
        )
    assert (tmp_path / "mine" / "thesis").exists()
    (tmp_path / "empty").mkdir()
    empty = TensorDictReplayBuffer(storage=DiskStorage(60, tmp_path / "empty", frame_stack=stack), batch_size=8)
    empty.loads(tmp_path / "dump")
    assert len(empty) == 60
    other.storage.close()
    (tmp_path / "other").rename(tmp_path / ".other.diskbuffer-replaced")  # as a kill leaves it that comes while one is loaded
    assert len(DiskStorage(60, tmp_path / "other", frame_stack=stack)) == 60


def test_many_steps_are_sampled_as_few_are(tmp_path: Path) -> None:
    ours = TensorDictReplayBuffer(storage=DiskStorage(100, tmp_path / "store"), batch_size=5000)
    ours.extend(Environment(8).rollout(90))
    assert type(ours.sample()) is TensorDict


def test_a_buffer_goes_on_where_it_ended(tmp_path: Path) -> None:
    world = Environment(4, 4)
    theirs, ours = both(100, tmp_path, stack=4)
    for n in (30, 50, 45):
        steps = world.rollout(n)
        theirs.extend(steps.clone())
        ours.extend(steps.clone())
        ours.storage.close()
        storage = DiskStorage(100, tmp_path / "store", segment_rows=32, frame_stack=4)
        ours = TensorDictReplayBuffer(storage=storage, batch_size=16, generator=torch.Generator().manual_seed(7))
        theirs.set_rng(torch.Generator().manual_seed(7))
        assert ours.writer.state_dict()["_cursor"] == theirs.writer.state_dict()["_cursor"]
        same(theirs.sample(), ours.sample())


def test_a_pickle_and_a_state_are_where_the_steps_are(tmp_path: Path) -> None:
    _, ours = both(100, tmp_path)
    ours.extend(Environment(5).rollout(60))
    copied = pickle.loads(pickle.dumps(ours.storage))
    same(ours[:].to_tensordict(), copied[:].to_tensordict())
    state = ours.state_dict()
    assert state["_storage"] == {"path": str(tmp_path / "store"), "len": 60}
    other = TensorDictReplayBuffer(storage=DiskStorage(100, tmp_path / "other"), batch_size=16)
    other.load_state_dict(state)
    same(ours[:].to_tensordict(), other[:].to_tensordict())
    with pytest.raises(db.InputError, match="tells where its steps are"):
        other.storage.load_state_dict({})


def test_dumps_and_loads(tmp_path: Path) -> None:
    _, ours = both(100, tmp_path)
    world = Environment(6)
    ours.extend(world.rollout(60))
    ours.dumps(tmp_path / "dumped")
    before = ours[:].to_tensordict()
    ours.extend(world.rollout(70))
    other = TensorDictReplayBuffer(storage=DiskStorage(100, tmp_path / "other"), batch_size=16)
    other.loads(tmp_path / "dumped")
    same(before, other[:].to_tensordict())
    assert other.writer.state_dict()["_cursor"] == 60
    ours.dumps(tmp_path / "dumped")
    other.loads(tmp_path / "dumped")
    same(ours[:].to_tensordict(), other[:].to_tensordict())


class Killed(BaseException):
    """In place of a SIGKILL."""


def changes_until(nth: float, call: Any) -> list[str]:
    """Make a call, all of whose changes to directories fail from the nth on, as if it had been killed; return those before."""
    done, thread = list[str](), threading.get_ident()

    def noted(function: Any) -> Any:
        def call(*args: Any, **keywords: Any) -> Any:
            if threading.get_ident() == thread:
                if len(done) >= nth:
                    raise Killed
                done.append(str(args[0]))
            return function(*args, **keywords)

        return call

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        for name in ("rename", "replace", "rmdir", "unlink", "mkdir", "link"):
            patch.setattr(os, name, noted(getattr(os, name)))
        call()
    return done


@pytest.mark.nightly
def test_a_kill_while_it_dumps_leaves_the_old_snapshot_or_the_new(tmp_path: Path) -> None:
    ours, other = (
        TensorDictReplayBuffer(storage=DiskStorage(100, tmp_path / name, segment_rows=16), batch_size=8)
        for name in ("ours", "other")
    )
    ours.extend(TensorDict({"x": torch.arange(20)}, [20]))
    ours.dumps(tmp_path / "first")
    ours.extend(TensorDict({"x": torch.arange(20, 50)}, [30]))
    ours.storage.stored.buffer.flush(recompress=True)
    shutil.copytree(tmp_path / "first", tmp_path / "all")
    every = changes_until(math.inf, lambda: ours.storage.dumps(tmp_path / "all" / "storage"))
    # Those of whole snapshots; one that is being built is named within the directory that it is in.
    names = [n for n, p in enumerate(every) if Path(p).parent == tmp_path / "all" / "storage" or p.endswith(".new")]
    assert len(names) >= 4
    found = []
    for nth in sorted({*names, *(n + 1 for n in names), *range(0, len(every), len(every) // 4)}):
        dumped = tmp_path / str(nth)
        shutil.copytree(tmp_path / "first", dumped)
        assert len(changes_until(nth, lambda to=dumped: ours.storage.dumps(to / "storage"))) == min(nth, len(every))
        other.loads(dumped)
        assert other[:]["x"].tolist() in (list(range(20)), list(range(50)))
        found.append(len(other))
        ours.storage.dumps(dumped / "storage")  # the next one goes on from what was left
        assert [path.name for path in (dumped / "storage").iterdir() if not path.name.startswith(".")] == ["store"]
    assert found == sorted(found)
    assert {*found} == {20, 50}


def test_a_snapshot_that_is_not_there_is_missed_and_nothing_is_not_dumped(tmp_path: Path) -> None:
    ours = TensorDictReplayBuffer(storage=DiskStorage(100, tmp_path / "ours"), batch_size=8)
    with pytest.raises(db.InputError, match="holds no steps yet"):
        ours.dumps(tmp_path / "dumped")
    ours.extend(TensorDict({"x": torch.arange(20)}, [20]))
    ours.dumps(tmp_path / "dumped")
    shutil.rmtree(tmp_path / "dumped" / "storage" / "store")
    with pytest.raises(db.errors.NotAStoreError, match=str(tmp_path / "dumped")):
        ours.loads(tmp_path / "dumped")
    assert len(ours) == 20


def test_an_emptied_storage_is_empty_and_stays_so_once_written_to(tmp_path: Path) -> None:
    _, ours = both(50, tmp_path)
    world = Environment(7)
    ours.extend(world.rollout(30))
    ours.empty()
    assert len(ours) == 0
    steps = world.rollout(5)
    ours.extend(steps.clone())
    ours.storage.close()
    again = DiskStorage(50, tmp_path / "store")
    assert len(again) == 5
    assert torch.equal(again[:]["action"], steps["action"])


@pytest.mark.parametrize("then", ["close", "pickle"])
def test_an_emptied_storage_is_empty_where_it_goes_on(then: str, tmp_path: Path) -> None:
    ours = TensorDictReplayBuffer(storage=DiskStorage(20, tmp_path / "store"), batch_size=4)
    ours.extend(TensorDict({"x": torch.arange(9)}, [9]))
    before = ours.storage[:]
    ours.empty()
    with pytest.raises(db.InputError, match="dropped, since the storage was indexed"):
        before["x"]
    if then == "close":
        ours.storage.close()
    else:
        ours = pickle.loads(pickle.dumps(ours))
    assert len(ours) == 0
    ours.extend(TensorDict({"x": torch.arange(100, 103)}, [3]))
    assert ours[:]["x"].tolist() == [100, 101, 102]
    ours.dumps(tmp_path / "dumped")
    ours.empty()
    assert len(ours.storage.reading()) == 0
    ours.loads(tmp_path / "dumped")
    assert ours[:]["x"].tolist() == [100, 101, 102]


@pytest.mark.some(1)
@pytest.mark.parametrize("sampler", [db.Uniform(0), db.Slices(5, seed=0), db.Prioritized(seed=0)])
def test_our_samplers_draw_what_is_in_use(sampler: Any, tmp_path: Path) -> None:
    storage = DiskStorage(100, tmp_path / "store", segment_rows=32)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=DiskSampler(sampler), batch_size=20)
    world = Environment(8)
    for n in (50, 90, 40):
        buffer.extend(world.rollout(n))
        seen = set[int]()
        for _ in range(30):
            batch = buffer.sample()
            seen |= set(batch["index"].tolist())
            assert torch.equal(batch["t"], storage.get(batch["index"])["t"])
            if isinstance(sampler, db.Slices):
                t = batch["t"].reshape(4, 5)
                assert torch.equal(t, t[:, :1] + torch.arange(5))
                assert batch["next", "truncated"].reshape(4, 5)[:, -1].all()
            if isinstance(sampler, db.Prioritized):
                assert (batch["priority_weight"] > 0).all()
                buffer.update_priority(batch["index"], torch.rand(20))
        assert len(seen) > 0.8 * len(buffer)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_a_batch_with_its_errors_tells_priorities_in_the_way_of_torchrls_loops(shape: tuple[int, ...], tmp_path: Path) -> None:
    def made(place: str) -> TensorDictReplayBuffer:
        storage = DiskStorage(100, tmp_path / place)
        sampler = DiskSampler(db.Prioritized(alpha=1.0, beta=1.0, seed=0))
        return TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=20)

    def share(buffer: TensorDictReplayBuffer) -> float:
        return float(np.mean([(buffer.sample()["index"] < 6).float().mean().item() for _ in range(100)]))

    buffer = made("store")
    index = buffer.extend(Environment(8).rollout(60))
    batch = buffer[:].set("index", index)
    assert share(buffer) < 0.2
    buffer.update_tensordict_priority(batch)  # which tells nothing
    assert share(buffer) < 0.2
    buffer.update_tensordict_priority(batch.set("td_error", torch.where(index < 6, 10.0, 0.1).reshape(shape)))
    assert share(buffer) == pytest.approx(60 / 65.4, abs=0.03)
    with pytest.raises(db.InputError, match="priorit"):
        buffer.update_tensordict_priority(batch.set("td_error", torch.full((60,), torch.nan)))
    scheduler = LinearScheduler(buffer, "beta", final_value=0.5, num_steps=2)
    scheduler.step()
    assert buffer.sampler.sampler.beta == 0.75
    again = pickle.loads(pickle.dumps(buffer.sampler))
    assert again.sampler.beta == 0.75
    buffer.storage.close()
    assert share(made("store")) == pytest.approx(60 / 65.4, abs=0.03)


def test_priorities_of_sequences_are_those_of_a_plain_buffer(tmp_path: Path) -> None:
    ours = [db.Prioritized(length=4, period=1, seed=0) for _ in range(2)]
    storage = DiskStorage(100, tmp_path / "store")
    buffer = TensorDictReplayBuffer(storage=storage, sampler=DiskSampler(ours[0]), batch_size=4)
    buffer.extend(Environment(8).rollout(40))
    index, errors = buffer.sample()["index"], torch.tensor([1.0, 7.0, 9.0, 9.0])
    buffer.update_priority(index, errors)
    steps = storage.stored.steps(index)
    stored = storage.stored.opened.at(steps, columns=["priority"], numpy=True)["priority"]
    shutil.copytree(tmp_path / "store", tmp_path / "plain")
    adopt(tmp_path / "plain")
    with db.ReplayBuffer(tmp_path / "plain", mode="r+") as plain:
        plain.draw(1, ours[1])
        ours[1].update(steps[None], errors[None])
        assert plain.at(steps, columns=["priority"], numpy=True)["priority"].tolist() == stored.tolist()
    assert stored[0] > 1
    with pytest.raises(db.InputError, match="whole sequences of 4 steps"):
        buffer.update_priority(index[:3], errors[:3])


def test_a_step_without_an_index_gets_that_of_its_place(tmp_path: Path) -> None:
    storage = DiskStorage(30, tmp_path / "store")
    steps = Environment(9).rollout(3)
    storage.set(torch.arange(2), steps[:2].set("index", torch.arange(2)))
    storage.set(2, steps[2].clone())
    assert storage[2]["index"].item() == 2


def test_a_state_of_nothing_is_of_what_is_at_its_path_by_now(tmp_path: Path) -> None:
    empty, ours = DiskStorage(30, tmp_path / "empty"), DiskStorage(30, tmp_path / "ours")
    state = empty.state_dict()
    for storage, n in ((empty, 7), (ours, 9)):
        storage.set(torch.arange(n), Environment(9).rollout(n).set("index", torch.arange(n)))
    empty.flush()
    ours.load_state_dict(state)
    assert len(ours) == 7


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store.replaced").mkdir()
    (tmp_path / "store.replaced" / "thesis").touch()
    storage = DiskStorage(30, tmp_path / "store")
    storage.set(torch.arange(3), Environment(9).rollout(3).set("index", torch.arange(3)))
    DiskStorage(30, tmp_path / "store")
    assert (tmp_path / "store.replaced" / "thesis").exists()


def test_misuse_is_told(tmp_path: Path) -> None:
    with pytest.raises(db.InputError, match="steps, whole sequences or windows"):
        DiskSampler(db.Slices(4, crossing=True))
    with pytest.raises(db.InputError, match=r"such as diskbuffer\.Uniform\(\), found 4"):
        DiskSampler(4)  # type: ignore[arg-type]
    flag = TensorDict({"x": torch.zeros(3), "next": {"reward": torch.ones(3, dtype=torch.bool)}}, [3])
    with pytest.raises(db.InputError, match="a flag cannot be stored"):
        DiskStorage(5, tmp_path / "flag").set(torch.arange(3), flag)
    storage = DiskStorage(50, tmp_path / "store")
    with pytest.raises(RuntimeError, match="non-initialized"):
        storage.get(0)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
    steps = Environment(9).rollout(20)
    buffer.extend(steps.clone())
    with pytest.raises(db.InputError, match=r"same entries of every step.*extra"):
        buffer.extend(steps.clone().set("extra", torch.zeros(20)))
    with pytest.raises(db.InputError, match=r"action.*float32"):
        buffer.extend(steps.clone().set("action", torch.zeros(20)))
    with pytest.raises(db.InputError, match="in place"):
        buffer.set_("action", torch.zeros(20, dtype=torch.int64))
    with pytest.raises(db.errors.SchemaError, match=r"holds up to 50 steps.*DiskStorage\(50, ndim=1\)"):
        DiskStorage(60, tmp_path / "store")
    with pytest.raises(db.errors.SchemaError, match="bfloat16"):
        DiskStorage(5, tmp_path / "other").set(0, TensorDict({"x": torch.zeros(3, dtype=torch.bfloat16)}, []))
    other = DiskStorage(50, tmp_path / "store")
    assert len(other) == 20
    with pytest.raises(db.LockedError):
        other.set(torch.arange(1), steps[:1].set("index", torch.zeros(1, dtype=torch.int64)))
    with pytest.raises(db.InputError, match="multiple"):
        TensorDictReplayBuffer(storage=storage, sampler=DiskSampler(db.Slices(3)), batch_size=4).sample()
    assert len(buffer) == 20


KILLED = """
import sys, torch
sys.path.insert(0, {tests!r})
from test_torchrl import Environment, DiskStorage, TensorDictReplayBuffer
buffer = TensorDictReplayBuffer(storage=DiskStorage(300, {path!r}, segment_rows=32), batch_size=16)
world = Environment(11, 4)
while True:
    buffer.extend(world.rollout(10))
    print(buffer.writer._write_count, flush=True)
"""


def test_steps_that_another_wrote_meanwhile_are_not_written_over(tmp_path: Path) -> None:
    def steps(first: int) -> TensorDict:
        return TensorDict({"obs": torch.arange(first, first + 5), "done": torch.zeros(5, 1, dtype=torch.bool)}, [5])

    unaware, first = (ReplayBuffer(storage=DiskStorage(50, tmp_path / "store")) for _ in range(2))
    first.extend(steps(0))
    first.storage.close()
    with pytest.raises(db.InputError, match="write again"):
        unaware.extend(steps(10))
    unaware.storage.close()
    one, other = (ReplayBuffer(storage=DiskStorage(50, tmp_path / "store")) for _ in range(2))
    other.extend(steps(5))
    other.storage.close()
    with pytest.raises(db.InputError, match="write again"):
        one.extend(steps(10))
    assert one.extend(steps(10)).tolist() == [10, 11, 12, 13, 14]
    assert one[:]["obs"].tolist() == list(range(15))
    one.storage.close()


@pytest.mark.nightly
def test_a_kill_loses_no_step(tmp_path: Path) -> None:
    script = KILLED.format(tests=str(Path(__file__).parent), path=str(tmp_path / "store"))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = 0
        while told < 450:
            told = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        told = max([told, *map(int, process.stdout.read().split())])
    world = Environment(11, 4)
    everything: Any = torch.cat([world.rollout(10) for _ in range(told // 10 + 1)])
    storage = DiskStorage(300, tmp_path / "store", segment_rows=32)
    assert len(storage) == 300
    count = (storage.stored.ring.next - told) % 300 + told  # of the call that was killed, some may be there
    assert told <= count <= told + 10
    expected: Any = everything[count - 300 : count]
    found = storage[:].to_tensordict()[torch.arange(count - 300, count) % 300]
    for key in ("pixels", ("next", "pixels"), "action", ("next", "reward"), ("next", "done")):
        assert torch.equal(found[key], expected[key])


# What stays right when something goes wrong


def test_a_write_that_fails_takes_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, expected = Environment(20), list[Any]()
    buffer = TensorDictReplayBuffer(storage=DiskStorage(100, tmp_path / "store", segment_rows=16), batch_size=4)
    real = db.ReplayBuffer.extend

    def full(self: Any, *args: Any, **kwargs: Any) -> int:
        raise OSError(28, "No space left on device")

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> int:
        real(self, *args, **kwargs)
        raise KeyboardInterrupt

    for turn in range(9):
        steps = world.rollout(9)
        if turn % 3 == 0:
            buffer.extend(steps.clone())
            expected.append(steps)
            with pytest.raises(db.InputError, match="float32"):
                buffer.extend(steps.clone().set("action", torch.zeros(9)))
        elif turn % 3 == 1:
            with monkeypatch.context() as patch:
                patch.setattr(db.ReplayBuffer, "extend", full)
                with pytest.raises(OSError, match="space"):
                    buffer.extend(steps.clone())
        else:
            with monkeypatch.context() as patch:
                patch.setattr(db.ReplayBuffer, "extend", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    buffer.extend(steps.clone())
            expected.append(steps)  # it had been written
        actions = torch.cat([some["action"] for some in expected])
        assert torch.equal(buffer[:]["action"], actions)
        assert buffer.writer.state_dict()["_cursor"] == len(actions)
    buffer.storage.close()
    assert torch.equal(DiskStorage(100, tmp_path / "store", segment_rows=16)[:]["action"], actions)


def test_a_storage_that_was_opened_again_is_emptied(tmp_path: Path) -> None:
    world, storage = Environment(21), DiskStorage(50, tmp_path / "store")
    TensorDictReplayBuffer(storage=storage).extend(world.rollout(30))
    storage.close()
    again = TensorDictReplayBuffer(storage=DiskStorage(50, tmp_path / "store"))
    again.empty()
    steps = world.rollout(5)
    again.extend(steps.clone())
    assert len(again) == 5
    again.storage.close()
    assert torch.equal(DiskStorage(50, tmp_path / "store")[:]["action"], steps["action"])


def test_shapes_are_not_guessed(tmp_path: Path) -> None:
    storage = DiskStorage(50, tmp_path / "store")
    vectors = torch.arange(20 * 4 * 7.0).reshape(20, 4, 7)
    data = TensorDict({"stack": vectors, "next": {"stack": vectors + 1}}, [20])
    storage.set(torch.arange(20), data)
    storage.close()
    again = DiskStorage(50, tmp_path / "store")
    assert torch.equal(again.get(torch.arange(20))["stack"], vectors)
    with pytest.raises(db.InputError, match="shape"):
        again.set(torch.arange(20), TensorDict({"stack": vectors.mT, "next": {"stack": vectors.mT}}, [20]))


def test_a_slice_that_was_taken_stays_as_it_was(tmp_path: Path) -> None:
    storage = DiskStorage(20, tmp_path / "store")
    storage.set(torch.arange(20), TensorDict({"x": torch.arange(20), "y": torch.arange(20)}, [20]))
    taken = storage[:]
    storage.set(torch.arange(2), TensorDict({"x": torch.arange(2) + 100, "y": torch.arange(2) + 100}, [2]))
    assert torch.equal(taken["x"], torch.arange(20))
    assert torch.equal(storage[:].exclude("y")["x"][2:], torch.arange(2, 20))
    assert torch.equal(storage[:].select("x")["x"][2:], torch.arange(2, 20))


def test_priorities_of_a_storage_that_was_opened_again(tmp_path: Path) -> None:
    storage = DiskStorage(50, tmp_path / "store")
    with pytest.raises(db.errors.EmptyBufferError):
        TensorDictReplayBuffer(storage=storage, sampler=DiskSampler(db.Uniform()), batch_size=4).sample()
    TensorDictReplayBuffer(storage=storage).extend(Environment(22).rollout(30))
    storage.close()
    again = DiskStorage(50, tmp_path / "store")
    buffer = TensorDictReplayBuffer(storage=again, sampler=DiskSampler(db.Prioritized(seed=0)), batch_size=4)
    assert (buffer.sample()["priority_weight"] > 0).all()


def losses_of_dqn(storage: Any, steps: int) -> list[float]:
    """Have TorchRL's DQN learn CartPole; return its losses."""
    from tensordict.nn import TensorDictSequential
    from torchrl.collectors import Collector
    from torchrl.envs.libs.gym import GymEnv
    from torchrl.modules import MLP, EGreedyModule, QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    torch.manual_seed(0)
    env: Any = GymEnv("CartPole-v1", categorical_action_encoding=True)
    env.set_seed(0)
    actor = QValueActor(MLP(in_features=4, out_features=2, num_cells=[32]), spec=env.action_spec, in_keys=["observation"])
    explore = EGreedyModule(spec=env.action_spec, eps_init=0.3, eps_end=0.1, annealing_num_steps=1000)
    policy = TensorDictSequential(actor, explore)
    loss_module = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
    loss_module.make_value_estimator(gamma=0.99)
    update, optim = SoftUpdate(loss_module, eps=0.95), torch.optim.Adam(loss_module.parameters(), 1e-3)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=32, generator=torch.Generator().manual_seed(0))
    losses = []
    for data in Collector(env, policy, frames_per_batch=8, total_frames=steps):
        buffer.extend(data.reshape(-1))
        loss = loss_module(buffer.sample())["loss"]
        optim.zero_grad()
        loss.backward()
        optim.step()
        update.step()
        explore.step(8)
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # of TorchRL's own
def test_losses_of_dqn_are_identical(tmp_path: Path) -> None:
    capacity, steps = 1000, 2000  # which goes around
    theirs = losses_of_dqn(LazyTensorStorage(capacity), steps)
    ours = losses_of_dqn(DiskStorage(capacity, tmp_path / "store"), steps)
    assert len(set(theirs)) > 300 * steps // 4000
    assert theirs == ours


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64])
def test_pixels_may_be_missing_in_stacks(dtype: torch.dtype, tmp_path: Path) -> None:
    frames = torch.rand(44, 12, 11).to(dtype)
    frames[:, 3:5, 2:9] = torch.nan  # as a depth camera has them
    first = torch.cat([frames[:1].expand(3, -1, -1), frames])
    stacks = torch.stack([first[n : n + 4] for n in range(41)])
    storage = DiskStorage(60, tmp_path / "store", frame_stack=4)
    data = TensorDict({"depth": stacks[:-1], "next": {"depth": stacks[1:], "done": torch.zeros(40, 1, dtype=torch.bool)}}, [40])
    storage.set(torch.arange(40), data)
    assert storage.reading().columns["obs/depth"].shape == (12, 11)
    found = storage.get(torch.arange(40))
    for key in ("depth", ("next", "depth")):
        assert found[key].numpy().tobytes() == data[key].numpy().tobytes()


def test_frame_stack_is_asked_for_where_it_is_worth_it_and_refused_where_it_cannot_be(tmp_path: Path) -> None:
    pixels = torch.randint(0, 255, (3, 4, 40, 40), dtype=torch.uint8)
    with pytest.warns(UserWarning, match=r"\(4, 40, 40\) look like pictures that are stacked.*frame_stack="):
        DiskStorage(9, tmp_path / "whole").set(range(3), TensorDict({"o": pixels, "next": {"o": pixels}}, [3]))
    with pytest.raises(db.errors.StackError, match="not rolling stacks of 4 frames; leave frame_stack= out"):
        DiskStorage(9, tmp_path / "other", frame_stack=4).set(range(3), TensorDict({"o": pixels, "next": {"o": pixels}}, [3]))
    vectors = torch.zeros(3, 4, 7)
    for stack, values in ((4, vectors), (3, pixels), (2, torch.zeros(3, 5))):
        storage = DiskStorage(9, tmp_path / "other", frame_stack=stack)
        with pytest.raises(db.InputError, match=f"frame_stack={stack} is of pictures"):
            storage.set(range(3), TensorDict({"o": values, "next": {"o": values}}, [3]))
    assert not (tmp_path / "other").exists()
    with pytest.raises(db.errors.SchemaError, match="give frame_stack=1"):
        DiskStorage(9, tmp_path / "whole", frame_stack=4)


def test_changes_in_place_raise_or_stay_in_the_copy(tmp_path: Path) -> None:
    ours = TensorDictReplayBuffer(storage=DiskStorage(20, tmp_path / "store"), batch_size=4)
    ours.extend(TensorDict({"x": torch.arange(9.0), "next": {"y": torch.arange(9.0)}}, [9]))
    found = ours[:]
    calls: list[Any] = [
        lambda: found.mul_(2),
        lambda: found["next"].add_(1),
        lambda: found.exp_(),
        lambda: found.set_("x", torch.zeros(9)),
        lambda: found.update_({"x": torch.zeros(9)}),
        lambda: found.__iadd__(1),
        lambda: found.__setitem__(slice(0, 2), found[:2]),
        lambda: ours.set_("x", torch.zeros(9)),
        lambda: ours.set_at_("x", torch.zeros(2), [0, 1]),
        lambda: ours.update_({"x": torch.zeros(9)}),
    ]
    for call in calls:
        with pytest.raises(db.InputError, match="in place"):
            call()
    found["x"] *= 2
    assert found["x"].tolist() == (2 * torch.arange(9.0)).tolist()
    assert ours[:]["x"].tolist() == list(range(9))


def extend_elsewhere(buffer: Any, told: Any) -> None:
    """In a process of its own: sample, and try to extend."""
    told.put(sorted(set(buffer.sample(200)["x"].tolist())))
    try:
        buffer.extend(TensorDict({"x": torch.arange(100, 103)}, [3]))
    except db.InputError as error:
        told.put(str(error))


@pytest.mark.nightly
def test_a_buffer_that_is_shared_has_one_writer(tmp_path: Path) -> None:
    ours = TensorDictReplayBuffer(storage=DiskStorage(20, tmp_path / "store"), batch_size=4)
    ours.extend(TensorDict({"x": torch.arange(9)}, [9]))
    for close in (False, True):
        if close:  # nobody has the writer's lock
            ours.storage.close()
        context = multiprocessing.get_context("spawn")
        told = context.Queue()
        process = context.Process(target=extend_elsewhere, args=(ours, told))
        process.start()
        known = 12 if close else 9
        assert told.get(timeout=100) == list(range(known))
        assert "Several writers" in told.get(timeout=100)
        process.join()
        assert ours.extend(TensorDict({"x": torch.arange(known, known + 3)}, [3])).tolist() == [known, known + 1, known + 2]
        assert ours[:]["x"].tolist() == list(range(known + 3))


def small(n: int, first: int = 0, shape: tuple[int, ...] = ()) -> TensorDict:
    numbers = torch.arange(first, first + n).reshape(-1, *(1,) * len(shape)).expand(n, *shape)
    return TensorDict({"number": numbers}, numbers.shape)


def test_a_storage_is_saved_and_loaded_by_other_names_of_dumps_and_loads(tmp_path: Path) -> None:
    storages = [DiskStorage(20, tmp_path / name) for name in ("one", "other")]
    for n, storage in enumerate(storages):
        storage.set(range(8 - n), small(8 - n, 10 * n))
    storages[0].save(tmp_path / "saved")
    storages[1].load(tmp_path / "saved")
    assert torch.equal(storages[1][:]["number"], torch.arange(8))
    assert storages[1].stored.path == tmp_path / "other"
    for storage in storages:
        storage.close()


def test_a_list_that_cannot_be_stacked_leaves_the_writer_where_it_was(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=DiskStorage(20, tmp_path / "store"), batch_size=4)
    buffer.extend(small(4))
    with pytest.raises((RuntimeError, KeyError)):  # TorchRL's
        buffer.extend([small(1)[0], TensorDict({"another": torch.tensor(1)}, [])])
    buffer.extend(small(2, 4))
    assert torch.equal(buffer[:]["number"], torch.arange(6))
    buffer.storage.close()


def test_no_steps_change_nothing_and_do_not_make_a_store(tmp_path: Path) -> None:
    buffer = TensorDictReplayBuffer(storage=DiskStorage(20, tmp_path / "store"), batch_size=4)
    with pytest.raises(db.InputError, match="no step was given"):
        buffer.extend(small(0))
    assert not (tmp_path / "store").exists()
    buffer.extend(small(4))
    assert len(buffer.extend(small(0))) == 0
    assert len(buffer) == 4
    buffer.extend(small(2, 4))
    assert torch.equal(buffer[:]["number"], torch.arange(6))
    buffer.storage.close()


def test_a_storage_that_was_closed_reads_what_others_wrote_since(tmp_path: Path) -> None:
    first = DiskStorage(20, tmp_path / "store")
    first.set(range(15), small(15))
    first.close()
    other = DiskStorage(20, tmp_path / "store")
    buffer = ReplayBuffer(storage=other, batch_size=4)
    for n in range(15, 60, 5):
        buffer.extend(small(5, n))
    other.close()
    revision = first._mutation_revision
    assert torch.equal(first[torch.arange(15)]["number"], torch.arange(40, 55))
    assert len(first) == 20
    assert first._mutation_revision > revision
    assert first._last_cursor == other._last_cursor
    first.close()


def test_a_storage_of_three_dimensions_goes_on_after_a_refused_write(tmp_path: Path) -> None:
    storage = DiskStorage(24, tmp_path / "store", ndim=3)
    storage.set(range(2), small(2, 0, (2, 3)))
    with pytest.raises(db.InputError, match="missing are"):
        storage.set(range(2, 3), small(1, 2, (2, 3)).rename_key_("number", "another"))
    storage.set(range(2, 4), small(2, 2, (2, 3)))
    assert torch.equal(storage[:, 1, 2]["number"], torch.arange(4))
    storage.close()
    assert torch.equal(storage[:, 0, 1]["number"], torch.arange(4))
    storage.close()
    with pytest.raises(db.InputError, match="cannot be opened again"):
        DiskStorage(24, tmp_path / "store", ndim=3)


def test_true_is_one_byte_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def bools(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.from_numpy(rng.random(shape) < 0.3)

    def steps(n: int) -> TensorDict:
        after = {"observation": torch.zeros(n, 2), "seen": bools((n, 3)), "reward": torch.zeros(n, 1)}
        after |= {"terminated": bools((n, 1)), "truncated": bools((n, 1))}
        now = {"observation": torch.zeros(n, 2), "seen": bools((n, 3)), "action": bools((n,)), "mask": bools((n, 2))}
        after["done"] = after["terminated"] | after["truncated"]
        return TensorDict(now | {"next": TensorDict(after, [n])}, [n])

    storages = [DiskStorage(200, tmp_path / name, segment_rows=32) for name in ("clean", "disguised")]
    buffers = [ReplayBuffer(storage=storage, batch_size=4) for storage in storages]
    for n in (10, 10, 1, 30):
        given = steps(n)
        other = given.apply(lambda t: torch.from_numpy(disguised(t.numpy(), rng)) if t.dtype == torch.bool else t)
        for buffer, data in zip(buffers, (given, other), strict=True):
            buffer.extend(data) if n > 1 else buffer.add(data[0])
    same(buffers[0][:].to_tensordict(), buffers[1][:].to_tensordict())
    for storage in storages:
        storage.close()
    assert bytes_of_bools(tmp_path / "disguised") == {0, 1}


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", ["random", "slices", "slices of the store", "by priority"])
def test_sampling_can_be_compiled(sampler: str, tmp_path: Path) -> None:
    make: dict[str, Callable[[], Any]] = {
        "random": RandomSampler,
        "slices": lambda: SliceSampler(num_slices=2, traj_key="trajectory"),
        "slices of the store": lambda: DiskSampler(db.Slices(4, seed=0)),
        "by priority": lambda: DiskSampler(db.Prioritized(seed=0)),
    }

    def steps(first: int, count: int) -> TensorDict:
        numbers = torch.arange(first, first + count)
        now, after = ({"x": at[:, None] + torch.zeros(3)} for at in (numbers, numbers + 1))
        ends = {"done": torch.zeros(count, 1, dtype=torch.bool), "reward": numbers[:, None].float()}
        return TensorDict(now | {"trajectory": torch.zeros_like(numbers), "next": after | ends}, [count])

    torch._dynamo.reset()
    buffer = TensorDictReplayBuffer(storage=DiskStorage(100, tmp_path / "store"), sampler=make[sampler](), batch_size=8)
    buffer.extend(steps(0, 50))
    sample = torch.compile(lambda: (batch := buffer.sample(), batch["x"].sum(dim=1) * 2), backend="eager")
    for first in (50, 57):
        batch, found = sample()
        assert torch.equal(found, 6 * batch["next", "reward"][:, 0])
        assert torch.equal(batch["x"] + 1, batch["next", "x"])
        buffer.extend(steps(first, 7))
    assert len(buffer) == 64
    buffer.storage.close()


def test_what_tensordicts_hold_beside_tensors_is_refused_by_name(tmp_path: Path) -> None:
    ours = TensorDictReplayBuffer(storage=DiskStorage(20, tmp_path / "store"), batch_size=4)
    for value in ("push", {"a": 1}, 3.5, None, ["a"]):
        steps = TensorDict({"x": torch.arange(3), "n": {"task": NonTensorData(value, batch_size=[3])}}, [3])
        with pytest.raises(db.InputError, match=r"expected tensors, found a \w+ at \('n', 'task'\); leave it out"):
            ours.extend(steps)
        assert len(ours) == 0
    ours.extend(TensorDict({"x": torch.arange(5)}, [5]))
    assert ours[:]["x"].tolist() == list(range(5))
    ours.storage.close()


@pytest.mark.parametrize("step", [{"x": torch.zeros(3)}, torch.zeros(3), "push", []])
def test_what_is_no_tensordict_is_refused(step: Any, tmp_path: Path) -> None:
    storage = DiskStorage(100, tmp_path / "store")
    buffer = ReplayBuffer(storage=storage, batch_size=8)
    for add in (lambda: buffer.add(step), lambda: buffer.extend([step, step]), lambda: storage.set(0, step)):
        with pytest.raises(db.InputError, match="expected tensordicts, found"):
            add()
    assert len(buffer) == 0
    buffer.extend([small(1)[0], small(1, 1)[0]])
    assert buffer[:]["number"].tolist() == [0, 1]
    storage.close()
