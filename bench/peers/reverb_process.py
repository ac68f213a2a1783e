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

TABLE = "transitions"
WINDOW = "frames"  # of a transition: those of its obs, and one more
FLAT = ("action", "reward", "terminated")


def server(capacity: str) -> Callable[[str], Any]:
    """Start the server; return what tells its address, its anonymous memory in bytes, and its processor time."""
    import reverb

    kinds = {"sampler": reverb.selectors.Uniform(), "remover": reverb.selectors.Fifo()}
    table = reverb.Table(TABLE, **kinds, max_size=int(capacity), rate_limiter=reverb.rate_limiters.MinSize(1))
    started = reverb.Server(tables=[table])

    def tell(_: str) -> list[Any]:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        memory = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))
        return [f"localhost:{started.port}", memory, time.process_time()]

    return tell


def actor(address: str, frames: str, stack: str) -> Callable[[str], Any]:
    """Return what adds single steps, as an actor that plays does: every frame goes to the server once."""
    import reverb

    pixels, window, at = np.load(frames, mmap_mode="r").view(np.ndarray), int(stack) + 1, 0
    writer = reverb.Client(address).trajectory_writer(num_keep_alive_refs=window)

    def add(steps: str) -> list[float]:
        nonlocal at
        begin, busy = time.perf_counter(), time.process_time()
        for _ in range(int(steps)):
            obs = pixels[at % (len(pixels) - 1)]
            writer.append({"obs": obs, "action": np.int64(at), "reward": np.float32(1), "terminated": False})
            at += 1
            if at >= window:  # the newest frame is what came after the step before
                trajectory = {WINDOW: writer.history["obs"][-window:], **{name: writer.history[name][-2:-1] for name in FLAT}}
                writer.create_item(TABLE, priority=1.0, trajectory=trajectory)
        writer.flush()
        return [time.perf_counter() - begin, time.process_time() - busy]

    return add


def learner(address: str, stack: str, batch: str) -> Callable[[str], Any]:
    """Return what takes batches, which the library's threads fetch beforehand, or checks the newest by the frames of a file."""
    import reverb
    import tensorflow as tf

    shapes = {WINDOW: tf.TensorShape((int(stack) + 1, 84, 84)), **{name: tf.TensorShape((1,)) for name in FLAT}}
    dtypes = {WINDOW: tf.uint8, "action": tf.int64, "reward": tf.float32, "terminated": tf.bool}
    data = reverb.TrajectoryDataset(address, TABLE, dtypes, shapes, max_in_flight_samples_per_worker=2 * int(batch))
    batches = data.batch(int(batch), drop_remainder=True).prefetch(2).as_numpy_iterator()
    newest: Any = None

    def right(pixels: Any) -> int:
        found = 0
        for window, last in zip(newest[WINDOW], newest["action"][:, 0], strict=True):
            wanted = np.arange(int(last) - int(stack) + 1, int(last) + 2) % (len(pixels) - 1)
            found += bool(np.array_equal(window, pixels[wanted]))
        return found

    def take(given: str) -> float:
        nonlocal newest
        if not given.isdigit():
            return right(np.load(given, mmap_mode="r"))
        begin = time.perf_counter()
        for _ in range(int(given)):
            newest = next(batches).data
        return time.perf_counter() - begin

    return take


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    roles: dict[str, Callable[..., Callable[[str], Any]]] = {"server": server, "actor": actor, "learner": learner}
    answer = roles[role](*arguments)
    for line in sys.stdin:
        print(f"> {json.dumps(answer(line.strip()))}", flush=True)
