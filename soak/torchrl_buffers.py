"""TorchRL's buffers on a `DiskStorage` and on its own storage in memory, given the same: every batch must be the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection
from torchrl.data import LazyTensorStorage, PrioritizedSampler, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import (
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)

from diskbuffer.adapters.torchrl import DiskStorage
from soak.random_values import Pair, Values, World, random_shape, same_bits

_KEYS: tuple[Any, ...] = (
    *("pixels", "state", "obs", "reward", "slot", "tag", "steps", "x_61", "_own", "a value", "a/b", "\u00e4"),
    *(("agents", "one"), ("agents", "two", "value"), ("collector", "traj_ids"), ("next_", "next")),
)
_DONE = ("next", "done")
_CALLS = {"extend": 6, "add": 3, "sample": 8, "index": 3, "all": 2, "reopen": 1.5, "pickle": 0.7, "empty": 0.4, "dump": 0.5}


class Rollouts:
    """Steps of an environment, or of nothing in particular.

    `entries` tell of each entry what its values are, and whether it is there below "next", too; `flags`, which of "done",
    "terminated" and "truncated" are told. Where there are stacks of frames, they are pictures.
    """

    def __init__(self, rng: np.random.Generator, entries: dict[Any, tuple[Values, bool]], stack: int, flags: list[str]) -> None:
        paired = {key: values for key, (values, paired) in entries.items() if paired}
        self._rng, self._flags = rng, flags
        self._others = {key: values for key, values in entries.items() if key not in paired}
        self._world = World(rng, lambda: {key: values() for key, values in paired.items()}, stack, jumps=0.03)

    def step(self) -> Any:
        """Take a step."""
        number = self._world.episode
        now, after, over = self._world.step()
        ending = {"done": over, "terminated": False, "truncated": False}
        ending[str(self._rng.choice(["terminated", "truncated"]))] = over
        step: dict[Any, Any] = {key: torch.from_numpy(np.asarray(value)) for key, value in now.items()}
        step |= {key: torch.from_numpy(values()) for key, (values, _) in self._others.items()}
        step |= {("next", *_path(key)): torch.from_numpy(np.asarray(value)) for key, value in after.items()}
        step |= {name: torch.tensor([False]) for name in self._flags}
        step |= {("next", name): torch.tensor([ending[name]]) for name in self._flags}
        step.setdefault(("next", "reward"), torch.tensor([self._world.reward()]))  # or it is observed: what the next starts with
        step["episode"] = torch.tensor(number)
        return TensorDict({key: value.clone() for key, value in step.items()}, [])

    def rollout(self, n: int) -> Any:
        """Take n steps."""
        return torch.stack([self.step() for _ in range(n)])


def _path(key: Any) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else (key,)


def _same(one: Any, other: Any, where: str) -> None:
    """Require the same of what two buffers returned."""
    assert one.batch_size == other.batch_size, f"{where}: {one.batch_size}, {other.batch_size}"
    keys = [sorted(td.keys(True, True), key=str) for td in (one, other)]
    assert keys[0] == keys[1], f"{where}: {keys}"
    for key in keys[0]:
        values = [each[key].numpy() for each in (one, other)]
        if ("next", *_path(key)) in keys[0] and values[0].dtype.kind == "f":  # stored once where the two are equal: 0.0 is -0.0
            values = [each + 0 for each in values]
        same_bits(values[0], values[1], f"{where}, {key}")


def _has_priorities() -> bool:
    try:
        PrioritizedSampler(2, 0.6, 0.4)
    except RuntimeError:  # its compiled trees do not load with every version of PyTorch
        return False
    return True


class Both(Pair):
    """A buffer of TorchRL's on its own storage, one on ours, and the world that both are told about."""

    def __init__(self, path: Path, rng: np.random.Generator) -> None:
        super().__init__(path, rng)
        self._dumps = 0
        self.lanes = int(rng.choice([2, 3, 4, 64], p=[0.4, 0.3, 0.2, 0.1])) if rng.random() < 0.3 else 0
        self._stack = int(rng.choice([1, 1, 2, 4]))
        flags = [name for name in ("done", "terminated", "truncated") if name == "done" or rng.random() < 0.7]
        chosen = rng.choice(len(_KEYS), int(rng.integers(1, 7)), replace=False)
        entries = {_KEYS[n]: (Values(rng, random_shape(rng)), bool(rng.random() < 0.6)) for n in chosen}
        if self._stack > 1:
            entries["picture"] = (Values(rng, (self._stack, 12, 11), "uint8", few=False), True)
            entries = {k: v for k, v in entries.items() if k == "picture" or not (v[1] and len(v[0].shape) >= 2)}
        self._worlds = [Rollouts(rng, entries, self._stack, flags) for _ in range(max(self.lanes, 1))]
        size = int(rng.integers(3, 120))
        self._size = size if not self.lanes else -(-size // self.lanes) * self.lanes
        self._segment = int(rng.choice([8, 16, 64]))
        self._kind = "plain" if not self.lanes and rng.random() < 0.2 else "tensordict"
        self._batch_size = int(rng.integers(1, 9)) * 4
        self._make = self._choose_sampler()
        self._how: dict[str, Any] = {"ndim": 2} if self.lanes else {}
        self.theirs = self._buffer(LazyTensorStorage(self._size, **self._how), self._make())
        self.ours = self._buffer(self._storage(self.path), self._make())

    def __repr__(self) -> str:
        return f"{self.ours.storage}, {self._kind}, {type(self.ours.sampler).__name__}, {self._stack=}, {self.lanes=}"

    def _choose_sampler(self) -> Callable[[], Any]:
        """Return what makes a sampler."""
        rng, strict = self.rng, bool(self.rng.random() < 0.3)
        keys: list[dict[str, Any]] = [{}, {"end_key": _DONE}, {"traj_key": "episode"}, {"end_keys": [_DONE, "no"]}]
        spans: list[Any] = [False, True, 1, (0, 1)]
        slices: dict[str, Any] = {"strict_length": strict, **keys[int(rng.integers(4))]}
        slices["num_slices" if rng.random() < 0.5 else "slice_len"] = 4 if rng.random() < 0.5 else 2
        span = spans[int(rng.integers(4))]
        pads = not strict and span is False and rng.random() < 0.5
        more: dict[str, Any] = {"cache_values": bool(rng.random() < 0.3), "span": span, "pad_output": bool(pads)}
        made: list[Callable[[], Any]] = [lambda: RandomSampler()]
        if self._kind == "tensordict":
            made += [lambda: SliceSampler(**slices, **more)] * 3
            if not self.lanes:
                made += [lambda: SliceSamplerWithoutReplacement(**slices)]
        if not self.lanes:
            drop_last = bool(self.rng.random() < 0.5)
            made += [lambda: SamplerWithoutReplacement(drop_last=drop_last)]
            if _has_priorities():
                made += [lambda: PrioritizedSampler(self._size, 0.7, 0.9)]
        return made[int(self.rng.integers(len(made)))]

    def _storage(self, path: Path) -> DiskStorage:
        return DiskStorage(self._size, path, segment_rows=self._segment, frame_stack=self._stack, **self._how)

    def _buffer(self, storage: Any, sampler: Any) -> Any:
        make = TensorDictReplayBuffer if self._kind == "tensordict" else ReplayBuffer
        generator = torch.Generator().manual_seed(7)
        return make(storage=storage, sampler=sampler, batch_size=self._batch_size, generator=generator)

    def _steps(self, n: int) -> Any:
        """Return steps of all environments, as `extend` takes them."""
        if self.lanes:
            return torch.stack([world.rollout(n) for world in self._worlds])
        return self._worlds[0].rollout(n)

    def _seed_again(self) -> None:
        seed = int(self.rng.integers(2**31))
        for buffer in (self.theirs, self.ours):
            buffer.set_rng(torch.Generator().manual_seed(seed))

    # What is called

    def extend(self) -> None:
        """Add steps to both: now and then more than there are places for, one after the other."""
        most = self._size // max(self.lanes, 1)
        n = int(self.rng.integers(2 if self.lanes else 1, max(min(most, 40), 2) + 1))
        if n > most:
            return
        steps = self._steps(n)
        indices = [buffer.extend(steps.clone()) for buffer in (self.theirs, self.ours)]
        same_bits(indices[0].numpy(), indices[1].numpy(), "indices")

    def add(self) -> None:
        """Add a step to both."""
        if self.lanes:
            return
        step = self._worlds[0].step()
        indices = [buffer.add(step.clone()) for buffer in (self.theirs, self.ours)]
        assert indices[0] == indices[1], f"places: {indices}"

    def sample(self) -> None:
        """Draw from both."""
        if self.empty_now:
            return
        for _ in range(3):
            errors = (RuntimeError, ValueError, IndexError)  # such as that there is no slice of that length
            found = self.each("sample", errors=errors)
            if not found:
                self._seed_again()
                return
            _same(found[0], found[1], f"a batch of {self._batch_size}")

    def index(self) -> None:
        """Read some places of both."""
        if self.empty_now or self.lanes:
            return
        n = len(self.theirs)
        first, last = sorted(self.rng.integers(0, n + 1, 2).tolist())
        some = torch.from_numpy(self.rng.integers(0, n, int(self.rng.integers(0, 9))))
        indices: list[Any] = [slice(first, last), some, int(self.rng.integers(n)), slice(None, None, 2)]
        for index in indices:
            _same(self.theirs[index], self._read(self.ours[index]), f"[{index}]")

    @staticmethod
    def _read(found: Any) -> Any:
        return found.to_tensordict() if is_tensor_collection(found) else found

    def all(self) -> None:
        """Read all of both."""
        if not self.empty_now:
            _same(self.theirs[:], self._read(self.ours[:]), "all")

    def reopen(self) -> None:
        """Close ours, or kill its process, and open it again; its sampler is as it was."""
        sampler = self.ours.sampler
        if self.empty_now:
            return
        getattr(sampler, "_cache", {}).clear()  # of another storage
        self.leave(self.ours.storage.stored, killed=bool(self.rng.random() < 0.5))
        self.ours = self._buffer(self._storage(self.path), sampler)
        cursors = [buffer.writer._cursor for buffer in (self.theirs, self.ours)]
        assert cursors[0] == cursors[1], f"the writers are at {cursors}"
        self._seed_again()

    def pickle(self) -> None:
        """Pickle both storages, and go on with copies."""
        self.go_on_with_copies()
        self._seed_again()

    def empty(self) -> None:
        """Empty both."""
        if not self.empty_now:
            self.theirs.empty()
            self.ours.empty()
            self._seed_again()

    def dump(self) -> None:
        """Save ours, and load it in another place, from where it goes on."""
        if self.empty_now:
            return
        self._dumps += 1
        self.ours.dumps(self.path.with_name("dumps"))
        other = self._buffer(self._storage(self.path.with_name(f"store-{self._dumps}")), self._make())
        other.loads(self.path.with_name("dumps"))
        _same(self.theirs[:], self._read(other[:]), "what was loaded")
        cursors = [buffer.writer._cursor for buffer in (self.theirs, other)]
        assert cursors[0] == cursors[1], f"the writers are at {cursors}"
        other.storage.close()


def compare(path: Path, seed: int, calls: int = 30) -> None:
    """Give both the same, some random calls long; an AssertionError where they differ."""
    torch.manual_seed(seed)
    Both(path, np.random.default_rng([seed, 1])).make_calls(_CALLS, calls, "extend", "all")
