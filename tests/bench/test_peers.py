"""The peers of the benchmarks hold the steps that they are given, and return whole batches of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.peers import PEERS
from bench.transitions import Transitions
from bench.worker import Worker

STEPS, SIZES = 60, (1, 16)
IN_A_TEST = ("diskbuffer", "numpy", "SB3")  # the others take seconds to import


def made(kind: str, path: Path) -> Transitions:
    rng = np.random.default_rng(0)
    if kind == "stacks":
        return Transitions.save(rng.integers(0, 256, (STEPS + 1, 16, 16), np.uint8), path / "frames.npy", 4)
    return Transitions.save(rng.normal(size=(STEPS + 1, 4)).astype(np.float32), path / "frames.npy")


@pytest.mark.filterwarnings("ignore")  # the libraries' own
@pytest.mark.parametrize("kind", ["stacks", "vectors"])
@pytest.mark.parametrize("name", IN_A_TEST)
def test_batches_are_of_the_steps_that_were_given(name: str, kind: str, tmp_path: Path) -> None:
    peer = PEERS[name](made(kind, tmp_path), tmp_path, 0)
    assert [peer.check(size) for size in SIZES] == ["", ""]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["stacks", "vectors"])
@pytest.mark.parametrize("name", [name for name in PEERS if name not in IN_A_TEST])
def test_everybody_who_is_installed_returns_them_from_a_process_of_their_own(name: str, kind: str, tmp_path: Path) -> None:
    transitions, peer = made(kind, tmp_path), PEERS[name]
    why = peer.missing() or peer.unfit(transitions)
    if why:
        pytest.skip(why)
    own = tmp_path / "own"
    own.mkdir()
    with Worker(peer, transitions, own, 0) as worker:
        assert [worker.ask("check", size) for size in SIZES] == ["", ""]


def test_a_wrong_batch_is_told(tmp_path: Path) -> None:
    transitions = made("stacks", tmp_path)
    steps = np.array([10, 20])
    obs = transitions.observations[steps - transitions.first]
    next_obs = transitions.observations[steps - transitions.first + 1]
    right = {"obs": obs, "next_obs": next_obs, "action": steps % 6, "reward": steps.astype(np.float32)}
    assert transitions.wrong(right) == ""
    assert "next_obs is not what was stored" in transitions.wrong({**right, "next_obs": obs})
    assert "actions" in transitions.wrong({**right, "action": steps % 5})
    assert "shape" in transitions.wrong({**right, "obs": obs[:, 0]})
    assert "rewards" in transitions.wrong({**right, "reward": steps + 1_000})
    assert "uint8" in transitions.wrong({**right, "obs": obs.astype(np.int16)})
