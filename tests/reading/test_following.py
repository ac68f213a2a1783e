"""Readers beside a writer: what a refresh has added to their index is what all of it read anew is."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.index.fields import ENDED, EPISODES, FLOOR, HEAD, LOW, PREFIXES, SEGMENTS
from diskbuffer.index.index import Index
from diskbuffer.index.streams import Streams
from diskbuffer.reading import follow_index, restore_index
from diskbuffer.reading.restore_index import read_index
from diskbuffer.store.following import Following
from diskbuffer.store.segments.table import SegmentTable
from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import STREAMS
from diskbuffer.writers.members import Member
from tests import amounts
from tests.amounts import examples
from tests.store.test_snapshots import die_at
from tests.support.experience import Experience, Feeder
from tests.support.writers import Writers

Array = np.ndarray[Any, Any]
SHAPES = {"flat": (2,), "packed": (36, 32)}


def told(index: Streams) -> list[Any]:
    """Return every field of an index, as numbers and lists."""
    found: list[Any] = [index.table[:, [HEAD, ENDED, LOW, FLOOR, EPISODES, SEGMENTS, PREFIXES]].tolist()]
    for stream in range(len(index.table)):
        prefixes = index._prefixes[stream].values.reshape(-1, 2).copy()
        prefixes[:, 1] = np.maximum(prefixes[:, 1], index.table[stream, LOW] - 1)  # what is gone in part began there or before
        lists = [index.slots(stream), index.starts(stream), prefixes]
        found.append([values.tolist() for values in lists])
        found.append([index.first_step(stream), index.added_to(stream)])
    return [*found, index._steps_offset.tolist(), index.begins.tolist()]


def read_anew(reader: db.ReplayBuffer) -> Index:
    """Return the index of a reader's store, all of it read."""
    store = reader._store
    with store.lock:
        index = read_index(store, reader.frame_stack - 1, Index)
        index.begin_at(store.begins)
    return index


def assert_right(reader: db.ReplayBuffer, writer: db.ReplayBuffer | None = None) -> None:
    """Compare a reader that was just refreshed with its store, and what it samples with what the writer has."""
    assert told(reader._reader.index) == told(read_anew(reader))
    if writer is None:
        return
    if reader.frame_stack == writer.frame_stack:
        np.testing.assert_array_equal(reader.steps(), writer.steps())
    samplers: list[db.Sampler] = [
        db.Uniform(1),
        db.Uniform(1, n_step=3),
        db.Uniform(1, replace=False),
        db.Slices(2, 1),
        db.Slices(3, 1, strict=False),
        db.Slices(3, 1, crossing=True),
    ]
    for sampler in samplers:
        try:
            batch = reader.sample(8, sampler)
        except db.errors.EmptyBufferError:
            continue
        names = batch["steps"].reshape(-1)
        single = type(sampler) is db.Uniform and sampler.form == db.Uniform().form
        if single and reader.frame_stack == writer.frame_stack:
            for name, values in writer.at(names).items():
                np.testing.assert_array_equal(batch[name], values, err_msg=name)
    if len(reader):
        listed = [names.tolist() for names in (batch["steps"] for batch in reader.batches(16, threads=1))]
        assert sorted(itertools.chain(*listed)) == sorted(reader.steps().tolist())
    episodes = reader.episodes
    assert episodes.length.sum() == len(reader)


class World:
    """A store that somebody writes to, opened and closed and killed, and readers beside it."""

    def __init__(self, path: Path, envs: int, stack: int, shape: tuple[int, ...], seed: int, **options: Any) -> None:
        self.path, self.envs, self.stack, self.shape = path, envs, stack, shape
        self.rng, self.made = np.random.default_rng(seed), 0
        self.frames = [self.reset() for _ in range(envs)]
        columns = {"obs": db.Column(shape, "uint8"), "action": db.Column((), "int64")}
        create = {
            "columns": columns,
            "n_envs": envs,
            "autoreset": "next_step",
            "frame_stack": stack,
            "segment_rows": 8,
            **options,
        }
        db.ReplayBuffer(path, threads=1, **create).close()
        self.writer: db.ReplayBuffer | None = self.opened()
        self.readers = [db.ReplayBuffer(path, mode="r", threads=1)]
        self.readers += [db.ReplayBuffer(path, mode="r", threads=1, frame_stack=4 - stack)]

    def opened(self) -> db.ReplayBuffer:
        return db.ReplayBuffer(self.path, threads=1, seed=0)

    def frame(self) -> Array:
        self.made += 1
        values = np.zeros(self.shape, np.uint8)
        values.flat[:2] = self.made % 251 + 1, self.made // 251 + 1
        return values

    def reset(self) -> deque[Array]:
        """Begin an episode, by turns with a stack of different frames, as one has that was played for a while before."""
        first = self.frame()
        different = self.stack > 1 and self.rng.random() < 0.5
        return deque([self.frame() if different else first for _ in range(self.stack)], maxlen=self.stack)

    def look(self, env: int) -> Array:
        return np.stack(self.frames[env]) if self.stack > 1 else self.frames[env][0]

    # What a writer does

    def add(self, buffer: db.ReplayBuffer, times: int = 0) -> None:
        for _ in range(times or int(self.rng.integers(1, 12))):
            if self.rng.random() < 0.05:
                env = int(self.rng.integers(self.envs))
                self.frames[env] = self.reset()  # which cuts an episode off
            obs = np.stack([self.look(env) for env in range(self.envs)])
            for env in range(self.envs):
                self.frames[env].append(self.frame())
            after = np.stack([self.look(env) for env in range(self.envs)])
            terminated, truncated = self.rng.random((2, self.envs)) < 0.1
            buffer.add(obs, np.arange(self.envs) + self.made, np.ones(self.envs), after, terminated, truncated)
            for env in np.flatnonzero(terminated | truncated).tolist():
                self.frames[env] = self.reset()

    def extend(self, buffer: db.ReplayBuffer) -> None:
        env, n = int(self.rng.integers(self.envs)), int(self.rng.integers(1, 30))
        obs = np.stack([self.frame() for _ in range(n + 1)])
        ends = self.rng.random(n) < 0.15
        ends[-1] |= bool(self.rng.integers(2))
        obs, after = obs[:-1], obs[1:]
        if self.stack > 1:
            obs, after = (np.stack([some] * self.stack, axis=1) for some in (obs, after))
            for t in range(n):
                first = t == 0 or ends[t - 1]
                obs[t] = np.stack([obs[t, -1]] * self.stack) if first else after[t - 1]
                after[t] = np.concatenate([obs[t, 1:], after[t, -1:]])
        buffer.extend(obs, np.arange(n), np.ones(n), after, ends, env=env)
        self.frames[env] = self.reset()

    def cut_off(self, buffer: db.ReplayBuffer) -> None:
        env = int(self.rng.integers(self.envs))
        buffer.cut_off(env)
        if self.rng.random() < 0.5:
            self.frames[env] = self.reset()

    def clear(self, buffer: db.ReplayBuffer) -> None:
        buffer.clear()

    def seal(self, buffer: db.ReplayBuffer) -> None:
        buffer.flush(recompress=True)

    def flush(self, buffer: db.ReplayBuffer) -> None:
        buffer.flush()

    def write(self, buffer: db.ReplayBuffer) -> None:
        steps = self.rng.permutation(buffer.steps())[:20]
        if len(steps):
            buffer.columns.write("value", steps, steps * 2.0)
        over = buffer.episodes[buffer.episodes.ending != "running"]
        if len(over):
            over[:1].set_tag(f"tag {len(over) % 3}")

    def remove_column(self, buffer: db.ReplayBuffer) -> None:
        if "value" in buffer.columns.derived:
            buffer.columns.remove("value")

    def resize(self, buffer: db.ReplayBuffer) -> None:
        buffer.resize(int(self.rng.choice([20, 60, 200])))

    def mark(self, buffer: db.ReplayBuffer) -> None:
        buffer.copies.mark("one", replace=True)

    # What becomes of it

    def reopen(self, buffer: db.ReplayBuffer) -> None:
        buffer.close()
        self.writer = None
        if self.rng.random() < 0.3:
            self.refresh()
        self.writer = self.opened()

    def die(self, buffer: db.ReplayBuffer) -> None:
        """Have a writer in another process die at any of its operations, and maybe the machine with it."""
        buffer.close()
        self.writer = None

        def work() -> None:
            other = self.opened()
            for call in (self.add, self.extend, self.cut_off, self.clear, self.add, self.seal, self.add):
                call(other)
            os._exit(9)  # without closing

        die_at(int(self.rng.integers(1, 200)), work)
        self.made += 500
        self.frames = [self.reset() for _ in range(self.envs)]
        if self.rng.random() < 0.7:
            self.refresh()
        if self.rng.random() < 0.3:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Files, "boot_id", lambda self: "another")
                with self.looked_at_while_mended():
                    self.opened().close()
        with self.looked_at_while_mended():
            self.writer = self.opened()

    def repair(self, buffer: db.ReplayBuffer) -> None:
        """Damage a row of any segment, and have it repaired."""
        buffer.close()
        self.writer = None
        files = sorted(self.path.glob("action/c.*"))
        if files:
            file = files[int(self.rng.integers(len(files)))]
            contents = bytearray(file.read_bytes())
            contents[int(self.rng.integers(len(contents)))] ^= 16
            file.write_bytes(contents)
            with self.looked_at_while_mended():
                db.check(self.path, repair=True, progress=False)
        if self.rng.random() < 0.5:
            self.refresh()
        self.writer = self.opened()
        self.frames = [self.reset() for _ in range(self.envs)]

    # Readers

    @contextlib.contextmanager
    def looked_at_meanwhile(self) -> Iterator[None]:
        """Have readers refresh within the writer's calls, after rows came to count, or were evicted."""
        real = SegmentTable.set_length

        def set_length(table: SegmentTable, slot: int, rows: int, **options: Any) -> None:
            real(table, slot, rows, **options)
            if self.writer is not None and table is self.writer._store.table and self.rng.random() < 0.4:
                for reader in self.readers:
                    reader.refresh()
                    assert_right(reader)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SegmentTable, "set_length", set_length)
            yield

    @contextlib.contextmanager
    def looked_at_while_mended(self) -> Iterator[None]:
        """Have readers refresh while a store is recovered or repaired, though they may find it damaged then."""
        real = Files.sync

        def sync(files: Files, name: str) -> None:
            real(files, name)
            if self.rng.random() < 0.1:
                for reader in self.readers:
                    with contextlib.suppress(db.DiskBufferError):
                        reader.refresh()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Files, "sync", sync)
            yield

    def refresh(self) -> None:
        for reader in self.readers:
            if self.rng.random() < 0.7:
                reader.refresh()
                assert_right(reader, self.writer)

    def close(self) -> None:
        for buffer in [*self.readers, self.writer]:
            if buffer is not None:  # an empty one is false
                buffer.close()


CALLS = [*["add"] * 6, *["extend"] * 4, "cut_off", "cut_off", "clear", "seal", "flush", "write", "write", "remove_column"]
CALLS += ["resize", "mark", "reopen", "die", "repair"]


@examples(4, 80, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_a_refresh_adds_is_what_reading_everything_anew_finds(data: st.DataObject) -> None:
    envs, stack = data.draw(st.integers(1, 3), "envs"), data.draw(st.sampled_from([1, 3]), "stack")
    shape, seed = SHAPES[data.draw(st.sampled_from(sorted(SHAPES)), "shape")], data.draw(st.integers(0, 2**32), "seed")
    options: dict[str, Any] = {"capacity": data.draw(st.sampled_from([None, 20, 60]), "capacity")}
    options["capacity_each"] = options["capacity"] is not None and data.draw(st.booleans(), "each")
    calls = data.draw(st.lists(st.sampled_from(CALLS), min_size=4, max_size=amounts.amount(12, 40)), "calls")
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory) / "store", envs, stack, shape, seed, **options)
        try:
            for call in calls:
                assert world.writer is not None
                with world.looked_at_meanwhile():
                    getattr(world, call)(world.writer)
                world.refresh()
        finally:
            world.close()


@pytest.mark.nightly
@pytest.mark.parametrize("stack", [1, 4])
def test_it_is_so_beside_a_writer_that_never_stops_and_is_killed(stack: int, tmp_path: Path, writers: Writers) -> None:
    world, gone_on = Experience(2), 0
    options = {"capacity": 400, "segment_rows": 16}
    writers.start(tmp_path / "store", world, "everything", seed=0, **options)
    writers.wait_for(3)
    assert writers.account is not None
    with db.ReplayBuffer(tmp_path / "store", mode="r", frame_stack=stack, seed=3, threads=1) as reader:
        for seed in range(1, 60):
            until = writers.account.last[1] + 4
            while writers.account.last[1] < until:
                before = reader._reader.index
                reader.refresh()
                gone_on += reader._reader.index is before
                if len(reader):
                    world.check_batch(reader.sample(16), stack)
            writers.kill()
            reader.refresh()
            assert_right(reader)
            world.check(reader)
            writers.start(tmp_path / "store", world, "everything", seed=seed, **options)
            writers.wait_for(1)
    assert gone_on > 3
    writers.kill()


def test_a_reader_has_the_capacity_where_steps_are_given_up_while_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, real, left = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}, follow_index.find_growth, [3]

    def extend(n: int) -> None:
        writer.extend(np.arange(n + 1), np.arange(n), np.ones(n))

    def find_growth(*args: Any) -> Any:
        found = real(*args)
        if left[0]:
            left[0] -= 1
            extend(30)
        return found

    with db.ReplayBuffer(tmp_path / "store", 64, columns=columns) as writer:
        extend(100)
        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
            monkeypatch.setattr(follow_index, "find_growth", find_growth)
            extend(5)
            reader.refresh()
            assert (len(reader), left) == (64, [0])
            assert reader.at(reader.steps())["action"].tolist() == writer.at(writer.steps())["action"].tolist()


def test_after_a_refresh_that_failed_rows_are_right_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others lie by then in the slots that the reader's index knows."""
    world = Experience(1)
    with world.open(tmp_path / "store", 100, segment_rows=8) as writer:
        feed = Feeder(world, writer)
        feed.add(100)
        with db.ReplayBuffer(tmp_path / "store", mode="r", seed=1) as reader:
            feed.add(500)
            with monkeypatch.context() as patch:
                patch.setattr(restore_index, "MOVING_SECONDS", 0.1)
                patch.setattr(Following, "unchanged", lambda self, slots: False)
                with pytest.raises(db.errors.EvictedError, match="come and go"):
                    reader.refresh()
            for _ in range(5):
                world.check_batch(reader.sample(1))
            np.testing.assert_array_equal(reader.steps(), writer.steps())


def test_of_several_writers_a_reader_keeps_what_it_knew_where_one_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stores of those before it have gone on by then, in the memory of the index that stays."""
    world = Experience(1)
    with (
        world.open(tmp_path / "all", 200, segment_rows=8, writer="one") as one,
        world.open(tmp_path / "all", 200, segment_rows=8, writer="two") as two,
        db.ReplayBuffer(tmp_path / "all", mode="r", seed=1, threads=1) as reader,
    ):
        feeds = [Feeder(world, writer) for writer in (one, two)]
        for feed in feeds:
            feed.add(90)
        reader.refresh()
        known, real, members = reader.steps(), Member.look, list(reader._store.members)  # type: ignore[attr-defined]

        def look(member: Member, *args: Any) -> None:
            if member is members[1]:
                raise db.errors.EvictedError("segments come and go")
            real(member, *args)

        for _ in range(3):
            feeds[0].add(300)
            with monkeypatch.context() as patch:
                patch.setattr(Member, "look", look)
                with pytest.raises(db.errors.EvictedError):
                    reader.refresh()
                np.testing.assert_array_equal(reader.steps(), known)
        for _ in range(5):
            batch = reader.sample(1)
            at = (batch["steps"] // STREAMS).numpy()
            np.testing.assert_array_equal(batch["action"], world.actions(0, at))
        reader.refresh()
        assert len(reader) == len(one) + len(two)


def test_frames_before_an_episode_that_a_repair_dropped_in_part_count_the_same_once_those_are_evicted(tmp_path: Path) -> None:
    """The segment that began with them is gone then, and what is left tells only that there were more."""
    obs = np.arange(200, dtype=np.uint8).reshape(-1, 1, 1) + np.arange(3, dtype=np.uint8)[:, None]
    actions, rewards = np.arange(200), np.ones(200)
    columns = {"obs": db.Column((1,), "uint8"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", 40, columns=columns, frame_stack=3, segment_rows=16) as buffer:
        ends = np.arange(12) == 11
        buffer.extend(obs=obs[:12], next_obs=obs[1:13], action=actions[:12], reward=rewards[:12], terminated=ends)
        buffer.extend(obs=obs[20:30], next_obs=obs[21:31], action=actions[:10], reward=rewards[:10])
    file = tmp_path / "store" / "action" / "c.0"
    contents = bytearray(file.read_bytes())
    contents[15 * 8] ^= 1  # of the first of two frames before the second episode, in rows 15 and 16
    file.write_bytes(contents)
    assert not db.check(tmp_path / "store", repair=True, progress=False).ok
    with db.ReplayBuffer(tmp_path / "store", threads=1) as buffer:
        for n in range(30, 100):
            buffer.extend(obs=obs[n : n + 1], next_obs=obs[n + 1 : n + 2], action=actions[:1], reward=rewards[:1])
            buffer.flush()
            with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
                np.testing.assert_array_equal(reader.steps(), buffer.steps())
                assert len(reader.episodes) == len(buffer.episodes)
