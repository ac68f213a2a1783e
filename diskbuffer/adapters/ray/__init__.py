"""Replay buffers over the nodes of a Ray cluster."""

from diskbuffer.adapters.ray.cluster import ClusterBuffer

__all__ = ["ClusterBuffer"]
