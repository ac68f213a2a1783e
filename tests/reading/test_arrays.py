"""Batches of arrays: they are what tensors would be, and whoever reads and writes without tensors needs no PyTorch."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db
from diskbuffer.schema.nested import flatten
from tests.support.experience import SAMPLERS, Experience, Feeder


def as_arrays(batch: dict[str, Any]) -> dict[str, Any]:
    return {path: value.numpy().copy() for path, value in flatten(batch).items()}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    found = flatten(found)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        assert type(found[path]) is np.ndarray
        assert found[path].dtype == value.dtype
        np.testing.assert_array_equal(found[path], value)


def taken(batches: Any, n: int, convert: Callable[[Any], Any]) -> list[Any]:
    return [convert(batch) for batch in itertools.islice(batches, n)]


@pytest.mark.parametrize("shape", [(9,), (40, 40)])
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("name", SAMPLERS)
def test_arrays_are_what_tensors_would_be(name: str, stack: int, shape: tuple[int, ...], tmp_path: Path) -> None:
    world = Experience(2, shape=shape)
    with world.open(tmp_path / "store", frame_stack=stack, seed=1) as buffer:
        Feeder(world, buffer).add(60)
        sampler = SAMPLERS[name]()
        state = sampler.state_dict()
        expected = [as_arrays(buffer.sample(n, sampler)) for n in (1, 9, 9)] + taken(buffer.loader(9, sampler), 6, as_arrays)
        sampler.load_state_dict(state)
        found = [buffer.sample(n, sampler, numpy=True) for n in (1, 9, 9)]  # held, while others are read
        loop = iter(buffer.loader(9, sampler, numpy=True))
        found += [{path: value[...] for path, value in flatten(next(loop)).items()} for _ in range(6)]
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        assert all(value.flags.writeable for value in flatten(found[1]).values())
        part = next(loop)["obs"][..., :1]  # one view of a view, and nothing else is held
        before = part.copy()
        for _ in range(12):
            next(loop)
        np.testing.assert_array_equal(part, before)


def test_every_way_to_batches_has_arrays(tmp_path: Path) -> None:
    space = {"a/b": db.Column((4,), "float32"), "c": db.Column((2, 2), "uint8")}
    columns = {"obs/a": space["a/b"], "obs/c": space["c"], "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, seed=0) as buffer:
        obs: dict[str, Any] = {"a": np.random.default_rng(0).random((31, 4), np.float32), "c": np.zeros((31, 2, 2), np.uint8)}
        buffer.extend(obs, np.arange(30), np.ones(30))
        ways: list[Callable[..., Any]] = [
            lambda **how: buffer.episode(0, **how),
            lambda **how: buffer.at(buffer.steps()[3:9], **how),
            lambda **how: next(iter(buffer.batches(8, **how))),
            lambda **how: next(iter(buffer.batches(8, steps=buffer.steps()[4:20], **how))),
            lambda **how: db.Mixture([(buffer, 1, db.Uniform(1)), (buffer, 2, db.Slices(1, seed=2))][:1]).sample(8, **how),
            lambda **how: next(iter(db.Mixture([(buffer, 1, db.Uniform(1)), (buffer, 2, db.Uniform(2))]).loader(8, **how))),
        ]
        for way in ways:
            assert_same(way(numpy=True), as_arrays(way()))
        seen = buffer.sample(4, numpy=True, transform=lambda batch: {name: type(value) for name, value in batch.items()})
        assert seen["obs"] is dict
        assert seen["reward"] is np.ndarray
        assert buffer.columns.map(lambda batch: batch["obs"]["a"][:, 0], 8, "first", numpy=True, progress=False) == 30
        np.testing.assert_array_equal(buffer.at(buffer.steps(), numpy=True)["first"], obs["a"][:30, 0])
        with pytest.raises(db.InputError, match=r"numpy=True has arrays, which lie in RAM, and device='meta' tensors"):
            buffer.sample(4, numpy=True, device=torch.device("meta"))
        with pytest.raises(db.InputError, match="numpy must be True or False"):
            buffer.sample(4, numpy="yes")  # type: ignore[arg-type]


WITHOUT_TORCH = """
import sys
import numpy as np
import diskbuffer as db

columns = {"obs": db.Column((8, 8), "uint8"), "action": db.Column((), "int64")}
for writer in (None, "one"):
    place = f"{sys.argv[1]}/{writer}"
    frames = np.zeros((41, 8, 8), np.uint8)
    with db.ReplayBuffer(place, 1000, columns=columns, writer=writer, frame_stack=2, seed=0) as buffer:
        buffer.extend(frames, np.arange(40), np.ones(40))
        for step in range(20):
            buffer.add(frames[0], step, 1.0, frames[0], False, step == 19)
        buffer.flush()
        prioritized = db.Prioritized(seed=0)
        for sampler in (None, db.Uniform(n_step=2), db.Slices(3), prioritized):
            batch = buffer.sample(8, sampler, numpy=True)
            next(iter(buffer.loader(8, sampler, numpy=True)))
        if writer is None:
            prioritized.update(batch["steps"], np.ones(8))
            buffer.columns.map(lambda batch: batch["reward"] * 2, 16, "twice", numpy=True, progress=False)
        buffer.episodes.set_tag("good") if writer is None else None
        assert len(list(buffer.batches(8, numpy=True))) == 7
        buffer.copies.mark("here")
    with db.ReplayBuffer(place, mode="r", writer=writer) as reader:
        reader.refresh()
        assert len(reader.at(reader.steps(), numpy=True)["steps"]) == len(reader) == 60
    assert not db.check(place, progress=False).problems
assert "torch" not in sys.modules
"""


def test_writing_and_reading_arrays_does_not_import_torch(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)], check=True, timeout=300)
