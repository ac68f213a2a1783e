"""Digests of what must not depend on the processor: `python -m tests.frozen.processor [STORE ...]` prints them as JSON.

They are of the raw bits of all float64 functions that decide what is drawn or what a batch holds, of a million prioritized draws,
and of batches of frozen stores.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diskbuffer as db
from diskbuffer.native.returns import advantages, returns_to_go
from diskbuffer.native.sampling import power
from tests.frozen import kernels
from tests.frozen.batches import SIZES, digests_of
from tests.frozen.digests import Digest, digest_of
from tests.frozen.stores import Numbers

COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
DRAWS, BATCH = 1_000_000, 50_000


def environment() -> dict[str, str]:
    """Return environment variables under which numpy and glibc use the least that a processor of this kind has."""
    umath = importlib.import_module("numpy._core._multiarray_umath")
    there = umath.__cpu_features__
    names = [name for name in umath.__cpu_dispatch__ if there.get(name)]
    return os.environ | {
        "NPY_DISABLE_CPU_FEATURES": " ".join(names),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA",
        "PYTHONWARNINGS": "ignore::ImportWarning",  # numpy's, of what it did not find
    }


def _uniform(numbers: Numbers, n: int) -> Any:
    return numbers.integers(2**53, (n,)).astype(np.float64) * 2.0**-53


def functions() -> Iterator[tuple[str, Any]]:
    """Yield results of the functions themselves, of float64 where they have it."""
    numbers = Numbers(5)
    values = [_uniform(numbers, 5000), np.ldexp(_uniform(numbers, 5000), numbers.integers(2000, (5000,)) - 1060)]
    for exponent in (0.0, 0.1, 0.4, 0.5, 0.6, 1.0, 1.7, 10.0):
        yield f"powers, {exponent}", [power(each, exponent) for each in values]
    rewards, these, following = (_uniform(numbers, 3000) for _ in range(3))
    terminated, ended = (numbers.integers(9, (3000,)) == 0 for _ in range(2))
    yield "advantages", list(advantages(rewards, these, following, terminated, ended, 0.97, 0.93, 0.0))
    yield "returns", list(returns_to_go(rewards, following, terminated, ended, 0.97, 0.0))


def batches() -> Iterator[tuple[str, Any]]:
    """Yield n-step returns of float64 and float32, weights and draws by priority."""
    numbers = Numbers(6)
    with (
        tempfile.TemporaryDirectory() as directory,
        db.ReplayBuffer(f"{directory}/store", columns=COLUMNS | {"reward": db.Column((), "float64")}) as buffer,
    ):
        n = 4000
        steps, ends = np.arange(n), np.arange(n) % 97 == 96
        buffer.extend(
            steps, next_obs=steps + 1, action=steps, reward=_uniform(numbers, n), truncated=ends, new_episode=np.roll(ends, 1)
        )
        for n_step, gamma in ((3, 0.99), (9, 0.9), (40, 0.997), (200, 0.5)):
            yield f"{n_step}-step returns", buffer.sample(2000, db.Uniform(1, n_step=n_step, gamma=gamma))
        sampler = db.Prioritized(0.7, 0.45, seed=2)
        sequences = db.Prioritized(0.9, 0.6, seed=3, length=7, period=1, eta=0.7, column="other")
        for _ in range(20):
            batch = buffer.sample(200, sampler)
            yield "weights", batch["weights"]
            sampler.update(batch["steps"], _uniform(numbers, 200))
            batch = buffer.sample(200, sequences)
            sequences.update(batch["steps"], _uniform(numbers, 1400).reshape(200, 7))
        yield "masses", [*sampler.masses(), *sequences.masses()]
        for _ in range(DRAWS // BATCH):
            yield "draws", buffer.draw(BATCH, sampler)


def digests(stores: list[str]) -> dict[str, dict[str, dict[str, str]]]:
    """Return digests of functions, of frozen stores, and of what is compiled."""
    parts = dict[str, Digest]()
    for part, value in (*functions(), *batches()):
        parts.setdefault(part, Digest()).put(value)
    with tempfile.TemporaryDirectory() as directory:
        cases = {name: case for name, case in kernels.CASES.items() if not name.startswith("the index")}
        compiled = {name: digest_of(case(Path(directory))) for name, case in cases.items()}
        of_stores = {name: digests_of(name, Path(directory) / str(k), sizes=SIZES[:-1]) for k, name in enumerate(stores)}
    return {"values": {"functions": {part: str(digest) for part, digest in parts.items()}, "compiled": compiled}} | of_stores


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(digests(sys.argv[1:])))
