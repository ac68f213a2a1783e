"""The rollout buffers for sb3-contrib: models learn the same parameters from them as from its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("sb3_contrib")

from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3.common.env_util import make_vec_env

import diskbuffer as db
from diskbuffer.adapters import sb3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small networks learn no faster with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class InDict(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations in a dict."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({"state": env.observation_space})

    def observation(self, observation: Any) -> Any:
        return {"state": observation}

    def action_masks(self) -> Any:
        return self.env.get_wrapper_attr("action_masks")()


class Floats(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations as numbers, which networks take with or without a dict around."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-1, 1, (4,))

    def observation(self, observation: Any) -> Any:
        return np.full(4, np.ravel(observation)[0] / 100, np.float32)

    def action_masks(self) -> Any:
        return self.env.get_wrapper_attr("action_masks")()


def masked(dicts: bool, path: Path | None) -> Any:
    def make() -> Any:
        env = Floats(InvalidActionEnvDiscrete(dim=20, n_invalid_actions=10))
        return InDict(env) if dicts else env

    of = sb3.DiskMaskableDictRolloutBuffer if dicts else sb3.DiskMaskableRolloutBuffer
    own: dict[str, Any] = {} if path is None else {"rollout_buffer_class": of, "rollout_buffer_kwargs": {"path": path}}
    policy = "MultiInputPolicy" if dicts else "MlpPolicy"
    env = make_vec_env(make, 2, seed=1)
    return MaskablePPO(policy, env, n_steps=64, batch_size=32, n_epochs=2, seed=3, device="cpu", **own)


def recurrent(dicts: bool, path: Path | None) -> Any:
    env = make_vec_env("CartPole-v1", 2, seed=1, wrapper_class=InDict if dicts else None)
    policy = "MultiInputLstmPolicy" if dicts else "MlpLstmPolicy"
    sizes = {"lstm_hidden_size": 8, "net_arch": [8]}
    model = RecurrentPPO(policy, env, n_steps=32, batch_size=24, n_epochs=2, seed=3, device="cpu", policy_kwargs=sizes)
    if path is not None:
        of = sb3.DiskRecurrentDictRolloutBuffer if dicts else sb3.DiskRecurrentRolloutBuffer
        model.rollout_buffer = of.in_place_of(model.rollout_buffer, path=path)
    return model


@pytest.mark.nightly
@pytest.mark.parametrize("dicts", [False, True], ids=["array", "dict"])
@pytest.mark.parametrize("make", [masked, recurrent])
def test_models_learn_the_same_parameters(make: Any, dicts: bool, tmp_path: Path) -> None:
    learned = []
    for path in (tmp_path / "store", None):
        model = make(dicts, path)  # which seeds everything
        before = [part.clone() for part in model.policy.parameters()]
        model.learn(256)
        learned.append(list(model.policy.parameters()))
        if path is not None:
            assert model.rollout_buffer.stored.path == path
            model.rollout_buffer.close()
    assert all(torch.equal(one, other) for one, other in zip(*learned, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(learned[0], before, strict=True))
    with db.ReplayBuffer(tmp_path / "store", mode="r") as left:
        assert len(left) > 0


def test_a_buffer_for_other_observations_is_refused(tmp_path: Path) -> None:
    of, space = sb3.DiskMaskableRolloutBuffer, spaces.Dict({"v": spaces.Box(-1, 1, (3,))})
    with pytest.raises(AssertionError, match="DiskMaskableRolloutBuffer is for other than dict observations"):
        of(10, space, spaces.Discrete(2), path=tmp_path / "store")
    with pytest.raises(AssertionError, match="DiskRecurrentDictRolloutBuffer is for dict observations"):
        sb3.DiskRecurrentDictRolloutBuffer(10, space["v"], spaces.Discrete(2), (10, 1, 1, 4), path=tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.nightly
def test_sb3_contrib_is_needed_by_its_own_buffers_only() -> None:
    code = (
        "import sys; sys.modules['sb3_contrib'] = None\n"
        "from diskbuffer.adapters.sb3 import DiskReplayBuffer\n"
        "try:\n    from diskbuffer.adapters.sb3 import DiskMaskableRolloutBuffer\n"
        "except ImportError as error:\n    print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install sb3-contrib" in told
