"""Saving a storage, and loading it again."""

from __future__ import annotations

import os
from typing import Any

from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase

from diskbuffer.adapters.torchrl.replacing import put_in_place, remove_tree, take_back
from diskbuffer.errors import InputError, NotAStoreError
from diskbuffer.plugin import local_path

_STORE, _NEW = "store", "store.new"  # the snapshot, and the next one until it is whole


class DiskCheckpointer(StorageCheckpointerBase):  # type: ignore[misc]
    """Save a `DiskStorage` as a snapshot of its store, of which it shares the files where it can."""

    def register_save_hook(self, hook: Any) -> None:  # noqa: ARG002
        """Refuse it."""
        raise InputError("a snapshot is what the store is; there are no hooks that could change it on the way")

    register_load_hook = register_save_hook

    def dumps(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Make a snapshot, in place of one that was there: a crash at any moment leaves the one or the other, whole.

        An InputError where there are no steps. What only reads the storage needs no lock for it.
        """
        if not len(storage):
            raise InputError(f"{storage.path} holds no steps yet, so there is nothing to save at {path}; add some first")
        directory = local_path(path)
        directory.mkdir(parents=True, exist_ok=True)
        new = directory / _NEW
        remove_tree(new)
        storage.stored.opened.copies.snapshot(new)
        put_in_place(new, directory / _STORE)

    def loads(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Hold what a snapshot holds, in place of what the storage held; a NotAStoreError where there is none."""
        snapshot = local_path(path) / _STORE
        take_back(snapshot)
        if not snapshot.is_dir():
            raise NotAStoreError(
                f"there is no snapshot of a DiskStorage at {snapshot.parent}; give the path that dumps was given"
            )
        storage.restore(snapshot)
