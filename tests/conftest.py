"""What tests share: experience whose every row can be told from its place, and writers in other processes that can be killed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from soak.experience import Experience, Feeder, heads_of, steps_of
from soak.writers import Writers

__all__ = ["Experience", "Feeder", "Writers", "heads_of", "steps_of"]


@pytest.fixture(scope="session")
def server() -> Iterator[Writers]:
    if not hasattr(os, "fork"):
        pytest.skip("writers are forked, and killed with SIGKILL")
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
