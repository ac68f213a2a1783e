"""A plugin for pytest: our buffers in the place of Tianshou's, each in a directory of its own where no path is given."""

from __future__ import annotations

import tempfile
from typing import Any

import tianshou
import tianshou.data
from tianshou.data import collector

from diskbuffer.adapters import tianshou as ours
from peers.installed import installed

TESTED = installed(tianshou, "tianshou")


def _in_a_directory(of: type, name: str) -> type:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        kwargs.setdefault("path", tempfile.mkdtemp() + "/store")
        of.__init__(self, *args, **kwargs)

    return type(name, (of,), {"__init__": __init__, "__module__": __name__})


ReplayBuffer = _in_a_directory(ours.DiskReplayBuffer, "ReplayBuffer")
VectorReplayBuffer = _in_a_directory(ours.DiskVectorReplayBuffer, "VectorReplayBuffer")
PrioritizedReplayBuffer = _in_a_directory(ours.DiskPrioritizedReplayBuffer, "PrioritizedReplayBuffer")
PrioritizedVectorReplayBuffer = _in_a_directory(ours.DiskPrioritizedVectorReplayBuffer, "PrioritizedVectorReplayBuffer")

# Not in the modules of the buffers themselves, whose classes ours and Tianshou's other buffers are made of.
for module in (tianshou.data, collector):
    for one in (ReplayBuffer, VectorReplayBuffer, PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer):
        if hasattr(module, one.__name__):
            setattr(module, one.__name__, one)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell what was tested."""
    terminalreporter.write_line(TESTED)
