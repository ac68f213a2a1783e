"""What a learner writes stays with its steps and on the disk, whatever writers, readers and failing syncs do meanwhile."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import SHARED
from tests.writers.test_multi_writer import Writer

SYNCS = ("fsync", "fdatasync")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """A writer that keeps some 512 steps in segments of 64, with 400 steps in it, as many episodes of ten."""
    writer = Writer.__new__(Writer)
    writer.root, writer.name, writer.envs, writer.frame, writer.stack = tmp_path / "all", "w", 1, (5,), 1
    writer.open(capacity=512, segment_rows=64)
    go_on(writer, 1, 400)
    yield writer
    writer.buffer.close()


def go_on(writer: Writer, first: int, steps: int) -> None:
    """Add steps, ten an episode."""
    numbers = itertools.count(first)
    for _ in range(0, steps, 10):
        writer.extend(0, 10, numbers, ends=True)


def values_by_step(learner: db.ReplayBuffer, column: str) -> dict[int, float]:
    """Return a column's values that are not zero, by step."""
    steps = learner.steps()
    found = dict(zip(steps.tolist(), learner.at(steps, columns=[column])[column].tolist(), strict=True))
    return {step: value for step, value in found.items() if value}


def test_values_of_steps_that_were_evicted_since_the_refresh_go_nowhere(writer: Writer) -> None:
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        old = learner.steps()[:120]
        learner.columns.write("score", learner.steps()[:1], [1.0])
        go_on(writer, 401, 1200)
        assert learner.columns.write("score", old, np.ones(120)) == 0
        assert values_by_step(learner, "score") == {}
        learner.refresh()
        assert values_by_step(learner, "score") == {}


def test_tags_of_episodes_that_were_evicted_since_the_refresh_go_nowhere(writer: Writer) -> None:
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        old = learner.steps()[0]
        go_on(writer, 401, 1200)
        with pytest.raises(db.InputError, match="was evicted"):
            learner.episodes.of([old]).set_tag("good")
        learner.refresh()
        assert not any(learner.episodes.tag)


def test_priorities_of_steps_that_were_evicted_since_the_refresh_go_nowhere(writer: Writer) -> None:
    sampler = db.Prioritized(alpha=1.0, seed=0)
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        old = learner.sample(20, sampler)["steps"]
        go_on(writer, 401, 1200)
        assert sampler.update(old, np.full(20, 5.0)) == 0
        assert set(values_by_step(learner, "priority").values()) <= {1.0}
        learner.sample(1, sampler)
        assert set(values_by_step(learner, "priority").values()) == {1.0}


def test_returns_are_of_the_steps_that_are_there_when_they_are_computed(writer: Writer) -> None:
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        go_on(writer, 401, 1200)
        learner.columns.returns_and_advantages(gamma=0.0, values=None)
        learner.refresh()
        steps = learner.steps()
        batch = learner.at(steps)
        assert (batch["return"] == batch["reward"]).all()


def test_rows_that_come_while_a_file_is_made_do_not_get_the_values(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Files.create_mapped

    def create_mapped(files: Files, name: str, size: int) -> Any:
        if "score" in name:
            monkeypatch.setattr(Files, "create_mapped", real)
            go_on(writer, 401, 1200)
        return real(files, name, size)

    with db.ReplayBuffer(writer.root, mode="r") as learner:
        monkeypatch.setattr(Files, "create_mapped", create_mapped)
        learner.columns.write("score", learner.steps(), np.ones(400))
        learner.refresh()
        assert values_by_step(learner, "score") == {}


def test_columns_that_were_read_first_can_be_written(writer: Writer) -> None:
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        steps = learner.steps()
        learner.columns.write("score", steps[:100], np.ones(100))
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        learner.at(steps)
        assert learner.columns.write("score", steps[:50], np.full(50, 2.0)) == 50
        assert values_by_step(learner, "score") == {step: 2.0 if n < 50 else 1.0 for n, step in enumerate(steps[:100].tolist())}


def test_a_reader_sees_what_was_written_to_segments_that_it_has_read(writer: Writer) -> None:
    with db.ReplayBuffer(writer.root, mode="r") as learner, db.ReplayBuffer(writer.root, mode="r") as reader:
        steps = learner.steps()
        learner.columns.write("score", steps[:1], [1.0])
        reader.refresh()
        assert len(values_by_step(reader, "score")) == 1
        learner.columns.write("score", steps, np.ones(400))
        reader.refresh()
        assert len(values_by_step(reader, "score")) == 400


def test_a_reader_that_goes_on_in_the_learners_place_keeps_what_it_wrote(writer: Writer) -> None:
    reader = db.ReplayBuffer(writer.root, mode="r")
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        steps = learner.steps()
        learner.columns.write("score", steps[:1], [1.0])
        reader.refresh()
        assert len(values_by_step(reader, "score")) == 1
        learner.columns.write("score", steps, np.ones(400))
    with reader:
        reader.columns.write("score", steps[-1:], [2.0])
        assert sum(values_by_step(reader, "score").values()) == 401


def test_a_reader_does_not_see_values_of_a_column_that_was_removed_and_made_again(writer: Writer) -> None:
    with db.ReplayBuffer(writer.root, mode="r") as learner, db.ReplayBuffer(writer.root, mode="r") as reader:
        steps = learner.steps()
        learner.columns.write("score", steps, np.ones(400))
        reader.refresh()
        assert len(values_by_step(reader, "score")) == 400
        learner.columns.remove("score")
        learner.columns.write("score", steps[:1], [1.0])
        reader.refresh()
        assert len(values_by_step(reader, "score")) == 1


# Flushing


def note_syncs(monkeypatch: pytest.MonkeyPatch, at: Callable[[str], None]) -> None:
    """Have every sync of a file tell its path first."""
    for name in SYNCS:
        real = getattr(os, name)

        def sync(fd: int, real: Any = real) -> None:
            at(os.readlink(f"/proc/self/fd/{fd}"))
            real(fd)

        monkeypatch.setattr(os, name, sync)


def test_a_flush_after_one_that_failed_does_not_succeed(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = True

    def fail(path: str) -> None:
        if failing and "/columns/score/" in path and os.path.isfile(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    learner = db.ReplayBuffer(writer.root, mode="r")
    learner.columns.write("score", learner.steps(), np.ones(400))
    note_syncs(monkeypatch, fail)
    with pytest.raises(OSError, match="Input/output error"):
        learner.flush()
    failing = False
    with pytest.raises(OSError, match="an earlier sync of this file failed"):
        learner.flush()
    with pytest.raises(OSError, match="an earlier sync of this file failed"):
        learner.close()


def test_every_flush_syncs_what_a_sampler_has_written_since(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sampler = set[str](), db.Prioritized(seed=0)
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        steps = learner.sample(400, sampler)["steps"]
        learner.flush()
        sampler.update(steps, np.full(400, 5.0))
        note_syncs(monkeypatch, synced.add)
        learner.flush()
    files = {str(file) for file in (writer.root / SHARED / "columns" / "priority").rglob("c.*")}
    assert len(files) == 7
    assert files <= synced


def test_a_flush_syncs_the_names_of_all_directories(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = set[str]()
    note_syncs(monkeypatch, synced.add)
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        learner.columns.write("score", learner.steps(), np.ones(400))
        learner.flush()
    columns = writer.root / SHARED / "columns"
    assert {
        str(path) for path in (writer.root, writer.root / SHARED, columns, columns / "score", columns / "score" / "w")
    } <= synced


def test_a_flush_syncs_what_another_learner_wrote_that_was_killed(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = set[str]()
    learner = db.ReplayBuffer(writer.root, mode="r")
    learner.columns.write("score", learner.steps(), np.ones(400))
    assert learner._multi_writer is not None
    learner._multi_writer.columns.end_writing()  # as a kill does
    with db.ReplayBuffer(writer.root, mode="r") as another:
        note_syncs(monkeypatch, synced.add)
        another.flush()
        assert len([path for path in synced if "/columns/score/w/c." in path]) == 7
        synced.clear()
        another.flush()
    assert not [path for path in synced if "/columns/score/w/c." in path]  # once is enough


def test_closing_syncs_what_was_written(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = set[str]()
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        learner.columns.write("score", learner.steps(), np.ones(400))
        note_syncs(monkeypatch, synced.add)
    assert len([path for path in synced if "/columns/score/w/c." in path]) == 7


def test_others_sample_while_a_learner_flushes(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = list[bool]()

    def sample(_: str) -> None:
        if not sampled:
            thread = threading.Thread(target=lambda: sampled.append(len(learner.sample(8)["steps"]) == 8), daemon=True)
            thread.start()
            thread.join(60)

    with db.ReplayBuffer(writer.root, mode="r") as learner:
        learner.columns.write("score", learner.steps(), np.ones(400))
        learner.sample(8)
        note_syncs(monkeypatch, sample)
        learner.flush()
        assert sampled == [True]
        monkeypatch.undo()


@pytest.mark.some(1)
@pytest.mark.parametrize("drawn_between", [False, True])
def test_priorities_follow_a_store_that_was_removed_and_made_anew(writer: Writer, drawn_between: bool) -> None:
    other, sampler = Writer(writer.root, "other", 1, (5,), None, 1), db.Prioritized(alpha=1.0, seed=0)
    go_on(other, 1, 100)
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        sampler.update(learner.sample(300, sampler)["steps"], np.full(300, 5.0))
        writer.buffer.close()
        shutil.rmtree(writer.root / "w")
        if drawn_between:
            learner.refresh()
            assert set(learner.sample(300, sampler)["steps"].tolist()) <= set(learner.steps().tolist())
        writer.open()
        go_on(writer, 1, 200)
        learner.refresh()  # which sees that the old one is gone
        learner.refresh()
        steps = learner.steps()
        assert set(learner.sample(300, sampler)["steps"].tolist()) <= set(steps.tolist())
        assert sampler.update(steps, np.where(np.arange(300) % 2, 1.0, 0.0)) == 300
        drawn = learner.sample(300, sampler)["steps"].numpy()
        assert set(drawn.tolist()) <= set(steps[1::2].tolist())
    other.buffer.close()
    writer.buffer.close()


def test_a_store_that_was_made_anew_does_not_have_the_values_of_the_one_before(writer: Writer) -> None:
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        learner.columns.write("score", learner.steps(), np.ones(400))
    writer.buffer.close()
    shutil.rmtree(writer.root / "w")
    writer.open(capacity=512, segment_rows=64)
    go_on(writer, 1001, 400)
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        assert values_by_step(learner, "score") == {}
        learner.columns.write("score", learner.steps()[:1], [2.0])
        assert list(values_by_step(learner, "score").values()) == [2.0]


def test_a_writer_does_not_go_back_to_a_mark_where_a_learner_has_values_of_its_steps(writer: Writer) -> None:
    writer.buffer.copies.mark("m")
    go_on(writer, 401, 50)
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        learner.columns.write("score", learner.steps(), np.ones(len(learner)))
    writer.buffer.close()
    with pytest.raises(db.InputError, match="a learner has values of its steps, in score"):
        db.ReplayBuffer(writer.root / "w", mark="m")
    with db.ReplayBuffer(writer.root, mode="r") as learner:
        assert len(values_by_step(learner, "score")) == 450
        learner.columns.remove("score")
    with db.ReplayBuffer(writer.root / "w", mark="m") as buffer:
        assert len(buffer) == 400
