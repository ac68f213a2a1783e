"""A short run of the comparison with the libraries' own buffers, and that it sees a batch that differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import diskbuffer as db
from soak import torchrl_and_tianshou

CALLS = 10


@pytest.mark.parametrize("library", torchrl_and_tianshou.LIBRARIES)
def test_random_buffers_draw_what_the_libraries_own_draw(library: str, amount: Callable[[int, int], int], any_seed: int) -> None:
    pytest.importorskip(library)
    first = any_seed % 10**6
    for seed in range(first, first + amount(1, 20)):
        assert torchrl_and_tianshou.run(library, seed, CALLS) == "", f"{library}, seed {seed}"


@pytest.mark.nightly
@pytest.mark.parametrize("library", torchrl_and_tianshou.LIBRARIES)
def test_a_batch_that_differs_is_seen(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library)
    real = db.ReplayBuffer.at

    def other(*args: Any, **kwargs: Any) -> Any:
        batch = real(*args, **kwargs)
        for name in ("action", "episode"):
            if name in batch:
                batch[name] = ~batch[name] if batch[name].dtype == torch.bool else batch[name] + 1
        return batch

    monkeypatch.setattr(db.ReplayBuffer, "at", other)
    found = [torchrl_and_tianshou.run(library, seed, 4) for seed in range(6)]
    assert any("differs at" in what for what in found)
