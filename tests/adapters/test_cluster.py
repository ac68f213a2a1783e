"""A buffer over a Ray cluster: steps are there once, whatever is killed; batches are of all nodes, in proportion."""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils._pytree import tree_flatten, tree_map

import diskbuffer as db

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'diskbuffer[ray]'")

from diskbuffer.adapters.ray import ClusterBuffer  # noqa: E402
from diskbuffer.adapters.ray.inbox import Inbox  # noqa: E402
from diskbuffer.adapters.ray.node_store import Call, Client  # noqa: E402
from diskbuffer.adapters.ray.packing import pack, unpack  # noqa: E402

COLUMNS = {"obs": db.Column((2,), "int64"), "action": db.Column((), "int64")}
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture
def made(cluster: None, tmp_path: Path) -> Iterator[Any]:
    """What makes buffers of one directory, which are destroyed in the end."""
    buffers: list[ClusterBuffer] = []

    def make(**how: Any) -> ClusterBuffer:
        buffers.append(ClusterBuffer(tmp_path / "all", columns=COLUMNS, patience=20.0, refresh_every=0.0, **how))
        return buffers[-1]

    yield make
    for buffer in buffers:
        buffer.destroy()


def steps(who: int, first: int, count: int, end: bool = False) -> dict[str, Any]:
    """Return a trajectory whose observations tell who added it, and its number."""
    n = np.arange(first, first + count + 1)
    obs = np.stack([np.full(count + 1, who), n], 1)
    return {"obs": obs, "action": n[:-1], "reward": n[:-1], "terminated": (n[:-1] == first + count - 1) & end}


def is_right(batch: dict[str, Any]) -> bool:
    """Return whether what belongs to one step came together."""
    n = batch["obs"][:, 1]
    same = (batch["action"] == n).all() and (batch["reward"] == n).all() and (batch["next_obs"][:, 1] == n + 1).all()
    return bool(same and (batch["obs"][:, 0] == batch["next_obs"][:, 0]).all())


def stored(path: Path) -> Counter[tuple[int, int]]:
    """Count each step in a node's directory, by who added it and its number."""
    with db.ReplayBuffer(path, mode="r") as buffer:
        batch = buffer.at(buffer.steps(), numpy=True)
        assert is_right(batch)
        return Counter(map(tuple, batch["obs"].tolist()))


def kill(buffer: ClusterBuffer) -> None:
    """Kill the process of every node's store, which Ray starts again."""
    for node in buffer._nodes:
        ray.kill(node.handle, no_restart=False)


def test_actors_write_to_their_nodes_disk_and_a_learner_reads_it_there(made: Any, tmp_path: Path) -> None:
    buffer = made(seed=0)
    with pytest.raises(db.errors.EmptyBufferError):
        buffer.sample(4)

    def act(buffer: ClusterBuffer, who: int, count: int) -> Path:
        with buffer.writer() as writer:
            assert isinstance(writer, db.ReplayBuffer)
            writer.extend(**steps(who, 0, count))
            return writer.path

    remote = ray.remote(num_cpus=0)(act)
    paths = ray.get([remote.remote(buffer, who, 100) for who in range(2)])
    assert all(path.parent == tmp_path / "all" for path in paths)
    assert ray.get(remote.remote(buffer, 2, 50)) in paths  # a short task continues a store that was left
    batch = buffer.sample(256)
    assert is_right(batch)
    assert set(batch["obs"][:, 0].tolist()) == {0, 1, 2}
    buffer.refresh()
    assert len(buffer) == 250
    assert batch["node"].unique().tolist() == [node["number"] for node in buffer.stats()["nodes"]]
    loader = buffer.loader(32, db.Uniform(n_step=2))
    assert all(len(next(loader)["steps"]) == 32 for _ in range(5))
    loader.close()


def test_priorities_are_a_nodes_and_survive_its_process_and_the_learners(made: Any) -> None:
    buffer = made(seed=0)
    with buffer.writer() as writer:
        writer.extend(**steps(0, 0, 40))
    sampler = db.Prioritized(alpha=1.0, beta=1.0, seed=0)
    batch = buffer.sample(400, sampler)
    favourite = batch["steps"] == batch["steps"][0]
    buffer.update(sampler, batch, np.where(favourite, 1e6, 0.0))
    buffer.flush()

    def draws(sampler: db.Prioritized) -> set[int]:
        return set(buffer.sample(64, sampler)["steps"].tolist())

    assert draws(sampler) == {int(batch["steps"][0])}
    kill(buffer)
    assert draws(sampler) == {int(batch["steps"][0])}
    assert draws(db.Prioritized(alpha=1.0)) == {int(batch["steps"][0])}  # of another learner
    assert draws(sampler) == {int(batch["steps"][0])}  # and of this one again
    with pytest.raises(db.InputError, match="give this one a column= of its own"):
        draws(db.Prioritized(alpha=0.5))
    with pytest.raises(db.InputError, match="must be the Prioritized"):
        buffer.update(db.Uniform(), batch, np.ones(400))
    assert len(draws(db.Prioritized(alpha=1.0, column="another"))) > 10
    assert buffer.write("value", batch, batch["action"].numpy() * 2.0) == 400
    again = buffer.sample(64)
    assert (again["value"] == again["action"] * 2).all()
    weights = buffer.sample(64, db.Prioritized(alpha=0.0, beta=1.0, column="even"))["weights"]
    assert (weights == 1).all()
    with pytest.raises(db.InputError, match="priorities must be at least 0"):
        buffer.update(sampler, batch, np.full(400, -1.0))
    with pytest.raises(db.InputError, match='no "node"'):
        buffer.update(sampler, batch["steps"], np.ones(400))


def test_an_inbox_stores_each_step_once_whatever_its_process_does(made: Any, tmp_path: Path) -> None:
    buffer = made()
    first = Inbox(buffer._nodes, {"columns": COLUMNS}, 60.0)
    for n in range(10):
        assert first.add(*_step(1, n)) == 1
    kill(buffer)
    short = Inbox(buffer._nodes, {"columns": COLUMNS}, 60.0)  # joins first after the restart
    short.extend(**steps(2, 0, 4))
    assert first.extend(**steps(1, 10, 20)) == 20
    # The process died after it had stored the steps of a call, and before it answered.
    before, calls = first._ever, first._calls
    assert first.extend(**steps(1, 30, 10)) == 10
    first._ever, first._calls = before, calls
    assert first.extend(**steps(1, 30, 10)) == 10
    first._ever = before
    kill(buffer)
    assert first.extend(**steps(1, 30, 20)) == 20  # of which ten are stored
    # It waited for long, and sent the call again while the process was still at it.
    node = next(iter(buffer._nodes))
    for n in range(10):
        call = Call(100 + n, [50 + 200 * n], 0, steps(1, 50 + 200 * n, 200))
        assert ray.get([node.handle.add.remote(first._client, call) for _ in range(4)]) == [[250 + 200 * n]] * 4
    first._ever = [2050]
    with pytest.raises(db.InputError, match="truncated: expected shape"):
        first.extend(**steps(1, 2050, 5), truncated=np.zeros(3, bool))
    assert first.extend(**steps(1, 2050, 5)) == 5
    with pytest.raises(db.errors.EmptyBufferError, match="no episode has the 5000 steps"):
        buffer.sample(8, db.Slices(5000))
    # A node that is gone, and comes back when another writer continues what it had.
    gone = Client("gone", "no such node", ray.put({"columns": COLUMNS}))
    store, ever = ray.get(node.handle.open_inbox.remote(gone))
    gone = gone._replace(store=store)
    assert ray.get(node.handle.add.remote(gone, Call(0, ever, 0, steps(4, 0, 4)))) == [4]
    other = Inbox(buffer._nodes, {"columns": COLUMNS}, 60.0)
    assert other._client.store == store
    assert other.extend(**steps(4, 4, 4)) == 4
    with pytest.raises(db.errors.ClosedError, match="another writer continues"):
        next(iter(buffer._nodes.collect([(node, node.handle.add.remote(gone, Call(1, [4], 0, steps(4, 4, 4))))])))
    other.close()
    short.close()
    third = Inbox(buffer._nodes, {"columns": COLUMNS}, 60.0)
    third.extend(**steps(3, 4, 4))
    third.close()
    first.close()
    assert stored(tmp_path / "all") == Counter(
        [(1, n) for n in range(2055)] + [(2, n) for n in range(4)] + [(4, n) for n in range(8)] + [(3, n) for n in range(4, 8)]
    )
    assert sorted(path.name for path in (tmp_path / "all").glob("inbox-*")) == ["inbox-0", "inbox-1", "inbox-2"]


def test_what_an_inbox_has_told_in_part_is_told_again_as_the_environments_have_it(made: Any, tmp_path: Path) -> None:
    buffer = made()
    resets = Inbox(buffer._nodes, {"columns": COLUMNS, "n_envs": 2}, 60.0)
    with pytest.raises(db.InputError, match="takes no reset rows"):
        resets.extend(**steps(1, 0, 4), env=0)
    ends, goes_on = np.array([True, False]), np.zeros(2, bool)
    resets.add(np.array([[8, 0], [9, 0]]), [0, 0], [0, 0], np.array([[8, 1], [9, 1]]), ends, goes_on)
    before, calls = resets._ever, resets._calls
    for _ in range(2):  # the process died after it had stored the only step: the other row is of a reset
        resets._ever, resets._calls = before, calls
        assert resets.add(np.array([[8, 1], [9, 1]]), [0, 1], [0, 1], np.array([[8, 5], [9, 2]]), goes_on, goes_on) == 1
        kill(buffer)
    resets.add(np.array([[8, 5], [9, 2]]), [5, 2], [5, 2], np.array([[8, 6], [9, 3]]), goes_on, goes_on)
    resets.close()
    once = Counter([(8, 0), (8, 5), (9, 0), (9, 1), (9, 2)])
    inbox = Inbox(buffer._nodes, {"columns": COLUMNS, "n_envs": 2, "autoreset": "disabled"}, 60.0)

    def rows(first: int, count: int) -> dict[str, Any]:
        """Return steps of two episodes, of which the first has two steps."""
        n = np.array([0, 1, 10, 11])[first : first + count]
        obs = np.stack([np.ones_like(n), n], 1)
        return {"obs": obs, "action": n, "reward": n, "next_obs": obs + [0, 1], "terminated": n == 1}

    had = inbox._ever
    assert inbox.extend(**rows(0, 4), env=0) == 4
    for stored_before in (0, 1):  # all were stored; the process died before it answered
        inbox._ever = [had[0] + stored_before, had[1]]
        kill(buffer)
        assert inbox.extend(**rows(stored_before, 4), env=0) == 4 - stored_before
    assert inbox.extend(**rows(0, 3), env=1) == 3
    inbox._ever = [had[0] + 4, had[1]]
    kill(buffer)
    assert inbox.extend(**rows(0, 4), env=1) == 4  # of which three were stored
    inbox.flush()
    inbox.close()
    known = once + Counter({(1, n): 2 for n in (0, 1, 10, 11)})
    assert stored(tmp_path / "all") == known
    pair = Inbox(buffer._nodes, {"columns": COLUMNS, "n_envs": 2, "autoreset": "same_step"}, 60.0)
    obs, final = np.array([[2, 0], [3, 0]]), np.array([[2, 1], [3, 1]])
    zeros, ends = np.zeros(2, int), np.ones(2, bool)
    before = list(pair._ever)
    pair.extend(obs[:1], zeros[:1], zeros[:1], next_obs=final[:1], terminated=ends[:1], env=0)
    pair._ever = before  # the process died after it had stored one of two steps
    assert pair.add(obs, zeros, zeros, obs + 50, ends, ~ends, info={"final_obs": final}) == 2
    before = list(pair._ever)
    pair.extend(obs[:1] + 4, zeros[:1] + 4, zeros[:1] + 4, next_obs=final[:1] + 4, terminated=ends[:1], env=0)
    pair._ever = before
    infos = [{"terminal_observation": one} for one in final + 4]
    assert pair.add(obs + 4, zeros + 4, zeros + 4, obs + 50, ends, ~ends, infos=infos) == 2
    pair.close()
    pair = Inbox(buffer._nodes, {"columns": COLUMNS, "n_envs": 2, "autoreset": "disabled"}, 60.0)
    before = list(pair._ever)
    pair.extend(obs[:1] + 2, zeros[:1] + 2, zeros[:1] + 2, next_obs=final[:1] + 2, terminated=ends[:1], env=0)
    pair._ever = before
    unused = {"lives": zeros}
    assert pair.add(obs + 2, zeros + 2, zeros + 2, final + 2, ends, ~ends, info=unused) == 2
    pair.close()
    assert stored(tmp_path / "all") == known + Counter([(2, 0), (3, 0), (6, 4), (7, 4), (4, 2), (5, 2)])


def test_an_inbox_that_was_interrupted_takes_no_more_and_threads_take_turns(made: Any, tmp_path: Path, monkeypatch: Any) -> None:
    buffer = made()
    inbox = Inbox(buffer._nodes, {"columns": COLUMNS, "n_envs": 4, "autoreset": "disabled"}, 60.0)

    def add(env: int) -> None:
        for n in range(40):
            inbox.extend(**steps(env, n, 1), env=env)

    threads = [threading.Thread(target=add, args=(env,)) for env in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored(tmp_path / "all") == Counter([(env, n) for env in range(4) for n in range(40)])
    with monkeypatch.context() as patched:
        patched.setattr(buffer._nodes, "collect", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            inbox.extend(**steps(0, 40, 10), env=0)
    with pytest.raises(db.errors.ClosedError, match="make another one"):
        inbox.extend(**steps(0, 50, 10), env=0)
    inbox.close()
    with pytest.raises(db.InputError, match="n_envs= and autoreset="):
        Inbox(buffer._nodes, {"env": object()}, 60.0)


def _interrupted(calls: Any) -> None:
    raise KeyboardInterrupt


def test_a_ratio_holds_in_a_cluster(made: Any) -> None:
    limiter = db.SampleToInsertRatio(2, min_size=100, error_buffer=100, timeout=60)
    buffer = made(limiter=limiter)
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
                ray.kill(buffer.limiter._rate, no_restart=False)
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
    ray.kill(buffer.limiter._rate)
    thread.join(90)
    assert not failed or isinstance(failed[0], db.errors.UnreachableError)


def test_who_waits_too_long_is_told_what_is_missing(made: Any) -> None:
    limiter = db.SampleToInsertRatio(4, min_size=50, error_buffer=32, timeout=0)
    buffer = made(limiter=limiter)
    with buffer.writer() as writer:
        assert writer.limiter is not None
        writer.extend(**steps(0, 0, 40))
        writer.limiter.state()  # tells
        with pytest.raises(db.errors.LimiterTimeoutError, match=r"nothing was added: 40 steps in all.*min_size=50"):
            buffer.sample(8)
        writer.extend(**steps(0, 40, 30))
        writer.limiter.state()
        buffer.sample(64)
        buffer.limiter.state()
        writer.extend(**steps(0, 70, 10))
        later = (steps(0, n, 10) for n in range(80, 1_000, 10))
        with pytest.raises(db.errors.LimiterTimeoutError, match="nothing was sampled"):
            all(writer.extend(**each) for each in later)
        buffer.refresh()
        assert 80 <= len(buffer) < 200


def test_arguments_that_do_not_fit_are_refused_where_the_buffer_is_made(cluster: None, tmp_path: Path) -> None:
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
    with pytest.raises(db.errors.UnreachableError, match="no node has the resource 'dsik'"):
        ClusterBuffer(tmp_path, columns=COLUMNS, disks="dsik")
    for path in ("$NO_SUCH_VARIABLE/all", f"{tmp_path}/${{NO_SUCH_VARIABLE}}/all"):
        with pytest.raises(db.InputError, match=r"do not have the variable \$.*NO_SUCH_VARIABLE"):
            ClusterBuffer(path, columns=COLUMNS)
    assert not any("NO_SUCH" in file.name for file in (*tmp_path.iterdir(), *Path().iterdir()))


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


def _step(who: int, n: int) -> tuple[Any, ...]:
    return np.array([who, n]), n, float(n), np.array([who, n + 1]), False, False
