"""Buffers over Ray: beside `ReplayBuffer`, TorchRL's `RayReplayBuffer` and RLlib's DQN; and the bytes that a shard sends.

    python -m bench.ray_buffers [--only local] --json FILE

All on one machine, whose processes Ray starts; they take turns. TorchRL's buffer is one actor with a `LazyTensorStorage`; ours
has one shard, and each process that samples reads its files. Both get the same stacks of frames, some blocks in a row, all of
which are acknowledged before the clock stops: TorchRL waits for each of them, ours for the last. Memory is what the actor's
process allocated more than when it was empty. Steps a second of DQN are those of `training_step`, with RLlib's own
prioritized buffer and with ours. A seed of RLlib does not make trainings equal, so *curves* compares the mean return of episodes
over the second half of a training, over several seeds: the difference, against the noise of such a difference, which is estimated
from the spread between seeds (Welch, 1947, "The generalization of 'Student's' problem").
"""

from __future__ import annotations

import math
import time
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


def start() -> None:
    """Start Ray, as small as it gets."""
    import ray

    ray.init(
        "local", num_cpus=2, object_store_memory=300 << 20, include_dashboard=False, logging_level="error", log_to_driver=False
    )


def rounds_of(report: Report) -> int:
    """Return how many turns everybody has."""
    return 5 if report.quick else 15


def local(report: Report, directory: Path) -> None:
    """Compare `sample(256)` with that of a store that this process writes."""
    from diskbuffer.adapters.ray import RayReplayBuffer

    pixels = frames(2_000 if report.quick else 20_000)
    vectors = np.random.default_rng(0).random((100_001, 4), np.float32)
    for name, obs, stack in (("vectors of 4 floats", vectors, 1), ("stacks of 4 frames", pixels, STACK)):
        columns = {"obs": db.Column(obs.shape[1:], obs.dtype.name), "action": db.Column((), "int64")}
        n = len(obs) - 1
        steps: dict[str, Any] = {"obs": obs, "action": np.zeros(n, np.int64), "reward": np.ones(n)}
        with (
            db.ReplayBuffer(directory / f"plain-{stack}", columns=columns, frame_stack=stack) as plain,
            RayReplayBuffer(directory / f"ray-{stack}", columns=columns, frame_stack=stack, shards=1, patience=60.0) as ours,
        ):
            plain.extend(**steps)
            ours.extend(**steps)
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

    from diskbuffer.adapters import ray as ours_of

    blocks = 10 if report.quick else 50
    pixels = frames(blocks * BLOCK + STACK)
    before = _replay_actors()
    theirs = RayReplayBuffer(
        storage=partial(LazyTensorStorage, blocks * BLOCK), batch_size=BATCH, remote_config={"num_cpus": 0}, transport="ray"
    )
    len(theirs)  # once it is there
    (pid,) = _replay_actors() - before
    their_process = psutil.Process(pid)
    ours = ours_of.RayReplayBuffer(directory / "ours", columns=COLUMNS, frame_stack=STACK, shards=1, patience=60.0)
    import ray

    our_process = psutil.Process(ray.get(ours._shards.known[0].handle.about.remote())["pid"])
    empty = {"ours": _allocated(our_process), "theirs": _allocated(their_process)}

    def block(n: int) -> dict[str, Any]:
        first = n * BLOCK
        window = np.lib.stride_tricks.sliding_window_view(pixels[first : first + BLOCK + STACK], STACK, axis=0)
        window = np.ascontiguousarray(np.moveaxis(window, -1, 1))
        ends = np.arange(first, first + BLOCK) % EPISODE == EPISODE - 1
        return {
            "obs": window[:-1],
            "next_obs": window[1:],
            "action": np.arange(BLOCK),
            "reward": np.ones(BLOCK),
            "terminated": ends,
        }

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
        adding: dict[str, list[float]] = {"ours": [], "theirs": []}
        for n in range(0, blocks, IN_A_ROW):
            given = [block(n + i) for i in range(IN_A_ROW)]
            for name, call in (("ours", add_ours), ("theirs", add_theirs)):
                begin = time.perf_counter()
                call(given)
                adding[name].append((time.perf_counter() - begin) / (IN_A_ROW * BLOCK))
        ours.refresh()
        competitors: dict[str, Callable[[Any], Any]] = {"ours": ours.sample, "theirs": lambda size: theirs.sample(size)}
        in_turn(2, competitors, lambda: BATCH)
        sampling = in_turn(rounds_of(report), competitors, lambda: BATCH)
        for name in ("ours", "theirs"):
            report.times(f"stacks of 4 frames: adding, a transition, {name}", adding[name][1:], 1e6, "us")
            report.times(f"stacks of 4 frames: sample(256), {name}", sampling[name])
        added = ratio(adding["theirs"][1:], adding["ours"][1:])
        report.row("transitions added a second, against TorchRL's RayReplayBuffer", added, "x", at_least=2.0)
        sampled = ratio(sampling["theirs"], sampling["ours"])
        report.row("transitions sampled a second, against TorchRL's RayReplayBuffer", sampled, "x", at_least=2.0)
        grown = {"ours": _allocated(our_process), "theirs": _allocated(their_process)}
        more = {name: max(grown[name] - empty[name], 0) for name in grown}
        report.row("memory that the actor's process allocated in all, ours", grown["ours"] / 1e6, "MB")
        report.row("memory that the actor's process allocated in all, TorchRL's", grown["theirs"] / 1e6, "MB")
        report.row(f"memory for {blocks * BLOCK:,} transitions, ours", more["ours"] / 1e6, "MB")
        report.row(f"memory for {blocks * BLOCK:,} transitions, TorchRL's", more["theirs"] / 1e6, "MB")
        report.row("memory, against TorchRL's RayReplayBuffer", more["ours"] / more["theirs"], "x", at_most=0.1)
    finally:
        ours.close()
        theirs.close()


def sent(report: Report, directory: Path) -> None:
    """Count the bytes that a shard sends, with ``compress=True`` and without, and time both sides' work in one process."""
    pixels = frames(2_000 if report.quick else 20_000)
    n = len(pixels) - 1
    steps: dict[str, Any] = {"obs": pixels, "action": np.zeros(n, np.int64), "reward": np.ones(n)}
    draws: dict[str, tuple[int, int, db.Sampler]] = {
        "single frames": (1, BATCH, db.Uniform(0)),
        "stacks of 4 frames": (STACK, BATCH, db.Uniform(0)),
        "stacks of 4 frames, 3 steps": (STACK, BATCH, db.Uniform(0, n_step=3)),
        "sequences of 16 frames": (1, BATCH // 16, db.Slices(16, seed=0)),
    }
    for name, (stack, size, sampler) in draws.items():
        with db.ReplayBuffer(directory / name, columns=COLUMNS, frame_stack=stack) as buffer:
            buffer.extend(**steps)
            buffer.flush(recompress=True)
            ways = {way: _sending(buffer, sampler, compress=way == "compressed") for way in ("as it is", "compressed")}
            for way, call in ways.items():
                report.row(f"{name}: bytes sent for a sample, {way}", call(size) / size, "bytes")
            for way, seconds in in_turn(rounds_of(report), ways, partial(int, size), EACH).items():
                report.times(f"{name}: both sides' work for a batch of {size}, {way}", seconds)


def _sending(buffer: db.ReplayBuffer, sampler: db.Sampler, *, compress: bool) -> Callable[[int], int]:
    """Return what does both sides' work for a batch of a size, and returns the bytes that are sent in between."""
    from diskbuffer.adapters.ray.packing import pack, unpack

    def call(size: int) -> int:
        packed = pack(buffer.sample(size, sampler), compress=compress)
        unpack(packed)
        return sum(len(memory) for memory in packed.memories)

    return call


DISK = "diskbuffer.adapters.ray.rllib.DiskPrioritizedEpisodeReplayBuffer"


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
    """Compare steps a second of RLlib's DQN on CartPole, with its own buffer and with ours."""
    steps = 10 if report.quick else DQN_STEPS
    made = {of: algorithm(of, directory / "dqn", 0, 50_000) for of in ("ours", "theirs")}

    def train(of: str, count: int) -> None:
        for _ in range(count):
            made[of].training_step()

    competitors: dict[str, Callable[[Any], Any]] = {of: partial(train, of) for of in made}
    in_turn(1, competitors, lambda: 130)
    found = in_turn(rounds_of(report), competitors, lambda: steps)
    for name, seconds in found.items():
        report.times(f"RLlib, DQN: a training step, {name}", [one / steps for one in seconds])
    report.row("RLlib: steps a second of DQN, against its own buffer", ratio(found["theirs"], found["ours"]), "x", at_least=0.95)
    for each in made.values():
        each.stop()


def curves(report: Report, directory: Path) -> None:
    """Compare what RLlib's DQN learns, over several seeds."""
    seeds, steps = (2, 1_000) if report.quick else (3, 3_000)
    how = {"lr": 5e-4, "target_network_update_freq": 100, "epsilon": [(0, 1.0), (steps // 4, 0.05)]}
    late: dict[str, list[float]] = {"ours": [], "theirs": []}
    for seed in range(report.seed, report.seed + seeds):
        for of, means in late.items():
            made = algorithm(of, directory / f"{seed}", seed, 20_000, **how, num_steps_sampled_before_learning_starts=200)
            curve = [made.train()["env_runners"].get("episode_return_mean", math.nan) for _ in range(steps // EVERY)]
            means.append(float(np.nanmean(curve[len(curve) // 2 :])))
            made.stop()
    for of, means in late.items():
        report.row(f"RLlib, DQN: mean return over the second half, {seeds} seeds, {of}", float(np.mean(means)), "")
        report.row(f"RLlib, DQN: its standard deviation between seeds, {of}", float(np.std(means, ddof=1)), "")
    noise = math.sqrt(sum(np.var(means, ddof=1) / seeds for means in late.values()))
    apart = abs(np.mean(late["ours"]) - np.mean(late["theirs"])) / max(noise, 1e-9)
    report.row("RLlib, DQN: the curves' difference, in standard errors of it", float(apart), "", at_most=2.0)


def _replay_actors() -> set[int]:
    """Return the processes of actors that TorchRL makes of a replay buffer, by the titles that Ray gives them."""
    processes = psutil.process_iter(["pid", "cmdline"])
    return {one.info["pid"] for one in processes if "".join(one.info["cmdline"] or ()).startswith("ray::ReplayBuffer")}


def _allocated(process: psutil.Process) -> int:
    """Return the bytes that a process allocated: anonymous memory, and no files."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


PARTS: dict[str, Part] = {part.__name__: part for part in (local, torchrl, sent, dqn, curves)}

if __name__ == "__main__":
    start()
    run("ray_buffers", PARTS, parser(__doc__))
