"""A small cluster of Ray's, for all tests: one worker runs those that use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    ray.init(
        "local",
        num_cpus=1,
        object_store_memory=80 << 20,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
        _system_config={"worker_niceness": 0},  # with Ray's 15, beside busy cores, an actor starts after minutes
    )
    yield
    ray.shutdown()
