"""What tests share: experience whose every row can be told from its place, and writers in other processes that can be killed.

Run as a script this file is the server that forks those writers, so that each need not import everything again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import diskbuffer as db

Array = npt.NDArray[Any]


class Experience:
    """Streams of which every row is a function of its stream and position.

    Episodes of stream s have ``episode + 3 * s`` steps; they are terminated and truncated by turns.
    """

    def __init__(self, n_envs: int = 1, episode: int = 20, shape: tuple[int, ...] = (34, 33)) -> None:
        self.n_envs, self.episode, self.shape = n_envs, episode, shape
        size = int(np.prod(shape))
        self._pattern = (np.arange(size) // 7 * 3).astype(np.uint8)

    @property
    def columns(self) -> dict[str, db.Column]:
        return {"obs": db.Column(self.shape, "uint8"), "action": db.Column((), "int64")}

    def open(self, path: Path, capacity: int | None = None, **options: Any) -> db.ReplayBuffer:
        """Open the store, or create it, for this experience."""
        return db.ReplayBuffer(path, capacity, columns=self.columns, n_envs=self.n_envs, autoreset="disabled", **options)

    # What is in a row

    def rows(self, stream: int) -> int:
        return self.episode + 3 * stream + 1  # of an episode

    def frames(self, stream: int, positions: Array) -> Array:
        """Frames without a zero byte behind their first eight, which hold the position."""
        places = np.asarray(positions, np.int64)
        flat = (self._pattern + (places[:, None] * 11 + stream * 57).astype(np.uint8)) | np.uint8(1)
        flat[:, :8] = (places + 1).astype("<i8").view(np.uint8).reshape(-1, 8)
        return flat.reshape(len(places), *self.shape)

    def actions(self, stream: int, positions: Array) -> Array:
        return np.asarray(positions, np.int64) * 10 + stream + 1

    def rewards(self, stream: int, positions: Array) -> Array:
        return (np.asarray(positions, np.int64) % 1000 + 0.5 + stream).astype(np.float32)

    def is_last(self, stream: int, positions: Array) -> Array:
        return np.asarray(np.asarray(positions) % self.rows(stream) == self.rows(stream) - 1)

    def starts(self, stream: int, positions: Array) -> Array:
        places = np.asarray(positions, np.int64)
        return places - places % self.rows(stream)

    def ends(self, stream: int, positions: Array) -> tuple[Array, Array]:
        """Terminated and truncated, of the steps at `positions`."""
        over, turn = self.is_last(stream, np.asarray(positions) + 1), np.asarray(positions) // self.rows(stream) % 2
        return over & (turn == 0), over & (turn == 1)

    def stacks(self, stream: int, positions: Array, stack: int) -> Array:
        """Observations at rows: (n, ...) frames, or (n, stack, ...) filled up with an episode's first frame."""
        if stack == 1:
            return self.frames(stream, positions)
        starts = self.starts(stream, positions)
        return np.stack([self.frames(stream, np.maximum(positions - back, starts)) for back in range(stack - 1, -1, -1)], axis=1)

    # What a buffer holds

    def check(self, buffer: db.ReplayBuffer) -> int:
        """Compare every step that can be sampled; return how many there are."""
        steps = steps_of(buffer)
        if len(steps):
            self.check_batch(buffer.at(steps), buffer.frame_stack)
        return len(steps)

    def check_batch(self, batch: dict[str, Any], stack: int = 1) -> None:
        steps = batch["steps"].numpy()
        for stream in range(self.n_envs):
            mine = steps % self.n_envs == stream
            at = steps[mine] // self.n_envs
            terminated, truncated = self.ends(stream, at)
            assert not self.is_last(stream, at).any()
            for name, expected in (
                ("obs", self.stacks(stream, at, stack)),
                ("next_obs", self.stacks(stream, at + 1, stack)),
                ("action", self.actions(stream, at)),
                ("reward", self.rewards(stream, at)),
                ("terminated", terminated),
                ("truncated", truncated),
            ):
                np.testing.assert_array_equal(batch[name].numpy()[mine], expected, err_msg=f"{name} of stream {stream}")


class Feeder:
    """Feed a buffer with experience, going on where each of its streams is.

    `heads` are the positions of the newest rows, which are known to be there once a call has returned.
    """

    def __init__(self, experience: Experience, buffer: db.ReplayBuffer) -> None:
        self.experience, self.buffer = experience, buffer
        self.heads = heads_of(buffer)

    def _next(self, stream: int) -> int:
        head = int(self.heads[stream])
        return head + 1 if head < 0 or self.experience.is_last(stream, np.array(head)) else head

    def add(self, times: int = 1) -> None:
        """Add a step of every stream, `times` times."""
        world, n = self.experience, self.experience.n_envs
        for _ in range(times):
            at = [np.array([self._next(stream)]) for stream in range(n)]
            parts = [
                (
                    world.frames(s, p),
                    world.actions(s, p),
                    world.rewards(s, p),
                    world.frames(s, p + 1),
                    *world.ends(s, p),
                )
                for s, p in enumerate(at)
            ]
            self.buffer.add(*(np.concatenate(column) for column in zip(*parts, strict=True)))
            self.heads = np.concatenate(at) + 1

    def extend(self, stream: int, steps: int) -> None:
        """Add `steps` steps of one stream at once, over as many episodes as that takes."""
        world, first = self.experience, self._next(stream)
        at = np.arange(first, first + 2 * steps + 2)
        at = at[~world.is_last(stream, at)][:steps]
        self.buffer.extend(
            world.frames(stream, at),
            world.actions(stream, at),
            world.rewards(stream, at),
            world.frames(stream, at + 1),
            *world.ends(stream, at),
            env=stream,
        )
        self.heads[stream] = at[-1] + 1


def steps_of(buffer: db.ReplayBuffer) -> Array:
    """Return every step that can be sampled, stream after stream."""
    index = buffer._reader.index
    streams, positions, *_ = index.locate(np.arange(int(index.steps().sum())))
    return np.asarray(positions * len(index.table) + streams)


def heads_of(buffer: db.ReplayBuffer) -> Array:
    """Return the position of the newest row of each stream, as its episodes tell; -1 where it is empty."""
    heads = np.full(buffer.n_envs, -1, np.int64)
    episodes = buffer.episodes
    heads[episodes.stream] = episodes.start // buffer.n_envs + episodes.length  # of each stream, its last episode counts
    return heads


# Writers in other processes


class Writers:
    """Start a writer in a process of its own, and kill it. One at a time."""

    def __init__(self) -> None:
        self._server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = 0
        self.acknowledged: Array = np.zeros(0, np.int64)

    def _line(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline()

    def start(
        self, path: Path, experience: Experience, how: str, *, capacity: int | None = None, steps: int = 0, **options: Any
    ) -> None:
        """Fork a writer that adds ``how`` ("add", "extend", "seal"), without end, or idles after `steps` rounds.

        `acknowledged` then holds the heads of which it knows that they are there, and behind them how many rounds it made,
        -1 until its buffer is open.
        """
        acks = path.parent / f"{path.name}.acks"
        self.acknowledged = np.memmap(acks, np.int64, "w+", shape=(experience.n_envs + 1,))
        self.acknowledged[:] = -1
        job = {"path": str(path), "acks": str(acks), "how": how, "capacity": capacity, "steps": steps, "options": options}
        job |= {"n_envs": experience.n_envs, "episode": experience.episode}
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        self.pid = int(self._line())

    def wait_for(self, rounds: int) -> None:
        """Block until the writer made so many rounds."""
        deadline = time.monotonic() + 60
        while self.acknowledged[-1] < rounds:
            assert time.monotonic() < deadline, "the writer does not come along"
            time.sleep(0.001)

    def kill(self) -> Array:
        """Kill the writer; return the heads that it knew of."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        status = int(self._line())
        self.pid = 0
        assert os.WIFSIGNALED(status), "the writer had failed before it was killed; its error is above"
        return np.array(self.acknowledged[:-1])

    def close(self) -> None:
        assert self._server.stdin is not None
        if self.pid:
            self.kill()
        self._server.stdin.close()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()


def serve() -> None:
    """Fork a writer for each line of standard input; tell its number, and how it ended."""
    experience = Experience()
    with tempfile.TemporaryDirectory() as directory, experience.open(Path(directory) / "store", threads=1) as buffer:
        feeder = Feeder(experience, buffer)  # whatever is compiled is compiled now
        feeder.add(50)
        feeder.extend(0, 50)
        experience.check(buffer)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                write(json.loads(line))
            except BaseException:  # noqa: BLE001  there is nobody else to tell
                traceback.print_exc()
            os._exit(1)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


def write(job: dict[str, Any]) -> None:
    """Be the writer that a job describes."""
    acks = np.memmap(job["acks"], np.int64, "r+")
    experience = Experience(job["n_envs"], job["episode"])
    buffer = experience.open(Path(job["path"]), job["capacity"], **job["options"])
    feeder, rng = Feeder(experience, buffer), np.random.default_rng(os.getpid())
    acks[:-1], acks[-1] = feeder.heads, 0
    while not job["steps"] or acks[-1] < job["steps"]:
        if job["how"] == "extend":
            feeder.extend(int(rng.integers(job["n_envs"])), int(rng.integers(1, 200)))
        else:
            feeder.add()
        acks[:-1] = feeder.heads
        acks[-1] += 1
    if job["how"] == "seal":
        buffer.seal()
        acks[-1] += 1
    time.sleep(3600)


@pytest.fixture(scope="session")
def server() -> Iterator[Writers]:
    if not hasattr(os, "fork"):
        pytest.skip("writers are forked, and killed with SIGKILL")
    server = Writers()
    yield server
    server.close()


@pytest.fixture
def writers(server: Writers) -> Iterator[Writers]:
    yield server
    if server.pid:
        server.kill()


@pytest.fixture
def experience() -> type[Experience]:
    return Experience


@pytest.fixture
def feeder() -> type[Feeder]:
    return Feeder


if __name__ == "__main__":
    serve()
