"""Which steps to learn from. A sampler sees the index, and never a file."""

from diskbuffer.samplers.sampler import Draw, Sampler
from diskbuffer.samplers.slices import Slices
from diskbuffer.samplers.uniform import Uniform

__all__ = ["Draw", "Sampler", "Slices", "Uniform"]
