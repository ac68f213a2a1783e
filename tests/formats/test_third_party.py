"""A format and a command of another package, which pip installs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db

PACKAGE = Path(__file__).parent / "third_party"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a process in which the package is installed."""
    where = tmp_path / "packages"
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    source = tmp_path / "source"
    source.mkdir()
    for file in PACKAGE.iterdir():
        if file.is_file():
            (source / file.name).write_bytes(file.read_bytes())  # which setuptools builds in
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", str(where), str(source)], check=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(where), os.environ.get("PYTHONPATH", "")])}


def run(environment: dict[str, str], *arguments: Any) -> str:
    command = [sys.executable, "-m", "diskbuffer", *map(str, arguments)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.mark.nightly
def test_a_package_of_others_adds_a_format_and_a_command(tmp_path: Path, installed: dict[str, str]) -> None:
    assert len((PACKAGE / "diskbuffer_csv.py").read_text().splitlines()) <= 40
    rng = np.random.default_rng(0)
    (tmp_path / "csv").mkdir()
    for n, steps in enumerate((7, 3, 12)):
        rows = np.column_stack([rng.normal(size=(steps, 4)), rng.integers(0, 3, steps), np.arange(steps), np.zeros(steps)])
        rows[-1, 6] = 1
        np.savetxt(tmp_path / "csv" / f"{n}.csv", rows, delimiter=",")
    run(installed, "import", "csv", tmp_path / "csv", tmp_path / "store", "--quiet")
    assert run(installed, "count-steps", tmp_path / "store") == "22\n"
    assert "Count the steps of a store." in run(installed, "--help")
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        assert buffer.episodes.length.tolist() == [7, 3, 12]
        assert set(buffer.episodes.ending) == {"terminated"}
        assert buffer.at(buffer.episodes.start + 1)["reward"].tolist() == [1, 1, 1]
