"""For TorchRL: a storage on disk, and diskbuffer's samplers over it."""

from diskbuffer.adapters.torchrl.samplers import DiskSampler
from diskbuffer.adapters.torchrl.storage import DiskStorage

__all__ = ["DiskSampler", "DiskStorage"]
