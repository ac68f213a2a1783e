"""Several storages over one path, of which some read what others write, and storages that take the steps of others."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db

torchrl = pytest.importorskip("torchrl")

from tensordict import TensorDict  # noqa: E402
from torchrl.data import TensorDictReplayBuffer  # noqa: E402

from diskbuffer.adapters.torchrl import DiskSampler, DiskStorage  # noqa: E402


def numbered(numbers: range, lanes: int = 0) -> TensorDict:
    """Return steps whose entries all tell their numbers; of several lanes, the thousands tell which."""
    values = torch.tensor(numbers)
    if lanes:
        values = values + 1000 * torch.arange(lanes)[:, None]
    steps = TensorDict(
        {"x": values, "y": values.double(), "next": TensorDict({"done": values % 7 == 0}, values.shape)}, values.shape
    )
    return steps.transpose(0, 1) if lanes else steps


def filled(path: Path, size: int = 20, steps: int = 20, **options: Any) -> DiskStorage:
    """Return a storage of such steps, the first in place 0."""
    storage = DiskStorage(size, path, **options)
    storage.set(torch.arange(steps), numbered(range(steps)))
    return storage


def write(path: Path, places: range, numbers: range) -> None:
    """Write steps as another process would."""
    other = DiskStorage(20, path)
    other.set(torch.tensor(list(places)), numbered(numbers))
    other.close()


def test_a_closed_storage_tells_the_steps_that_others_wrote_since(tmp_path: Path) -> None:
    storage = filled(tmp_path / "store", segment_rows=16)
    storage.close()
    write(tmp_path / "store", range(5), range(20, 25))
    steps = storage.steps(torch.arange(20))
    assert storage.reading().at(steps, columns=["x"])["x"].tolist() == [*range(20, 25), *range(5, 20)]
    assert storage.places(steps).tolist() == list(range(20))
    storage.close()
    write(tmp_path / "store", range(5, 8), range(25, 28))
    whole = storage[:]
    numbers = [*range(20, 28), *range(8, 20)]
    assert whole["x"].tolist() == numbers == whole["y"].tolist()
    assert whole["next", "done"].tolist() == [n % 7 == 0 for n in numbers]


def test_a_readers_places_follow_its_buffer(tmp_path: Path) -> None:
    """Which looks again by itself, where what it was asked for is evicted, or for its episodes."""
    writer = filled(tmp_path / "store", 100, 100, segment_rows=16)
    reader = TensorDictReplayBuffer(
        storage=DiskStorage(100, tmp_path / "store"), sampler=DiskSampler(db.Uniform(seed=0)), batch_size=512
    )
    assert reader.storage.get(torch.tensor([10, 60]))["x"].tolist() == [10, 60]
    for first in range(100, 250, 50):
        numbers = range(first, first + 50)
        writer.set(torch.arange(first, first + 50) % 100, numbered(numbers))
    reader.storage.reading().refresh()
    assert reader.storage.get(torch.tensor([10, 60]))["x"].tolist() == [210, 160]
    assert {*reader.sample()["x"].tolist()} <= {*range(150, 250)}
    assert reader.storage[:]["x"].tolist() == [*range(200, 250), *range(150, 200)]
    assert len(reader) == 100


def test_steps_are_told_while_another_thread_writes(tmp_path: Path) -> None:
    storage, over = filled(tmp_path / "store", 50, 50), threading.Event()
    wrong = list[Any]()

    def read() -> None:
        while not over.is_set():
            steps = storage.steps(torch.arange(50))
            numbers = storage.reading().at(steps, columns=["x"])["x"].numpy()
            wrong.extend(np.flatnonzero(numbers % 50 != np.arange(50)).tolist())

    reading = threading.Thread(target=read)
    reading.start()
    for number in range(50, 350):
        storage.set(number % 50, numbered(range(number, number + 1))[0])
    over.set()
    reading.join()
    assert not wrong


def test_a_reader_sees_that_all_steps_were_dropped(tmp_path: Path) -> None:
    writer = replay(tmp_path / "store")
    writer.extend(numbered(range(20)))
    reader, other = replay(tmp_path / "store"), replay(tmp_path / "store")
    assert len(reader) == len(other) == 20
    writer.empty()
    writer.storage.flush()
    reader.storage.refresh()
    assert len(reader) == 0
    writer.storage.close()
    other.extend(numbered(range(20, 25)))
    assert other[:]["x"].tolist() == list(range(20, 25))


def test_a_state_whose_steps_are_gone_is_refused(tmp_path: Path) -> None:
    saved = filled(tmp_path / "saved").state_dict()
    storage = filled(tmp_path / "store")
    (tmp_path / "saved").rename(tmp_path / "moved")
    with pytest.raises(db.errors.NotAStoreError, match='state_dict\\["path"\\]'):
        storage.load_state_dict(saved)
    assert storage[:]["x"].tolist() == list(range(20))
    storage.load_state_dict(saved | {"path": str(tmp_path / "moved")})
    assert storage[:]["x"].tolist() == list(range(20))


def test_a_state_of_no_steps_empties(tmp_path: Path) -> None:
    storage = filled(tmp_path / "store")
    storage.load_state_dict({"path": str(tmp_path / "other"), "len": 0})
    assert len(storage) == 0


def test_a_reader_loads_a_state_as_the_steps_are_now(tmp_path: Path) -> None:
    writer = filled(tmp_path / "store", 20, 10)
    reader, state = DiskStorage(20, tmp_path / "store"), writer.state_dict()
    writer.set(torch.arange(10, 20), numbered(range(10, 20)))
    reader.load_state_dict(state)
    assert reader[:]["x"].tolist() == list(range(20))


def test_no_steps_are_not_dumped(tmp_path: Path) -> None:
    buffer = TensorDictReplayBuffer(storage=filled(tmp_path / "store"), batch_size=4)
    buffer.empty()
    with pytest.raises(db.InputError, match="holds no steps"):
        buffer.dumps(tmp_path / "dump")


def test_a_reader_dumps_beside_the_writer(tmp_path: Path) -> None:
    writer = filled(tmp_path / "store")
    reader = TensorDictReplayBuffer(storage=DiskStorage(20, tmp_path / "store"), batch_size=4)
    reader.dumps(tmp_path / "dump")
    writer.set(torch.arange(3), numbered(range(20, 23)))
    loaded = TensorDictReplayBuffer(storage=DiskStorage(20, tmp_path / "loaded"), batch_size=4)
    loaded.loads(tmp_path / "dump")
    assert loaded[:]["x"].tolist() == list(range(20))


@pytest.mark.nightly
def test_a_storage_behind_a_link_is_loaded_where_that_leads(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "link").symlink_to(disk / "store")
    filled(disk / "store").close()
    buffer = TensorDictReplayBuffer(storage=DiskStorage(20, tmp_path / "link"), batch_size=4)
    buffer.dumps(tmp_path / "dump")
    buffer.storage.set(torch.arange(3), numbered(range(20, 23)))
    for _ in range(2):
        buffer.loads(tmp_path / "dump")
        assert buffer[:]["x"].tolist() == list(range(20))
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in disk.iterdir()] == ["store"]


def test_what_was_indexed_before_other_steps_were_loaded_is_refused(tmp_path: Path) -> None:
    TensorDictReplayBuffer(storage=filled(tmp_path / "other", 20, 10), batch_size=4).dumps(tmp_path / "dump")
    buffer = TensorDictReplayBuffer(storage=filled(tmp_path / "store"), batch_size=4)
    before = [buffer.storage[:], buffer.storage[torch.arange(3)]]
    buffer.loads(tmp_path / "dump")
    for rows in before:
        with pytest.raises(db.InputError, match="index the storage again"):
            rows["x"]


def test_a_column_that_is_first_looked_at_in_inference_mode_is_kept(tmp_path: Path) -> None:
    storage = filled(tmp_path / "store")
    with torch.inference_mode():
        assert storage[:]["next", "done"].sum() == 3
    assert storage[:]["next", "done"].sum() == 3


def test_what_is_excluded_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = filled(tmp_path / "store")
    rows, read = storage[:], list[str]()

    real = db.ReplayBuffer.at

    def note(self: Any, *what: Any, **how: Any) -> Any:
        read.extend(how["columns"])
        return real(self, *what, **how)

    monkeypatch.setattr(db.ReplayBuffer, "at", note)
    assert {*rows.exclude("x", ("next", "done")).keys(True, True)} == {"y"}
    assert read == ["y"]
    assert rows.exclude("y", inplace=True) is rows
    assert {*rows.keys(True, True)} == {"x", ("next", "done")}


def replay(path: Path, size: int = 20, **options: Any) -> TensorDictReplayBuffer:
    """Return a replay buffer over a path."""
    return TensorDictReplayBuffer(storage=DiskStorage(size, path, **options), batch_size=4)


@pytest.mark.some(2)
@pytest.mark.parametrize("size", [200, 60])  # a ring that is not full, and one that others have gone around
@pytest.mark.parametrize("lanes", [0, 2])
@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("how", ["the same path", "dumps", "state_dict"])
def test_what_takes_over_goes_on_behind_the_steps_of_others(how: str, seen: bool, lanes: int, size: int, tmp_path: Path) -> None:
    """As an evaluator does whose trainer is gone: it loses none of the steps that were written after it was made."""
    options = {"ndim": 2} if lanes else {}

    def some(first: int, end: int) -> TensorDict:
        steps = numbered(range(first, end), lanes)
        return steps.transpose(0, 1) if lanes else steps

    train = replay(tmp_path / "store", size, **options)
    train.extend(some(0, 30))
    evaluates = replay(tmp_path / "store", size, **options)
    train.extend(some(30, 70))
    if seen:
        evaluates.storage.refresh()
    after = evaluates
    if how == "the same path":
        train.storage.close()
    else:
        after = replay(tmp_path / "other", size, **options)
        after.extend(some(0, 3))
        if how == "dumps":
            evaluates.dumps(tmp_path / "dump")
            after.loads(tmp_path / "dump")
        else:
            after.load_state_dict(evaluates.state_dict())
    if how == "the same path" and not seen:
        with pytest.raises(db.InputError, match="another process has written"):
            after.extend(some(70, 75))
    after.extend(some(70, 75))
    left, numbers = size // max(lanes, 1), after.storage[:]["x"]
    assert sorted((numbers[:, 0] if lanes else numbers).tolist()) == list(range(max(75 - left, 0), 75))
    train.storage.close()
    after.storage.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("how", ["pickle", "deepcopy", "dumps after close"])
def test_a_copy_of_a_reader_goes_on_behind_the_steps_of_others(how: str, tmp_path: Path) -> None:
    train = replay(tmp_path / "store", 200)
    train.extend(numbered(range(30)))
    evaluates = replay(tmp_path / "store", 200)
    pickled = pickle.dumps(evaluates)
    if how == "dumps after close":
        evaluates.storage.close()
    train.extend(numbered(range(30, 70)))
    train.storage.close()
    if how == "dumps after close":
        evaluates.dumps(tmp_path / "dump")
    else:
        evaluates = copy.deepcopy(evaluates) if how == "deepcopy" else pickle.loads(pickled)
    evaluates.extend(numbered(range(70, 75)))
    assert evaluates.storage[:]["x"].tolist() == list(range(75))
    evaluates.storage.close()


def test_who_only_reads_is_told_how_to_write(tmp_path: Path) -> None:
    filled(tmp_path / "store", steps=8).close()
    reader = DiskStorage(20, tmp_path / "store")
    with pytest.raises(db.errors.ReadOnlyError, match="open_to_write"):
        reader.reading().episodes.of(reader.steps(torch.arange(7))).set_tag("dropped")


def test_other_environments_than_before_are_told(tmp_path: Path) -> None:
    buffer = replay(tmp_path / "store", ndim=2)
    buffer.extend(numbered(range(5), lanes=3).transpose(0, 1))
    with pytest.raises(db.InputError, match="of 3 environments as in the first step"):
        buffer.extend(numbered(range(5), lanes=2).transpose(0, 1))
    buffer.storage.close()
    with pytest.raises(db.errors.SchemaError, match=r"holds up to 21 steps of 3 environments.*DiskStorage\(21, ndim=2\)"):
        DiskStorage(21, tmp_path / "store")


def test_a_storage_that_cannot_be_emptied_goes_on_behind_its_steps(tmp_path: Path) -> None:
    train = replay(tmp_path / "store")
    train.extend(numbered(range(10)))
    evaluates = replay(tmp_path / "store")
    with pytest.raises(db.LockedError):
        evaluates.empty()
    train.storage.close()
    evaluates.extend(numbered(range(10, 13)))
    assert evaluates.storage[:]["x"].tolist() == list(range(13))
    evaluates.storage.close()


def test_buffers_that_share_a_storage_begin_anew_where_one_empties_it(tmp_path: Path) -> None:
    one = replay(tmp_path / "store")
    other = TensorDictReplayBuffer(storage=one.storage, batch_size=4)
    other.extend(numbered(range(4)))
    one.empty()
    other.extend(numbered(range(20, 22)))
    assert one.storage[:]["x"].tolist() == [20, 21]
