"""What a store says of where its steps come from: the environment, as far as it tells, and metadata of the user's own.

Both are JSON in the group's attributes. Nothing of it is ever evaluated or imported: a store may come from a stranger.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from diskbuffer.errors import InputError
from diskbuffer.version import __version__

MOST_BYTES, MOST_LEVELS = 64 * 1024, 64  # of each, as JSON; deeper ones cannot be written everywhere
_MOST_NUMBERS = 64  # of a bound, which is told by its extremes if it has more
_MOST_WRAPPERS, _MOST_TEXT, _SHOWN = 100, 500, 300


# What a caller gives


def as_json(name: str, mapping: Any) -> dict[str, Any] | None:
    """Return a mapping as JSON has it; an InputError where it cannot be written as JSON, or is too large."""
    if mapping is None:
        return None
    if not isinstance(mapping, Mapping):
        raise InputError(f"{name} must be a mapping of names to what JSON holds, found {type(mapping).__name__}")
    try:
        _check_names(name, mapping)
        text = json.dumps(dict(mapping), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{name} must consist of strings, finite numbers, booleans, None, and lists and dicts of them: {error}"
        ) from error
    if len(text) > MOST_BYTES:
        raise InputError(f"{name} must be at most {MOST_BYTES} bytes of JSON, found {len(text)}; keep it in a file of its own")
    parsed: dict[str, Any] = json.loads(text)
    if not _is_flat(parsed, MOST_LEVELS):
        raise InputError(f"{name} must be nested in at most {MOST_LEVELS} levels")
    return parsed


def _is_flat(value: Any, levels: int) -> bool:
    """Return whether something is nested in so many levels at most."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_flat(one, levels - 1) for one in inner)


def _check_names(name: str, content: Any) -> None:
    if isinstance(content, Mapping):
        for key, value in content.items():
            if not isinstance(key, str):
                raise TypeError(f"a name must be a string, found {key!r}")
            _check_names(f"{name}[{key!r}]", value)
    elif isinstance(content, list | tuple):
        for value in content:
            _check_names(name, value)


def is_sane(value: Any) -> bool:
    """Return whether something that was read can be what `as_json` returned."""
    if value is None:
        return True
    return isinstance(value, dict) and _is_flat(value, MOST_LEVELS) and len(json.dumps(value)) <= MOST_BYTES


# What an environment tells


def describe(
    observation_space: Any, action_space: Any, env: Any = None, n_envs: int | None = None, autoreset: str | None = None
) -> dict[str, Any]:
    """Describe an environment, or its two spaces alone; what it does not tell is left out."""
    description: dict[str, Any] = {
        "observation_space": _space(observation_space),
        "action_space": _space(action_space),
        "n_envs": n_envs,
        "autoreset": autoreset,
        "versions": _versions(env),
    }
    if env is not None:
        spec = getattr(env, "spec", None)
        description["id"] = _text(getattr(spec, "id", None))
        description["wrappers"] = [type(wrapper).__name__[:_MOST_TEXT] for wrapper in _wrappers(env)]
        seed = getattr(getattr(env, "unwrapped", env), "_np_random_seed", None)  # the property would set one
        description["seed"] = int(seed) if isinstance(seed, int | np.integer) and 0 <= seed < 2**128 else None
    description = {name: value for name, value in description.items() if value is not None}
    if not is_sane(description):  # thousands of parts, or of levels: what they are is in the columns
        description = {name: value for name, value in description.items() if not name.endswith("_space")}
    return description


def _text(value: Any) -> str | None:
    return str(value)[:_MOST_TEXT] if value is not None else None


def chain_of(env: Any, *names: str) -> Iterator[Any]:
    """Yield an environment and what it wraps, the innermost last; `names` are of attributes that have what a wrapper wraps."""
    for _ in range(_MOST_WRAPPERS + 1):
        yield env
        held = getattr(env, "__dict__", {})
        env = next((held[name] for name in names if held.get(name) is not None), None)
        if env is None:
            return


def _wrappers(env: Any) -> list[Any]:
    """Return an environment's wrappers, the innermost last."""
    return list(chain_of(env, "env"))[:-1]


def stack_of(env: Any, observation_space: Any) -> tuple[int | None, str | None]:
    """Return how many frames an environment's observations are stacks of, and what first ones are filled up with.

    None where it is no `AtariVectorEnv` of ALE, and no `FrameStackObservation` is among its wrappers, or among those of a
    vector's first environment; or where others have changed the shape since.
    """
    base = getattr(env, "unwrapped", env)
    if type(base).__name__ == "AtariVectorEnv" and base.single_observation_space.shape == observation_space.shape:
        frames = observation_space.shape[0]
        return (frames, "zeros") if frames > 1 else (None, None)
    of_first = (getattr(env, "envs", None) or [None])[0]
    for wrapper in [*_wrappers(env), *_wrappers(of_first)]:
        if type(wrapper).__name__ == "FrameStackObservation":
            size = getattr(wrapper, "stack_size", None)
            if isinstance(size, int | np.integer) and size > 1 and _begins_with(observation_space, int(size)):
                return int(size), {"zero": "zeros"}.get(str(getattr(wrapper, "padding_type", "")), "first")
    return None, None


def _begins_with(space: Any, size: int) -> bool:
    """Return whether every part of an observation has a first axis of that size, and another."""
    inner = getattr(space, "spaces", None)
    if isinstance(inner, Mapping):
        return all(_begins_with(part, size) for part in inner.values())
    shape = getattr(space, "shape", None)
    return shape is not None and len(shape) > 1 and shape[0] == size


def _versions(env: Any) -> dict[str, str]:
    names = ["gymnasium"] + ([] if env is None else [type(getattr(env, "unwrapped", env)).__module__.split(".")[0]])
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    return {"diskbuffer": __version__} | {name: version[:50] for name, version in versions.items() if isinstance(version, str)}


def _space(space: Any) -> dict[str, Any]:
    from gymnasium import spaces

    kind = type(space).__name__[:_MOST_TEXT]
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "spaces": {str(key)[:_MOST_TEXT]: _space(inner) for key, inner in space.spaces.items()}}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": numbers(space.nvec), "start": numbers(space.start)}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "shape": list(space.shape)}
    if isinstance(space, spaces.Box):
        shape, dtype = list(space.shape), np.dtype(space.dtype).name
        return {"kind": "Box", "shape": shape, "dtype": dtype, "low": numbers(space.low), "high": numbers(space.high)}
    return {"kind": kind, "text": _text(space)}


def numbers(array: Any) -> Any:
    """Return an array as JSON: as nested lists, one number if they are all the same, or its extremes if they are many."""
    values = np.asarray(array)
    if values.size and values.min() == values.max():
        return _number(values.flat[0])
    if values.size > _MOST_NUMBERS:
        return {"from": _number(values.min()), "to": _number(values.max())}
    return _nested(values.tolist())


def _nested(value: Any) -> Any:
    return [_nested(one) for one in value] if isinstance(value, list) else _number(value)


def _number(number: Any) -> Any:
    """Return a number, as text if it is not finite, which JSON cannot hold."""
    value = number.item() if isinstance(number, np.generic) else number
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


# Comparing


def differences(stored: Any, requested: Any) -> tuple[list[str], list[str]]:
    """Compare two descriptions; return what cannot be the same environment, and what may be another.

    Shapes and dtypes are the columns', and compared there: a stack of frames is stored, and read, in several ways.
    """
    refused, doubtful = list[str](), list[str]()
    if not isinstance(stored, dict) or not isinstance(requested, dict):
        return refused, doubtful
    for name in ("observation_space", "action_space"):
        _compare(name, stored.get(name), requested.get(name), refused, doubtful)
    for name in ("id", "wrappers"):
        _note(name, stored.get(name), requested.get(name), doubtful)
    return refused, doubtful


def _compare(name: str, stored: Any, requested: Any, refused: list[str], doubtful: list[str]) -> None:
    if not isinstance(stored, dict) or not isinstance(requested, dict):
        return
    if stored.get("kind") != requested.get("kind"):
        _note(name, stored.get("kind"), requested.get("kind"), refused)
        return
    for field in ("n", "nvec", "start"):
        _note(f"{name}.{field}", stored.get(field), requested.get(field), refused)
    if stored.get("shape") == requested.get("shape"):
        for field in ("low", "high", "text"):
            _note(f"{name}.{field}", stored.get(field), requested.get(field), doubtful)
    theirs, mine = stored.get("spaces"), requested.get("spaces")
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in theirs.keys() & mine.keys():
            _compare(f"{name}[{key!r}]", theirs[key], mine[key], refused, doubtful)


def _note(name: str, stored: Any, requested: Any, lines: list[str]) -> None:
    if stored is not None and requested is not None and stored != requested:
        lines.append(f"  {name}: stored {str(stored)[:_SHOWN]}, asked for {str(requested)[:_SHOWN]}")
