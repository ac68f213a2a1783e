"""A plugin for pytest: our storage in place of TorchRL's on disk, `LazyMemmapStorage`, in the tests that have to do with it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torchrl
import torchrl.data
from torchrl.data.replay_buffers import storages
from torchrl.data.replay_buffers.storages import tensor

from diskbuffer.adapters.torchrl import DiskStorage
from peers.installed import installed

TESTED = installed(torchrl, "torchrl")


class LazyMemmapStorage(DiskStorage):
    """Ours, with the library's arguments."""

    def __init__(self, max_size: int, *, scratch_dir: Any = None, ndim: int = 1, device: Any = "cpu", **_: Any) -> None:
        path = None if scratch_dir is None else f"{scratch_dir}/store"
        super().__init__(max_size, path, ndim=ndim, device="cpu" if device == "auto" else device)


for module in (torchrl.data, torchrl.data.replay_buffers, storages, tensor):
    setattr(module, LazyMemmapStorage.__name__, LazyMemmapStorage)


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Leave out tests of other storages."""
    chosen = [item for item in items if LazyMemmapStorage.__name__ in item.nodeid + _source(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _source(item: pytest.Item) -> str:
    assert isinstance(item, pytest.Function)
    text = inspect.getsource(item.function)
    params = getattr(getattr(item, "callspec", None), "params", {})
    storage = f"{params.get('storage', '')} {params.get('storage_type', '')} {params.get('storage_cls', '')}"
    if any("Storage" in word for word in storage.split()):  # of many storages
        return storage
    return text


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell what was tested."""
    terminalreporter.write_line(TESTED)
