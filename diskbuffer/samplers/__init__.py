"""Which steps to learn from. A sampler sees the index, and never a file."""

from diskbuffer.form import Draw
from diskbuffer.samplers.sampler import Sampler
from diskbuffer.samplers.slices import Slices
from diskbuffer.samplers.uniform import Uniform

__all__ = ["Draw", "Sampler", "Slices", "Uniform"]
