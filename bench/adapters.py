"""Our buffers for Stable-Baselines3, TorchRL and Tianshou beside their own: `sample`, `add`, `model.learn`, and memory.

    python -m bench.adapters [--only vectors] --json FILE

Vectors of 4 floats and stacks of four Atari frames; everything is warm. Each buffer is in a process of its own, filled through
the library's own `add` or `extend`, and they take turns; so do the learners. Of the two that add a million steps the memory is
compared: what a process with the library's smallest buffer takes is subtracted.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bench.frames import frames
from bench.measure import ONLY, Report, parser, ratio
from bench.peers.peer import choose_threads
from bench.transitions import Transitions
from bench.verification import take_turns
from bench.worker import Worker, in_turns

STACK, EPISODE = 4, 500
ADDED = 16  # steps in a row; with many more of them a busy machine interrupts the slower one more often
GOALS, GOAL_STEPS = 8, 50_000
MANY, ROOM = 64, 1_000_000
EXTENDED, CAPACITY = 1_000, 100_000

LEARNING = """
import sys, time
import ale_py, gymnasium
gymnasium.register_envs(ale_py)
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack
from diskbuffer.adapters.sb3 import DiskReplayBuffer
of, path, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=4, seed=0), 4)
ours = {"replay_buffer_class": DiskReplayBuffer, "replay_buffer_kwargs": {"path": path, "frame_stack": 4}} if of == "ours" else {}
model = DQN("CnnPolicy", env, buffer_size=20_000, learning_starts=500, train_freq=4, batch_size=32, seed=0, device="cpu", **ours)
model.learn(1_000)
for _ in sys.stdin:
    begin = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    print((time.perf_counter() - begin) / steps, flush=True)
"""

FILLING = """
import os, sys, re
import numpy as np
import psutil
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from diskbuffer.adapters.sb3 import DiskReplayBuffer
of, path, steps, pixels = sys.argv[1], sys.argv[2], int(sys.argv[3]), np.load(sys.argv[4], mmap_mode="r")
space, actions = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6)
if of == "ours":
    buffer = DiskReplayBuffer(steps, space, actions, "cpu", path=path, frame_stack=4)
else:
    buffer = ReplayBuffer(64, space, actions, "cpu")
stack = np.zeros((1, 4, 84, 84), np.uint8)
stack[0, -1] = pixels[0]
action, reward, done = np.zeros(1, np.int64), np.zeros(1, np.float32), np.zeros(1, bool)
for t in range(steps if of == "ours" else 1_000):
    following = np.concatenate([stack[:, 1:], np.asarray(pixels[(t + 1) % len(pixels)])[None, None]], axis=1)
    done[0] = t % 500 == 499
    buffer.add(stack, following, action, reward, done, [{}])
    stack = following
    if done[0]:
        stack = np.zeros_like(stack)
        stack[0, -1] = following[0, -1]
for _ in range(200):
    buffer.sample(256)
smaps = open("/proc/self/smaps_rollup").read()
print(int(re.search(r"Anonymous: *([0-9]+)", smaps)[1]) * 1024)
"""


class Buffer:
    """A library's buffer, its own or ours, that is full of steps and gets more of them.

    Observations go on from step to step, in episodes of `EPISODE`, and come again and again: they are in the CPU's cache, as an
    environment leaves them.

    Parameters
    ----------
    of : str
        "ours", or the library's own, by name.
    transitions : Transitions
        The observations, of all environments in turn.
    environments : int
        How many of them.
    filled : int
        Steps that it has before it is measured.
    room : int
        Steps that it has room for.
    directory : Path
        Where it may write.
    """

    kinds: ClassVar[tuple[str, ...]] = ("own",)

    def __init__(self, of: str, transitions: Transitions, environments: int, filled: int, room: int, directory: Path) -> None:
        self._environments, self._at = environments, 0
        observations = transitions.observations
        self._single, self._pixels = environments == 1, observations.dtype == np.uint8
        each = EPISODE + 1
        self._obs = [np.ascontiguousarray(observations[k : k + each * environments : each]) for k in range(each)]
        for k in range(transitions.stack - 1):  # as a wrapper begins an episode: with its first frame, several times
            self._obs[k] = self._obs[k].copy()
            self._obs[k][:, : transitions.stack - 1 - k] = self._obs[0][:, -1:]
        self._action, self._flags = np.zeros(environments, np.int64), np.zeros(environments, np.bool_)
        self._reward, self._ends = np.ones(environments, np.float32), np.ones(environments, np.bool_)
        self._make(of, transitions, room, directory)
        self._fill(filled)

    def _fill(self, filled: int) -> None:
        for _ in range(filled // self._environments):
            self._next()

    def _next(self) -> None:
        k, self._at = self._at, (self._at + 1) % EPISODE
        self._step(k, self._at == 0)

    def _make(self, of: str, transitions: Transitions, capacity: int, directory: Path) -> None:
        raise NotImplementedError

    def _step(self, k: int, done: bool) -> None:
        """Add step `k` of all environments."""
        raise NotImplementedError

    def sample(self, size: int) -> Any:
        """Draw steps."""
        return self._buffer.sample(size)

    def tune(self, size: int) -> None:
        """Let torch use as many threads as are fastest."""
        choose_threads(lambda: self.sample(size))

    def add(self) -> None:
        """Add `ADDED` steps, one by one."""
        for _ in range(ADDED):
            self._next()

    _buffer: Any


class StableBaselines3(Buffer):
    """`ReplayBuffer`, and `DiskReplayBuffer`."""

    def _make(self, of: str, transitions: Transitions, capacity: int, directory: Path) -> None:
        from stable_baselines3.common.buffers import ReplayBuffer

        from bench.peers.sb3 import spaces_of
        from diskbuffer.adapters.sb3 import DiskReplayBuffer

        make: Any = ReplayBuffer
        if of == "ours":
            make = functools.partial(DiskReplayBuffer, path=directory / "store", frame_stack=transitions.stack)
        self._buffer = make(capacity, *spaces_of(transitions), "cpu", n_envs=self._environments)
        self._infos: list[dict[str, Any]] = [{} for _ in range(self._environments)]

    def _step(self, k: int, done: bool) -> None:
        ends = self._ends if done else self._flags
        self._buffer.add(self._obs[k], self._obs[k + 1], self._action, self._reward, ends, self._infos)


class TorchRL(Buffer):
    """`ReplayBuffer`, with its storages and with `DiskStorage`. It holds steps of any number of environments in one row."""

    kinds = ("LazyTensorStorage", "LazyMemmapStorage")

    def _make(self, of: str, transitions: Transitions, capacity: int, directory: Path) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer

        from diskbuffer.adapters.torchrl import DiskStorage

        if of == "ours":
            storage = DiskStorage(capacity, directory / "store", frame_stack=transitions.stack)
        elif of == "LazyMemmapStorage":
            storage = LazyMemmapStorage(capacity, scratch_dir=str(directory / "memmap"))
        else:
            storage = LazyTensorStorage(capacity)
        self._buffer = ReplayBuffer(storage=storage, batch_size=256)
        observations = transitions.observations

        def steps(first: int, n: int) -> Any:
            flags = torch.zeros(n, 1, dtype=torch.bool)
            ends = {"done": flags.clone(), "terminated": flags.clone(), "truncated": flags.clone()}
            ends["done"][-1] = ends["terminated"][-1] = True
            now, later = (torch.from_numpy(np.ascontiguousarray(observations[at : at + n])) for at in (first, first + 1))
            following = TensorDict({"observation": later, "reward": torch.ones(n, 1), **ends}, [n])
            flat = {"action": torch.arange(n) % 6, "done": flags, "terminated": flags.clone(), "truncated": flags.clone()}
            return TensorDict({"observation": now, **flat, "next": following}, [n])

        self._many, one = steps(0, EXTENDED), steps(0, EPISODE)
        self._one = [one[k] for k in range(EPISODE)]
        self._steps, self._parts = steps, (len(observations) - 1) // EXTENDED

    def _fill(self, filled: int) -> None:
        for number in range(filled // EXTENDED):
            self._buffer.extend(self._steps(number % self._parts * EXTENDED, EXTENDED))

    def _step(self, k: int, done: bool) -> None:
        self._buffer.add(self._one[k])

    def extend(self) -> None:
        """Add 1,000 steps at once."""
        self._buffer.extend(self._many)


class Tianshou(Buffer):
    """`ReplayBuffer` or `VectorReplayBuffer`, and ours. Frames are single, and stacked when they are drawn."""

    def _make(self, of: str, transitions: Transitions, capacity: int, directory: Path) -> None:
        from tianshou.data import Batch, ReplayBuffer, VectorReplayBuffer

        from diskbuffer.adapters.tianshou import DiskReplayBuffer, DiskVectorReplayBuffer

        options: dict[str, Any] = {"stack_num": STACK, "ignore_obs_next": True} if self._pixels else {}
        if of == "ours":
            options["path"] = directory / "store"
        make: Any = {
            ("own", True): ReplayBuffer,
            ("own", False): VectorReplayBuffer,
            ("ours", True): DiskReplayBuffer,
            ("ours", False): DiskVectorReplayBuffer,
        }[of, self._single]
        self._buffer = make(capacity, *(() if self._single else (self._environments,)), **options)
        self._batch = Batch
        self._numbers = np.arange(self._environments)

    def _step(self, k: int, done: bool) -> None:
        flat: tuple[Any, ...] = (self._action, self._reward, self._ends if done else self._flags, self._flags)
        obs, next_obs, (act, rew, terminated, truncated) = self._obs[k], self._obs[k + 1], flat
        if self._single:
            obs, next_obs, act, rew, terminated, truncated = (each[0] for each in (obs, next_obs, *flat))
        step = {"obs": obs, "act": act, "rew": rew, "terminated": terminated, "truncated": truncated, "obs_next": next_obs}
        batch = self._batch(**step, info={} if self._single else np.array([{}] * self._environments))
        if self._single:
            self._buffer.add(batch)
        else:
            self._buffer.add(batch, buffer_ids=self._numbers)


class Hindsight(StableBaselines3):
    """`HerReplayBuffer`, and `DiskHerReplayBuffer`, with episodes of an environment that flips 8 bits."""

    def __init__(self, of: str, steps: int, directory: Path) -> None:
        from stable_baselines3 import HerReplayBuffer
        from stable_baselines3.common.envs import BitFlippingEnv
        from stable_baselines3.common.vec_env import DummyVecEnv

        from diskbuffer.adapters.sb3 import DiskHerReplayBuffer

        env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=GOALS, continuous=True)])
        make: Any = HerReplayBuffer
        if of == "ours":
            make = functools.partial(DiskHerReplayBuffer, path=directory / "store")
        self._buffer = make(GOAL_STEPS, env.observation_space, env.action_space, env=env, n_envs=1)
        rng = np.random.default_rng(0)
        env.seed(0)
        obs: Any = env.reset()
        for _ in range(steps):
            action = rng.uniform(-1, 1, (1, GOALS)).astype(np.float32)
            following, reward, done, infos = env.step(action)
            last: Any = following
            if done[0]:
                last = {name: infos[0]["terminal_observation"][name][None] for name in following}
            self._buffer.add(obs, last, action, reward, done, infos)
            obs = following


LIBRARIES = {"Stable-Baselines3": StableBaselines3, "TorchRL": TorchRL, "Tianshou": Tianshou}


def compare(
    report: Report,
    what: str,
    of: dict[str, Worker],
    method: str,
    *arguments: int,
    rounds: int,
    at_least: float | None,
    by: int = 1,
) -> None:
    """Time a method of all in turn; the library's fastest buffer counts."""
    if method == "sample":
        for worker in of.values():
            worker.ask("tune", *arguments)
    times = in_turns(of, method, *arguments, rounds=rounds)
    for name, taken in times.items():
        report.times(f"{what}, {name}", [seconds / by for seconds in taken], 1e6, "us")
    best = min((name for name in times if name != "ours"), key=lambda name: float(np.median(times[name])))
    what = f"{what}: times as fast as {'its own' if best == 'own' else best}"
    report.row(what, ratio(times[best], times["ours"]), "x", at_least=at_least)


def all_of(
    report: Report, library: str, kind: str, n: int, environments: int, directory: Path, rounds: int, room: int | None = None
) -> None:
    """Compare `sample` and `add` of one library's buffers, for one kind of observation.

    `room` is for how many steps ours is made, where the library's own has no RAM for as many.
    """
    make, pixels = LIBRARIES[library], kind == "frames"
    stack = STACK if pixels and library != "Tianshou" else 1  # which stacks single frames itself
    rooms = dict.fromkeys(make.kinds, max(n, CAPACITY // 10 if pixels else CAPACITY))
    rooms = {"ours": room or max(rooms.values()), **rooms}
    made = frames(n + 1) if pixels else np.random.default_rng(0).normal(size=(n + 1, 4)).astype(np.float32)
    transitions = Transitions.save(made, directory / "frames.npy", stack)
    of: dict[str, Worker] = {}
    try:
        for name, steps in rooms.items():
            of[name] = Worker(make, name, transitions, environments, n, steps, Path(tempfile.mkdtemp(dir=directory)))
        for worker in of.values():
            worker.ready()
        what = f"{library}, {kind}" + (f" of {environments} environments" if environments > 1 else "")
        for size, at_least in ((32, 1.2 if pixels else 0.8), (256, 2.0 if pixels else 1.0)):
            compare(report, f"{what}: sample({size})", of, "sample", size, rounds=rounds, at_least=at_least)
        compare(report, f"{what}: add", of, "add", rounds=rounds, at_least=0.7, by=ADDED)
        if library == "TorchRL":
            compare(report, f"{what}: extend({EXTENDED:,})", of, "extend", rounds=rounds, at_least=1)
    finally:
        for worker in of.values():
            worker.close()


def vectors(report: Report, directory: Path, rounds: int) -> None:
    """Vectors of 4 floats, of one environment and of eight."""
    for library in LIBRARIES:
        for environments in (1, 8) if library != "TorchRL" else (1,):
            n = 5_000 if report.quick else 20_000
            all_of(report, library, "vectors of 4", n, environments, Path(tempfile.mkdtemp(dir=directory)), rounds)


def pixels(report: Report, directory: Path, rounds: int) -> None:
    """Stacks of four frames."""
    for library in LIBRARIES:
        all_of(report, library, "frames", 4_000 if report.quick else 12_000, 1, Path(tempfile.mkdtemp(dir=directory)), rounds)


def many(report: Report, directory: Path, rounds: int) -> None:
    """Stacks of four frames, of 64 environments, in a buffer for a million steps."""
    of = 8 if report.quick else MANY
    all_of(report, "Stable-Baselines3", "frames", (EPISODE + 1) * of + STACK, of, directory, rounds, ROOM)


def goals(report: Report, directory: Path, rounds: int) -> None:
    """Replace goals, with 50,000 steps stored."""
    steps = 5_000 if report.quick else GOAL_STEPS
    of = {name: Worker(Hindsight, name, steps, Path(tempfile.mkdtemp(dir=directory))) for name in ("ours", "own")}
    try:
        what = f"Stable-Baselines3, hindsight, {steps:,} steps: sample(256)"
        compare(report, what, of, "sample", 256, rounds=rounds, at_least=1)
    finally:
        for worker in of.values():
            worker.close()


def learning(report: Report, directory: Path, rounds: int) -> None:
    """Compare `model.learn`."""
    here, steps = Path(__file__).resolve().parents[1], 200 if report.quick else 1_000
    codes = {"ours": here, "theirs": here}
    found = take_turns(LEARNING, codes, min(rounds, 7), str(directory / "learning"), str(steps), named=True)
    for name, seconds in found.items():
        report.times(f"Stable-Baselines3: DQN.learn, a step, {name}", seconds)
    speed = ratio(found["theirs"], found["ours"])
    report.row("Stable-Baselines3: steps a second of DQN.learn, against its own", speed, "x", at_least=0.95)


def memory(report: Report, directory: Path, rounds: int) -> None:
    """Compare memory, with a million steps on disk and next to none in RAM."""
    steps = 20_000 if report.quick else 1_000_000
    np.save(directory / "frames.npy", frames(12_000 if report.quick else 96_000))
    bytes_of = {}
    for of in ("ours", "theirs"):
        command = [sys.executable, "-c", FILLING, of, str(directory / "memory"), str(steps), str(directory / "frames.npy")]
        bytes_of[of] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    more = (bytes_of["ours"] - bytes_of["theirs"]) / 1e6
    report.row(f"Stable-Baselines3: memory for {steps:,} stacked steps", more, "MB", at_most=150)


PARTS = {part.__name__: part for part in (vectors, pixels, many, goals, learning, memory)}


def directories() -> Iterator[Path]:
    """Yield new directories, and remove each when the next is asked for."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    """Run all parts, or some."""
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help=ONLY)
    args = options.parse_args()
    report = Report("adapters", args.seed, quick=args.quick)
    for name, directory in zip(args.only, directories(), strict=False):
        PARTS[name](report, directory, 5 if args.quick else 15)
        report.write(args.json, keep=len(args.only) < len(PARTS))


if __name__ == "__main__":
    main()
