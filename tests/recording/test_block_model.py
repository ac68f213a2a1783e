"""Blocks of steps of any shape, by `add` and `extend` in turns, against a plain model of streams and their episodes."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from tests.amounts import amount, examples
from tests.bools import bytes_of_bools, disguised
from tests.support.specimens import copy_while_open

Array = npt.NDArray[Any]
SHAPES: tuple[tuple[int, ...], ...] = ((), (3,), (40, 30))  # the last is packed
DTYPES = ("bool", "uint8", "int64", "float16", "float32", "float64")


@dataclass
class Episode:
    """The frames of an episode, those before its first step among them, by part; and what was done."""

    frames: dict[str, list[Array]]
    prefix: int  # frames before the first step's own, which a stack brought along
    actions: list[int] = field(default_factory=list)
    is_over: bool = False


@dataclass
class Stream:
    """One environment's episodes, as the documentation has them."""

    episodes: list[Episode] = field(default_factory=list)
    was_reset: bool = False

    def add(self, world: World, now: dict[str, Array], after: dict[str, Array], step: dict[str, Any], told: bool | None) -> bool:
        """Take a step; return whether it is one, and no reset."""
        running = bool(self.episodes) and not self.episodes[-1].is_over
        same = bool(self.episodes) and all(
            bool((now[path] == world.newest(path, self.episodes[-1])).all()) for path in world.parts
        )
        same = (same if told is None or not running else True) and told is not True
        ends = step["terminated"] or step["truncated"]
        if self.episodes and not running and world.next_step and not self.was_reset and same and not ends and step["reward"] == 0:
            self.was_reset = True
            return False
        self.was_reset = False
        if not (running and same):
            world.cut_offs += running
            own = {path: list(now[path]) if world.stacked[path] else [now[path]] for path in world.parts}
            prefix = max(len(frames) for frames in own.values()) - 1
            for path, frames in own.items():  # of the others, the first one fills up
                filling = np.zeros_like(frames[0]) if world.zeros else frames[0]
                own[path] = [filling] * (prefix + 1 - len(frames)) + frames
            self.episodes.append(Episode(own, prefix))
        episode = self.episodes[-1]
        for path in world.parts:
            episode.frames[path].append(after[path][-1] if world.stacked[path] else after[path])
        episode.actions.append(step["action"])
        episode.is_over = ends
        return True


class World:
    """Environments, the model of what they did, and how all of it is given."""

    def __init__(self, data: st.DataObject) -> None:
        draw = data.draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        self.n, self.stack = draw(st.sampled_from([1, 2, 3, amount(4, 64)])), draw(st.sampled_from([1, 1, 3]))
        self.zeros, self.mode = draw(st.booleans()), draw(st.sampled_from(["next_step", "same_step", "disabled"]))
        self.next_step = self.mode == "next_step"
        names = draw(st.sampled_from([("obs",), ("obs/a", "obs/b")]))
        self.parts = {path: db.Column(draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES))) for path in names}
        self.stacked = {path: self.stack > 1 and draw(st.booleans()) for path in names}
        self.kinds = draw(st.sampled_from([2, 100]))  # few, so that observations are the same by chance
        self.streams, self.cut_offs = [Stream() for _ in range(self.n)], 0
        self.now = [self.first() for _ in range(self.n)]
        self.count = 0

    def frame(self, column: db.Column) -> Array:
        frame = self.rng.integers(0, self.kinds, column.shape).astype(column.np_dtype)
        return np.asarray(-frame if column.np_dtype.kind == "f" and self.rng.random() < 0.1 else frame)

    def first(self) -> dict[str, Array]:
        found = {}
        for path, column in self.parts.items():
            frames = [self.frame(column) for _ in range(self.stack)]
            if self.rng.random() < 0.7:
                frames = [np.zeros_like(frames[0]) if self.zeros else frames[-1]] * (self.stack - 1) + [frames[-1]]
            found[path] = np.stack(frames) if self.stacked[path] else frames[-1]
        return found

    def newest(self, path: str, episode: Episode) -> Array:
        frames = episode.frames[path]
        return self.stack_of(frames, len(frames) - 1) if self.stacked[path] else frames[-1]

    def stack_of(self, frames: list[Array], at: int) -> Array:
        filling = np.zeros_like(frames[0]) if self.zeros else frames[0]
        return np.stack(([filling] * self.stack + frames[: at + 1])[-self.stack :])

    def steps(self, n: int, envs: list[int], tell: bool) -> tuple[dict[str, Any], Array | None, int]:
        """Play `n` steps of some environments, in the model, too; return (n, envs, ...) arrays, what is told, and a count."""
        rows: dict[str, Any] = {path: [] for path in ("action", "reward", "terminated", "truncated", "masked")}
        rows |= {path: [] for path in self.parts} | {"next_" + path: [] for path in self.parts}
        told, added = self.rng.random((n, len(envs))) < 0.2 if tell else None, 0
        each = {env: [self.play(env, None if told is None else bool(told[t, k])) for t in range(n)] for k, env in enumerate(envs)}
        for steps in each.values():
            added += sum(step.pop("added") for step in steps)
        for path in rows:
            column = self.parts.get(path.removeprefix("next_"))
            dtype = column.np_dtype if column else {"action": np.int64, "reward": np.float32}.get(path, np.bool_)
            rows[path] = np.array([[each[env][t][path] for env in envs] for t in range(n)], dtype)
        return rows, None if told is None else disguised(told, self.rng), added

    def play(self, env: int, told: bool | None) -> dict[str, Any]:
        goes_on_anyway = (
            told is False and self.next_step and any(self.stacked.values())
        )  # then stored stacks are none that were given
        if self.rng.random() < 0.1 and not goes_on_anyway:
            self.now[env] = self.first()
        now, after = self.now[env], {}
        for path, column in self.parts.items():
            frame = self.frame(column)
            after[path] = np.concatenate([now[path][1:], frame[None]]) if self.stacked[path] else frame
        self.count += 1
        step = {
            "action": self.count,
            "reward": float(self.rng.random() < 0.5),
            "terminated": self.rng.random() < 0.1,
            "truncated": self.rng.random() < 0.1,
            "masked": self.count % 3 == 0,
        }
        added = self.streams[env].add(self, now, after, step, told)
        ends = step["terminated"] or step["truncated"]
        self.now[env] = self.first() if ends and not self.next_step else after
        return {"added": added} | step | now | {"next_" + path: value for path, value in after.items()}

    def reset_in_the_same_step(self, steps: dict[str, Any]) -> dict[str, Any]:
        """Put what environments were reset to in place of what ended their episodes; return the info that has that."""
        ended = np.flatnonzero(steps["terminated"][0] | steps["truncated"][0])
        final: list[Any] = [None] * self.n
        for env in ended.tolist():
            last = {path: steps["next_" + path][0, env].copy() for path in self.parts}
            final[env] = last["obs"] if "obs" in last else {path.split("/")[1]: value for path, value in last.items()}
            for path in self.parts:
                steps["next_" + path][0, env] = self.now[env][path]
        return {"final_obs": final}

    def check(self, buffer: db.ReplayBuffer) -> None:
        for env, stream in enumerate(self.streams):
            episodes = [episode for episode in stream.episodes if episode.actions]
            ids = [
                episode.start + np.arange(episode.length) * buffer.n_envs for episode in buffer.episodes if episode.stream == env
            ]
            assert [len(some) for some in ids] == [len(episode.actions) for episode in episodes]
            if not ids:
                continue
            batch = buffer.at(np.concatenate(ids))
            assert batch["action"].tolist() == [action for episode in episodes for action in episode.actions]
            assert batch["masked"].tolist() == [action % 3 == 0 for action in batch["action"].tolist()]
            for name in ("obs", "next_obs"):
                for path in self.parts:
                    key = path.split("/")[1:]
                    found = (batch[name][key[0]] if key else batch[name]).numpy()
                    expected = []
                    for episode in episodes:
                        for t in range(len(episode.actions)):
                            at = episode.prefix + t + (name == "next_obs")
                            frames = episode.frames[path]
                            expected.append(self.stack_of(frames, at) if self.stack > 1 else frames[at])
                    np.testing.assert_array_equal(found, np.stack(expected), err_msg=f"{env} {name} {path}")
        assert buffer.stats()["cut_off"] == self.cut_offs


def given_as(world: World, rows: dict[str, Any], squeeze: int | None) -> dict[str, Any]:
    """Return arrays as somebody has them: in another order, as tensors or lists; without an axis, where one is to be left out.

    What is true may be any byte but 0 there, and is 1 in the store.
    """
    found: dict[str, Any] = {}
    for path, array in rows.items():
        if squeeze is not None:
            array = np.take(array, 0, axis=squeeze)
        array = disguised(array, world.rng) if array.dtype == np.bool_ else array
        way = world.rng.integers(8)
        if way == 0 and array.ndim > 1:
            array = np.ascontiguousarray(np.swapaxes(array, 0, 1)).swapaxes(0, 1)  # environments before steps, in memory
        elif way == 1:
            array = torch.from_numpy(array.copy())
        elif way == 2 and array.size < 1000:
            array = array.tolist()
        elif way == 3 and path == "reward":
            array = array.astype(np.float64)
        elif way == 4:
            array = np.repeat(array, 2, axis=0)[::2]
        part, _, key = path.partition("/")
        if key:
            found.setdefault(part, {})[key] = array
        else:
            found[part] = array
    return found


@pytest.mark.filterwarnings("ignore:.*cut off an episode")
@pytest.mark.filterwarnings("ignore:the last observations of all")  # small values are equal by chance
@examples(6, 60)
@given(st.data())
def test_blocks_of_any_shape_are_the_steps_that_they_hold(data: st.DataObject) -> None:
    world = World(data)
    options: dict[str, Any] = {
        "n_envs": world.n,
        "frame_stack": world.stack,
        "padding": "zeros" if world.zeros else "first",
        "autoreset": world.mode,
    }
    rows = data.draw(st.sampled_from([8, 32, 256]))
    with tempfile.TemporaryDirectory() as where, contextlib.ExitStack() as opened:
        path = Path(where) / "store"

        def reopen(**more: Any) -> db.ReplayBuffer:
            return opened.enter_context(db.ReplayBuffer(path, **options, **more))

        buffer = reopen(
            columns=world.parts | {"action": db.Column((), "int64"), "masked": db.Column((), "bool")},
            segment_rows=max(rows, 32) if any(c.shape == SHAPES[2] for c in world.parts.values()) else rows,
        )
        for _ in range(data.draw(st.integers(1, 8))):
            what = data.draw(st.sampled_from(["add", "add", "extend", "block", "reopen", "kill", "flush", "cut off"]))
            tell = data.draw(st.booleans())
            if what == "add":
                for _ in range(data.draw(st.integers(1, 20))):
                    steps, told, added = world.steps(1, [*range(world.n)], tell)
                    info = world.reset_in_the_same_step(steps) if world.mode == "same_step" else None
                    call = given_as(world, steps, 0)
                    assert buffer.add(**call, info=info, new_episode=None if told is None else told[0]) == added
            elif what in ("extend", "block"):
                n, envs = data.draw(st.integers(1, 60)), [*range(world.n)]
                if what == "extend":
                    envs = [data.draw(st.integers(0, world.n - 1))]
                steps, told, added = world.steps(n, envs, tell)
                alone = len(envs) == 1
                call = given_as(world, steps, 1 if alone else None)
                told = told[:, 0] if told is not None and alone else told
                assert buffer.extend(**call, env=envs[0] if what == "extend" else None, new_episode=told) == added
            elif what in ("reopen", "kill"):
                if what == "kill":
                    copy_while_open(path, path := path.with_name(f"{path.name}+"))
                buffer.close()
                buffer = reopen()
                world.cut_offs = 0
            elif what == "flush":
                buffer.flush()
            else:
                world.cut_offs += sum(bool(s.episodes) and not s.episodes[-1].is_over for s in world.streams)
                buffer.cut_off()
                for stream in world.streams:
                    if stream.episodes:
                        stream.episodes[-1].is_over, stream.was_reset = True, True  # what comes next starts an episode
        world.check(buffer)
        buffer.close()
        with db.ReplayBuffer(path, **options) as buffer:
            world.cut_offs = 0
            world.check(buffer)
        assert db.check(path, progress=False).ok
        assert bytes_of_bools(path) <= {0, 1}


def small(path: Path, **options: Any) -> db.ReplayBuffer:
    columns = {"obs": db.Column((2,)), "action": db.Column((), "int64")}
    return db.ReplayBuffer(path, columns=columns, segment_rows=8, autoreset="disabled", **options)


def test_a_trajectory_of_all_environments_needs_no_next_obs(tmp_path: Path) -> None:
    obs = np.arange(2 * 21 * 3, dtype=np.float32).reshape(21, 3, 2)
    with small(tmp_path / "store", n_envs=3) as buffer:
        for part in (slice(0, 9), slice(8, 21)):
            n = len(obs[part]) - 1
            assert buffer.extend(obs[part], np.zeros((n, 3), int), np.ones((n, 3))) == 3 * n
        assert buffer.episodes.length.tolist() == [20] * 3
        for env in range(3):
            batch = buffer.at(buffer.steps(np.arange(20)[::-1].copy(), env))
            np.testing.assert_array_equal(batch["next_obs"].numpy(), obs[1:, env])
        with pytest.raises(db.InputError, match="give env= for those of one"):
            buffer.extend(obs[:, 0], np.zeros(20, int), np.ones(20))
        with pytest.raises(db.InputError, match="truncated is True at step 3 of 20"):
            buffer.extend(obs, np.zeros((20, 3), int), np.ones((20, 3)), truncated=np.arange(60).reshape(20, 3) == 10)


def test_what_a_block_of_all_environments_evicts_is_the_oldest(tmp_path: Path) -> None:
    """Environments advance together, however many steps come at once: the newest steps of each are there."""
    obs = np.arange(2 * 301 * 4, dtype=np.float32).reshape(301, 4, 2)
    with small(tmp_path / "store", n_envs=4, capacity=100) as buffer:
        buffer.extend(obs, np.arange(300)[:, None].repeat(4, axis=1), np.ones((300, 4)))
        for env in range(4):
            assert buffer.at(buffer.steps(np.arange(25), env))["action"].tolist() == list(range(299, 274, -1))


@pytest.mark.parametrize("wrong", ["nan", "stack"])
def test_nothing_of_a_block_is_recorded_where_something_in_it_does_not_fit(wrong: str, tmp_path: Path) -> None:
    columns = {"obs": db.Column((2,)), "action": db.Column((), "int64")}
    frames = np.arange(2 * 503, dtype=np.float32).reshape(503, 1, 2).repeat(2, axis=1)
    stacks = np.stack([frames[k : k + 501] for k in range(3)], axis=2)
    before, after, reward = stacks[:-1].copy(), stacks[1:].copy(), np.ones((500, 2))
    if wrong == "nan":
        reward[499, 1] = np.nan
    else:
        after[499, 1, 0] += 1
    with db.ReplayBuffer(
        tmp_path / "store", columns=columns, n_envs=2, frame_stack=3, segment_rows=8, autoreset="disabled"
    ) as buffer:
        message = (
            "reward: found NaN or infinity"
            if wrong == "nan"
            else "obs of step 499 of the arrays of environment 1: expected a rolling"
        )
        with pytest.raises(db.DiskBufferError, match=message):
            buffer.extend(before, np.zeros((500, 2), int), reward, after)
        assert len(buffer) == 0
        assert buffer.stats()["added"] == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA, and torch sees none")
def test_tensors_of_a_device_are_recorded_as_those_of_the_host(tmp_path: Path) -> None:
    obs, action = torch.rand(51, 2, 2), torch.arange(100).reshape(50, 2)
    call = {"obs": obs[:-1], "next_obs": obs[1:], "action": action, "reward": torch.ones(50, 2), "terminated": action == 60}
    with small(tmp_path / "host", n_envs=2) as host, small(tmp_path / "device", n_envs=2) as device:
        host.extend(**call)  # type: ignore[arg-type]
        device.extend(**{name: value.cuda() for name, value in call.items()})  # type: ignore[arg-type]
        one, other = host.at(host.steps()), device.at(device.steps())
        for name, values in one.items():
            assert torch.equal(values, other[name])


def test_an_environment_that_looks_the_same_resets_once_at_an_end(tmp_path: Path) -> None:
    """In next-step mode the step after the reset is one, though it looks the same, and earns nothing."""
    same, none = np.zeros(2, np.float32), {"terminated": False, "truncated": False}
    columns = {"obs": db.Column((2,)), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, autoreset="next_step") as buffer:
        assert buffer.add(same, 0, 0.0, same, True, False) == 1
        assert [buffer.add(same, 0, 0.0, same, **none) for _ in range(3)] == [0, 1, 1]
        assert buffer.episodes.length.tolist() == [1, 2]


@pytest.mark.parametrize("how", ["close", "kill", "cut off, close"])
def test_that_the_reset_came_is_known_after_opening_again(tmp_path: Path, how: str) -> None:
    """After a reset, or where an episode was cut off, what looks like one more reset is a step."""
    same, none = np.zeros(2, np.float32), {"terminated": False, "truncated": False}
    columns, path = {"obs": db.Column((2,)), "action": db.Column((), "int64")}, tmp_path / "store"
    buffer = db.ReplayBuffer(path, columns=columns, autoreset="next_step")
    assert buffer.add(same, 0, 0.0, same, how != "cut off, close", False) == 1
    if how == "cut off, close":
        buffer.cut_off()
    else:
        assert buffer.add(same, 0, 0.0, same, **none) == 0
    if how == "kill":
        copy_while_open(path, path := tmp_path / "killed")
    buffer.close()
    with db.ReplayBuffer(path) as buffer:
        assert [buffer.add(same, 0, 0.0, same, **none) for _ in range(3)] == [1, 1, 1]
        assert buffer.episodes.length.tolist() == [1, 3]
    assert db.check(path, progress=False).ok


@pytest.mark.parametrize("name", ["info", "infos"])
def test_what_ended_an_episode_may_come_as_tensors(name: str, tmp_path: Path) -> None:
    columns = {"obs": db.Column((2,)), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, n_envs=2, autoreset="same_step") as buffer:
        obs = torch.arange(4.0).reshape(2, 2)
        over, not_over = torch.tensor([True, False]), torch.tensor([False, False])
        buffer.add(obs, [0, 0], [0, 0], obs + 4, over, not_over, **{name: {"final_obs": [torch.full((2,), 8.0), None]}})
        assert buffer.at(buffer.steps())["next_obs"].tolist() == [[8, 8], [6, 7]]


def test_a_column_may_be_called_infos(tmp_path: Path) -> None:
    columns = {"obs": db.Column(), "action": db.Column()}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, extra={"infos/x": db.Column()}) as buffer:
        buffer.add(0, 0, 0, 1, True, False, infos={"x": 3})
        assert buffer.at(buffer.steps())["infos"]["x"].tolist() == [3]


@pytest.mark.some(8)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 4)])
@pytest.mark.parametrize("has_axis", [True, False])
@pytest.mark.parametrize("kind", ["array", "list", "objects", "stable-baselines3"])
def test_what_ended_a_single_environments_episode_may_lack_its_axis(
    tmp_path: Path, kind: str, has_axis: bool, shape: tuple[int, ...]
) -> None:
    columns = {"obs": db.Column(shape, "int64"), "action": db.Column((), "int64")}
    last, objects = np.full(shape, 3), np.empty(1, object)
    objects[0] = last if shape else 3  # as vectors of Gymnasium have it of `Discrete` spaces
    final: Any = {"array": last[None] if has_axis else last, "list": [last], "objects": objects}.get(kind)
    info: Any = [{"terminal_observation": last}] if final is None else {"final_obs": final}
    obs, reset = np.full(shape, 2), np.full(shape, 9)
    with db.ReplayBuffer(tmp_path / "store", columns=columns, autoreset="same_step") as buffer:
        buffer.add(obs, 0, 1.0, reset[None] if has_axis else reset, True, False, info=info)
        assert buffer.at(buffer.steps())["next_obs"].tolist() == [last.tolist()]


@pytest.mark.parametrize(
    ("final", "dtype", "wrong"),
    [
        ([3.5, 1, 1], "int64", "value 3.5"),
        ([300, 0, 0], "uint8", "value 300"),
        ([np.nan, 1, 1], "float32", "NaN"),
        ([1.0], "float32", r"shape \(3,\) as the last one of environment 0, found \(1,\)"),
        (None, "float32", "None for the last observation of environment 0"),
    ],
)
def test_what_ended_an_episode_must_fit(tmp_path: Path, final: Any, dtype: str, wrong: str) -> None:
    columns = {"obs": db.Column((3,), dtype), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, n_envs=2, autoreset="same_step") as buffer:
        given = {"final_obs": [None if final is None else np.array(final), None]}
        obs = np.ones((2, 3), np.int64).astype(dtype)
        with pytest.raises(db.InputError, match=wrong):
            buffer.add(obs, [0, 0], [0, 0], [[1, 1, 1], [1, 1, 1]], [True, False], [False, False], info=given)
        assert len(buffer) == 0


def test_of_a_stack_that_ended_an_episode_the_newest_frame_is_taken_where_frames_are_given(tmp_path: Path) -> None:
    columns = {"obs": db.Column((2,)), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, frame_stack=3, autoreset="same_step") as buffer:
        buffer.add(np.zeros(2), 0, 0.0, np.ones(2), True, False, info={"final_obs": [np.arange(6.0).reshape(3, 2)]})
        assert buffer.at(buffer.steps())["next_obs"][0, -1].tolist() == [4, 5]
