"""The buffer against a plain Python list: random spaces, environments, wrappers, endings, stacks, closings, kills, evictions.

Environments here do what others do: they normalise observations, overwrite the arrays that they returned, stack frames without
clearing them at a reset, and were playing for a while before anybody recorded.
"""

from __future__ import annotations

import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import diskbuffer as db
from tests.amounts import examples

Array = np.ndarray[Any, Any]
Obs = dict[str, Array]  # by key; "" where the observation is no dict

FRAMES = ((5,), (34, 33), (2, 3, 1))  # the second is packed (more than 1 KiB)
DTYPES = ("uint8", "int16", "int64", "bool", "float16", "float32", "float64")
KEYS = (("",), ("",), ("pixels", "state"), ("a", "b", "c"))
GAMMA, N_STEP = 0.5, 3


@dataclass(frozen=True)
class Part:
    """One part of an observation: of which frames, and whether stacks of them are given."""

    shape: tuple[int, ...]
    dtype: str
    stacked: bool


class Env:
    """One stream of observations, behind wrappers. Frames are all different."""

    def __init__(self, number: int, parts: dict[str, Part], stack: int, filling: str, played: int) -> None:
        self.number, self.parts, self.stack, self.filling = number, parts, stack, filling
        self.made = 0
        self.frames: dict[str, deque[Array]] = {key: deque(maxlen=stack) for key in parts}
        self.reset()
        for _ in range(played):
            self.step()

    def frame(self, part: Part) -> Array:
        values = np.random.default_rng([self.number, self.made]).integers(0, 3, part.shape)
        values.flat[:3] = self.number + 1, self.made % 120, self.made // 120
        if part.dtype == "bool":
            values.flat[:5] = [self.made >> bit & 1 for bit in range(5)]
        return values.astype(part.dtype)

    def reset(self) -> None:
        """Begin an episode. Stacks are filled up; "dirty" ones keep what they had, as a wrapper does that forgets it."""
        self.made += 1
        for key, part in self.parts.items():
            frame, frames = self.frame(part), self.frames[key]
            if self.filling != "dirty" or not frames:
                frames.clear()
                filled = frame if self.filling == "first" else np.zeros_like(frame)
                frames.extend([filled] * (self.stack - 1))
            frames.append(frame)

    def step(self) -> None:
        self.made += 1
        for key, part in self.parts.items():
            self.frames[key].append(self.frame(part))

    def look(self) -> Obs:
        """Return the observation: new arrays."""
        return {
            key: np.stack(self.frames[key]) if part.stacked and self.stack > 1 else self.frames[key][-1].copy()
            for key, part in self.parts.items()
        }


def normalised(obs: Obs, by: int) -> Obs:
    """Return an observation as a wrapper changes it whose statistics moved on; all frames of a stack in the same way."""
    return {key: (value ^ bool(by % 2)) if value.dtype == bool else value + value.dtype.type(by) for key, value in obs.items()}


def with_negative_zeros(obs: Obs) -> Obs:
    """Return the same values, of which zeros have another sign where there is one."""
    return {key: np.where(value == 0, -value, value) if value.dtype.kind == "f" else value for key, value in obs.items()}


@dataclass
class Stream:
    """What a list knows of one stream."""

    running: bool = False
    context: dict[str, list[Array]] = field(default_factory=dict)  # frames of the episode, and those before it that were given
    steps: list[dict[str, Any]] = field(default_factory=list)
    episode: int = 0


class World:
    """A buffer, the environments that feed it, and the list of what was fed."""

    def __init__(
        self,
        path: Path,
        n: int,
        stack: int,
        parts: dict[str, Part],
        capacity: int | None = None,
        padding: str = "first",
        filling: str = "first",
        played: int = 0,
        action: db.Column | None = None,
        **options: Any,
    ) -> None:
        self.path, self.n, self.stack, self.parts, self.capacity, self.padding = path, n, stack, parts, capacity, padding
        self.envs = [Env(s, parts, stack, filling, played * (s % 2 + 1) // 2) for s in range(n)]
        self.streams = [Stream() for _ in range(n)]
        self.order: list[int] = []  # the streams of all steps in the order in which they were added
        self.cut_offs = 0
        self.action = action or db.Column((2,), "int16")
        columns = {f"obs/{key}" if key else "obs": db.Column(part.shape, part.dtype) for key, part in parts.items()}
        self.buffer = db.ReplayBuffer(
            path,
            capacity,
            columns=columns | {"action": self.action},
            extra={"wide": db.Column((300,), "float32"), "sure": db.Column((), "bool")},  # packed, of steps; and a flag
            n_envs=n,
            frame_stack=stack,
            padding=padding,  # type: ignore[arg-type]
            autoreset="disabled",
            seed=1,
            **options,
        )

    # What a list makes of it

    def stacked(self, frames: list[Array]) -> Array:
        filling = np.zeros_like(frames[0]) if self.padding == "zeros" else frames[0]
        picked = ([filling] * self.stack + frames)[-self.stack :]
        return np.stack(picked) if self.stack > 1 else picked[0]

    def expected(self, stream: Stream) -> Obs:
        return {key: self.stacked(frames) for key, frames in stream.context.items()}

    def note(self, number: int, obs: Obs, next_obs: Obs, told: bool | None, values: dict[str, Any]) -> None:
        """Take a step as the documentation has it."""
        stream = self.streams[number]
        goes_on = stream.running
        if goes_on and told is not None:
            goes_on = not told
        elif goes_on:
            known = self.expected(stream)
            for key, part in self.parts.items():
                newest = known[key] if part.stacked or self.stack == 1 else known[key][-1]
                goes_on = goes_on and bool((newest == obs[key]).all())
        if not goes_on:
            self.cut_offs += stream.running
            stream.episode += 1
            for key, part in self.parts.items():
                stream.context[key] = [f.copy() for f in obs[key]] if part.stacked and self.stack > 1 else [obs[key].copy()]
        step = {"obs": self.expected(stream), "episode": stream.episode, **values}
        for key, part in self.parts.items():
            stream.context[key].append((next_obs[key][-1] if part.stacked and self.stack > 1 else next_obs[key]).copy())
        stream.steps.append(step | {"next_obs": self.expected(stream)})
        stream.running = not (values["terminated"] or values["truncated"])
        self.order.append(number)

    # Feeding

    def play(self, number: int, ending: str, manner: str, seed: int) -> tuple[Obs, Obs, bool | None, dict[str, Any]]:
        """Step an environment; return what its wrappers and the caller give for it."""
        rng, env = np.random.default_rng([seed, number]), self.envs[number]
        obs = env.look()
        env.step()
        next_obs, told = env.look(), None
        if manner == "normalised":
            obs, next_obs = normalised(obs, seed % 5), normalised(next_obs, seed % 5)
        elif manner == "normalised, told":
            obs, next_obs, told = normalised(obs, seed % 5), normalised(next_obs, seed % 5), False
        elif manner == "overwritten, told" and not self.any_stacked:
            obs, told = next_obs, False
        elif manner == "negative zeros":
            obs = with_negative_zeros(obs)
        elif manner == "told that it is new":
            told = True
        values = {
            "action": (rng.normal(size=self.action.shape) * 50).astype(self.action.dtype),
            "reward": np.float32(rng.normal()),
            "terminated": ending == "terminated",
            "truncated": ending == "truncated",
            "wide": rng.normal(size=300).astype(np.float32),
            "sure": bool(rng.integers(2)),
        }
        self.note(number, obs, next_obs, told, values)
        if ending != "goes on":
            env.reset()
        return obs, next_obs, told, values

    @property
    def any_stacked(self) -> bool:
        return self.stack > 1 and any(part.stacked for part in self.parts.values())

    def given(self, all_obs: list[Obs]) -> Any:
        found = {key: np.stack([obs[key] for obs in all_obs]) for key in self.parts}
        return found.get("", found)

    def add(self, endings: list[str], manner: str, seed: int) -> None:
        """One step of every environment; `endings` tells what happens to each after it."""
        played = [self.play(number, ending, manner, seed) for number, ending in enumerate(endings)]
        obs, next_obs = self.given([p[0] for p in played]), self.given([p[1] for p in played])
        values = {name: np.stack([p[3][name] for p in played]) for name in played[0][3]}
        told: Any = None if played[0][2] is None else np.array([p[2] for p in played])
        if self.n == 1 and seed % 2:
            obs, next_obs = (_first(each) for each in (obs, next_obs))
            values = {name: value[0] for name, value in values.items()}
            told = None if told is None else bool(told[0])
        assert self.buffer.add(obs, next_obs=next_obs, new_episode=told, **values) == self.n
        for array in (*_arrays(obs), *_arrays(next_obs)):
            array[...] = 1  # as an environment does that uses its arrays again

    def extend(self, number: int, lengths: list[tuple[int, str]], manner: str, seed: int) -> None:
        """Episodes of one environment at once; the first goes on where it was."""
        played = []
        for length, ending in lengths:
            for k in range(length):
                played.append(self.play(number, ending if k == length - 1 else "goes on", manner, seed + k))
        columns: dict[str, Any] = {name: np.stack([p[3][name] for p in played]) for name in played[0][3]}
        told: Any = None if played[0][2] is None else np.array([p[2] for p in played])
        if told is not None and not told.any() and seed % 2:
            told = False
        obs, next_obs = self.given([p[0] for p in played]), self.given([p[1] for p in played])
        assert self.buffer.extend(obs, next_obs=next_obs, env=number, new_episode=told, **columns) == len(played)
        for array in (*_arrays(obs), *_arrays(next_obs)):
            array[...] = 1

    def cut_off(self) -> None:
        self.buffer.cut_off()
        for env, stream in zip(self.envs, self.streams, strict=True):
            self.cut_offs += stream.running
            stream.running = False
            env.reset()

    def clear(self) -> None:
        self.buffer.clear()
        for stream in self.streams:
            self.cut_offs += stream.running
            stream.running, stream.steps = False, []
        self.order = []

    def resize(self, capacity: int | None) -> None:
        left, order = self.buffer._reader.index.steps().tolist(), list[int]()
        for stream in reversed(self.order):  # what is gone by now does not come back
            if left[stream]:
                left[stream] -= 1
                order.append(stream)
        self.buffer.resize(capacity)
        self.order, self.capacity = order[::-1], capacity

    # Comparing

    def check(self) -> None:
        """Compare every step that can be sampled, and that those that must be there are."""
        index = self.buffer._reader.index
        total = int(index.steps().sum())
        assert len(self.buffer) == total
        if self.capacity is None:
            assert total == len(self.order)
        else:
            assert total == min(self.capacity, len(self.order))
        if not total:
            with pytest.raises(db.errors.EmptyBufferError):
                self.buffer.sample(3)
            return
        streams, positions, *_ = index.locate(np.arange(total))
        names = self.buffer.steps()
        np.testing.assert_array_equal(names, positions * self.n + streams)
        counts = index.steps().tolist()
        kept = [step for s, stream in enumerate(self.streams) for step in stream.steps[len(stream.steps) - counts[s] :]]
        self.compare(self.buffer.at(names), kept)
        self.compare_n_steps(counts)
        self.compare_episodes(counts)
        newest = self.order if self.capacity is None else self.order[-self.capacity :]
        assert counts == [newest.count(s) for s in range(self.n)]

    def compare(self, batch: dict[str, Any], kept: list[dict[str, Any]]) -> None:
        for name in ("action", "reward", "terminated", "truncated", "wide", "sure"):
            np.testing.assert_array_equal(batch[name].numpy(), np.stack([step[name] for step in kept]), err_msg=name)
        for name in ("obs", "next_obs"):
            for key in self.parts:
                found = batch[name][key] if key else batch[name]
                given = np.stack([step[name][key] for step in kept])
                np.testing.assert_array_equal(found.numpy(), given, err_msg=f"{name}/{key}")

    def compare_n_steps(self, counts: list[int]) -> None:
        for s, stream in enumerate(self.streams):
            steps = stream.steps[len(stream.steps) - counts[s] :]
            if not steps:
                continue
            batch = self.buffer.at(self.buffer.steps(np.arange(len(steps))[::-1].copy(), s), n_step=N_STEP, gamma=GAMMA)
            folded = [[o for o in steps[n : n + N_STEP] if o["episode"] == step["episode"]] for n, step in enumerate(steps)]
            rewards = [sum(GAMMA**k * float(step["reward"]) for k, step in enumerate(some)) for some in folded]
            np.testing.assert_allclose(batch["reward"].numpy(), rewards, rtol=1e-5, atol=1e-6)
            assert batch["terminated"].tolist() == [some[-1]["terminated"] for some in folded]
            for key in self.parts:
                found = batch["next_obs"][key] if key else batch["next_obs"]
                np.testing.assert_array_equal(found.numpy(), np.stack([some[-1]["next_obs"][key] for some in folded]))

    def compare_episodes(self, counts: list[int]) -> None:
        """Compare lengths of episodes, and sequences across each whole one, stacks and all."""
        episodes = self.buffer.episodes
        assert self.buffer.stats()["episodes"] >= len(episodes)
        for s, stream in enumerate(self.streams):
            steps, at = stream.steps[len(stream.steps) - counts[s] :], 0
            names = np.split(self.buffer.steps(), np.cumsum(counts)[:-1])[s]
            mine = [episodes[int(n)] for n in np.flatnonzero(episodes.stream == s)]
            numbers = [step["episode"] for step in steps]
            assert [e.length for e in mine] == [numbers.count(n) for n in dict.fromkeys(numbers)]
            for episode in mine:
                here, at = steps[at : at + episode.length], at + episode.length
                sequence = self.buffer.at([episode.start], length=episode.length)
                self.compare({name: _first(value) for name, value in sequence.items()}, here)
                whole = self.buffer.episode(episode)
                obs = whole.pop("obs")
                self.compare({**whole, "obs": _cut(obs, slice(-1)), "next_obs": _cut(obs, slice(1, None))}, here)
                assert whole["steps"].tolist() == names[at - episode.length : at].tolist()

    # Closing

    def reopen(self) -> None:
        self.buffer.close()
        self.buffer = db.ReplayBuffer(self.path, autoreset="disabled")
        self.cut_offs = 0

    def crash(self) -> None:
        """Forget the buffer without closing it, as a kill does; what the system holds for a process is given back by hand."""
        abandon(self.buffer)
        self.buffer = db.ReplayBuffer(self.path, autoreset="disabled")
        self.cut_offs = 0


def _first(value: Any) -> Any:
    return _cut(value, 0)


def _cut(value: Any, where: Any) -> Any:
    return {key: _cut(part, where) for key, part in value.items()} if isinstance(value, dict) else value[where]


def _arrays(obs: Any) -> list[Array]:
    return list(obs.values()) if isinstance(obs, dict) else [obs]


def abandon(buffer: db.ReplayBuffer) -> None:
    buffer._closing.abandon()


ENDINGS = st.sampled_from(["goes on"] * 6 + ["terminated", "truncated", "cut off"])
MANNERS = st.sampled_from(
    ["plain"] * 4 + ["normalised", "normalised, told", "overwritten, told", "negative zeros", "told that it is new"]
)


@pytest.mark.filterwarnings("ignore:.*steps cut off an episode")
@examples(3, 25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_step_is_what_was_added(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([1, 1, 2, 3]), "streams")
    stack = data.draw(st.sampled_from([1, 2, 4]), "stack")
    keys = data.draw(st.sampled_from(KEYS), "keys")
    parts = {
        key: Part(data.draw(st.sampled_from(FRAMES)), data.draw(st.sampled_from(DTYPES)), data.draw(st.booleans()))
        for key in keys
    }
    capacity = data.draw(st.sampled_from([None, 5, 20, 40, 100]), "capacity")
    with tempfile.TemporaryDirectory() as directory:
        world = World(
            Path(directory) / "store",
            n,
            stack,
            parts,
            capacity,
            data.draw(st.sampled_from(["first", "zeros"]), "padding"),
            data.draw(st.sampled_from(["first", "zeros", "dirty"]), "filling"),
            data.draw(st.integers(0, 6), "steps played before"),
            db.Column(data.draw(st.sampled_from([(), (2,)])), data.draw(st.sampled_from(["int8", "int64", "float32"]))),
            chunk_rows=data.draw(st.sampled_from([None, 1, 4]), "rows of a chunk"),  # None: a small store is not compressed
        )
        try:
            play(world, data)
        finally:  # where an example is given up, the directory goes, and nothing can be closed any more
            if not world.buffer._closing.closed:
                abandon(world.buffer)


def play(world: World, data: st.DataObject) -> None:
    """Do what was drawn, and compare with the list after each."""
    for _ in range(data.draw(st.integers(1, 12), "rounds")):
        what = data.draw(
            st.sampled_from([*["add"] * 5, *["extend"] * 2, "flush", "reopen", "crash", "cut", "seal", "clear", "resize"]), "what"
        )
        seed = data.draw(st.integers(0, 1000), "seed")
        manner = data.draw(MANNERS, "manner")
        if what == "add":
            for k in range(data.draw(st.integers(1, 40), "steps")):
                world.add([data.draw(ENDINGS) for _ in range(world.n)], manner, seed + k)
        elif what == "extend":
            lengths = data.draw(st.lists(st.tuples(st.integers(1, 60), ENDINGS), min_size=1, max_size=3), "lengths")
            world.extend(data.draw(st.integers(0, world.n - 1), "env"), lengths, manner, seed)
        elif what == "flush":
            world.buffer.flush()
        elif what == "seal":
            world.buffer.flush(recompress=True)
        elif what == "cut":
            world.cut_off()
        elif what == "reopen":
            world.reopen()
        elif what == "clear":
            world.clear()
        elif what == "resize":
            world.resize(data.draw(st.sampled_from([None, 5, 30, 200]), "capacity"))
        else:
            world.crash()
        assert world.buffer.stats()["cut_off"] == world.cut_offs
        world.check()
    world.reopen()
    world.check()
    assert world.buffer.check(progress=False).ok
    world.buffer.close()
