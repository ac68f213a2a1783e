"""Tianshou's buffer: single frames that are stacked when they are drawn, or stacks that were stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from bench.peers.peer import Peer
from bench.transitions import Transitions


class Tianshou(Peer):
    """`ReplayBuffer`, of obs and obs_next as they are stored."""

    name, needs = "Tianshou", ("tianshou",)
    stacking: ClassVar[bool] = False

    def fill(self, directory: Path) -> None:
        """Hand over all steps as one batch."""
        from tianshou.data import Batch, ReplayBuffer

        transitions, first = self._transitions, 0 if self.stacking else self._transitions.first
        observations, n = transitions.frames if self.stacking else transitions.observations, transitions.n - first
        options: dict[str, Any] = {"stack_num": transitions.stack, "ignore_obs_next": True} if self.stacking else {}
        self._buffer = ReplayBuffer(n, **options)
        flags = np.zeros(n, np.bool_)
        flat = {"act": transitions.action[first:], "rew": transitions.reward[first:].astype(np.float64)}
        steps = {"obs": observations[:-1], **flat, "terminated": flags, "truncated": flags, "done": flags, "info": Batch()}
        self._buffer.set_batch(Batch(steps if self.stacking else {**steps, "obs_next": observations[1:]}))
        self._buffer._size, self._buffer._insertion_idx = n, 0  # as `ReplayBuffer.from_data` does

    def sample(self, size: int) -> Any:
        """Draw steps, and have the batch hold tensors."""
        batch, _ = self._buffer.sample(size)
        batch.to_torch_()
        return batch

    def columns(self, batch: Any) -> dict[str, Any]:
        """Return the columns that all have."""
        return {"obs": batch.obs, "next_obs": batch.obs_next, "action": batch.act, "reward": torch.as_tensor(batch.rew)}


class Stacking(Tianshou):
    """`ReplayBuffer(stack_num=4, ignore_obs_next=True)`, of single frames."""

    name, stacking = "Tianshou, stack_num", True

    @classmethod
    def unfit(cls, transitions: Transitions) -> str:
        """Refuse what is not stacked."""
        return "" if transitions.stack > 1 else "there is nothing to stack"
