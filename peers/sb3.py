"""A plugin for pytest: our buffers in the place of Stable-Baselines3's, each in a directory of its own where no path is given."""

from __future__ import annotations

import tempfile
from typing import Any

import stable_baselines3
from stable_baselines3.common import buffers, off_policy_algorithm, on_policy_algorithm
from stable_baselines3.her import her_replay_buffer

from diskbuffer.adapters import sb3
from peers.installed import installed

TESTED = installed(stable_baselines3, "stable-baselines3")


class ReplayBuffer(sb3.DiskReplayBuffer):
    """Ours, for tests that know no path."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("path", tempfile.mkdtemp() + "/store")
        super().__init__(*args, **kwargs)


class NStepReplayBuffer(ReplayBuffer):
    """Ours, with the library's default number of steps, and gamma."""

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **kwargs: Any) -> None:
        super().__init__(*args, n_steps=n_steps, gamma=gamma, **kwargs)


class DictReplayBuffer(sb3.DiskDictReplayBuffer, ReplayBuffer):
    """Ours, for dict observations."""


class HerReplayBuffer(sb3.DiskHerReplayBuffer, DictReplayBuffer):
    """Ours, with hindsight goals."""


class RolloutBuffer(sb3.DiskRolloutBuffer):
    """Ours, for PPO and A2C."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("path", tempfile.mkdtemp() + "/store")
        super().__init__(*args, **kwargs)


class DictRolloutBuffer(sb3.DiskDictRolloutBuffer, RolloutBuffer):
    """Ours, for dict observations."""


for module in (buffers, off_policy_algorithm, on_policy_algorithm, her_replay_buffer, stable_baselines3):
    for of in (ReplayBuffer, NStepReplayBuffer, DictReplayBuffer, HerReplayBuffer, RolloutBuffer, DictRolloutBuffer):
        if hasattr(module, of.__name__):
            setattr(module, of.__name__, of)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell what was tested."""
    terminalreporter.write_line(TESTED)
