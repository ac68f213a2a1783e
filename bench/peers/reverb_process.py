"""A process of Reverb's: a server, an actor or a learner. It runs in an environment of Reverb's own, and imports nothing of ours.

    python reverb_process.py server CAPACITY
    python reverb_process.py actor ADDRESS FRAMES STACK
    python reverb_process.py learner ADDRESS STACK BATCH

Every line of standard input is a request, a number mostly; every answer is a line of JSON after ``> ``, as Reverb prints, too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TABLE, FRAME = "transitions", (84, 84)
WINDOW = "frames"  # of a transition: those of its obs, and one more


def anonymous() -> int:
    """Return the bytes that this process allocated: anonymous memory, and no files."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def serve(capacity: int) -> None:
    """Be the server, and tell what memory it takes."""
    import reverb

    table = reverb.Table(
        TABLE,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=capacity,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    server = reverb.Server(tables=[table])
    _answer(f"localhost:{server.port}")
    _listen(lambda _: [anonymous(), time.process_time()])


class Actor:
    """Adds single steps, as an actor that plays does: every frame goes to the server once."""

    def __init__(self, address: str, frames: str, stack: int) -> None:
        import reverb

        self._pixels, self._stack, self._at = np.load(frames, mmap_mode="r").view(np.ndarray), stack, 0
        self._writer = reverb.Client(address).trajectory_writer(num_keep_alive_refs=stack + 1)

    def add(self, steps: int) -> list[float]:
        """Add so many steps; return the seconds until the server has them, and of the processor here."""
        writer, stack, rows = self._writer, self._stack, len(self._pixels) - 1
        begin, busy = time.perf_counter(), time.process_time()
        for _ in range(steps):
            at = self._at
            self._at += 1
            writer.append({"obs": self._pixels[at % rows], "action": np.int64(at), "reward": np.float32(1), "terminated": False})
            history = writer.history
            if at >= stack:  # the newest frame is what came after the step before
                trajectory = {
                    WINDOW: history["obs"][-stack - 1 :],
                    "action": history["action"][-2:-1],
                    "reward": history["reward"][-2:-1],
                    "terminated": history["terminated"][-2:-1],
                }
                writer.create_item(TABLE, priority=1.0, trajectory=trajectory)
        writer.flush()
        return [time.perf_counter() - begin, time.process_time() - busy]


class Learner:
    """Takes batches, which the library's own threads fetch beforehand."""

    def __init__(self, address: str, stack: int, batch: int) -> None:
        import reverb
        import tensorflow as tf

        shapes = {WINDOW: (stack + 1, *FRAME), "action": (1,), "reward": (1,), "terminated": (1,)}
        dtypes = {WINDOW: tf.uint8, "action": tf.int64, "reward": tf.float32, "terminated": tf.bool}
        data = reverb.TrajectoryDataset(
            address,
            TABLE,
            dtypes,
            {name: tf.TensorShape(shape) for name, shape in shapes.items()},
            max_in_flight_samples_per_worker=2 * batch,
        )
        self._batches = data.batch(batch, drop_remainder=True).prefetch(2).as_numpy_iterator()
        self.newest: Any = None

    def sample(self, batches: int) -> float:
        """Take so many batches; return the seconds."""
        begin = time.perf_counter()
        for _ in range(batches):
            self.newest = next(self._batches).data
        return time.perf_counter() - begin

    def check(self, frames: str) -> int:
        """Return how many transitions of the newest batch are right, by the frames that the actor added."""
        pixels, newest = np.load(frames, mmap_mode="r"), self.newest
        stack, rows = newest[WINDOW].shape[1] - 1, len(pixels) - 1
        found = 0
        for window, action in zip(newest[WINDOW], newest["action"][:, 0], strict=True):
            wanted = [pixels[n % rows] for n in range(int(action) - stack + 1, int(action) + 2)]
            found += bool(np.array_equal(window, np.stack(wanted)))
        return found


def _answer(value: Any) -> None:
    print(f"> {json.dumps(value)}", flush=True)


def _listen(call: Callable[[str], Any]) -> None:
    for line in sys.stdin:
        _answer(call(line.strip()))


def main() -> None:
    """Be one of them."""
    role, *rest = sys.argv[1:]
    if role == "server":
        serve(int(rest[0]))
    elif role == "actor":
        actor = Actor(rest[0], rest[1], int(rest[2]))
        _answer("ready")
        _listen(lambda steps: actor.add(int(steps)))
    else:
        learner = Learner(rest[0], int(rest[1]), int(rest[2]))
        _answer("ready")
        _listen(lambda given: learner.sample(int(given)) if given.isdigit() else learner.check(given))


if __name__ == "__main__":
    main()
