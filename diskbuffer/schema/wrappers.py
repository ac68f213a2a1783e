"""What wrappers of environments normalise with, as named arrays: to be kept with a mark, and put back.

They are known by what they have, whatever they are called: running statistics with ``mean``, ``var`` and ``count``, alone or in a
dict, and beside them what rewards are discounted in. So are `VecNormalize` of Stable-Baselines3, and `NormalizeObservation` and
`NormalizeReward` of Gymnasium, for one environment and for vectors; also inside of a vector with environments of this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.schema.environment import chain_of

Place = tuple[str, Any, str]  # the name of a value, the object that has it, and the attribute
_STATISTICS = ("mean", "var", "count")
_DISCOUNTED = ("returns", "discounted_reward", "accumulated_reward")


def wrapper_arrays(env: Any) -> dict[str, npt.NDArray[Any]]:
    """Return what an environment's wrappers normalise with, for ``copies.mark(name, arrays=...)``.

    Parameters
    ----------
    env : gymnasium.Env, gymnasium.vector.VectorEnv or stable_baselines3 VecEnv
        With its wrappers. Those in other processes are not reached: put the wrapper around the vector.

    Returns
    -------
    dict of str to array
        Copies, by the place of the wrapper, its class, and the value: "0/VecNormalize/obs_rms/mean".

    Raises
    ------
    InputError
        No wrapper has running statistics.
    """
    places = _places(env)
    return {name: np.array(getattr(owner, attribute)) for name, owner, attribute in places}


def restore_wrapper_arrays(env: Any, arrays: Mapping[str, Any]) -> None:
    """Have an environment's wrappers normalise with what `wrapper_arrays` returned of such an environment; others stay.

    Raises
    ------
    InputError
        There are other wrappers than there were, or a shape is another one. Nothing was changed.
    """
    places = _places(env)
    if missing := [name for name, _, _ in places if name not in arrays]:
        raise InputError(f"arrays: expected {', '.join(missing)}, found {', '.join(map(str, arrays)) or 'none'}")
    values = [np.array(arrays[name]) for name, _, _ in places]
    for (name, owner, attribute), value in zip(places, values, strict=True):
        if (shape := np.shape(getattr(owner, attribute))) != value.shape:
            raise InputError(f"arrays[{name!r}]: expected shape {shape}, found {value.shape}; is it another environment?")
    for (_, owner, attribute), value in zip(places, values, strict=True):
        match getattr(owner, attribute):
            case np.ndarray():
                setattr(owner, attribute, value)
            case np.generic():
                setattr(owner, attribute, value[()])
            case _:
                setattr(owner, attribute, value.item())


def _places(env: Any) -> list[Place]:
    places = list(_of_chain("", env))
    if not places:
        raise InputError(
            f"env: expected wrappers with running statistics, such as VecNormalize, found none in {type(env).__name__}"
        )
    return places


def _of_chain(above: str, env: Any) -> Iterator[Place]:
    """Yield the places of an environment and those that it wraps, the outermost first."""
    for number, each in enumerate(chain_of(env, "env", "venv")):
        held = getattr(each, "__dict__", {})
        yield from _of_wrapper(f"{above}{number}/{type(each).__name__}", each, held)
        for k, inner in enumerate(held["envs"] if isinstance(held.get("envs"), list | tuple) else ()):
            yield from _of_chain(f"{above}{number}/envs/{k}/", inner)


def _of_wrapper(name: str, wrapper: Any, held: Mapping[str, Any]) -> Iterator[Place]:
    found = list[Place]()
    for attribute, value in held.items():
        parts = {f"/{key}": part for key, part in value.items()} if isinstance(value, dict) else {"": value}
        for key, part in parts.items():
            if all(hasattr(part, each) for each in _STATISTICS) and isinstance(part.var, np.ndarray | np.generic | float):
                found += [(f"{name}/{attribute}{key}/{each}", part, each) for each in _STATISTICS]
    if found:
        found += [(f"{name}/{attribute}", wrapper, attribute) for attribute in _DISCOUNTED if attribute in held]
    yield from found
