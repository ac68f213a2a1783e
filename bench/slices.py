"""Slices of trajectories through TorchRL's buffers: on `DiskStorage` with TorchRL's sampler and with ours, beside its memory map.

    python -m bench.slices [--only 0 1] --json FILE

Batches of 1,024 steps in slices of 4, right after an `extend` of 1,000 steps and without, as a user gets them: the whole
`TensorDictReplayBuffer.sample()`. TorchRL's finds trajectories by ("next", "done"), ours by the store's index. Rows are 14 bytes,
so that what is looked at is in memory. Each storage is in a process of its own, and they take turns, the smallest of ours, too.
The memory map and the store of 346 million steps take 6 GB of disk each; all of it takes a quarter of an hour.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.measure import Part, Report, parser, ratio, run, settled
from bench.worker import Worker

LENGTH, BATCH, SMALL_BATCH, EXTENDED = 4, 1024, 256, 1000
PART = 100_000  # steps that are written together
MOST = 20  # seconds of calls in a round
THEIRS, OURS = "SliceSampler", "DiskSampler"


class Setting(NamedTuple):
    """Steps, of a storage of some size, in episodes of some length."""

    steps: int
    size: int
    episode: int

    def __str__(self) -> str:
        return f"{self.steps / 1e6:g} M of {self.size / 1e6:g} M, episodes of {self.episode}"


SETTINGS: tuple[Setting, ...] = (
    Setting(5_000_000, 6_000_000, 500),
    Setting(5_000_000, 6_000_000, 10),
    Setting(5_000_000, 600_000_000, 500),
    Setting(20_000_000, 24_000_000, 500),
    Setting(346_000_000, 600_000_000, 500),
)


class Storage:
    """A storage that is filled, and buffers that sample from it."""

    def __init__(self, of: str, setting: Setting, directory: Path) -> None:
        from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
        from torchrl.data.replay_buffers.samplers import SliceSampler

        import diskbuffer as db
        from diskbuffer.adapters.torchrl import DiskSampler, DiskStorage

        path = Path(tempfile.mkdtemp(dir=directory))
        self._setting, self._next = setting, 0
        storage: Any
        if of == "disk":
            storage = DiskStorage(setting.size, path / "store")
        else:
            storage = LazyMemmapStorage(setting.size, scratch_dir=str(path))
        samplers: dict[str, Any] = {THEIRS: SliceSampler(slice_len=LENGTH)}
        if of == "disk":
            samplers[OURS] = DiskSampler(db.Slices(LENGTH))
        self._buffers = {name: TensorDictReplayBuffer(storage=storage, sampler=each) for name, each in samplers.items()}
        while self._next < setting.steps:
            self._extend(min(PART, setting.steps - self._next))
        if of == "disk":
            storage.stored.buffer.flush()
        os.sync()

    def _extend(self, n: int) -> None:
        import torch
        from tensordict import TensorDict

        step = torch.arange(self._next, self._next + n)
        now, later = ((at % 251).to(torch.uint8)[:, None].expand(n, 4).contiguous() for at in (step, step + 1))
        done = (step % self._setting.episode == self._setting.episode - 1)[:, None]
        ends = {"done": done, "terminated": done.clone(), "reward": torch.zeros(n, 1)}
        self._buffers[THEIRS].extend(TensorDict({"obs": now, "next": TensorDict({"obs": later, **ends}, [n])}, [n]))
        self._next += n

    def seconds(self, sampler: str, size: int, calls: int, extended: bool = False) -> float:
        """Return the median of samples' seconds, each right after something was written, or not."""
        buffer, taken = self._buffers[sampler], list[float]()
        buffer.sample(size)
        while len(taken) < calls and sum(taken) < MOST:
            if extended:
                self._extend(EXTENDED)
            begin = time.perf_counter()
            buffer.sample(size)
            taken.append(time.perf_counter() - begin)
        return float(np.median(taken))

    def memory(self) -> int:
        """Return the bytes of RAM that the process has to itself, before TorchRL's sampler has drawn."""
        self._buffers[OURS].sample(BATCH)
        return settled()


def compare(number: int, report: Report, directory: Path) -> None:
    """Measure one of the settings, beside the first one."""
    rounds, settings = (3 if report.quick else 5), SETTINGS
    if report.quick:
        settings = tuple(each._replace(steps=each.steps // 50, size=each.size // 50) for each in settings)
    small, setting = settings[0], settings[number]
    with (
        Worker(Storage, "disk", small, directory) as first,
        Worker(Storage, "memmap", setting, directory) as memmap,
        Worker(Storage, "disk", setting, directory) as disk,
    ):
        memory = {each: each.ask("memory") for each in (first, disk)}
        turns = (  # theirs after ours, as a batch takes gigabytes of memory, and so pages of files
            {"ours": (disk, OURS), "ours, the smallest": (first, OURS)},
            {"memory map": (memmap, THEIRS), "TorchRL's": (disk, THEIRS)},
        )
        for extended, after in ((True, ", after an extend"), (False, "")):
            found: dict[str, list[float]] = {}
            for competitors in turns:
                for _ in range(rounds):
                    for name, (worker, sampler) in competitors.items():
                        found.setdefault(name, []).append(worker.ask("seconds", sampler, BATCH, 9, extended))
            for name, times in found.items():
                report.times(f"{setting}: {name}{after}", times)
            value = ratio(found["TorchRL's"], found["memory map"])
            report.row(f"{setting}: SliceSampler on disk, of the memory map's time{after}", value, "x", at_most=1.1)
            value = ratio(found["ours"], found["ours, the smallest"])
            report.row(f"{setting}: ours against the smallest{after}", value, "x", at_most=1.5)
        seconds = float(np.median([disk.ask("seconds", OURS, SMALL_BATCH, 50, True) for _ in range(rounds)]))
        report.row(f"{setting}: ours, a batch of {SMALL_BATCH}, after an extend", seconds * 1e3, "ms", at_most=3)
    grown = memory[disk] - memory[first]
    if number == 1:
        episodes = setting.steps // setting.episode - small.steps // small.episode
        report.row("ours: memory that grows with an episode", grown / episodes, "bytes", at_most=24)
    if number == 4:
        report.row("ours: memory that grows with a step", grown / (setting.steps - small.steps), "bytes", at_most=1)


PARTS: dict[str, Part] = {str(number): partial(compare, number) for number in range(len(SETTINGS))}

if __name__ == "__main__":
    run("slices", PARTS, parser(__doc__))
