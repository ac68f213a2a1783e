"""A buffer over a Ray cluster: steps are there once, whatever is killed; batches are of all nodes, in proportion."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from torch.utils._pytree import tree_flatten, tree_map

import diskbuffer as db

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'diskbuffer[ray]'")

from diskbuffer.adapters.ray import ClusterBuffer, rate  # noqa: E402
from diskbuffer.adapters.ray.inbox import Inbox  # noqa: E402
from diskbuffer.adapters.ray.node_store import Client  # noqa: E402
from diskbuffer.adapters.ray.nodes import Node  # noqa: E402
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
        pid = ray.get(node.handle.__ray_call__.remote(lambda store: os.getpid()))
        ray.kill(node.handle, no_restart=False)
        while psutil.pid_exists(pid):
            time.sleep(0.01)


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
    first, second = (db.Prioritized(alpha=1.0, beta=beta, column="skewed", seed=0) for beta in (1.0, 0.5))  # of two learners
    batch = buffer.sample(400, first)
    buffer.update(first, batch, batch["steps"] % 7 + 1)
    for sampler, power in ((first, 1.0), (second, 0.5), (first, 1.0)):  # each has weights by its own beta
        weighted = buffer.sample(64, sampler)
        assert np.allclose(weighted["weights"], (weighted["steps"] % 7 + 1.0) ** -power, rtol=1e-5)
    handle = pickle.loads(pickle.dumps(buffer))  # of a process that does not sample
    handle.update(second, batch, np.ones(400))
    handle.flush()
    assert handle.dropped_updates == 0
    assert (buffer.sample(64, first)["weights"] == 1).all()
    with pytest.raises(db.InputError, match="priorities must be at least 0"):
        buffer.update(sampler, batch, np.full(400, -1.0))
    with pytest.raises(db.InputError, match='no "node"'):
        buffer.update(sampler, batch["steps"], np.ones(400))


def test_masses_are_not_older_than_lengths_and_an_error_is_of_one_question(made: Any, tmp_path: Path) -> None:
    made()
    buffer = ClusterBuffer(tmp_path / "all", columns=COLUMNS, patience=20.0, refresh_every=0.05)
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


def test_a_node_that_cannot_read_its_directory_is_shown(made: Any, tmp_path: Path) -> None:
    buffer = made()
    (tmp_path / "all" / "_shared" / "identity").write_text("")
    kill(buffer)
    assert "in place of 32" in pickle.loads(pickle.dumps(buffer)).stats()["nodes"][0]["why"]


def test_an_inbox_that_cannot_be_opened_is_closed(made: Any, tmp_path: Path) -> None:
    buffer = made()

    def fail(store: Any) -> None:
        def full(_: Any) -> None:
            del store._set_owners
            raise OSError("no space")

        store._set_owners = full

    ray.get([node.handle.__ray_call__.remote(fail) for node in buffer._nodes])
    with pytest.raises(OSError, match="no space"):
        Inbox(buffer._nodes, {"columns": COLUMNS}, 60.0)
    with Inbox(buffer._nodes, {"columns": COLUMNS}, 60.0) as inbox:
        inbox.extend(**steps(1, 0, 4))
    assert [path.name for path in (tmp_path / "all").glob("inbox-*")] == ["inbox-0"]


def test_an_inbox_stores_each_step_once_whatever_its_process_does(made: Any, tmp_path: Path) -> None:
    buffer = made()
    first = Inbox(buffer._nodes, {"columns": COLUMNS}, 60.0)
    for n in range(10):
        assert first.add(*_step(1, n)) == 1
    kill(buffer)
    short = Inbox(buffer._nodes, {"columns": COLUMNS}, 60.0)  # joins first after the restart
    short.extend(**steps(2, 0, 4))
    assert first.extend(**steps(1, 10, 20)) == 20
    with pytest.raises(db.InputError, match="truncated: expected shape"):
        first.extend(**steps(1, 30, 5), truncated=np.zeros(3, bool))
    with pytest.raises(db.InputError, match=r"cannot be pickled: cannot pickle '_thread.lock'"):
        first.add(*_step(1, 30), info={"lock": threading.Lock()})
    assert first.extend(**steps(1, 30, 5)) == 5
    with pytest.raises(db.errors.EmptyBufferError, match="no episode has the 5000 steps"):
        buffer.sample(8, db.Slices(5000))
    with pytest.raises(db.errors.EmptyBufferError, match="no step that fits the sampler"):
        buffer.sample(8, db.Prioritized(length=5000, column="long"))
    node = next(iter(buffer._nodes))
    with pytest.raises(db.errors.ClosedError, match="is not as it was told"):  # a call that comes late
        next(iter(buffer._nodes.collect([(node, node.handle.add.remote(first._client.id, [60], 0, steps(1, 30, 5)))])))
    # A node that is gone, and comes back when another writer continues what it had.
    gone = Client("gone", "no such node", ray.put({"columns": COLUMNS}))
    store, taken = ray.get(node.handle.open_inbox.remote(gone))
    gone = gone._replace(store=store)
    assert ray.get(node.handle.add.remote(gone.id, taken, 0, steps(4, 0, 4))) == [8]
    other = Inbox(buffer._nodes, {"columns": COLUMNS}, 60.0)
    assert other._client.store == store
    assert other.extend(**steps(4, 4, 4)) == 4
    with pytest.raises(db.errors.ClosedError, match="another writer continues"):
        next(iter(buffer._nodes.collect([(node, node.handle.open_inbox.remote(gone))])))
    assert ray.get(node.handle.add.remote(gone.id, [8], 0, steps(4, 4, 4))) is None
    other.close()
    short.close()
    third = Inbox(buffer._nodes, {"columns": COLUMNS}, 60.0)
    third.extend(**steps(3, 4, 4))
    third.close()
    first.close()
    assert stored(tmp_path / "all") == Counter(
        [(1, n) for n in range(35)] + [(2, n) for n in range(4)] + [(4, n) for n in range(8)] + [(3, n) for n in range(4, 8)]
    )
    assert sorted(path.name for path in (tmp_path / "all").glob("inbox-*")) == ["inbox-0", "inbox-1", "inbox-2"]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_a_call_at_which_the_process_dies_is_stored_once(made: Any, tmp_path: Path, monkeypatch: Any, mode: str) -> None:
    buffer, rng, expected = made(), np.random.default_rng(0), Counter[tuple[int, int]]()
    inbox = Inbox(buffer._nodes, {"columns": COLUMNS, "n_envs": 2, "autoreset": mode}, 60.0)
    ask, fates = inbox._ask, ["lives", "lives", "dies after", "dies before", "lives"]

    def dies(method: str, *arguments: Any) -> Any:
        """Have the process die before or after it carried out what `add` has."""
        if method != "add" or fates[0] == "lives":
            return ask(method, *arguments)
        if fates[0] == "dies after":
            ask(method, *arguments)
        kill(buffer)
        fates[0] = "lives"  # when it is told again
        return None

    monkeypatch.setattr(inbox, "_ask", dies)
    now, ended = np.array([1, 1]), np.zeros(2, bool)
    while fates:
        resets = ended if mode == "next_step" else np.zeros(2, bool)
        ended = (rng.random(2) < 0.5) & ~resets
        after = np.where(resets, now + 10, now + 1)
        begins = after + 10 * ended  # of the next episode
        led_to = begins if mode == "same_step" else after
        obs, next_obs, final_obs = (np.stack([[1, 2], each], 1) for each in (now, led_to, after))
        reward = np.where(resets, 0, now)
        added = inbox.add(obs, reward, reward, next_obs, ended, ended & False, info={"final_obs": final_obs})
        assert added == 2 - resets.sum()
        expected += Counter((who + 1, int(now[who])) for who in np.flatnonzero(~resets).tolist())
        now = after if mode == "next_step" else begins
        fates.pop(0)
    inbox.flush()
    assert stored(tmp_path / "all") == expected

    def dies_in_between(method: str, *arguments: Any) -> Any:
        if method == "add":
            client, taken, _, values = arguments
            ask("add", client, taken, 0, {name: value[:1] for name, value in values.items() if name != "info"})
            return None
        return ask(method, *arguments)

    if mode == "same_step":  # it dies after the call, and the next process cannot open the store at first

        def cannot_open(method: str, *arguments: Any) -> Any:
            if method == "open_inbox":
                raise db.LockedError("by a process that dies")
            ask(method, *arguments)
            return None

        failing = Inbox(buffer._nodes, {"columns": COLUMNS, "n_envs": 2, "autoreset": mode}, 60.0)
        with monkeypatch.context() as patched:
            patched.setattr(failing, "_ask", cannot_open)
            for error in (db.errors.UnreachableError, db.errors.ClosedError):  # told again, it would be there twice
                with pytest.raises(error, match="make another"):
                    failing.add(*(np.stack([value, value]) for value in _step(3, 7)))
        failing.close()
        expected[(3, 7)] += 2

    monkeypatch.setattr(inbox, "_ask", dies_in_between)
    flags = np.zeros(2, bool)
    obs = np.array([[1, 100], [2, 100]])
    with pytest.raises(db.errors.UnreachableError, match="or a part; make another"):
        inbox.add(obs, obs[:, 1], obs[:, 1], obs + [0, 1], flags, flags)
    with pytest.raises(db.errors.ClosedError, match="make another one"):
        inbox.add(obs, obs[:, 1], obs[:, 1], obs + [0, 1], flags, flags)
    inbox.close()
    assert stored(tmp_path / "all") == expected + Counter([(1, 100)])
    if mode == "next_step":
        other = Inbox(buffer._nodes, {"columns": COLUMNS, "n_envs": 2}, 60.0)
        with pytest.raises(db.InputError, match="takes no reset rows"):
            other.extend(**steps(1, 0, 4), env=0)
        other.close()


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
        patched.setattr(ray, "wait", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            inbox.extend(**steps(0, 40, 10), env=0)
    with pytest.raises(db.errors.ClosedError, match="make another one"):
        inbox.extend(**steps(0, 50, 10), env=0)
    inbox.close()
    with pytest.raises(db.InputError, match="n_envs= and autoreset="):
        Inbox(buffer._nodes, {"env": object()}, 60.0)


def _interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_store_that_went_back_to_a_mark_is_read_again(made: Any, tmp_path: Path) -> None:
    buffer = made()
    for _ in range(2):  # one more writer, so that the directory has several
        with buffer.writer() as first, buffer.writer() as writer:
            first.extend(**steps(1, 0, 5))
            writer.extend(**steps(2, 0, 5))
            path = writer.path
    with db.ReplayBuffer(path.parent, writer=path.name) as one:
        one.copies.mark("here")
        one.extend(**steps(2, 20, 5))
    buffer.refresh()
    assert len(buffer) == len(set(buffer.sample(500)["steps"].tolist())) == 25
    with db.ReplayBuffer(path.parent, writer=path.name, mark="here"):
        pass
    buffer.refresh()
    assert len(buffer) == len(set(buffer.sample(500)["steps"].tolist())) == 20
    assert is_right(buffer.sample(8, db.Prioritized(column="priority")))


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


def test_samples_of_those_that_are_gone_count_and_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = iter(range(100))
    monkeypatch.setattr(rate, "time", SimpleNamespace(monotonic=lambda: 3000.0 * next(hours)))
    counts = rate.Rate.__ray_metadata__.modified_class(db.SampleToInsertRatio(1))  # type: ignore[attr-defined]
    for n in range(10):
        counts.tell("sample", f"learner {n}", 3, 0)
        _, state = counts.tell("sample", f"learner {n}", 10, 0)
    assert state["samples"] == 70
    assert list(counts._counts["sample"]) == ["learner 9"]


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
    file = tmp_path / "copied" / "_shared" / "identity"
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(db.InputError, match=r"1 of 1 nodes: CorruptionError: .*identity has b'' in place of 32"):
        ClusterBuffer(tmp_path / "copied", columns=COLUMNS)
    file.unlink()
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
