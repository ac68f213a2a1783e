"""Stores that the first version of format 1 wrote, read by the version at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import WriterLock
from tests.golden.make import BOOT, HERE, STORES, Contents, Golden, Step, archive_of, columns_of, contents, finish, unpack
from tests.support.workloads import boot

WHOLE = [name for name, store in STORES.items() if not store.damage]


def flat(batch: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield the columns of a batch by their paths."""
    for name, value in batch.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value.numpy()


def compare(
    buffer: db.ReplayBuffer,
    store: Golden,
    expected: Contents,
    lost: dict[int, tuple[int, ...]] | None = None,
    power_lost: bool = False,
) -> None:
    """Read every step, and compare all that is known of it. A power loss has cut off the episodes that ran."""
    steps = [s for of in expected.steps for s in of if s.position not in (lost or {}).get(s.stream, ())]
    there = buffer.steps()
    assert there.tolist() == [step.position * store.n_envs + step.stream for step in steps]
    found = dict(flat(buffer.at(there)))
    for name, values in columns_of(store, steps).items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    if any(action.name == "write" for action in store.actions):
        np.testing.assert_array_equal(found["value"], [step.value for step in steps])
    if any(step.tag for step in steps):
        names = np.array(["", *buffer.episodes.tag_names])
        assert names[found["tag"].astype(int)].tolist() == [step.tag for step in steps]
    if lost is None:
        compare_episodes(buffer, store, steps, power_lost)


def compare_episodes(buffer: db.ReplayBuffer, store: Golden, steps: list[Step], power_lost: bool) -> None:
    """Compare what is told of episodes, and each as a whole, its last observation included."""
    runs = dict[tuple[int, int], list[Step]]()
    for step in steps:
        runs.setdefault((step.stream, step.start), []).append(step)
    episodes = buffer.episodes
    assert episodes.stream.tolist() == [stream for stream, _ in runs]
    assert episodes.length.tolist() == [len(run) for run in runs.values()]
    endings = [run[0].ending for run in runs.values()]
    assert episodes.ending.tolist() == ["cut off" if power_lost and ending == "running" else ending for ending in endings]
    assert episodes.tag.tolist() == [run[0].tag for run in runs.values()]
    for episode, run in zip(buffer.episodes.read(), runs.values(), strict=True):
        found, expected = dict(flat(episode)), columns_of(store, run)
        for path in store.columns:
            if path.startswith("obs"):
                np.testing.assert_array_equal(found[path][-1], expected[f"next_{path}"][-1])
                np.testing.assert_array_equal(found[path][:-1], expected[path])


def require_ok(report: db.Report) -> None:
    assert report.ok, str(report)


def go_on(buffer: db.ReplayBuffer, store: Golden, expected: Contents) -> None:
    """Record one more episode, and see that it is there beside the others."""
    buffer.cut_off()
    before, n = len(buffer), 6
    given = {
        name: values[:n]
        for name, values in columns_of(store, [step for step in expected.steps[0] if step.position % 2][:n]).items()
        if name != "steps"
    }
    nested: dict[str, Any] = {}
    for path, values in given.items():
        *parents, last = path.split("/")
        inner = nested
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = values
    nested["terminated"], nested["truncated"] = np.arange(n) == n - 1, np.zeros(n, bool)
    assert buffer.extend(**nested, env=0, new_episode=[True] + [False] * (n - 1)) == n
    if store.capacity is None:
        assert len(buffer) == before + n
    batch = dict(flat(buffer.at(buffer.steps(np.arange(n)[::-1]))))
    np.testing.assert_array_equal(batch["action"], given["action"])
    np.testing.assert_array_equal(batch["reward"], given["reward"])


@pytest.mark.some(8)
@pytest.mark.parametrize("number", [BOOT, BOOT + 1], ids=["the same boot", "another boot"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_golden_store_is_read_as_it_was_written(name: str, number: int, tmp_path: Path) -> None:
    """In another boot of the machine, one that was not closed is taken for what a power loss left."""
    store, expected, path = STORES[name], contents(STORES[name]), unpack(name, tmp_path)
    lost = number != BOOT and store.end != "closed"
    with boot(number):
        require_ok(db.check(path, progress=False))
        with db.ReplayBuffer(path, mode="r", threads=1) as reader:
            compare(reader, store, expected, power_lost=lost)
            require_ok(reader.check(progress=False))
            assert reader.metadata == store.metadata
            assert set(reader.copies.marks) == expected.marks.keys()
        for mark, there in expected.marks.items():
            with db.ReplayBuffer(path, mode="r", mark=mark, threads=1) as reader:
                compare(reader, store, there)
        require_ok(db.check(path, progress=False))


@pytest.mark.some(8)
@pytest.mark.parametrize("number", [BOOT, BOOT + 1], ids=["the same boot", "another boot"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_golden_store_is_written_to_and_read_again(name: str, number: int, tmp_path: Path) -> None:
    store, expected, path = STORES[name], contents(STORES[name]), unpack(name, tmp_path)
    lost = number != BOOT and store.end != "closed"
    with boot(number):
        with db.ReplayBuffer(path, mode="r+", threads=1) as buffer:
            compare(buffer, store, expected, power_lost=lost)
            require_ok(buffer.check(progress=False))
        with db.ReplayBuffer(path, mode="r+", threads=1) as buffer:  # which nothing was done to
            compare(buffer, store, expected, power_lost=lost)
            go_on(buffer, store, expected)
            buffer.flush(recompress=True)
        require_ok(db.check(path, progress=False))
        for mark, there in expected.marks.items():
            with db.ReplayBuffer(path, mode="r+", mark=mark, threads=1) as buffer:
                compare(buffer, store, there)
            require_ok(db.check(path, progress=False))


@pytest.mark.parametrize("name", ["closed", "ring"])
def test_the_script_makes_stores_that_are_read_in_the_same_way(name: str, tmp_path: Path) -> None:
    """What the script says was put in is what it puts in, also with the version at hand."""
    store, path = STORES[name], tmp_path / "store"
    with boot(BOOT):
        finish(store, path)
        with db.ReplayBuffer(path, mode="r", threads=1) as reader:
            compare(reader, store, contents(store))


def test_every_golden_store_has_an_archive_and_all_are_small() -> None:
    assert {archive_of(name).name for name in STORES} == {file.name for file in HERE.glob("*.tar.xz")}
    assert sum(file.stat().st_size for file in HERE.glob("*.tar.xz")) < 200_000


def test_a_golden_store_is_read_beside_a_writer_that_lives(tmp_path: Path) -> None:
    store, path = STORES["live"], unpack("live", tmp_path)
    lock = WriterLock(Files(path))
    try:
        with boot(BOOT), db.ReplayBuffer(path, mode="r", threads=1) as reader:
            compare(reader, store, contents(store))
            require_ok(reader.check(progress=False))
            with pytest.raises(db.LockedError):
                db.ReplayBuffer(path, mode="r+")
    finally:
        lock.release()


def test_of_a_damaged_golden_store_the_damage_is_found_and_the_rest_is_kept(tmp_path: Path) -> None:
    store, expected, path = STORES["damaged"], contents(STORES["damaged"]), unpack("damaged", tmp_path)
    with db.ReplayBuffer(path, mode="r", threads=1) as reader:
        lost = 0
        for step in reader.steps():
            try:
                found = dict(flat(reader.at([step])))
            except db.CorruptionError:
                lost += 1
                continue
            for name, values in columns_of(store, [s for s in expected.steps[0] if s.position == step]).items():
                np.testing.assert_array_equal(found[name], values, err_msg=name)
        assert lost
    report = db.check(path, progress=False)
    files = {str(problem.path.relative_to(path)) for problem in report.problems}
    assert files == {name for name, _ in store.damage}, str(report)
    assert db.check(path, repair=True, progress=False).repaired
    require_ok(db.check(path, progress=False))
    for step in expected.steps[0]:
        step.value = 0.0 if 16 <= step.position < 32 else step.value  # of the damaged segment
    for mode in ("r", "r+"):
        with db.ReplayBuffer(path, mode=mode, threads=1) as buffer:
            compare(buffer, store, expected, store.lost)
    with db.ReplayBuffer(path, mode="r+", threads=1) as buffer:
        go_on(buffer, store, expected)
    require_ok(db.check(path, progress=False))
