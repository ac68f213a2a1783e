"""For Tianshou: its buffers, with their steps in a store on disk."""

from diskbuffer.adapters.tianshou.buffers import (
    DiskPrioritizedReplayBuffer,
    DiskPrioritizedVectorReplayBuffer,
    DiskReplayBuffer,
    DiskVectorReplayBuffer,
)

__all__ = ["DiskPrioritizedReplayBuffer", "DiskPrioritizedVectorReplayBuffer", "DiskReplayBuffer", "DiskVectorReplayBuffer"]
