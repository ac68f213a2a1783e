"""What grows with the steps that are stored, through the buffers for Stable-Baselines3 and Tianshou: time, and memory.

    python -m bench.growth [--steps 1000000 10000000 100000000] --json FILE

Vectors of 4 bytes, episodes of 500 steps, one environment. A store is filled through `ReplayBuffer`, as the adapter fills it; a
process of its own then opens it with the adapter, and its memory is compared with that of a process whose store has 1,000 steps.
Everything is in the page cache. Stable-Baselines3's rollouts are filled by its own `add`, to the first of these sizes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.measure import Report, parser
from bench.scale import settled
from bench.worker import Worker

EPISODE, PART, FEW = 500, 500_000, 1000
KINDS = ("Stable-Baselines3", "Tianshou")


def make(kind: str, size: int, path: Path) -> Any:
    """Return an adapter's buffer."""
    if kind == "Tianshou":
        from diskbuffer.adapters.tianshou import DiskReplayBuffer as DiskTianshouBuffer

        return DiskTianshouBuffer(size, path=path)
    from gymnasium import spaces

    from diskbuffer.adapters.sb3 import DiskReplayBuffer, DiskRolloutBuffer

    spaces_of = spaces.Box(0, 255, (4,), np.uint8), spaces.Discrete(2)
    if kind == "rollout":
        return DiskRolloutBuffer(size, *spaces_of, "cpu", path=path)
    return DiskReplayBuffer(size, *spaces_of, "cpu", path=path)


def add(kind: str, buffer: Any, step: int) -> None:
    """Add a step."""
    obs, following = (np.full(4, at % 251, np.uint8) for at in (step, step + 1))
    over = step % EPISODE == EPISODE - 1
    if kind == "Tianshou":
        from tianshou.data import Batch

        buffer.add(Batch(obs=obs, act=0, rew=1.0, obs_next=following, info={}, terminated=over, truncated=False))
    elif kind == "rollout":
        import torch

        buffer.add(obs[None], np.zeros((1, 1)), np.ones(1), np.array([step % EPISODE == 0]), torch.zeros(1), torch.zeros(1))
    else:
        buffer.add(obs[None], following[None], np.zeros((1, 1)), np.ones(1), np.array([over]), [{}])


def close(buffer: Any) -> None:
    """Close an adapter's buffer."""
    (buffer.close if hasattr(buffer, "close") else buffer.stored.close)()


def fill(kind: str, path: Path, steps: int) -> None:
    """Fill a store as its adapter would."""
    buffer = make(kind, steps, path)
    add(kind, buffer, 0)
    close(buffer)
    with db.ReplayBuffer(path, mode="r+", autoreset="disabled") as store:
        places = "slot" in store.columns
        action = store.columns["action"]
        for first in range(1, steps, PART):
            step = np.arange(first, min(first + PART, steps))
            obs, following = (np.repeat((at % 251).astype(np.uint8)[:, None], 4, axis=1) for at in (step, step + 1))
            over = step % EPISODE == EPISODE - 1
            given: dict[str, Any] = {
                "action": np.zeros((len(step), *action.shape), action.np_dtype),
                "reward": np.ones(len(step)),
            }
            if places:
                given["slot"] = step
            store.extend(obs=obs, next_obs=following, terminated=over, truncated=np.zeros(len(step), bool), **given)


class Opened:
    """A buffer of an adapter's, over a store that is there."""

    def __init__(self, kind: str, steps: int, path: Path) -> None:
        self._kind, self._steps = kind, steps
        with tempfile.TemporaryDirectory() as directory:
            first = make(kind, FEW, Path(directory) / "store")
            add(kind, first, 0)  # what is imported for the first one
            close(first)
        begin = time.perf_counter()
        self._buffer = make(kind, steps, path)
        self.opened = time.perf_counter() - begin
        assert len(self._buffer) == steps if kind == "Tianshou" else self._buffer.full
        self.sample()
        self.add()

    def sample(self) -> None:
        """Draw 256 steps."""
        self._buffer.sample(256)

    def add(self) -> None:
        """Add one."""
        add(self._kind, self._buffer, self._steps)
        self._steps += 1

    def seconds(self) -> float:
        """Return how long it took to open it."""
        return self.opened

    def memory(self) -> int:
        """Return the bytes of RAM that the process has to itself."""
        return settled()


class Rollout:
    """A rollout of Stable-Baselines3's, as it is filled."""

    def __init__(self, steps: int, path: Path) -> None:
        self._buffer = make("rollout", steps, path)
        for step in range(steps):
            add("rollout", self._buffer, step)
        for _ in zip(range(3), self._buffer.get(64), strict=False):
            pass

    def memory(self) -> int:
        """Return the bytes of RAM that the process has to itself."""
        return settled()


def main() -> None:
    """Run everything."""
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, nargs="+", default=[1_000_000, 10_000_000, 100_000_000])
    args = options.parse_args()
    report, directory = Report("growth", args.seed, quick=args.quick), Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
    sizes = [100_000] if args.quick else args.steps
    try:
        for kind in KINDS:
            little = 0
            for steps in [FEW, *sizes]:
                path = directory / f"{kind}-{steps}"
                fill(kind, path, steps)
                with Worker(Opened, kind, steps, path) as worker:
                    taken = {name: worker.time(name, calls=200, seconds=3) for name in ("sample", "add")}
                    memory, opened = worker.ask("memory"), worker.ask("seconds")
                little = little or memory
                shutil.rmtree(path)
                of = f"{kind}, {steps:,} steps"
                report.row(f"{of}: sample(256)", taken["sample"] * 1e3, "ms")
                report.row(f"{of}: add", taken["add"] * 1e6, "us")
                report.row(f"{of}: opening", opened, "s")
                if steps > FEW:
                    report.row(f"{of}: memory", (memory - little) / (steps - FEW), "bytes a step")
        used = []
        for steps in (FEW, sizes[0]):
            with Worker(Rollout, steps, directory / f"rollout-{steps}") as rollout:
                used.append(rollout.ask("memory"))
        report.row(f"a rollout of Stable-Baselines3, {sizes[0]:,} steps: memory", (used[1] - used[0]) / sizes[0], "bytes a step")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report.write(args.json)


if __name__ == "__main__":
    main()
