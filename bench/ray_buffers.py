"""A buffer over a Ray cluster, beside `ReplayBuffer` and TorchRL's `RayReplayBuffer`; and RLlib's, beside ours.

    python -m bench.ray_buffers [--only local] --json FILE

Two nodes of Ray on one machine. The learner is this process. An actor on its node adds stacks of frames that are in its memory,
some blocks in a row: to TorchRL's buffer, one actor with a `LazyTensorStorage`, by calls to that; to ours through a writer. In
*torchrl*, our store is on the node of both: the actor writes files, and the learner reads them. In *remote*, it is on the other
node, as is TorchRL's buffer, so that all steps and batches go over Ray. Both buffers may prefetch: TorchRL's does so in its
actor, ours with `loader`. Memory is what the processes that hold steps allocated more than when there were none: TorchRL's
buffer; our writer, and what reads for other nodes.

A seed of RLlib does not make trainings equal, so *dqn_curve* and *sac_curve* compare the mean return of episodes over the second
half of a training, over several seeds: the difference, against the noise of such a difference, which is estimated from the spread
between seeds (Welch, 1947, "The generalization of 'Student's' problem").
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
MANY = 24  # batches in a row of a loader, most of which were not there before
PREFETCH = 3  # batches ahead
DQN_STEPS = 40  # of the algorithm, in a turn
EVERY = 250  # steps between two points of a curve
HERE, THERE = "here", "there"  # resources of the learner's node, and of the other


def start() -> None:
    """Start two nodes of Ray, as small as they get; they end with this process."""
    import ray
    from ray.cluster_utils import Cluster

    small = {"include_dashboard": False, "object_store_memory": 300 << 20}
    equal = {"_system_config": {"worker_niceness": 0}}  # actors have as much of the processors as this process
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {HERE: 1}, **small, **equal})
    nodes.add_node(num_cpus=0, resources={THERE: 1}, **small)
    ray.init(nodes.address, logging_level="error", log_to_driver=False)


def rounds_of(report: Report) -> int:
    """Return how many turns everybody has."""
    return 5 if report.quick else 15


def trajectory(obs: Any) -> dict[str, Any]:
    """Return the steps between observations."""
    n = len(obs) - 1
    return {"obs": obs, "action": np.zeros(n, np.int64), "reward": np.ones(n)}


def local(report: Report, directory: Path) -> None:
    """Compare `sample(256)` of a store on this node with that of a store that this process writes."""
    from diskbuffer.adapters.ray import ClusterBuffer

    pixels = frames(2_000 if report.quick else 20_000)
    vectors = np.random.default_rng(0).random((100_001, 4), np.float32)
    for name, obs, stack in (("vectors of 4 floats", vectors, 1), ("stacks of 4 frames", pixels, STACK)):
        columns = {"obs": db.Column(obs.shape[1:], obs.dtype.name), "action": db.Column((), "int64")}
        with (
            db.ReplayBuffer(directory / f"plain-{stack}", columns=columns, frame_stack=stack) as plain,
            ClusterBuffer(directory / f"ray-{stack}", columns=columns, frame_stack=stack, disks=HERE) as ours,
            ours.writer() as writer,
        ):
            plain.extend(**trajectory(obs))
            writer.extend(**trajectory(obs))
            competitors: dict[str, Callable[[Any], Any]] = {"Ray": ours.sample, "plain": plain.sample}
            in_turn(3, competitors, lambda: BATCH, EACH)
            found = in_turn(rounds_of(report), competitors, lambda: BATCH, EACH)
            for of, seconds in found.items():
                report.times(f"{name}: sample(256), {of}", seconds)
            times = ratio(found["Ray"], found["plain"], EACH)
            report.row(f"{name}: sample(256) over Ray with a store on this node, against ReplayBuffer", times, "x", at_most=2.0)
            ours.destroy()


class Actor:
    """Adds transitions to TorchRL's buffer, or through a writer of ours."""

    def __init__(self, buffer: Any, count: int) -> None:
        from diskbuffer.adapters.ray import ClusterBuffer

        self._pixels, self._added = frames(count + STACK), 0
        self._ours = buffer.writer() if isinstance(buffer, ClusterBuffer) else None
        self._theirs = buffer

    def add(self) -> float:
        """Add the next blocks; return the seconds for each transition."""
        blocks = [block(self._pixels, self._added + k * BLOCK) for k in range(IN_A_ROW)]
        begin = time.perf_counter()
        for one in blocks:
            if self._ours is not None:
                self._ours.extend(**one)
            else:
                self._theirs.extend(as_tensors(one))
        self._added += IN_A_ROW * BLOCK
        return (time.perf_counter() - begin) / (IN_A_ROW * BLOCK)

    def allocated(self) -> int:
        """Return the bytes that this process allocated."""
        return allocated(psutil.Process())


def torchrl(report: Report, directory: Path) -> None:
    """Compare adding, sampling and memory with TorchRL's buffer, where the actor and the learner have a disk."""
    against_torchrl(report, directory, HERE)


def remote(report: Report, directory: Path) -> None:
    """Compare them where every step and every batch goes to another node, or comes from it."""
    against_torchrl(report, directory, THERE)


def against_torchrl(report: Report, directory: Path, where: str) -> None:
    """Compare with TorchRL's buffer; both are on a node."""
    import ray
    from torchrl.data import LazyTensorStorage, RayReplayBuffer

    from diskbuffer.adapters.ray import ClusterBuffer

    kind = "stacks of 4 frames" if where == HERE else "stacks of 4 frames, over Ray"
    turns = 2 if report.quick else 10
    n = turns * IN_A_ROW * BLOCK
    remotely = {"num_cpus": 0, "resources": {where: 0.01}}
    options: dict[str, Any] = {"batch_size": BATCH, "prefetch": PREFETCH, "remote_config": remotely, "transport": "ray"}
    theirs, their_process = made(lambda: RayReplayBuffer(storage=partial(LazyTensorStorage, n), **options))
    ours, our_process = made(lambda: ClusterBuffer(directory / "ours", columns=COLUMNS, frame_stack=STACK, disks=where))
    start_actor = ray.remote(num_cpus=0, resources={HERE: 0.01})(Actor).remote
    actors = {"ours": start_actor(ours, n), "theirs": start_actor(theirs.client(), n)}

    def memory() -> dict[str, int]:
        return {"ours": allocated(our_process) + ray.get(actors["ours"].allocated.remote()), "theirs": allocated(their_process)}

    try:
        empty = memory()
        taken = [{of: ray.get(actor.add.remote()) for of, actor in actors.items()} for _ in range(turns)]
        adding = {of: [seconds[of] for seconds in taken[1:]] for of in actors}
        more = {of: now - empty[of] for of, now in memory().items()}
        ours.refresh()
        batches = ours.loader(BATCH, prefetch=PREFETCH)
        competitors: dict[str, Callable[[Any], Any]] = {"ours": ours.sample, "theirs": theirs.sample}
        in_turn(2, competitors, lambda: BATCH)
        sampling = in_turn(rounds_of(report), competitors, lambda: BATCH)
        takers = {"ours": partial(take, batches.__next__), "theirs": partial(take, theirs.sample)}
        loading = in_turn(rounds_of(report), takers, lambda: MANY)
        batches.close()
        measured = ("added", adding, 1, 2.0), ("sampled", sampling, BATCH, 4.0), ("loaded", loading, MANY * BATCH, None)
        for what, times, transitions, least in measured:
            for of, seconds in times.items():
                report.times(f"{kind}: a transition {what}, {of}", [each / transitions for each in seconds], 1e6, "us")
            value, target = ratio(times["theirs"], times["ours"]), least if where == HERE else None
            report.row(f"{kind}: transitions {what} a second, against TorchRL's RayReplayBuffer", value, "x", at_least=target)
        for of, size in more.items():
            report.row(f"{kind}: memory for {n:,} transitions, {of}", size / 1e6, "MB")
        report.row(f"{kind}: memory, against TorchRL's RayReplayBuffer", more["ours"] / more["theirs"], "x", at_most=0.1)
    finally:
        for actor in actors.values():
            ray.kill(actor)
        ours.destroy()
        theirs.close()


def as_tensors(transitions: dict[str, Any]) -> Any:
    """Return what TorchRL's buffer takes."""
    import torch
    from tensordict import TensorDict

    found = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in transitions.items()}
    after = {"observation": found["next_obs"], "reward": found["reward"], "terminated": found["terminated"]}
    return TensorDict({"observation": found["obs"], "action": found["action"], "next": after}, [BLOCK])


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
        named = {process for process, title in titles.items() if title.startswith("ray::") and "IDLE" not in title}
        return named.intersection(psutil.Process().children(recursive=True))

    before, buffer = actors(), make()
    len(buffer)  # once it is there
    (process,) = actors() - before
    return buffer, process


def allocated(process: psutil.Process) -> int:
    """Return the bytes that a process allocated: anonymous memory, and no files."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def take(call: Callable[[], Any], count: int) -> None:
    """Call several times."""
    for _ in range(count):
        call()


def algorithm(name: str, of: str, directory: Path, seed: int, capacity: int, **training: Any) -> Any:
    """Return RLlib's DQN on CartPole, or its SAC on Pendulum, with our buffer or its own."""
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.sac import SACConfig

    from diskbuffer.adapters.rllib import DiskPrioritizedEpisodeReplayBuffer

    config: Any = DQNConfig().environment("CartPole-v1") if name == "DQN" else SACConfig().environment("Pendulum-v1")
    config.env_runners(num_env_runners=0).debugging(seed=seed)
    kind = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": capacity, "alpha": 0.6, "beta": 0.4}
    config.training(replay_buffer_config=kind, train_batch_size=32)
    if training:
        config.rl_module(model_config={"fcnet_hiddens": [64], "head_fcnet_hiddens": []})
        config.reporting(min_sample_timesteps_per_iteration=EVERY, metrics_num_episodes_for_smoothing=5)
    made = config.training(**{"num_steps_sampled_before_learning_starts": 100, **training}).build_algo()
    if of == "ours":  # SAC takes no type of buffer but its own
        made.local_replay_buffer = DiskPrioritizedEpisodeReplayBuffer(capacity, alpha=0.6, path=directory)
    return made


def dqn(report: Report, directory: Path) -> None:
    """Compare steps a second of RLlib's DQN on CartPole (its `training_step`), with its own buffer and with ours."""
    steps = 10 if report.quick else DQN_STEPS
    algorithms = {of: algorithm("DQN", of, directory / "dqn", 0, 50_000) for of in ("ours", "theirs")}

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


def dqn_curve(report: Report, directory: Path) -> None:
    """Compare what RLlib's DQN learns, over several seeds."""
    steps = 1_000 if report.quick else 3_000
    curves(report, directory, "DQN", steps, lr=5e-4, target_network_update_freq=100, epsilon=[(0, 1.0), (steps // 4, 0.05)])


def sac_curve(report: Report, directory: Path) -> None:
    """Compare what RLlib's SAC learns, over several seeds."""
    rates = dict.fromkeys(("actor_lr", "critic_lr", "alpha_lr"), 1e-3)
    curves(report, directory, "SAC", 1_000 if report.quick else 4_000, train_batch_size_per_learner=64, **rates)


def curves(report: Report, directory: Path, name: str, steps: int, **how: Any) -> None:
    """Compare the returns of trainings with our buffer and with RLlib's own."""
    seeds, late = 2 if report.quick else 5, dict[str, list[float]](ours=[], theirs=[])
    for seed in range(report.seed, report.seed + seeds):
        for of, means in late.items():
            place, begin = directory / f"{name}-{seed}", {"num_steps_sampled_before_learning_starts": 200}
            learner = algorithm(name, of, place, seed, 20_000, **how, **begin)
            curve = [learner.train()["env_runners"].get("episode_return_mean", math.nan) for _ in range(steps // EVERY)]
            means.append(float(np.nanmean(curve[len(curve) // 2 :])))
            learner.stop()
    for of, means in late.items():
        report.row(f"RLlib, {name}: mean return over the second half, {seeds} seeds, {of}", float(np.mean(means)), "")
        report.row(f"RLlib, {name}: its standard deviation between seeds, {of}", float(np.std(means, ddof=1)), "")
    noise = math.sqrt(sum(np.var(means, ddof=1) / seeds for means in late.values()))
    apart = abs(np.mean(late["ours"]) - np.mean(late["theirs"])) / max(noise, 1e-9)
    report.row(f"RLlib, {name}: the curves' difference, in standard errors of it", float(apart), "", at_most=2.0)


PARTS: dict[str, Part] = {part.__name__: part for part in (local, torchrl, remote, dqn, dqn_curve, sac_curve)}

if __name__ == "__main__":
    start()
    run("ray_buffers", PARTS, parser(__doc__))
