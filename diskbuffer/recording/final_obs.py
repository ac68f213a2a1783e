"""The observations that ended episodes, where environments reset in the same step (AutoresetMode.SAME_STEP)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.recording.blocks import Axes, Blocks, Slot, on_host
from diskbuffer.recording.values import check_names
from diskbuffer.schema.nested import flatten, one_of, put

Array = npt.NDArray[Any]
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
    frame_stack : int
    """

    def __init__(self, blocks: Blocks, axes: Axes, frame_stack: int) -> None:
        self._blocks, self._axes, self._stack = blocks, axes, frame_stack
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
        final = _final_obs(info, ended)
        reset, before = (_arrays(flatten({"next_obs": of})) for of in (next_obs, obs))
        reset = {path: value.copy() for path, value in reset.items()}
        for env in np.flatnonzero(ended).tolist():
            last = self._last(final, reset, env)
            self._compare(last, reset, before, env)
            for path, value in last.items():
                at = self._place(reset[path], value, env)
                if at is None:
                    raise InputError(
                        f"{path}: expected an observation of shape {reset[path].shape[1:]} as the last one of environment {env}, "
                        f"found {value.shape} in info"
                    )
                # What does not fit its column is refused where all values are, so nothing may be rounded here.
                reset[path] = reset[path].astype(np.result_type(reset[path], value), copy=False)
                reset[path][at] = value if value.ndim == reset[path][at].ndim else value[-1]
        nested: dict[str, Any] = {}
        for path, value in reset.items():
            put(nested, path, value)
        return nested["next_obs"]

    def _last(self, final: Any, reset: Mapping[str, Array], env: int) -> dict[str, Array]:
        """Return an environment's last observation, by path; of a single environment it may come without an axis of these."""
        if self._axes.may_lack and not isinstance(final, list | tuple):
            whole = _arrays(flatten({"next_obs": final}))
            are_values = whole.keys() == reset.keys() and all(value.dtype != np.object_ for value in whole.values())
            if are_values and all(self._place(reset[path], value, env) is not None for path, value in whole.items()):
                return whole
        observation = one_of(final, env)
        if observation is None:
            raise InputError(f"info has None for the last observation of environment {env}, though its episode ended")
        last = _arrays(flatten({"next_obs": observation}))
        check_names(last, reset)
        return last

    def _place(self, reset: Array, last: Array, env: int) -> Any:
        """Return where in what was reset to an observation belongs, or its newest frame; None where it has another shape."""
        places: dict[tuple[int, ...], Any] = {reset.shape: ...} if self._axes.may_lack else {}
        if reset.ndim:
            places[reset.shape[1:]] = env
        is_stack = self._stack > 1 and last.shape[:1] == (self._stack,)
        return places.get(last.shape, places.get(last.shape[1:]) if is_stack else None)

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
    """Return whether an observation is that of one environment among others."""
    return all(
        path in others and np.array_equal(value, others[path][env] if others[path].ndim > value.ndim else others[path])
        for path, value in last.items()
    )


def _arrays(values: Mapping[str, Any]) -> dict[str, Array]:
    """Return observations, by path, as arrays."""
    try:
        return {path: np.asarray(on_host(value)) for path, value in values.items()}
    except ValueError as error:
        raise InputError(f"observations of one environment have other shapes than those of another: {error}") from None


def _final_obs(info: Any, ended: Bools) -> Any:
    """Return the observations that ended episodes, as Gymnasium's vectors have them, or those of Stable-Baselines3."""
    if isinstance(info, dict) and "final_obs" in info:
        return info["final_obs"]
    if isinstance(info, list | tuple) and len(info) == len(ended):
        observations = [each.get("terminal_observation") if isinstance(each, dict) else None for each in info]
        if all(observations[env] is not None for env in np.flatnonzero(ended)):
            return observations
    raise InputError(
        "this buffer's environments reset in the same step (AutoresetMode.SAME_STEP): next_obs is then the next "
        "episode's first observation, and the real last one is in the info of step(). Give it: add(..., info=info)"
    )
