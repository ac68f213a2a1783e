"""What all tests share: which of them run, seeds, time limits, and a server of writers that can be killed."""

from __future__ import annotations

import gc
import os
import random
import secrets
import shutil
import signal
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.core
import numpy as np
import pytest

from tests import amounts
from tests.by_hand import flush_by_hand
from tests.groups import group_of
from tests.leftovers import none_left

if TYPE_CHECKING:
    from tests.support.writers import Writers

_SEED = pytest.StashKey[int]()
_MEMORY = Path("/dev/shm")
_NEEDED = 6 << 30  # bytes: several times what the tests have on the disk at once


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run what takes long, and more of what is tried at random")
    parser.addoption("--freeze", action="store_true", help="write the digests of tests/frozen anew, in place of comparing")
    parser.addoption("--seed", type=int, help="of all that is random: 0 by default, with --nightly another one in each run")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests' files in memory where there is room: nearly all of a small store's time is syncing.

    What a power loss leaves is simulated, and what a kill leaves is the same in memory. `TMPDIR` overrides this.
    """
    amounts.nightly = config.getoption("--nightly")
    flush_by_hand()
    if hasattr(config, "workerinput"):
        seed = config.workerinput["seed"]
    elif (seed := config.getoption("--seed")) is None:
        seed = secrets.randbits(32) if amounts.nightly else 0
    config.stash[_SEED] = seed
    left_out = () if amounts.nightly else (hypothesis.Phase.shrink,)  # which takes longer than a test may
    phases = [phase for phase in hypothesis.Phase if phase not in left_out]
    hypothesis.settings.register_profile("tests", deadline=None, derandomize=not amounts.nightly, print_blob=True, phases=phases)
    hypothesis.settings.load_profile("tests")
    hypothesis.core.global_force_seed = seed if amounts.nightly else None
    if not amounts.nightly:
        os.environ["NUMBA_DISABLE_JIT"] = "1"  # Tianshou's functions take ten seconds to compile, and no time to run
    if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _NEEDED:
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell without job control has what it starts with & ignore it,
        signal.signal(signal.SIGINT, signal.default_int_handler)  # and with it all that tests start and interrupt


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Have all workers of pytest-xdist use one seed."""
    node.workerinput["seed"] = node.config.stash[_SEED]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    terminalreporter.write_line(f"random numbers come from --seed {config.stash[_SEED]}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the set that is to run: see `tests.amounts`; and, before xdist looks, what one worker runs: see `tests.groups`."""
    left_out = set[pytest.Item]() if config.getoption("--freeze") else _left_out(items)

    def is_chosen(item: pytest.Item) -> bool:
        nightly_only = item.get_closest_marker("nightly") is not None or item in left_out
        has_amount = "amount" in getattr(item, "fixturenames", ()) or hasattr(getattr(item, "obj", None), "hypothesis")
        return nightly_only or has_amount if amounts.nightly else not nightly_only

    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = [item for item in items if is_chosen(item)]
    for item in items:
        if group := group_of(item.path.relative_to(config.rootpath).as_posix()):
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """Freeze what was imported: each collection of garbage would look through it, for half a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[Any]:
    """Fail a test that hangs, with its traceback; `faulthandler_timeout` ends the run where native code does not return."""
    seconds = amounts.amount(600, 1800)  # even a busy machine is faster

    def fail(*_: Any) -> None:
        pytest.fail(f"the test took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


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
        each.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))  # in steps, one parameter might have one value in all
        found.update(each[wanted_of[name] :])
    return found


@pytest.fixture
def amount() -> Callable[[int, int], int]:
    """Return what tells how many cases to try: few in the fast set, and many in the nightly one, where the test runs again."""
    return amounts.amount


@pytest.fixture(autouse=True)
def any_seed(request: pytest.FixtureRequest) -> int:
    """Seed the generators of Python, numpy and PyTorch; return a seed of the test's own, from its name and ``--seed``."""
    group = request.node.get_closest_marker("xdist_group")
    name = request.node.nodeid.removesuffix(f"@{group.args[0]}" if group else "")
    seed = zlib.crc32(f"{request.config.stash[_SEED]} {name}".encode())
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  what other libraries draw from
    import torch  # not at the top: pytest-xdist's main process would import it for nothing

    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # the same, without stack traces for devices that are not there, which take milliseconds
        torch.default_generator.manual_seed(seed)
    return seed


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves signal handlers, environment variables, children or threads behind."""
    with none_left():
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[Writers]:
    from tests.support.writers import Writers

    server = Writers()
    yield server
    server.close()


@pytest.fixture
def writers(server: Writers) -> Iterator[Writers]:
    yield server
    if server.pid:
        server.kill()
