"""What is done with a batch before it is handed over: a function of the caller's, and the way to a device."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import diskbuffer as db


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[db.ReplayBuffer]:
    columns = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, frame_stack=2) as buffer:
        frames = np.broadcast_to((np.arange(401) % 251).astype(np.uint8)[:, None, None], (401, 40, 40))
        buffer.extend(frames, np.arange(400), np.ones(400))
        yield buffer


class Pair(NamedTuple):
    obs: torch.Tensor
    more: tuple[Any, ...]


def halved(batch: Any) -> Pair:
    """Something of another form than a batch, and made of it in place in part."""
    batch["action"] *= 2
    return Pair(batch["obs"].float() / 2, (batch["action"], batch["steps"].numpy(), "text"))


Way = Callable[[db.ReplayBuffer, Any], Any]
WAYS: dict[str, Way] = {
    "sample": lambda buffer, how: buffer.sample(32, db.Uniform(1), **how),
    "loader": lambda buffer, how: next(iter(buffer.loader(32, db.Uniform(1), **how))),
    "batches": lambda buffer, how: next(iter(buffer.batches(32, **how))),
    "mixture": lambda buffer, how: db.Mixture([(buffer, 1, db.Uniform(1)), (buffer, 1, db.Uniform(2))]).sample(32, **how),
    "mixture's loader": lambda buffer, how: next(
        iter(db.Mixture([(buffer, 1, db.Uniform(1)), (buffer, 1, db.Uniform(2))]).loader(32, **how))
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_function_of_the_caller_is_called_with_every_batch(way: str, buffer: db.ReplayBuffer) -> None:
    plain = WAYS[way](buffer, {})
    for _ in range(3):
        found = WAYS[way](buffer, {"transform": halved})
        np.testing.assert_array_equal(found.obs, plain["obs"].numpy() / 2)
        np.testing.assert_array_equal(found.more[0], plain["action"].numpy() * 2)
        np.testing.assert_array_equal(found.more[1], plain["steps"])
    with pytest.raises(db.InputError, match="function of a batch"):
        WAYS[way](buffer, {"transform": 3})


@pytest.mark.parametrize("way", WAYS)
def test_batches_go_to_a_device_with_and_without_a_function(way: str, buffer: db.ReplayBuffer) -> None:
    for device in ("meta", torch.device("meta")):
        found = WAYS[way](buffer, {"device": device})
        assert {(name, value.device.type) for name, value in found.items()} >= {("obs", "meta"), ("next_obs", "meta")}
        assert found["obs"].shape == (32, 2, 40, 40)
        made = WAYS[way](buffer, {"device": device, "transform": halved})
        assert made.obs.device.type == made.more[0].device.type == made.more[1].device.type == "meta"
        assert made.more[2] == "text"
    assert WAYS[way](buffer, {"device": "cpu"})["obs"].device.type == "cpu"
    for wrong in ("cuda:97", "no device"):
        with pytest.raises(db.InputError, match="device"):
            WAYS[way](buffer, {"device": wrong})


def test_whatever_a_function_returns_goes_to_the_device_as_far_as_it_can(buffer: db.ReplayBuffer) -> None:
    def turned(batch: Any) -> Any:
        return [np.flip(batch["obs"].numpy(), 0), np.array(["a", "b"]), {"steps": batch["steps"]}]

    found: Any = buffer.sample(4, transform=turned, device="meta")
    flipped, text, inner = found
    assert (flipped.device.type, inner["steps"].device.type) == ("meta", "meta")
    assert text.tolist() == ["a", "b"]


def test_a_loader_calls_it_in_threads_where_asked_for(buffer: db.ReplayBuffer) -> None:
    seen = set[str]()

    def note(batch: Any) -> Any:
        seen.add(threading.current_thread().name)
        return batch

    for _ in itertools.islice(buffer.loader(8, prefetch=4, transform=note, transform_threads=1), 20):
        pass
    assert seen == {"diskbuffer-transform_0"}
    for _ in itertools.islice(buffer.loader(8, prefetch=4, threads=2, transform=note), 20):
        pass
    assert seen == {"diskbuffer-transform_0", threading.current_thread().name}


def test_batches_that_a_function_keeps_stay_as_they_are(buffer: db.ReplayBuffer) -> None:
    kept: list[Any] = []

    def keep(batch: Any) -> int:
        kept.append(batch)
        return len(kept)

    assert [*itertools.islice(buffer.loader(16, db.Uniform(3), transform=keep, threads=1), 30)] == [*range(1, 31)]
    for batch in kept:
        np.testing.assert_array_equal(batch["obs"][:, 1, 0, 0], batch["action"] % 251)


def test_what_it_raises_comes_in_the_place_of_its_batch_which_comes_again(buffer: db.ReplayBuffer) -> None:
    expected = [batch["steps"].tolist() for batch in itertools.islice(buffer.loader(8, db.Uniform(5)), 6)]

    def fail(batch: Any) -> Any:
        if batch["steps"].tolist() == expected[2]:
            raise ValueError("not this one")
        return batch["steps"].tolist()

    sampler = db.Uniform(5)
    loop = iter(buffer.loader(8, sampler, transform=fail))
    assert [next(loop), next(loop)] == expected[:2]
    with pytest.raises(ValueError, match="not this one"):
        next(loop)
    assert buffer.sample(8, sampler)["steps"].tolist() == expected[2]
    with pytest.raises(ValueError, match="not this one"):
        buffer.sample(8, db.Uniform(7), transform=lambda _: (_ for _ in ()).throw(ValueError("not this one")))
