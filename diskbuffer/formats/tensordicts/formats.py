"""The format."""

from __future__ import annotations

from diskbuffer.formats.tensordicts.reading import TensorDictSource
from diskbuffer.formats.tensordicts.writing import losses, write
from diskbuffer.plugin import Format

TENSORDICT = Format("tensordict", "memory-mapped TensorDicts, storages of TorchRL", TensorDictSource, write, losses)
