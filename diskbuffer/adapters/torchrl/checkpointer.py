"""Saving a storage, and loading it again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase

from diskbuffer.errors import InputError

if TYPE_CHECKING:
    from diskbuffer.adapters.torchrl.storage import DiskStorage


class DiskCheckpointer(StorageCheckpointerBase):  # type: ignore[misc]
    """Save a storage as a snapshot of its store, of which it shares the files where it can."""

    def register_save_hook(self, hook: Any) -> None:  # noqa: ARG002
        """Refuse it."""
        raise InputError("a snapshot is what the store is; there are no hooks that could change it on the way")

    register_load_hook = register_save_hook

    def dumps(self, storage: DiskStorage, path: str | os.PathLike[str]) -> None:
        """Make a snapshot, in place of one that was there."""
        directory = Path(path)
        directory.mkdir(parents=True, exist_ok=True)
        if not storage.initialized:
            return
        new, store = directory / "store.new", directory / "store"
        shutil.rmtree(new, ignore_errors=True)
        storage.open_to_write()
        assert storage.store.buffer is not None
        storage.store.buffer.snapshot(new)
        shutil.rmtree(store, ignore_errors=True)
        new.rename(store)

    def loads(self, storage: DiskStorage, path: str | os.PathLike[str]) -> None:
        """Copy a snapshot, in place of what the storage holds."""
        if (Path(path) / "store").exists():
            storage.load(Path(path) / "store")
