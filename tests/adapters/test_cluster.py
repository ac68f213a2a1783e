"""A buffer over a real Ray cluster: writers and a learner, priorities, and a kill; nightly has the rest.

What its parts decide is tested without a cluster, in test_node_store.py.
"""

from __future__ import annotations

import math
import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import diskbuffer as db
from tests.adapters.clusters import COLUMNS, PATIENCE, is_right, step, steps, stored

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'diskbuffer[ray]'")

from diskbuffer.adapters.ray import ClusterBuffer  # noqa: E402
from diskbuffer.adapters.ray.nodes import Node  # noqa: E402
from diskbuffer.adapters.ray.rate import start_rate  # noqa: E402
from diskbuffer.reading.gather import thread_count  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
MANY = 20_000  # draws, which have every step


@pytest.fixture
def made(cluster: None, tmp_path: Path) -> Iterator[Any]:
    """What makes buffers of one directory, which are destroyed in the end."""
    buffers: list[ClusterBuffer] = []

    def make(**how: Any) -> ClusterBuffer:
        buffers.append(ClusterBuffer(tmp_path / "all", columns=COLUMNS, patience=PATIENCE, refresh_every=0.0, **how))
        return buffers[-1]

    yield make
    for buffer in buffers:
        buffer.destroy()


@pytest.fixture(scope="module")
def shared(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBuffer]:
    """A buffer of several tests, as a process of a node takes seconds to start."""
    path = tmp_path_factory.mktemp("cluster") / "all"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_count, "WORTH_A_THREAD", math.inf)  # another would stay as long as the buffer
        buffer = ClusterBuffer(path, columns=COLUMNS, patience=PATIENCE, refresh_every=0.0, seed=0)
        yield buffer
        buffer.destroy()


def draws(buffer: ClusterBuffer, sampler: db.Prioritized) -> set[int]:
    return set(buffer.sample(64, sampler)["steps"].tolist())


def kill(buffer: ClusterBuffer) -> None:
    """Kill the process of every node's store, which Ray starts again."""
    for node in buffer._nodes:
        pid = ray.get(node.handle.__ray_call__.remote(lambda store: os.getpid()))
        ray.kill(node.handle, no_restart=False)
        while psutil.pid_exists(pid):
            time.sleep(0.01)


def test_actors_write_to_their_nodes_disk_and_a_learner_reads_it_there(shared: ClusterBuffer) -> None:
    def act(buffer: ClusterBuffer, who: int, count: int) -> Path:
        with buffer.writer() as writer:
            assert isinstance(writer, db.ReplayBuffer)
            writer.extend(**steps(who, 0, count))
            return writer.path

    remote = ray.remote(num_cpus=0)(act)
    shared.refresh()
    before = len(shared)
    with shared.writer() as writer:
        assert isinstance(writer, db.ReplayBuffer)
        path = ray.get(remote.remote(shared, 10, 100))
        assert path.parent == writer.path.parent == Path(shared.path)
        assert ray.get(remote.remote(shared, 12, 50)) == path != writer.path  # a short task continues a store that was left
        writer.extend(**steps(11, 0, 100))
    batch = shared.sample(256)
    assert is_right(batch)
    assert {10, 11, 12} <= set(batch["obs"][:, 0].tolist())
    shared.refresh()
    assert len(shared) == before + 250
    assert batch["node"].unique().tolist() == [node["number"] for node in shared.stats()["nodes"]]
    loader = shared.loader(32, db.Uniform(n_step=2))
    assert all(len(next(loader)["steps"]) == 32 for _ in range(5))
    loader.close()


def test_priorities_are_a_nodes_and_each_learners_weights_its_own(shared: ClusterBuffer) -> None:
    with shared.writer() as writer:
        writer.extend(**steps(0, 0, 40))
    sampler = db.Prioritized(alpha=1.0, beta=1.0, seed=0)
    batch = shared.sample(MANY, sampler)
    assert shared.write("value", batch, batch["action"].numpy() * 2.0) == MANY
    again = shared.sample(64)
    assert (again["value"] == again["action"] * 2).all()
    shared.update(sampler, batch, np.where(batch["steps"] == batch["steps"][0], 1e6, 0.0))
    shared.flush()
    for learner in (sampler, db.Prioritized(alpha=1.0), sampler):  # and another one
        assert draws(shared, learner) == {int(batch["steps"][0])}
    assert len(draws(shared, db.Prioritized(alpha=1.0, column="another"))) > 10
    with pytest.raises(db.InputError, match="must be the Prioritized"):
        shared.update(db.Uniform(), batch, np.ones(MANY))  # type: ignore[arg-type]
    weights = shared.sample(64, db.Prioritized(alpha=0.0, beta=1.0, column="even"))["weights"]
    assert (weights == 1).all()
    first, second = (db.Prioritized(alpha=1.0, beta=beta, column="skewed", seed=0) for beta in (1.0, 0.5))  # of two learners
    batch = shared.sample(MANY, first)
    shared.update(first, batch, batch["steps"] % 7 + 1)
    shared.flush()  # an update does not wait for the nodes
    for learner, power in ((first, 1.0), (second, 0.5), (first, 1.0)):  # each has weights by its own beta
        weighted = shared.sample(64, learner)
        assert np.allclose(weighted["weights"], (weighted["steps"] % 7 + 1.0) ** -power, rtol=1e-5)
    handle = pickle.loads(pickle.dumps(shared))  # of a process that does not sample
    handle.update(second, batch, np.ones(MANY))
    handle.flush()
    assert handle.dropped_updates == 0
    before = batch | {"node": batch["node"] ^ 1}  # of a node whose machine was started again
    assert handle.write("value", before, np.ones(MANY)) == 0
    handle.update(second, before, np.full(MANY, 2.0))
    handle.flush()
    assert handle.dropped_updates == MANY
    assert (shared.sample(64, first)["weights"] == 1).all()
    with pytest.raises(db.InputError, match="priorities must be at least 0"):
        shared.update(sampler, batch, np.full(MANY, -1.0))
    handle.close()


def test_steps_and_priorities_survive_a_nodes_process(shared: ClusterBuffer) -> None:
    sampler = db.Prioritized(alpha=1.0, beta=1.0, seed=0, column="kept")
    with shared.writer() as first:
        for n in range(10):
            assert first.add(*step(1, n)) == 1
        shared.refresh()
        batch = shared.sample(MANY, sampler)
        shared.update(sampler, batch, np.where(batch["steps"] == batch["steps"][0], 1e3, 0.0))
        shared.flush()
        kill(shared)
        assert draws(shared, sampler) == {int(batch["steps"][0])}
        with shared.writer() as short:
            short.extend(**steps(2, 0, 4))
        assert first.extend(**steps(1, 10, 25)) == 25
    for value in range(1, 9):  # of updates in a row, the last one stands
        shared.update(sampler, batch, np.full(MANY, float(value)))
    shared.flush()
    with db.ReplayBuffer(shared.path, mode="r") as reader:
        kept = reader.at(np.unique(batch["steps"]), columns=["kept"], numpy=True)["kept"]
    assert kept.round(3).tolist() == [8.0] * len(kept)
    with pytest.raises(db.errors.EmptyBufferError, match="no episode has the 5000 steps"):
        shared.sample(8, db.Slices(5000))
    with pytest.raises(db.errors.EmptyBufferError, match="no step that fits the sampler"):
        shared.sample(8, db.Prioritized(length=5000, column="long"))
    there = {one: count for one, count in stored(Path(shared.path)).items() if one[0] in (1, 2)}
    assert there == dict.fromkeys([(1, n) for n in range(35)] + [(2, n) for n in range(4)], 1)


@pytest.mark.nightly
def test_masses_are_not_older_than_lengths_and_an_error_is_of_one_question(made: Any, tmp_path: Path) -> None:
    made()
    buffer = ClusterBuffer(tmp_path / "all", columns=COLUMNS, patience=PATIENCE, refresh_every=0.05)
    sent, nodes = buffer._describe(db.Prioritized(alpha=1.0)), buffer._nodes
    with buffer.writer() as writer:
        writer.extend(**steps(0, 0, 40))
        nodes.look(sent)
        node = next(iter(nodes))
        before = node.masses[sent].total
        writer.extend(**steps(0, 40, 40))
    time.sleep(0.1)
    assert len(buffer) == 80  # which asks for no masses
    nodes.look(sent)
    assert node.masses[sent].total == 2 * before > 0
    nodes._known["another"] = Node("another", node.handle, node.last, why="")
    with pytest.raises(db.InputError, match="give this one a column= of its own"):
        nodes.look(buffer._describe(db.Prioritized(alpha=0.5)))
    nodes.look(now=True)  # the other node's answer is refused, too, and not once more
    buffer.close()


@pytest.mark.nightly
def test_a_ratio_holds_in_a_cluster(made: Any) -> None:
    limiter = db.SampleToInsertRatio(2, min_size=100, error_buffer=100, timeout=60)
    buffer = made(limiter=limiter)
    counting = start_rate(buffer.path, limiter)
    failed: list[BaseException] = []

    def learn() -> None:
        learner = pickle.loads(pickle.dumps(buffer))
        try:
            while True:
                learner.sample(16)
        except db.errors.LimiterTimeoutError:
            return
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            learner.close()

    thread = threading.Thread(target=learn)
    thread.start()
    with buffer.writer() as writer:
        for n in range(40):
            writer.extend(**steps(0, 50 * n, 50))
            if n == 20:
                ray.kill(counting, no_restart=False)
        assert writer.limiter is not None
        assert writer.limiter.state()["added"] == 2000  # which tells, too
        until = time.monotonic() + 60
        while (state := buffer.limiter.state())["may_sample"] and time.monotonic() < until:
            time.sleep(0.05)
        assert -100 - 2 * 16 <= state["surplus"] < -100
        assert writer.limiter.may_add
        with pytest.raises(db.InputError, match="is used with"):
            made(limiter=db.SampleToInsertRatio(3))
        later = made()
        assert later.limiter.state()["asked"] == 2
        later.close()
    ray.kill(counting)
    thread.join(90)
    assert not failed or isinstance(failed[0], db.errors.UnreachableError)


@pytest.mark.nightly
def test_paths_and_disks_that_cannot_be_used_are_refused(cluster: None, tmp_path: Path) -> None:
    with pytest.raises(db.errors.UnreachableError, match="no node has the resource 'dsik'"):
        ClusterBuffer(tmp_path, columns=COLUMNS, disks="dsik")
    with pytest.raises(db.InputError, match=r"do not have the variable \$NO_SUCH_VARIABLE"):
        ClusterBuffer("$NO_SUCH_VARIABLE/all", columns=COLUMNS)
    file = tmp_path / "copied" / "_shared" / "identity"
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(db.InputError, match=r"1 of 1 nodes: CorruptionError: .*identity has b'' in place of 32"):
        ClusterBuffer(tmp_path / "copied", columns=COLUMNS)
