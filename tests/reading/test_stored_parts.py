"""Batches that are sent as they are stored: decoded elsewhere, they are those that are read here."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.reading.delivery import Delivery
from tests.amounts import examples

pytest.importorskip("ray", reason="needs Ray: pip install 'diskbuffer[ray]'")

from diskbuffer.adapters.ray.names import unique
from diskbuffer.adapters.ray.undecoded import Decoder, undecoded

SAMPLERS: dict[str, Any] = {
    "single": db.Uniform,
    "n-step": lambda seed: db.Uniform(seed, n_step=3),
    "by priority": lambda seed: db.Prioritized(seed=seed),
    "sequences": lambda seed: db.Slices(6, seed=seed),
    "burnt in": lambda seed: db.Slices(5, burn_in=4, strict=False, seed=seed),
    "crossing": lambda seed: db.Slices(5, crossing=True, seed=seed),
}


def sent_over(value: Any) -> Any:
    """Return a value as Ray gives it to another process: its arrays cannot be written to."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(pickled, buffers=[bytes(buffer) for buffer in buffers])


def extend(buffer: db.ReplayBuffer, random: np.random.Generator, episodes: int, compressible: bool) -> None:
    for _ in range(episodes):
        n = int(random.integers(1, 30))
        obs = {
            "camera": random.integers(0, 256, (n + 1, 1 if compressible else 40, 40), np.uint8).repeat(
                40 if compressible else 1, 1
            ),
            "joints": random.random((n + 1, 3)),
        }
        action, done = random.integers(0, 5, n), np.arange(n) == n - 1
        buffer.extend(obs, action, random.random(n), terminated=done, new_episode=True, env=int(random.integers(buffer.n_envs)))


@given(
    seed=st.integers(0, 10**6),
    sampler=st.sampled_from(list(SAMPLERS)),
    stack=st.sampled_from([1, 3]),
    compressible=st.booleans(),
    chunk_rows=st.sampled_from([1, 2, 4, 8]),
)
@examples(8, 300)
def test_batches_are_the_same_wherever_they_are_decoded(
    seed: int, sampler: str, stack: int, compressible: bool, chunk_rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    random = np.random.default_rng(seed)
    columns = {
        "obs/camera": db.Column((40, 40), "uint8"),
        "obs/joints": db.Column((3,), "float64"),
        "action": db.Column((), "int64"),
    }
    decoder = Decoder()
    path = tmp_path_factory.mktemp("store") / "store"
    how: dict[str, Any] = {"n_envs": 2, "segment_rows": 64, "chunk_rows": chunk_rows, "frame_stack": stack, "threads": 1}
    with db.ReplayBuffer(path, columns=columns, padding=random.choice(["first", "zeros"]), **how) as buffer:
        for _ in range(3):
            extend(buffer, random, 12, compressible)
            if random.random() < 0.5:
                buffer.flush(recompress=True)
            size = int(random.integers(1, 40))
            planned = buffer._drawing.source(SAMPLERS[sampler](seed), size).next_planned()
            sent = undecoded(buffer, planned, 5)
            expected = planned.batch(Delivery(buffer._reader.pool))
            expected["steps"] = torch.from_numpy(unique(expected["steps"].numpy(), 5))
            memory = sum(memory.nbytes for memory in buffer._reader.pool.take(planned.request).memories)
            assert sent is not None or not compressible or size < 4  # of few samples it need not be less
            if sent is None:
                continue
            assert sum(part.nbytes for part in sent.parts) <= memory
            found = decoder.batch(sent_over(sent))
            found.get("weights", torch.ones(1)).mul_(1.0)  # it can be written to
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_chunk_that_was_damaged_on_its_way_is_an_error(tmp_path: Path) -> None:
    columns = {"obs": db.Column((64, 64), "uint8"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, frame_stack=4) as buffer:
        buffer.extend(np.zeros((301, 64, 64), np.uint8), np.zeros(300, int), np.zeros(300))
        sent = undecoded(buffer, buffer._drawing.source(db.Uniform(0), 8).next_planned(), 0)
        assert sent is not None
        blob = max(sent.parts[0].blobs, key=len)
        blob[20] ^= 1
        with pytest.raises(db.CorruptionError, match="what a shard sent of 'obs'"):
            Decoder().batch(sent)
