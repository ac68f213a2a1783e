"""Overlay file systems, as containers have.

A file of a lower layer, an image's, is copied to the writable one when it is first opened for writing. A map that was made before
stays at the lower file, and never sees what is written afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from functools import cached_property

from diskbuffer.store.system.files import Files

_OVERLAY = 0x794C7630  # OVERLAYFS_SUPER_MAGIC, the first word of what statfs returns


class Layers:
    """The layers that a store's files lie in, if they lie in any.

    Parameters
    ----------
    files : Files
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    @cached_property
    def _is_overlay(self) -> bool:
        if sys.platform != "linux":
            return False
        status = (ctypes.c_long * 64)()  # more than a struct statfs
        failed = ctypes.CDLL(None).statfs(os.fsencode(self._files.root), ctypes.byref(status))
        return not failed and status[0] == _OVERLAY

    def copy_up(self, name: str) -> None:
        """Copy a file to the writable layer before it is mapped, where that is allowed: somebody may write to it later.

        Its contents stay what they are. Nothing is done on other file systems.
        """
        if self._is_overlay:
            with contextlib.suppress(OSError):  # one that may not do so reads on, and is refused where a writer comes by
                self._files.close(self._files.open(name))
