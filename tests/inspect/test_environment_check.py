"""What `check_env` finds in environments of every kind is what is true of them, written down by hand, and nothing else."""

from __future__ import annotations

import multiprocessing
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import AtariPreprocessing, FlattenObservation, FrameStackObservation
from stable_baselines3.common.vec_env import DummyVecEnv

import diskbuffer as db
from diskbuffer.inspect.environment_check import EnvironmentReport

gym.register_envs(ale_py)
NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


# Environments that are made here


class Made(gym.Env[Any, Any]):
    """Observations that count, by what the action says; each option is one thing that environments do."""

    def __init__(
        self,
        shape: tuple[int, ...] = (3,),
        dtype: str = "float32",
        length: int = 7,
        keys: tuple[str, ...] = (),
        shown: Callable[[np.ndarray[Any, Any]], Any] = np.copy,
        reward: Callable[[int], Any] = lambda n: float(n) + 0.5,
        flag: Callable[[bool], Any] = bool,
        high: float = 1e6,
    ) -> None:
        box = spaces.Box(-high, high, shape, np.dtype(dtype).type) if dtype != "uint8" else spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = spaces.Dict(dict.fromkeys(keys, box)) if keys else box
        self.action_space = spaces.Box(0, 1, (2,), np.float32)
        self.offsets = (np.arange(np.prod(shape)).reshape(shape) * 0.25).astype(dtype)
        self.dtype, self.length, self.keys, self.shown, self.reward, self.flag = dtype, length, keys, shown, reward, flag

    def look(self) -> Any:
        obs = (self.offsets + self.value).astype(self.dtype)
        return {key: self.shown(obs + n) for n, key in enumerate(self.keys)} if self.keys else self.shown(obs)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n, self.value = 0, float(self.np_random.integers(0, 100))
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.n, self.value = self.n + 1, self.value + 1 + float(action.sum())
        return self.look(), self.reward(self.n), self.flag(self.n == self.length), self.flag(False), {}


def reusing() -> Callable[[np.ndarray[Any, Any]], Any]:
    """Return what gives every observation in the same array."""
    kept: list[Any] = []

    def shown(obs: np.ndarray[Any, Any]) -> Any:
        kept[:] = kept or [obs.copy()]
        np.copyto(kept[0], obs)
        return kept[0]

    return shown


def in_turn() -> Callable[[np.ndarray[Any, Any]], Any]:
    """Return what gives observations in two arrays in turn."""
    first, second = reusing(), reusing()
    calls = iter([first, second] * 10_000)
    return lambda obs: next(calls)(obs)


def once(wrong: float) -> Callable[[np.ndarray[Any, Any]], Any]:
    """Return what puts a value into the twentieth observation."""
    numbers = iter(range(10_000))

    def shown(obs: np.ndarray[Any, Any]) -> Any:
        if next(numbers) == 20:
            obs[0] = wrong
        return obs

    return shown


def at_resets(wrong: float) -> Callable[[np.ndarray[Any, Any]], Any]:
    """Return what puts a value into the observation of each reset of an environment of seven steps."""
    numbers = iter(range(10_000))

    def shown(obs: np.ndarray[Any, Any]) -> Any:
        if next(numbers) % 8 == 0:
            obs[0] = wrong
        return obs

    return shown


def in_shapes() -> Callable[[np.ndarray[Any, Any]], Any]:
    """Return what makes each observation longer than the one before."""
    numbers = iter(range(3, 10_000))
    return lambda obs: np.resize(obs, next(numbers))


class Stacking(gym.Wrapper[Any, Any, Any, Any]):
    """Stack frames along any axis, as no wrapper of Gymnasium does; the last axis may be one that frames have already."""

    def __init__(self, env: Made, frames: int, axis: int, joined: bool = False, fill: str = "first") -> None:
        super().__init__(env)
        self.frames, self.axis, self.joined, self.fill = frames, axis, joined, fill
        old = env.observation_space
        assert isinstance(old, spaces.Box)
        self.held = [np.zeros(old.shape, old.dtype)] * frames
        shape = self.stacked().shape
        self.observation_space = spaces.Box(old.low.min(), old.high.max(), shape, old.dtype.type)

    def stacked(self) -> Any:
        return np.concatenate(self.held, self.axis) if self.joined else np.stack(self.held, self.axis)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**options)
        filler = {"first": obs, "zeros": np.zeros_like(obs), "other": np.ones_like(obs)}[self.fill]
        self.held = [filler] * (self.frames - 1) + [obs]
        return self.stacked(), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, *rest = self.env.step(action)
        self.held = [*self.held[1:], obs]
        return self.stacked(), *rest


class WritesToActions(Made):
    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        action *= 0.5
        return super().step(action)


class Fails(Made):
    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self.n == 3:
            raise RuntimeError("the simulator is gone")
        return super().step(action)


class MadeVector(gym.vector.VectorEnv[Any, Any, Any]):
    """A vector that resets in one way, and may say that it does in another."""

    def __init__(self, does: str, says: AutoresetMode | None, final: bool = True, **options: Any) -> None:
        self.envs, self.num_envs = [Made(length=6 + n, **options) for n in range(3)], 3
        self.does, self.final = does, final
        self.single_observation_space, self.single_action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, 3)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 3)
        self.metadata = {} if says is None else {"autoreset_mode": says}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.over = np.zeros(3, bool)
        return np.stack([env.reset(seed=None if seed is None else seed + n)[0] for n, env in enumerate(self.envs)]), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rows, finals = [], np.full(3, None, dtype=object)
        for n, env in enumerate(self.envs):
            if self.over[n] and self.does == "next step":
                rows.append((env.reset()[0], 0.0, False, False))
                continue
            obs, reward, over, cut, _ = env.step(actions[n])
            over |= self.does == "waits" and env.n > env.length
            if over and self.does == "same step":
                finals[n], obs = obs, env.reset()[0]
            rows.append((obs, reward, over, cut))
        obs, rewards, over, cut = (np.array(column) for column in zip(*rows, strict=True))
        self.over = over
        info = {"final_obs": finals, "_final_obs": over} if over.any() and self.final and self.does == "same step" else {}
        return obs, rewards, over, cut, info


# The table: what each is, and what is true of it


class Truth(NamedTuple):
    """What is known of an environment by reading it: findings, autoreset mode, stacks, and the buffer's frame stack."""

    findings: tuple[str, ...] = ()
    autoreset: str | None = None
    stack: tuple[int, int, int, str | None] | None = None
    frame_stack: int = 1
    steps: int = 60


class Case(NamedTuple):
    name: str
    make: Callable[[], Any]
    truth: Truth


def gymnasiums(name: str, *findings: str, **options: Any) -> Case:
    return Case(name, lambda: gym.make(name, **options), Truth(findings))


def made(name: str, *findings: str, stack: Any = None, frame_stack: int = 1, **options: Any) -> Case:
    return Case(name, lambda: Made(**options), Truth(findings, None, stack, frame_stack))


def cartpole() -> Any:
    return gym.make("CartPole-v1")


def stacked(padding: Any) -> Callable[[], Any]:
    return lambda: FrameStackObservation(cartpole(), 4, padding_type=padding)


def vector(kind: Any, mode: AutoresetMode) -> Case:
    name = f"{kind.__name__}, {mode.value}"
    return Case(name, lambda: kind([cartpole] * 3, autoreset_mode=mode), Truth((), MODES[mode]))


def stacked_vector(mode: AutoresetMode, padding: str, filled: str) -> Case:
    def make() -> Any:
        return SyncVectorEnv([stacked(padding)] * 2, autoreset_mode=mode)

    return Case(f"vector of stacks, {mode.value}, {padding}", make, Truth((), MODES[mode], (4, 0, 1, filled), 4))


def atari_vector(mode: AutoresetMode) -> Any:
    return AtariVectorEnv("pong", num_envs=2, autoreset_mode=mode, max_num_frames_per_episode=20)


MODES = {NEXT: "next_step", SAME: "same_step", DISABLED: "disabled"}
NO_END, FLOAT64 = "no end", "float64 observations"
REFUSED = "not stored"  # with what add says, after a finding that tells why
FRAME: dict[str, Any] = {"shape": (5, 6), "dtype": "uint8"}
CASES = [
    # Gymnasium's own
    gymnasiums("CartPole-v1"),
    gymnasiums("Acrobot-v1", NO_END),
    gymnasiums("MountainCar-v0", NO_END),
    gymnasiums("MountainCarContinuous-v0", NO_END),
    gymnasiums("Pendulum-v1", NO_END),
    gymnasiums("FrozenLake-v1"),
    gymnasiums("Taxi-v4", NO_END),
    gymnasiums("CliffWalking-v1", NO_END),
    gymnasiums("LunarLander-v3", max_episode_steps=20),
    gymnasiums("LunarLanderContinuous-v3", max_episode_steps=20),
    gymnasiums("BipedalWalker-v3", max_episode_steps=20),
    gymnasiums("CarRacing-v3", max_episode_steps=20),
    gymnasiums("InvertedPendulum-v5", FLOAT64),
    *(gymnasiums(f"{name}-v5", FLOAT64, max_episode_steps=20) for name in ("HalfCheetah", "Hopper", "Walker2d")),
    *(gymnasiums(f"{name}-v5", FLOAT64, max_episode_steps=20) for name in ("Ant", "Humanoid", "Swimmer", "Reacher")),
    gymnasiums("phys2d/CartPole-v1"),
    Case(  # which adds the old state's reward when it resets
        "phys2d, a vector",
        lambda: gym.make_vec("phys2d/CartPole-v1", 3, vectorization_mode="vector_entry_point"),
        Truth(("rewards of resets",), "next_step"),
    ),
    # Vectors
    *(vector(SyncVectorEnv, mode) for mode in MODES),
    *(vector(AsyncVectorEnv, mode) for mode in MODES),
    Case(
        "CartPole's own vector",
        lambda: gym.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point"),
        Truth((), "next_step"),
    ),
    Case("FrozenLake, a vector", lambda: gym.make_vec("FrozenLake-v1", 3), Truth((), "next_step")),
    Case(
        "SyncVectorEnv that does not copy",
        lambda: SyncVectorEnv([cartpole] * 2, copy=False),
        Truth(("reuses arrays",), "next_step"),
    ),
    Case(
        "AsyncVectorEnv that does not copy",
        lambda: AsyncVectorEnv([cartpole] * 2, copy=False),
        Truth(("reuses arrays",), "next_step"),
    ),
    # Atari
    Case("Pong, a frame", lambda: AtariPreprocessing(gym.make("ALE/Pong-v5", frameskip=1)), Truth((NO_END,))),
    gymnasiums("ALE/Breakout-v5", NO_END, obs_type="ram"),
    Case("ALE's vector, NextStep", lambda: atari_vector(NEXT), Truth((), "next_step", (4, 0, 1, "zeros"), 4)),
    Case("ALE's vector, SameStep", lambda: atari_vector(SAME), Truth((), "same_step", (4, 0, 1, "zeros"), 4)),
    Case(
        "ALE's vector by make_vec",
        lambda: gym.make_vec("ALE/Breakout-v5", 2),
        Truth((NO_END,), "next_step", (4, 0, 1, "zeros"), 4, 30),
    ),
    # Stacks
    Case("stacks, zero", stacked("zero"), Truth((), None, (4, 0, 1, "zeros"), 4)),
    Case("stacks, reset", stacked("reset"), Truth((), None, (4, 0, 1, "first"), 4)),
    Case("stacks, custom", stacked(np.full(4, 0.1, np.float32)), Truth((), None, (4, 0, 1, "other"), 4)),
    *(stacked_vector(mode, *filled) for mode in MODES for filled in (("zero", "zeros"), ("reset", "first"))),
    Case(
        "stacks, flattened",
        lambda: FlattenObservation(stacked("zero")()),
        Truth(("stack not recognised",), None, (4, 0, 4, "zeros")),
    ),
    Case(
        "stacks that no wrapper makes",
        lambda: Stacking(Made(**FRAME), 3, 0, fill="zeros"),
        Truth(("stack not recognised",), None, (3, 0, 1, "zeros")),
    ),
    Case(
        "stacks on the last axis",
        lambda: Stacking(Made(**FRAME), 4, -1),
        Truth(("stack not recognised",), None, (4, 2, 1, "first")),
    ),
    Case(
        "stacks of colours on the last axis",
        lambda: Stacking(Made((5, 6, 3), "uint8"), 4, -1, joined=True, fill="other"),
        Truth(("stack not recognised",), None, (4, 2, 3, "other")),
    ),
    made("pictures that never change", shape=(4, 4), shown=np.zeros_like),
    made("a vector of two that never changes", shape=(2,), shown=np.zeros_like),
    made("a vector of two", shape=(2,)),
    made("episodes of one step", length=1),
    made("pictures", **FRAME),
    Case(
        "stacks of pictures that never change",
        lambda: Stacking(Made(shape=(4, 4), shown=np.zeros_like), 4, 0),
        Truth(),
    ),
    # Arrays, dtypes, values
    made("one array", "reuses arrays", shown=reusing()),
    made("two arrays in turn", "reuses arrays", shown=in_turn()),
    made("a dict", keys=("left", "right")),
    made("a dict of one array", "reuses arrays", keys=("left", "right"), shown=reusing()),
    made("float64", FLOAT64, dtype="float64"),
    made("float64 in a space of float32", "dtype of observations", shown=np.float64),
    made("NaN once", "NaN in observations", REFUSED, shown=once(np.nan)),
    made("infinite once", "NaN in observations", REFUSED, shown=once(np.inf)),
    made("out of its space once", "observations outside of their space", shown=once(-1e7)),
    made("out of its space at resets", "observations outside of their space", shown=at_resets(-1e7)),
    Case("writes to actions", WritesToActions, Truth(("changes actions",))),
    # Rewards and flags
    made("rewards of shape (1,)", "odd rewards", reward=lambda n: np.array([n / 2])),
    made("whole rewards", reward=lambda n: n),
    made("whole rewards that are large", "odd rewards", reward=lambda n: 2**24 + n),
    made("rewards that are flags", "odd rewards", reward=lambda n: n > 1),
    made("rewards of float32", reward=np.float32),
    made("NaN in a reward", "NaN in rewards", REFUSED, reward=lambda n: np.nan if n == 3 else 1.0),
    made("flags that are integers", "odd flags", "odd flags", flag=int),
    made("flags of numpy", flag=np.bool_),
    made("flags of shape ()", flag=np.array),
    made("flags of shape (1,)", "odd flags", "odd flags", flag=lambda over: np.array([over])),
    # How vectors reset, and what they say
    Case("next step, as it says", lambda: MadeVector("next step", NEXT), Truth((), "next_step")),
    Case("same step, as it says", lambda: MadeVector("same step", SAME), Truth((), "same_step")),
    Case("same step, says next", lambda: MadeVector("same step", NEXT), Truth(("autoreset mode",), "same_step")),
    Case(
        "same step, says disabled",
        lambda: MadeVector("same step", DISABLED),
        Truth(("autoreset mode", "resets others"), "same_step"),
    ),
    Case("next step, says same", lambda: MadeVector("next step", SAME), Truth(("autoreset mode",), "next_step")),
    Case("next step, says nothing", lambda: MadeVector("next step", None), Truth(("autoreset mode",), "next_step")),
    Case("waits, says next", lambda: MadeVector("waits", NEXT), Truth(("autoreset mode",), "disabled")),
    Case("waits, resets all", lambda: MadeVector("waits", DISABLED), Truth(("resets others",), "disabled")),
    Case(
        "same step without final_obs, says next",
        lambda: MadeVector("same step", NEXT, final=False),
        Truth(("autoreset mode", "no final_obs"), "same_step"),
    ),
    Case(
        "same step without final_obs and rewards",
        lambda: MadeVector("same step", SAME, final=False, reward=lambda n: 0.0),
        Truth(("no final_obs",), "same_step"),
    ),
    Case(
        "next step without rewards, says same",
        lambda: MadeVector("next step", SAME, reward=lambda n: 0.0),
        Truth(("autoreset mode",), "next_step"),
    ),
    Case(
        "final_obs is the reset",
        lambda: SyncVectorEnv([lambda: Made(shown=reusing())] * 2, autoreset_mode=SAME),
        Truth(("final_obs not real",), "same_step"),
    ),
]


OFTEN = {  # all others are of the nightly set
    *("CartPole-v1", "SyncVectorEnv, NextStep", "SyncVectorEnv, SameStep", "SyncVectorEnv that does not copy", "stacks, zero"),
    *(
        "stacks that no wrapper makes",
        "stacks on the last axis",
        "pictures that never change",
        "one array",
        "float64",
        "NaN once",
    ),
    *(
        "rewards of shape (1,)",
        "flags that are integers",
        "same step, says next",
        "next step, says same",
        "final_obs is the reset",
    ),
}


@pytest.fixture(autouse=True)
def _leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []


def checked_alone(name: str) -> EnvironmentReport:
    """Check an environment of the table in a process of its own: where JAX was imported, no later test can fork."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_checked, name).result()


def _checked(name: str) -> EnvironmentReport:
    case = next(case for case in CASES if case.name == name)
    return checked(case.make(), episodes=6, steps=case.truth.steps)


def checked(env: Any, **options: Any) -> EnvironmentReport:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of environments
        return db.check_env(env, **options)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=[] if case.name in OFTEN else [pytest.mark.nightly]) for case in CASES]
)
def test_what_is_found_is_what_is_true(case: Case) -> None:
    truth, env = case.truth, None
    if "phys2d" in case.name:
        report = checked_alone(case.name)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = case.make()
        report = checked(env, episodes=6, steps=truth.steps)
    assert sorted(finding.name for finding in report.findings) == sorted(truth.findings), report
    assert (report.autoreset, report.frame_stack) == (truth.autoreset, truth.frame_stack), report
    found = {(each.frames, each.axis, each.width, each.padding) for each in report.stacks.values()}
    assert found == ({truth.stack} if truth.stack else set()), report
    assert report.episodes == 0 if NO_END in truth.findings else report.episodes >= 2
    if REFUSED not in truth.findings:
        resets = report.episodes if report.autoreset == "next_step" else 0
        assert report.n_envs * report.steps - resets <= report.compared <= report.n_envs * report.steps
    if env is not None:
        env.reset(seed=1)  # it is open still
        env.close()


def test_there_are_as_many_environments_as_were_promised() -> None:
    assert len(CASES) >= 40
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.name for case in CASES} >= OFTEN


# What it takes, says and raises


def test_it_says_what_it_did_in_sentences() -> None:
    report = checked(SyncVectorEnv([stacked("zero")] * 2), episodes=4)
    assert str(report).splitlines() == [
        f"2 environments, {report.steps} steps of each, 4 episodes ended.",
        f"{report.compared} steps came out of a store as they went in, bit for bit.",
        str(report).splitlines()[2],
        "Autoreset mode: next_step.",
        "obs: stacks of 4 frames along axis 0, an episode's first filled with zeros.",
        "",
        "Nothing odd was found.",
    ]
    assert str(report).splitlines()[2].startswith("A million steps take ")
    assert "\n- note, float64 observations: obs is float64, " in str(checked(Made(dtype="float64"), episodes=1))


def test_the_same_is_found_again() -> None:
    env = SyncVectorEnv([cartpole] * 2)
    assert checked(env, episodes=3, seed=3) == checked(env, episodes=3, seed=3)


def test_what_it_says_to_give_a_buffer_for_stacks_is_right(tmp_path: Path) -> None:
    env = Stacking(Made(**FRAME), 3, 0, fill="zeros")
    (finding,) = checked(env, episodes=3).findings
    assert finding.text.endswith("to store each once, give ReplayBuffer frame_stack=3, padding='zeros'")
    with (
        tempfile.TemporaryDirectory() as place,
        db.ReplayBuffer(Path(place) / "x", env=env, frame_stack=3, padding="zeros") as buffer,
    ):
        seen, (obs, _) = [], env.reset(seed=0)
        for _ in range(30):
            following, reward, over, cut, _ = env.step(np.ones(2, np.float32))
            buffer.add(obs, np.ones(2, np.float32), reward, following, over, cut)
            seen.append((obs, following))
            obs = env.reset()[0] if over else following
        assert buffer.columns["obs"].shape == (5, 6)
        batch = buffer.at(buffer.steps(), numpy=True)
        for name, values in zip(("obs", "next_obs"), zip(*seen, strict=True), strict=True):
            np.testing.assert_array_equal(batch[name], np.stack(values))


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("CartPole-v1", {}, "env must be a gymnasium.Env"),
        (Made(), {"episodes": 0}, "episodes must be an integer of at least 1, found 0"),
        (Made(), {"steps": 2.0}, "steps must be an integer"),
        (Made(), {"seed": -1}, "seed must be"),
        (DummyVecEnv([Made]), {}, "expected a gymnasium.Env or a gymnasium.vector.VectorEnv, found DummyVecEnv"),
        (gym.make("Blackjack-v1"), {}, "obs has the space Tuple"),
        (Made(flag=lambda over: None), {}, "expected 1 numbers or flags as terminated"),
        (Made(shown=in_shapes()), {}, "expected observations of shape .* from step"),
    ],
)
def test_what_does_not_fit_is_told(env: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(db.InputError, match=said):
        db.check_env(env, **options)


def test_what_an_environment_raises_says_when() -> None:
    with pytest.raises(RuntimeError, match="the simulator is gone") as raised:
        db.check_env(Fails())
    assert raised.value.__notes__ == ["the environment raised this in step(), after 3 steps"]
