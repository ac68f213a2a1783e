"""The observations that ended episodes, where environments reset in the same step (AutoresetMode.SAME_STEP)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.nested import flatten, one_of, put
from diskbuffer.recording.blocks import Axes, Blocks, Slot, on_host
from diskbuffer.recording.values import check_names

Bools = npt.NDArray[np.bool_]
_FEW = 5  # episodes that ended, before it is said that something is wrong with all of them
_FLAGS = (Slot("terminated", None), Slot("truncated", None))
_DEPTH = 5  # calls between the caller of `add`, whom the warning is to name, and `warnings.warn`


class FinalObservations:
    """Put them in place of the observations that the environments were reset to.

    Parameters
    ----------
    blocks : Blocks
    axes : Axes
        Of a single step.
    """

    def __init__(self, blocks: Blocks, axes: Axes) -> None:
        self._blocks, self._axes = blocks, axes
        self._ended = self._overwritten = 0  # episodes; those whose last observation is that of the reset

    def in_place_of(self, next_obs: Any, info: Any, flags: tuple[Any, ...], obs: Any) -> Any:
        """Return what a step led to: `next_obs`, but of environments whose episode ended, as `info` has it.

        `flags` are terminated and truncated; `obs` is what the step started from. An InputError where `info` does not have it.
        """
        terminated, truncated = (
            self._blocks.fit(slot, on_host(flag), self._axes) for slot, flag in zip(_FLAGS, flags, strict=True)
        )
        ended = terminated | truncated
        if not ended.any():
            return next_obs
        final, given, before = _final_obs(info, ended), flatten({"next_obs": next_obs}), flatten({"next_obs": obs})
        replaced = {path: np.array(np.asarray(on_host(value))) for path, value in given.items()}
        for env in np.flatnonzero(ended).tolist():
            last = flatten({"next_obs": one_of(final, env)})
            check_names(last, given)
            self._compare(last, replaced, before, env)
            for path, value in last.items():
                replaced[path][env] = on_host(value)
        nested: dict[str, Any] = {}
        for path, value in replaced.items():
            put(nested, path, value)
        return nested["next_obs"]

    def _compare(self, last: Mapping[str, Any], reset: Mapping[str, Any], before: Mapping[str, Any], env: int) -> None:
        """Warn, once, if every episode seems to end with what the next one starts from; where nothing moves, nothing is told."""
        if _is_same(last, before, env):
            return
        self._ended += 1
        self._overwritten += _is_same(last, reset, env)
        if self._ended == self._overwritten == _FEW:
            warnings.warn(
                f"the last observations of all {_FEW} episodes that ended are those that the environments were reset to, so "
                "wrong ones are stored. An environment that returns the same array each time overwrites what it returned "
                "before, in info, too: have its step() and reset() return copies. If episodes do end so, all is well",
                UserWarning,
                stacklevel=_DEPTH,
            )


def _is_same(last: Mapping[str, Any], others: Mapping[str, Any], env: int) -> bool:
    """Tell whether an observation is that of one environment among others."""
    return all(path in others and np.array_equal(value, np.asarray(others[path])[env]) for path, value in last.items())


def _final_obs(info: Any, ended: Bools) -> Any:
    """Return the observations that ended episodes, as Gymnasium's vectors have them, or those of Stable-Baselines3."""
    if isinstance(info, dict) and "final_obs" in info:
        return info["final_obs"]
    if isinstance(info, list | tuple) and len(info) == len(ended):
        found = [each.get("terminal_observation") if isinstance(each, dict) else None for each in info]
        if all(found[env] is not None for env in np.flatnonzero(ended)):
            return found
    raise InputError(
        "this buffer's environments reset in the same step (AutoresetMode.SAME_STEP): next_obs is then the next "
        "episode's first observation, and the real last one is in the info of step(). Give it: add(..., info=info)"
    )
