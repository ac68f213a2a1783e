"""Buffers for Stable-Baselines3: experience on disk, for ``replay_buffer_class=`` and ``rollout_buffer_class=``.

>>> from diskbuffer.adapters.sb3 import DiskReplayBuffer  # doctest: +SKIP
>>> model = DQN(
...     "CnnPolicy", env, replay_buffer_class=DiskReplayBuffer, replay_buffer_kwargs={"path": "runs/pong"}
... )  # doctest: +SKIP

Those for sb3-contrib are imported when they are asked for, as they need it.
"""

from typing import TYPE_CHECKING, Any

from diskbuffer.adapters.sb3.her import DiskHerReplayBuffer
from diskbuffer.adapters.sb3.replay import DiskDictReplayBuffer, DiskReplayBuffer
from diskbuffer.adapters.sb3.rollout import DiskDictRolloutBuffer, DiskRolloutBuffer

if TYPE_CHECKING:
    from diskbuffer.adapters.sb3.contrib import (
        DiskMaskableDictRolloutBuffer,
        DiskMaskableRolloutBuffer,
        DiskRecurrentDictRolloutBuffer,
        DiskRecurrentRolloutBuffer,
    )

__all__ = [
    "DiskDictReplayBuffer",
    "DiskDictRolloutBuffer",
    "DiskHerReplayBuffer",
    "DiskMaskableDictRolloutBuffer",
    "DiskMaskableRolloutBuffer",
    "DiskRecurrentDictRolloutBuffer",
    "DiskRecurrentRolloutBuffer",
    "DiskReplayBuffer",
    "DiskRolloutBuffer",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from diskbuffer.adapters.sb3 import contrib

    return getattr(contrib, name)
