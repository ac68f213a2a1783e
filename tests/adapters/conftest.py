"""A small cluster of Ray's, for all tests: one worker runs those that use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    ray.init(
        "local", num_cpus=1, object_store_memory=80 << 20, include_dashboard=False, logging_level="error", log_to_driver=False
    )
    yield
    ray.shutdown()
