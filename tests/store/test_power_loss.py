"""After a power loss a store is what it was at the last flush, less what was evicted since; and it goes on from there."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.recording.flush import Flush
from diskbuffer.store.system.files import Files
from tests.support.simulated_disk import Kind, build
from tests.support.tracing import Trace
from tests.support.workloads import Gate, boot

COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}


def opened(path: Path, capacity: int | None = None, **options: Any) -> db.ReplayBuffer:
    return db.ReplayBuffer(path, capacity, columns=COLUMNS, segment_rows=8, threads=1, **options)


def extend(buffer: db.ReplayBuffer, first: int, steps: int, **options: Any) -> None:
    """Add a trajectory whose observations count on from `first`."""
    obs = np.arange(first, first + steps + 1)
    buffer.extend(obs=obs[:-1], next_obs=obs[1:], action=obs[:-1], reward=np.ones(steps), **options)


def actions(buffer: db.ReplayBuffer) -> list[int]:
    found: list[int] = buffer.at(buffer.steps())["action"].tolist() if len(buffer) else []
    return found


def flush_and_go_on(path: Path, *, steps: int) -> db.ReplayBuffer:
    """Use a new store: 20 steps that are flushed, and some that are not."""
    buffer = opened(path)
    extend(buffer, 0, 20)
    buffer.flush()
    extend(buffer, 20, steps)
    return buffer


def lose_power(
    base: Path, use: Callable[[Path], db.ReplayBuffer], to: Path, kind: Kind = "nothing", seed: int = 0, number: int = 1
) -> None:
    """Use a store below `base`, and build below `to` what a power loss leaves of it: nothing that was not synced, by default."""
    base.mkdir(exist_ok=True)
    to.mkdir()
    with boot(number), Trace(base) as trace, Gate(free=False):
        buffer = use(base / "store")
        disk = trace.disk(trace.look("power loss"))
        buffer.close()
    build(disk.crash(kind, np.random.default_rng(seed)), to)


@pytest.mark.parametrize("kind", ["nothing", "everything", "random"])
@pytest.mark.parametrize("steps", [3, 50])
def test_a_store_goes_back_to_the_last_flush_and_on_from_there(steps: int, kind: Kind, tmp_path: Path) -> None:
    use = partial(flush_and_go_on, steps=steps)

    def go_on(path: Path) -> db.ReplayBuffer:
        buffer = opened(path)
        assert actions(buffer) == list(range(20))
        extend(buffer, 1000, 30)
        buffer.flush()
        extend(buffer, 2000, 30)
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after", kind)
    with boot(2), opened(tmp_path / "after" / "store", mode="r") as reader:
        assert actions(reader) == list(range(20))
        assert reader.episodes.ending.tolist() == ["cut off"]
        found = reader.stats()["added"]
    with boot(2), opened(tmp_path / "after" / "store") as buffer:
        assert (actions(buffer), buffer.stats()["added"]) == (list(range(20)), found)
        assert buffer.check(progress=False).ok
        extend(buffer, 20, 30)  # from the observation that the last step led to
        assert actions(buffer) == list(range(50))
        assert buffer.episodes.length.tolist() == [20, 30]
    with boot(2), opened(tmp_path / "after" / "store") as buffer:
        assert actions(buffer) == list(range(50))
    lose_power(tmp_path / "again", use, tmp_path / "once", kind)
    lose_power(tmp_path / "once", go_on, tmp_path / "twice", kind, number=2)
    with boot(3), opened(tmp_path / "twice" / "store") as buffer:
        assert actions(buffer) == [*range(20), *range(1000, 1030)]
        assert buffer.check(progress=False).ok


@pytest.mark.some(2)
@pytest.mark.parametrize("seed", range(6))
def test_of_a_ring_there_is_what_was_flushed_and_not_evicted_since(seed: int, tmp_path: Path) -> None:
    flushed = list[int]()

    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path, 100)
        extend(buffer, 0, 200)
        buffer.flush()
        flushed.extend(actions(buffer))
        for first in range(200, 200 + 60 * (seed % 3), 30):
            extend(buffer, first, 30)
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after", "random" if seed else "nothing", seed)
    store = tmp_path / "after" / "store"
    with boot(2), opened(store, 100, mode="r") as reader:
        found = actions(reader), reader.stats()["added"]
    with boot(2), opened(store, 100) as buffer:
        assert (actions(buffer), buffer.stats()["added"]) == found
        left = actions(buffer)
        assert left == flushed[len(flushed) - len(left) :]
        assert len(left) >= 200 - 60 * (seed % 3) - 100
        extend(buffer, 1000, 30)
        assert actions(buffer)[-30:] == list(range(1000, 1030))
        for _ in range(10):
            extend(buffer, 2000, 30)
        assert len(buffer) <= 100 + 2 * 8
        assert buffer.check(progress=False).ok


def test_steps_that_were_cleared_and_lost_make_room_for_others(tmp_path: Path) -> None:
    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path)
        extend(buffer, 0, 100)
        buffer.clear()
        extend(buffer, 100, 10)
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after")
    for mode in ("r", "a"):
        with boot(2), opened(tmp_path / "after" / "store", mode=mode) as buffer:
            assert len(buffer) == 0
    with boot(2), opened(tmp_path / "after" / "store") as buffer:
        extend(buffer, 1000, 20)
        assert actions(buffer) == list(range(1000, 1020))
        assert buffer.check(progress=False).ok


@pytest.mark.parametrize("kind", ["nothing", "everything", "random", "data only"])
@pytest.mark.parametrize("capacity", [None, 60])
def test_a_clear_since_the_last_flush_is_undone_with_all_that_came_later(
    capacity: int | None, kind: Kind, tmp_path: Path
) -> None:
    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path, capacity)
        extend(buffer, 0, 30)
        buffer.clear()
        extend(buffer, 100, 40)
        buffer.flush()
        for first in (200, 300):
            buffer.clear()
            extend(buffer, first, 25)
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after", kind)
    words = tmp_path / "after" / "store" / "_segments" / "cleared" / "c.0.0"
    if kind == "random":  # of many environments, only some sectors may be there
        words.write_bytes(words.read_bytes()[:16] + b"\1" * 8 + words.read_bytes()[24:])
    for mode in ("r", "a", "a"):
        with boot(2), opened(tmp_path / "after" / "store", capacity, mode=mode) as buffer:
            assert actions(buffer) == list(range(100, 140))
            assert mode == "r" or buffer.check(progress=False).ok
    with boot(2), opened(tmp_path / "after" / "store", capacity) as buffer:
        buffer.clear()
        extend(buffer, 400, 10)
    with boot(3), opened(tmp_path / "after" / "store", capacity) as buffer:  # closed in between
        assert actions(buffer) == list(range(400, 410))


@pytest.mark.parametrize("kind", ["metadata only", "everything", "nothing"])
def test_a_learners_values_are_those_of_the_steps_that_are_there(kind: Kind, tmp_path: Path) -> None:
    def use(path: Path) -> db.ReplayBuffer:
        writer = opened(path, 1000, writer="one")
        extend(writer, 300, 50)
        with db.ReplayBuffer(path, mode="r") as learner:
            steps = learner.steps()
            learner.columns.write("value", steps, np.arange(1, 1 + len(steps), dtype=np.float32))
        return writer

    path = tmp_path / "before" / "store"
    with opened(path, 1000, writer="one") as writer:
        extend(writer, 0, 300)
        with db.ReplayBuffer(path, mode="r") as learner:
            learner.columns.write("value", learner.steps(), np.ones(len(learner), np.float32))
    lose_power(tmp_path / "before", use, tmp_path / "after", kind)
    with boot(2):
        writer = opened(tmp_path / "after" / "store", 1000, writer="one")
        assert actions(writer) == list(range(300))
        extend(writer, 5000, 60)
        with db.ReplayBuffer(tmp_path / "after" / "store", mode="r") as learner:
            values = learner.at(learner.steps())["value"].numpy()
            assert (values[:300] == np.arange(300) + 1).all() or (values[:300] == 1).all()  # written again, or not
            assert not values[300:].any()
        writer.close()


def test_columns_that_were_written_have_no_values_of_lost_steps(tmp_path: Path) -> None:
    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path)
        extend(buffer, 0, 20)
        buffer.cut_off()
        buffer.flush()
        extend(buffer, 20, 30)
        buffer.columns.write("value", buffer.steps(), np.arange(1, 51, dtype=np.float32))
        buffer.episodes[:1].set_tag("good")
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after", "everything")
    with boot(2), opened(tmp_path / "after" / "store") as buffer:
        extend(buffer, 1000, 30)
        batch = buffer.at(buffer.steps())
        assert batch["value"].tolist() == [*range(1, 21), *[0] * 30]
        assert buffer.episodes.tag.tolist() == ["good", ""]


def test_a_repair_goes_back_too(tmp_path: Path) -> None:
    lose_power(tmp_path / "before", partial(flush_and_go_on, steps=30), tmp_path / "after")
    store = tmp_path / "after" / "store"
    with boot(2):
        assert db.check(store, repair=True, progress=False).dropped == 0
        assert db.check(store, progress=False).ok
        with opened(store) as buffer:
            assert actions(buffer) == list(range(20))
            extend(buffer, 1000, 30)
            assert actions(buffer) == [*range(20), *range(1000, 1030)]


FRAMES = np.random.default_rng(0).integers(0, 256, (120, 40, 40), np.uint8)
PICTURES = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}


def add_pictures(buffer: db.ReplayBuffer, first: int, n: int) -> None:
    for t in range(first, first + n):
        buffer.add(FRAMES[t], t, 1.0, FRAMES[t + 1], False, False)


def flush_pictures_and_go_on(path: Path) -> db.ReplayBuffer:
    """Use a new store: 21 steps that are flushed, and more than the tail holds that are not."""
    buffer = db.ReplayBuffer(path, columns=PICTURES, segment_rows=16, threads=1)
    add_pictures(buffer, 0, 21)
    buffer.flush()
    add_pictures(buffer, 21, 40)
    return buffer


def pictures_of(buffer: db.ReplayBuffer) -> list[int]:
    """Return the numbers of a store's steps, whose pictures are compared."""
    batch = buffer.at(buffer.steps())
    assert (batch["obs"].numpy() == FRAMES[batch["action"].numpy()]).all()
    found: list[int] = batch["action"].tolist()
    return found


@pytest.mark.parametrize("kind", ["nothing", "everything", "random", "data only", "metadata only"])
def test_a_store_of_pictures_goes_on_after_a_power_loss(kind: Kind, tmp_path: Path) -> None:
    lose_power(tmp_path / "before", flush_pictures_and_go_on, tmp_path / "after", kind)
    for n, numbers in enumerate(([*range(21)], [*range(21), *range(65, 75)])):
        for mode in ("r", "a"):
            with boot(2), db.ReplayBuffer(tmp_path / "after" / "store", mode=mode, threads=1) as buffer:
                assert pictures_of(buffer) == numbers
                if mode == "a":
                    add_pictures(buffer, 65 + 20 * n, 10)
                    assert buffer.check(progress=False).ok


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("is_gone", [True, False])
def test_a_damaged_copy_of_the_tail_is_told_and_repaired(is_closed: bool, is_gone: bool, tmp_path: Path) -> None:
    path = tmp_path / "after" / "store"
    if is_closed:
        with boot(1):
            flush_pictures_and_go_on(path).close()
    else:
        lose_power(tmp_path / "before", flush_pictures_and_go_on, tmp_path / "after", "everything")
    (copied,) = path.glob("_segments/length/tail.*")
    data = bytearray(copied.read_bytes())
    data[40] ^= 1
    everything = [*range(61)] if is_closed else [*range(21)]
    copied.unlink()
    if not is_gone:
        copied.write_bytes(data)
    with boot(2):
        if is_closed:  # all is in the columns
            with db.ReplayBuffer(path, mode="r", threads=1) as buffer:
                assert pictures_of(buffer) == everything
        with pytest.raises(db.CorruptionError, match="copy of the tail that the last flush made, is damaged"):
            db.ReplayBuffer(path, mode="a", threads=1)
        assert copied.name in [problem.path.name for problem in db.check(path, progress=False).problems]
        assert db.check(path, repair=True, progress=False).repaired
        assert db.check(path, progress=False).ok
        with db.ReplayBuffer(path, threads=1) as buffer:
            assert pictures_of(buffer) == everything  # from the tail, or a shard that was written since


@pytest.mark.parametrize("kind", ["nothing", "everything", "random"])
def test_a_ring_that_keeps_everything_from_now_on_opens(kind: Kind, tmp_path: Path) -> None:
    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path, 40)
        extend(buffer, 0, 40)
        buffer.flush()
        extend(buffer, 40, 30)
        buffer.resize(None)
        extend(buffer, 70, 5)
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after", kind)
    for mode in ("r", "a"):
        with boot(2), opened(tmp_path / "after" / "store", mode=mode) as buffer:
            left = actions(buffer)
            assert left == list(range(40 - len(left), 40))
            assert len(left) >= 40 - 30 - 8
    with boot(3), opened(tmp_path / "after" / "store") as buffer:
        assert buffer.check(progress=False).ok


@pytest.mark.parametrize("room", [True, False], ids=["room for a note", "full"])
def test_what_a_clear_gave_back_on_a_full_disk_is_not_missed(room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, remove, removed = Files.create, Files.remove, list[str]()

    def create_or_fail(files: Files, name: str, *args: Any, **options: Any) -> int:
        if not removed and not (room and "state.json" in name):
            raise OSError(errno.ENOSPC, "the disk is full")
        return create(files, name, *args, **options)

    def remove_and_note(files: Files, name: str) -> None:
        removed.append(name)
        remove(files, name)

    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path)
        extend(buffer, 0, 40)
        buffer.flush()
        with monkeypatch.context() as patch:
            patch.setattr(Files, "create", create_or_fail)
            patch.setattr(Files, "remove", remove_and_note)
            patch.setattr(Files, "free_bytes", lambda _: 0)
            patch.setattr(Flush, "sync", _full)
            buffer.clear()
        assert removed
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after", "everything")
    for mode in ("r", "a"):
        with boot(2), opened(tmp_path / "after" / "store", mode=mode) as buffer:
            assert actions(buffer) == []


def _full(_: Flush) -> None:
    raise OSError(errno.ENOSPC, "the disk is full")


def test_the_first_step_after_a_power_loss_is_no_reset(tmp_path: Path) -> None:
    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path, autoreset="next_step")
        for _ in range(5):
            buffer.add(0, 0, 0.0, 0, False, False)  # as an agent that walks into a wall
        buffer.flush()
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after")
    with boot(2), opened(tmp_path / "after" / "store") as buffer:
        assert buffer.add(0, 0, 0.0, 0, False, False) == 1
        assert len(buffer) == 6


def change_entry(store: Path, slot: int, change: Callable[[int], int]) -> None:
    """Change what the segment table has for the length of a slot."""
    words = np.memmap(store / "_segments" / "length" / "c.0.0", np.uint64, "r+")
    words[slot] = change(int(words[slot]))
    words.flush()


@pytest.mark.parametrize("capacity", [None, 1000])
@pytest.mark.parametrize("slot", [2, 4])
def test_a_damaged_entry_of_what_was_flushed_is_told_and_repaired(slot: int, capacity: int | None, tmp_path: Path) -> None:
    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path, capacity)
        extend(buffer, 0, 36)
        buffer.flush()
        extend(buffer, 36, 50)
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after", "everything")
    store = tmp_path / "after" / "store"
    change_entry(store, slot, lambda word: word ^ 1 << 40)  # a bit of its hash
    for mode in ("r", "a"):
        with boot(2), pytest.raises(db.CorruptionError, match="were on the disk, and the segment table does not have them"):
            opened(store, mode=mode)
    with boot(2):
        assert [str(problem) for problem in db.check(store, progress=False).problems] != []
        assert db.check(store, repair=True, progress=False).dropped == 0
        assert db.check(store, progress=False).ok
    with boot(2), opened(store) as buffer:
        assert actions(buffer) == list(range(36))


def test_where_the_newest_segment_was_evicted_nothing_of_its_stream_is_left(tmp_path: Path) -> None:
    """An entry that is empty got to the disk, and those before it did not: what is left has no other rows in their place."""

    def use(path: Path) -> db.ReplayBuffer:
        buffer = db.ReplayBuffer(path, 10_000, columns=PICTURES, segment_rows=16, threads=1)
        add_pictures(buffer, 0, 36)
        buffer.flush()
        add_pictures(buffer, 36, 20)
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after", "everything")
    store = tmp_path / "after" / "store"
    slot = int(np.flatnonzero(np.fromfile(store / "_segments" / "first_row" / "c.0", np.int64) == 32)[0])
    change_entry(store, slot, lambda _: 0)
    for mode in ("r", "a"):
        with boot(2), db.ReplayBuffer(store, mode=mode) as buffer:
            assert len(buffer) == 0
    with boot(3), db.ReplayBuffer(store) as buffer:
        add_pictures(buffer, 30, 20)
        assert pictures_of(buffer) == list(range(30, 50))
        assert buffer.check(progress=False).ok


@pytest.mark.parametrize("repaired", [False, True])
def test_checksums_of_priorities_are_known_again(repaired: bool, tmp_path: Path) -> None:
    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path)
        extend(buffer, 0, 36)
        sampler = db.Prioritized(seed=0)
        sampler.update(buffer.sample(200, sampler)["steps"], np.ones(200))
        buffer.flush()
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after", "everything")
    store = tmp_path / "after" / "store"
    with boot(2):
        if repaired:
            db.check(store, repair=True, progress=False)
        else:
            opened(store).close()
    with boot(2), opened(store, mode="r") as buffer:
        table = buffer._store.table
        noted = table.checksums("priority")[table.column("length") > 0]
        assert len(noted) == 5
        assert (noted > 1).all()
