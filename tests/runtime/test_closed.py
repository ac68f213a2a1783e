"""A buffer that was closed changes nothing any more, whatever was begun before that: another process may write there by then."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from tests.support.specimens import contents

STEPS = 60
PACKAGE = str(Path(db.__file__).parent)
Calls = dict[str, Callable[["Parts"], Any]]


class Parts:
    """A buffer, and what it hands out."""

    def __init__(self, buffer: db.ReplayBuffer) -> None:
        self.buffer, self.columns, self.copies, self.episodes = buffer, buffer.columns, buffer.copies, buffer.episodes
        self.episode, self.loader, self.sampler = buffer.episodes[0], buffer.loader(4), db.Prioritized()
        self.batch, self.names = buffer.sample(4, self.sampler), buffer.steps()

    def arrays(self, n: int) -> dict[str, Any]:
        return {"obs": np.zeros((n + 1, 2), np.float32), "action": np.zeros(n, int), "reward": np.zeros(n)}


def _map(parts: Parts, **options: Any) -> Any:
    return parts.columns.map(lambda batch: batch["action"] * 2.0, 7, out="mapped", progress=False, **options)


WRITING: Calls = {
    "add": lambda parts: parts.buffer.add(np.zeros(2), 0, 0.0, np.ones(2), False, False),
    "extend": lambda parts: parts.buffer.extend(**parts.arrays(30)),
    "cut_off": lambda parts: parts.buffer.cut_off(),
    "clear": lambda parts: parts.buffer.clear(),
    "resize": lambda parts: parts.buffer.resize(50),
    "flush": lambda parts: parts.buffer.flush(recompress=True),
    "columns.write": lambda parts: parts.columns.write("written", parts.names, np.ones(len(parts.names), np.float32)),
    "columns.remove": lambda parts: parts.columns.remove("value"),
    "columns.map": _map,
    "columns.returns_and_advantages": lambda parts: parts.columns.returns_and_advantages(values=None),
    "copies.mark": lambda parts: parts.copies.mark("new"),
    "copies.remove": lambda parts: parts.copies.remove("kept"),
    "copies.snapshot": lambda parts: parts.copies.snapshot(parts.buffer.path.with_name("snapshot")),
    "episodes.set_tag": lambda parts: parts.episodes.set_tag("new"),
    "episodes.set_values": lambda parts: parts.episodes.set_values(success=True),
    "update": lambda parts: parts.sampler.update(parts.batch["steps"], np.ones(4)),
}
READING: Calls = {
    "at": lambda parts: parts.buffer.at(parts.names),
    "batches": lambda parts: list(parts.buffer.batches(7)),
    "check": lambda parts: parts.buffer.check(progress=False),
    "columns.statistics": lambda parts: parts.columns.statistics("reward"),
    "copies.arrays": lambda parts: parts.copies.arrays("kept"),
    "counts": lambda parts: parts.buffer.counts(),
    "draw": lambda parts: parts.buffer.draw(4),
    "episode": lambda parts: parts.buffer.episode(0),
    "loader": lambda parts: next(iter(parts.loader)),
    "refresh": lambda parts: parts.buffer.refresh(),
    "sample": lambda parts: parts.buffer.sample(4, parts.sampler),
    "stats": lambda parts: parts.buffer.stats(),
    "steps": lambda parts: parts.buffer.steps(),
    "episodes.elapsed": lambda parts: parts.episodes.elapsed(parts.names),
    "episodes.find": lambda parts: parts.buffer.episodes.find(0),
    "episodes.of": lambda parts: parts.buffer.episodes.of(parts.names),
    "episodes.read": lambda parts: list(parts.episodes.read()),
    "episodes.remaining": lambda parts: parts.episodes.remaining(parts.names),
    "episodes.to_pandas": lambda parts: parts.buffer.episodes.to_pandas(),
    "episode.frames": lambda parts: parts.episode.frames("obs"),
    "episode.film_strip": lambda parts: parts.buffer.episodes[0].film_strip(),
    "episode.video": lambda parts: parts.buffer.episodes[0].video(),
}
NOTHING_OF_THE_STORE = {
    "close",
    "state_dict",
    "load_state_dict",
    "columns.get",
    "columns.items",
    "columns.keys",
    "columns.transformed",
    "columns.values",
}


def opened(path: Path, **options: Any) -> db.ReplayBuffer:
    columns = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}
    return db.ReplayBuffer(path, columns=columns, segment_rows=16, seed=0, threads=1, **options)


def filled(path: Path, **options: Any) -> Parts:
    """A buffer with a column, a mark, and a column of priorities."""
    buffer = opened(path, **options)
    buffer.extend(obs=np.zeros((STEPS + 1, 2), np.float32), action=np.zeros(STEPS, int), reward=np.zeros(STEPS))
    buffer.cut_off()
    buffer.columns.write("value", buffer.steps(), np.ones(STEPS))
    buffer.copies.mark("kept")
    return Parts(buffer)


def written_by_the_next(path: Path) -> db.ReplayBuffer:
    """Open a store, and write what a call of a buffer that was closed might write, too."""
    buffer = opened(path)
    for name in ("written", "mapped", "return"):
        buffer.columns.write(name, buffer.steps(), np.full(len(buffer), 7, np.float32))
    buffer.flush()
    return buffer


def public(kind: type, prefix: str = "") -> set[str]:
    names = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
    return {f"{prefix}{name}" for name in names}


def test_every_public_method_is_tried_here(tmp_path: Path) -> None:
    parts = filled(tmp_path / "store")
    found = public(db.ReplayBuffer) | public(type(parts.columns), "columns.") | public(type(parts.copies), "copies.")
    found |= public(type(parts.episodes), "episodes.") | {"episode.frames", "episode.film_strip", "episode.video", "update"}
    assert found == WRITING.keys() | READING.keys() | NOTHING_OF_THE_STORE
    parts.buffer.close()


@pytest.mark.some(14)
@pytest.mark.parametrize("name", WRITING | READING)
def test_a_closed_buffer_does_nothing_beside_the_next_writer(name: str, tmp_path: Path) -> None:
    parts = filled(tmp_path / "store")
    parts.buffer.close()
    with written_by_the_next(tmp_path / "store"):
        before = contents(tmp_path)
        with pytest.raises(db.errors.ClosedError, match="was closed"):
            (WRITING | READING)[name](parts)
        assert contents(tmp_path) == before


class ClosedWithin:
    """Have another thread close a buffer at one of the lines of a call, and the next writer come."""

    def __init__(self, parts: Parts, at: int) -> None:
        self._parts, self._left, self._lock = parts, at, parts.buffer._store.lock
        self.lines, self.before = 0, dict[str, bytes]()
        self.next: db.ReplayBuffer | None = None
        self._closing = threading.Thread(target=parts.buffer.close)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line" and not self._lock._is_owned():  # type: ignore[attr-defined]
            self.lines += 1
            if self.lines == self._left:
                self._close()
        return self._trace

    def _close(self) -> None:
        self._closing.start()
        self._closing.join(0.2)  # a call that is waited for ends before the buffer is closed
        if not self._closing.is_alive():
            self.next = written_by_the_next(self._parts.buffer.path)
            self.before = contents(self._parts.buffer.path)

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)
            if self._closing.ident is not None:
                self._closing.join()


@pytest.mark.some(7)
@pytest.mark.parametrize("name", WRITING)
def test_a_call_that_its_buffer_is_closed_under_changes_nothing_after_that(
    name: str, tmp_path: Path, amount: Callable[[int, int], int]
) -> None:
    parts = filled(tmp_path / "store")
    counting = ClosedWithin(parts, 0)
    with counting.during():
        WRITING[name](parts)
    parts.buffer.close()
    for n, at in enumerate(np.linspace(1, counting.lines, amount(2, 25), dtype=int).tolist()):
        path = tmp_path / str(n) / "store"
        path.parent.mkdir()
        within = ClosedWithin(parts := filled(path), at)
        with within.during(), contextlib.suppress(db.errors.ClosedError):
            WRITING[name](parts)
        parts.buffer.close()
        if within.next is not None:
            assert contents(path) == within.before, (at, counting.lines)
            within.next.close()
        assert db.check(path, progress=False).ok
