"""Batches that are sent to a device ahead of their turn, as to an accelerator; here it is the CPU, which copies at once."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

import diskbuffer as db
from diskbuffer.reading.batches import pool
from diskbuffer.reading.batches.pool import ArraysPool
from diskbuffer.reading.devices import DeviceDelivery
from diskbuffer.reading.wanted import Wanted
from diskbuffer.schema.nested import flatten
from tests.support.experience import SAMPLERS, Experience, Feeder

CPU = torch.device("cpu")


class SentAhead(DeviceDelivery):
    """From memory in one block, and as soon as it is gathered."""

    pinned = True


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[db.ReplayBuffer]:
    world = Experience(shape=(40, 40))
    with world.open(tmp_path / "store", frame_stack=2) as buffer:
        Feeder(world, buffer).add(400)
        yield buffer


def copied(batches: Any, n: int) -> list[Any]:
    return [tree_map(torch.clone, batch) for batch in itertools.islice(batches, n)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_batch_is_one_copy_and_its_memory_is_used_again(
    name: str, buffer: db.ReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = SAMPLERS[name]()
    state = sampler.state_dict()
    expected = copied(buffer.loader(7, sampler), 20)
    sampler.load_state_dict(state)
    made, allocate = list[Any](), pool.allocate

    def counted(*what: Any) -> Any:
        made.append(allocate(*what))
        return made[-1]

    monkeypatch.setattr(pool, "allocate", counted)
    delivery = SentAhead(ArraysPool(), None, CPU)
    source = buffer._drawing.source(sampler, 7)
    for batch in map(flatten, expected):
        begun = source.begin(delivery.take)
        assert begun.planned is not None
        sent = delivery.send(begun.planned.gather())
        source.deliver(begun)
        assert len(sent.copies) == 1
        assert sent.copies[0].nbytes <= sum(values.nbytes for values in batch.values()) + 64 * len(batch)
        found = flatten(delivery.deliver(sent))
        assert found.keys() == batch.keys()
        for column, values in batch.items():
            assert torch.equal(found[column], values), column
            assert found[column].dtype == values.dtype
    assert len(made) == 1


def test_columns_of_a_batch_are_no_views_of_each_other(buffer: db.ReplayBuffer) -> None:
    delivery = SentAhead(ArraysPool(), None, CPU)
    begun = buffer._drawing.source(db.Uniform(3), 8).begin(delivery.take)
    assert begun.planned is not None
    batch = delivery.delivered(begun.planned.gather())
    weight = torch.ones(8, requires_grad=True)
    loss = (weight * batch["action"].float()).sum() + (weight * batch["reward"]).sum()
    batch["terminated"].logical_not_()  # in place, and none of what the gradient is made of
    batch["steps"] += 1
    loss.backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, batch["action"] + batch["reward"])


def test_what_a_function_raises_comes_in_the_place_of_its_batch(buffer: db.ReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [batch["steps"].tolist() for batch in itertools.islice(buffer.loader(8, db.Uniform(5)), 8)]
    monkeypatch.setattr(Wanted, "delivery", lambda wanted, pool, aside=False: SentAhead(pool, wanted.transform, CPU))

    def fail(batch: Any) -> Any:
        if batch["steps"].tolist() == expected[4]:
            raise ValueError("not this one")
        return batch["steps"]

    sampler = db.Uniform(5)
    loop: Iterator[Any] = iter(buffer.loader(8, sampler, prefetch=3, transform=fail))
    for batch in expected[:4]:
        assert next(loop).tolist() == batch
        time.sleep(0.01)  # the next are gathered, and sent
    with pytest.raises(ValueError, match="not this one"):
        next(loop)
    assert sampler.state_dict()["batches"] == 4
    assert buffer.sample(8, sampler)["steps"].tolist() == expected[4]


def test_nobody_waits_with_the_stores_lock_for_memory_that_is_copied(buffer: db.ReplayBuffer) -> None:
    is_asked, may_go_on = threading.Event(), threading.Event()

    class Copying:
        def query(self) -> bool:
            return False

        def synchronize(self) -> None:
            is_asked.set()
            assert may_go_on.wait(60)

    delivery, source = SentAhead(ArraysPool(), None, CPU), buffer._drawing.source(db.Uniform(1), 8)
    begun = [source.begin(delivery.take) for _ in range(4)]
    for one in begun:
        assert one.planned is not None
        sent = delivery.send(one.planned.gather())
        sent.arrays.copied = Copying()  # type: ignore[assignment]
        delivery.deliver(sent)
    del sent, one
    waiting = threading.Thread(target=source.begin, args=(delivery.take,))
    waiting.start()
    assert is_asked.wait(60)
    buffer.extend(np.zeros((2, 40, 40), np.uint8), np.zeros(1), np.zeros(1))
    assert waiting.is_alive()
    may_go_on.set()
    waiting.join(60)
