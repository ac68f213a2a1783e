"""What tests share: experience whose every row can be told from its place, and writers in other processes that can be killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from soak.experience import Experience, Feeder, heads_of, steps_of
from soak.writers import Writers

__all__ = ["Experience", "Feeder", "Writers", "firsts_of", "heads_of", "steps_of"]

_MEMORY = Path("/dev/shm")
_NEEDED = 6 << 30  # bytes: several times what the tests have on the disk at once


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests' files in memory where there is room: nearly all of a small store's time is syncing.

    What a power loss leaves is simulated, and what a kill leaves is the same in memory. `TMPDIR` overrides this.
    """
    if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _NEEDED:
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


def firsts_of(batch: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the names of a batch's steps, of sequences those of the first steps."""
    steps: np.ndarray[Any, Any] = batch["steps"].numpy()
    return steps if steps.ndim == 1 else steps[:, 0]


@pytest.fixture(scope="session")
def server() -> Iterator[Writers]:
    server = Writers()
    yield server
    server.close()


@pytest.fixture
def writers(server: Writers) -> Iterator[Writers]:
    yield server
    if server.pid:
        server.kill()


@pytest.fixture
def experience() -> type[Experience]:
    return Experience


@pytest.fixture
def feeder() -> type[Feeder]:
    return Feeder
