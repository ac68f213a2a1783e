"""Where PPO's time goes, and PPO whose environments do not wait for its updates, beside Stable-Baselines3's.

    python -m bench.ppo_waits [--only time] --json FILE

*time*: Stable-Baselines3's PPO plays Pong, four environments, for some rollouts, with several values of its arguments, watched by
the function that docs/how-to/ppo-waits.md prints. *curves*: examples/ppo_while_playing.py for 40 seconds with each of five seeds,
and the same with `--plain`, by turns, with environments that take no time and such that wait. Both sides have the same two cores.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.measure import Part, Report, parser, run

ROOT = Path(__file__).parent.parent
USUAL = {"n_steps": 512, "n_epochs": 4, "batch_size": 256}
OTHERS: tuple[dict[str, int], ...] = (
    {},
    {"n_epochs": 10},
    {"n_epochs": 2},
    {"batch_size": 64},
    {"batch_size": 1024},
    {"n_steps": 128},
    {"n_steps": 2048},
)
N_ENVS, STEPS = 4, 4_096
WAITS = (0.0, 0.002, 0.01)


def watch() -> Any:
    """Return the function on the page."""
    page = (ROOT / "docs/how-to/ppo-waits.md").read_text()
    found: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)\n\n\nmodel =", page, re.DOTALL)[0], found)
    return found["watch"]


def training(numbers: dict[str, int], steps: int, disk: Path | None) -> dict[str, float]:
    """Return the seconds that each part of a training takes, and all of it."""
    import ale_py
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage

    from diskbuffer.adapters.sb3 import DiskRolloutBuffer

    gymnasium.register_envs(ale_py)
    torch.manual_seed(0)
    env = VecTransposeImage(VecFrameStack(make_atari_env("ALE/Pong-v5", N_ENVS, seed=0), 4))
    own: Any = dict(numbers)
    if disk is not None:
        own |= {"rollout_buffer_class": DiskRolloutBuffer, "rollout_buffer_kwargs": {"path": disk, "frame_stack": 4}}
    model: Any = PPO("CnnPolicy", env, device="cpu", seed=0, **own)
    spent = watch()(model)
    begin = time.perf_counter()
    model.learn(max(steps, numbers["n_steps"] * N_ENVS))
    total = time.perf_counter() - begin
    env.close()
    if disk is not None:
        model.rollout_buffer.close()
    return {**spent, "all": total, "steps": model.num_timesteps}


def where_time_goes(report: Report, directory: Path) -> None:
    """Measure trainings with other arguments."""
    for number, change in enumerate(OTHERS):
        numbers = {**USUAL, **change}
        what = ", ".join(f"{name} {value}" for name, value in numbers.items())
        for disk in (False, True):
            spent = training(numbers, STEPS // (8 if report.quick else 1), directory / f"store-{number}" if disk else None)
            total, steps = spent.pop("all"), spent.pop("steps")
            of = f"{what}{', rollouts on disk' * disk}"
            report.row(f"{of}: steps a second", steps / total, "")
            update = spent["minibatches"] + spent["gradient steps"]
            report.row(f"{of}: an update, in which the environments wait", update * numbers["n_steps"] * N_ENVS / steps, "s")
            for name, seconds in spent.items():
                report.row(f"{of}: {name}", 100 * seconds / total, "%")


def curve(seconds: float, wait: float, seed: int, *, plain: bool) -> tuple[list[tuple[float, int, float]], tuple[int, int]]:
    """Train; return points of a curve (seconds, steps, mean return), and for how many percent of the time both sides waited."""
    command = [sys.executable, str(ROOT / "examples/ppo_while_playing.py"), "--seed", str(seed)]
    command += ["--seconds", str(seconds), "--wait", str(wait), *["--plain"] * plain]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    points = [(float(a), int(b), float(c)) for a, b, c in re.findall(r"([\d.]+) s: (\d+) steps, return ([\d.]+)", printed)]
    environments, learner = re.findall(r"waited (\d+) % of the time, the learner (\d+) %", printed)[0]
    return points, (int(environments), int(learner))


def curves(report: Report, directory: Path) -> None:
    """Measure learning curves of both."""
    seconds, seeds = (6.0, 1) if report.quick else (40.0, 5)
    for wait in WAITS:
        found: dict[bool, list[Any]] = {False: [], True: []}
        for seed in range(seeds):
            for plain, runs in found.items():
                runs.append(curve(seconds, wait, seed, plain=plain))
        for plain, runs in found.items():
            of = f"wait of {1000 * wait:g} ms: {'plain' if plain else 'while playing'}"
            for share in (0.25, 0.5, 0.75, 1):
                returns = [max(point for point in points if point[0] <= share * seconds + 2)[2] for points, _ in runs]
                spread = f"({min(returns):.0f} to {max(returns):.0f})"
                report.row(
                    f"{of}: mean return after {share * seconds:.0f} s, {seeds} seeds {spread}", statistics.mean(returns), ""
                )
            report.row(f"{of}: steps", statistics.median(points[-1][1] for points, _ in runs), "")
            for name, waited in zip(("environments", "learner"), zip(*(waited for _, waited in runs), strict=True), strict=True):
                report.row(f"{of}: {name} waited", statistics.median(waited), "%")


PARTS: dict[str, Part] = {"time": where_time_goes, "curves": curves}

if __name__ == "__main__":
    run("ppo_waits", PARTS, parser(__doc__))
