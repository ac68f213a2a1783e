"""Experience whose every row can be told from its stream and position, for campaigns and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from diskbuffer.index.fields import ENDED

Array = npt.NDArray[Any]
# A sampler of each form of sample, the same in every run.
SAMPLERS: dict[str, Callable[[], db.Sampler]] = {
    "steps": lambda: db.Uniform(3),
    "n-step": lambda: db.Uniform(3, n_step=3),
    "sequences": lambda: db.Slices(5, seed=3),
    "padded": lambda: db.Slices(5, seed=3, strict=False, burn_in=2),
    "crossing": lambda: db.Slices(5, seed=3, crossing=True),
    "prioritized": lambda: db.Prioritized(seed=3),
    "windows": lambda: db.Windows({"obs": (-3, 0, 1), "action": range(-1, 4)}, 3, padding="edge"),
}


class Experience:
    """Streams of which every row is a function of its stream and position; those of one writer among others are from `first` on.

    Episodes of stream s have ``episode + 3 * s`` steps; they are terminated and truncated by turns.
    """

    def __init__(self, n_envs: int = 1, episode: int = 20, shape: tuple[int, ...] = (34, 33), first: int = 0) -> None:
        self.n_envs, self.episode, self.shape, self.first = n_envs, episode, shape, first
        size = int(np.prod(shape))
        self._pattern = (np.arange(size) // 7 * 3).astype(np.uint8)

    @property
    def columns(self) -> dict[str, db.Column]:
        """Return the columns to create a store with."""
        return {"obs": db.Column(self.shape, "uint8"), "action": db.Column((), "int64")}

    def open(self, path: Path, capacity: int | None = None, **options: Any) -> db.ReplayBuffer:
        """Open the store, or create it, for this experience."""
        return db.ReplayBuffer(path, capacity, columns=self.columns, n_envs=self.n_envs, autoreset="disabled", **options)

    # What is in a row

    def rows(self, stream: int) -> int:
        """Return how many rows an episode of a stream has."""
        return self.episode + 3 * (self.first + stream) + 1

    def frames(self, stream: int, positions: Array) -> Array:
        """Frames without a zero byte behind their first eight, which hold the position."""
        places = np.asarray(positions, np.int64)
        flat = (self._pattern + (places[:, None] * 11 + (self.first + stream) * 57).astype(np.uint8)) | np.uint8(1)
        flat[:, :8] = (places + 1).astype("<i8").view(np.uint8).reshape(-1, 8)
        return flat.reshape(len(places), *self.shape)

    def actions(self, stream: int, positions: Array) -> Array:
        """Return the actions at positions of a stream."""
        return np.asarray(positions, np.int64) * 10 + self.first + stream + 1

    def rewards(self, stream: int, positions: Array) -> Array:
        """Return the rewards at positions of a stream."""
        return (np.asarray(positions, np.int64) % 1000 + 0.5 + self.first + stream).astype(np.float32)

    def is_last(self, stream: int, positions: Array) -> Array:
        """Tell which positions are the last of an episode, and no step."""
        return np.asarray(np.asarray(positions) % self.rows(stream) == self.rows(stream) - 1)

    def starts(self, stream: int, positions: Array) -> Array:
        """Return where the episodes of positions start."""
        places = np.asarray(positions, np.int64)
        return places - places % self.rows(stream)

    def ends(self, stream: int, positions: Array) -> tuple[Array, Array]:
        """Terminated and truncated, of the steps at `positions`."""
        over, turn = self.is_last(stream, np.asarray(positions) + 1), np.asarray(positions) // self.rows(stream) % 2
        return over & (turn == 0), over & (turn == 1)

    def stacks(self, stream: int, positions: Array, stack: int) -> Array:
        """Observations at rows: (n, ...) frames, or (n, stack, ...) filled up with an episode's first frame."""
        if stack == 1:
            return self.frames(stream, positions)
        starts = self.starts(stream, positions)
        return np.stack([self.frames(stream, np.maximum(positions - back, starts)) for back in range(stack - 1, -1, -1)], axis=1)

    # What a buffer holds

    def check(self, buffer: db.ReplayBuffer) -> int:
        """Compare every step that can be sampled; return how many there are."""
        steps = buffer.steps()
        if len(steps):
            self.check_batch(buffer.at(steps), buffer.frame_stack)
        return len(steps)

    def check_batch(self, batch: dict[str, Any], stack: int = 1) -> None:
        """Raise an AssertionError where a batch has other values than its steps."""
        for name, stream, found, expected in self._pairs(batch, stack):
            np.testing.assert_array_equal(found, expected, err_msg=f"{name} of stream {stream}")

    def wrong(self, batch: dict[str, Any], stack: int = 1) -> int:
        """Return how many rows of a batch have other values than their steps."""
        bad = [np.zeros(0, np.int64)]
        for _, stream, found, expected in self._pairs(batch, stack):
            differ = (found != expected).any(axis=tuple(range(1, found.ndim)))
            bad.append(np.flatnonzero(batch["steps"].numpy() % self.n_envs == stream)[differ])
        return len(np.unique(np.concatenate(bad)))

    def _pairs(self, batch: dict[str, Any], stack: int) -> Iterator[tuple[str, int, Array, Array]]:
        """Yield what a batch has, and should have, by column and stream."""
        steps = batch["steps"].numpy()
        for stream in np.unique(steps % self.n_envs).tolist():
            mine = steps % self.n_envs == stream
            at = steps[mine] // self.n_envs
            terminated, truncated = self.ends(stream, at)
            assert not self.is_last(stream, at).any()
            for name, expected in (
                ("obs", self.stacks(stream, at, stack)),
                ("next_obs", self.stacks(stream, at + 1, stack)),
                ("action", self.actions(stream, at)),
                ("reward", self.rewards(stream, at)),
                ("terminated", terminated),
                ("truncated", truncated),
            ):
                yield name, stream, batch[name].numpy()[mine], expected


class Feeder:
    """Feed a buffer with experience, going on where each of its streams is.

    `heads` are the positions of the newest rows, which are known to be there once a call has returned.
    """

    def __init__(self, experience: Experience, buffer: db.ReplayBuffer) -> None:
        self.experience, self.buffer = experience, buffer
        self.heads = heads_of(buffer)

    def _next(self, stream: int) -> int:
        head = int(self.heads[stream])
        return head + 1 if head < 0 or self.buffer._reader.index.table[stream, ENDED] else head

    def add(self, times: int = 1) -> None:
        """Add a step of every stream, `times` times."""
        world, n = self.experience, self.experience.n_envs
        for _ in range(times):
            at = [np.array([self._next(stream)]) for stream in range(n)]
            parts = [
                (
                    world.frames(s, p),
                    world.actions(s, p),
                    world.rewards(s, p),
                    world.frames(s, p + 1),
                    *world.ends(s, p),
                )
                for s, p in enumerate(at)
            ]
            self.buffer.add(*(np.concatenate(column) for column in zip(*parts, strict=True)))
            self.heads = np.concatenate(at) + 1

    def extend(self, stream: int, steps: int) -> None:
        """Add `steps` steps of one stream at once, over as many episodes as that takes."""
        world, first = self.experience, self._next(stream)
        at = np.arange(first, first + 2 * steps + 2)
        at = at[~world.is_last(stream, at)][:steps]
        self.buffer.extend(
            world.frames(stream, at),
            world.actions(stream, at),
            world.rewards(stream, at),
            world.frames(stream, at + 1),
            *world.ends(stream, at),
            env=stream,
        )
        self.heads[stream] = at[-1] + 1


def heads_of(buffer: db.ReplayBuffer) -> Array:
    """Return the position of the newest row of each environment's stream; -1 where it is empty."""
    return np.array(buffer._reader.index.heads[: buffer.n_envs])
