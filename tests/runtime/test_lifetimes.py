"""Maps, threads and descriptors: counted before a buffer is opened, and after it was closed, dropped, or could not be opened."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures.thread import _global_shutdown_lock
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.runtime.dropped import wait_for_closing
from diskbuffer.store.opening import open_store
from diskbuffer.store.system.files import Files

_COLUMNS = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64"), "picture": db.Column((64, 64), "uint8")}
_DROPPING = Path(__file__).parent / "dropping.py"


class Count:
    """What this process has of the files below a directory, and its threads of ours."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)

    def maps(self) -> int:
        return sum(self._root in line for line in Path("/proc/self/maps").read_text().splitlines())

    def descriptors(self) -> list[str]:
        found = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                name = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
            if name.startswith(self._root):
                found.append(name)
        return found

    @staticmethod
    def threads() -> list[str]:
        """Return our threads, once those that were told to end have had the time to."""
        until = time.monotonic() + 60
        while (found := [t.name for t in threading.enumerate() if t.name.startswith("diskbuffer")]) and time.monotonic() < until:
            time.sleep(0.002)
        return found

    def nothing(self) -> bool:
        wait_for_closing()
        for thread in threading.enumerate():
            if thread.name == "diskbuffer-close":
                thread.join()
        assert self.threads() == []
        assert self.maps() == 0
        assert self.descriptors() == []
        return True


@pytest.fixture
def count(tmp_path: Path) -> Iterator[Count]:
    """Count what there is, while the collector of garbage does nothing by itself."""
    gc.collect()
    gc.freeze()  # or each collection would look through all that was imported
    gc.disable()
    yield Count(tmp_path)
    gc.enable()
    gc.collect()


def filled(path: Path, steps: int = 200, **options: Any) -> db.ReplayBuffer:
    buffer = db.ReplayBuffer(path, 1000, columns=_COLUMNS, segment_rows=32, **options)
    pictures = np.zeros((steps, 64, 64), np.uint8)
    buffer.extend(np.zeros((steps + 1, 2), np.float32), np.zeros(steps, int), np.zeros(steps), picture=pictures)
    return buffer


def use(buffer: db.ReplayBuffer) -> None:
    buffer.sample(32)
    for _ in buffer.batches(64):
        pass


# Closing


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", ["alone", "reader", "one of several", "several", "mark"])
def test_close_gives_back_what_was_mapped(tmp_path: Path, count: Count, kind: str) -> None:
    path, options = tmp_path / "store", dict[str, Any]()
    if kind in ("one of several", "several"):
        options["writer"] = "a"
    buffer = filled(path, **options)
    buffer.columns.write("value", buffer.steps(), np.zeros(len(buffer))) if kind != "several" else None
    buffer.copies.mark("then") if kind == "mark" else None
    use(buffer)
    if kind in ("reader", "several", "mark"):
        buffer.close()
        buffer = db.ReplayBuffer(path, mode="r", mark="then" if kind == "mark" else None)
        use(buffer)
    assert count.maps() > 20
    buffer.close()
    assert count.maps() == 0
    assert count.threads() == []
    buffer.close()
    with pytest.raises(db.errors.ClosedError):
        buffer.sample(1)
    del buffer
    gc.collect()
    assert count.nothing()


def test_a_batch_that_another_thread_gathers_keeps_what_it_reads_until_it_is_done(tmp_path: Path, count: Count) -> None:
    buffer = filled(tmp_path / "store")
    expected = buffer.sample(64)["obs"]
    planned = buffer._drawing.source(db.Uniform(0), 64).begin(buffer._reader.pool.take).planned
    assert planned is not None
    buffer.close()
    assert count.maps() > 5
    assert planned.gather().batch()["obs"].shape == expected.shape
    del planned
    assert count.maps() == 0


def test_a_loop_over_a_loader_that_runs_while_its_buffer_is_closed_ends(tmp_path: Path, count: Count) -> None:
    buffer = filled(tmp_path / "store")
    loop = iter(buffer.loader(64))
    next(loop)
    buffer.close()
    with pytest.raises(db.errors.ClosedError):
        for _ in loop:
            pass
    del loop
    assert count.maps() == 0
    assert count.threads() == []


def test_stores_of_writers_that_were_removed_are_unmapped(tmp_path: Path, count: Count) -> None:
    for name in ("a", "b"):
        filled(tmp_path / "store", writer=name).close()
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        use(buffer)
        both = count.maps()
        shutil.rmtree(tmp_path / "store" / "b")
        buffer.refresh()
        assert len(buffer) == 200
        assert count.maps() == both // 2
        assert not [name for name in count.descriptors() if "/b" in name]
        use(buffer)
        filled(tmp_path / "store", writer="b").close()
        buffer.refresh()
        assert len(buffer) == 400
        use(buffer)
    gc.collect()
    del buffer
    gc.collect()
    assert count.nothing()


def test_a_writer_that_gives_up_what_others_left_unmaps_their_stores(tmp_path: Path, count: Count) -> None:
    filled(tmp_path / "store", 800, writer="gone").close()
    with filled(tmp_path / "store", 600, writer="alive"):
        assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if f"{tmp_path}/store/gone" in line]


# Openings that fail


class _FailingError(OSError):
    pass


class _Failing(Files):
    """Fail at one operation of all."""

    left = -1

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found) or name in ("below", "anew", "close", "unlock", "remove"):
            return found
        if _Failing.left == 0:
            _Failing.left = -1
            raise _FailingError(28, "No space left on device")
        if _Failing.left > 0:
            _Failing.left -= 1
        return found


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", ["new", "closed", "killed", "reader", "one of several"])
def test_an_opening_that_fails_leaves_nothing(
    tmp_path: Path, count: Count, kind: str, monkeypatch: pytest.MonkeyPatch, amount: Callable[[int, int], int]
) -> None:
    path, writer = tmp_path / "store", "a" if kind == "one of several" else None
    options: dict[str, Any] = {"mode": "r"} if kind == "reader" else {"capacity": 1000, "columns": _COLUMNS, "segment_rows": 32}
    if kind != "new":
        buffer = filled(path, writer=writer)
        buffer._closing.abandon() if kind == "killed" else buffer.close()
        del buffer
    for module in ("store.system.files", "store.opening", "opening.opening", "writers.joining"):
        monkeypatch.setattr(f"diskbuffer.{module}.Files", _Failing)
    failures = 0
    for n in range(0, 400, amount(11, 1)):
        _Failing.left = n
        try:
            db.ReplayBuffer(path, writer=writer, **options).close()
        except (OSError, db.DiskBufferError):
            failures += 1
        gc.collect()
        assert count.nothing(), n
        if _Failing.left > 0:
            break
        if kind == "new":
            shutil.rmtree(path, ignore_errors=True)
    _Failing.left = -1
    assert failures > 5


@pytest.mark.some(1)
@pytest.mark.parametrize("where", ["buffer.Recorder", "buffer.StreamLog", "buffer.DerivedColumns", "buffer.join_limiter"])
def test_an_opening_that_fails_after_its_threads_began_ends_them(
    tmp_path: Path, count: Count, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "store", 500)._closing.abandon()  # segments wait to be sealed

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(f"diskbuffer.{where}", fail)
        for _ in range(3):
            with pytest.raises(MemoryError):
                db.ReplayBuffer(tmp_path / "store", limiter=db.SampleToInsertRatio(1.0, min_size=1))
    gc.collect()
    assert count.nothing()
    db.ReplayBuffer(tmp_path / "store").close()


# Dropping


def test_a_dropped_buffer_gives_back_everything(tmp_path: Path, count: Count) -> None:
    buffer = filled(tmp_path / "store")
    use(buffer)
    ring: list[Any] = [buffer]
    ring.append(ring)
    del buffer
    assert count.maps() > 0
    del ring
    gc.collect()
    assert count.nothing()
    with db.ReplayBuffer(tmp_path / "store") as again:
        assert len(again) == 200


def test_finalizers_of_what_goes_with_a_buffer_use_and_close_it(tmp_path: Path, count: Count) -> None:
    done = []

    class Agent:
        def __init__(self, buffer: db.ReplayBuffer) -> None:
            self.buffer, self.me = buffer, self

        def __del__(self) -> None:
            try:  # another thread may have closed it by now
                done.append(str(self.buffer.sample(4)["steps"]))
            except db.errors.ClosedError as error:
                done.append(str(error))
            self.buffer.close()

    agent = Agent(filled(tmp_path / "store"))
    del agent
    gc.collect()
    assert len(done) == 1
    assert count.nothing()


def test_garbage_is_collected_while_a_lock_of_the_standard_library_is_held(tmp_path: Path, count: Count) -> None:
    ring: list[Any] = [filled(tmp_path / "store")]
    ring.append(ring)
    del ring
    with _global_shutdown_lock:  # as `ThreadPoolExecutor.submit` holds it, which closing calls, too
        gc.collect()
    with db.ReplayBuffer(tmp_path / "store") as again:  # which waits for the other to be closed
        assert len(again) == 200
    del again
    gc.collect()
    assert count.nothing()


def test_a_store_that_was_opened_and_dropped_is_unmapped_without_the_collector(tmp_path: Path, count: Count) -> None:
    filled(tmp_path / "store").close()
    store = open_store(tmp_path / "store", writable=False)
    store.values("reward", 0)
    assert count.maps() > 5
    del store
    assert count.maps() == 0


_CRASH = """
import gc, sys
import numpy as np
import diskbuffer as db

class Agent: pass

columns = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}
sampler = db.Prioritized()
buffer = db.ReplayBuffer(sys.argv[1], columns=columns)
buffer.extend(np.zeros((6, 2), np.float32), np.zeros(5, int), np.zeros(5))
buffer.columns.write("value", buffer.steps(), np.ones(5))
buffer.sample(4, sampler)
sampler.update(buffer.steps(), np.ones(5))
agent = buffer
del buffer
for _ in range(12):  # so that a collection puts the maps, which the sampler leads to, before the buffer
    outer = Agent()
    outer.inner, agent = agent, outer
outer.sampler, outer.me = sampler, outer
del outer
gc.collect()
del agent, sampler
gc.collect()
assert len(db.ReplayBuffer(sys.argv[1], mode="r")) == 5
"""


@pytest.mark.nightly
def test_a_dropped_buffer_whose_maps_the_collector_finalizes_first_does_not_crash(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-X", "faulthandler", "-c", _CRASH, tmp_path / "store"], check=True)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_random_operations_on_buffers_that_are_dropped(tmp_path: Path, seed: int) -> None:
    subprocess.run([sys.executable, _DROPPING, str(seed), "150", tmp_path], check=True)


# Copies of what belongs to a buffer


@pytest.mark.some(3)
@pytest.mark.parametrize("part", ["episodes", "columns", "copies"])
@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickle.dumps])
def test_parts_of_a_buffer_are_not_copied_and_nothing_it_has_open_is_closed(
    part: str, copied: Callable[[Any], Any], tmp_path: Path
) -> None:
    with filled(tmp_path / "one", 60) as buffer:
        with pytest.raises(db.InputError, match="copy or pickle the buffer"):
            copied({"kept": getattr(buffer, part)} if copied is not copy.copy else getattr(buffer, part))
        with pytest.raises(TypeError, match="cannot be copied"):
            copied(buffer._store.files)
        with filled(tmp_path / "two", 60) as other:
            buffer.cut_off()
            assert buffer.episodes.set_tag("mine") == 1
            buffer.clear()
            buffer.flush()
            assert other.episodes.tag_names == ()
    for name in ("one", "two"):
        assert db.check(tmp_path / name, progress=False).ok
    with db.ReplayBuffer(tmp_path / "two", mode="r") as other:
        assert len(other) == 60


def test_an_episode_keeps_its_buffer_open(tmp_path: Path) -> None:
    filled(tmp_path / "store", 60).close()
    episode = db.ReplayBuffer(tmp_path / "store", mode="r").episodes[0]
    assert len(episode.frames("obs")) == episode.length + 1
