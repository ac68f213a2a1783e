"""Whole trainings of Stable-Baselines3, with its buffers in RAM and with ours on disk, in turn.

    python -m bench.trainings [--only ppo] --json FILE

PPO, A2C and DQN play CartPole, TD3 with hindsight flips bits. Each training is a process of its own; `model.learn` is timed,
after a first training that compiles and warms up.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile

from bench.measure import Report, parser, ratio

TARGET = 1.1
STEPS = {"ppo": 8_192, "a2c": 5_000, "dqn": 10_000, "td3": 1_500}

TRAINING = """
import sys, time, warnings
warnings.simplefilter("ignore")
import torch
from stable_baselines3 import A2C, DQN, PPO, TD3
from stable_baselines3.common.envs import BitFlippingEnv
from diskbuffer.adapters.sb3 import DiskHerReplayBuffer, DiskReplayBuffer, DiskRolloutBuffer
algorithm, ours, steps, path = sys.argv[1], sys.argv[2] == "ours", int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)

def model(n):
    how = {"seed": 0, "device": "cpu"}
    kept = {"path": f"{path}/{n}"}
    if algorithm in ("ppo", "a2c"):
        own = {"rollout_buffer_class": DiskRolloutBuffer, "rollout_buffer_kwargs": kept} if ours else {}
        return {"ppo": PPO, "a2c": A2C}[algorithm]("MlpPolicy", "CartPole-v1", **how, **own)
    if algorithm == "dqn":
        own = {"replay_buffer_class": DiskReplayBuffer, "replay_buffer_kwargs": kept} if ours else {}
        return DQN("MlpPolicy", "CartPole-v1", buffer_size=50_000, learning_starts=500, **how, **own)
    from stable_baselines3 import HerReplayBuffer
    own = {"replay_buffer_class": DiskHerReplayBuffer if ours else HerReplayBuffer, "replay_buffer_kwargs": kept if ours else {}}
    env = BitFlippingEnv(n_bits=8, continuous=True)
    return TD3("MultiInputPolicy", env, buffer_size=50_000, learning_starts=200, policy_kwargs={"net_arch": [64]}, **how, **own)

model(0).learn(min(steps, 2_500))
trained = model(1)
begin = time.perf_counter()
trained.learn(steps)
print(time.perf_counter() - begin)
"""


def train(algorithm: str, of: str, steps: int) -> float:
    """Train once; return the seconds that it took."""
    directory = tempfile.mkdtemp(prefix="diskbuffer-bench-")
    try:
        command = [sys.executable, "-c", TRAINING, algorithm, of, str(steps), directory]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(ran.stdout.split()[-1])
    finally:
        shutil.rmtree(directory)


def main() -> None:
    """Run all trainings, or some."""
    arguments = parser((__doc__ or "").splitlines()[0])
    arguments.add_argument("--only", nargs="+", choices=list(STEPS), default=list(STEPS))
    options = arguments.parse_args()
    report = Report("trainings", options.seed, quick=options.quick)
    for algorithm in options.only:
        times: dict[str, list[float]] = {"library": [], "ours": []}
        for _ in range(2 if options.quick else 5):
            for of, taken in times.items():
                taken.append(train(algorithm, of, STEPS[algorithm] // (3 if options.quick else 1)))
        for of, taken in times.items():
            report.times(f"{algorithm}: {of}", taken, 1.0, "s")
        value = ratio(times["ours"], times["library"])
        report.row(f"{algorithm}: time against the library's buffer", value, "x", at_most=TARGET)
    report.write(options.json)


if __name__ == "__main__":
    main()
