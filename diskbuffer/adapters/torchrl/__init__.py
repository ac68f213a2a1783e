"""For TorchRL: a storage on disk, diskbuffer's samplers over it, and what collectors in many processes write to."""

from diskbuffer.adapters.torchrl.collecting import CollectorBuffer
from diskbuffer.adapters.torchrl.samplers import DiskSampler
from diskbuffer.adapters.torchrl.storage import DiskStorage

__all__ = ["CollectorBuffer", "DiskSampler", "DiskStorage"]
