"""Buffers for Stable-Baselines3: experience on disk, for ``replay_buffer_class=`` and ``rollout_buffer_class=``.

>>> from diskbuffer.adapters.sb3 import DiskReplayBuffer  # doctest: +SKIP
>>> model = DQN(
...     "CnnPolicy", env, replay_buffer_class=DiskReplayBuffer, replay_buffer_kwargs={"path": "runs/pong"}
... )  # doctest: +SKIP
"""

from diskbuffer.adapters.sb3.her import DiskHerReplayBuffer
from diskbuffer.adapters.sb3.replay import DiskDictReplayBuffer, DiskReplayBuffer
from diskbuffer.adapters.sb3.rollout import DiskDictRolloutBuffer, DiskRolloutBuffer

__all__ = [
    "DiskDictReplayBuffer",
    "DiskDictRolloutBuffer",
    "DiskHerReplayBuffer",
    "DiskReplayBuffer",
    "DiskRolloutBuffer",
]
