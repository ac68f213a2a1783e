"""Integers, wherever users give them, by one rule: integers of Python's, numpy's and PyTorch's, and nothing else."""

from __future__ import annotations

import inspect
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import diskbuffer as db
from diskbuffer.arguments.integers import integer
from diskbuffer.columns.columns import Columns
from diskbuffer.commands.app import COMMANDS, build
from diskbuffer.options import CreateOptions

COLUMNS = {"obs": db.Column((2,)), "action": db.Column((), "int64")}
Call = Callable[[db.ReplayBuffer, Any], Any]


def _made(buffer: db.ReplayBuffer, **options: Any) -> None:
    """Make a store, write to it, and open it again, each with the same options."""
    path = buffer.path.parent / secrets.token_hex(8)
    for _ in range(2):
        with db.ReplayBuffer(path, columns=COLUMNS, **options) as made:
            n_envs = made.n_envs
            obs, flags = np.zeros((n_envs, 2), np.float32), np.zeros(n_envs, np.bool_)
            for step in range(20):
                made.add(obs + step, np.zeros(n_envs, np.int64), np.zeros(n_envs), obs + step + 1, flags, flags)
            made.extend(obs=np.zeros((31, 2)), action=np.zeros(30, int), reward=np.zeros(30), env=0)
            made.flush()
            made.sample(4)


def _drawn(sampler: Callable[[Any], db.Sampler]) -> Call:
    return lambda buffer, value: buffer.sample(3, sampler(value))


def _prioritized(**options: Any) -> db.Prioritized:
    return db.Prioritized(**options, column=f"priority_{secrets.token_hex(4)}")


def _first(loader: Any) -> Any:
    return next(iter(loader))


# By the name of what takes it: an integer that is taken, and how it is given.
CASES: dict[str, tuple[int, Call]] = {
    "ReplayBuffer(capacity)": (40, lambda b, v: _made(b, capacity=v)),
    "ReplayBuffer(n_envs)": (2, lambda b, v: _made(b, n_envs=v, autoreset="next_step")),
    "ReplayBuffer(frame_stack)": (2, lambda b, v: _made(b, frame_stack=v)),
    "ReplayBuffer(seed)": (5, lambda b, v: _made(b, seed=v)),
    "ReplayBuffer(threads)": (1, lambda b, v: _made(b, threads=v)),
    "ReplayBuffer(segment_rows)": (16, lambda b, v: _made(b, segment_rows=v)),
    "ReplayBuffer(chunk_rows)": (2, lambda b, v: _made(b, chunk_rows=v)),
    "ReplayBuffer.at(length)": (2, lambda b, v: b.at(b.steps()[:2], v)),
    "ReplayBuffer.batches(batch_size)": (5, lambda b, v: list(b.batches(v))),
    "ReplayBuffer.batches(seed)": (5, lambda b, v: list(b.batches(9, shuffle=True, seed=v))),
    "ReplayBuffer.batches(prefetch)": (2, lambda b, v: list(b.batches(9, prefetch=v))),
    "ReplayBuffer.batches(threads)": (1, lambda b, v: list(b.batches(9, threads=v))),
    "ReplayBuffer.batches(rank)": (1, lambda b, v: list(b.batches(9, rank=v, world_size=2))),
    "ReplayBuffer.batches(world_size)": (2, lambda b, v: list(b.batches(9, rank=0, world_size=v))),
    "ReplayBuffer.draw(batch_size)": (3, lambda b, v: b.draw(v)),
    "ReplayBuffer.sample(batch_size)": (3, lambda b, v: b.sample(v)),
    "ReplayBuffer.episode(which)": (0, lambda b, v: b.episode(v)),
    "ReplayBuffer.extend(env)": (1, lambda b, v: b.extend(obs=np.zeros((2, 2)), action=[0], reward=[0.0], env=v)),
    "ReplayBuffer.loader(batch_size)": (3, lambda b, v: _first(b.loader(v))),
    "ReplayBuffer.loader(prefetch)": (2, lambda b, v: _first(b.loader(3, prefetch=v))),
    "ReplayBuffer.loader(threads)": (1, lambda b, v: _first(b.loader(3, threads=v))),
    "ReplayBuffer.batches(transform_threads)": (2, lambda b, v: list(b.batches(9, transform_threads=v))),
    "ReplayBuffer.loader(transform_threads)": (2, lambda b, v: _first(b.loader(3, transform_threads=v))),
    "Mixture.loader(transform_threads)": (2, lambda b, v: _first(db.Mixture([(b, 1.0)]).loader(3, transform_threads=v))),
    "ReplayBuffer.loader(rank)": (1, lambda b, v: _first(b.loader(3, db.Uniform(0), rank=v, world_size=2))),
    "ReplayBuffer.loader(world_size)": (2, lambda b, v: _first(b.loader(3, db.Uniform(0), rank=0, world_size=v))),
    "Columns.map(batch_size)": (9, lambda b, v: b.columns.map(lambda x: x["reward"], v, out="o", progress=False)),
    "Columns.map(prefetch)": (2, lambda b, v: b.columns.map(lambda x: x["reward"], 9, out="o", prefetch=v, progress=False)),
    "Columns.map(threads)": (1, lambda b, v: b.columns.map(lambda x: x["reward"], 9, out="o", threads=v, progress=False)),
    "ReplayBuffer.at(n_step)": (2, lambda b, v: b.at(b.steps([3]), n_step=v)),
    "ReplayBuffer.resize(capacity)": (200, lambda b, v: b.resize(v)),
    "Mixture.loader(batch_size)": (3, lambda b, v: _first(db.Mixture([(b, 1.0)]).loader(v))),
    "Mixture.loader(prefetch)": (2, lambda b, v: _first(db.Mixture([(b, 1.0)]).loader(3, prefetch=v))),
    "Mixture.loader(threads)": (1, lambda b, v: _first(db.Mixture([(b, 1.0)]).loader(3, threads=v))),
    "Mixture.sample(batch_size)": (3, lambda b, v: db.Mixture([(b, 1.0)]).sample(v)),
    "Hindsight(seed)": (3, lambda b, v: db.Hindsight(lambda batch: batch["reward"], seed=v)),
    "Prioritized(seed)": (3, _drawn(lambda v: _prioritized(seed=v))),
    "Prioritized(n_step)": (2, _drawn(lambda v: _prioritized(n_step=v))),
    "Prioritized(length)": (2, _drawn(lambda v: _prioritized(length=v))),
    "Prioritized(period)": (2, _drawn(lambda v: _prioritized(length=3, period=v))),
    "Prioritized(burn_in)": (2, _drawn(lambda v: _prioritized(length=3, burn_in=v))),
    "Sampler(seed)": (3, _drawn(lambda v: db.Uniform(v))),
    "Slices(length)": (2, _drawn(lambda v: db.Slices(v))),
    "Slices(seed)": (2, _drawn(lambda v: db.Slices(2, v))),
    "Slices(burn_in)": (2, _drawn(lambda v: db.Slices(2, burn_in=v))),
    "Windows(seed)": (2, _drawn(lambda v: db.Windows({"action": (0, 1)}, v))),
    "Windows(stride)": (2, _drawn(lambda v: db.Windows({"action": (0, 1)}, stride=v))),
    "Uniform(seed)": (2, _drawn(lambda v: db.Uniform(v))),
    "Uniform(n_step)": (2, _drawn(lambda v: db.Uniform(n_step=v))),
    "Uniform(newest)": (2, _drawn(lambda v: db.Uniform(newest=v))),
    "Column(shape)": (3, lambda _, v: db.Column((v,))),
    "Resize(height)": (3, lambda _, v: db.Resize(v, 2)),
    "Resize(width)": (3, lambda _, v: db.Resize(2, v)),
    "SampleToInsertRatio(min_size)": (3, lambda _, v: db.SampleToInsertRatio(1.0, min_size=v)),
    "check_env(episodes)": (1, lambda b, v: db.check_env(gymnasium.make("CartPole-v1"), episodes=v)),
    "check_env(steps)": (3, lambda b, v: db.check_env(gymnasium.make("CartPole-v1"), steps=v)),
    "check_env(seed)": (5, lambda b, v: db.check_env(gymnasium.make("CartPole-v1"), steps=3, seed=v)),
}
# Whose annotation does not say that they are integers.
ARRAYS: dict[str, tuple[int, Call]] = {
    "ReplayBuffer.steps(ages)": (1, lambda b, v: b.at(b.steps([v]))),
    "ReplayBuffer.at(ages)": (1, lambda b, v: b.at(ages=[v])),
    "ReplayBuffer.steps(envs)": (1, lambda b, v: b.at(b.steps([0], v))),
    "ReplayBuffer.steps(envs), a list": (1, lambda b, v: b.at(b.steps([0], [v]))),
    "ReplayBuffer.cut_off(envs)": (1, lambda b, v: b.cut_off(v)),
    "ReplayBuffer.at(steps)": (0, lambda b, v: b.at([v])),
    "Episodes.remaining(steps)": (0, lambda b, v: b.episodes.remaining([v])),
    "Columns.write(steps)": (0, lambda b, v: b.columns.write("w", [v], [0.0])),
    "Uniform(max_age)": (2, _drawn(lambda v: db.Uniform(max_age=v))),
    "Windows(max_age)": (4, _drawn(lambda v: db.Windows({"action": (0, 1)}, max_age=v))),
    "Slices(max_age)": (4, _drawn(lambda v: db.Slices(2, max_age=v))),
}
_INTERNAL = {"draw", "generator", "left", "next", "seed_again", "result", "samples"}  # of samplers and transforms
BAD: dict[str, Any] = {
    "1.9": 1.9,
    "a float that is whole": 2.0,
    "numpy's float": np.float64(2.0),
    "a string": "3",
    "True": True,
    "numpy's True": np.True_,
    "a tensor that is True": torch.tensor(True),
    "10**30": 10**30,
    "-10**30": -(10**30),
    "5,000 digits": 10**5000,
    "NaN": float("nan"),
    "None": None,
    "a list": [[2]],
}


@pytest.fixture(scope="module")
def buffer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[db.ReplayBuffer]:
    path = tmp_path_factory.mktemp("integers") / "store"
    with db.ReplayBuffer(path, columns=COLUMNS, n_envs=2, autoreset="disabled") as buffer:
        for env in range(2):
            buffer.extend(obs=np.zeros((31, 2)), action=np.zeros(30, int), reward=np.zeros(30), env=env)
        _first(buffer.loader(3, threads=2))  # its threads stay as long as it: no test is the first that needs them
        yield buffer


@pytest.mark.some(6)
@pytest.mark.parametrize("name", [*CASES, *ARRAYS])
def test_integers_are_taken_and_nothing_else(buffer: db.ReplayBuffer, name: str) -> None:
    good, call = (CASES | ARRAYS)[name]
    for value in (good, np.int64(good), np.uint8(good) if good < 256 else np.uint32(good), torch.tensor(good)):
        call(buffer, value)
    for what, bad in BAD.items():
        if bad is None and not _refuses_none(name):
            continue
        if "seed" in name and isinstance(bad, int) and bad is not True and bad > 0:
            call(buffer, bad)  # there is no largest one
            continue
        with pytest.raises(db.InputError) as error:
            call(buffer, bad)
        assert len(str(error.value)) < 400, what


def _refuses_none(name: str) -> bool:
    return name in CASES and "None" not in _integers()[name]


def _integers() -> dict[str, str]:
    """Return the annotations of all integers that public classes and functions take."""
    taken = {f"ReplayBuffer({name})": str(annotation) for name, annotation in CreateOptions.__annotations__.items()}
    found = {name: annotation for name, annotation in taken.items() if re.search(r"\bint\b", annotation)}
    for public in (*db.__all__, "Columns"):
        thing = Columns if public == "Columns" else getattr(db, public)
        if not callable(thing) or public in ("ColumnStatistics", "Report", "Problem"):  # what methods return
            continue
        functions = {} if thing is Columns else {public: thing}  # which nobody makes
        if inspect.isclass(thing):
            methods = inspect.getmembers(thing, inspect.isfunction)
            left_out = () if thing in (db.ReplayBuffer, Columns) else _INTERNAL
            functions |= {f"{public}.{n}": f for n, f in methods if not n.startswith("_") and n not in left_out}
        for where, function in functions.items():
            try:
                parameters = inspect.signature(function).parameters.values()
            except (TypeError, ValueError):
                continue
            found |= {f"{where}({p.name})": str(p.annotation) for p in parameters if re.search(r"\bint\b", str(p.annotation))}
    return found


def test_every_integer_of_the_interface_is_tried() -> None:
    assert set(_integers()) - set(CASES) == {"Mixture.loader(rank)", "Mixture.loader(world_size)"}  # as of ReplayBuffer's


def test_integers_of_commands_are_not_rounded() -> None:
    """Cyclopts takes 80.5 for 80; what is `Whole` is refused."""
    app = build()
    for name in COMMANDS:
        command = app[name].default_command
        assert command is not None
        for parameter in inspect.signature(command).parameters.values():
            assert not re.search(r"\bint\b", str(parameter.annotation)), f"{name} --{parameter.name}: use Whole"


@pytest.mark.some(5)
@pytest.mark.parametrize("number", ["80.5", "1e3", "x", "", "nan", "True", "9" * 5000])
@pytest.mark.parametrize("command", [["view", "--port"], ["stats", "--rows"], ["stats", "--seed"]])
def test_a_command_refuses_what_is_no_whole_number(
    command: list[str], number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from diskbuffer.commands.cli import main

    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS):
        pass
    assert main([command[0], str(tmp_path / "store"), f"{command[1]}={number}"]) == 2
    said = capsys.readouterr()
    assert "whole number" in said.err + said.out
    assert len(said.err + said.out) < 2_000


def test_an_integer_is_what_index_makes_of_it() -> None:
    class Two:
        def __index__(self) -> int:
            return 2

    assert integer("n", Two()) == 2
    assert type(integer("n", np.uint16(7))) is int
    with pytest.raises(db.InputError, match=r"n must be an integer from 3 to 5, found 2"):
        integer("n", 2, 3, 5)
