"""The stores of several writers in a bucket against the same in a directory: a real server, small caches, spoilt answers."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db
from tests.gathering.test_gathering import Writer
from tests.s3_server import S3Server, some_faults


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of three writers of unequal stores, a learner's columns, and a mark."""
    root, numbers = tmp_path_factory.mktemp("bucket") / "all", itertools.count(1)
    writers = [Writer(root, f"w{n}", n + 1, (34, 33), 900, 2) for n in range(3)]
    with db.ReplayBuffer(root, mode="r") as learner:
        for writer, episodes in zip(writers, (1, 5, 9), strict=True):
            for n in range(episodes):
                writer.extend(n % writer.envs, 20, numbers, ends=n % 3 > 0)
        learner.refresh()
        learner.columns.write("score", learner.steps()[::3], np.ones(len(learner.steps()[::3])))
        learner.copies.mark("early")
        writers[0].extend(0, 150, numbers, ends=True)
    for writer in writers:
        writer.buffer.close()
    return root


@pytest.fixture(scope="module")
def url(server: S3Server, root: Path) -> str:
    return server.put(root)


@pytest.mark.some(1)
@pytest.mark.parametrize("mark", [None, "early"])
@pytest.mark.parametrize("blocks", [3, 10_000])
def test_what_is_read_from_a_bucket_is_what_is_in_the_directory(
    server: S3Server, root: Path, url: str, mark: str | None, blocks: int, tmp_path: Path
) -> None:
    server.fault = some_faults(blocks, 0.03)
    bucket = server.bucket(url, tmp_path / "cache", block_bytes=4096, cache_bytes=4096 * blocks)
    options: dict[str, Any] = {"mode": "r", "seed": 5, "mark": mark}
    with db.ReplayBuffer(bucket, **options) as remote, db.ReplayBuffer(root, **options) as local:
        assert len(remote) == len(local) == 300 + 150 * (mark is None)
        assert remote.copies.marks == local.copies.marks
        assert (remote.steps() == local.steps()).all()
        for _ in range(3):
            same(remote.sample(40), local.sample(40))
            remote.refresh()
        same(remote.sample(20, db.Slices(3, seed=1)), local.sample(20, db.Slices(3, seed=1)))
        for one, other in zip(remote.loader(16), itertools.islice(local.loader(16), 5), strict=False):
            same(one, other)
        assert remote.stats()["bucket"]["requests"] > 0
        with pytest.raises(db.errors.ReadOnlyError):
            remote.columns.write("score", remote.steps(), np.zeros(len(remote)))
        with pickle.loads(pickle.dumps(remote)) as again:
            same(again.sample(8), remote.sample(8))
    server.fault = lambda method, path: ""


def same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for key in one:
        assert torch.equal(one[key], other[key]), key


@pytest.mark.nightly
def test_what_cannot_be_read_is_told(server: S3Server, root: Path, url: str, tmp_path: Path) -> None:
    bucket = server.bucket(url, tmp_path / "cache")
    with pytest.raises(db.errors.ReadOnlyError, match="in a bucket"):
        db.ReplayBuffer(bucket)
    with pytest.raises(db.InputError, match="in a bucket"):
        db.ReplayBuffer(bucket, mode="r", writer="w0")
    with pytest.raises(db.InputError, match="no mark 'late'"):
        db.ReplayBuffer(bucket, mode="r", mark="late")
    with db.ReplayBuffer(server.bucket(f"{url}/w1", tmp_path / "cache"), mode="r") as one:
        assert len(one) == 100
    file = next((root / "w1" / "obs").glob("c.*"))
    contents = file.read_bytes()
    file.write_bytes(bytes(len(contents)))
    damaged = server.put(root)
    file.write_bytes(contents)
    with pytest.raises(db.CorruptionError), db.ReplayBuffer(server.bucket(damaged, tmp_path / "cache"), mode="r") as one:
        one.at(one.steps())
