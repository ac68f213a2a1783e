"""Run a library's own buffer tests, from a checkout of its repository, against diskbuffer's classes in place of the library's.

python -m peers {sb3,tianshou,torchrl} CHECKOUT [arguments of pytest]

The library is the release that is installed. Of the checkout, only the tests are used, in a copy: Python that runs in a checkout
imports the checkout's library.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """A library.

    Attributes
    ----------
    plugin : str
        A module that puts our classes in the place of the library's.
    tests : str
        The directory of its tests.
    files : tuple of str
        Its tests of buffers.
    without : mapping of str to str
        Tests that say nothing of ours, and why.
    """

    plugin: str
    tests: str
    files: tuple[str, ...]
    without: dict[str, str]
    path: tuple[str, ...] = ()  # directories that its tests import from


_SETTINGS = ("pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini")  # of pytest

PEERS = {
    "sb3": Peer(
        "peers.sb3",
        "tests",
        (
            "tests/test_buffers.py",
            "tests/test_n_step_replay.py",
            "tests/test_her.py",
            "tests/test_save_load.py",
            "tests/test_gae.py",
            "tests/test_dict_env.py",
            "tests/test_vec_normalize.py",
            "tests/test_run.py",
        ),
        {},
        (".",),
    ),
    "tianshou": Peer(
        "peers.tianshou",
        "test",
        tuple(f"test/base/test_{name}.py" for name in ("buffer", "collector", "returns", "policy")),
        {},
        (".",),
    ),
    "torchrl": Peer(
        "peers.torchrl",
        "test",
        tuple(
            f"test/rb/test_{name}.py"
            for name in ("rb_core", "storages", "samplers", "writers", "composable", "prioritized", "query")
        ),
        {},
        ("test", "test/rb"),
    ),
}


def main() -> int:
    """Run the tests of one; return pytest's exit status."""
    parser = argparse.ArgumentParser(prog="python -m peers", description=__doc__)
    parser.add_argument("library", choices=list(PEERS))
    parser.add_argument("checkout", type=Path, help="of the library's repository, at the tag of the version that is installed")
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="diskbuffer-peers-") as directory:
        return run(PEERS[options.library], options.checkout, Path(directory), rest)


def run(peer: Peer, checkout: Path, directory: Path, rest: list[str]) -> int:
    """Run a library's tests in a directory that has nothing of the checkout but these."""
    shutil.copytree(checkout / peer.tests, directory / peer.tests)
    for name in _SETTINGS:
        if (checkout / name).exists():
            shutil.copy(checkout / name, directory)
    plugins = [word for plugin in (peer.plugin, "peers.patience", "no:cacheprovider") for word in ("-p", plugin)]
    command = [sys.executable, "-P", "-m", "pytest", *plugins, "-q", "--import-mode=importlib"]
    command += [f"--deselect={test}" for test in peer.without]
    here = Path(__file__).resolve().parents[1]
    paths = [*(str(directory / each) for each in peer.path), str(here)]  # theirs first: we have a package "tests", too
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    files = [file for file in peer.files if (directory / file).exists()]
    return subprocess.run([*command, *files, *rest], cwd=directory, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
