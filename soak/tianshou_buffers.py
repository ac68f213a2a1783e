"""Tianshou's buffers on disk and its own in memory, given the same: every batch must be the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
from tianshou.data import Batch, PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer

from diskbuffer.adapters.tianshou import (
    DiskPrioritizedReplayBuffer,
    DiskPrioritizedVectorReplayBuffer,
    DiskReplayBuffer,
    DiskVectorReplayBuffer,
)
from soak.random_values import Pair, Values, World, random_shape, same_bits

_CALLS = {"add": 10, "sample": 6, "everything": 2, "index": 3, "neighbours": 2, "write_key": 1, "reset": 0.6, "reopen": 1.5}
_CALLS |= {"pickle": 1, "update": 0.4}
_CLASSES: dict[tuple[bool, bool], tuple[Any, Any]] = {  # by whether steps have priorities, and come from several environments
    (False, False): (ReplayBuffer, DiskReplayBuffer),
    (False, True): (VectorReplayBuffer, DiskVectorReplayBuffer),
    (True, False): (PrioritizedReplayBuffer, DiskPrioritizedReplayBuffer),
    (True, True): (PrioritizedVectorReplayBuffer, DiskPrioritizedVectorReplayBuffer),
}


def _drawn(values: Any) -> Any:
    """Draw values, which may be nested in dicts."""
    return {key: _drawn(part) for key, part in values.items()} if isinstance(values, dict) else values()


def _same(one: Any, other: Any, where: str) -> None:
    """Require the same of what two buffers returned."""
    if isinstance(one, Batch):
        assert isinstance(other, Batch), f"{where}: expected a Batch, found {type(other)}"
        keys = [sorted(batch.get_keys()) for batch in (one, other)]
        assert keys[0] == keys[1], f"{where}: {keys}"
        for key in keys[0]:
            _same(one[key], other[key], f"{where}.{key}")
        return
    left, right = np.asarray(one), np.asarray(other)
    if left.dtype == object:  # what Tianshou makes of batches of batches: an array of Batch, and of 0 where there is none
        assert (right.dtype, right.shape) == (left.dtype, left.shape), f"{where}: {right.dtype}{right.shape}"
        for number, pair in enumerate(zip(left.flat, right.flat, strict=True)):
            _same(*pair, f"{where}[{number}]")
        return
    same_bits(left, right, where)


def _without(values: Any, ends: Any) -> Any:
    """Return values, which may be a Batch of others, with zeros where episodes end."""
    if isinstance(values, Batch):
        parts = Batch()
        parts.__dict__.update({key: _without(values[key], ends) for key in values.get_keys()})
        return parts
    found = np.array(values)
    found[ends] = 0
    return found


class Both(Pair):
    """A buffer of Tianshou's, one on disk, and the worlds that both are told about."""

    def __init__(self, path: Path, rng: np.random.Generator) -> None:
        super().__init__(path, rng)
        self.n_envs = int(rng.choice([0, 1, 2, 4, 64], p=[0.3, 0.2, 0.2, 0.27, 0.03]))  # 0 for one that takes a single step
        self._prioritized = bool(rng.random() < 0.35)
        self._how = self._random_options()
        self._size = int(rng.integers(max(2, self._how["stack_num"]), 40)) * max(self.n_envs, 1)
        self._random_world()
        self._given = (self._size, self.n_envs) if self.n_envs else (self._size,)
        self._classes = _CLASSES[self._prioritized, self.n_envs > 0]
        self.theirs = self._classes[0](*self._given, **self._how)
        self.open()
        self._uncounted = False

    def open(self) -> None:
        """Open ours anew."""
        self.ours = self._classes[1](*self._given, **self._how, path=self.path, segment_rows=16)

    def __repr__(self) -> str:
        return f"{type(self.ours).__name__} of {self._size} steps, {self.n_envs} environments, {self._how}"

    def _random_options(self) -> dict[str, Any]:
        rng = self.rng
        how: dict[str, Any] = {"stack_num": int(rng.choice([1, 1, 2, 4])), "ignore_obs_next": bool(rng.random() < 0.3)}
        how["save_only_last_obs"] = bool(rng.random() < 0.2)
        how["sample_avail"] = bool(rng.random() < 0.3 and not self._prioritized)
        how["random_seed"] = int(rng.integers(100))
        if self._prioritized:
            how |= {"alpha": float(rng.choice([0.3, 0.6, 1.0])), "beta": float(rng.choice([0.0, 0.4]))}
            how["weight_norm"] = bool(rng.random() < 0.5)
        return how

    def _random_world(self) -> None:
        """Draw what observations, actions, rewards and infos are."""
        rng = self.rng
        names = ("frame", "place", "a value", "obs", "x_61", "a/b", "%20", "_own", "steps")

        def nested(depth: int) -> Any:
            if rng.random() < 0.7 or depth == 4:
                return Values(rng, random_shape(rng))
            return {key: nested(depth + 1) for key in rng.choice(names, rng.integers(1, 3), replace=False).tolist()}

        obs: Any = Values(rng, random_shape(rng))
        if rng.random() < 0.5 and not self._how["save_only_last_obs"]:
            obs = {key: nested(0) for key in rng.choice(names, 2, replace=False).tolist()}
        self._values: dict[str, Any] = {
            "act": Values(rng, random_shape(rng)[:1]),
            "rew": Values(rng, () if rng.random() < 0.9 else (2,), "float64"),
            "info": {key: nested(1) for key in ("lives", "tag", "steps", "x_position") if rng.random() < 0.4},
        }
        self._worlds = [World(rng, lambda: _drawn(obs)) for _ in range(max(self.n_envs, 1))]

    def _step(self, env: int = 0) -> Any:
        """Take a step of an environment."""
        now, after, over = self._worlds[env].step()
        if self._how["save_only_last_obs"]:
            now, after = (np.stack([np.zeros_like(obs)] * 2 + [obs]) for obs in (now, after))
        terminated = bool(over and self.rng.random() < 0.6)
        truncated = bool(over and (not terminated or self.rng.random() < 0.2))
        given = {"obs": now, "obs_next": after, "terminated": terminated, "truncated": truncated, "policy": Batch()}
        return Batch(**given, **_drawn(self._values))

    def _compare(self, one: Any, other: Any, indices: Any, where: str) -> None:
        """Compare batches, but for what docs/adapters.md names: what only ours knows, and stacks of infos."""
        stack, done = self._how["stack_num"], np.atleast_1d(one.done)
        if not len(done):
            return
        first, starts = np.atleast_1d(indices).ravel(), np.zeros(done.size, bool)
        for _ in range(stack - 1):
            before = self.theirs.prev(first)
            first, starts = before, starts | (before == first)
        rings = list(getattr(self.theirs, "buffers", [self.theirs]))
        oldest = [n * ring.maxsize + ring._insertion_idx % max(len(ring), 1) for n, ring in enumerate(rings)]
        at_the_edge = (starts & np.isin(first, oldest)).reshape(np.shape(indices))
        unknown = starts.reshape(np.shape(indices)) if stack > 1 else at_the_edge
        if self._how["ignore_obs_next"]:
            unknown = at_the_edge | one.done | np.isin(indices, self.theirs.last_index)
        for batch in (one, other):
            batch.obs, batch.obs_next = _without(batch.obs, at_the_edge), _without(batch.obs_next, unknown)
        if stack > 1:
            one.info = one.info.apply_values_transform(lambda values: np.asarray(values).take(-1, axis=np.ndim(indices)))
        _same(one, other, where)

    # What is called

    def add(self) -> None:
        """Add some steps to both."""
        for _ in range(int(self.rng.integers(1, 12))):
            if not self.n_envs:
                step = self._step()
                if self._how["save_only_last_obs"] and self._how["ignore_obs_next"] and self.rng.random() < 0.5:
                    step = Batch.stack([step])
                    told = self.each("add", step, [0])
                else:
                    told = self.each("add", step)
            else:
                ids = np.arange(self.n_envs) if self.rng.random() < 0.5 else np.flatnonzero(self.rng.random(self.n_envs) < 0.6)
                if not len(ids):
                    continue
                steps = Batch.stack([self._step(int(n)) for n in ids])
                told = self.each("add", steps, ids)
            for name, one, other in zip(("places", "returns", "lengths", "starts"), *told, strict=True):
                computed = name == "returns"  # sums of rewards: which NaN comes of infinities depends on the order
                left, right = (np.where(np.isnan(part), np.nan, part) if computed else part for part in (one, other))
                _same(left, right, f"{name} that add returns")

    def sample(self) -> None:
        """Draw from both, and tell both new priorities."""
        if self.empty_now:
            return
        n = int(self.rng.integers(1, 20))
        for draw in (n, None) if self.rng.random() < 0.2 and not self.n_envs else (n,):
            found = self.each("sample", draw, errors=(ValueError,))  # no step has its whole stack
            if not found:
                return
            (one, indices), (other, others) = found
            _same(indices, others, "indices")
            self._compare(one, other, indices, f"a batch of {draw}")
        if self._prioritized:
            weights = self.rng.random(len(indices))
            self.each("update_weight", indices, weights)

    def everything(self) -> None:
        """Compare all there is, read at once and in parts."""
        if self.empty_now:
            return
        (one, indices), (other, others) = self.each("sample", 0)
        _same(indices, others, "indices of all")
        if len(indices):
            self._compare(one, other, indices, "all")
            self._compare(self.theirs[:], self.ours[:], indices, "[:]")

    def index(self) -> None:
        """Read some places of both."""
        if self.empty_now:
            return
        filled = self.theirs.sample_indices(0)
        if not len(filled):
            return
        some = self.rng.choice(filled, int(self.rng.integers(1, 9)))
        for index in (some, int(some[0]), *(() if self.n_envs else (some.reshape(1, -1),))):
            self._compare(self.theirs[index], self.ours[index], index, f"[{index}]")
        for key in ("obs", "rew", "act"):
            one, other = self.each("get", some, key, stack_num=1)
            _same(one, other, f"get({key})")

    def neighbours(self) -> None:
        """Compare what comes before and after, and which episodes are not over."""
        if self.empty_now:
            return
        places = filled_places(self.theirs)
        _same(self.theirs.prev(places), self.ours.prev(places), "prev")
        _same(self.theirs.next(places), self.ours.next(places), "next")
        _same(self.theirs.unfinished_index(), self.ours.unfinished_index(), "unfinished_index")

    def write_key(self) -> None:
        """Write a key of all steps."""
        if self.empty_now or self._prioritized:
            return
        values = self.rng.normal(size=self.theirs.maxsize)
        for buffer in (self.theirs, self.ours):
            buffer.set_array_at_key(values.copy(), "returns")

    def reset(self) -> None:
        """Empty both."""
        keep = bool(self.rng.random() < 0.5)
        self.each("reset", keep_statistics=keep)
        self._uncounted |= keep
        if self._prioritized:
            self.theirs.weight[np.arange(self.theirs.maxsize)] = 0.0  # its own draws what there was before
        self.empty_now  # noqa: B018  which compares

    def reopen(self) -> None:
        """Close ours, or kill its process, and open it again; what is told to begin anew does so in both."""
        if self.empty_now:
            return
        self.leave(self.ours.stored, killed=bool(self.rng.random() < 0.5))
        self.open()
        self._recount()
        for buffer in (self.theirs, self.ours):
            for ring in {id(ring): ring for ring in [buffer, *getattr(buffer, "buffers", [])]}.values():
                ring._random_state = np.random.RandomState(0)
        if self._prioritized:
            self.theirs._max_prio = self.theirs._min_prio = 1.0
            self.theirs.weight[np.arange(self.theirs.maxsize)] = 0.0
            self.theirs.init_weight(filled_places(self.theirs))

    def _recount(self) -> None:
        """Have both count the episode that runs as what the ring holds of it."""
        for one, other in zip(*(getattr(buffer, "buffers", [buffer]) for buffer in (self.theirs, self.ours)), strict=True):
            if one._ep_len > len(one) or self._uncounted:  # of what the ring does not hold any more
                one._ep_return, one._ep_len, one._ep_start_idx = copy.copy(other._ep_return), other._ep_len, other._ep_start_idx
        self._uncounted = False

    def pickle(self) -> None:
        """Pickle both, and go on with the copies."""
        self.go_on_with_copies()
        self._recount()
        if self.n_envs:  # or parts of its own would not know what is added from now on
            for n, ring in enumerate(self.theirs.buffers):
                if self.theirs._meta.get_keys():  # something was added
                    ring._meta = self.theirs._meta[n * ring.maxsize : (n + 1) * ring.maxsize]

    def update(self) -> None:
        """Take over the steps of another buffer."""
        if self.n_envs or self._prioritized or self._how["ignore_obs_next"] or self._how["stack_num"] > 1:
            return
        source = ReplayBuffer(9, **self._how)
        for _ in range(int(self.rng.integers(1, 15))):
            source.add(self._step())
        self._uncounted = True
        one, other = self.each("update", source)
        _same(one, other, "what update returns")


def filled_places(buffer: Any) -> Any:
    """Return the places that are filled."""
    rings = list(getattr(buffer, "buffers", [buffer]))
    return np.concatenate([np.arange(len(ring)) + n * ring.maxsize for n, ring in enumerate(rings)])


def compare(path: Path, seed: int, calls: int = 40) -> None:
    """Give both the same, some random calls long; an AssertionError where they differ."""
    both = Both(path, np.random.default_rng([seed, 2]))
    both.make_calls(_CALLS, calls, "add", "everything")
