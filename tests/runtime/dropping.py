"""Random operations on buffers that are dropped instead of closed; a process of its own, as what this is about ends a process.

python tests/runtime/dropping.py SEED ROUNDS DIRECTORY
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db

COLUMNS = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}


class Node:
    """Something with references to other things, as an agent or a model has them."""

    inner: Any = None


class Holder:
    """A store, and whoever has it open."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path, self.rng, self.added = path, rng, 0
        self.buffer: db.ReplayBuffer | None = None
        self.sampler: db.Sampler | None = None
        self.others: list[Any] = []

    def open(self) -> None:
        if self.buffer is None:
            for _ in range(600):
                gc.collect()  # closes what was dropped, or another thread does, which may be collecting already
                for thread in threading.enumerate():
                    if thread.name == "diskbuffer-close" and thread.ident is not None:  # or another thread is about to start it
                        thread.join(60)
                with contextlib.suppress(db.LockedError):
                    self.buffer = db.ReplayBuffer(self.path, columns=COLUMNS, segment_rows=8)
                    break
                time.sleep(0.1)
            assert self.buffer is not None, f"{self.path} stays locked"
            steps = len(self.buffer)
            assert steps == self.added, f"{steps} steps of {self.added}"
            self.sampler = db.Prioritized()

    def add(self) -> None:
        if self.buffer is not None:
            n = self.rng.randrange(1, 20)
            obs = np.zeros((n + 1, 2), np.float32)
            self.buffer.extend(obs, np.arange(self.added, self.added + n), np.zeros(n))
            self.added += n

    def write(self) -> None:
        if self.buffer is not None and len(self.buffer):
            self.buffer.columns.write("value", self.buffer.steps(), np.ones(len(self.buffer)))

    def sample(self) -> None:
        if self.buffer is not None and len(self.buffer):
            batch = self.buffer.sample(4, self.sampler)
            assert (batch["action"].numpy() < self.added).all()
            self.others.append(batch)

    def load(self) -> None:
        if self.buffer is not None and len(self.buffer):
            loop = iter(self.buffer.loader(4))
            self.others += [next(loop), loop]

    def read(self) -> None:
        if self.buffer is not None:
            reader = db.ReplayBuffer(self.path, mode="r")
            if len(reader):
                self.others.append(reader.sample(2))
            self.others.append([reader])

    def refer(self) -> None:
        """Put the buffer behind things that are older or younger than it is: the collector's order depends on that."""
        node: Any = self.buffer
        for _ in range(self.rng.randrange(12)):
            outer = Node()
            outer.inner, node = node, outer
        self.others.append(node)

    def drop(self) -> None:
        ring = [self.others, self.buffer, self.sampler] if self.rng.random() < 0.5 else [self.sampler, self.others, self.buffer]
        if self.rng.random() < 0.7:
            ring.append(ring)
        self.buffer, self.sampler, self.others = None, None, []

    def close(self) -> None:
        if self.buffer is not None:
            self.buffer.close()
            self.drop()


def main(seed: int, rounds: int, directory: Path) -> None:
    """Do it; a crash, or an error, ends the process."""
    faulthandler.enable()
    gc.freeze()  # what was imported, which would have to be looked through each time
    rng = random.Random(seed)
    gc.set_threshold(rng.choice([100, 700, 10**6]))
    holders = [Holder(directory / f"store{n}", rng) for n in range(2)]
    running = threading.Event()

    def collect() -> None:
        while not running.wait(0.01):
            gc.collect(2)

    collector = threading.Thread(target=collect)
    if seed % 2:
        collector.start()
    try:
        for _ in range(rounds):
            holder = rng.choice(holders)
            often: list[Callable[[], object]] = [holder.open, holder.add, holder.write, holder.sample, holder.refer, holder.drop]
            rng.choice([*often, *often, holder.load, holder.read, holder.close, gc.collect])()
    finally:
        running.set()
        if seed % 2:
            collector.join()
    for holder in holders:
        holder.drop()
        with contextlib.suppress(db.LockedError):
            holder.open()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
