"""The buffer against a plain Python list: random environments, endings, stacks, streams, flushes, closings and reopenings."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.reader import Reader

FRAME = {"small": (5,), "image": (34, 33)}  # flat, and packed (more than 1 KiB)


@dataclass
class Model:
    """What a buffer of unlimited memory would know."""

    stack: int
    zeros: bool
    transitions: list[dict[tuple[int, int], dict[str, Any]]] = field(default_factory=list)

    def stacked(self, frames: list[np.ndarray], at: int) -> np.ndarray:
        wanted = range(at - self.stack + 1, at + 1)
        filling = np.zeros_like(frames[0]) if self.zeros else frames[0]
        picked = [frames[k] if k >= 0 else filling for k in wanted]
        return np.stack(picked) if self.stack > 1 else picked[0]


class Env:
    """One stream: frames that are all different, and episodes that end as they are told."""

    def __init__(self, number: int, shape: tuple[int, ...], dtype: str) -> None:
        self.number, self.shape, self.dtype = number, shape, dtype
        self.made = 0
        self.frames: list[np.ndarray] = []
        self.reset()

    def frame(self) -> np.ndarray:
        self.made += 1
        values = np.random.default_rng([self.number, self.made]).integers(0, 256, self.shape) // 64
        values.flat[:3] = self.number, self.made % 250, self.made // 250
        return values.astype(self.dtype)

    def reset(self) -> None:
        self.frames = [self.frame()]

    def step(self) -> None:
        self.frames.append(self.frame())


class World:
    """A buffer, the environments that feed it, and the list of what was fed."""

    def __init__(self, path: Path, n: int, stack: int, kind: str, capacity: int | None, zeros: bool, given_stacked: bool) -> None:
        self.n, self.stack, self.zeros, self.path, self.given_stacked = n, stack, zeros, path, given_stacked and stack > 1
        self.envs = [Env(s, FRAME[kind], "uint8") for s in range(n)]
        self.model = Model(stack, zeros)
        self.steps: list[dict[str, Any]] = []  # all steps in the order in which they were added
        self.capacity = capacity
        columns = {"obs": db.Column(FRAME[kind], "uint8"), "action": db.Column((2,), "int16")}
        self.buffer = db.ReplayBuffer(
            path,
            capacity,
            columns=columns,
            extra={"wide": db.Column((300,), "float32")},  # a packed column that belongs to steps
            n_envs=n,
            frame_stack=stack,
            padding="zeros" if zeros else "first",
            autoreset="disabled",
            seed=1,
        )

    def note(self, env: Env, action: np.ndarray, reward: float, terminated: bool, truncated: bool, wide: np.ndarray) -> None:
        t = len(env.frames) - 2
        self.steps.append(
            {
                "env": env.number,
                "obs": self.model.stacked(env.frames, t),
                "next_obs": self.model.stacked(env.frames, t + 1),
                "action": action,
                "reward": np.float32(reward),
                "terminated": terminated,
                "truncated": truncated,
                "wide": wide,
            }
        )

    def values(self, rng: np.random.Generator) -> tuple[np.ndarray, float, np.ndarray]:
        return rng.integers(-500, 500, 2).astype(np.int16), float(rng.normal()), rng.normal(size=300).astype(np.float32)

    def add(self, endings: list[str], seed: int) -> None:
        """One step of every environment; `endings` tells what happens to each after it."""
        rng, rows = np.random.default_rng(seed), []
        for env in self.envs:
            env.step()
        before = [self.model.stacked(e.frames, len(e.frames) - 2) if self.given_stacked else e.frames[-2] for e in self.envs]
        after = [self.model.stacked(e.frames, len(e.frames) - 1) if self.given_stacked else e.frames[-1] for e in self.envs]
        for env, ending in zip(self.envs, endings, strict=True):
            action, reward, wide = self.values(rng)
            rows.append((action, reward, ending == "terminated", ending == "truncated", wide))
            self.note(env, *rows[-1])
        actions, rewards, terminated, truncated, wides = (np.array(column) for column in zip(*rows, strict=True))
        if self.n == 1:
            added = self.buffer.add(before[0], actions[0], rewards[0], after[0], terminated[0], bool(truncated[0]), wide=wides[0])
        else:
            added = self.buffer.add(np.array(before), actions, rewards, np.array(after), terminated, truncated, wide=wides)
        assert added == self.n
        for env, ending in zip(self.envs, endings, strict=True):
            if ending != "goes on":
                env.reset()

    def extend(self, number: int, lengths: list[tuple[int, str]], seed: int) -> None:
        """Episodes of one environment at once; the first goes on where it was."""
        rng, env, parts = np.random.default_rng(seed), self.envs[number], []
        for length, ending in lengths:
            for k in range(length):
                env.step()
                action, reward, wide = self.values(rng)
                flags = (ending == "terminated" and k == length - 1, ending == "truncated" and k == length - 1)
                self.note(env, action, reward, *flags, wide)
                pick = (lambda e, at: self.model.stacked(e.frames, at)) if self.given_stacked else (lambda e, at: e.frames[at])
                parts.append((pick(env, len(env.frames) - 2), action, reward, pick(env, len(env.frames) - 1), *flags, wide))
            if ending != "goes on":
                env.reset()
        names = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "wide")
        columns: dict[str, Any] = {n: np.array(c) for n, c in zip(names, zip(*parts, strict=True), strict=True)}
        assert self.buffer.extend(**columns, env=number) == len(parts)

    def check(self) -> None:
        """Compare every step that can be sampled, and that those that must be there are."""
        index = self.buffer._reader.index
        total = int(index.steps().sum())
        assert len(self.buffer) == total
        if self.capacity is None:
            assert total == len(self.steps)
        else:
            rows = self.buffer._store.layout.segment_rows
            assert total >= min(self.capacity, len(self.steps))
            assert total <= self.capacity + self.n * (rows + self.stack - 1)
        if not total:
            with pytest.raises(db.EmptyBufferError):
                self.buffer.sample(3)
            return
        streams, positions, *_ = index.locate(np.arange(total))
        batch = self.buffer.at(positions * self.n + streams)
        kept: dict[int, list[dict[str, Any]]] = {s: [] for s in range(self.n)}
        for step in self.steps:
            kept[step["env"]].append(step)
        at = 0
        for s in range(self.n):
            here = int((streams == s).sum())
            for step in kept[s][len(kept[s]) - here :]:
                for name in ("obs", "next_obs", "action", "reward", "terminated", "truncated", "wide"):
                    np.testing.assert_array_equal(batch[name][at].numpy(), step[name], err_msg=f"{name} of step {at}")
                at += 1
        if self.capacity is not None:  # the newest are all there
            for s in range(self.n):
                newest = sum(step["env"] == s for step in self.steps[-self.capacity :])
                assert int((streams == s).sum()) >= newest

    def reopen(self) -> None:
        self.buffer.close()
        self.buffer = db.ReplayBuffer(self.path, autoreset="disabled")

    def crash(self) -> None:
        """Forget the buffer without closing it, as a kill does; what the system holds for a process is given back by hand."""
        abandon(self.buffer)
        self.buffer = db.ReplayBuffer(self.path, autoreset="disabled")


def abandon(buffer: db.ReplayBuffer) -> None:
    recorder = buffer._recorder
    assert recorder is not None
    recorder.log.sealer.stop()
    recorder.log.writer.close()
    buffer._reader.close()
    buffer._store.unlock()
    buffer._closed = True


ENDINGS = st.sampled_from(["goes on"] * 6 + ["terminated", "truncated", "cut off"])


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_step_is_what_was_added(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([1, 1, 2, 3]), "streams")
    stack = data.draw(st.sampled_from([1, 2, 4]), "stack")
    kind = data.draw(st.sampled_from(["image", "small"]), "kind")
    capacity = data.draw(st.sampled_from([None, 5, 20, 40, 100]), "capacity")
    compiled = data.draw(st.booleans(), "compiled")
    with tempfile.TemporaryDirectory() as directory:
        world = World(
            Path(directory) / "store",
            n,
            stack,
            kind,
            capacity,
            data.draw(st.booleans(), "zeros"),
            data.draw(st.booleans(), "stacks"),
        )
        world.buffer._reader.gatherer.compiled &= compiled
        for _ in range(data.draw(st.integers(1, 12), "rounds")):
            what = data.draw(st.sampled_from(["add", "add", "add", "extend", "flush", "reopen", "crash", "cut", "seal"]), "what")
            seed = data.draw(st.integers(0, 1000), "seed")
            if what == "add":
                for k in range(data.draw(st.integers(1, 40), "steps")):
                    world.add([data.draw(ENDINGS) for _ in range(n)], seed + k)
            elif what == "extend":
                lengths = data.draw(st.lists(st.tuples(st.integers(1, 60), ENDINGS), min_size=1, max_size=3), "lengths")
                world.extend(data.draw(st.integers(0, n - 1), "env"), lengths, seed)
            elif what == "flush":
                world.buffer.flush()
            elif what == "seal":
                world.buffer.seal()
            elif what == "cut":
                world.buffer.cut_off()
                for env in world.envs:
                    env.reset()
            elif what == "reopen":
                world.reopen()
            else:
                world.crash()
            world.check()
        world.reopen()
        world.check()
        world.buffer.close()


def test_the_slow_decoder_reads_the_same(tmp_path: Path) -> None:
    world = World(tmp_path / "store", 2, 4, "image", None, False, False)
    for k in range(100):
        world.add(["terminated" if k % 17 == 16 else "goes on", "goes on"], k)
    store = world.buffer._store
    fast = world.buffer.at(np.arange(10, 60) * 2 + 1)
    slow = Reader(store, 4, False, compiled=False)
    other = slow.at(np.arange(10, 60) * 2 + 1, None)
    for name in fast:
        np.testing.assert_array_equal(fast[name].numpy(), other[name].numpy())
    world.buffer.close()
