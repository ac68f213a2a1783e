"""Which steps to learn from. A sampler sees the index, and never a file."""

from diskbuffer.samplers.draws import Draw
from diskbuffer.samplers.hindsight import Hindsight
from diskbuffer.samplers.prioritized import Prioritized
from diskbuffer.samplers.sampler import Sampler
from diskbuffer.samplers.slices import Slices
from diskbuffer.samplers.uniform import Uniform
from diskbuffer.samplers.windows import Windows

__all__ = ["Draw", "Hindsight", "Prioritized", "Sampler", "Slices", "Uniform", "Windows"]
