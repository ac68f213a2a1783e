"""Our buffers for Stable-Baselines3, TorchRL and Tianshou beside their own: `sample`, `add`, whole trainings, and memory.

    python -m bench.adapters [--only vectors] --json FILE

Vectors of 4 floats and stacks of four Atari frames; everything is warm. Each buffer is in a process of its own, filled through
the library's own `add` or `extend`, and they take turns; so do the learners, and whole trainings: DQNs that play Atari, where a
network's gradients take most of the time, and some that take no time for anything else: PPO, A2C and DQN play CartPole, TD3 with
hindsight flips bits. Of the two that add a million steps the memory is compared: what a process with the library's smallest
buffer takes is subtracted.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bench.frames import KINDS, frames
from bench.measure import Part, Report, parser, ratio, run, settled
from bench.peers.peer import choose_threads
from bench.peers.sb3 import spaces_of
from bench.transitions import Transitions
from bench.worker import Worker, alone, in_turns, started

STACK, EPISODE = 4, 500
ADDED = 16  # steps in a row; with many more of them a busy machine interrupts the slower one more often
GOALS, GOAL_STEPS = 8, 50_000
MANY, ROOM = 64, 1_000_000
EXTENDED = 1_000


class Buffer:
    """A library's buffer, ours or its own by name, that is full of steps and gets more of them.

    Observations of all environments, in turn, make episodes of `EPISODE` steps that come again and again: they are in the CPU's
    cache, as an environment leaves them. The buffer has room for `room` steps, and `filled` of them before it is measured.
    """

    kinds: ClassVar[tuple[str, ...]] = ("own",)
    _buffer: Any

    def __init__(self, of: str, transitions: Transitions, environments: int, filled: int, room: int, directory: Path) -> None:
        self._transitions, self._environments, self._at = transitions, environments, 0
        observations, each = transitions.observations, EPISODE + 1
        self._obs = [np.ascontiguousarray(observations[k : k + each * environments : each]) for k in range(each)]
        for k in range(transitions.stack - 1):  # as a wrapper begins an episode: with its first frame, several times
            self._obs[k] = self._obs[k].copy()
            self._obs[k][:, : transitions.stack - 1 - k] = self._obs[0][:, -1:]
        self._action, self._flags = np.zeros(environments, np.int64), np.zeros(environments, np.bool_)
        self._reward, self._ends = np.ones(environments, np.float32), np.ones(environments, np.bool_)
        self._make(of, room, directory)
        self._fill(filled)

    def _make(self, of: str, room: int, directory: Path) -> None:
        raise NotImplementedError

    def _fill(self, filled: int) -> None:
        for _ in range(filled // self._environments):
            self._next()

    def _next(self) -> None:
        k, self._at = self._at, (self._at + 1) % EPISODE
        self._step(k, self._ends if self._at == 0 else self._flags)

    def _step(self, k: int, ends: Any) -> None:
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

    def close(self) -> None:
        """Close the store, if there is one."""
        if hasattr(self._buffer, "stored"):
            self._buffer.stored.close()


class StableBaselines3(Buffer):
    """`ReplayBuffer`, and `DiskReplayBuffer`."""

    def _make(self, of: str, room: int, directory: Path) -> None:
        from stable_baselines3.common.buffers import ReplayBuffer

        from diskbuffer.adapters.sb3 import DiskReplayBuffer

        make: Any = ReplayBuffer
        if of == "ours":
            make = functools.partial(DiskReplayBuffer, path=directory / "store", frame_stack=self._transitions.stack)
        self._buffer = make(room, *spaces_of(self._transitions), "cpu", n_envs=self._environments)
        self._infos: list[dict[str, Any]] = [{} for _ in range(self._environments)]

    def _step(self, k: int, ends: Any) -> None:
        self._buffer.add(self._obs[k], self._obs[k + 1], self._action, self._reward, ends, self._infos)


class TorchRL(Buffer):
    """`ReplayBuffer`, with its storages and with `DiskStorage`. It holds steps of any number of environments in one row."""

    kinds = ("LazyTensorStorage", "LazyMemmapStorage")

    def _make(self, of: str, room: int, directory: Path) -> None:
        from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer

        from diskbuffer.adapters.torchrl import DiskStorage

        storages: dict[str, Callable[[], Any]] = {
            "ours": lambda: DiskStorage(room, directory / "store", frame_stack=self._transitions.stack),
            "LazyMemmapStorage": lambda: LazyMemmapStorage(room, scratch_dir=str(directory / "memmap")),
            "LazyTensorStorage": lambda: LazyTensorStorage(room),
        }
        self._buffer = ReplayBuffer(storage=storages[of](), batch_size=256)
        self._many, one = self._steps(0, EXTENDED), self._steps(0, EPISODE)
        self._one = [one[k] for k in range(EPISODE)]

    def _steps(self, first: int, n: int) -> Any:
        import torch
        from tensordict import TensorDict

        observations, flags = self._transitions.observations, torch.zeros(n, 1, dtype=torch.bool)
        ends = {"done": flags.clone(), "terminated": flags.clone(), "truncated": flags.clone()}
        ends["done"][-1] = ends["terminated"][-1] = True
        now, later = (torch.from_numpy(np.ascontiguousarray(observations[at : at + n])) for at in (first, first + 1))
        following = TensorDict({"observation": later, "reward": torch.ones(n, 1), **ends}, [n])
        flat = {"action": torch.arange(n) % 6, "done": flags, "terminated": flags.clone(), "truncated": flags.clone()}
        return TensorDict({"observation": now, **flat, "next": following}, [n])

    def _fill(self, filled: int) -> None:
        parts = (len(self._transitions.observations) - 1) // EXTENDED
        for number in range(filled // EXTENDED):
            self._buffer.extend(self._steps(number % parts * EXTENDED, EXTENDED))

    def _step(self, k: int, ends: Any) -> None:
        self._buffer.add(self._one[k])

    def extend(self) -> None:
        """Add 1,000 steps at once."""
        self._buffer.extend(self._many)


class Tianshou(Buffer):
    """`ReplayBuffer` or `VectorReplayBuffer`, and ours. Frames are single, and stacked when they are drawn."""

    def _make(self, of: str, room: int, directory: Path) -> None:
        from tianshou.data import ReplayBuffer, VectorReplayBuffer

        from diskbuffer.adapters.tianshou import DiskReplayBuffer, DiskVectorReplayBuffer

        pixels, many = self._transitions.frames.ndim > 2, self._environments > 1
        options: dict[str, Any] = {"stack_num": STACK, "ignore_obs_next": True} if pixels else {}
        makes: tuple[Any, Any] = ReplayBuffer, VectorReplayBuffer
        if of == "ours":
            options["path"], makes = directory / "store", (DiskReplayBuffer, DiskVectorReplayBuffer)
        self._buffer = makes[many](room, *([self._environments] if many else []), **options)
        self._places: dict[str, Any] = {"buffer_ids": np.arange(self._environments)} if many else {}

    def _step(self, k: int, ends: Any) -> None:
        from tianshou.data import Batch

        step: dict[str, Any] = {"obs": self._obs[k], "obs_next": self._obs[k + 1], "act": self._action, "rew": self._reward}
        step |= {"terminated": ends, "truncated": self._flags, "info": np.array([{}] * self._environments)}
        step = step if self._places else {name: values[0] for name, values in step.items()}
        self._buffer.add(Batch(**step), **self._places)


class Hindsight(StableBaselines3):
    """`HerReplayBuffer`, and `DiskHerReplayBuffer`, with episodes of an environment that flips 8 bits."""

    def __init__(self, of: str, steps: int, directory: Path) -> None:
        from stable_baselines3 import HerReplayBuffer
        from stable_baselines3.common.envs import BitFlippingEnv
        from stable_baselines3.common.vec_env import DummyVecEnv

        from diskbuffer.adapters.sb3 import DiskHerReplayBuffer

        env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=GOALS, continuous=True)])
        ours = functools.partial(DiskHerReplayBuffer, path=directory / "store")
        make: Any = ours if of == "ours" else HerReplayBuffer
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


def compare(report: Report, what: str, of: dict[str, Worker], method: str, *arguments: int, at_least: float, by: int = 1) -> None:
    """Time a method of all in turn; the library's fastest buffer counts."""
    if method == "sample":
        for worker in of.values():
            worker.ask("tune", *arguments)
    times = in_turns(of, method, *arguments, rounds=5 if report.quick else 15)
    for name, taken in times.items():
        report.times(f"{what}, {name}", [seconds / by for seconds in taken], 1e6, "us")
    best = min((name for name in times if name != "ours"), key=lambda name: float(np.median(times[name])))
    report.row(what, ratio(times[best], times["ours"]), "x", at_least=at_least)


def all_of(report: Report, directory: Path, library: str, kind: str, environments: int, n: int, room: int | None = None) -> None:
    """Compare `sample` and `add` of one library's buffers with `n` steps each.

    `room` is for how many steps ours is made, where the library's own has no RAM for as many.
    """
    make, pixels = LIBRARIES[library], kind == "frames"
    stack = STACK if pixels and library != "Tianshou" else 1  # which stacks single frames itself
    made = KINDS["ale" if pixels else kind].make(n + 1, 0)
    transitions, least = Transitions.save(made, directory / "frames.npy", stack), max(n, 10_000 if pixels else 100_000)
    of: dict[str, Worker] = {}
    for name in ("ours", *make.kinds):
        size, own = (room if name == "ours" and room else least), Path(tempfile.mkdtemp(dir=directory))
        of[name] = Worker(make, name, transitions, environments, n, size, own)
    with started(of):
        what = f"{library}, {kind}" + (f" of {environments} environments" if environments > 1 else "")
        for size, at_least in ((32, 1.2 if pixels else 0.8), (256, 2.0 if pixels else 1.0)):
            compare(report, f"{what}: sample({size})", of, "sample", size, at_least=at_least)
        compare(report, f"{what}: add", of, "add", at_least=0.7, by=ADDED)
        if library == "TorchRL":
            compare(report, f"{what}: extend({EXTENDED:,})", of, "extend", at_least=1)


def vectors(report: Report, directory: Path) -> None:
    """Vectors of 4 floats, of one environment and of eight."""
    for library in LIBRARIES:
        for environments in (1, 8) if library != "TorchRL" else (1,):
            all_of(report, directory, library, "vectors of 4", environments, 5_000 if report.quick else 20_000)


def pixels(report: Report, directory: Path) -> None:
    """Stacks of four frames."""
    for library in LIBRARIES:
        all_of(report, directory, library, "frames", 1, 4_000 if report.quick else 12_000)


def many(report: Report, directory: Path) -> None:
    """Stacks of four frames, of 64 environments, in a buffer for a million steps."""
    of = 8 if report.quick else MANY
    all_of(report, directory, "Stable-Baselines3", "frames", of, (EPISODE + 1) * of + STACK, ROOM)


def goals(report: Report, directory: Path) -> None:
    """Replace goals, with 50,000 steps stored."""
    steps = 5_000 if report.quick else GOAL_STEPS
    with started({of: Worker(Hindsight, of, steps, directory) for of in ("ours", "own")}) as workers:
        what = f"Stable-Baselines3, hindsight, {steps:,} steps: sample(256)"
        compare(report, what, workers, "sample", 256, at_least=1)


class Learning:
    """A DQN that plays Atari."""

    def __init__(self, of: str, directory: Path) -> None:
        import ale_py
        import gymnasium
        from stable_baselines3 import DQN
        from stable_baselines3.common.env_util import make_atari_env
        from stable_baselines3.common.vec_env import VecFrameStack

        from diskbuffer.adapters.sb3 import DiskReplayBuffer

        gymnasium.register_envs(ale_py)
        env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=4, seed=0), 4)
        how: dict[str, Any] = {"buffer_size": 20_000, "learning_starts": 500, "train_freq": 4, "batch_size": 32}
        if of == "ours":
            kept = {"path": directory / "learning", "frame_stack": 4}
            how |= {"replay_buffer_class": DiskReplayBuffer, "replay_buffer_kwargs": kept}
        self._model = DQN("CnnPolicy", env, **how, seed=0, device="cpu")
        self._model.learn(1_000)

    def learn(self, steps: int) -> None:
        """Go on."""
        self._model.learn(steps, reset_num_timesteps=False)


class LearningTorchRL:
    """A DQN of TorchRL that plays Atari, with batches that its buffer prefetches."""

    def __init__(self, of: str, directory: Path) -> None:
        import ale_py
        import gymnasium
        import torch
        from tensordict.nn import TensorDictSequential
        from torchrl.collectors import Collector
        from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
        from torchrl.envs import GymWrapper
        from torchrl.modules import MLP, ConvNet, EGreedyModule, QValueActor
        from torchrl.objectives import DQNLoss, SoftUpdate

        import diskbuffer
        from diskbuffer.adapters.torchrl import DiskSampler, DiskStorage

        class Network(torch.nn.Sequential):
            def forward(self, pixels: Any) -> Any:
                return super().forward(pixels.float() / 255)  # type: ignore[no-untyped-call]

        gymnasium.register_envs(ale_py)
        torch.manual_seed(0)
        game = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("PongNoFrameskip-v4"))
        env = GymWrapper(gymnasium.wrappers.FrameStackObservation(game, STACK))
        env.set_seed(0)
        convolutions = ConvNet(in_features=STACK, num_cells=[32, 64, 64], kernel_sizes=[8, 4, 3], strides=[4, 2, 1])
        network = Network(convolutions, MLP(in_features=3136, out_features=6, num_cells=[512]))
        actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
        self._loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
        self._loss.make_value_estimator(gamma=0.99)
        self._target = SoftUpdate(self._loss, eps=0.995)
        self._optimizer = torch.optim.Adam(self._loss.parameters(), 1e-4)
        if of == "ours":
            kept = {"storage": DiskStorage(20_000, directory / "torchrl", frame_stack=STACK)}
            kept["sampler"] = DiskSampler(diskbuffer.Uniform())
        else:
            kept = {"storage": LazyMemmapStorage(20_000, scratch_dir=str(directory / "memmap"))}
        self._buffer = TensorDictReplayBuffer(**kept, batch_size=32, prefetch=3)
        policy = TensorDictSequential(actor, EGreedyModule(env.action_spec, eps_init=0.5, eps_end=0.5))
        self._steps = iter(Collector(env, policy, frames_per_batch=16, total_frames=-1))
        for _ in range(64):
            self._buffer.extend(next(self._steps))
        self.learn(160)

    def learn(self, steps: int) -> None:
        """Go on, with a batch for every four steps."""
        for _ in range(steps // 16):
            self._buffer.extend(next(self._steps))
            for _ in range(4):
                self._loss(self._buffer.sample())["loss"].backward()
                self._optimizer.step()
                self._optimizer.zero_grad()
                self._target.step()


def learning(report: Report, directory: Path) -> None:
    """Compare whole trainings on Atari."""
    rounds = 3 if report.quick else 7
    for library, kind, of, steps, at_least in (
        ("Stable-Baselines3", Learning, "own", 1_000, 0.98),
        ("TorchRL", LearningTorchRL, "LazyMemmapStorage", 320, 1.05),
    ):
        with started({name: Worker(kind, name, directory) for name in ("ours", of)}) as workers:
            found = in_turns(workers, "learn", steps // (5 if report.quick else 1), rounds=rounds, calls=1, seconds=0)
        speed = ratio(found[of], found["ours"])
        report.row(f"{library}: steps a second of a DQN, against its {of}", speed, "x", at_least=at_least)


class Training(NamedTuple):
    """What is trained for how long, and with what options."""

    policy: str
    steps: int
    options: dict[str, Any]


TRAININGS = {
    "PPO": Training("MlpPolicy", 8_192, {}),
    "A2C": Training("MlpPolicy", 5_000, {}),
    "DQN": Training("MlpPolicy", 10_000, {"buffer_size": 50_000, "learning_starts": 500}),
    "TD3 and hindsight": Training(
        "MultiInputPolicy", 1_500, {"buffer_size": 50_000, "learning_starts": 200, "policy_kwargs": {"net_arch": [64]}}
    ),
}


def whole_training(algorithm: str, of: str, steps: int, directory: Path) -> float:
    """Train once; return the seconds of `model.learn`, after a first training that compiles and warms up."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
    from stable_baselines3.common.envs import BitFlippingEnv

    from diskbuffer.adapters import sb3

    torch.set_num_threads(1)
    kind, own, ours = {
        "DQN": ("replay", ReplayBuffer, sb3.DiskReplayBuffer),
        "TD3 and hindsight": ("replay", stable_baselines3.HerReplayBuffer, sb3.DiskHerReplayBuffer),
    }.get(algorithm, ("rollout", RolloutBuffer, sb3.DiskRolloutBuffer))
    about, make = TRAININGS[algorithm], getattr(stable_baselines3, algorithm.split()[0])

    def train(name: str, steps: int) -> float:
        env = BitFlippingEnv(n_bits=GOALS, continuous=True) if about.policy == "MultiInputPolicy" else "CartPole-v1"
        kept: dict[str, Any] = {f"{kind}_buffer_class": own}
        if of == "ours":
            kept = {f"{kind}_buffer_class": ours, f"{kind}_buffer_kwargs": {"path": directory / name}}
        model = make(about.policy, env, seed=0, device="cpu", **about.options, **kept)
        begin = time.perf_counter()
        model.learn(steps)
        return time.perf_counter() - begin

    train("first", min(steps, 2_500))
    return train("second", steps)


def training(report: Report, directory: Path) -> None:
    """Compare whole trainings, in turn."""
    for algorithm, about in TRAININGS.items():
        steps, times = about.steps // (3 if report.quick else 1), {"own": list[float](), "ours": list[float]()}
        for _ in range(2 if report.quick else 5):
            for of, taken in times.items():
                taken.append(alone(whole_training, algorithm, of, steps, Path(tempfile.mkdtemp(dir=directory))))
        what = f"Stable-Baselines3, whole training with {algorithm}"
        for of, taken in times.items():
            report.times(f"{what}: {of}", taken, 1.0, "s")
        report.row(f"{what}: time against the library's buffer", ratio(times["ours"], times["own"]), "x", at_most=1.1)


def memory_of(of: str, steps: int, transitions: Transitions, directory: Path) -> int:
    """Add stacks of frames to a buffer and sample; return the bytes that the process has to itself."""
    room, added = (steps, steps) if of == "ours" else (64, 1_000)
    buffer = StableBaselines3(of, transitions, 1, added, room, directory)
    for _ in range(200):
        buffer.sample(256)
    return settled()


def memory(report: Report, directory: Path) -> None:
    """Compare memory, with a million steps on disk and next to none in RAM."""
    steps = 20_000 if report.quick else 1_000_000
    transitions = Transitions.save(frames(EPISODE + STACK), directory / "frames.npy", STACK)
    ours, theirs = (alone(memory_of, of, steps, transitions, directory) for of in ("ours", "own"))
    report.row(f"Stable-Baselines3: memory for {steps:,} stacked steps", (ours - theirs) / 1e6, "MB", at_most=150)


PARTS: dict[str, Part] = {part.__name__: part for part in (vectors, pixels, many, goals, learning, training, memory)}

if __name__ == "__main__":
    run("adapters", PARTS, parser(__doc__))
