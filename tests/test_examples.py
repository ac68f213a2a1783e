"""The examples run, and do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *options: object) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, options)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_world_model_learns_from_crossing_sequences(tmp_path: Path) -> None:
    printed = run("world_model.py", "--store", tmp_path / "store", "--steps", 1000, "--updates", 40)
    first, last = map(float, re.findall(r"loss ([\d.]+) at first, ([\d.]+) at last", printed)[0])
    assert last < first / 5


def test_prioritized_dqn_learns_and_is_resumed(tmp_path: Path) -> None:
    printed = run("prioritized_dqn.py", "--store", tmp_path / "store", "--steps", 1500)
    assert "1,500 steps, 1,001 batches" in printed
    printed = run("prioritized_dqn.py", "--store", tmp_path / "store", "--steps", 300)
    assert "Resumed with 1,500 steps and 1,001 batches" in printed
    assert "1,800 steps, 1,301 batches" in printed


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts anonymous memory on Linux")
def test_ppo_learns_from_a_rollout_that_is_larger_than_the_memory_it_is_allowed(tmp_path: Path) -> None:
    allowed = 260
    printed = run("ppo_from_disk.py", "--rollouts", tmp_path, "--steps", 12_000, "--iterations", 1, "--allow", allowed)
    stacked, samples = (int(n.replace(",", "")) for n in re.findall(r"([\d,]+) (?:MB|samples)", printed))
    assert stacked > allowed
    assert samples == 24_000
    assert not list(tmp_path.iterdir())


def test_stable_baselines3s_dqn_is_resumed(tmp_path: Path) -> None:
    options = ("train_sb3.py", "--store", tmp_path / "store", "--capacity", 10_000, "--steps")
    assert "0 steps trained; 0 of experience on disk" in run(*options, 800)
    assert "800 steps trained; 800 of experience on disk" in run(*options, 1200)


def test_stable_baselines3s_ppo_learns_from_rollouts_on_disk(tmp_path: Path) -> None:
    printed = run("train_sb3.py", "--algorithm", "ppo", "--store", tmp_path / "store", "--steps", 1024)
    assert re.search(r"updates waited for data [\d.]+ % of their time\n1024 steps trained", printed)
