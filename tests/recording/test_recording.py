"""From environments to rows: what a user adds, however the environment is made, is what a user gets back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ale_py.vector_env
import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
import torch
import zarr
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation

import diskbuffer as db
from tests.support.experience import Experience, Feeder

Array = npt.NDArray[Any]
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]
COLUMNS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


class Counting(gymnasium.Env[Any, Any]):
    """Observations tell environment, episode and time; episode e of environment n has ``2 + (n + e) % 3`` steps."""

    action_space = spaces.Discrete(100)

    def __init__(self, number: int = 0, kind: str = "box") -> None:
        self.number, self.kind, self.episode, self.t = number, kind, -1, 0
        box: spaces.Space[Any] = spaces.Box(0, 10_000, (3,), np.int32)
        if kind == "image":
            box = spaces.Box(0, 255, (34, 33), np.uint8)
        elif kind == "dict":
            box = spaces.Dict({"place": box, "inner": spaces.Dict({"image": spaces.Box(0, 255, (34, 33), np.uint8)})})
        self.observation_space = box

    def look(self) -> Any:
        place = np.array([self.number, self.episode, self.t], np.int32)
        image = np.full((34, 33), (1 + self.number * 7 + self.episode * 13 + self.t * 3) % 256, np.uint8)
        return {"box": place, "image": image, "dict": {"place": place, "inner": {"image": image}}}[self.kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over, turn = self.t == 2 + (self.number + self.episode) % 3, self.episode % 2 == 0
        return self.look(), self.t * 0.5, over and turn, over and not turn, {}


def play(env: Any, buffer: db.ReplayBuffer, steps: int) -> list[dict[str, Any]]:
    """Act at random in one environment; return what happened."""
    rng, done, happened = np.random.default_rng(1), True, []
    obs: Any = None
    for _ in range(steps):
        if done:
            obs, _ = env.reset()
        action = int(rng.integers(env.action_space.n))
        next_obs, reward, terminated, truncated, _ = env.step(action)
        buffer.add(obs, action, reward, next_obs, terminated, truncated)
        happened.append(dict(zip(COLUMNS, (obs, action, reward, next_obs, terminated, truncated), strict=True)))
        obs, done = next_obs, terminated or truncated
    return happened


def steps_in_order(buffer: db.ReplayBuffer, stream: int = 0) -> Array:
    """Return the steps of a stream, as its episodes tell."""
    episodes = [episode for episode in map(buffer.episodes.__getitem__, range(len(buffer.episodes))) if episode.stream == stream]
    ids = [episode.start + np.arange(episode.length) * buffer.n_envs for episode in episodes]
    return np.concatenate([np.empty(0, np.int64), *ids])


def check(buffer: db.ReplayBuffer, happened: list[dict[str, Any]], stream: int = 0) -> None:
    """Compare all steps of a stream with what happened there."""
    ids = steps_in_order(buffer, stream)
    assert len(ids) == len(happened)
    batch = buffer.at(ids)
    for name in happened[0]:
        np.testing.assert_array_equal(batch[name].numpy(), np.array([step[name] for step in happened]), err_msg=name)


# One environment


def test_terminated_and_truncated_at_once_is_terminated(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", env=Counting()) as buffer:
        buffer.add([0, 0, 0], 1, 1, [0, 0, 1], True, True)
        assert buffer.episodes[0] == (0, 0, 1, "terminated", "", 0)
        batch = buffer.at([0])
        assert batch["terminated"].item()
        assert batch["truncated"].item()


def test_cutting_off_some_environments_leaves_the_others_running(tmp_path: Path) -> None:
    same = np.zeros((3, 2), np.float32)
    columns = {"obs": db.Column((2,)), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, n_envs=3, autoreset="disabled") as buffer:
        for t in range(6):
            buffer.add(same, [t] * 3, [1] * 3, same, [False] * 3, [False] * 3)
            buffer.cut_off([1] if t == 2 else slice(0, 1) if t == 3 else [])
        assert [(int(s), int(n)) for s, n in zip(buffer.episodes.stream, buffer.episodes.length, strict=True)] == [
            (0, 4),
            (0, 2),
            (1, 3),
            (1, 3),
            (2, 6),
        ]


# Vector environments


def play_vector(envs: Any, buffer: db.ReplayBuffer, steps: int, first: Any = None) -> tuple[Any, int]:
    """Act in a vector environment; return the last observations, and how many steps the buffer took."""
    obs, added = envs.reset(seed=1)[0] if first is None else first, 0
    for t in range(steps):
        actions = (np.arange(envs.num_envs) + t) % 100
        next_obs, reward, terminated, truncated, info = envs.step(actions)
        added += buffer.add(obs, actions, reward, next_obs, terminated, truncated, info=info)
        obs = next_obs
    return obs, added


def counted(number: int, steps: int, next_step: bool) -> list[tuple[int, int, bool, bool]]:
    """Return episode, time and ending of the transitions that a `Counting` makes in so many calls of a vector's step."""
    found, episode, t = [], 0, 0
    for _ in range(steps):
        if t < 0:  # the reset, where that takes a step
            t = 0
            continue
        over = t + 1 == 2 + (number + episode) % 3
        found.append((episode, t, over and episode % 2 == 0, over and episode % 2 == 1))
        t += 1
        if over:
            episode, t = episode + 1, -1 if next_step else 0
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["box", "dict"])
def test_both_autoreset_modes_of_gymnasium_are_recorded_right(mode: AutoresetMode, kind: str, tmp_path: Path) -> None:
    def make(number: int) -> Callable[[], Counting]:
        return lambda: Counting(number, kind)

    envs = SyncVectorEnv([make(n) for n in range(3)], autoreset_mode=mode)
    expected = [counted(n, 50, mode is AutoresetMode.NEXT_STEP) for n in range(3)]
    with db.ReplayBuffer(tmp_path / "store", env=envs) as buffer:
        assert buffer.n_envs == 3
        obs, added = play_vector(envs, buffer, 20)
        added += play_vector(envs, buffer, 30, obs)[1]
        assert added == len(buffer) == sum(map(len, expected))
        assert (added == 150) == (mode is AutoresetMode.SAME_STEP)
        for stream in range(3):
            batch = buffer.at(steps_in_order(buffer, stream))
            episode, time, terminated, truncated = (np.array(column) for column in zip(*expected[stream], strict=True))
            before, after = batch["obs"], batch["next_obs"]
            if kind == "dict":
                image = 1 + stream * 7 + episode * 13 + time * 3
                for frames, offset in ((before, 0), (after, 3)):
                    np.testing.assert_array_equal(frames["inner"]["image"][:, 9, 9].numpy(), (image + offset).astype(np.uint8))
                before, after = before["place"], after["place"]
            np.testing.assert_array_equal(before, np.stack([np.full_like(time, stream), episode, time], 1))
            np.testing.assert_array_equal(after, np.stack([np.full_like(time, stream), episode, time + 1], 1))
            np.testing.assert_array_equal(batch["terminated"], terminated)
            np.testing.assert_array_equal(batch["truncated"], truncated)
            np.testing.assert_array_equal(batch["reward"], (time + 1) * np.float32(0.5))
    envs.close()


def test_a_next_step_reset_right_after_reopening_is_no_transition(tmp_path: Path) -> None:
    envs = SyncVectorEnv([lambda: Counting(0), lambda: Counting(1)], autoreset_mode=AutoresetMode.NEXT_STEP)
    obs = None
    for _ in range(20):  # reopened after every step, and so before every reset
        with db.ReplayBuffer(tmp_path / "store", env=envs) as buffer:
            obs, _ = play_vector(envs, buffer, 1, obs)
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        for stream in range(2):
            batch = buffer.at(steps_in_order(buffer, stream))
            expected = counted(stream, 20, True)
            assert batch["obs"].tolist() == [[stream, episode, t] for episode, t, _, _ in expected]
    envs.close()


@pytest.mark.parametrize("kind", ["the same array", "copies", "nothing moves"])
def test_same_step_autoreset_of_environments_that_use_their_array_again_is_warned_of(
    kind: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    class Walk(gymnasium.Env[Any, Any]):
        observation_space, action_space = gymnasium.spaces.Box(-1, 9, (2,), np.float32), gymnasium.spaces.Discrete(100)

        def __init__(self) -> None:
            self.state = np.zeros(2, np.float32)

        def observe(self, t: int) -> Any:
            self.state[:] = 0 if kind == "nothing moves" else t
            return self.state if kind == "the same array" else self.state.copy()

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
            self.t = 0
            return self.observe(0), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.t += 1
            return self.observe(self.t), 1.0, self.t == 3, False, {}

    envs = SyncVectorEnv([Walk, Walk], autoreset_mode=AutoresetMode.SAME_STEP)
    with db.ReplayBuffer(tmp_path / "store", env=envs) as buffer:
        play_vector(envs, buffer, 30)
        ended = buffer.at(buffer.steps())["terminated"]
        assert (buffer.at(buffer.steps())["next_obs"][ended] == (3 if kind == "copies" else 0)).all()
    envs.close()
    found = [warning for warning in recwarn if "that ended are those" in str(warning.message)]
    assert [warning.filename for warning in found] == [__file__] * (kind == "the same array")


def test_same_step_autoreset_without_info_is_refused_where_an_episode_ends(tmp_path: Path) -> None:
    envs = SyncVectorEnv([lambda: Counting(0), lambda: Counting(1)], autoreset_mode=AutoresetMode.SAME_STEP)
    with db.ReplayBuffer(tmp_path / "store", env=envs) as buffer:
        obs, _ = envs.reset()
        for t in range(2):
            next_obs, reward, terminated, truncated, info = envs.step(np.array([1, 1]))
            assert (terminated | truncated).any() == (t == 1)
            if t == 1:
                for nothing in (None, {}, {"other": 1}):
                    with pytest.raises(db.InputError, match=r"SAME_STEP.*info=info"):
                        buffer.add(obs, [1, 1], reward, next_obs, terminated, truncated, info=nothing)
            assert len(buffer) == 2 * t
            buffer.add(obs, [1, 1], reward, next_obs, terminated, truncated, info=info if t else None)
            obs = next_obs
        assert len(buffer) == 4
    envs.close()


# Frame stacks


@pytest.mark.some(1)
@pytest.mark.parametrize("padding", ["reset", "zero"])
def test_stacks_of_a_wrapper_are_recognised_and_stored_once(
    padding: str, tmp_path: Path, amount: Callable[[int, int], int]
) -> None:
    env = FrameStackObservation(Counting(kind="image"), 4, padding_type=padding)
    kept: Any = {"reset": "first", "zero": "zeros"}[padding]
    with db.ReplayBuffer(tmp_path / "store", env=env, frame_stack=4, padding=kept) as buffer:
        assert buffer.columns["obs"] == db.Column((34, 33), "uint8")
        happened = play(env, buffer, 40)
        check(buffer, happened)
    frames, over = [], True
    for step in happened:  # an episode of T steps is T + 1 frames on disk
        frames += [step["obs"][-1]] if over else []
        frames.append(step["next_obs"][-1])
        over = step["terminated"] or step["truncated"]
    stored = zarr.open_group(str(tmp_path / "store"), mode="r")["obs"]
    assert isinstance(stored, zarr.Array)
    np.testing.assert_array_equal(np.asarray(stored[: len(frames)]), np.array(frames))
    assert not np.asarray(stored[len(frames) : len(frames) + amount(100, stored.shape[0])]).any()
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:  # knows its stack and padding
        check(buffer, happened)


@pytest.mark.nightly
def test_ale_frames_are_recorded_as_its_vector_environment_gives_them(tmp_path: Path) -> None:
    envs = ale_py.vector_env.AtariVectorEnv("breakout", num_envs=2, stack_num=4, max_num_frames_per_episode=240)
    happened: list[list[dict[str, Any]]] = [[], []]
    with db.ReplayBuffer(tmp_path / "store", 10_000, env=envs) as buffer:
        assert buffer.columns["obs"] == db.Column((84, 84), "uint8")
        assert buffer.frame_stack == 4
        obs, _ = envs.reset(seed=3)
        rng, ended = np.random.default_rng(0), np.zeros(2, bool)
        for _ in range(250):
            actions = rng.integers(0, 4, 2)
            next_obs, reward, terminated, truncated, info = envs.step(actions)
            added = buffer.add(obs, actions, reward, next_obs, terminated, truncated, info=info)
            assert added == 2 - ended.sum()
            for n in np.flatnonzero(~ended).tolist():
                values = (obs[n].copy(), actions[n], np.float32(reward[n]), next_obs[n].copy(), terminated[n], truncated[n])
                happened[n].append(dict(zip(COLUMNS, values, strict=True)))
            obs, ended = next_obs, terminated | truncated
        assert sum(step["terminated"] or step["truncated"] for step in happened[0]) > 2
        for n in range(2):
            check(buffer, happened[n], n)
        buffer.flush(recompress=True)
        stats = buffer.stats()
        rows = len(buffer) + len(buffer.episodes)  # and none for the frames before an episode's first
        assert rows * 84 * 84 <= stats["raw_bytes"] < (rows + 10) * (84 * 84 + 100)
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        for n in range(2):
            check(buffer, happened[n], n)
    envs.close()


@pytest.mark.some(1)
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 5)])
@pytest.mark.parametrize("capacity", [None, 100])
def test_another_stack_may_be_asked_for_at_reopening(before: int, after: int, capacity: int | None, tmp_path: Path) -> None:
    world = Experience(2)
    with world.open(tmp_path / "store", capacity, frame_stack=before, segment_rows=8) as buffer:
        Feeder(world, buffer).add(200)
        assert world.check(buffer) >= 100
    for _ in range(2):
        with db.ReplayBuffer(tmp_path / "store", frame_stack=after) as buffer:
            assert buffer.at([buffer.sample(1)["steps"].item()])["obs"].shape == (
                (1, after, 34, 33) if after > 1 else (1, 34, 33)
            )
            assert world.check(buffer) >= 100 - 2 * (after - before if after > before else 0)
            Feeder(world, buffer).add(60)
            assert world.check(buffer) >= 100


# Spaces and columns


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Tuple([spaces.Discrete(2)]), spaces.Graph(spaces.Discrete(2), None)])
def test_a_space_without_a_fixed_shape_is_refused(space: spaces.Space[Any], tmp_path: Path) -> None:
    with pytest.raises(db.errors.SchemaError, match="Box, Discrete, MultiDiscrete, MultiBinary and Dict"):
        db.ReplayBuffer(tmp_path / "store", observation_space=space, action_space=spaces.Discrete(2))
    assert not (tmp_path / "store").exists()


def test_a_part_of_nested_dicts_that_is_missing_or_unknown_is_named(tmp_path: Path) -> None:
    env = Counting(kind="dict")
    with db.ReplayBuffer(tmp_path / "store", env=env) as buffer:
        assert {"obs/place", "obs/inner/image"} <= set(buffer.columns)
        env.reset()
        with pytest.raises(db.InputError, match="missing column 'obs/inner/image'"):
            buffer.add({"place": [1, 1, 1]}, 1, 1, env.look(), False, False)
        with pytest.raises(db.InputError, match="unknown column 'next_obs/smell'"):
            buffer.add(env.look(), 1, 1, {**env.look(), "smell": 3}, False, False)
        assert len(buffer) == 0


@pytest.mark.parametrize(
    ("action", "reward", "flags"),
    [
        (3, 1, (False, False)),
        (np.int64(3), np.float64(1), (np.bool_(False), np.bool_(False))),
        (np.array(3), np.array(1.0), (np.array(False), np.array(False))),
        ([3], [1], ([False], [False])),
        (3.0, 1 + 0j, (0, 0.0)),
        (np.array([3], np.uint8), np.array([1.0]), (np.zeros(1, np.uint8), np.zeros(1))),
        (torch.tensor(3), torch.tensor([1.0]), (torch.tensor(False), torch.tensor([False]))),
    ],
)
def test_values_that_mean_the_same_are_stored_the_same(action: Any, reward: Any, flags: tuple[Any, Any], tmp_path: Path) -> None:
    columns = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        for obs, next_obs in (([1, 2], (3.0, 4.0)), (np.array([[3, 4]], np.int8), np.array([5, 6], np.float64))):
            assert buffer.add(obs, action, reward, next_obs, *flags) == 1
        batch = buffer.at([0, 1])
        assert batch["obs"].tolist() == [[1, 2], [3, 4]]
        assert batch["next_obs"].tolist() == [[3, 4], [5, 6]]
        assert (batch["obs"].dtype, batch["action"].dtype, batch["reward"].dtype) == (torch.float32, torch.int64, torch.float32)
        assert batch["terminated"].dtype == torch.bool
        assert batch["action"].tolist() == [3, 3]
        assert batch["reward"].tolist() == [1, 1]
        assert len(buffer.episodes) == 1


# In bulk


def answers(buffer: db.ReplayBuffer) -> dict[str, Any]:
    episodes = buffer.episodes
    found: dict[str, Any] = {name: getattr(episodes, name).tolist() for name in ("stream", "start", "length", "ending")}
    for stream in range(buffer.n_envs):
        found |= {f"{name} {stream}": value.tolist() for name, value in buffer.at(steps_in_order(buffer, stream)).items()}
    return found | {"added": buffer.stats()["added"]}


@pytest.mark.some(2)
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("padding", ["first", "zeros"])
def test_whole_trajectories_are_as_the_same_steps_one_by_one(stacked: bool, padding: Any, tmp_path: Path) -> None:
    columns = {"obs": db.Column((34, 33), "uint8"), "action": db.Column((), "int64")}
    options: dict[str, Any] = {"columns": columns, "frame_stack": 3, "padding": padding}
    rng = np.random.default_rng(3)
    with db.ReplayBuffer(tmp_path / "one", **options) as one, db.ReplayBuffer(tmp_path / "many", **options) as many:
        for length, ending in ((5, "terminated"), (1, "truncated"), (40, ""), (17, "terminated"), (9, "")):
            frames = rng.integers(1, 255, (length + 1, 34, 33)).astype(np.uint8)
            fill = frames[0] if padding == "first" else np.zeros_like(frames[0])
            padded = np.concatenate([fill[None], fill[None], frames])
            obs = np.stack([padded[t : t + 3] for t in range(length + 1)]) if stacked else frames
            action, reward, over = np.arange(length), rng.normal(size=length), np.arange(length) == length - 1
            flags = {name: over & (ending == name) for name in ("terminated", "truncated")}
            assert many.extend(obs, action, reward, **{k: v for k, v in flags.items() if v.any()}) == length
            for t in range(length):
                one.add(obs[t], t, reward[t], obs[t + 1], flags["terminated"][t], flags["truncated"][t])
        assert answers(one) == answers(many)
        assert many.episodes.ending.tolist() == ["terminated", "truncated", "cut off", "terminated", "running"]
        assert many.episodes.length.tolist() == [5, 1, 40, 17, 9]


# Capacity


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("n_envs", "capacity", "rows", "stack"), [(1, 100, 8, 1), (3, 100, 16, 1), (1, 50, 8, 4), (4, 37, 8, 2), (1, 8, 8, 8)]
)
def test_never_fewer_than_the_newest_capacity_nor_more_than_the_open_segments_on_top(
    n_envs: int, capacity: int, rows: int, stack: int, tmp_path: Path
) -> None:
    world, added = Experience(n_envs), 0
    with world.open(tmp_path / "store", capacity, segment_rows=rows, frame_stack=stack) as buffer:
        feed = Feeder(world, buffer)
        for _ in range(3 * capacity // n_envs + 2 * rows):
            feed.add()
            added += n_envs
            assert min(added, capacity) <= len(buffer) <= min(added, capacity + n_envs * (rows + stack - 1))
        world.check(buffer)
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        assert min(added, capacity) <= world.check(buffer)


def disk_bytes(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def test_the_disk_space_of_what_is_evicted_is_really_free(tmp_path: Path) -> None:
    columns = {"obs": db.Column((64, 64), "uint8"), "action": db.Column((), "int64")}
    rng, taken, files = np.random.default_rng(0), [], []
    with db.ReplayBuffer(tmp_path / "store", 200, columns=columns, segment_rows=32) as buffer:
        for _ in range(8):
            frames = rng.integers(0, 256, (201, 64, 64), np.uint8)  # these do not become smaller
            buffer.extend(frames, np.zeros(200, int), np.zeros(200), terminated=np.arange(200) == 199)
            buffer.flush(recompress=True)
            taken.append(disk_bytes(tmp_path / "store" / "obs"))
            files.append(len(list((tmp_path / "store" / "obs").glob("c.*"))))
        assert buffer.stats()["disk_bytes"] >= taken[-1]
    assert taken[-1] <= (200 + 4 * 32) * 64 * 64 * 1.1
    assert max(taken[2:]) <= 1.25 * min(taken[2:])
    assert max(files) <= 200 // 32 + 4


def test_without_a_capacity_the_store_grows_and_its_arrays_with_it(tmp_path: Path) -> None:
    world = Experience(2)
    with world.open(tmp_path / "store", segment_rows=8) as buffer:
        feed, sizes = Feeder(world, buffer), []
        assert buffer.capacity is None
        for _ in range(5):
            feed.add(100)
            root = zarr.open_group(buffer.path, mode="r")
            lengths = {name: root[name].shape[0] for name in ("obs", "action", "is_last")}  # type: ignore[union-attr]
            slots = {name: root[f"_segments/{name}"].shape[0] for name in ("length", "stream")}  # type: ignore[union-attr]
            assert len(set(lengths.values())) == len(set(slots.values())) == 1
            assert lengths["obs"] == 8 * slots["length"] >= len(buffer)
            sizes.append(lengths["obs"])
        assert sizes == sorted(sizes)
        assert sizes[-1] > 2 * sizes[0]
        assert world.check(buffer) == 1000
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(50)
        assert world.check(buffer) == 1100


def test_whether_each_environment_keeps_its_own_newest_steps_stays_as_it_is(tmp_path: Path) -> None:
    columns = {"obs": db.Column(), "action": db.Column()}
    db.ReplayBuffer(tmp_path / "store", 120, columns=columns, n_envs=3, autoreset="next_step", capacity_each=True).close()
    db.ReplayBuffer(tmp_path / "store", 120, capacity_each=True).close()
    with pytest.raises(db.errors.SchemaError, match="capacity_each: stored True, asked for False"):
        db.ReplayBuffer(tmp_path / "store", capacity_each=False)
