"""For TorchRL: a storage on disk, and samplers that know its episodes."""

from diskbuffer.adapters.torchrl.samplers import DiskSampler, DiskSliceSampler
from diskbuffer.adapters.torchrl.storage import DiskStorage

__all__ = ["DiskSampler", "DiskSliceSampler", "DiskStorage"]
