"""Replay buffers over the nodes of a Ray cluster."""

from diskbuffer.adapters.ray.buffer import RayReplayBuffer

__all__ = ["RayReplayBuffer"]
