"""What TorchRL's collectors write to a `CollectorBuffer`, here or in processes of their own, and what is sampled of it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import diskbuffer as db
from diskbuffer.adapters.torchrl import CollectorBuffer
from diskbuffer.errors import EmptyBufferError, InputError, LimiterTimeoutError, NotAStoreError, SchemaError
from diskbuffer.plugin import writers_of
from tests.adapters.collecting import LENGTH, Collector, check_slices, collected, counting

KEYS = ("action", ("agent", "seen"), ("collector", "traj_ids"), ("next", "agent", "seen"), ("next", "reward"))


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[CollectorBuffer]:
    made = CollectorBuffer(tmp_path / "all", batch_size=256, refresh_every=0.0)
    yield made
    made.close()


def other(buffer: CollectorBuffer) -> CollectorBuffer:
    """Return what another collector is given."""
    return pickle.loads(pickle.dumps(buffer))  # type: ignore[no-any-return]


def test_samples_are_what_collectors_wrote(buffer: CollectorBuffer) -> None:
    assert len(buffer) == buffer.write_count == 0
    with pytest.raises(EmptyBufferError, match="no collector has written"):
        buffer.sample()
    others = [other(buffer) for _ in range(2)]
    written = [collected(who, first) for first in (0, 6, 12) for who in range(2)]
    for n, data in enumerate(written):
        others[n % 2].extend(data)
        assert len(buffer) == buffer.write_count == 12 * (n + 1)
    whole: Any = torch.cat([data.reshape(-1) for data in written])
    by_step = {tuple(seen): n for n, seen in enumerate(whole["agent", "seen"].tolist())}
    batch = buffer.sample(1024, db.Uniform(seed=0))
    where = [by_step[tuple(seen)] for seen in batch["agent", "seen"].tolist()]
    assert set(where) == set(by_step.values())
    assert len(batch["index"].unique()) == len(whole)
    assert torch.equal(batch["next", "terminated"], whole[where]["next", "terminated"])
    for key in KEYS:
        assert torch.equal(batch[key], whole[where][key]), key
    assert set(batch.keys(True, True)) == {*whole.keys(True, True), "index"}
    for each in others:
        each.close()
    assert sorted(path.name for path in buffer.path.glob("collector-*")) == ["collector-0", "collector-1"]


def test_a_collector_goes_on_with_the_store_of_one_that_has_ended_and_no_trajectory_does(buffer: CollectorBuffer) -> None:
    first, second = other(buffer), other(buffer)
    first.extend(collected(0, 0))
    first.close()
    second.extend(collected(0, 6))  # which is what would have come next
    second.close()
    assert [path.name for path in buffer.path.glob("collector-*")] == ["collector-0"]
    assert sorted(episode.length for episode in buffer.reader.episodes) == [3, 3, 3, 3, 6, 6]


def test_threads_write_one_after_the_other_to_one_store(buffer: CollectorBuffer) -> None:
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda who: buffer.extend(collected(who, 0)), range(8)):
            pass
    assert len(writers_of(buffer.path) or ()) == 1
    assert len(buffer) == 8 * 12
    assert repr(buffer) == f"CollectorBuffer(96 steps at {buffer.path})"
    batch = buffer.sample(201, db.Slices(3))
    assert torch.equal(batch["next", "agent", "seen"], batch["agent", "seen"] + torch.tensor([0, 1]))


def test_a_trajectory_that_another_one_replaces_ends_though_it_looks_as_if_it_went_on(buffer: CollectorBuffer) -> None:
    data = collected(0, 0, 8)
    data["collector", "traj_ids"][1, 4:] = 7
    buffer.extend(data[:, :6])
    following = data[:, 6:].clone()
    following["collector", "traj_ids"][0] = 8
    buffer.extend(following)
    there = [(int(buffer.reader.at(each.steps)["obs"]["agent"]["seen"][0, 0]), each.length) for each in buffer.reader.episodes]
    assert sorted(there) == [(0, 2), (0, 6), (1, 4), (1, 4)]
    batch = buffer.sample(256, db.Slices(2, seed=0))
    assert torch.equal(*batch["collector", "traj_ids"].unflatten(0, (-1, 2)).unbind(1))


def test_slices_lie_in_one_trajectory_and_their_last_step_is_truncated(buffer: CollectorBuffer) -> None:
    for first in range(0, 60, 6):
        buffer.extend(collected(0, first))
    batch = buffer.sample(96, db.Slices(4))
    assert batch.shape == (96,)
    number = batch["action"].unflatten(0, (-1, 4))
    assert torch.equal(number, number[:, :1] + torch.arange(4))
    assert (number[:, 0] // LENGTH == number[:, 3] // LENGTH).all()
    ends = torch.arange(4).expand(24, 4) == 3
    terminated = number % LENGTH == LENGTH - 1
    assert torch.equal(batch["next", "truncated"][:, 0].unflatten(0, (-1, 4)), ends)
    assert torch.equal(batch["next", "terminated"][:, 0].unflatten(0, (-1, 4)), terminated)
    assert torch.equal(batch["next", "done"][:, 0].unflatten(0, (-1, 4)), ends)
    with pytest.raises(InputError, match="a multiple of the sequences' length, 4, found 30"):
        buffer.sample(30, db.Slices(4))
    weighted = buffer.sample(8, db.Prioritized(length=4, seed=0))
    assert weighted["priority_weight"].shape == (8,)


def test_windows_priorities_and_loaders(buffer: CollectorBuffer) -> None:
    for first in range(0, 60, 6):
        buffer.extend(collected(0, first))
    windows = buffer.sample(32, db.Windows({"obs/agent/seen": (-1, 0), "action": range(3)}, padding="edge"))
    assert windows["agent", "seen"].shape == (32, 2, 2)
    assert torch.equal(windows["action"][:, 0], windows["agent", "seen"][:, 1, 1])
    assert windows["mask", "action"].shape == (32, 3)
    sampler = db.Prioritized(seed=0)
    batch = buffer.sample(64, sampler)
    sampler.update(batch["index"], (batch["action"] == 5).double() + 1e-9)
    again = buffer.sample(256, sampler)
    untold = ~torch.isin(again["index"], batch["index"])
    assert ((again["action"] == 5) | untold).float().mean() > 0.95
    loaded = next(buffer.loader(32))
    assert torch.equal(loaded["agent", "seen"][:, 1], loaded["action"])
    assert next(buffer.loader(32, db.Slices(4))).shape == (32,)


def test_rolling_stacks_are_stored_frame_by_frame(tmp_path: Path) -> None:
    buffer = CollectorBuffer(tmp_path / "all", frame_stack=3, batch_size=64)
    frames = torch.arange(13).clamp(min=2)[:, None, None].expand(13, 8, 8).to(torch.uint8)
    stacks = torch.stack([frames[n : n + 3] for n in range(11)])
    after = TensorDict({"pixels": stacks[1:], "reward": torch.ones(10, 1), "done": torch.arange(10)[:, None] == 9}, [10])
    buffer.extend(TensorDict({"pixels": stacks[:10], "action": torch.arange(10), "next": after}, [10]))
    batch = buffer.sample()
    assert torch.equal(batch["pixels"], stacks[batch["action"]])
    assert torch.equal(batch["next", "pixels"], stacks[batch["action"] + 1])
    assert buffer.reader.columns["obs/pixels"].shape == (8, 8)
    buffer.close()


class Model:
    """A collector of random trajectories, as plain lists: observations are 0 or 1, so that many look as if they went on."""

    def __init__(self, random: np.random.Generator, first: int) -> None:
        self._random, self._next = random, first
        self.envs = int(random.integers(1, 4))
        self._obs, self._trajectory = random.integers(2, size=self.envs), np.arange(self.envs)
        self._at: list[list[int]] = [[] for _ in range(self.envs)]
        self.trajectories: list[list[int]] = []

    def batch(self) -> TensorDict:
        """Return what the next steps are, (envs, n); each has a number, its action."""
        steps = [[self._step(env) for env in range(self.envs)] for _ in range(self._random.integers(1, 12))]
        obs, after, action, trajectory, terminated, truncated = (
            torch.as_tensor(np.array(part).reshape(len(steps), self.envs).T) for part in np.moveaxis(np.array(steps), -1, 0)
        )
        ends = {"terminated": terminated.bool()[..., None], "truncated": truncated.bool()[..., None]}
        shape = [self.envs, len(steps)]
        data = {"observation": obs[..., None], "action": action, "collector": TensorDict({"traj_ids": trajectory}, shape)}
        return TensorDict({**data, "next": TensorDict({"observation": after[..., None], **ends}, shape)}, shape)

    def _step(self, env: int) -> tuple[int, ...]:
        obs, after, trajectory = int(self._obs[env]), int(self._random.integers(2)), int(self._trajectory[env])
        ending = self._random.choice(["", "terminated", "truncated", "unsaid"], p=[0.7, 0.1, 0.1, 0.1])
        self._at[env].append(self._next)
        self._next += 1
        self._obs[env] = after
        if ending:
            self.trajectories.append(self._at[env])
            self._at[env], self._obs[env], self._trajectory[env] = [], self._random.integers(2), self._trajectory.max() + 1
        return obs, after, self._next - 1, trajectory, ending == "terminated", ending == "truncated"

    def end(self) -> None:
        """Note what it leaves."""
        self.trajectories += [at for at in self._at if at]
        self._at = [[] for _ in range(self.envs)]


@pytest.mark.parametrize("number", range(3))
def test_random_collectors_that_end_and_start_leave_their_trajectories(
    number: int, any_seed: int, buffer: CollectorBuffer, amount: Callable[[int, int], int]
) -> None:
    random, ended, steps = np.random.default_rng([any_seed, number]), list[Model](), 0
    running = [(Model(random, 0), other(buffer))]
    for n in range(amount(40, 400)):
        model, writer = running[random.integers(len(running))]
        batch = model.batch()
        writer.extend(batch)
        steps += batch.numel()
        if random.random() < 0.1:
            running.append((Model(random, (n + 1) * 10_000), other(buffer)))
        if len(running) > 1 and random.random() < 0.1:
            model, writer = running.pop(random.integers(len(running)))
            writer.close()
            ended.append(model)
        if random.random() < 0.3:
            assert len(buffer) == buffer.write_count == steps
    models = [*ended, *(model for model, _ in running)]
    for model in models:
        model.end()
    expected = sorted(each for model in models for each in model.trajectories)
    stored = [buffer.reader.at(episode.steps)["action"].tolist() for episode in buffer.reader.episodes]
    assert sorted(stored) == expected
    where = {step: n for n, each in enumerate(expected) for step in each}
    slices = buffer.sample(512, db.Slices(2, seed=0))["action"].unflatten(0, (-1, 2)).tolist()
    assert all(where[first] == where[second] for first, second in slices)
    for _, writer in running:
        writer.close()


@pytest.mark.parametrize("how", [{}, {"extend_buffer": False}, {"trajs_per_batch": 2}], ids=str)
def test_a_collector_in_this_process(how: dict[str, Any], buffer: CollectorBuffer) -> None:
    collector = Collector(counting, None, replay_buffer=buffer, frames_per_batch=50, total_frames=300, **how)
    for _ in collector:
        if len(buffer):
            check_slices(buffer.sample(64, db.Slices(4)), 4)
    assert len(buffer) == buffer.write_count
    assert 250 < len(buffer) <= 300
    collector.shutdown()


def test_what_does_not_fit_is_refused(buffer: CollectorBuffer) -> None:
    with pytest.raises(InputError, match=r"found \(2, 3, 2\)"):
        buffer.extend(collected(0, 0).reshape(2, 3, 2))
    buffer.extend(collected(0, 0))
    for wrong, found in (
        (collected(0, 6).exclude("action"), "missing are .*action"),
        (collected(0, 6, envs=3), r"expected a batch of shape \(2, 'steps'\), as the first one, found \(3, 6\)"),
        (collected(0, 6, envs=1)[0], r"found \(6,\)"),
        (collected(0, 6).float(), "expected torch.int64"),
    ):
        with pytest.raises(InputError, match=found):
            buffer.extend(wrong)
    assert len(buffer) == 12
    with pytest.raises(SchemaError, match="more: stored nothing"):
        other(buffer).extend(collected(0, 0).set("more", torch.zeros(2, 6)))
    with pytest.raises(InputError, match="give a batch_size"):
        CollectorBuffer(buffer.path).sample()
    with pytest.raises(InputError, match="draws something else"):
        CollectorBuffer(buffer.path, sampler=db.Slices(4, burn_in=2))
    with pytest.raises(InputError, match="capcity"):
        CollectorBuffer(buffer.path, capcity=3)
    options: dict[str, Any] = {"writer": "a", "columns": {}, "n_envs": 3, "mode": "r"}
    for option, value in options.items():
        with pytest.raises(InputError, match=option):
            CollectorBuffer(buffer.path, **{option: value})
    for sampler in ("x", db.Slices):
        with pytest.raises(InputError, match="expected one of diskbuffer's samplers"):
            CollectorBuffer(buffer.path, sampler=sampler)  # type: ignore[arg-type]
    new = CollectorBuffer(buffer.path.with_name("new"), batch_size=4)
    with pytest.raises(InputError, match='an entry "index"'):
        new.extend(collected(0, 0).set("index", torch.zeros(2, 6)))
    with pytest.raises(InputError, match="leave split_trajs= out"):
        new.extend(collected(0, 0).set(("collector", "mask"), torch.ones(2, 6, dtype=torch.bool)))
    assert not new.path.exists()
    with db.ReplayBuffer(new.path, columns={"obs": db.Column((2,)), "action": db.Column()}):
        for use in (new.sample, lambda: len(new)):
            with pytest.raises(NotAStoreError, match="the store of one writer"):
                use()


def test_steps_that_the_limiter_refused_go_on_when_they_are_given_again(buffer: CollectorBuffer) -> None:
    limited = CollectorBuffer(buffer.path, limiter=db.SampleToInsertRatio(1, min_size=1, error_buffer=20, timeout=0.1))
    data = collected(0, 0, 24)
    data["collector", "traj_ids"][:] = torch.arange(24) // 20
    data["next", "terminated"][:] = False
    limited.extend(data[:, :12])
    with pytest.raises(LimiterTimeoutError):
        limited.extend(data[:, 12:])
    limited.sample(24)
    limited.extend(data[:, 12:20])
    limited.sample(16)
    limited.extend(data[:, 20:])
    assert sorted(episode.length for episode in limited.reader.episodes) == [4, 4, 20, 20]
    limited.close()


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("kind", ["MultiSyncCollector", "MultiAsyncCollector"])
def test_collectors_in_processes_that_are_killed_lose_no_step_and_join_no_trajectories(
    kind: str, workers: int, tmp_path: Path
) -> None:
    path, code = tmp_path / "all", "from tests.adapters.collecting import collect; import sys; collect(*eval(sys.argv[1]))"

    def run(batches: int, kill_after: int | None) -> int:
        arguments = [sys.executable, "-W", "ignore", "-c", code, repr((kind, str(path), workers, batches))]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            assert process.stdout is not None
            for n, _ in enumerate(process.stdout, 1):
                if n == kill_after:
                    os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    assert run(1000, 7) == -signal.SIGKILL
    assert run(5, None) == 0
    stored: dict[tuple[int, ...], int] = {}
    with db.ReplayBuffer(path, mode="r") as reader:
        for episode in reader.episodes:
            seen = reader.at(episode.steps)["next_obs"]["observation"]
            assert torch.equal(seen, seen[:1] + torch.arange(len(seen))[:, None] * torch.tensor([0, 0, 0, 1]))
            assert int(seen[0, 3]) == 1
            stored[tuple(seen[0, :3].tolist())] = int(seen[-1, 3])
    for file in tmp_path.glob("*.noted"):
        lines = [tuple(map(int, line.split())) for line in file.read_text().splitlines()]
        assert lines
        for *which, step in lines:
            assert stored[tuple(which)] >= step
        environment, last = lines[-1][:2], lines[-1][2]
        for number in range(last):
            assert stored[*environment, number] == 7 + number % 10
    assert len(list(path.glob("collector-*"))) == workers
