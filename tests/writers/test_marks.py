"""Marks of several writers' stores together: what was there, whatever writers evict, and do, afterwards."""

from __future__ import annotations

import itertools
import pickle
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.commands.marks import marks
from tests.amounts import examples
from tests.writers.test_multi_writer import FRAMES, Writer


def everything(buffer: db.ReplayBuffer) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = buffer.at(np.sort(buffer.steps()))
    return found


@pytest.mark.nightly
@given(seed=st.integers(0, 10**6), frame=st.sampled_from(FRAMES))
@examples(2, 10, suppress_health_check=[HealthCheck.too_slow])
def test_a_mark_has_what_there_was(seed: int, frame: tuple[int, ...]) -> None:
    random, numbers = np.random.default_rng(seed), itertools.count(1)
    with tempfile.TemporaryDirectory() as directory:
        root, made = Path(directory) / "all", dict[str, tuple[dict[str, torch.Tensor], list[int]]]()
        writers = [Writer(root, f"w{n}", n + 1, frame, 300, 2) for n in range(2)]
        with db.ReplayBuffer(root, mode="r", seed=seed) as learner:
            for n in range(12):
                writer = writers[int(random.integers(len(writers)))]
                writer.extend(int(random.integers(writer.envs)), int(random.integers(1, 90)), numbers, ends=random.random() < 0.7)
                what = random.random()
                if what < 0.15 and len(writers) < 4:
                    writers.append(Writer(root, f"w{len(writers)}", 1, frame, 300, 2))
                elif what < 0.3:
                    writer.buffer.close()
                    writer.open()
                elif what < 0.4:
                    writer.buffer.flush(recompress=True)
                learner.refresh()
                there = learner.steps()
                if what < 0.5:
                    some = random.permutation(there)[:20]
                    learner.columns.write("score", some, random.random(len(some)).astype(np.float32))
                if random.random() < 0.4:
                    name = str(random.choice(["a", "b", f"c{n}"]))
                    learner.copies.mark(name, replace=True)
                    made.pop(name, None)
                    made[name] = everything(learner), sorted(there.tolist())
            assert learner.copies.marks == db.marks(root) == tuple(made)
            for name, (whole, steps) in made.items():
                with db.ReplayBuffer(root, mode="r", mark=name) as marked:
                    assert sorted(marked.steps().tolist()) == steps
                    found = everything(marked)
                    assert found.keys() == whole.keys()
                    for key, values in whole.items():
                        assert torch.equal(found[key], values), key
            for name in made:
                learner.copies.remove(name)
            assert learner.copies.marks == ()
        for writer in writers:
            writer.buffer.close()


def test_it_is_read_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, numbers = tmp_path / "all", itertools.count(1)
    writers = [Writer(root, f"w{n}", 1, (5,), 5000, 1, segment_rows=512) for n in range(2)]
    for writer in writers:
        writer.extend(0, 2000, numbers, ends=True)
        writer.buffer.flush(recompress=True)
    with db.ReplayBuffer(root, mode="r", seed=1) as learner:
        learner.copies.mark("first")
        sealed = [file for file in (root / "_shared/marks/first/w0/action").glob("c.*") if file.stat().st_nlink > 1]
        assert len(sealed) >= 2  # shared
        with pytest.raises(db.InputError, match="already"):
            learner.copies.mark("first")
        with pytest.raises(db.InputError, match="a mark's name"):
            learner.copies.mark("../first")
        with pytest.raises(db.InputError, match="has no mark 'second'"):
            db.ReplayBuffer(root, mode="r", mark="second")
        with pytest.raises(db.InputError, match="give writer=NAME"):
            db.ReplayBuffer(root, mark="first")
        with pytest.raises(db.InputError, match="is inside of"):
            learner.copies.snapshot(root / "inside")
        with db.ReplayBuffer(root, mode="r") as other, pytest.raises(db.LockedError, match="another process"):
            other.copies.mark("second")
        assert marks(str(root)) == 0
        assert capsys.readouterr().out == "first\n"
        with db.ReplayBuffer(root, mode="r", mark="first", seed=3) as marked:
            assert len(marked) == 4000
            with pytest.raises(db.errors.ReadOnlyError, match="is a mark"):
                marked.columns.write("score", marked.steps(), np.zeros(4000))
            with pytest.raises(db.errors.ReadOnlyError, match="is a mark"):
                marked.copies.mark("second")
            writers[0].extend(0, 5, numbers, ends=True)
            marked.refresh()
            assert len(marked) == 4000
            with pickle.loads(pickle.dumps(marked)) as again:
                assert again.sample(8)["steps"].tolist() == marked.sample(8)["steps"].tolist()
    assert marks(str(root), remove="first") == 0
    assert db.check(root / "w0", progress=False).ok
    for writer in writers:
        writer.buffer.close()


def test_a_mark_made_while_writers_add_has_all_that_was_seen_before(tmp_path: Path) -> None:
    root, stop, failed = tmp_path / "all", threading.Event(), list[BaseException]()
    writers = [Writer(root, f"w{n}", 1, (34, 33), None, 2) for n in range(2)]

    def add(writer: Writer, numbers: itertools.count[int]) -> None:
        try:
            while not stop.wait(0.01):
                writer.extend(0, 30, numbers, ends=next(numbers) % 3 > 0)
        except BaseException as error:  # noqa: BLE001  told below
            failed.append(error)

    adding = [threading.Thread(target=add, args=(writer, itertools.count(10**6 * n + 1))) for n, writer in enumerate(writers)]
    for thread in adding:
        thread.start()
    try:
        with db.ReplayBuffer(root, mode="r") as learner:
            for _ in range(2):
                stop.wait(0.1)
                learner.refresh()
                seen = everything(learner)
                learner.copies.mark("newest", replace=True)
                with db.ReplayBuffer(root, mode="r", mark="newest") as marked:
                    assert torch.isin(seen["steps"], torch.from_numpy(marked.steps())).all()
                    found = marked.at(seen["steps"].numpy())
                    assert torch.equal(found["action"], seen["action"])
                    assert torch.equal(found["obs"], seen["obs"])
    finally:
        stop.set()
        for thread in adding:
            thread.join()
    assert not failed
    for writer in writers:
        writer.buffer.close()


def test_marks_can_be_removed_while_no_learner_is_there_and_writers_go_on(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "all", "w0", 1, (), 300, 2)
    writer.extend(0, 40, itertools.count(1), ends=True)
    with db.ReplayBuffer(tmp_path / "all", mode="r") as learner:
        learner.copies.mark("a")
        learner.copies.mark("b")
        with pytest.raises(db.LockedError):
            db.remove_mark(tmp_path / "all", "a")
    assert db.marks(tmp_path / "all") == ("a", "b")
    with pytest.raises(db.InputError, match="no mark"):
        db.remove_mark(tmp_path / "all", "c")
    db.remove_mark(tmp_path / "all", "a")
    assert db.marks(tmp_path / "all") == ("b",)
    writer.extend(0, 40, itertools.count(41), ends=True)
    with db.ReplayBuffer(tmp_path / "all", mode="r", mark="b") as marked:
        assert len(marked) == 40
    writer.buffer.close()
