"""What tests share: experience whose every row can be told from its place, and writers in other processes that can be killed."""

from __future__ import annotations

import gc
import os
import random
import secrets
import shutil
import signal
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diskbuffer.open_store import FORMAT
from soak.experience import Experience, Feeder, heads_of, steps_of
from soak.writers import Writers
from tests import amounts

__all__ = ["Experience", "Feeder", "Writers", "firsts_of", "heads_of", "steps_of"]

_SEED = pytest.StashKey[int]()
_BEGUN = time.monotonic()
_MEMORY = Path("/dev/shm")
_NEEDED = 6 << 30  # bytes: several times what the tests have on the disk at once


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run what takes long, and more of what is tried at random")
    parser.addoption("--minutes", type=float, help="skip what has not begun by then; tests come in an order that the seed draws")
    parser.addoption("--freeze", action="store_true", help="write the digests of tests/frozen anew, in place of comparing")
    parser.addoption("--seed", type=int, help="of the tests that draw another one in each run, as an earlier run printed it")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests' files in memory where there is room: nearly all of a small store's time is syncing.

    What a power loss leaves is simulated, and what a kill leaves is the same in memory. `TMPDIR` overrides this.
    """
    gc.disable()  # until all is imported: see `pytest_collection_finish`
    amounts.nightly = config.getoption("--nightly")
    if not hasattr(config, "workerinput"):
        config.stash[_SEED] = secrets.randbits(32) if (given := config.getoption("--seed")) is None else given
    else:
        config.stash[_SEED] = config.workerinput["seed"]
    if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _NEEDED:
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell without job control has what it starts with & ignore it,
        signal.signal(signal.SIGINT, signal.default_int_handler)  # and with it all that tests start and interrupt


def pytest_collection_finish() -> None:
    """Leave what was imported, some million objects, out of garbage collections: each full one takes half a second otherwise."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Have all workers of pytest-xdist use one seed."""
    node.workerinput["seed"] = node.config.stash[_SEED]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    terminalreporter.write_line(f"random seeds come from --seed {config.stash[_SEED]}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the set that is to run: see `tests.amounts`."""
    if FORMAT == 2:
        for item in items:
            if item.get_closest_marker("format_1") is not None:
                item.add_marker(pytest.mark.skip(reason="looks into stores of format 1"))
    left_out = _left_out(items)

    def is_chosen(item: pytest.Item) -> bool:
        only = item.get_closest_marker("nightly") is not None or item in left_out
        more = "amount" in getattr(item, "fixturenames", ()) or hasattr(getattr(item, "obj", None), "hypothesis")
        return only or more if amounts.nightly else not only

    chosen = [item for item in items if is_chosen(item)]
    if config.getoption("--minutes"):
        random.Random(config.stash[_SEED]).shuffle(chosen)
    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = chosen


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave what does not fit into the time to another run, which tries it in another order."""
    minutes = item.config.getoption("--minutes")
    if minutes and time.monotonic() - _BEGUN > 60 * minutes:
        pytest.skip("there is no time left: --minutes")


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the variants of tests marked ``some(n)`` that are not among the `n` of the fast set."""
    variants, found = defaultdict[str, list[pytest.Item]](list), set[pytest.Item]()
    wanted_of = dict[str, int]()
    for item in items:
        marker = item.get_closest_marker("some")
        if marker is not None and item.get_closest_marker("nightly") is None:
            name = item.nodeid.partition("[")[0]
            variants[name].append(item)
            (wanted_of[name],) = marker.args
    for name, each in variants.items():
        wanted = wanted_of[name]
        kept = {n * len(each) // wanted for n in range(wanted)}
        found.update(item for n, item in enumerate(each) if n not in kept)
    return found


@pytest.fixture
def amount() -> Callable[[int, int], int]:
    """Return what tells how many cases to try: few in the fast set, and many in the nightly one, where the test runs again."""
    return amounts.amount


@pytest.fixture
def any_seed(request: pytest.FixtureRequest) -> int:
    """Return a seed that is another one in each run, and in each test; the same with the same ``--seed``."""
    return zlib.crc32(f"{request.config.stash[_SEED]} {request.node.nodeid}".encode())


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
