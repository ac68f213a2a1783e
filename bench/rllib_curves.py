"""RLlib's DQN on CartPole, with its own prioritized buffer and with ours: learning curves over several seeds.

    python -m bench.rllib_curves [--seeds 5] [--steps 3000] --json FILE

The same seeds for both, one training after the other, with ours and theirs in turn. A seed of RLlib does not make trainings
equal: its own buffer draws from the process's random numbers. So what is compared is the mean return of episodes over the second
half of a training: the difference of the two means over all seeds, against the noise of such a difference, which is estimated
from the spread between seeds (Welch, 1947, "The generalization of 'Student's' problem").
"""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Report, parser
from bench.ray_buffers import start

EVERY = 250  # steps between two points of a curve
CAPACITY = 20_000


def train(kind: dict[str, Any], seed: int, steps: int) -> list[float]:
    """Train, and return the mean return of episodes that ended since the point before; NaN where none did."""
    from ray.rllib.algorithms.dqn import DQNConfig

    config: Any = DQNConfig().environment("CartPole-v1")
    config.rl_module(model_config={"fcnet_hiddens": [64], "head_fcnet_hiddens": []})
    config.env_runners(num_env_runners=0).debugging(seed=seed)
    config.training(
        lr=5e-4,
        target_network_update_freq=100,
        epsilon=[(0, 1.0), (steps // 4, 0.05)],
        replay_buffer_config={**kind, "capacity": CAPACITY, "alpha": 0.6, "beta": 0.4},
        train_batch_size=32,
        num_steps_sampled_before_learning_starts=200,
    )
    config.reporting(min_sample_timesteps_per_iteration=EVERY, metrics_num_episodes_for_smoothing=5)
    made, curve = config.build_algo(), []
    for _ in range(steps // EVERY):
        curve.append(float(made.train()["env_runners"].get("episode_return_mean", math.nan)))
    made.stop()
    return curve


def main() -> None:
    """Train with both, for all seeds."""
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--steps", type=int, default=3_000)
    args = options.parse_args()
    report = Report("rllib_curves", args.seed, quick=args.quick)
    seeds, steps = (2, 1_000) if args.quick else (args.seeds, args.steps)
    start()
    curves: dict[str, list[list[float]]] = {"ours": [], "theirs": []}
    for seed in range(args.seed, args.seed + seeds):
        directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
        try:
            ours = {"type": "diskbuffer.adapters.ray.rllib.DiskPrioritizedEpisodeReplayBuffer", "path": str(directory / "store")}
            for name, kind in (("ours", ours), ("theirs", {"type": "PrioritizedEpisodeReplayBuffer"})):
                curves[name].append(train(kind, seed, steps))
                print(f"seed {seed}, {name}: {' '.join(f'{one:.0f}' for one in curves[name][-1])}", flush=True)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    found = {name: np.array(curve) for name, curve in curves.items()}
    for name, curve in found.items():
        for n in range(1, curve.shape[1] + 1):
            value = float(np.nanmean(curve[:, n - 1]))
            report.row(f"mean return after {n * EVERY:,} steps, {seeds} seeds, {name}", value, "")
    late = {name: np.nanmean(curve[:, curve.shape[1] // 2 :], axis=1) for name, curve in found.items()}
    for name, values in late.items():
        report.row(f"mean return over the second half, {seeds} seeds, {name}", float(values.mean()), "")
        report.row(f"its standard deviation between seeds, {name}", float(values.std(ddof=1)), "")
    noise = math.sqrt(sum(values.var(ddof=1) / len(values) for values in late.values()))
    apart = abs(late["ours"].mean() - late["theirs"].mean()) / max(noise, 1e-9)
    report.row("the curves' difference, in standard errors of it", float(apart), "", at_most=2.0)
    report.write(args.json)


if __name__ == "__main__":
    main()
