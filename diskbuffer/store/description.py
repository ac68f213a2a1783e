"""How a store describes itself on the disk, in the group's attributes, as long as it is open."""

from __future__ import annotations

import contextlib
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
        """Change fields of the layout: an error means that it stays as it was, on the disk, too."""
        self.replace(dataclasses.replace(self.layout, **changes), slots)

    def replace(self, layout: Layout, slots: int) -> None:
        """Describe the store by another layout. From the group's file on that has happened: its copy may come later."""
        self._written = False
        self.layout = directory.replace_group(self._files, layout, slots)
        with contextlib.suppress(OSError):
            directory.copy_group(self._files)
            self._written = True

    def write_again(self, slots: int) -> None:
        """Write what is described where that, or its copy, failed the last time."""
        if not self._written:
            self.layout = directory.write_group(self._files, self.layout, slots)
            self._written = True
