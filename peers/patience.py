"""A plugin for pytest: no test of a peer's takes longer than two minutes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

SECONDS = 120


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """End a test that hangs."""

    def give_up(*_: Any) -> None:
        raise TimeoutError(f"the test took more than {SECONDS} seconds")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)
