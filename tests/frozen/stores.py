"""Stores for the frozen digests, built through the public interface alone; every row has the same bytes in every run.

Numbers come from the raw words of numpy's PCG64, a stream that numpy promises to keep, and no function of floats is in their
way, so that the contents of a store depend neither on numpy's version nor on the processor.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from tests.support.specimens import copy_while_open
from tests.support.workloads import boot

Array = npt.NDArray[Any]
SEED = 20_26
FRAME = (34, 33)  # more than 1 KiB, so that it is packed, and no whole number of words
PIXELS = {"obs": db.Column(FRAME, "uint8"), "action": db.Column((), "int64")}
VECTORS = {"obs": db.Column((3,), "float32"), "action": db.Column((2,), "float64")}
EXTRA = {"policy_version": db.Column((), "int32"), "log_prob": db.Column((), "float32")}
LENGTHS = (1, 23, 7, 40, 2, 13, 31, 5, 64, 3, 19, 11)  # of episodes, one after the other


class Numbers:
    """Numbers that a seed gives, the same for good."""

    def __init__(self, *seed: int) -> None:
        self._words = np.random.PCG64([SEED, *seed])

    def integers(self, below: int, shape: tuple[int, ...]) -> Array:
        """Return integers from 0 to `below` - 1, (…) int64."""
        words = np.atleast_1d(self._words.random_raw(int(np.prod(shape))))
        return ((words >> np.uint64(11)) % np.uint64(below)).astype(np.int64).reshape(shape)

    def of(self, column: db.Column, n: int) -> Array:
        """Return `n` rows of a column: floats are quarters, of which float16 and float32 hold every one."""
        dtype, shape = column.np_dtype, (n, *column.shape)
        if dtype.kind == "b":
            return self.integers(2, shape).astype(np.bool_)
        if dtype.kind in "fc":
            return (self.integers(4001, shape) / 4 - 500).astype(dtype)
        return self.integers(100, shape).astype(dtype)


def pictures(numbers: Numbers, n: int, shape: tuple[int, ...], noise: bool = False) -> Array:
    """Return consecutive pictures, (n, ...) uint8: things that move over a background; or noise, which no codec makes smaller."""
    if noise:
        return numbers.integers(256, (n, *shape)).astype(np.uint8)
    found = np.empty((n, *shape), np.uint8)
    found[:] = (numbers.integers(3, shape) * 40 + 20).astype(np.uint8)
    places, colours = numbers.integers(shape[0] - 5, (n, 2)), numbers.integers(256, (n, 2))
    for i in range(n):
        found[i, : 1 + places[i, 0] // 8] = colours[i, 0]
        found[i, places[i, 0] : places[i, 0] + 5, places[i, 1] % (shape[1] - 5) :][:, :5] = colours[i, 1]
        found[i].reshape(-1)[:8] = np.array([i + 1], "<i8").view(np.uint8)  # no two are the same
    return found


def _nested(columns: dict[str, Array]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, values in columns.items():
        *parents, last = path.split("/")
        inner = functools.reduce(lambda at, parent: at.setdefault(parent, {}), parents, found)
        inner[last] = values
    return found


def trajectory(
    columns: dict[str, db.Column], n: int, *seed: int, extra: dict[str, db.Column] | None = None, noise: bool = False
) -> dict[str, Any]:
    """Return `n` steps as `extend` takes a trajectory: one more observation than there are steps."""
    numbers, found = Numbers(*seed), dict[str, Array]()
    for path, column in columns.items():
        if path.startswith("obs") and column.np_dtype == np.uint8 and len(column.shape) > 1:
            found[path] = pictures(numbers, n + 1, column.shape, noise)
        else:
            found[path] = numbers.of(column, n + path.startswith("obs"))
    found["reward"] = numbers.of(db.Column(), n)
    for path, column in (extra or {}).items():
        found[path] = numbers.of(column, n)
    if extra and "policy_version" in extra:  # which does not decrease, as the episodes' numbers are the first of the seeds
        found["policy_version"] = (seed[0] * 4 + np.arange(n) // 16).astype(np.int32)
    return _nested(found)


def fill(
    buffer: db.ReplayBuffer,
    columns: dict[str, db.Column],
    episodes: int,
    *,
    first: int = 0,
    extra: dict[str, db.Column] | None = None,
    noise: bool = False,
    env: int | None = None,
) -> None:
    """Add episodes, in turn to every environment, that end in turn: terminated, truncated, or cut off."""
    for k in range(first, first + episodes):
        n, where = LENGTHS[k % len(LENGTHS)], k % buffer.n_envs if env is None else env
        given = trajectory(columns, n, k, where, extra=extra, noise=noise)
        ends = np.arange(n) == n - 1
        flags = {"terminated": ends & (k % 3 == 0), "truncated": ends & (k % 3 == 1)}
        buffer.extend(**given, **flags, env=where, new_episode=True)
        if k % 3 == 2 and k < first + episodes - 1:  # the last of them may run on
            buffer.cut_off([where])


# One by one, as a loop with environments adds them


def play(buffer: db.ReplayBuffer, columns: dict[str, db.Column], steps: int, autoreset: str, *seed: int) -> None:
    """Add steps of all environments side by side, whose episodes end as `autoreset` has it."""
    n, numbers = buffer.n_envs, Numbers(*seed)
    column = columns["obs"]
    frames = pictures(numbers, (3 * steps + 3) * n, column.shape) if column.row_bytes > 1000 else None
    taken = 0

    def observe() -> Array:
        nonlocal taken
        taken += 1
        return numbers.of(column, n) if frames is None else frames[(taken - 1) * n : taken * n]

    obs, after = observe(), np.zeros(n, np.bool_)
    for t in range(steps):
        action, reward = numbers.of(columns["action"], n), numbers.of(db.Column(), n).astype(np.float64)
        over = (numbers.integers(9, (n,)) == 0) & ~after
        terminated, next_obs = over & (numbers.integers(2, (n,)) == 0), observe()
        if autoreset == "next_step":
            reward[after] = 0
            buffer.add(obs, action, reward, next_obs, terminated, over & ~terminated)
            obs, after = next_obs, over
        elif autoreset == "same_step":
            first = observe()
            returned = np.where(over.reshape(-1, *[1] * len(column.shape)), first, next_obs)
            final = np.empty(n, object)
            for i in np.flatnonzero(over):
                final[i] = next_obs[i]
            buffer.add(
                obs, action, reward, returned, terminated, over & ~terminated, info={"final_obs": final, "_final_obs": over}
            )
            obs = returned
        else:
            buffer.add(obs, action, reward, next_obs, terminated, over & ~terminated)
            obs = np.where(over.reshape(-1, *[1] * len(column.shape)), observe(), next_obs)
            if t % 37 == 36:
                buffer.cut_off([t % n])
                obs = observe()


def stacked(frames: Array, stack: int, zeros: bool) -> Array:
    """Return the stacks of an episode's frames, (n, stack, ...)."""
    before = np.zeros_like(frames[:1]) if zeros else frames[:1]
    padded = np.concatenate([np.repeat(before, stack - 1, axis=0), frames])
    return np.stack([padded[k : k + len(frames)] for k in range(stack)], axis=1)


# The stores

Opened = contextlib.AbstractContextManager[db.ReplayBuffer]


@dataclass(frozen=True)
class Frozen:
    """A store.

    Attributes
    ----------
    open : callable
        Builds it below an empty directory; returns it open, as a context that closes all that is open of it.
    traits : set of str
        What is drawn from it beside the usual: "priorities" (it can be written to) or "some priorities", "versions", "goals",
        "every way" (of reading); or only "few" of the usual.
    """

    open: Callable[[Path, int], Opened]
    traits: frozenset[str] = frozenset()


STORES: dict[str, Frozen] = {}


def _store(name: str, *traits: str) -> Callable[[Callable[[Path, int], Iterator[db.ReplayBuffer]]], None]:
    def put(build: Callable[[Path, int], Iterator[db.ReplayBuffer]]) -> None:
        STORES[name] = Frozen(contextlib.contextmanager(build), frozenset(traits))

    return put


@_store("vectors", "priorities", "versions", "every way")
def _vectors(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    with db.ReplayBuffer(
        path / "store", columns=VECTORS, extra=EXTRA, n_envs=2, autoreset="next_step", segment_rows=64, seed=3, threads=threads
    ) as buffer:
        fill(buffer, VECTORS, 30, extra=EXTRA)
        buffer.episodes[[0, 3]].set_tag("good")
        yield buffer


@_store("vectors one by one, reset in the next step", "few")
def _next_step(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    with db.ReplayBuffer(path / "store", columns=VECTORS, n_envs=3, autoreset="next_step", seed=3, threads=threads) as buffer:
        play(buffer, VECTORS, 200, "next_step", 1)
        yield buffer


@_store("vectors one by one, reset in the same step", "few")
def _same_step(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    with db.ReplayBuffer(path / "store", columns=VECTORS, n_envs=2, autoreset="same_step", seed=3, threads=threads) as buffer:
        play(buffer, VECTORS, 200, "same_step", 2)
        yield buffer


@_store("frames one by one, in the tail and not", "some priorities")
def _frames(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    how: dict[str, Any] = {"n_envs": 2, "autoreset": "disabled", "frame_stack": 4, "segment_rows": 64}
    with db.ReplayBuffer(path / "store", columns=PIXELS, **how, seed=3, threads=threads) as buffer:
        play(buffer, PIXELS, 230, "disabled", 3)
        yield buffer


@_store("frames, sealed", "every way")
def _sealed(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    with db.ReplayBuffer(path / "store", columns=PIXELS, frame_stack=4, segment_rows=64, seed=3, threads=threads) as buffer:
        fill(buffer, PIXELS, 26)
        buffer.flush(recompress=True)
        yield buffer


@_store("stacks, padded with zeros")
def _stacks(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    how: dict[str, Any] = {"padding": "zeros", "segment_rows": 64, "chunk_rows": 2, "n_envs": 2, "autoreset": "next_step"}
    with db.ReplayBuffer(path / "store", columns=PIXELS, frame_stack=3, **how, seed=3, threads=threads) as buffer:
        for k in range(24):
            given = trajectory(PIXELS, LENGTHS[k % len(LENGTHS)], k)
            stacks = stacked(given.pop("obs"), 3, zeros=True)
            ends = np.arange(len(stacks) - 1) == len(stacks) - 2
            buffer.extend(stacks[:-1], next_obs=stacks[1:], **given, terminated=ends, env=k % 2)
        yield buffer


@_store("stacks, begun in the middle of episodes")
def _prefixes(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    how: dict[str, Any] = {"segment_rows": 64, "chunk_rows": 1, "capacity": 256}
    with db.ReplayBuffer(path / "store", columns=PIXELS, frame_stack=4, **how, seed=3, threads=threads) as buffer:
        for k in range(30):
            given = trajectory(PIXELS, LENGTHS[k % len(LENGTHS)] + 3, k)
            frames = given.pop("obs")
            stacks = stacked(frames, 4, zeros=False)[3 * (k % 2) :]
            values = {name: column[: len(stacks) - 1] for name, column in given.items()}
            if k % 4 < 2:  # a whole trajectory of stacks, or one step after the other
                buffer.extend(stacks, **values, env=0, new_episode=True)
                continue
            for t in range(len(stacks) - 1):
                step = {name: column[t] for name, column in values.items()}
                buffer.add(stacks[t], step["action"], step["reward"], stacks[t + 1], False, t == len(stacks) - 2)
        yield buffer


@_store("colour")
def _colour(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    columns = {"obs": db.Column((21, 20, 3), "uint8"), "action": db.Column((), "int32")}
    with db.ReplayBuffer(path / "store", columns=columns, frame_stack=2, segment_rows=64, seed=3, threads=threads) as buffer:
        fill(buffer, columns, 20)
        buffer.flush(recompress=True)
        fill(buffer, columns, 5, first=20)
        yield buffer


@_store("noise")
def _noise(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    columns = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(path / "store", columns=columns, segment_rows=64, chunk_rows=8, seed=3, threads=threads) as buffer:
        fill(buffer, columns, 20, noise=True)
        buffer.flush(recompress=True)
        fill(buffer, columns, 5, first=20, noise=True)
        yield buffer


@_store("dicts of many dtypes", "every way")
def _dicts(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    columns = {
        "obs/camera": db.Column((20, 21), "float32"),
        "obs/arm/joints": db.Column((3,), "float64"),
        "obs/seen": db.Column((5,), "bool"),
        "action": db.Column((), "int16"),
    }
    extra = {
        "half": db.Column((2,), "float16"),
        "flag": db.Column((), "bool"),
        "phase": db.Column((2,), "complex64"),
        "large": db.Column((), "uint64"),
        "small": db.Column((3,), "int8"),
    }
    how: dict[str, Any] = {"frame_stack": 2, "segment_rows": 64, "n_envs": 2, "autoreset": "next_step"}
    with db.ReplayBuffer(path / "store", columns=columns, extra=extra, **how, seed=3, threads=threads) as buffer:
        fill(buffer, columns, 24, extra=extra)
        yield buffer


@_store("other codecs", "few")
def _codecs(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    columns = {
        "obs/a": db.Column((20, 21), "float32", codec="zstd:3"),
        "obs/b": db.Column((34, 33), "uint8", codec="none"),
        "obs/c": db.Column((30, 20), "int16", codec="lz4hc:4"),
        "obs/d": db.Column((34, 33), "uint8", codec="lz4"),
        "action": db.Column((), "int64"),
    }
    with db.ReplayBuffer(path / "store", columns=columns, segment_rows=64, seed=3, threads=threads) as buffer:
        fill(buffer, columns, 18)
        buffer.flush(recompress=True)
        yield buffer


@_store("pictures made grey and smaller", "few")
def _transforms(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    columns = {
        "obs/a": db.Column((34, 33), "uint8", transform=(db.Greyscale(), db.Resize(34, 33))),
        "obs/b": db.Column((21, 20, 3), "uint8", transform=db.Resize(21, 20)),
        "action": db.Column((), "int64"),
    }
    larger = {"obs/a": db.Column((50, 47, 3), "uint8"), "obs/b": db.Column((33, 40, 3), "uint8"), "action": columns["action"]}
    with db.ReplayBuffer(path / "store", columns=columns, segment_rows=64, frame_stack=2, seed=3, threads=threads) as buffer:
        fill(buffer, larger, 12)
        yield buffer


@_store("a ring of vectors", "some priorities", "versions")
def _ring(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    how: dict[str, Any] = {"capacity": 300, "n_envs": 2, "autoreset": "next_step", "segment_rows": 64, "seed": 3}
    with db.ReplayBuffer(path / "store", columns=VECTORS, extra=EXTRA, **how, threads=threads) as buffer:
        fill(buffer, VECTORS, 60, extra=EXTRA)
        yield buffer


@_store("a ring of frames")
def _ring_of_frames(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    how: dict[str, Any] = {
        "capacity": 260,
        "n_envs": 2,
        "autoreset": "next_step",
        "segment_rows": 64,
        "frame_stack": 4,
        "capacity_each": True,
        "seed": 3,
    }
    with db.ReplayBuffer(path / "store", columns=PIXELS, **how, threads=threads) as buffer:
        fill(buffer, PIXELS, 45)
        yield buffer


@_store("several writers", "versions")
def _writers(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    how: dict[str, Any] = {"columns": VECTORS, "extra": EXTRA, "segment_rows": 64, "threads": 1}
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(db.ReplayBuffer(path / "all", writer=name, n_envs=n, autoreset="next_step", **how))
            for name, n in (("a", 1), ("b", 2))
        ]
        for k, writer in enumerate(writers):
            fill(writer, VECTORS, 9, first=k, extra=EXTRA)
        buffer = stack.enter_context(db.ReplayBuffer(path / "all", mode="r", seed=3, threads=threads))
        fill(writers[1], VECTORS, 12, first=11, extra=EXTRA)
        buffer.refresh()
        yield buffer


@_store("a reader beside a writer")
def _beside(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    with db.ReplayBuffer(path / "store", columns=PIXELS, capacity=400, frame_stack=4, segment_rows=64, threads=1) as writer:
        fill(writer, PIXELS, 10)
        with db.ReplayBuffer(path / "store", mode="r", seed=3, threads=threads) as buffer:
            buffer.sample(4)
            fill(writer, PIXELS, 21, first=10)
            buffer.refresh()
            yield buffer


@_store("goals", "goals")
def _goals(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    columns = {
        "obs/observation": db.Column((4,), "float32"),
        "obs/achieved_goal": db.Column((2,), "float32"),
        "obs/desired_goal": db.Column((2,), "float32"),
        "action": db.Column((1,), "float32"),
    }
    with db.ReplayBuffer(path / "store", columns=columns, capacity=400, segment_rows=64, seed=3, threads=threads) as buffer:
        fill(buffer, columns, 30)
        yield buffer


@_store("columns written later", "few")
def _values(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    with db.ReplayBuffer(
        path / "store", columns=VECTORS, n_envs=2, autoreset="next_step", segment_rows=64, seed=3, threads=threads
    ) as buffer:
        fill(buffer, VECTORS, 30)
        steps, numbers = buffer.steps(), Numbers(7)
        for name in ("value", "next_value"):
            buffer.columns.write(name, steps, numbers.of(db.Column(), len(steps)))
        buffer.columns.write("wide", steps[::3], numbers.of(db.Column((5,), "int16"), len(steps[::3])))
        buffer.columns.map(
            lambda batch: (batch["obs"] * 2, batch["reward"] + 1), 100, out=("twice", "more"), progress=False, threads=1
        )
        buffer.columns.returns_and_advantages(0.97, 0.9)
        buffer.columns.returns_and_advantages(0.9, values=None, out=("plain", "unused"), steps=steps[5:400])
        buffer.episodes[:4].set_tag("good")
        buffer.episodes[6:8].set_tag("bad")
        yield buffer


@_store("WebP", "few")
def _webp(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    columns = {"obs": db.Column((34, 33, 3), "uint8", codec="webp:80"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(path / "store", columns=columns, frame_stack=2, segment_rows=64, seed=3, threads=threads) as buffer:
        fill(buffer, columns, 18)
        buffer.flush(recompress=True)
        yield buffer


@_store("cleared", "few")
def _cleared(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
    with db.ReplayBuffer(
        path / "store", columns=PIXELS, n_envs=2, autoreset="next_step", segment_rows=64, seed=3, threads=threads
    ) as buffer:
        fill(buffer, PIXELS, 14)
        buffer.clear()
        fill(buffer, PIXELS, 9, first=14)
        yield buffer


def _left(name: str, *, rebooted: bool) -> None:
    """Have a store read that was not closed: its writer was killed, or the machine lost its power, in another boot."""

    @_store(f"{name}, left by a {'power loss' if rebooted else 'kill'}", "few")
    def _opened(path: Path, threads: int) -> Iterator[db.ReplayBuffer]:
        with boot(1), STORES[name].open(path / "written", threads) as writer:
            if rebooted:
                writer.flush()
            copy_while_open(path / "written" / "store", path / "left")
        with boot(1 + rebooted), db.ReplayBuffer(path / "left", mode="r", seed=3, threads=threads) as buffer:
            yield buffer


for _name in ("frames one by one, in the tail and not", "a ring of vectors", "cleared"):
    _left(_name, rebooted=False)
    _left(_name, rebooted=True)
