"""Buffers over Ray: beside `ReplayBuffer`, TorchRL's `RayReplayBuffer` and RLlib's DQN; and the bytes that a shard sends.

    python -m bench.ray_buffers [--only local] --json FILE

All on one machine, whose processes Ray starts; they take turns. TorchRL's buffer is one actor with a `LazyTensorStorage`; ours
has one shard, and each process that samples reads its files. Both get the same stacks of frames, some blocks in a row, all of
which are acknowledged before the clock stops: TorchRL waits for each of them, ours for the last. Memory is what the actor's
process allocated more than when it was empty. A seed of RLlib does not make trainings equal, so *curves* compares the mean return
of episodes over the second half of a training, over several seeds: the difference, against the noise of such a difference, which
is estimated from the spread between seeds (Welch, 1947, "The generalization of 'Student's' problem").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import diskbuffer as db
from bench.frames import COLUMNS, frames
from bench.measure import Part, Report, in_turn, parser, ratio, run

STACK, BATCH, EPISODE = 4, 256, 500
BLOCK = 200  # transitions that are added at a time
IN_A_ROW = 5  # blocks of them, until all are acknowledged
EACH = 8  # calls in a row
DQN_STEPS = 40  # of the algorithm, in a turn
EVERY = 250  # steps between two points of a curve
PLACE: dict[str, Any] = {"shards": 1, "patience": 60.0}  # of our buffer
DISK = "diskbuffer.adapters.rllib.DiskPrioritizedEpisodeReplayBuffer"


def start() -> None:
    """Start Ray, as small as it gets."""
    import ray

    quiet: dict[str, Any] = {"include_dashboard": False, "logging_level": "error", "log_to_driver": False}
    ray.init("local", num_cpus=2, object_store_memory=300 << 20, **quiet)


def rounds_of(report: Report) -> int:
    """Return how many turns everybody has."""
    return 5 if report.quick else 15


def trajectory(obs: Any) -> dict[str, Any]:
    """Return the steps between observations."""
    n = len(obs) - 1
    return {"obs": obs, "action": np.zeros(n, np.int64), "reward": np.ones(n)}


def local(report: Report, directory: Path) -> None:
    """Compare `sample(256)` with that of a store that this process writes."""
    from diskbuffer.adapters.ray import RayReplayBuffer

    pixels = frames(2_000 if report.quick else 20_000)
    vectors = np.random.default_rng(0).random((100_001, 4), np.float32)
    for name, obs, stack in (("vectors of 4 floats", vectors, 1), ("stacks of 4 frames", pixels, STACK)):
        columns = {"obs": db.Column(obs.shape[1:], obs.dtype.name), "action": db.Column((), "int64")}
        with (
            db.ReplayBuffer(directory / f"plain-{stack}", columns=columns, frame_stack=stack) as plain,
            RayReplayBuffer(directory / f"ray-{stack}", columns=columns, frame_stack=stack, **PLACE) as ours,
        ):
            plain.extend(**trajectory(obs))
            ours.extend(**trajectory(obs))
            ours.flush()
            ours.refresh()
            competitors: dict[str, Callable[[Any], Any]] = {"Ray": ours.sample, "plain": plain.sample}
            in_turn(3, competitors, lambda: BATCH, EACH)
            found = in_turn(rounds_of(report), competitors, lambda: BATCH, EACH)
            for of, seconds in found.items():
                report.times(f"{name}: sample(256), {of}", seconds)
            times = ratio(found["Ray"], found["plain"], EACH)
            report.row(f"{name}: sample(256) with one local shard, against ReplayBuffer", times, "x", at_most=2.0)


def torchrl(report: Report, directory: Path) -> None:
    """Compare adding and sampling with TorchRL's buffer, and the memory of the actors."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, RayReplayBuffer

    from diskbuffer.adapters import ray

    turns = 2 if report.quick else 10
    n = turns * IN_A_ROW * BLOCK
    pixels, numbers = frames(n + STACK), iter(range(turns))
    options: dict[str, Any] = {"batch_size": BATCH, "remote_config": {"num_cpus": 0}, "transport": "ray"}
    theirs, their_process = made(lambda: RayReplayBuffer(storage=partial(LazyTensorStorage, n), **options))
    ours, our_process = made(lambda: ray.RayReplayBuffer(directory / "ours", columns=COLUMNS, frame_stack=STACK, **PLACE))
    empty = {"ours": allocated(our_process), "theirs": allocated(their_process)}

    def blocks() -> list[dict[str, Any]]:
        first = next(numbers) * IN_A_ROW * BLOCK
        return [block(pixels, first + k * BLOCK) for k in range(IN_A_ROW)]

    def add_ours(given: list[dict[str, Any]]) -> None:
        for one in given:
            ours.extend(**one)
        ours.flush(sync=False)

    def add_theirs(given: list[dict[str, Any]]) -> None:
        for one in given:
            found = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in one.items()}
            after = {"observation": found["next_obs"], "reward": found["reward"], "terminated": found["terminated"]}
            theirs.extend(TensorDict({"observation": found["obs"], "action": found["action"], "next": after}, [BLOCK]))

    try:
        taken = in_turn(turns, {"ours": add_ours, "theirs": add_theirs}, blocks)
        adding = {name: [each / (IN_A_ROW * BLOCK) for each in seconds[1:]] for name, seconds in taken.items()}
        ours.refresh()
        competitors: dict[str, Callable[[Any], Any]] = {"ours": ours.sample, "theirs": theirs.sample}
        in_turn(2, competitors, lambda: BATCH)
        sampling = in_turn(rounds_of(report), competitors, lambda: BATCH)
        for name in ("ours", "theirs"):
            report.times(f"stacks of 4 frames: adding, a transition, {name}", adding[name], 1e6, "us")
            report.times(f"stacks of 4 frames: sample(256), {name}", sampling[name])
        for what, times in (("added", adding), ("sampled", sampling)):
            value = ratio(times["theirs"], times["ours"])
            report.row(f"transitions {what} a second, against TorchRL's RayReplayBuffer", value, "x", at_least=2.0)
        more = max(allocated(our_process) - empty["ours"], 0)
        their_more = allocated(their_process) - empty["theirs"]
        report.row(f"memory for {n:,} transitions, ours", more / 1e6, "MB")
        report.row(f"memory for {n:,} transitions, TorchRL's", their_more / 1e6, "MB")
        report.row("memory, against TorchRL's RayReplayBuffer", more / their_more, "x", at_most=0.1)
    finally:
        ours.close()
        theirs.close()


def block(pixels: Any, first: int) -> dict[str, Any]:
    """Return transitions between stacks of frames."""
    window = np.lib.stride_tricks.sliding_window_view(pixels[first : first + BLOCK + STACK], STACK, axis=0)
    stacks = np.ascontiguousarray(np.moveaxis(window, -1, 1))
    ends = np.arange(first, first + BLOCK) % EPISODE == EPISODE - 1
    flat = {"action": np.arange(BLOCK), "reward": np.ones(BLOCK), "terminated": ends}
    return {"obs": stacks[:-1], "next_obs": stacks[1:], **flat}


def made(make: Callable[[], Any]) -> tuple[Any, psutil.Process]:
    """Return a buffer of a single actor, and the actor's process: that which has a title of Ray's now."""

    def actors() -> set[psutil.Process]:
        titles = {process: "".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])}
        return {process for process, title in titles.items() if title.startswith("ray::") and "IDLE" not in title}

    before, buffer = actors(), make()
    len(buffer)  # once it is there
    (process,) = actors() - before
    return buffer, process


def allocated(process: psutil.Process) -> int:
    """Return the bytes that a process allocated: anonymous memory, and no files."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def sent(report: Report, directory: Path) -> None:
    """Count the bytes that a shard sends, with ``compress=True`` and without, and time both sides' work in one process."""
    from diskbuffer.adapters.ray.packing import pack, unpack

    pixels = frames(2_000 if report.quick else 20_000)
    draws: dict[str, tuple[int, int, db.Sampler]] = {
        "single frames": (1, BATCH, db.Uniform(0)),
        "stacks of 4 frames": (STACK, BATCH, db.Uniform(0)),
        "stacks of 4 frames, 3 steps": (STACK, BATCH, db.Uniform(0, n_step=3)),
        "sequences of 16 frames": (1, BATCH // 16, db.Slices(16, seed=0)),
    }
    for name, (stack, size, sampler) in draws.items():
        with db.ReplayBuffer(directory / name, columns=COLUMNS, frame_stack=stack) as buffer:
            buffer.extend(**trajectory(pixels))
            buffer.flush(recompress=True)

            def send(compress: bool, buffer: db.ReplayBuffer = buffer, size: int = size, by: db.Sampler = sampler) -> int:
                packed = pack(buffer.sample(size, by), compress=compress)
                unpack(packed)
                return sum(len(memory) for memory in packed.memories)

            ways = {"as it is": False, "compressed": True}
            for way, compress in ways.items():
                report.row(f"{name}: bytes sent for a sample, {way}", send(compress) / size, "bytes")
            calls = {way: lambda _, compress=compress: send(compress) for way, compress in ways.items()}
            for way, seconds in in_turn(rounds_of(report), calls, lambda: None, EACH).items():
                report.times(f"{name}: both sides' work for a batch of {size}, {way}", seconds)


def algorithm(of: str, directory: Path, seed: int, capacity: int, **training: Any) -> Any:
    """Return RLlib's DQN on CartPole, with our buffer or its own."""
    from ray.rllib.algorithms.dqn import DQNConfig

    kind = {"type": DISK, "path": str(directory)} if of == "ours" else {"type": "PrioritizedEpisodeReplayBuffer"}
    config: Any = DQNConfig().environment("CartPole-v1").env_runners(num_env_runners=0).debugging(seed=seed)
    config.training(replay_buffer_config={**kind, "capacity": capacity, "alpha": 0.6, "beta": 0.4}, train_batch_size=32)
    if training:
        config.rl_module(model_config={"fcnet_hiddens": [64], "head_fcnet_hiddens": []})
        config.reporting(min_sample_timesteps_per_iteration=EVERY, metrics_num_episodes_for_smoothing=5)
    return config.training(**{"num_steps_sampled_before_learning_starts": 100, **training}).build_algo()


def dqn(report: Report, directory: Path) -> None:
    """Compare steps a second of RLlib's DQN on CartPole (its `training_step`), with its own buffer and with ours."""
    steps = 10 if report.quick else DQN_STEPS
    algorithms = {of: algorithm(of, directory / "dqn", 0, 50_000) for of in ("ours", "theirs")}

    def train(of: str, count: int) -> None:
        for _ in range(count):
            algorithms[of].training_step()

    competitors: dict[str, Callable[[Any], Any]] = {of: partial(train, of) for of in algorithms}
    in_turn(1, competitors, lambda: 130)
    found = in_turn(rounds_of(report), competitors, lambda: steps)
    for name, seconds in found.items():
        report.times(f"RLlib, DQN: a training step, {name}", [one / steps for one in seconds])
    report.row("RLlib: steps a second of DQN, against its own buffer", ratio(found["theirs"], found["ours"]), "x", at_least=0.95)
    for each in algorithms.values():
        each.stop()


def curves(report: Report, directory: Path) -> None:
    """Compare what RLlib's DQN learns, over several seeds."""
    seeds, steps = (2, 1_000) if report.quick else (3, 3_000)
    how = {"lr": 5e-4, "target_network_update_freq": 100, "epsilon": [(0, 1.0), (steps // 4, 0.05)]}
    late: dict[str, list[float]] = {"ours": [], "theirs": []}
    for seed in range(report.seed, report.seed + seeds):
        for of, means in late.items():
            learner = algorithm(of, directory / f"{seed}", seed, 20_000, **how, num_steps_sampled_before_learning_starts=200)
            curve = [learner.train()["env_runners"].get("episode_return_mean", math.nan) for _ in range(steps // EVERY)]
            means.append(float(np.nanmean(curve[len(curve) // 2 :])))
            learner.stop()
    for of, means in late.items():
        report.row(f"RLlib, DQN: mean return over the second half, {seeds} seeds, {of}", float(np.mean(means)), "")
        report.row(f"RLlib, DQN: its standard deviation between seeds, {of}", float(np.std(means, ddof=1)), "")
    noise = math.sqrt(sum(np.var(means, ddof=1) / seeds for means in late.values()))
    apart = abs(np.mean(late["ours"]) - np.mean(late["theirs"])) / max(noise, 1e-9)
    report.row("RLlib, DQN: the curves' difference, in standard errors of it", float(apart), "", at_most=2.0)


PARTS: dict[str, Part] = {part.__name__: part for part in (local, torchrl, sent, dqn, curves)}

if __name__ == "__main__":
    start()
    run("ray_buffers", PARTS, parser(__doc__))
