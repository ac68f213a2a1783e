"""One step's tensors as `ReplayBuffer.add` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from diskbuffer.adapters.place_column import SLOT
from diskbuffer.adapters.torchrl.entries import NEXT, Entries, Key, put
from diskbuffer.adapters.torchrl.many_steps import Wanted

Int64 = npt.NDArray[np.int64]
_NOTHING = np.zeros(1, np.bool_)  # the observation of what has none


class OneStep:
    """Take steps of a single environment apart, whose entries are known to be what the store holds.

    Parameters
    ----------
    entries : Entries
        Of one lane.
    """

    def __init__(self, entries: Entries) -> None:
        self._wanted = Wanted(entries)
        self._pairs = [(entry.key, entry.frames) for entry in entries if entry.paired]
        others = [entry for entry in entries if not entry.paired]
        self._numbers = [(e.key, e.path) for e in others if e.frames.shape == () and e.frames.dtype.kind in "biuf"]
        self._arrays = [(e.key, e.path) for e in others if (e.key, e.path) not in self._numbers]

    @classmethod
    def of(cls, entries: Entries) -> OneStep | None:
        """Return what takes steps of these apart; None where some have to be converted."""
        return None if entries.lanes or entries.bare else cls(entries)

    def find(self, data: TensorDict, slots: Int64) -> dict[str, Any] | None:
        """Return what `ReplayBuffer.add` is given for a step, without an axis; None where something is not as the store has it.

        `slots` is what is stored of its place, (1,).
        """
        found = self._wanted.find(data, ())
        if found is None:
            return None
        step: dict[str, Any] = {"action": None, "reward": False, SLOT: slots[0]}
        for key, path in self._numbers:
            step[path] = found[key].numpy()  # which the store takes as it is, unlike Python's integers
        for key, path in self._arrays:
            step[path] = found[key].numpy()[None]
        obs: Any = {} if self._pairs else _NOTHING
        following: Any = {} if self._pairs else _NOTHING
        for key, frames in self._pairs:
            put(obs, key, frames.split(found[key].numpy()[None]))
            put(following, key, frames.split(found[NEXT, *key].numpy()[None]))
        return step | {"obs": obs, "next_obs": following} | _flags(found)


def _flags(found: Mapping[Key, torch.Tensor]) -> dict[str, bool]:
    """Return how a step ends, as `Entries.rows` does."""
    terminated, truncated, done = (_is_set(found.get((NEXT, name))) for name in ("terminated", "truncated", "done"))
    if (NEXT, "terminated") not in found:
        terminated = done and not truncated
    elif (NEXT, "truncated") not in found:
        truncated = done and not terminated
    return {"terminated": terminated, "truncated": truncated}


def _is_set(flag: torch.Tensor | None) -> bool:
    return flag is not None and bool(flag if flag.numel() == 1 else flag.any())
