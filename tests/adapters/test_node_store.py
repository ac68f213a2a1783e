"""What a cluster's buffer decides, without a cluster: which updates a store takes, who may go on, and how batches are joined."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map

import diskbuffer as db

pytest.importorskip("ray", reason="needs Ray: pip install 'diskbuffer[ray]'")

from diskbuffer.adapters.ray import ClusterBuffer, node_store, parts, rate
from diskbuffer.adapters.ray.node_store import Directory, NodeStore
from diskbuffer.adapters.ray.packing import pack, unpack
from tests.adapters.clusters import COLUMNS, is_right, steps


def sampled(store: NodeStore, size: int, sampler: db.Sampler) -> dict[str, Any]:
    """Return a batch of a node, as a learner gets it."""
    packed, _ = store.sample(size, pickle.dumps(sampler))
    assert not isinstance(packed, str), packed
    batch: dict[str, Any] = unpack(packed)
    return batch


def test_a_directory_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "_shared" / "identity"
    file.parent.mkdir()
    file.touch()
    assert "identity has b'' in place of 32" in NodeStore(str(tmp_path), 0.0).answer().problem
    for path in ("$NO_SUCH_VARIABLE/all", f"{tmp_path}/${{NO_SUCH_VARIABLE}}/all"):
        with pytest.raises(db.InputError, match=r"do not have the variable \$.*NO_SUCH_VARIABLE"):
            Directory(path, 0.0)
    assert not any("NO_SUCH" in file.name for file in (*tmp_path.iterdir(), *Path().iterdir()))


def test_what_is_of_steps_from_before_a_machine_was_started_again_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with db.ReplayBuffer(tmp_path, columns=COLUMNS, writer="actor") as writer:
        writer.extend(**steps(0, 0, 10))
    sampler, before = db.Prioritized(), NodeStore(str(tmp_path), 0.0)
    drawn, sent, old = sampled(before, 20, sampler), pickle.dumps(sampler), before.answer()
    before.close()
    monkeypatch.setattr(node_store, "boot_id", lambda: "00000000-0000-4000-8000-000000000002")
    after = NodeStore(str(tmp_path), 0.0)
    new = after.answer()
    assert (new.identity, new.number != old.number) == (old.identity, True)
    assert after.update("learner", 1, [(sent, node, drawn["steps"], np.ones(20)) for node in (old.number, new.number)]) == 20
    assert [after.write("value", node, drawn["steps"], np.ones(20)) for node in (old.number, new.number)] == [0, 20]
    after.close()


def test_a_store_that_went_back_to_a_mark_is_read_again(tmp_path: Path) -> None:
    for who in range(2):
        with db.ReplayBuffer(tmp_path, columns=COLUMNS, writer=f"actor-{who}") as writer:
            writer.extend(**steps(who, 0, 10))
            if who:
                writer.copies.mark("here")
                writer.extend(**steps(who, 20, 5))
    store = NodeStore(str(tmp_path), 0.0)

    def drawn() -> int:
        batch = sampled(store, 500, db.Uniform())
        assert is_right(batch)
        return len(set(batch["steps"].tolist()))

    assert store.answer(now=True).steps == drawn() == 25
    with db.ReplayBuffer(tmp_path, writer="actor-1", mark="here"):
        pass
    assert store.answer(now=True).steps == drawn() == 20
    answer = store.answer(pickle.dumps(db.Prioritized(alpha=1.0)))
    assert answer.mass == 20 * answer.least > 0
    store.close()


def test_priorities_of_a_column_are_of_one_sampler(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path, columns=COLUMNS, writer="actor-0") as writer:
        writer.extend(**steps(0, 0, 40))
        store, sampler = NodeStore(str(tmp_path), 0.0), db.Prioritized(alpha=1.0, beta=0.5)
        sent = pickle.dumps(sampler)
        before = store.answer(sent).mass
        writer.extend(**steps(0, 40, 40))
        assert store.answer(sent).mass == 2 * before > 0  # as fresh as lengths are
        batch = sampled(store, 400, sampler)
        alone = np.where(batch["action"] == batch["action"][0], 1e6, 0.0)
        node = store.answer().number
        store.update("learner", 2, [(sent, node, batch["steps"], np.ones(400)), (sent, node, batch["steps"], alone)])
        store.update("learner", 1, [(sent, node, batch["steps"], np.ones(400))])  # which comes too late
        again = sampled(store, 64, db.Prioritized(alpha=1.0))  # of another learner
        assert set(again["action"].tolist()) == {int(batch["action"][0])}
        with pytest.raises(db.InputError, match="give this one a column= of its own"):
            store.sample(64, pickle.dumps(db.Prioritized(alpha=0.5)))
        too_long, answer = store.sample(8, pickle.dumps(db.Slices(5000)))
        assert isinstance(too_long, str)
        assert "no episode has the 5000 steps" in too_long
        assert answer.steps == 80
        store.flush()
        store.close()


# What is added and sampled in a cluster


def limiter(counts: rate.Rate, settings: db.SampleToInsertRatio, side: str) -> rate.ClusterLimiter:
    lock = threading.Lock()  # as an actor does one thing at a time

    def tell(*told: Any, seconds: float = 0.0, **_: Any) -> Any:
        time.sleep(min(seconds, 0.001))
        with lock:
            return counts.tell(*told)

    return rate.ClusterLimiter(tell, settings, side, side, "here", 0, lambda: 0)


def test_a_ratio_holds_between_threads() -> None:
    settings = db.SampleToInsertRatio(2, min_size=100, error_buffer=100, timeout=60)
    counts = rate.Rate(settings)
    adds, samples = limiter(counts, settings, "add"), limiter(counts, settings, "sample")
    beyond = list[dict[str, Any]]()

    def learn() -> None:
        for _ in range(240):
            samples.wait_to_sample()
            samples.note_sampled(16)
            state = samples.state()
            beyond.extend([state] if state["surplus"] < -116 or state["added"] < 100 else [])

    thread = threading.Thread(target=learn)
    thread.start()
    for n in range(40):
        adds.wait_to_add()
        adds.note_added(50 * (n + 1))
        state = adds.state()
        beyond.extend([state] if state["surplus"] > 200 else [])
    thread.join()
    assert not beyond
    state = samples.state()
    assert (state["samples"], state["added"], state["inserts"]) == (3840, 2000, 1900)


def test_who_waits_too_long_is_told_what_is_missing() -> None:
    settings = db.SampleToInsertRatio(4, min_size=50, error_buffer=32, timeout=0)
    counts = rate.Rate(settings)
    adds, samples = limiter(counts, settings, "add"), limiter(counts, settings, "sample")
    adds.note_added(40)
    adds.state()  # tells
    with pytest.raises(db.errors.LimiterTimeoutError, match=r"nothing was added: 40 steps in all.*min_size=50"):
        samples.wait_to_sample()
    for added, may_add in ((50, True), (60, False)):  # 10 beyond min_size are 40 samples ahead
        adds.note_added(added)
        assert adds.may_add == may_add
    with pytest.raises(db.errors.LimiterTimeoutError, match="nothing was sampled"):
        adds.wait_to_add()
    samples.close()
    adds.close()
    with pytest.raises(db.errors.ClosedError):
        adds.wait_to_add()


def test_samples_of_those_that_are_gone_count_and_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = iter(range(100))
    monkeypatch.setattr(rate, "time", SimpleNamespace(monotonic=lambda: 3000.0 * next(hours)))
    counts = rate.Rate(db.SampleToInsertRatio(1))
    for n in range(10):
        counts.tell("sample", f"learner {n}", 3, 0)
        _, state = counts.tell("sample", f"learner {n}", 10, 0)
    assert state["samples"] == 70
    assert list(counts._counts["sample"]) == ["learner 9"]


def test_who_waits_is_held_until_it_may_go_on_and_asks_nothing() -> None:
    counts = rate.Rate(db.SampleToInsertRatio(1, min_size=10, error_buffer=8))
    counts.tell("add", "writer", 0, 0)

    async def together() -> list[Any]:
        waiting = [asyncio.create_task(counts.wait("sample", f"learner {n}", 0, 0, 60.0)) for n in range(100)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        counts.tell("add", "writer", 9, 9)
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        counts.tell("add", "writer", 30, 30)
        return list(await asyncio.gather(*waiting))

    assert all(may > 0 and state["may_sample"] for may, state in asyncio.run(together()))
    may, state = asyncio.run(counts.wait("add", "writer", 60, 60, 0.01))
    assert (may, state["may_add"]) == (0, False)


# Batches of several nodes


def test_a_batch_is_divided_in_proportion_and_joined() -> None:
    random = np.random.default_rng(0)
    assert parts.shares(256, {"a": 3.0}, random) == {"a": 256}
    drawn = [parts.shares(256, {"a": 3.0, "b": 0.0, "c": 1.0}, random) for _ in range(400)]
    assert all(sum(each.values()) == 256 and each["b"] == 0 for each in drawn)
    assert np.mean([each["a"] for each in drawn]) == pytest.approx(192, abs=2)
    assert np.var([each["a"] for each in drawn]) == pytest.approx(48, rel=0.3)  # as if each were drawn by itself
    one = {"node": torch.full((2,), 7), "steps": torch.arange(2), "obs": {"x": torch.ones(2, 3)}, "value": torch.ones(2)}
    other = {"node": np.full(3, 8), "steps": np.arange(3), "obs": {"x": np.zeros((3, 3), np.float32)}}
    batch = parts.joined([one, other])
    assert batch["node"].tolist() == [7, 7, 8, 8, 8]
    assert batch["value"].tolist() == [1, 1, 0, 0, 0]  # which nobody wrote on the other node
    assert batch["obs"]["x"].sum(1).tolist() == [3, 3, 0, 0, 0]
    assert parts.joined([one]) is one
    split = [(number, *map(list, each)) for number, *each in parts.by_number(batch, np.arange(5))]
    assert split == [(7, [0, 1], [0, 1]), (8, [0, 1, 2], [2, 3, 4])]
    with pytest.raises(db.InputError, match='no "node"'):
        parts.by_number(batch["steps"], np.arange(5))
    with pytest.raises(db.InputError, match="a value for each of 5 samples"):
        parts.by_number(batch, np.arange(4))


def test_weights_are_relative_to_the_least_likely_step_of_all_nodes() -> None:
    priorities = {"a": np.array([1.0, 2.0, 4.0]), "b": np.array([0.5, 8.0])}
    for beta in (0.0, 0.5, 1.0):
        for mine in priorities.values():
            found = parts.weights_of_all(mine.min() / mine, float(mine.min()), 0.5, beta)
            assert found == pytest.approx((mine / 0.5) ** -beta)
    assert parts.weights_of_all(np.ones(2), 0.0, 0.5, 1.0).tolist() == [1, 1]


def test_frames_that_arrays_share_go_to_another_process_once(tmp_path: Path) -> None:
    columns = {"obs/pixels": db.Column((8, 8), "uint8"), "obs/speed": db.Column((), "float32"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path, columns=columns, frame_stack=4) as buffer:
        obs = {"pixels": np.random.default_rng(0).integers(0, 256, (101, 8, 8), np.uint8), "speed": np.arange(101.0)}
        buffer.extend(obs=obs, action=np.arange(100), reward=np.ones(100))
        batch = buffer.sample(32, db.Uniform(0))
        packed = pack(batch)
        back = unpack(pickle.loads(pickle.dumps(packed)))
        same = tree_map(lambda tensor, array: bool((tensor.numpy() == array).all() and array.flags.writeable), batch, back)
        assert all(tree_flatten(same)[0])
        assert sum(memory.nbytes for memory in packed.memories) < 0.9 * sum(one.nbytes for one in tree_flatten(back)[0])


def test_arguments_that_do_not_fit_are_refused_where_the_buffer_is_made(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"frame_stck": 4}, "did you mean frame_stack"),
        ({"patience": float("nan")}, "patience must be seconds"),
        ({"refresh_every": -1}, "refresh_every must be seconds"),
        ({"limiter": 4}, "must be a SampleToInsertRatio"),
        ({"capacity": 0}, "capacity"),
    ]
    for how, message in wrong:
        with pytest.raises(db.InputError, match=message):
            ClusterBuffer(tmp_path, columns=COLUMNS, **how)
