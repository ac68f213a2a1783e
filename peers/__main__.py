"""Run a library's own buffer tests, from a checkout of its repository, against diskbuffer's classes in place of the library's.

python -m peers {sb3,tianshou,torchrl} CHECKOUT [arguments of pytest]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """A library.

    Attributes
    ----------
    plugin : str
        A module that puts our classes in the place of the library's.
    files : tuple of str
        Its tests of buffers.
    without : mapping of str to str
        Tests that say nothing of ours, and why.
    """

    plugin: str
    files: tuple[str, ...]
    without: dict[str, str]
    path: tuple[str, ...] = ()  # directories of the checkout that its tests import from


PEERS = {
    "sb3": Peer(
        "peers.sb3",
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
    ),
    "tianshou": Peer(
        "peers.tianshou",
        tuple(f"test/base/test_{name}.py" for name in ("buffer", "collector", "returns", "policy")),
        {},
        (".",),
    ),
    "torchrl": Peer(
        "peers.torchrl",
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
    peer, here = PEERS[options.library], Path(__file__).resolve().parents[1]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        peer.plugin,
        "-p",
        "peers.patience",
        "-p",
        "no:cacheprovider",
        "-q",
        "--import-mode=importlib",
    ]
    command += [f"--deselect={test}" for test in peer.without]
    paths = [str(here), *(str(options.checkout.absolute() / directory) for directory in peer.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    files = [file for file in peer.files if (options.checkout / file).exists()]
    return subprocess.run([*command, *files, *rest], cwd=options.checkout, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
