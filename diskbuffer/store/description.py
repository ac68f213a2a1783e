"""How a store describes itself on the disk, in the group's attributes, as long as it is open."""

from __future__ import annotations

import dataclasses
from typing import Any

from diskbuffer.store import directory
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.system.files import Files


class Description:
    """Hold the layout, and change it for good: on the disk first.

    Attributes
    ----------
    layout : Layout
        As it is described, with the number of the description.
    """

    def __init__(self, files: Files, layout: Layout) -> None:
        self._files = files
        self.layout = layout
        self._written = True  # whether the files describe the store as it is

    def change(self, slots: int, **changes: Any) -> None:
        """Change fields of the layout; where the disk fails, the layout stays as it was."""
        self.replace(dataclasses.replace(self.layout, **changes), slots)

    def replace(self, layout: Layout, slots: int) -> None:
        """Describe the store by another layout."""
        self._written = False
        self.layout = directory.write_group(self._files, layout, slots)
        self._written = True

    def write_again(self, slots: int) -> None:
        """Write what is described, where an attempt to change it failed and may have left half of another description."""
        if not self._written:
            self.replace(self.layout, slots)
