"""Stores of every kind, made at random, and what a user sees of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from diskbuffer.schema.nested import flatten, put
from diskbuffer.schema.schema import KEPT

Array = npt.NDArray[Any]
REWARD = {"reward": db.Column((), "float64", allow_nan=True)}
COLUMNS: dict[str, dict[str, db.Column]] = {
    "vectors": {"obs": db.Column((3,), "float32"), "action": db.Column((2,), "float32"), **REWARD},
    "frames": {"obs": db.Column((34, 33), "uint8"), "action": db.Column((), "int64"), **REWARD, "skill": db.Column((), "int8")},
    "dict": {
        "obs/camera": db.Column((20, 20, 3), "uint8"),
        "obs/arm%20joints": db.Column((3,), "float64"),
        "action/grip": db.Column((), "bool"),
        "action/move": db.Column((2,), "float32"),
        **REWARD,
    },
}
ENVIRONMENT = {"id": "Made-v0", "wrappers": ["FrameStack"], "n_envs": 1}
_SMALL = 60  # steps


@dataclass(frozen=True)
class Made:
    """How a store was made."""

    path: Path
    options: dict[str, Any]


def values(column: db.Column, rows: int, random: np.random.Generator) -> Array:
    """Return rows of a column at random."""
    shape = (rows, *column.shape)
    if column.np_dtype.kind == "f":
        found = random.normal(size=shape).astype(column.np_dtype)
        found[random.random(shape) < 0.1] = -0.0
        if column.allow_nan:
            found[random.random(shape) < 0.05] = np.nan
        return found
    if column.np_dtype.kind == "b":
        return random.random(shape) < 0.5
    return random.integers(0, 100, shape).astype(column.np_dtype)


def add_episode(buffer: db.ReplayBuffer, steps: int, random: np.random.Generator, ending: str, env: int = 0) -> None:
    """Add an episode at random; of stacks, perhaps from the middle of one. It may end as "running"."""
    stack = buffer.frame_stack
    stacked = stack > 1 and random.random() < 0.5
    given: dict[str, Any] = {}
    for path, column in buffer.columns.items():
        if path in buffer.columns.derived or path in (*KEPT, "terminated", "truncated"):
            continue
        if path.split("/")[0] != "obs":
            given[path] = values(column, steps, random)
        elif stacked:
            frames = values(column, steps + stack, random)
            given[path] = np.stack([frames[t : t + stack] for t in range(steps + 1)])
        else:
            given[path] = values(column, steps + 1, random)
    for flag in ("terminated", "truncated"):
        given[flag] = np.zeros(steps, bool)
        given[flag][-1] = ending == flag
    nested: dict[str, Any] = {}
    for path, array in given.items():
        put(nested, path, array)
    buffer.extend(**nested, env=env, new_episode=True)
    if ending == "cut off":
        buffer.cut_off(env)


def make(path: Path, seed: int, **given: Any) -> Made:
    """Make a store at random: columns, streams, stacks, a ring or not, endings, tags, derived columns."""
    random = np.random.default_rng(seed)
    pick: Callable[[list[Any]], Any] = lambda of: of[int(random.integers(len(of)))]  # noqa: E731
    envs, stack = pick([1, 1, 2, 3]), pick([1, 1, 3])
    options: dict[str, Any] = {
        "columns": COLUMNS[pick(sorted(COLUMNS))],
        "n_envs": envs,
        "frame_stack": stack,
        "padding": pick(["first", "zeros"]),
        "autoreset": pick(["next_step", "disabled"]),
        "capacity": pick([None, _SMALL]),
        "capacity_each": pick([False, True]),
        "segment_rows": pick([8, 16, 64]),
        "metadata": pick([None, {"run": seed, "names": ["a", "b"]}]),
        "environment": pick([None, ENVIRONMENT]),
        **given,
    }
    endings = ["terminated", "truncated", "cut off", "running"]
    db.ReplayBuffer(path, **options).close()
    with db.ReplayBuffer(path, autoreset="disabled") as buffer:  # or steps that look like a reset would be none
        for n in range(int(random.integers(1, 14))):
            env = int(random.integers(options["n_envs"]))
            ending = pick(endings)
            add_episode(buffer, int(random.integers(1, 30)), random, ending, env)
            if n == 4 and random.random() < 0.1:
                buffer.clear()
        if options["capacity"] == _SMALL:  # steps were evicted, and there are no more than the capacity from now on
            options["capacity"] = 10_000
            buffer.resize(10_000)
        over = buffer.episodes.ending != "running"
        for tag in ("good", "bad", "x y")[: int(random.integers(4))]:
            some = over & (random.random(len(over)) < 0.5)
            if some.any():
                buffer.episodes[some].set_tag(tag)
        steps = buffer.steps()
        for name, shape, dtype in (("priority", (), "float32"), ("advantage", (2,), "float64")):
            if random.random() < 0.5:
                some = steps[random.random(len(steps)) < 0.7]
                buffer.columns.write(name, some, random.normal(size=(len(some), *shape)).astype(dtype))
    return Made(path, options)


def episodes(path: Path, **options: Any) -> list[dict[str, Any]]:
    """Return all that a buffer tells of its episodes: every column as a batch has it, stacks and derived values among them."""
    with db.ReplayBuffer(path, mode="r", **options) as buffer:
        found = []
        for episode in buffer.episodes:
            arrays = {name: array.numpy() for name, array in flatten(buffer.episode(episode)).items() if name != "steps"}
            found.append({"stream": episode.stream, "ending": episode.ending, "its tag": episode.tag, **arrays})
        return found


def described(path: Path) -> dict[str, Any]:
    """Return what a buffer tells of itself."""
    with db.ReplayBuffer(path, mode="r") as buffer:
        layout = buffer._store.layout
        names = ("columns", "metadata", "environment", "frame_stack", "n_envs", "capacity")
        of_layout = ("padding", "autoreset", "capacity_each", "chunks_of")
        found = {name: getattr(buffer, name) for name in names} | {name: getattr(layout, name) for name in of_layout}
        return found | {"tags": buffer.episodes.tag_names, "derived": buffer.columns.derived}


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Assert that two lists of episodes are equal, bit by bit, but for forms of NaN."""
    assert [(one["stream"], one["ending"], one["its tag"]) for one in found] == [
        (one["stream"], one["ending"], one["its tag"]) for one in wanted
    ]
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert sorted(one) == sorted(other), f"episode {number}"
        for name in one:
            if isinstance(one[name], np.ndarray):
                a, b = one[name], other[name]
                assert (a.dtype, a.shape) == (b.dtype, b.shape), f"episode {number}, {name}"
                same = a.tobytes() == b.tobytes() if a.dtype.kind != "f" else np.array_equal(a, b, equal_nan=True)
                assert same, f"episode {number}, {name}"
