"""Several writers' stores, read as one: every step that a writer keeps, under one name for good, whoever comes and goes."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.writers import watching
from diskbuffer.writers.description import STREAMS
from tests.amounts import examples
from tests.chi_square import assert_uniform

FRAMES = ((5,), (34, 33))  # the second is packed


class Writer:
    """One writer, and what its experience is made of: every step has a number of its own as its action."""

    def __init__(
        self, root: Path, name: str, envs: int, frame: tuple[int, ...], capacity: int | None, stack: int, **options: Any
    ) -> None:
        self.root, self.name, self.envs, self.frame, self.stack = root, name, envs, frame, stack
        self.open(capacity=capacity, **options)

    def open(self, **options: Any) -> None:
        columns = {"obs": db.Column(self.frame, "int32"), "action": db.Column((), "int64")}
        self.buffer = db.ReplayBuffer(
            self.root,
            columns=columns,
            n_envs=self.envs,
            autoreset="next_step",
            frame_stack=self.stack,
            writer=self.name,
            **options,
        )

    def extend(self, env: int, steps: int, numbers: itertools.count[int], *, ends: bool) -> None:
        actions = np.array([next(numbers) for _ in range(steps)])
        obs = np.zeros((steps + 1, *self.frame), np.int32)
        obs[:-1].reshape(steps, -1)[:, 0] = actions
        obs[-1].flat[0] = -actions[-1]
        terminated = np.arange(steps) == steps - 1
        self.buffer.extend(obs=obs, action=actions, reward=actions / 2, terminated=terminated & ends, env=env, new_episode=True)


def of_all(writers: dict[str, Writer], entries: dict[str, int]) -> tuple[dict[int, int], dict[str, torch.Tensor]]:
    """Return every step that the writers keep, by its name among all of them, and their batches."""
    names, batches = dict[int, int](), []
    for name, writer in writers.items():
        buffer, envs = writer.buffer, writer.envs
        steps = buffer.steps()
        batch = buffer.at(steps)
        all_writers = steps // envs * STREAMS + steps % envs + entries[name]
        names |= dict(zip(all_writers.tolist(), batch["action"].tolist(), strict=True))
        batches.append({**batch, "steps": torch.from_numpy(all_writers)})
    whole = {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
    return names, {key: values[whole["steps"].argsort()] for key, values in whole.items()}


@given(seed=st.integers(0, 10**6), frame=st.sampled_from(FRAMES), stack=st.integers(1, 3), small=st.booleans())
@examples(1, 30, suppress_health_check=[HealthCheck.too_slow])
def test_all_that_writers_keep_is_read_as_if_it_were_one_store(
    seed: int, frame: tuple[int, ...], stack: int, small: bool
) -> None:
    random, numbers = np.random.default_rng(seed), itertools.count(1)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "SETTLED", int(random.choice([20, 2000])) * 1_000_000)
        root, writers, seen = Path(directory) / "all", dict[str, Writer](), dict[int, int]()
        capacity = int(random.integers(150, 400)) if small else None

        def add() -> None:
            name = f"actor-{len(writers)}"
            writers[name] = Writer(root, name, int(random.integers(1, 4)), frame, capacity, stack)

        add()
        all_writers = db.ReplayBuffer(root, mode="r", seed=seed)
        for _ in range(12):
            for _ in range(int(random.integers(1, 6))):
                what = random.random()
                writer = writers[str(random.choice(list(writers)))]
                if what < 0.1 and len(writers) < 5:
                    add()
                elif what < 0.2:
                    writer.buffer.close()
                    writer.open()
                else:
                    env, steps = int(random.integers(writer.envs)), int(random.integers(1, 60))
                    writer.extend(env, steps, numbers, ends=bool(random.random() < 0.7))
            all_writers.refresh()
            assert all_writers._multi_writer is not None
            entries = {member.entry.name: member.entry.first_stream for member in all_writers._multi_writer.members}
            names, whole = of_all(writers, entries)
            assert (
                dict(zip(all_writers.steps().tolist(), all_writers.at(all_writers.steps())["action"].tolist(), strict=True))
                == names
            )
            assert len(all_writers) == len(names) == all_writers.stats()["steps"]
            assert all(seen.get(step, action) == action for step, action in names.items())  # names stay
            seen |= names
            if not names:
                continue
            found = all_writers.at(np.sort(all_writers.steps()))
            assert found.keys() == whole.keys()
            for key, values in whole.items():
                assert torch.equal(found[key], values), key
            batch = all_writers.sample(50)
            same = np.searchsorted(whole["steps"].numpy(), batch["steps"].numpy())
            for key, values in whole.items():
                assert torch.equal(batch[key], values[same]), key
            listed = [int(step) for part in all_writers.batches(37, shuffle=True) for step in part["steps"]]
            assert sorted(listed) == sorted(names)
            assert int(all_writers.episodes.length.sum()) == len(names)
        for writer in writers.values():
            writer.buffer.close()
        all_writers.close()


@pytest.mark.parametrize("sampler", [db.Uniform(3), db.Slices(2, 3)])
def test_every_step_of_unequal_stores_is_drawn_as_often(tmp_path: Path, sampler: db.Sampler) -> None:
    numbers = itertools.count(1)
    for name, steps in (("a", 7), ("b", 90), ("c", 31)):
        writer = Writer(tmp_path / "all", name, 1, (5,), None, 1)
        for _ in range(steps // 7):
            writer.extend(0, 7, numbers, ends=True)
        writer.buffer.close()
    with db.ReplayBuffer(tmp_path / "all", mode="r") as all_writers:
        drawn = np.concatenate([np.atleast_2d(all_writers.draw(100, sampler)["steps"].T)[0] for _ in range(60)])
        starts = all_writers.steps()[
            all_writers.episodes.remaining(all_writers.steps()) >= (2 if isinstance(sampler, db.Slices) else 1)
        ]
        assert_uniform(drawn, starts)


@pytest.mark.nightly
def test_a_loader_goes_on_while_writers_add_and_evict(tmp_path: Path) -> None:
    numbers = itertools.count(1)
    writers = [Writer(tmp_path / "all", f"w{n}", 1, (34, 33), 300, 2) for n in range(3)]
    for writer in writers:
        writer.extend(0, 50, numbers, ends=True)
    with db.ReplayBuffer(tmp_path / "all", mode="r", seed=1) as all_writers:
        for n, batch in enumerate(all_writers.loader(16)):
            assert torch.equal(batch["obs"][:, -1, 0, 0].long(), batch["action"])
            assert torch.equal(batch["reward"], batch["action"] / 2)
            writers[n % 3].extend(0, 20, numbers, ends=n % 2 == 0)
            all_writers.refresh()
            if n == 60:
                break
    assert all(len(writer.buffer) < 400 for writer in writers)  # of 450 each
    for writer in writers:
        writer.buffer.close()
